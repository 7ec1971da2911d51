//! `list` of several hosts, which are asked at the same time (R144). One that does not answer is a row that says so, and
//! delays nobody: on a terminal, rows appear as hosts answer; elsewhere all come at once, after a short time at most.

use std::io::{IsTerminal as _, Write as _};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::client::ClientError;
use bgd_shared::request::{ListParams, ListResult, TaskList};
use bgd_shared::show::shortened;
use bgd_shared::task::{Summary, Task};
use serde::Serialize;

use super::watch::{draw, rows};
use super::{Shown, fetch};
use crate::bar;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::Link;
use crate::render::clean;
use crate::render::columns::Measured;
use crate::render::look::{Look, lines};
use crate::render::table::{Listing, listings};

/// The most characters of the reason in a row; standard error has all of it.
const REASON_CHARS: usize = 120;

/// How long an ssh whose time is over may take to end.
const ENDING: Duration = Duration::from_secs(6);

/// How long to wait for the next answer before those so far are shown: most hosts answer at once.
const PAUSE: Duration = Duration::from_millis(200);

/// What to list.
pub struct Wanted<'a> {
    /// Which tasks.
    pub asked: ListParams,
    /// Whether to print only ids.
    pub quiet: bool,
    /// How many at most of each host, and how they are shown.
    pub shown: &'a Shown,
}

type Outcome = Result<ListResult, Failure>;

/// The output of `--json`.
#[derive(Serialize)]
struct Printed<'a> {
    tasks: Vec<OnHost<'a>>,
    hosts: Vec<HostLine<'a>>,
}

#[derive(Serialize)]
struct OnHost<'a> {
    host: &'a str,
    #[serde(flatten)]
    task: &'a Task,
}

/// What a host answered, besides its tasks.
#[derive(Serialize)]
#[serde(untagged)]
enum HostLine<'a> {
    Answered { host: &'a str, summary: &'a Summary, more: bool },
    Silent { host: &'a str, kind: &'a str, error: &'a str },
}

/// Asks all hosts, and prints what they answered, in the order they were given.
pub fn run(wanted: &Wanted<'_>, links: Vec<Link>, context: &mut Context) -> Result<Code, Failure> {
    let hosts: Vec<String> = links.iter().filter_map(Link::host).map(ToString::to_string).collect();
    let shows = !context.json() && !wanted.quiet && std::io::stdout().is_terminal() && bar::is_drawable();
    let mut so_far = shows.then(|| SoFar { hosts: &hosts, shown: wanted.shown, drawn: 0 });
    let mut outcomes = ask(wanted, links, context, so_far.as_mut())?;
    if let Some(so_far) = &mut so_far {
        draw("", rows(), &mut so_far.drawn)?;
    }
    for result in outcomes.iter_mut().flatten() {
        // What running tasks use is not measured there: that would take a second call to each host.
        wanted.shown.sort(&mut result.tasks, &Measured::new());
    }
    let all: Vec<(&str, &Outcome)> = hosts.iter().map(String::as_str).zip(&outcomes).collect();
    if context.json() {
        context.print_json(&printed(&all))?;
    } else if wanted.quiet {
        for task in outcomes.iter().flatten().flat_map(|result| &result.tasks) {
            context.print(&format!("{}\n", task.id))?;
        }
    } else {
        print(&all, wanted.shown, context)?;
    }
    context.flush()?;
    for failure in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        failure.tell(context.json());
    }
    let has_more = outcomes.iter().flatten().any(|result| result.next.is_some());
    if has_more && !wanted.quiet && !context.json() {
        // Standard error may be closed; the list is what matters.
        let _ = writeln!(std::io::stderr(), "there are more; --all shows them");
    }
    Ok(if outcomes.iter().any(Result::is_ok) { Code::OK } else { Code::NO_DAEMON })
}

/// Asks each host on a thread of its own. Returns when all have answered or their time is over.
fn ask(
    wanted: &Wanted<'_>,
    links: Vec<Link>,
    context: &Context,
    mut so_far: Option<&mut SoFar<'_>>,
) -> Result<Vec<Outcome>, Failure> {
    let within = context.connect_timeout();
    let deadline = Instant::now() + within;
    let (sender, receiver) = mpsc::channel();
    let overdue: Vec<Failure> = links.iter().map(|link| late(link, within)).collect();
    let mut outcomes: Vec<Option<Outcome>> = links.iter().map(|_| None).collect();
    for (place, link) in links.into_iter().enumerate() {
        let (sender, params, most) = (sender.clone(), wanted.asked.clone(), wanted.shown.most);
        let thread = thread::Builder::new().name("host".to_owned()).spawn(move || {
            let outcome = ask_one(&link, &params, most, deadline).map_err(|failure| link.name_host(failure));
            // Nobody listens any more if this took too long.
            let _ = sender.send((place, outcome));
        });
        if let Err(error) = thread {
            outcomes[place] = Some(Err(Failure::io("can't start a thread", &error)));
        }
    }
    let end = deadline + ENDING;
    let mut is_shown = true;
    while outcomes.iter().any(Option::is_none) {
        let until = if is_shown { end } else { end.min(Instant::now() + PAUSE) };
        match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((place, outcome)) => {
                outcomes[place] = Some(outcome);
                is_shown = so_far.is_none();
            }
            Err(_) if Instant::now() >= end => break,
            Err(_) => {
                if let Some(so_far) = so_far.as_mut().filter(|_| !is_shown) {
                    so_far.draw(&outcomes, context)?;
                }
                is_shown = true;
            }
        }
    }
    Ok(outcomes.into_iter().zip(overdue).map(|(outcome, late)| outcome.unwrap_or(Err(late))).collect())
}

