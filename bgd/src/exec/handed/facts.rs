//! The system's information about a process that the daemon did not start, and about its pidfd. This module decides
//! nothing about them. A lookup by pid is only valid if the pidfd shows afterwards that the process still lives.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::ffi::OsStringExt as _;

use bgd_shared::proc::{self, ProcessStat};
use bgd_shared::task::Exit;
use bgd_shared::text::OsText;
use bgd_shared::time::Timestamp;
use nix::fcntl::OFlag;

use crate::exec::processes::members::Stat;
use crate::os::pidfd::{PidFd, exit_of_status};

/// The maximum length of a command line, in bytes; the rest is cut off.
const COMMAND_BYTES: u64 = 64 * 1024;

/// The target of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidfdTarget {
    /// No process: it is not a pidfd.
    Nothing,
    /// A single thread of a process.
    Thread,
    /// A process in another pid namespace, which this daemon can't see.
    Elsewhere,
    /// A process that has ended and was reaped by its parent.
    Gone,
    /// The process with this pid, which may have ended.
    Process(i32),
}

/// Returns the target of a descriptor.
///
/// # Errors
/// `/proc` can't be read.
pub fn pidfd_target(handle: &impl AsFd) -> io::Result<PidfdTarget> {
    let descriptor = handle.as_fd().as_raw_fd().to_string();
    let info = proc::descriptor_info("self", OsStr::new(&descriptor))?;
    // The kernel marks a pidfd of a thread (PIDFD_THREAD) by this flag, which has no other meaning on a pidfd.
    let is_thread = info.flags().is_some_and(|flags| OFlag::from_bits_retain(flags).contains(OFlag::O_EXCL));
    Ok(match info.field("Pid").and_then(|pid| pid.parse::<i32>().ok()) {
        None => PidfdTarget::Nothing,
        Some(_) if is_thread => PidfdTarget::Thread,
        Some(0) => PidfdTarget::Elsewhere,
        Some(pid @ 1..) => PidfdTarget::Process(pid),
        Some(_) => PidfdTarget::Gone,
    })
}

/// Reports whether a pid still is that of the process of a pidfd: the process lives, or is a zombie.
pub fn is_pid_of(pid: i32, handle: &impl AsFd) -> bool {
    matches!(pidfd_target(handle), Ok(PidfdTarget::Process(named)) if named == pid)
}

/// Returns the user ids of a process: real, effective, saved and file system.
pub fn users(pid: i32) -> Option<[u32; 4]> {
    let users = proc::status(pid, "Uid")?;
    let mut ids = users.split_ascii_whitespace().map_while(|id| id.parse().ok());
    Some([ids.next()?, ids.next()?, ids.next()?, ids.next()?])
}

/// The flag of a kernel thread (`PF_KTHREAD`).
const KERNEL_THREAD: u64 = 0x0020_0000;

pub fn is_kernel_thread(pid: i32) -> bool {
    ProcessStat::of(pid).and_then(|stat| stat.field::<u64>(9)).is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

/// Returns when a process was started.
pub fn started_at(pid: i32) -> Option<Timestamp> {
    let age = u64::try_from(Stat::of(pid)?.age().as_millis()).ok()?;
    Some(Timestamp::from_unix_ms(Timestamp::now().unix_ms().saturating_sub_unsigned(age)))
}

/// Returns the arguments of a process, cut off after [`COMMAND_BYTES`], or its name if it hides them.
pub fn command(pid: i32) -> Vec<OsText> {
    let mut bytes = proc::arguments(pid, COMMAND_BYTES);
    if bytes.iter().all(|byte| *byte == 0) {
        bytes = proc::name(pid);
    }
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    words.split(|byte| *byte == 0).map(|word| OsText::from(word.to_vec())).collect()
}

/// Returns the working directory of a process; empty if the system hides it.
pub fn folder(pid: i32) -> OsText {
    let folder = proc::folder(pid).unwrap_or_default();
    OsText::from(folder.into_os_string().into_vec())
}

/// Whether a process leads a session, and a process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leads {
    pub session: bool,
    /// A process group.
    pub group: bool,
}

/// The system's information about the exit of a process that has ended and may not have been reaped yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitInfo {
    Exit(Exit),
    /// The system hides it from us, or does not show it yet.
    Hidden,
    /// The process was reaped.
    Gone,
}

