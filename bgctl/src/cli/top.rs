//! Arguments of `top`.

use clap::Args;

/// Arguments of `top`.
#[derive(Args, Debug, Default)]
#[command(after_help = "\
EXAMPLES:
  bgctl top                        show all tasks, live
  bgctl top s:failed tag:nightly   begin with a filter
  bgctl -H build1 top              the tasks of another machine
  bgctl -H build1,build2 top       those of several machines, side by side
  bgctl top --once                 print one frame, for scripts

Tasks are grouped: tasks with a question for you, tasks that failed in the background and \
that you have not looked at yet, then running, pending and ended ones. Press F1 for all keys: \
the arrows select, Enter attaches, o shows the output, / filters, Tab folds by session, group, \
batch or dependency, x cancels, y and n answer an agent, f pins the preview, which then \
follows the output. Actions that end work ask for confirmation.

A filter consists of words of the description or the beginning of an id, and of s:STATUS, \
tag:TAG, g:GROUP, b:BATCH and session:KEY, and with several hosts host:NAME; all must match.

? searches the output of all tasks, including those hidden by a filter, as far as it has \
been written by then; of an output larger than 64 MiB, only the last 64 MiB.

An idle top makes no requests and draws nothing. While no visible task is running, ages are \
shown in minutes. Visible running tasks are measured every 2 seconds if the list is wide \
enough for the columns CPU and MEMORY.

When the daemon ends or the connection is lost, the list stays on the screen, and top \
reconnects as soon as possible. It does not start a daemon to do so.

With several hosts (-H a,b,c; at most 64) there is a column for the host, Tab also folds by \
host, and the title counts the tasks of all hosts. Each host has its own ssh connection, which \
never prompts. If a host does not answer, a line says since when and why, and its tasks are \
shown as they were last known; Enter on that line tries again at once. Every key acts on the \
host of its task, even if tasks on several hosts are marked; `:` runs its verb on the host of \
the selected task, or on the one it names (:-H build2 list).

--once prints one frame in the size of the terminal; in a pipe, in the size given by $COLUMNS \
and $LINES, or 80 columns and 24 lines. CPU is then the average since the start of a running \
task. With several hosts it waits at most 5 seconds, unless \
--connect-timeout says otherwise; the exit code is 69 if none of them has answered.")]
pub struct TopArgs {
    /// Show only tasks that match these words
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
    /// Print one frame and exit
    #[arg(long)]
    pub once: bool,
}
