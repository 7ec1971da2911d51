//! `list` of several hosts, which are asked at the same time (R144). One that does not answer is a row that says so, and
//! delays nobody: on a terminal, rows appear as hosts answer; elsewhere all come at once, after a short time at most.

use std::io::IsTerminal as _;

use bgd_shared::request::{ListParams, ListResult, TaskList, TaskUsage};
use bgd_shared::show::shortened;
use bgd_shared::task::{Summary, Task};
use serde::Serialize;

use super::pages::fetch;
use super::shown::{Shown, measured};
use super::watch::{draw, rows};
use crate::bar;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::{Link, reason};
use crate::remark::say;
use crate::render::columns::Measured;
use crate::render::look::{Look, lines};
use crate::render::table::{Listing, listings};
use crate::several::{self, Asked, News};

/// What to list.
pub struct Wanted<'a> {
    /// The tasks to list.
    pub asked: ListParams,
    /// Whether to print only ids.
    pub quiet: bool,
    /// How many at most of each host, and how they are shown.
    pub shown: &'a Shown,
}

type Outcome = Result<HostTasks, Failure>;

/// What a host answered.
struct HostTasks {
    list: ListResult,
    /// What its running tasks use, if that is shown.
    measured: Measured,
}

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
    for answer in outcomes.iter_mut().flatten() {
        wanted.shown.sort(&mut answer.list.tasks, &answer.measured);
    }
    let all: Vec<(&str, &Outcome)> = hosts.iter().map(String::as_str).zip(&outcomes).collect();
    if context.json() {
        context.print_json(&printed(&all))?;
    } else if wanted.quiet {
        for task in outcomes.iter().flatten().flat_map(|answer| &answer.list.tasks) {
            context.print(&format!("{}\n", task.id))?;
        }
    } else {
        print(&all, wanted.shown, context)?;
    }
    context.flush()?;
    for failure in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        failure.tell(context.json());
    }
    let has_more = outcomes.iter().flatten().any(|answer| answer.list.next.is_some());
    if has_more && !wanted.quiet && !context.json() {
        say(format_args!("there are more; --all shows them"));
    }
    Ok(if outcomes.iter().any(Result::is_ok) { Code::OK } else { Code::NO_DAEMON })
}

/// Asks each host, and shows on a terminal what was answered so far.
fn ask(
    wanted: &Wanted<'_>,
    links: Vec<Link>,
    context: &Context,
    mut so_far: Option<&mut SoFar<'_>>,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes: Vec<Option<Outcome>> = links.iter().map(|_| None).collect();
    let (params, most, is_measured) = (wanted.asked.clone(), wanted.shown.most, wanted.shown.is_measured());
    let one = move |asked: &mut Asked<'_>, give: &dyn Fn(HostTasks) -> bool| {
        let list = fetch(&params, most, |params| asked.call::<TaskList>(params))?;
        let measured = if is_measured {
            measured(&list.tasks, |params| asked.call::<TaskUsage>(params))?
        } else {
            Measured::new()
        };
        give(HostTasks { list, measured });
        Ok(())
    };
    several::ask(links, context.connect_timeout(), one, |news| {
        match news {
            News::Part(place, answer) => outcomes[place] = Some(Ok(answer)),
            News::End(place, Err(failure)) => outcomes[place] = Some(Err(failure)),
            News::End(_, Ok(())) => {}
            News::Pause => {
                if let Some(so_far) = &mut so_far {
                    so_far.draw(&outcomes, context)?;
                }
            }
        }
        Ok(())
    })?;
    // Each has ended, so each has an outcome.
    Ok(outcomes.into_iter().flatten().collect())
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

fn print(all: &[(&str, &Outcome)], shown: &Shown, context: &mut Context) -> Result<(), Failure> {
    let is_empty = |outcome: &Outcome| outcome.as_ref().is_ok_and(|answer| answer.list.tasks.is_empty());
    if !all.iter().all(|(_, outcome)| is_empty(outcome)) {
        return context.print(&table(all, shown, context));
    }
    if std::io::stdout().is_terminal() {
        say(format_args!("no tasks"));
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
            tasks: outcome.as_ref().map(|answer| &answer.list.tasks[..]).map_err(|_| reason.as_str()),
        })
        .collect();
    let mut look = Look::of_output(context.colours());
    let answers = all.iter().filter_map(|(_, outcome)| outcome.as_ref().ok());
    look.measured = answers.flat_map(|answer| answer.measured.clone()).collect();
    shown.set_columns(&mut look);
    listings(&rows, shown.tree.then(lines), &look)
}

fn printed<'a>(all: &[(&'a str, &'a Outcome)]) -> Printed<'a> {
    let tasks = all.iter().filter_map(|(host, outcome)| Some((*host, &outcome.as_ref().ok()?.list)));
    let tasks = tasks.flat_map(|(host, result)| result.tasks.iter().map(move |task| OnHost { host, task }));
    let hosts = all.iter().map(|(host, outcome)| match outcome {
        Ok(HostTasks { list: ListResult { summary, next, tasks: _ }, measured: _ }) => {
            HostLine::Answered { host, summary, more: next.is_some() }
        }
        Err(failure) => HostLine::Silent { host, kind: failure.kind, error: &failure.message },
    });
    Printed { tasks: tasks.collect(), hosts: hosts.collect() }
}
