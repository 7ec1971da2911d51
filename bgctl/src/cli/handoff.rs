//! Arguments of `handoff`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

/// Arguments of `handoff`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  exec {out}< <(exec make 2>&1)                   bash: a child whose output you read
  pid=$!
  bgctl handoff --pid $pid --stdout $out -d 'the build'

The descriptors are the caller's: the read end of the pipe with the child's output, or \
the master of its pseudo-terminal. The caller must no longer read from them. Without \
them the child's output stays where it is; give the file it writes to as --file, so \
that `bgctl output` can show it. The task keeps running when the caller ends. A child \
that is stopped, as by Ctrl-Z, continues, as with a shell's `bg`.

Prints `Command was manually backgrounded by user with ID <id>`, for the user; a script \
takes the id from --json. Exit code 65: the process had already ended (its output is \
still the caller's to read), or --direct was given. Exit code 77: the process belongs \
to another user.

In a container whose seccomp filter forbids `pidfd_getfd`, as Docker's default one does, \
the descriptors can be pipes and regular files, but no terminals and sockets.")]
pub struct HandoffArgs {
    /// Process id of a child of the caller
    #[arg(long, value_name = "PID")]
    pub pid: i32,
    /// Descriptor of the read end of its standard output
    #[arg(long, value_name = "FD")]
    pub stdout: Option<i32>,
    /// Descriptor of the read end of its standard error
    #[arg(long, value_name = "FD")]
    pub stderr: Option<i32>,
    /// Descriptor of the master of its terminal
    #[arg(long, value_name = "FD", conflicts_with_all = ["stdout", "stderr", "file"])]
    pub pty: Option<i32>,
    /// Descriptor of the regular file it writes to
    #[arg(long, value_name = "FD", conflicts_with_all = ["stdout", "stderr"])]
    pub file: Option<i32>,
    /// Description for lists [default: its command]
    #[arg(short, long, value_name = "TEXT")]
    pub description: Option<String>,
    /// Parent session [default: $BGD_SESSION, else the terminal, see `bgctl session`]
    #[arg(long, value_name = "KEY", add = crate::candidates::sessions())]
    pub session: Option<String>,
    /// Where to deliver notifications: desktop, tty, inbox, a configured channel, or none
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub channel: Option<String>,
    /// Add a tag of your choice; may be repeated
    #[arg(long = "tag", value_name = "TAG", add = crate::candidates::tags(),
        value_parser = NonEmptyStringValueParser::new())]
    pub tags: Vec<String>,
    /// State that the user started the process directly (a `!command`): the daemon then rejects it
    #[arg(long)]
    pub direct: bool,
}
