//! `top`: a live view of all tasks, or one frame of it.

use std::io::{self, IsTerminal as _};
use std::process::{Command, Stdio};

use bgd_shared::id::TaskId;
use bgd_shared::request::{ListResult, TaskList, TaskOutput, TaskUsage};
use bgd_shared::task::Task;
use bgd_shared::time::Timestamp;
use nix::sys::signal::Signal;

use crate::cli::TopArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::{Link, outcome, reason};
use crate::measure::{is_running, measured, percents};
use crate::render::list_format::{ListFormat, is_dumb};
use crate::several::{self, Asked, News};
use crate::state;
use crate::terminal::lend;
use crate::top::{
    Environment, HostNo, Hosts, Measurements, Size, Still, TaskKey, each_page, run as show, unknown_status,
};

/// The size of a frame if the size is unknown.
const SIZE: Size = Size { rows: 24, cols: 80 };

/// The pager, if `$PAGER` is not set.
const PAGER: &str = "less -R";

/// Shows the tasks until the user leaves, or prints a frame.
pub fn run(args: &TopArgs, context: &mut Context) -> Result<Code, Failure> {
    if context.json() {
        return Err(Failure::usage("--json can't be combined with `top`")
            .hint("`bgctl --json list` and `bgctl events` are for programs"));
    }
    let filter = args.filter.join(" ");
    if let Some(why) = unknown_status(&filter) {
        return Err(Failure::usage(why));
    }
    let format = ListFormat::of_output(context.colours());
    // The notes of this machine do not cover tasks of a remote daemon.
    let here = if context.link.is_remote() { None } else { Some(context.link.socket()?) };
    let last_seen = here.as_ref().and_then(state::last_seen);
    if args.once {
        let mut still = Still::new(&names(context), last_seen);
        let links = context.links();
        if !links.is_empty() {
            return once_of_several(still, links, &filter, &format, context);
        }
        let (host, mut running) = (HostNo::default(), Vec::new());
        let take = |page: ListResult| {
            running.extend(running_of(&page));
            still.add(host, &page, &format.clock);
            true
        };
        each_page(|params| context.call::<TaskList>(params), take)?;
        // A frame without these figures is better than none.
        let usages = measured(&running, |params| context.call::<TaskUsage>(params)).unwrap_or_default();
        let percents =
            percents(&running, |all| context.link.call_together::<TaskOutput>(all)).unwrap_or_default();
        still.measured(host, &running, &Measurements { usages, percents }, &format.clock);
        context.print(&still.draw(&filter, size(&format), format.colour, &format.clock))?;
        return Ok(Code::OK);
    }
    if !io::stdout().is_terminal() {
        return Err(Failure::usage("`bgctl top` needs a terminal")
            .hint("`bgctl top --once` prints one frame, `bgctl list` the tasks"));
    }
    if is_dumb() {
        return Err(Failure::usage("this terminal can't move its cursor (TERM is unset or `dumb`)")
            .hint("`bgctl top --once` prints one frame; or set TERM, for example to xterm-256color"));
    }
    let several = names(context);
    let hosts = if several.is_empty() {
        Hosts::One(Box::new(context.link.polled()?))
    } else {
        Hosts::Several(several)
    };
    show(&CommandEnvironment { context, colour: format.colour }, hosts, &filter, last_seen)
}

/// Returns the names of the hosts, if there are several.
fn names(context: &Context) -> Vec<String> {
    context.hosts().iter().map(ToString::to_string).collect()
}

fn running_of(page: &ListResult) -> impl Iterator<Item = Task> {
    page.tasks.iter().filter(|task| is_running(task)).cloned()
}

/// A part of a host's answer.
enum Part {
    Page(ListResult),
    /// The last part: its running tasks.
    Running(Vec<Task>, Measurements),
}