/// Looks up the exit of a process that has ended according to its pidfd.
pub fn remains(pid: i32, handle: &PidFd) -> ExitInfo {
    let Some(stat) = ProcessStat::of(pid) else { return ExitInfo::Gone };
    if !is_pid_of(pid, handle) {
        return ExitInfo::Gone;
    }
    let is_zombie = matches!(stat.state(), Some('Z' | 'X'));
    let (Some(status), Some(waits)) = (stat.field::<u64>(52), stat.field::<u64>(35)) else {
        return ExitInfo::Hidden;
    };
    // An observer that may not see the exit status is shown 0. The same observer is shown 0 as the wait channel
    // (`wchan`), which is otherwise never 0 for an ended process; so if both are 0, the status means nothing.
    match i32::try_from(status) {
        Ok(status) if is_zombie && (status != 0 || waits != 0) => ExitInfo::Exit(exit_of_status(status)),
        Ok(_) | Err(_) => ExitInfo::Hidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    fn handle(pid: i32) -> PidFd {
        PidFd::open(pid).unwrap()
    }

    fn until_ended(handle: &PidFd) {
        let mut fds = [nix::poll::PollFd::new(handle.as_fd(), nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, nix::poll::PollTimeout::NONE).unwrap();
    }

    #[test]
    fn pidfd_reveals_which_process_it_refers_to() {
        let (reader, _writer) = io::pipe().unwrap();
        assert_eq!(pidfd_target(&reader).unwrap(), PidfdTarget::Nothing);
        let me = std::process::id().cast_signed();
        assert_eq!(pidfd_target(&handle(me)).unwrap(), PidfdTarget::Process(me));
        let mut child = Command::new("true").spawn().unwrap();
        let ended = handle(child.id().cast_signed());
        until_ended(&ended);
        assert_eq!(pidfd_target(&ended).unwrap(), PidfdTarget::Process(child.id().cast_signed()));
        child.wait().unwrap();
        assert_eq!(pidfd_target(&ended).unwrap(), PidfdTarget::Gone);
        let flags = rustix::process::PidfdFlags::from_bits_retain(OFlag::O_EXCL.bits().cast_unsigned());
        let pid = rustix::process::getpid();
        if let Ok(thread) = rustix::process::pidfd_open(pid, flags) {
            assert_eq!(pidfd_target(&thread).unwrap(), PidfdTarget::Thread);
        }
    }

    #[test]
    fn exit_is_read_before_and_after_the_parent_reaps() {
        for (line, exit) in
            [("exit 3", Exit::Code(3)), ("exit 0", Exit::Code(0)), ("kill -15 $$", Exit::Signal(15))]
        {
            let mut child = Command::new("/bin/sh").args(["-c", line]).spawn().unwrap();
            let (pid, ended) = (child.id().cast_signed(), handle(child.id().cast_signed()));
            until_ended(&ended);
            // `wchan` is set a moment after the end is reported.
            let deadline = Instant::now() + Duration::from_mins(1);
            let seen = loop {
                match remains(pid, &ended) {
                    ExitInfo::Hidden => std::thread::yield_now(),
                    seen => break seen,
                }
                assert!(Instant::now() < deadline, "it is never set");
            };
            assert_eq!(seen, ExitInfo::Exit(exit.clone()));
            assert!(!matches!(ended.exit_info(), Ok(Some(_))), "the kernel keeps it only afterwards");
            child.wait().unwrap();
            assert_eq!(remains(pid, &ended), ExitInfo::Gone);
            // Older kernels do not report it.
            if let Ok(reported) = ended.exit_info() {
                assert_eq!(reported, Some(exit));
            }
        }
    }

    #[test]
    fn process_facts_are_read() {
        let before = Timestamp::now().unix_ms();
        let mut command_line = Command::new("/bin/sh");
        let line = "echo up; read line";
        command_line.args(["-c", line, "", "a b"]).current_dir("/usr");
        let mut child = command_line.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // Its command can only be read once it runs, a moment after its start is known.
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
        let pid = child.id().cast_signed();
        let words: Vec<OsText> = ["/bin/sh", "-c", line, "", "a b"].map(OsText::from).into();
        assert_eq!((command(pid), folder(pid)), (words, OsText::from("/usr")));
        let me = nix::unistd::Uid::effective().as_raw();
        assert_eq!(users(pid), Some([me; 4]));
        // The system counts in hundredths of a second.
        let started = started_at(pid).unwrap().unix_ms();
        assert!((before - 1000..=Timestamp::now().unix_ms() + 1000).contains(&started));
        assert!(!is_kernel_thread(pid));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!((users(pid), folder(pid)), (None, OsText::from("")));
    }
}
