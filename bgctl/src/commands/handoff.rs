//! `handoff`: hands a running child of the caller over to the daemon, with descriptors that bgctl inherits.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

use bgd_shared::proc;
use bgd_shared::request::{HandoffParams, HandoffStream, OriginKind, TaskHandoff};
use nix::errno::Errno;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::cli::HandoffArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::label;
use crate::session;

/// Maximum length of a description made from a command, in characters.
const DESCRIPTION_CHARS: usize = 200;

/// Maximum number of bytes read from a command line; more than such a description can need.
const ARGUMENTS_BYTES: u64 = 4096;

/// Hands the process over, then prints the daemon's message for the user.
pub fn run(args: HandoffArgs, context: &mut Context) -> Result<Code, Failure> {
    context.link.only_here("handing over a process")?;
    label::check("--description", &args.description)?;
    label::check("--tag", &args.tags)?;
    label::check("--channel", &args.channel)?;
    label::check("--session", &args.session)?;
    let named = [
        (HandoffStream::Stdout, "--stdout", args.stdout),
        (HandoffStream::Stderr, "--stderr", args.stderr),
        (HandoffStream::Pty, "--pty", args.pty),
        (HandoffStream::File, "--file", args.file),
    ];
    // Before anything is opened: a descriptor of our own could get the number of one that is not open.
    for (_, option, number) in named {
        if let Some(number) = number.filter(|number| !is_open(*number)) {
            return Err(not_open(option, number));
        }
    }
    let mut streams = Vec::new();
    let mut descriptors = vec![open(args.pid)?];
    for (stream, option, number) in named {
        if let Some(number) = number {
            streams.push(stream);
            descriptors.push(inherited(option, number)?);
        }
    }
    let description = args.description.filter(|text| !text.is_empty());
    let params = HandoffParams {
        pid: args.pid,
        description: description.unwrap_or_else(|| command_of(args.pid)),
        argv: None,
        started_at: None,
        session: session::key(args.session, false)?,
        channel: args.channel,
        terminal: session::terminal(),
        tags: args.tags,
        streams,
        origin_kind: if args.direct { OriginKind::Direct } else { OriginKind::Tool },
    };
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let result = context.link.call_with_fds::<TaskHandoff>(&params, &borrowed)?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        context.print(&format!("{}\n", result.message))?;
    }
    Ok(Code::OK)
}

/// Opens a pidfd for the process that currently has this pid.
fn open(pid: i32) -> Result<OwnedFd, Failure> {
    let Some(number) = Pid::from_raw(pid).filter(|_| pid > 1) else {
        return Err(Failure::usage(format!("--pid {pid}: not a process that can be handed over")));
    };
    pidfd_open(number, PidfdFlags::empty()).map_err(|error| match Errno::from_raw(error.raw_os_error()) {
        Errno::ESRCH => Failure::new(
            Code::WRONG_STATE,
            "already_finished",
            format!("no process {pid}: it has ended; its output is still yours to read"),
        ),
        _ => Failure::io(format!("process {pid}"), &error.into()),
    })
}

/// Reports whether this process has a descriptor of this number. Opens nothing.
fn is_open(number: i32) -> bool {
    let link = fs::symlink_metadata(format!("/proc/self/fd/{number}"));
    !link.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Duplicates a descriptor inherited from the caller.
fn inherited(option: &str, number: i32) -> Result<OwnedFd, Failure> {
    let this = pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    let copy = this.and_then(|this| pidfd_getfd(this, number, PidfdGetfdFlags::empty()));
    copy.or_else(|error| match Errno::from_raw(error.raw_os_error()) {
        Errno::EBADF => Err(not_open(option, number)),
        // Seccomp filters of containers, such as Docker's default one, reject the call.
        Errno::EPERM | Errno::ENOSYS => reopened(option, number),
        _ => Err(Failure::io(format!("{option} {number}"), &error.into())),
    })
}

/// Opens a pipe or a regular file again, for systems that do not allow to duplicate a descriptor by its number.
/// Anything else can't be opened twice.
fn reopened(option: &str, number: i32) -> Result<OwnedFd, Failure> {
    let link = format!("/proc/self/fd/{number}");
    let opened = fs::metadata(&link).and_then(|meta| {
        if !meta.file_type().is_fifo() && !meta.is_file() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // A named pipe without writers would block.
        let opened = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&link)?;
        fcntl_setfl(&opened, OFlags::empty())?;
        Ok(opened)
    });
    let what = format!("{option} {number}");
    opened.map(OwnedFd::from).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => not_open(option, number),
        io::ErrorKind::Unsupported => Failure::io(what, &io::Error::from(Errno::EPERM)).hint(
            "this system allows only pipes and regular files: it forbids the system call pidfd_getfd, \
                       as the default seccomp filter of a container does",
        ),
        _ => Failure::io(what, &error),
    })
}

fn not_open(option: &str, number: i32) -> Failure {
    Failure::usage(format!("{option} {number}: this descriptor is not open"))
        .hint("leave it open for bgctl, as with `{out}<` in bash")
}

/// Returns a readable command line of a process.
fn command_of(pid: i32) -> String {
    let words = proc::arguments(pid, ARGUMENTS_BYTES);
    let words: Vec<_> =
        words.split(|byte| *byte == 0).filter(|word| !word.is_empty()).map(String::from_utf8_lossy).collect();
    let command: String = words.join(" ").chars().take(DESCRIPTION_CHARS).collect();
    if command.is_empty() { format!("process {pid}") } else { command }
}
