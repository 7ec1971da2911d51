//! The leader of a terminal: the program `bgd` in a separate mode, one small process for each task that has a terminal.
//!
//! It leads the session that the terminal controls, as a shell does, and the job is its child, in a separate process
//! group. A job that led the session itself would be an orphaned group, which the kernel does not stop on Ctrl-Z. The
//! leader has all signals blocked, reports to the daemon when the job stops, and exits exactly like the job, so that
//! the daemon sees the job's exit in that of its own child. When the daemon is gone, the leader hangs up the job, as a
//! closed terminal does.
//!
//! It may use nothing of the daemon but `os`, the readers of `/proc`, and the format of its job's announcement to the
//! keeper: it is a separate process.

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::fds;
use bgd_shared::task::Exit;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::Pid;
use rustix::io::fcntl_dupfd_cloexec;

use super::order::{self, CONTINUED, HEAD_BYTES, JobOrder, STOPPED, UNKNOWN};
use crate::exec::processes::members::{self, Stat};
use crate::keeper::PID_AT;
use crate::os::mirror;
use crate::os::pidfd::{Change, SIGCONT};
use crate::os::spawn::{Announce, ChildStack, JobControl, NOT_EXECUTED, Plan, SpawnError, Spawned, spawn};

/// The first argument that makes a process a leader.
pub const ARGUMENT: &str = "--terminal-leader";

/// The signals to reset for the job: the start-up of Rust programs ignores this one.
const RESET_SIGNALS: &[i32] = &[libc::SIGPIPE];

const SIGHUP: i32 = libc::SIGHUP;

/// Runs a leader. Its standard input is a socket to the daemon, its standard output the terminal; its standard error is
/// not read.
pub fn main() -> ExitCode {
    match run_job() {
        Ok(Exit::Code(code)) => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
        Ok(Exit::Signal(signal)) => {
            mirror::end_by(signal);
            // Only reached if the signal ends no process.
            ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
        }
        Ok(Exit::Unknown(_)) => ExitCode::FAILURE,
        Err(error) => {
            use std::io::Write as _;
            let _ = writeln!(io::stderr(), "bgd: {ARGUMENT} is for internal use only: {error}");
            ExitCode::from(2)
        }
    }
}

/// Starts the job and lives as long as it does. Returns its exit.
fn run_job() -> io::Result<Exit> {
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None)?;
    // Not 0 to 2, which are used for the job's streams.
    let daemon = UnixStream::from(fcntl_dupfd_cloexec(io::stdin(), 3)?);
    let terminal = fcntl_dupfd_cloexec(io::stdout(), 3)?;
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    let news = SignalFd::with_flags(&children, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let (started, reports) = start(&daemon, &terminal)?;
    // The job's environment has been freed, and thereby wiped. If this daemon is killed, the next one identifies this
    // process by its own environment, which must be readable.
    prctl::set_dumpable(true)?;
    let answer = order::answer(started.as_ref().map(|job| job.pid).map_err(|error| *error));
    let descriptors = started.as_ref().ok().map(|job| job.pidfd.as_fd());
    let answered = fds::send(&daemon, &answer, descriptors.as_slice());
    match (started, reports) {
        // If the daemon was killed, the next one has received the announcement.
        (Ok(job), Some(reports)) => {
            drop(daemon);
            watch(&reports, &terminal, &news, &job)
        }
        (Ok(job), None) => {
            answered?;
            watch(&daemon, &terminal, &news, &job)
        }
        // Exit like a process that could not execute the program: a daemon that has only the announcement sees no other
        // end.
        (Err(_), _) => Ok(Exit::Code(NOT_EXECUTED)),
    }
}

