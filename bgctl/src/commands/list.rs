//! `list`: lists tasks, newest first.

mod hosts;
mod watch;

use std::collections::HashMap;
use std::io::IsTerminal as _;

use bgd_shared::id::TaskId;
use bgd_shared::limits::{LIST_PAGE, LIST_PAGE_DEFAULT, USAGES};
use bgd_shared::request::{
    ListParams, ListResult, OutputParams, TaskList, TaskOutput, TaskUsage, UsageParams, UsageResult,
};
use bgd_shared::task::{Status, Summary, Task};
use bgd_shared::time::Timestamp;

use crate::cli::ListArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::percent::{LINE_BYTES, in_output};
use crate::pick;
use crate::remark::say;
use crate::render::columns::{Field, Measured, Sort};
use crate::render::look::{Look, lines};
use crate::render::table::{list, tree};

/// Fetches as many pages as requested, then prints them.
pub fn run(args: ListArgs, context: &mut Context) -> Result<Code, Failure> {
    // Ids are piped into other programs, which must not miss any.
    let unless_told = if args.all || args.quiet { usize::MAX } else { LIST_PAGE_DEFAULT };
    let wanted = args.limit.unwrap_or(unless_told);
    if wanted == 0 {
        return Err(Failure::usage("--limit must be 1 or more"));
    }
    let quiet = args.quiet;
    let shown = Shown { columns: args.columns, sort: args.sort, tree: args.tree, most: wanted };
    let asked = ListParams::from(pick::selected(args.select, context.link.is_remote())?);
    let asked = ListParams { since: args.since, text: args.grep, ..asked };
    let links = context.links();
    if !links.is_empty() {
        if args.watch {
            return Err(Failure::usage("--watch takes one host"));
        }
        return hosts::run(&hosts::Wanted { asked, quiet, shown: &shown }, links, context);
    }
    if args.watch {
        return watch::run(&asked, &shown, context);
    }
    let is_narrowed = !asked.tags.is_empty()
        || asked.group.is_some()
        || asked.batch.is_some()
        || asked.since.is_some()
        || asked.text.is_some();
    let mut result = fetch(&asked, wanted, |params| context.call::<TaskList>(params))?;
    if context.json() {
        let measured = shown.measured(&result.tasks, context)?;
        shown.sort(&mut result.tasks, &measured);
        context.print_json(&result)?;
        return Ok(Code::OK);
    }
    let is_terminal = std::io::stdout().is_terminal();
    if quiet {
        let measured = shown.measured(&result.tasks, context)?;
        shown.sort(&mut result.tasks, &measured);
        for task in &result.tasks {
            context.print(&format!("{}\n", task.id))?;
        }
    } else if !result.tasks.is_empty() {
        let mut look = Look::of_output(context.colours());
        let text = shown.text(&mut result.tasks, &mut look, context)?;
        context.print(&text)?;
    } else if is_terminal {
        say(format_args!("no tasks"));
    }
    // Scripts that read ids, and users who gave a limit, expect that there may be more.
    if result.next.is_some() && !quiet && args.limit.is_none() {
        context.flush()?;
        let more = matching(&result.summary, &asked.status).saturating_sub(result.tasks.len() as u64);
        // The summary ignores tags, group, batch, times and texts, so the remaining number is unknown.
        let more = if is_narrowed { "there are more".to_owned() } else { format!("{more} more") };
        say(format_args!("{more}; --all shows them"));
    }
    Ok(Code::OK)
}

/// How the tasks are shown.
pub struct Shown {
    /// The columns; empty: the usual ones.
    columns: Vec<Field>,
    sort: Option<Sort>,
    tree: bool,
    /// How many tasks at most.
    most: usize,
}

impl Shown {
    fn sort(&self, tasks: &mut [Task], measured: &Measured) {
        if let Some(sort) = self.sort {
            sort.apply(tasks, measured, Timestamp::now());
        }
    }

    /// Measures what running tasks use, if that is shown or sorted by.
    fn measured(&self, tasks: &[Task], context: &mut Context) -> Result<Measured, Failure> {
        if self.is_measured() {
            measured(tasks, |params| context.call::<TaskUsage>(params))
        } else {
            Ok(Measured::new())
        }
    }

