//! `list`: lists tasks, newest first.

mod hosts;
mod shown;
mod watch;

use std::io::IsTerminal as _;

use bgd_shared::limits::LIST_PAGE_DEFAULT;
use bgd_shared::request::{ListParams, TaskList};
use bgd_shared::task::{Status, Summary};

use self::shown::{Shown, print};
use crate::cli::ListArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::pages::fetch;
use crate::pick;
use crate::remark::say;
use crate::render::list_format::ListFormat;

/// Fetches as many pages as requested, then prints them.
pub fn run(args: ListArgs, context: &mut Context) -> Result<Code, Failure> {
    // Ids are piped into other programs, which must not miss any.
    let default_limit = if args.all || args.quiet { usize::MAX } else { LIST_PAGE_DEFAULT };
    let wanted = args.limit.unwrap_or(default_limit);
    if wanted == 0 {
        return Err(Failure::usage("--limit must be 1 or more"));
    }
    let quiet = args.quiet;
    let shown = Shown { columns: args.columns, sort: args.sort, tree: args.tree, most: wanted };
    let asked = ListParams::from(pick::selected(args.select, context.link.is_remote())?);
    let asked = ListParams { since: args.since, text: args.grep, ..asked };
    if args.watch && context.json() {
        return Err(Failure::usage("--json can't be combined with `list --watch`")
            .hint("`bgctl --json list` and `bgctl events` are for programs"));
    }
    let links = context.links();
    if !links.is_empty() {
        if args.watch {
            return Err(Failure::usage("--watch takes one host"));
        }
        let is_limited = args.limit.is_some();
        return hosts::run(&hosts::Wanted { asked, quiet, is_limited, shown: &shown }, links, context);
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
        let mut format = ListFormat::of_output(context.colours());
        let drawn = shown.drawn(&mut result.tasks, &mut format, context)?;
        print(&drawn, context)?;
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

/// Returns the number of tasks with one of these statuses; an empty slice means any.
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
    fn status_given_twice_counts_once() {
        let summary = Summary { running: 3, failed: 2, ..Summary::default() };
        assert_eq!(matching(&summary, &[]), 5);
        assert_eq!(matching(&summary, &[Status::Failed, Status::Failed]), 2);
    }
}
