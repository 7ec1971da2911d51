//! Starts a process with one `clone` that shares memory until `exec`, as `posix_spawn` does.
//!
//! `posix_spawn` itself can't set a umask, resource limits or a cgroup, and returns no pidfd; `fork` copies page
//! tables, which costs more the more memory the daemon holds. So the child runs [`prepare_and_exec`] on its own
//! stack in our memory while this thread is suspended. It may only make system calls and touch what [`Child`]
//! points to: no allocation, no locks, no panics.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_char, c_int, c_void};
use nix::errno::Errno;

use super::pidfd::PidFd;

/// The process to start.
pub struct Plan<'a> {
    /// The files to try, in order, as `execvp` would.
    pub programs: &'a [CString],
    /// The arguments, starting with the program's name.
    pub argv: &'a [CString],
    /// The complete environment, each entry `NAME=value`.
    pub env: &'a [CString],
    pub folder: &'a CStr,
    pub umask: u32,
    pub rlimits: &'a [(c_int, libc::rlimit)],
    /// Signals to reset to their default disposition; must include SIGTERM if the process is announced.
    pub reset_signals: &'a [c_int],
    /// Standard input, output and error.
    pub stdio: [BorrowedFd<'a>; 3],
    /// `cgroup.procs` of the cgroup to join.
    pub cgroup: Option<BorrowedFd<'a>>,
    pub control: JobControl<'a>,
    /// The announcement to send; `None` for none.
    pub announce: Option<Announce<'a>>,
}

/// A message that a new process sends before it executes its program, so that the receiver holds every process that has
/// ever executed one.
#[derive(Clone, Copy, Debug)]
pub struct Announce<'a> {
    /// The socket, which must preserve message boundaries. A send must time out by itself.
    pub socket: BorrowedFd<'a>,
    pub message: &'a [u8],
    /// Where in the message the PID goes, as 4 little-endian bytes.
    pub pid_at: usize,
    /// Descriptors to send after the process's own.
    pub descriptors: &'a [BorrowedFd<'a>],
}

/// The session and process group of a new process.
#[derive(Clone, Copy, Debug)]
pub enum JobControl<'a> {
    /// It leads a new session without a controlling terminal.
    Session,
    /// It leads a new session that has this controlling terminal. All signals stay blocked.
    Terminal(BorrowedFd<'a>),
    /// It leads a new process group in this process's session, which becomes the terminal's foreground group.
    Foreground(BorrowedFd<'a>),
}

/// The step at which a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Creating the process.
    Clone,
    /// Creating the session or process group.
    Session,
    /// Taking over the terminal.
    Terminal,
    /// Joining the cgroup.
    Cgroup,
    /// Setting a resource limit.
    Limits,
    /// Changing to the working directory.
    Folder,
    /// Setting up the standard streams.
    Streams,
    /// Executing the program.
    Exec,
    /// Announcing the process.
    Announce,
}

impl Stage {
    /// All stages; the index of each is its number in messages to other processes.
    pub const ALL: [Self; 9] = [
        Self::Clone,
        Self::Session,
        Self::Terminal,
        Self::Cgroup,
        Self::Limits,
        Self::Folder,
        Self::Streams,
        Self::Exec,
        Self::Announce,
    ];
}

/// Why a process could not be started.
#[derive(Clone, Copy, Debug)]
pub struct SpawnError {
    pub stage: Stage,
    pub errno: Errno,
}

/// A process that has started to execute its program.
#[derive(Debug)]
pub struct Spawned {
    /// Its PID; also the ID of its process group, and of its session if it leads one.
    pub pid: i32,
    pub pidfd: PidFd,
}

/// A stack for the children of one thread, used by one at a time.
pub struct ChildStack(Box<[u8]>);

impl Default for ChildStack {
    fn default() -> Self {
        Self(vec![0; STACK_BYTES].into_boxed_slice())
    }
}

const STACK_BYTES: usize = 64 * 1024;

/// The exit code of a process that could not execute its program.
pub const NOT_EXECUTED: c_int = 127;