    fn is_measured(&self) -> bool {
        self.columns.iter().copied().any(Field::is_measured) || self.sort.is_some_and(Sort::is_measured)
    }

    /// Sets the columns; that of the progress is there if any is known.
    fn set_columns(&self, look: &mut Look) {
        if !self.columns.is_empty() {
            look.columns.clone_from(&self.columns);
            // A tree is drawn in the column of the ids.
            if self.tree && !look.columns.contains(&Field::Id) {
                look.columns.insert(0, Field::Id);
            }
        } else if !look.percents.is_empty() {
            let at = look.columns.iter().position(|field| *field == Field::Description);
            look.columns.insert(at.unwrap_or(0), Field::Progress);
        }
    }

    /// Renders the tasks, with their progress where somebody sees it.
    fn text(&self, tasks: &mut [Task], look: &mut Look, context: &mut Context) -> Result<String, Failure> {
        look.measured = self.measured(tasks, context)?;
        self.sort(tasks, &look.measured);
        if look.table || self.columns.contains(&Field::Progress) {
            look.percents = percents(tasks, context)?;
        }
        self.set_columns(look);
        Ok(if self.tree { tree(tasks, lines(), look) } else { list(tasks, look) })
    }
}

/// The most running tasks whose output is looked at for their progress.
const LOOKED_AT: usize = 50;

fn is_running(task: &Task) -> bool {
    matches!(task.status, Status::Running | Status::Resumed)
}

/// Measures what running tasks use now.
fn measured(
    tasks: &[Task],
    mut call: impl FnMut(&UsageParams) -> Result<UsageResult, Failure>,
) -> Result<Measured, Failure> {
    let ids: Vec<_> = tasks.iter().filter(|task| is_running(task)).map(|task| task.id.into()).collect();
    let mut measured = Measured::new();
    for ids in ids.chunks(USAGES) {
        match call(&UsageParams { ids: ids.to_vec() }) {
            Ok(answer) => measured.extend(answer.usages.into_iter().map(|usage| (usage.id, usage))),
            // One of them was cleared meanwhile.
            Err(failure) if failure.code == Code::NO_TASK => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(measured)
}

/// Looks how far running tasks are.
fn percents(tasks: &[Task], context: &mut Context) -> Result<HashMap<TaskId, u8>, Failure> {
    let mut percents = HashMap::new();
    for task in tasks.iter().filter(|task| is_running(task)).take(LOOKED_AT) {
        let params = OutputParams {
            id: task.id.into(),
            offset: Some(-LINE_BYTES),
            limit: u64::try_from(LINE_BYTES).ok(),
            stream: None,
        };
        match context.call::<TaskOutput>(&params) {
            Ok(answer) => percents.extend(in_output(answer).map(|percent| (task.id, percent))),
            // It was cleared meanwhile.
            Err(failure) if failure.code == Code::NO_TASK => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(percents)
}

/// Fetches up to `wanted` tasks as one result, by as many calls as that takes.
fn fetch(
    asked: &ListParams,
    wanted: usize,
    mut call: impl FnMut(&ListParams) -> Result<ListResult, Failure>,
) -> Result<ListResult, Failure> {
    let mut params = ListParams { limit: Some(wanted.min(LIST_PAGE)), ..asked.clone() };
    let mut result = call(&params)?;
    while result.next.is_some() && result.tasks.len() < wanted {
        params.after = result.next;
        params.limit = Some((wanted - result.tasks.len()).min(LIST_PAGE));
        let page = call(&params)?;
        result.tasks.extend(page.tasks);
        result.next = page.next;
        result.summary = page.summary;
    }
    Ok(result)
}

/// Returns how many tasks have one of these statuses; an empty slice means any.
fn matching(summary: &Summary, statuses: &[Status]) -> u64 {
    if statuses.is_empty() {
        return summary.total();
    }
    Status::ALL
        .into_iter()
        .filter(|status| statuses.contains(status))
        .map(|status| summary.count(status))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_named_twice_counts_once() {
        let summary = Summary { running: 3, failed: 2, ..Summary::default() };
        assert_eq!(matching(&summary, &[]), 5);
        assert_eq!(matching(&summary, &[Status::Failed, Status::Failed]), 2);
    }
}
