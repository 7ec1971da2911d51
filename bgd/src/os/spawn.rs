//! Starting a process with one `clone` that shares memory until `exec`, as `posix_spawn` does.
//!
//! `posix_spawn` itself can set neither a umask nor resource limits nor a cgroup and gives no pidfd;
//! `fork` copies page tables, which costs more the more the daemon holds. So the child runs
//! [`prepare_and_exec`] on a stack of its own in our memory while this thread is suspended. It may only
//! make system calls and touch what [`Child`] points to: no allocation, no locks, no panics.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_char, c_int, c_void};
use nix::errno::Errno;

use super::pidfd::PidFd;

/// What to start, and how.
pub struct Plan<'a> {
    /// The files to try, in this order, as `execvp` would.
    pub programs: &'a [CString],
    /// The arguments, the program's name first.
    pub argv: &'a [CString],
    /// The complete environment, each entry `NAME=value`.
    pub env: &'a [CString],
    /// The folder to run in.
    pub folder: &'a CStr,
    /// File mode creation mask.
    pub umask: u32,
    /// Resource limits to set.
    pub rlimits: &'a [(c_int, libc::rlimit)],
    /// Signals whose disposition must be set back to the default.
    pub reset_signals: &'a [c_int],
    /// Standard input, output and error.
    pub stdio: [BorrowedFd<'a>; 3],
    /// `cgroup.procs` of the cgroup to join.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Its place among sessions and process groups.
    pub place: Place<'a>,
}

/// The place of a new process among sessions and process groups.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// It leads a new session, without a terminal.
    Session,
    /// It leads a new session that has this terminal. All signals stay blocked.
    Terminal(BorrowedFd<'a>),
    /// It leads a new group of this process's session, the foreground group of this terminal.
    Foreground(BorrowedFd<'a>),
}

/// The step at which a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No process could be made.
    Clone,
    /// No session or group of its own.
    Session,
    /// Could not take its terminal.
    Terminal,
    /// Could not join its cgroup.
    Cgroup,
    /// A resource limit could not be set.
    Limits,
    /// Could not enter the folder.
    Folder,
    /// Standard streams could not be put in place.
    Streams,
    /// The program could not be executed.
    Exec,
}

impl Stage {
    /// All of them; the place of each is its number where it is told to another process.
    pub const ALL: [Self; 8] = [
        Self::Clone,
        Self::Session,
        Self::Terminal,
        Self::Cgroup,
        Self::Limits,
        Self::Folder,
        Self::Streams,
        Self::Exec,
    ];
}

/// Why there is no process.
#[derive(Clone, Copy, Debug)]
pub struct SpawnError {
    /// What failed.
    pub stage: Stage,
    /// What the system said.
    pub errno: Errno,
}

/// A process that has begun to run its program.
#[derive(Debug)]
pub struct Spawned {
    /// Its number; also that of its process group, and of its session if it leads one.
    pub pid: i32,
    /// The handle to it.
    pub pidfd: PidFd,
}

/// A stack for the children of one thread, one after the other.
pub struct ChildStack(Box<[u8]>);

impl Default for ChildStack {
    fn default() -> Self {
        Self(vec![0; STACK_BYTES].into_boxed_slice())
    }
}

const STACK_BYTES: usize = 64 * 1024;

/// Everything that the child reads and writes, in the memory of the parent.
struct Child {
    programs: *const *const c_char,
    argv: *const *const c_char,
    /// `/bin/sh`, a place for the script, then the arguments: for a file without `#!`.
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
    /// The terminal, if there is one.
    terminal: RawFd,
    failed_stage: Stage,
    failed_errno: c_int,
}

/// What a child leads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leads {
    Session,
    Terminal,
    Foreground,
}

const SHELL: &CStr = c"/bin/sh";

