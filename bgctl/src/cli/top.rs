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

Tasks are grouped: those that ask something, those that failed in the background and that
you have not looked at, running, pending and ended ones. Press F1 for the keys: select with the arrows,
Enter attaches, o shows the output, / filters, Tab folds by session, group, batch or
dependency, x cancels, y and n answer an agent, f pins the preview so that it follows.
Whatever ends work asks first.

A filter has words of the description, or the beginning of an id, and s:STATUS, tag:TAG,
g:GROUP, b:BATCH and session:KEY, and host:NAME with several hosts; all of them must match.

? searches in the outputs of all tasks, also of those that a filter hides, up to where each
output ends at that time; in an output of more than 64 MiB, in its last 64 MiB.

Nothing is asked and nothing is drawn until something happens. Where no visible task is
running, only ages change, which are shown in minutes then. Visible running tasks are
measured every 2 seconds, if the list is wide enough for CPU and MEMORY.

When the daemon ends or the connection is lost, the list stays, and top connects again
as soon as it can. It never starts a daemon for that.

With several hosts (-H a,b,c; at most 64) there is a column of hosts, Tab folds by host as
well, and the title counts the tasks of all. Each host is connected to by itself, by an ssh
that asks no questions. One that does not answer has a line that says since when and why,
and its tasks stay as they were last known; Enter on that line tries again at once. Every
key acts on the host of its task, also with marks on several hosts; `:` runs its verb for
the host of the selected task, or for the one that it names (:-H build2 list).

--once prints a frame of the size of the terminal; in a pipe, of $COLUMNS and $LINES, or
80 columns and 24 lines. It waits for several hosts for 5 seconds at most, unless
--connect-timeout says otherwise; the exit code is 69 if none of them has answered.")]
pub struct TopArgs {
    /// Show only tasks that match these words
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
    /// Print one frame and exit
    #[arg(long)]
    pub once: bool,
}