/// Receives the order and starts the job. Closes its copies of the received descriptors, except the socket for reports,
/// if any.
fn start(
    daemon: &UnixStream,
    terminal: &OwnedFd,
) -> io::Result<(Result<Spawned, SpawnError>, Option<UnixStream>)> {
    let (order, received) = receive(daemon)?;
    let mut announced = Vec::new();
    if !order.announcement.is_empty() {
        announced = fds::receive(daemon, &mut [0])?.1;
    }
    let mut announced = announced.into_iter();
    let (reports, keeper) = (announced.next(), announced.next());
    let announced: Vec<OwnedFd> = announced.collect();
    let announced: Vec<BorrowedFd<'_>> = announced.iter().map(OwnedFd::as_fd).collect();
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "a descriptor was not passed on");
    if keeper.is_none() && !order.announcement.is_empty() {
        return Err(missing());
    }
    let announce = keeper.as_ref().map(|keeper| Announce {
        socket: keeper.as_fd(),
        message: &order.announcement,
        pid_at: PID_AT,
        descriptors: &announced,
    });
    let mut received = received.iter();
    let mut stdio = [terminal.as_fd(); 3];
    for (stream, given) in stdio.iter_mut().zip(order.given) {
        if given {
            *stream = received.next().ok_or_else(missing)?.as_fd();
        }
    }
    let limit = |(resource, rlim_cur, rlim_max): &(i32, u64, u64)| {
        (*resource, libc::rlimit { rlim_cur: *rlim_cur, rlim_max: *rlim_max })
    };
    let plan = Plan {
        programs: &order.programs,
        argv: &order.argv,
        env: &order.env,
        folder: &order.folder,
        umask: order.umask,
        rlimits: &order.rlimits.iter().map(limit).collect::<Vec<_>>(),
        reset_signals: RESET_SIGNALS,
        stdio,
        cgroup: None,
        control: JobControl::Foreground(terminal.as_fd()),
        announce,
    };
    Ok((spawn(&plan, &mut ChildStack::default()), reports.map(UnixStream::from)))
}

/// Receives the order, and the descriptors that came with it.
fn receive(mut daemon: &UnixStream) -> io::Result<(JobOrder, Vec<OwnedFd>)> {
    let mut head = [0; HEAD_BYTES];
    let (count, descriptors) = fds::receive(daemon, &mut head)?;
    daemon.read_exact(&mut head[count..])?;
    let mut rest = vec![0; JobOrder::rest(head)];
    daemon.read_exact(&mut rest)?;
    Ok((JobOrder::decode(&rest)?, descriptors))
}