/// What is on the terminal while some hosts have not answered yet.
struct SoFar<'a> {
    hosts: &'a [String],
    shown: &'a Shown,
    /// How many lines it has.
    drawn: usize,
}

impl SoFar<'_> {
    /// Draws what was answered, and names the other hosts. It is drawn again, so it must fit.
    fn draw(&mut self, outcomes: &[Option<Outcome>], context: &Context) -> Result<(), Failure> {
        let both = || self.hosts.iter().map(String::as_str).zip(outcomes);
        let answered: Vec<_> = both().filter_map(|(host, outcome)| Some((host, outcome.as_ref()?))).collect();
        let silent: Vec<&str> =
            both().filter(|(_, outcome)| outcome.is_none()).map(|(host, _)| host).collect();
        let rows = rows();
        let text = table(&answered, self.shown, context);
        let mut text: String = text.split_inclusive('\n').take(rows.saturating_sub(2)).collect();
        let width = Look::of_output(context.colours()).width.map_or(usize::MAX, usize::from);
        let asked = format!("asking {}; --connect-timeout says for how long", silent.join(", "));
        text.push_str(&shortened(&asked, width.saturating_sub(1)));
        text.push('\n');
        draw(&text, rows, &mut self.drawn)
    }
}

fn ask_one(link: &Link, params: &ListParams, most: usize, deadline: Instant) -> Outcome {
    let within = deadline.saturating_duration_since(Instant::now());
    let mut client = link.connect()?;
    fetch(params, most, |params| {
        client.wait_at_most(deadline.saturating_duration_since(Instant::now()));
        client.call::<TaskList>(params).map_err(|error| match error {
            ClientError::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => late(link, within),
            error => error.into(),
        })
    })
}

fn late(link: &Link, within: Duration) -> Failure {
    let message = format!("no answer within {} ms", within.as_millis());
    link.name_host(Failure::new(Code::NO_DAEMON, "no_answer", message))
}

fn print(all: &[(&str, &Outcome)], shown: &Shown, context: &mut Context) -> Result<(), Failure> {
    let is_empty = |outcome: &Outcome| outcome.as_ref().is_ok_and(|result| result.tasks.is_empty());
    if !all.iter().all(|(_, outcome)| is_empty(outcome)) {
        return context.print(&table(all, shown, context));
    }
    if std::io::stdout().is_terminal() {
        let _ = writeln!(std::io::stderr(), "no tasks");
    }
    Ok(())
}

/// Renders what these hosts have answered.
fn table(all: &[(&str, &Outcome)], shown: &Shown, context: &Context) -> String {
    let reasons: Vec<String> = all
        .iter()
        .map(|(host, outcome)| outcome.as_ref().err().map_or_else(String::new, |why| reason(host, why)))
        .collect();
    let rows: Vec<Listing<'_>> = (all.iter().zip(&reasons))
        .map(|((host, outcome), reason)| Listing {
            host: Some(host),
            tasks: outcome.as_ref().map(|result| &result.tasks[..]).map_err(|_| reason.as_str()),
        })
        .collect();
    let mut look = Look::of_output(context.colours());
    shown.set_columns(&mut look);
    listings(&rows, shown.tree.then(lines), &look)
}

/// Returns why a host gave no list, in one short line without its name.
fn reason(host: &str, failure: &Failure) -> String {
    let text = failure.message.strip_prefix(host).and_then(|text| text.strip_prefix(": "));
    let line = text.unwrap_or(&failure.message).lines().map(str::trim).filter(|line| !line.is_empty());
    shortened(&clean(&line.collect::<Vec<_>>().join("; ")), REASON_CHARS)
}

fn printed<'a>(all: &[(&'a str, &'a Outcome)]) -> Printed<'a> {
    let tasks = all.iter().filter_map(|(host, outcome)| Some((*host, outcome.as_ref().ok()?)));
    let tasks = tasks.flat_map(|(host, result)| result.tasks.iter().map(move |task| OnHost { host, task }));
    let hosts = all.iter().map(|(host, outcome)| match outcome {
        Ok(ListResult { summary, next, tasks: _ }) => {
            HostLine::Answered { host, summary, more: next.is_some() }
        }
        Err(failure) => HostLine::Silent { host, kind: failure.kind, error: &failure.message },
    });
    Printed { tasks: tasks.collect(), hosts: hosts.collect() }
}