/// Everything that the child reads and writes, in the parent's memory.
struct Child {
    programs: *const *const c_char,
    argv: *const *const c_char,
    /// `/bin/sh`, a slot for the script, then the arguments; used for a script without `#!`.
    shell_argv: *mut *const c_char,
    env: *const *const c_char,
    folder: *const c_char,
    umask: libc::mode_t,
    rlimits: *const (c_int, libc::rlimit),
    rlimit_count: usize,
    reset: *const c_int,
    reset_count: usize,
    stdio: [RawFd; 3],
    cgroup: RawFd,
    leads: Leads,
    /// The terminal's descriptor, or -1.
    terminal: RawFd,
    /// Null if there is no announcement.
    announced: *mut Announced,
    failed_stage: Stage,
    failed_errno: c_int,
}

/// The group or session that the child leads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leads {
    Session,
    Terminal,
    Foreground,
}

/// A message that the child completes and sends.
struct Announced {
    socket: RawFd,
    pid: *mut u8,
    /// Where the number of its pidfd is stored.
    pidfd: *mut c_int,
    header: libc::msghdr,
    part: libc::iovec,
    message: Vec<u8>,
    /// The control message, in words for alignment.
    control: Vec<usize>,
}

impl Announced {
    /// Lays out the message. Boxed, as its parts point to each other.
    #[allow(unsafe_code, reason = "the control message is laid out with the C library's macros")]
    fn new(announce: &Announce<'_>) -> Box<Self> {
        let count = announce.descriptors.len() + 1;
        let bytes = u32::try_from(count * size_of::<c_int>()).unwrap_or(u32::MAX);
        // SAFETY: these macros only calculate.
        let (space, length) = unsafe { (libc::CMSG_SPACE(bytes) as usize, libc::CMSG_LEN(bytes) as usize) };
        let mut this = Box::new(Self {
            socket: announce.socket.as_raw_fd(),
            pid: ptr::null_mut(),
            pidfd: ptr::null_mut(),
            // SAFETY: plain data, for which all zeros is valid.
            header: unsafe { std::mem::zeroed() },
            part: libc::iovec { iov_base: ptr::null_mut(), iov_len: announce.message.len() },
            message: announce.message.to_vec(),
            control: vec![0; space.div_ceil(size_of::<usize>())],
        });
        this.part.iov_base = this.message.as_mut_ptr().cast();
        this.pid = this.message[announce.pid_at..][..size_of::<i32>()].as_mut_ptr();
        this.header.msg_iov = &raw mut this.part;
        this.header.msg_iovlen = 1;
        this.header.msg_control = this.control.as_mut_ptr().cast();
        this.header.msg_controllen = space;
        // SAFETY: the control buffer is aligned, and large enough for this one message with `count` numbers.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&raw const this.header);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = length;
            this.pidfd = libc::CMSG_DATA(head).cast();
            for (place, descriptor) in announce.descriptors.iter().enumerate() {
                this.pidfd.add(place + 1).write_unaligned(descriptor.as_raw_fd());
            }
        }
        this
    }
}

const SHELL: &CStr = c"/bin/sh";