/// Lives as long as the job, and reports to the daemon when it stops and continues.
fn watch(daemon: &UnixStream, terminal: &OwnedFd, news: &SignalFd, job: &Spawned) -> io::Result<Exit> {
    let Spawned { pid: job_pid, pidfd: job } = job;
    loop {
        while let Some(change) = job.change() {
            let word = match change {
                Change::Ended(exit) => {
                    if let Exit::Unknown(why) = &exit {
                        // This process can't exit that way, so it reports the reason.
                        tell(daemon, &[&[UNKNOWN], why.as_bytes()].concat());
                    }
                    keep_survivors(terminal);
                    return Ok(exit);
                }
                Change::Stopped(signal) => {
                    if signal != libc::SIGSTOP {
                        until_at_rest(*job_pid, signal);
                    }
                    STOPPED
                }
                Change::Continued => CONTINUED,
            };
            tell(daemon, &[word]);
        }
        let mut descriptors =
            [PollFd::new(news.as_fd(), PollFlags::POLLIN), PollFd::new(daemon.as_fd(), PollFlags::POLLIN)];
        match poll(&mut descriptors, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        while matches!(news.read_signal(), Ok(Some(_))) {}
        // The daemon sends nothing more, so any event means that it is gone.
        if descriptors[1].any().unwrap_or(false) {
            let _ = job.signal(SIGHUP);
            let _ = job.signal(SIGCONT);
            return Ok(Exit::Code(0));
        }
    }
}

/// How long the other processes of a job may take to stop after the first, or after a sign that one of them is not done
/// with it: it has worked, or was sent the signal once more.
pub const STOP_TIMEOUT: Duration = Duration::from_millis(1500);

/// How long they may take in all.
pub const LONGEST_STOP: Duration = STOP_TIMEOUT.saturating_mul(2);

/// A process that has slept for this long since the first one stopped has missed the key.
const MISSED: Duration = Duration::from_millis(500);

/// The time between two looks: no event reports that another process's child has stopped.
const LOOK: Duration = Duration::from_millis(2);

/// Waits until the whole group of a job has stopped. The key that stops a job reaches all of its processes at once, and
/// a shell stops before the program that it runs has left its full screen, but that program's output belongs before the
/// stop. Processes that ignore the signal are not waited for, and the wait ends when the job continues.
///
/// A program that handles the signal can miss it, as less does when the signal arrives just before a read of the
/// terminal: it would stop only at the next key, while the shell waits for it. Such a program is sent the signal once
/// more.
fn until_at_rest(job: i32, signal: i32) {
    let begin = Instant::now();
    let (end, mut latest_sign) = (begin + LONGEST_STOP, begin);
    let mut sleepers = HashMap::new();
    while Stat::of(job).is_none_or(|stat| stat.is_at_rest())
        && Instant::now() < end.min(latest_sign + STOP_TIMEOUT)
    {
        let members = members::descendants_of(&[job]);
        let mut all_at_rest = true;
        for pid in members.into_iter().filter(|pid| may_stop(*pid, job)) {
            all_at_rest = false;
            let sleeper = sleepers.entry(pid).or_insert_with(|| Sleeper::at(pid));
            if sleeper.has_missed(pid) {
                // The process was examined just now, and its parent, which is stopped, can't have reaped it.
                let _ = kill(Pid::from_raw(pid), Signal::try_from(signal).ok());
            }
            latest_sign = latest_sign.max(sleeper.since);
        }
        if all_at_rest {
            return;
        }
        thread::sleep(LOOK);
    }
}

/// Reports whether a process is in the group of this job, has not stopped yet, and does not ignore the key's signal.
fn may_stop(pid: i32, job: i32) -> bool {
    let runs = |stat: Stat| stat.group == job && !stat.is_at_rest();
    Stat::of(pid).is_some_and(runs) && !members::ignores(pid, libc::SIGTSTP)
}

/// A process that has not stopped.
struct Sleeper {
    /// The number of times that it has gone to sleep since its start.
    sleeps: u64,
    /// When it was last seen to work, or was signalled again.
    since: Instant,
    was_repeated: bool,
}

impl Sleeper {
    fn at(pid: i32) -> Self {
        Self { sleeps: members::sleeps(pid), since: Instant::now(), was_repeated: false }
    }

    /// Reports whether it has slept since the stop and must be signalled again. Returns true only once; it is assumed
    /// to work on the signal then.
    fn has_missed(&mut self, pid: i32) -> bool {
        let sleeps = members::sleeps(pid);
        if self.sleeps != sleeps || Stat::of(pid).is_none_or(|stat| stat.state != 'S') {
            (self.sleeps, self.since) = (sleeps, Instant::now());
        }
        let missed = !self.was_repeated && self.since.elapsed() >= MISSED;
        if missed {
            (self.was_repeated, self.since) = (true, Instant::now());
        }
        missed
    }
}

/// Sends a message to the daemon. The message may be dropped if there is no room, as the daemon then has hundreds of
/// unread ones.
fn tell(daemon: &UnixStream, words: &[u8]) {
    let _ = send(daemon.as_raw_fd(), words, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
}

/// Takes the foreground, to spare processes that the job has left running: the end of a session's leader hangs up the
/// foreground group, while a shell that keeps running would not.
fn keep_survivors(terminal: &OwnedFd) {
    let _ = rustix::termios::tcsetpgrp(terminal, rustix::process::getpgrp());
}
