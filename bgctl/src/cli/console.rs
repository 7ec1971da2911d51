//! Arguments of `console`.

use bgd_shared::foreground::Key;
use clap::Args;

/// Arguments of `console`.
#[derive(Args, Debug, Default)]
#[command(after_help = "\
EXAMPLES:
  bgctl console                    open a prompt with its own parent session
  bgctl console --session work     use this session; notifications of its other tasks show up too
  bgctl console --key ctrl-]       use another key, e.g. inside tmux

AT THE PROMPT:
  make -j8           run in the foreground, in its own terminal; Ctrl-B (--key, or
                     `background_key` in the configuration) moves it to the background
  make test &        run next to the prompt, still in the foreground: Ctrl-B at the prompt
                     moves the most recently started job that can be moved
  !top               run directly: the job gets Ctrl-B itself and can't be moved
  @opencode why?     send a prompt to an agent; `@ why?` uses the default agent
  jobs, fg %1, fg ID list jobs; give the terminal to a job or any other task
  cd DIR, help, exit

Each line runs in a shell of its own, $SHELL -c (/bin/sh if unset). Variables set in a line \
do not last; only `cd` alone on a line does. Jobs inherit the console's environment and \
folder, with BGD_SESSION set to the parent session.

A job next to the prompt gets no keyboard input. Its output appears above the prompt in \
whole lines, prefixed with the job's number, without colours. While another job has the \
terminal, the last 64 KiB of it are kept; `bgctl output ID` prints all of it. A job stopped \
by Ctrl-Z waits next to the prompt; continue it with `fg` or in the background.

When a background task of the parent session ends, a line above the prompt says so, or once \
the foreground job has given the terminal back. Ctrl-C clears the line, or ends a `cd` that \
hangs or the wait for a daemon that does not answer. Ctrl-D exits: foreground jobs then end \
as if their terminal were closed, background tasks keep running.

The last 1000 lines are saved in $XDG_STATE_HOME/bgd/console_history (~/.local/state/bgd), \
readable only by you; lines that begin with a blank are not saved.

EXIT CODES:
    0  exited by Ctrl-D or `exit`, unless `exit` was given another code
    2  standard input or output is not a terminal
   69  the daemon has ended, and the jobs with it
  129  the terminal was closed
  130  SIGINT or Ctrl-D while it connected to another machine again
  143  ended by SIGTERM; SIGINT is for jobs and does not end it, as in a shell")]
pub struct ConsoleArgs {
    /// Parent session of its tasks [default: $BGD_SESSION, else a new one, `console:` and a number]
    #[arg(long, value_name = "KEY", add = crate::candidates::sessions())]
    pub session: Option<String>,
    /// Key that moves a job to the background, such as ctrl-b; `none` for no key [default: as configured]
    #[arg(long, value_name = "KEY")]
    pub key: Option<Key>,
}
