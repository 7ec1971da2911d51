//! Arguments of `top`.

use clap::Args;

/// Arguments of `top`.
#[derive(Args, Debug, Default)]
#[command(after_help = "\
EXAMPLES:
  bgctl top                        show all tasks, live
  bgctl top s:failed tag:nightly   begin with a filter
  bgctl -H build1 top              the tasks of another machine
  bgctl top --once                 print one frame, for scripts

Tasks are grouped: those that ask something, those that failed and that you have not
looked at, running, pending and ended ones. Press F1 for the keys: select with the arrows,
Enter attaches, o shows the output, / filters, Tab folds by session, group, batch or
dependency, x cancels, y and n answer an agent, f pins the preview so that it follows.
Whatever ends work asks first.

A filter has words of the description, or the beginning of an id, and s:STATUS, tag:TAG,
g:GROUP, b:BATCH and session:KEY; all of them must match.

? searches in the outputs of all tasks, also of those that a filter hides, up to where each
output ends at that time; in an output of more than 64 MiB, in its last 64 MiB.

Nothing is asked and nothing is drawn until something happens. Where no visible task is
running, only ages change, which are shown in minutes then. Visible running tasks are
measured every 2 seconds, if the list is wide enough for CPU and MEMORY.

When the daemon ends or the connection is lost, the list stays, and top connects again
as soon as it can. It never starts a daemon for that.

--once prints a frame of the size of the terminal; in a pipe, of $COLUMNS and $LINES, or
80 columns and 24 lines.")]
pub struct TopArgs {
    /// Show only tasks that match these words
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
    /// Print one frame and exit
    #[arg(long)]
    pub once: bool,
}