/// Starts a process.
///
/// All signals must be blocked in the calling thread, so that no handler runs in the child.
///
/// # Errors
/// Names the step that failed; no process is left then.
#[allow(unsafe_code, reason = "clone with shared memory is the fast way to start a process")]
pub fn spawn(plan: &Plan<'_>, stack: &mut ChildStack) -> Result<Spawned, SpawnError> {
    let programs = pointers(plan.programs);
    let argv = pointers(plan.argv);
    let env = pointers(plan.env);
    let mut shell_argv = vec![SHELL.as_ptr(), ptr::null()];
    shell_argv.extend(argv.iter().skip(1));
    let (leads, terminal) = match plan.place {
        Place::Session => (Leads::Session, -1),
        Place::Terminal(terminal) => (Leads::Terminal, terminal.as_raw_fd()),
        Place::Foreground(terminal) => (Leads::Foreground, terminal.as_raw_fd()),
    };
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
        failed_stage: Stage::Clone,
        failed_errno: 0,
    };
    let mut pidfd: c_int = -1;
    // The stack grows down and must be aligned to 16 bytes at its top.
    let top = stack.0.as_mut_ptr_range().end;
    let top = top.wrapping_sub(top.addr() % 16).cast::<c_void>();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: CLONE_VFORK suspends this thread until the child has executed its program or ended, so
    // everything that `child` points to outlives its use and nobody else touches it or the stack. The
    // child follows the rules in the head of this module.
    let pid = unsafe {
        let argument = (&raw mut child).cast::<c_void>();
        libc::clone(prepare_and_exec, top, flags, argument, &raw mut pidfd)
    };
    let pid = Errno::result(pid).map_err(|errno| SpawnError { stage: Stage::Clone, errno })?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // SAFETY: `child` is alive; a volatile read, as it was written behind the compiler's back.
    let (stage, errno) = unsafe {
        ((&raw const child.failed_stage).read_volatile(), (&raw const child.failed_errno).read_volatile())
    };
    if errno == 0 {
        return Ok(Spawned { pid, pidfd: pidfd.into() });
    }
    // It has let this thread go on a moment before its end.
    let child = PidFd::from(pidfd);
    child.until_ended();
    child.reap();
    Err(SpawnError { stage, errno: Errno::from_raw(errno) })
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// What the child does between `clone` and `exec`.
#[allow(unsafe_code, reason = "it runs between clone and exec, where only system calls are allowed")]
extern "C" fn prepare_and_exec(argument: *mut c_void) -> c_int {
    // SAFETY: `argument` is the parent's `Child`, which nobody else touches until we are done; all its
    // pointers lead to null-terminated arrays or have their length beside them.
    unsafe {
        let child = &mut *argument.cast::<Child>();
        let stage = prepare(child).err().unwrap_or_else(|| {
            exec(child);
            Stage::Exec
        });
        child.failed_stage = stage;
        child.failed_errno = Errno::last_raw();
        libc::_exit(127)
    }
}

/// # Safety
/// As for [`prepare_and_exec`].
#[allow(unsafe_code, reason = "system calls on the parent's memory")]
unsafe fn prepare(child: &Child) -> Result<(), Stage> {
    // SAFETY: plain system calls with integers, and with pointers that `Child` vouches for.
    unsafe {
        take_place(child)?;
        if child.cgroup >= 0 {
            let zero = c"0".as_ptr().cast::<c_void>();
            check(if libc::write(child.cgroup, zero, 1) == 1 { 0 } else { -1 }, Stage::Cgroup)?;
        }
        for (target, fd) in child.stdio.iter().enumerate() {
            // The daemon's descriptors 0 to 2 are always taken, so no source is one of the targets.
            #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "0 to 2")]
            check(libc::dup2(*fd, target as c_int), Stage::Streams)?;
        }
        libc::umask(child.umask);
        check(libc::chdir(child.folder), Stage::Folder)?;
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

/// All signals are blocked here, so a process in the background may give its terminal away.
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

/// The kernel's `struct sigaction`, all zeros: the default. Larger than that of any architecture.
static DEFAULT_ACTION: [usize; 8] = [0; 8];

/// The size of the kernel's signal set in bytes.
const SIGSET_BYTES: usize = 8;

/// Sets a signal back to its default. The C library refuses to do so for two signals that it uses
/// itself, which whoever started the daemon may have ignored all the same.
#[allow(unsafe_code, reason = "a system call with a pointer to a constant")]
pub(super) fn reset_signal(signal: c_int) {
    let (action, old) = (DEFAULT_ACTION.as_ptr(), ptr::null_mut::<c_void>());
    // SAFETY: the kernel reads a structure of zeros that is large enough, and writes nothing.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action, old, SIGSET_BYTES) };
}

fn check(result: c_int, stage: Stage) -> Result<(), Stage> {
    if result < 0 { Err(stage) } else { Ok(()) }
}

/// Tries the programs one after the other, as `execvp` does, and leaves in `errno` why none ran.
///
/// # Safety
/// As for [`prepare_and_exec`].
#[allow(unsafe_code, reason = "execve on the parent's memory")]
unsafe fn exec(child: &Child) {
    let mut refused = false;
    // SAFETY: null-terminated arrays of C strings, as execve wants them.
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
