//! `top`: a live view of all tasks, or one frame of it.

use std::io::{self, IsTerminal as _};
use std::process::{Command, Stdio};

use bgd_shared::id::TaskId;
use bgd_shared::request::{ListParams, TaskList};
use bgd_shared::time::Timestamp;
use nix::sys::signal::Signal;

use crate::cli::TopArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::Link;
use crate::render::look::Look;
use crate::state;
use crate::terminal::lend;
use crate::top::{Environment, HostNo, Size, TaskKey, once, run as show};

/// The size of a frame where nothing tells one.
const SIZE: Size = Size { rows: 24, cols: 80 };

/// The pager, if `$PAGER` names none.
const PAGER: &str = "less -R";

/// Shows the tasks until the user leaves, or prints a frame.
pub fn run(args: &TopArgs, context: &mut Context) -> Result<Code, Failure> {
    if context.json() {
        return Err(Failure::usage("--json can't be combined with `top`")
            .hint("`bgctl --json list` and `bgctl events` are for programs"));
    }
    let filter = args.filter.join(" ");
    let look = Look::of_output(context.colours());
    // What was seen on another machine is not known here.
    let looked = if context.link.is_remote() { None } else { state::last_look() };
    if args.once {
        let size = size(&look);
        let call = |params: &ListParams| context.call::<TaskList>(params);
        let frame = once(call, &filter, size, look.colour, looked, &look.clock)?;
        context.print(&frame)?;
        return Ok(Code::OK);
    }
    if !io::stdout().is_terminal() {
        return Err(Failure::usage("`bgctl top` needs a terminal")
            .hint("`bgctl top --once` prints one frame, `bgctl list` the tasks"));
    }
    if std::env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb") {
        return Err(Failure::usage("this terminal can't be drawn on (TERM is unset or `dumb`)")
            .hint("`bgctl top --once` prints one frame; or set TERM, for example to xterm-256color"));
    }
    let client = context.link.polled()?;
    show(&Around { context, colour: look.colour }, client, &filter, looked)
}

/// The size of the terminal, else `$COLUMNS` and `$LINES`.
fn size(look: &Look) -> Size {
    let lines = std::env::var("LINES").ok().and_then(|lines| lines.parse().ok()).filter(|lines| *lines > 0);
    let terminal = rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| size.ws_row);
    let rows = terminal.filter(|rows| *rows > 0).or(lines).unwrap_or(SIZE.rows);
    Size { rows, cols: look.width.unwrap_or(SIZE.cols) }
}

struct Around<'a> {
    context: &'a Context,
    colour: bool,
}

impl Around<'_> {
    /// This program with the same global options.
    fn bgctl(&self) -> Result<Command, Failure> {
        let own = std::env::current_exe().map_err(|error| Failure::io("can't find bgctl itself", &error))?;
        let mut command = Command::new(own);
        command.args(self.context.globals().words());
        Ok(command)
    }
}

fn cannot_start(error: &io::Error) -> Failure {
    Failure::io("can't start a program", error)
}

impl Environment for Around<'_> {
    fn link(&self) -> Link {
        self.context.quiet_link()
    }

    fn verb(&self, _host: HostNo, args: &[String], signals: &[Signal]) -> Result<u8, Failure> {
        let mut command = self.bgctl()?;
        lend(signals, command.args(args)).map_err(|error| cannot_start(&error))
    }

    fn page(&self, task: TaskKey, signals: &[Signal]) -> Result<u8, Failure> {
        let mut output = self.bgctl()?;
        output.args(["output", &task.id.to_string()]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut output = output.spawn().map_err(|error| cannot_start(&error))?;
        let pager = std::env::var("PAGER").ok().filter(|pager| !pager.trim().is_empty());
        let mut command = Command::new("sh");
        command.arg("-c").arg(pager.as_deref().unwrap_or(PAGER));
        command.stdin(output.stdout.take().map_or_else(Stdio::null, Stdio::from));
        let ended = lend(signals, &mut command);
        // The pager's end of the pipe would keep it waiting.
        drop(command);
        let _ = output.wait();
        ended.map_err(|error| cannot_start(&error))
    }

    fn colour(&self) -> bool {
        self.colour
    }

    fn left(&self, unseen: Vec<(TaskId, Timestamp)>) {
        if !self.context.link.is_remote() {
            state::note_look(Timestamp::now(), unseen);
        }
    }
}
