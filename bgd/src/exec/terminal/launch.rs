//! Starts a process in a new terminal: the pseudo-terminal, its leader, and the job that the leader starts. Blocks for
//! the start of two processes, so it belongs on the spawner's threads.

use std::ffi::CString;
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::fds;
use bgd_shared::proc;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};

use super::leader;
use super::order::{ANSWER_BYTES, JobOrder, read_answer};
use crate::exec::processes::members::Stat;
use crate::os::pidfd::{PidFd, SIGKILL, wait_for_all};
use crate::os::spawn::{ChildStack, JobControl, Plan, SpawnError, Spawned, Stage, spawn};

/// How long a leader may take to start its job: it may have been stopped, and the spawner's threads are few.
const PATIENCE: Duration = Duration::from_secs(30);

/// After how many milliseconds without an answer a leader is sent SIGCONT, in case it was stopped.
const LOOK: u8 = 100;

/// The delay before a retry.
const REST: Duration = Duration::from_millis(20);

/// How to start a leader; everything else concerns its job.
#[derive(Debug)]
pub struct LeaderPlan<'a> {
    /// The label in process lists, after the program's name: the task's id.
    pub label: &'a CString,
    /// The environment: the marks that identify processes of the daemon.
    pub env: &'a [CString],
    pub folder: &'a Path,
    /// The resource limits, including the mark.
    pub rlimits: &'a [(i32, libc::rlimit)],
    /// Signals whose disposition must be set back to the default.
    pub reset_signals: &'a [i32],
    /// `cgroup.procs` of the cgroup to join.
    pub cgroup: Option<BorrowedFd<'a>>,
    pub null: BorrowedFd<'a>,
}

/// A job that was started in its terminal.
#[derive(Debug)]
pub struct LaunchedJob {
    /// The leader, a child of the daemon.
    pub leader: Spawned,
    /// The socket on which the leader reports about the job. Non-blocking.
    pub news: OwnedFd,
    pub job: i32,
    pub job_handle: PidFd,
}

/// The reason why there is no job.
#[derive(Debug)]
pub enum LaunchError {
    /// The job could not be started, for the same reasons as without a terminal.
    Job(SpawnError),
    /// Its leader could not be started, or failed to start the job.
    Leader(io::Error),
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(error) => write!(f, "{error:?}"),
            Self::Leader(error) => write!(f, "cannot start the leader of its terminal: {error}"),
        }
    }
}

/// A leader that has no job yet.
#[derive(Debug)]
pub struct Leader {
    process: Spawned,
    /// The socket on which the leader receives its order.
    orders: UnixStream,
    /// The daemon's and the leader's end of the socket for reports, if it is not the one for the order.
    news: Option<(OwnedFd, OwnedFd)>,
}

/// The additional data of the order for a job that announces itself.
#[derive(Debug)]
pub struct Announcing<'a> {
    /// The socket to announce the job on.
    pub socket: BorrowedFd<'a>,
    /// The descriptors to announce besides the job's own.
    pub descriptors: Vec<BorrowedFd<'a>>,
}

impl Leader {
    /// Starts a leader on the terminal's slave. If `is_announced`, its job announces itself and the daemon's end of the
    /// leader's socket for reports, which is then separate from that for the order.
    ///
    /// # Errors
    /// Returns the reason; no process is left then.
    pub fn start(
        plan: &LeaderPlan<'_>,
        slave: &OwnedFd,
        is_announced: bool,
        stack: &mut ChildStack,
    ) -> Result<Self, LaunchError> {
        let (ours, theirs) = UnixStream::pair().map_err(LaunchError::Leader)?;
        let news = is_announced.then(reports_pair).transpose().map_err(LaunchError::Leader)?;
        Ok(Self { process: start_leader(plan, &theirs, slave, stack)?, orders: ours, news })
    }

    pub fn process(&self) -> &Spawned {
        &self.process
    }

    /// Returns the daemon's end of the separate socket for reports.
    pub fn news(&self) -> Option<&OwnedFd> {
        self.news.as_ref().map(|(ours, _)| ours)
    }

    /// Has the leader start the job. `given` are the standard streams that are not the terminal, as `order` specifies
    /// them.
    ///
    /// # Errors
    /// Returns the reason; no process is left then.
    pub fn start_job(
        &self,
        order: &JobOrder,
        given: &[BorrowedFd<'_>],
        announcing: Option<Announcing<'_>>,
    ) -> Result<(i32, PidFd), LaunchError> {
        let Self { process, orders, news } = self;
        let passed = announcing.zip(news.as_ref()).map(|(Announcing { socket, descriptors }, (_, its))| {
            [its.as_fd(), socket].into_iter().chain(descriptors).collect::<Vec<_>>()
        });
        let talked = talk(orders, &process.pidfd, order, given, passed.as_deref());
        talked
            .map_err(LaunchError::Leader)
            .and_then(|job| job.map_err(LaunchError::Job))
            .inspect_err(|_| end(process))
    }

    /// Combines the leader with its job.
    pub fn with(self, (job, job_handle): (i32, PidFd)) -> LaunchedJob {
        let Self { process: leader, orders, news } = self;
        let news = news.map_or_else(|| orders.into(), |(ours, _)| ours);
        LaunchedJob { leader, news, job, job_handle }
    }
}

/// Creates the socket for a leader's reports, with the daemon's end first.
fn reports_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((ours.into(), theirs.into()))
}

