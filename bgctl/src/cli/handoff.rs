//! What `handoff` takes.

use clap::Args;

/// Arguments of `handoff`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  exec {out}< <(exec make 2>&1)                   bash: a child whose output we read
  pid=$!
  bgctl handoff --pid $pid --stdout $out -d 'the build'

The descriptors are those of the caller: the reading end of the pipe that is the
child's output, or the master of its pseudo-terminal, which the caller must not
read any more. With none of them the child's output stays where it goes; --file
names a file that it writes to, so that `bgctl output` can show it. The task goes
on when the caller ends.

One line tells the id. Exit code 65: the process had ended already, and its output
is still the caller's to read; or it was started --direct. Exit code 77: the process is somebody else's.")]
pub struct HandoffArgs {
    /// The process, a child of the caller
    #[arg(long, value_name = "PID")]
    pub pid: i32,
    /// The descriptor with the reading end of its standard output
    #[arg(long, value_name = "FD")]
    pub stdout: Option<i32>,
    /// The descriptor with the reading end of its standard error
    #[arg(long, value_name = "FD")]
    pub stderr: Option<i32>,
    /// The descriptor with the master of its terminal
    #[arg(long, value_name = "FD", conflicts_with_all = ["stdout", "stderr", "file"])]
    pub pty: Option<i32>,
    /// The descriptor of the regular file that it writes to
    #[arg(long, value_name = "FD", conflicts_with_all = ["stdout", "stderr"])]
    pub file: Option<i32>,
    /// What lists show for it [default: its command]
    #[arg(short, long, value_name = "TEXT")]
    pub description: Option<String>,
    /// The parent session it belongs to [default: $BGD_SESSION]
    #[arg(long, value_name = "KEY", add = crate::candidates::sessions())]
    pub session: Option<String>,
    /// Where news of it is delivered: desktop, tty, inbox, a channel of the configuration, or none (nobody)
    #[arg(long, value_name = "NAME")]
    pub channel: Option<String>,
    /// A label of your own; may be repeated
    #[arg(long = "tag", value_name = "TAG", add = crate::candidates::tags())]
    pub tags: Vec<String>,
    /// The user started it directly: it is refused, as a host of tools does with `!command`
    #[arg(long)]
    pub direct: bool,
}