/// Prints a frame of several hosts' tasks, with a row for each host that does not answer.
fn once_of_several(
    mut still: Still,
    links: Vec<Link>,
    filter: &str,
    format: &ListFormat,
    context: &mut Context,
) -> Result<Code, Failure> {
    let host = |place: usize| HostNo(u8::try_from(place).unwrap_or(u8::MAX));
    let one = |asked: &mut Asked<'_>, give: &dyn Fn(Part) -> bool| {
        let mut running = Vec::new();
        let take = |page: ListResult| {
            running.extend(running_of(&page));
            give(Part::Page(page))
        };
        each_page(|params| asked.call::<TaskList>(params), take)?;
        let usages = measured(&running, |params| asked.call::<TaskUsage>(params)).unwrap_or_default();
        let percents = percents(&running, |all| asked.call_together::<TaskOutput>(all)).unwrap_or_default();
        give(Part::Running(running, Measurements { usages, percents }));
        Ok(())
    };
    let mut failures: Vec<(usize, Failure)> = Vec::new();
    several::ask(links, context.connect_timeout(), one, |news| {
        match news {
            News::Part(place, Part::Page(page)) => still.add(host(place), &page, &format.clock),
            News::Part(place, Part::Running(running, measurements)) => {
                still.measured(host(place), &running, &measurements, &format.clock);
            }
            News::End(place, Err(failure)) => failures.push((place, failure)),
            News::End(_, Ok(())) | News::Pause => {}
        }
        Ok(())
    })?;
    failures.sort_by_key(|(place, _)| *place);
    let names = names(context);
    for (place, failure) in &failures {
        still.silent(host(*place), outcome(failure), &reason(&names[*place], failure));
    }
    context.print(&still.draw(filter, size(format), format.colour, &format.clock))?;
    context.flush()?;
    let failures: Vec<&Failure> = failures.iter().map(|(_, failure)| failure).collect();
    for failure in &failures {
        failure.print(false);
    }
    Ok(several::code(&failures, names.len()))
}

/// Returns the size of the terminal, else `$COLUMNS` and `$LINES`.
fn size(format: &ListFormat) -> Size {
    let lines = std::env::var("LINES").ok().and_then(|lines| lines.parse().ok()).filter(|lines| *lines > 0);
    let terminal = rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| size.ws_row);
    let rows = terminal.filter(|rows| *rows > 0).or(lines).unwrap_or(SIZE.rows);
    Size { rows, cols: format.width.unwrap_or(SIZE.cols) }
}

struct CommandEnvironment<'a> {
    context: &'a Context,
    colour: bool,
}

impl CommandEnvironment<'_> {
    /// Returns a command for this program with the same global options, for one of the hosts, or for the daemon that
    /// the other options name.
    fn bgctl(&self, host: Option<HostNo>) -> Result<Command, Failure> {
        let own = std::env::current_exe().map_err(|error| Failure::io("can't find bgctl itself", &error))?;
        let mut command = Command::new(own);
        let mut globals = self.context.globals().clone();
        match host {
            None => (globals.host, globals.socket) = (None, None),
            Some(host) => {
                let named = self.context.hosts().get(host.index()).map(ToString::to_string);
                globals.host = named.or(globals.host);
            }
        }
        command.args(globals.words());
        Ok(command)
    }
}

fn cannot_start(error: &io::Error) -> Failure {
    Failure::io("can't start a program", error)
}

impl Environment for CommandEnvironment<'_> {
    fn link(&self, host: HostNo) -> Link {
        self.context.quiet_link(host.index())
    }

    fn verb(&self, host: Option<HostNo>, args: &[String], signals: &[Signal]) -> Result<u8, Failure> {
        let mut command = self.bgctl(host)?;
        lend(signals, command.args(args)).map_err(|error| cannot_start(&error))
    }

    fn page(&self, task: TaskKey, signals: &[Signal]) -> Result<u8, Failure> {
        let mut output = self.bgctl(Some(task.host))?;
        output.args(["output", &task.id.to_string()]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut output = output.spawn().map_err(|error| cannot_start(&error))?;
        let pager = std::env::var("PAGER").ok().filter(|pager| !pager.trim().is_empty());
        let mut command = Command::new("sh");
        command.arg("-c").arg(pager.as_deref().unwrap_or(PAGER));
        command.stdin(output.stdout.take().map_or_else(Stdio::null, Stdio::from));
        let ended = lend(signals, &mut command);
        // The command's copy of the pager's pipe would keep the pager waiting.
        drop(command);
        // The command may wait a long time for a silent host, and its output is no longer read.
        let _ = output.kill();
        let _ = output.wait();
        ended.map_err(|error| cannot_start(&error))
    }

    fn colour(&self) -> bool {
        self.colour
    }

    fn left(&self, at: Timestamp, unseen: Vec<(TaskId, Timestamp)>) {
        // Without a socket, it is that of a remote machine.
        if let Ok(socket) = self.context.link.socket() {
            state::record_seen(&socket, at, unseen);
        }
    }
}
