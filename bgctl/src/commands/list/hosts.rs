//! `list` of several hosts, which are asked at the same time (R144). A host that does not answer gets a row with the
//! reason, and delays nothing: on a terminal, rows appear as hosts answer; elsewhere all are printed together once
//! every host has answered or timed out.

use std::collections::HashMap;
use std::io::IsTerminal as _;

use bgd_shared::id::TaskId;
use bgd_shared::request::{ListParams, ListResult, TaskList, TaskOutput, TaskUsage};
use bgd_shared::task::{Summary, Task};
use serde::Serialize;

use super::shown::{self, Shown};
use super::watch::{draw, rows};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::{Link, outcome, reason};
use crate::measure::{measured, percents};
use crate::pages::fetch;
use crate::progress::bar;
use crate::remark::say;
use crate::render::columns::{Field, Measured};
use crate::render::list_format::{ListFormat, lines};
use crate::render::shortened;
use crate::render::table::{Drawn, Listing, Missing, listings};
use crate::several::{self, Asked, News};

pub struct Wanted<'a> {
    pub asked: ListParams,
    /// Whether to print only ids.
    pub quiet: bool,
    /// Whether the user gave a limit, and so expects that there may be more.
    pub is_limited: bool,
    /// How many tasks of each host to show at most, and how.
    pub shown: &'a Shown,
}

type Outcome = Result<HostTasks, Failure>;

/// The answer of a host.
struct HostTasks {
    list: ListResult,
    /// Current usage of the host's running tasks, if it is shown.
    measured: Measured,
    /// The progress of running tasks, if it is shown.
    percents: HashMap<TaskId, u8>,
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

/// The answer of a host, without its tasks.
#[derive(Serialize)]
#[serde(untagged)]
enum HostLine<'a> {
    Answered { host: &'a str, summary: &'a Summary, more: bool },
    Silent { host: &'a str, kind: &'a str, error: &'a str },
}

/// Asks all hosts, and prints their answers in the order in which the hosts were given.
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
    let failures: Vec<&Failure> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    for failure in &failures {
        failure.print(context.json());
    }
    let has_more = outcomes.iter().flatten().any(|answer| answer.list.next.is_some());
    if has_more && !wanted.quiet && !wanted.is_limited && !context.json() {
        say(format_args!("there are more; --all shows them"));
    }
    Ok(several::code(&failures, hosts.len()))
}

/// Asks each host, and on a terminal shows the answers so far.
fn ask(
    wanted: &Wanted<'_>,
    links: Vec<Link>,
    context: &Context,
    mut so_far: Option<&mut SoFar<'_>>,
) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes: Vec<Option<Outcome>> = links.iter().map(|_| None).collect();
    let (params, most, is_measured) = (wanted.asked.clone(), wanted.shown.most, wanted.shown.is_measured());
    // On a terminal, too, only on request: it takes a call for each task, and the hosts have little time.
    let has_progress = !context.json() && !wanted.quiet && wanted.shown.columns.contains(&Field::Progress);
    let one = move |asked: &mut Asked<'_>, give: &dyn Fn(HostTasks) -> bool| {
        let list = fetch(&params, most, |params| asked.call::<TaskList>(params))?;
        let measured = if is_measured {
            measured(&list.tasks, |params| asked.call::<TaskUsage>(params))?
        } else {
            Measured::new()
        };
        let percents = if has_progress {
            percents(&list.tasks, |all| asked.call_together::<TaskOutput>(all))?
        } else {
            HashMap::new()
        };
        give(HostTasks { list, measured, percents });
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
    // Every host has ended, so every host has an outcome.
    Ok(outcomes.into_iter().flatten().collect())
}

/// The text on the terminal while some hosts have not answered yet.
struct SoFar<'a> {
    hosts: &'a [String],
    shown: &'a Shown,
    /// Number of lines drawn.
    drawn: usize,
}

impl SoFar<'_> {
    /// Draws the answers so far, and names the other hosts. The text will be redrawn in place, so it must fit the
    /// terminal.
    fn draw(&mut self, outcomes: &[Option<Outcome>], context: &Context) -> Result<(), Failure> {
        let both = || self.hosts.iter().map(String::as_str).zip(outcomes);
        let answered: Vec<_> = both().filter_map(|(host, outcome)| Some((host, outcome.as_ref()?))).collect();
        let silent: Vec<&str> =
            both().filter(|(_, outcome)| outcome.is_none()).map(|(host, _)| host).collect();
        let rows = rows();
        let table = table(&answered, self.shown, context);
        let mut text: String = table.text.split_inclusive('\n').take(rows.saturating_sub(2)).collect();
        let width = ListFormat::of_output(context.colours()).width.map_or(usize::MAX, usize::from);
        let asked = format!("asking {}; --connect-timeout says for how long", silent.join(", "));
        text.push_str(&shortened(&asked, width.saturating_sub(1)));
        text.push('\n');
        draw(&text, rows, &mut self.drawn)
    }
}

fn print(all: &[(&str, &Outcome)], shown: &Shown, context: &mut Context) -> Result<(), Failure> {
    let is_empty = |outcome: &Outcome| outcome.as_ref().is_ok_and(|answer| answer.list.tasks.is_empty());
    if !all.iter().all(|(_, outcome)| is_empty(outcome)) {
        return shown::print(&table(all, shown, context), context);
    }
    if std::io::stdout().is_terminal() {
        say(format_args!("no tasks"));
    }
    Ok(())
}

/// Renders the answers of these hosts.
fn table(all: &[(&str, &Outcome)], shown: &Shown, context: &Context) -> Drawn {
    let reasons: Vec<String> = all
        .iter()
        .map(|(host, outcome)| outcome.as_ref().err().map_or_else(String::new, |why| reason(host, why)))
        .collect();
    let rows: Vec<Listing<'_>> = (all.iter().zip(&reasons))
        .map(|((host, answer), reason)| Listing {
            host: Some(host),
            tasks: match answer {
                Ok(answer) => Ok(&answer.list.tasks[..]),
                Err(failure) => Err(Missing { outcome: outcome(failure), reason }),
            },
        })
        .collect();
    let mut format = ListFormat::of_output(context.colours());
    for answer in all.iter().filter_map(|(_, outcome)| outcome.as_ref().ok()) {
        format.measured.extend(answer.measured.clone());
        format.percents.extend(&answer.percents);
    }
    shown.set_columns(&mut format);
    listings(&rows, shown.tree.then(lines), &format)
}

fn printed<'a>(all: &[(&'a str, &'a Outcome)]) -> Printed<'a> {
    let tasks = all.iter().filter_map(|(host, outcome)| Some((*host, &outcome.as_ref().ok()?.list)));
    let tasks = tasks.flat_map(|(host, result)| result.tasks.iter().map(move |task| OnHost { host, task }));
    let hosts = all.iter().map(|(host, outcome)| match outcome {
        Ok(HostTasks { list: ListResult { summary, next, tasks: _, cleared: _ }, .. }) => {
            HostLine::Answered { host, summary, more: next.is_some() }
        }
        Err(failure) => HostLine::Silent { host, kind: failure.kind, error: &failure.message },
    });
    Printed { tasks: tasks.collect(), hosts: hosts.collect() }
}