/// Starts a process.
///
/// The caller must have blocked all signals in the calling thread, so that no handler runs in the child.
///
/// # Errors
/// Returns the step that failed; no process is left then.
#[allow(unsafe_code, reason = "clone with shared memory is the fast way to start a process")]
pub fn spawn(plan: &Plan<'_>, stack: &mut ChildStack) -> Result<Spawned, SpawnError> {
    let programs = pointers(plan.programs);
    let argv = pointers(plan.argv);
    let env = pointers(plan.env);
    let mut shell_argv = vec![SHELL.as_ptr(), ptr::null()];
    shell_argv.extend(argv.iter().skip(1));
    let (leads, terminal) = match plan.control {
        JobControl::Session => (Leads::Session, -1),
        JobControl::Terminal(terminal) => (Leads::Terminal, terminal.as_raw_fd()),
        JobControl::Foreground(terminal) => (Leads::Foreground, terminal.as_raw_fd()),
    };
    let mut announced = plan.announce.as_ref().map(Announced::new);
    let mut child = Child {
        programs: programs.as_ptr(),
        argv: argv.as_ptr(),
        shell_argv: shell_argv.as_mut_ptr(),
        env: env.as_ptr(),
        folder: plan.folder.as_ptr(),
        umask: plan.umask,
        rlimits: plan.rlimits.as_ptr(),
        rlimit_count: plan.rlimits.len(),
        reset: plan.reset_signals.as_ptr(),
        reset_count: plan.reset_signals.len(),
        stdio: plan.stdio.each_ref().map(AsRawFd::as_raw_fd),
        cgroup: plan.cgroup.as_ref().map_or(-1, AsRawFd::as_raw_fd),
        leads,
        terminal,
        announced: announced.as_mut().map_or(ptr::null_mut(), |announced| &raw mut **announced),
        failed_stage: Stage::Clone,
        failed_errno: 0,
    };
    let mut pidfd: c_int = -1;
    // The stack grows downwards, and its top must be aligned to 16 bytes.
    let top = stack.0.as_mut_ptr_range().end;
    let top = top.wrapping_sub(top.addr() % 16).cast::<c_void>();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: CLONE_VFORK suspends this thread until the child has executed its program or ended, so everything
    // that `child` points to outlives its use, and nothing else touches it or the stack. The child follows the
    // rules in the module documentation.
    let pid = unsafe {
        let argument = (&raw mut child).cast::<c_void>();
        libc::clone(prepare_and_exec, top, flags, argument, &raw mut pidfd)
    };
    let pid = Errno::result(pid).map_err(|errno| SpawnError { stage: Stage::Clone, errno })?;
    // SAFETY: the kernel has just created this descriptor for us; nothing else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // SAFETY: `child` is alive. The read is volatile because the compiler did not see the write.
    let (stage, errno) = unsafe {
        ((&raw const child.failed_stage).read_volatile(), (&raw const child.failed_errno).read_volatile())
    };
    if errno == 0 {
        return Ok(Spawned { pid, pidfd: pidfd.into() });
    }
    // The child resumes this thread shortly before it ends.
    let child = PidFd::from(pidfd);
    child.until_ended();
    child.reap();
    Err(SpawnError { stage, errno: Errno::from_raw(errno) })
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// Runs in the child between `clone` and `exec`.
#[allow(unsafe_code, reason = "it runs between clone and exec, where only system calls are allowed")]
extern "C" fn prepare_and_exec(argument: *mut c_void) -> c_int {
    // SAFETY: `argument` is the parent's `Child`, which nothing else touches until we are done; its pointers lead
    // to null-terminated arrays or come with a length.
    unsafe {
        let child = &mut *argument.cast::<Child>();
        let stage = prepare(child).err().unwrap_or_else(|| {
            exec(child);
            Stage::Exec
        });
        child.failed_stage = stage;
        child.failed_errno = Errno::last_raw();
        libc::_exit(NOT_EXECUTED)
    }
}

/// # Safety
/// As for [`prepare_and_exec`].
#[allow(unsafe_code, reason = "system calls on the parent's memory")]
unsafe fn prepare(child: &Child) -> Result<(), Stage> {
    // SAFETY: plain system calls with integers, and with pointers that `Child` guarantees to be valid.
    unsafe {
        take_place(child)?;
        if child.cgroup >= 0 {
            let zero = c"0".as_ptr().cast::<c_void>();
            check(if libc::write(child.cgroup, zero, 1) == 1 { 0 } else { -1 }, Stage::Cgroup)?;
            if !child.announced.is_null() {
                // If the daemon's service is stopped, SIGTERM goes to all of that cgroup. Ignoring it drops a pending
                // one.
                libc::signal(libc::SIGTERM, libc::SIG_IGN);
            }
        }
        for (target, fd) in child.stdio.iter().enumerate() {
            // The daemon's descriptors 0 to 2 are always in use, so no source equals a target.
            #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "0 to 2")]
            check(libc::dup2(*fd, target as c_int), Stage::Streams)?;
        }
        libc::umask(child.umask);
        check(libc::chdir(child.folder), Stage::Folder)?;
        // Must precede the limits, which may leave the child no descriptor.
        if !child.announced.is_null() {
            announce(&mut *child.announced)?;
        }
        for index in 0..child.rlimit_count {
            let (resource, limit) = &*child.rlimits.add(index);
            check(libc::prlimit(0, (*resource).cast_unsigned(), limit, ptr::null_mut()), Stage::Limits)?;
        }
        for index in 0..child.reset_count {
            reset_signal(*child.reset.add(index));
        }
        if child.leads == Leads::Terminal {
            return Ok(());
        }
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
    Ok(())
}

/// Sends the announcement, with a pidfd of this process. The pidfd is closed when the program is executed.
///
/// # Safety
/// As for [`prepare_and_exec`].
#[allow(unsafe_code, reason = "system calls on the parent's memory")]
unsafe fn announce(announced: &mut Announced) -> Result<(), Stage> {
    // SAFETY: the pointers lead into the message's own buffers, which the parent has laid out.
    unsafe {
        let pid = libc::getpid();
        ptr::copy_nonoverlapping(pid.to_le_bytes().as_ptr(), announced.pid, size_of::<i32>());
        let pidfd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        #[allow(clippy::cast_possible_truncation, reason = "a descriptor, or -1")]
        let pidfd = pidfd as c_int;
        check(pidfd, Stage::Announce)?;
        announced.pidfd.write_unaligned(pidfd);
        let sent = libc::sendmsg(announced.socket, &raw const announced.header, libc::MSG_NOSIGNAL);
        check(if sent < 0 { -1 } else { 0 }, Stage::Announce)
    }
}

/// Sets the session, process group and terminal. All signals are blocked here, so `tcsetpgrp` works even from a
/// background process.
///
/// # Safety
/// As for [`prepare_and_exec`].
#[allow(unsafe_code, reason = "system calls on the parent's memory")]
unsafe fn take_place(child: &Child) -> Result<(), Stage> {
    // SAFETY: plain system calls with integers.
    unsafe {
        match child.leads {
            Leads::Session => check(libc::setsid(), Stage::Session),
            Leads::Terminal => {
                check(libc::setsid(), Stage::Session)?;
                check(libc::ioctl(child.terminal, libc::TIOCSCTTY, 0), Stage::Terminal)
            }
            Leads::Foreground => {
                check(libc::setpgid(0, 0), Stage::Session)?;
                check(libc::tcsetpgrp(child.terminal, libc::getpid()), Stage::Terminal)
            }
        }
    }
}

/// The kernel's `struct sigaction`, all zeros: the default disposition. At least as large as on any architecture.
static DEFAULT_ACTION: [usize; 8] = [0; 8];

/// The size of the kernel's signal set in bytes.
const SIGSET_BYTES: usize = 8;

/// Resets a signal to its default disposition. The C library refuses that for two signals that it uses itself, although
/// the process that started the daemon may have ignored them.
#[allow(unsafe_code, reason = "a system call with a pointer to a constant")]
pub(super) fn reset_signal(signal: c_int) {
    let (action, old) = (DEFAULT_ACTION.as_ptr(), ptr::null_mut::<c_void>());
    // SAFETY: the kernel reads a zeroed structure that is large enough, and writes nothing.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action, old, SIGSET_BYTES) };
}

fn check(result: c_int, stage: Stage) -> Result<(), Stage> {
    if result < 0 { Err(stage) } else { Ok(()) }
}

/// Tries the programs in order, as `execvp` does. If none can be executed, `errno` has the reason.
///
/// # Safety
/// As for [`prepare_and_exec`].
#[allow(unsafe_code, reason = "execve on the parent's memory")]
unsafe fn exec(child: &Child) {
    let mut refused = false;
    // SAFETY: null-terminated arrays of C strings, as execve requires.
    unsafe {
        let mut program = child.programs;
        while !(*program).is_null() {
            libc::execve(*program, child.argv, child.env);
            match Errno::last() {
                Errno::ENOEXEC => {
                    *child.shell_argv.add(1) = *program;
                    libc::execve(SHELL.as_ptr(), child.shell_argv, child.env);
                    return;
                }
                Errno::EACCES => refused = true,
                Errno::ENOENT | Errno::ENOTDIR | Errno::ESTALE | Errno::ENODEV | Errno::ETIMEDOUT => {}
                _ => return,
            }
            program = program.add(1);
        }
    }
    if refused {
        Errno::EACCES.set();
    }
}
