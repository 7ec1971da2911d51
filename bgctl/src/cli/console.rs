//! What the verb `console` takes.

use bgd_shared::foreground::Key;
use clap::Args;

/// Arguments of `console`.
#[derive(Args, Debug, Default)]
#[command(after_help = "\
EXAMPLES:
  bgctl console                    a prompt; its tasks are of a parent session of its own
  bgctl console --session work     of this session; news of its other tasks is shown too
  bgctl console --key ctrl-]       another key, as for a terminal in tmux

AT THE PROMPT:
  make -j8           runs in the foreground, in a terminal of its own; Ctrl-B (--key, else
                     `background_key` of the configuration) moves it to the background
  make test &        runs beside the prompt, still in the foreground: Ctrl-B at the prompt
                     moves the job that was started last of those that can be moved
  !top               runs directly: Ctrl-B is its own, and it can't be moved
  @opencode why?     gives an agent a prompt; `@ why?` the configured agent
  jobs, fg %1, fg ID what runs; give a job, or any task, the terminal
  cd DIR, help, exit

A line is read by $SHELL -c (/bin/sh if that is not set), each by one of its own: what it
sets does not last, but for `cd` alone on a line. Its environment and folder are the
console's, with BGD_SESSION set to the parent session.

A job beside the prompt gets nothing that is typed; what it shows comes above the prompt in
whole lines, each behind the job's number, without colours. While another job has the
terminal the last 64 KiB of that are kept; `bgctl output ID` has all of it. A job that is
stopped by Ctrl-Z waits beside the prompt, and goes on by `fg` or in the background.

When a task of the parent session ends in the background, it is told above the prompt; while
a job has the terminal that waits. Ctrl-C clears the line, Ctrl-D leaves: jobs in the
foreground end then as if their terminal were closed, those in the background go on.

The last 1000 lines are kept in $XDG_STATE_HOME/bgd/console_history (~/.local/state/bgd), which
nobody else may read; one that begins with a blank is not.

EXIT CODES:
    0  left by Ctrl-D or `exit`; else the code that `exit` was given
    2  standard input or output is no terminal
   69  the daemon is gone, and the jobs with it
  129  the terminal was closed")]
pub struct ConsoleArgs {
    /// The parent session of its tasks [default: $BGD_SESSION, else one of its own, `console:` and a number]
    #[arg(long, value_name = "KEY", add = crate::candidates::sessions())]
    pub session: Option<String>,
    /// The key that moves a job to the background, such as ctrl-b; `none` for no key [default: the daemon's]
    #[arg(long, value_name = "KEY")]
    pub key: Option<Key>,
}