fn start_leader(
    plan: &LeaderPlan<'_>,
    socket: &UnixStream,
    slave: &OwnedFd,
    stack: &mut ChildStack,
) -> Result<Spawned, LaunchError> {
    let text = |text: &str| CString::new(text).unwrap_or_default();
    let folder = CString::new(plan.folder.as_os_str().as_bytes()).unwrap_or_default();
    let plan = Plan {
        // The file that this daemon was started from, even if its name has been taken by another since.
        programs: &[text("/proc/self/exe")],
        argv: &[text("bgd"), text(leader::ARGUMENT), plan.label.clone()],
        env: plan.env,
        folder: &folder,
        umask: 0o077,
        rlimits: plan.rlimits,
        reset_signals: plan.reset_signals,
        stdio: [socket.as_fd(), slave.as_fd(), plan.null],
        cgroup: plan.cgroup,
        control: JobControl::Terminal(slave.as_fd()),
        announce: None,
    };
    spawn(&plan, stack).map_err(|error| match error.stage {
        // The leader's program can't be executed, not the job's.
        Stage::Exec | Stage::Folder | Stage::Announce => LaunchError::Leader(error.errno.into()),
        Stage::Clone | Stage::Session | Stage::Terminal | Stage::Cgroup | Stage::Limits | Stage::Streams => {
            LaunchError::Job(error)
        }
    })
}

/// Sends the order and receives the answer.
fn talk(
    mut leader: &UnixStream,
    process: &PidFd,
    order: &JobOrder,
    given: &[BorrowedFd<'_>],
    announced: Option<&[BorrowedFd<'_>]>,
) -> io::Result<Result<(i32, PidFd), SpawnError>> {
    leader.set_read_timeout(Some(PATIENCE))?;
    leader.set_write_timeout(Some(PATIENCE))?;
    let order = order.encode();
    let sent = fds::send(leader, &order, given)?;
    leader.write_all(&order[sent..])?;
    // Last, so that a leader that has received only a part of the order holds no announced descriptors.
    announced.map(|announced| fds::send(leader, &[0], announced)).transpose()?;
    until_answer(leader, process)?;
    let mut answer = [0; ANSWER_BYTES];
    let (count, received) = fds::receive(leader, &mut answer)?;
    leader.read_exact(&mut answer[count..]).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::other("it ended before it had started the program"),
        _ => error,
    })?;
    match read_answer(answer) {
        Err(error) => Ok(Err(error)),
        Ok(job) => {
            leader.set_nonblocking(true)?;
            let handle = received.into_iter().next().ok_or(Errno::EBADF)?;
            Ok(Ok((job, handle.into())))
        }
    }
}

/// Waits for a leader's answer. The job may stop the leader as soon as it runs; then the leader is sent SIGCONT.
fn until_answer(leader: &UnixStream, process: &PidFd) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match poll(&mut [PollFd::new(leader.as_fd(), PollFlags::POLLIN)], LOOK) {
            Ok(0) if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
            // The end of a leader closes its end of the socket, which ends the wait.
            Ok(0) => _ = process.signal(libc::SIGCONT),
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Kills and reaps a leader that has no job, or that can't be communicated with. It may nevertheless have started the
/// job, so its whole session is killed.
fn end(leader: &Spawned) {
    let deadline = Instant::now() + PATIENCE;
    // A leader that has ended needs no signal.
    let _ = leader.pidfd.signal(SIGKILL);
    wait_for_all([&leader.pidfd], deadline);
    // The leader can start nothing any more, and its pid stays that of its session until it is reaped.
    while end_members(leader.pid, deadline) {
        if Instant::now() >= deadline {
            tracing::warn!(session = leader.pid, "some processes of a session without a leader do not end");
            break;
        }
    }
    leader.pidfd.reap();
}

/// Kills the members of a session whose leader has ended. Returns false if there are none.
fn end_members(session: i32, deadline: Instant) -> bool {
    let mut found = false;
    for pid in proc::processes().filter(|pid| *pid != session) {
        let is_member = || Stat::of(pid).is_some_and(|stat| stat.session == session);
        if !is_member() {
            continue;
        }
        match PidFd::open(pid) {
            Ok(process) if process.has_ended() || !is_member() => {}
            Ok(process) => {
                found = true;
                let _ = process.signal(SIGKILL);
                wait_for_all([&process], deadline);
            }
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => {}
            // No descriptor is left at this moment, and no event reports when one is free.
            Err(_) => {
                found = true;
                thread::sleep(REST);
            }
        }
    }
    found
}
