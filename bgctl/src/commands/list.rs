//! `list`: lists tasks, newest first.

mod hosts;

use std::io::{IsTerminal as _, Write as _};

use bgd_shared::limits::{LIST_PAGE, LIST_PAGE_DEFAULT};
use bgd_shared::request::{ListParams, ListResult, TaskList};
use bgd_shared::task::{Status, Summary};

use crate::cli::ListArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::pick;
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
    let asked = ListParams::from(pick::selected(args.select, context.link.is_remote())?);
    let links = context.links();
    if !links.is_empty() {
        return hosts::run(&hosts::Wanted { asked, most: wanted, quiet, tree: args.tree }, links, context);
    }
    let is_narrowed = !asked.tags.is_empty() || asked.group.is_some() || asked.batch.is_some();
    let result = fetch(&asked, wanted, |params| context.call::<TaskList>(params))?;
    if context.json() {
        context.print_json(&result)?;
        return Ok(Code::OK);
    }
    let is_terminal = std::io::stdout().is_terminal();
    if quiet {
        for task in &result.tasks {
            context.print(&format!("{}\n", task.id))?;
        }
    } else if !result.tasks.is_empty() {
        let look = Look::of_output(context.colours());
        let shown = if args.tree { tree(&result.tasks, lines(), &look) } else { list(&result.tasks, &look) };
        context.print(&shown)?;
    } else if is_terminal {
        let _ = writeln!(std::io::stderr(), "no tasks");
    }
    // Scripts that read ids, and users who gave a limit, expect that there may be more.
    if result.next.is_some() && !quiet && args.limit.is_none() {
        context.flush()?;
        let more = matching(&result.summary, &asked.status).saturating_sub(result.tasks.len() as u64);
        // The summary ignores tags, group and batch, so the remaining number is unknown.
        let more = if is_narrowed { "there are more".to_owned() } else { format!("{more} more") };
        // Standard error may be closed; the list is what matters.
        let _ = writeln!(std::io::stderr(), "{more}; --all shows them");
    }
    Ok(Code::OK)
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
