//! `group`: groups of tasks with their own slots (R100).

use bgd_shared::order::Group;
use bgd_shared::request::{
    GroupContinue, GroupList, GroupParams, GroupPause, GroupRemove, GroupResult, GroupSet, GroupSetParams,
    NoParams,
};
use bgd_shared::show::count;

use crate::cli::{GroupArgs, GroupVerb};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::remark::warn;
use crate::render::clean;
use crate::render::group::{list, row};
use crate::render::list_format::ListFormat;

/// Carries out the subcommand, then prints the affected groups.
pub fn run(args: GroupArgs, context: &mut Context) -> Result<Code, Failure> {
    let result = match args.verb {
        GroupVerb::List => return print_all(context),
        GroupVerb::Remove { name } => return remove(name, context),
        GroupVerb::Set { name, slots } => {
            let result = context.call::<GroupSet>(&GroupSetParams { name, slots })?;
            warn_of_oversized(&result.group);
            result
        }
        GroupVerb::Pause { name } => context.call::<GroupPause>(&GroupParams { name })?,
        GroupVerb::Continue { name } => context.call::<GroupContinue>(&GroupParams { name })?,
    };
    print(&result, context)
}

/// Warns of pending tasks that take more slots than the group has now: they start nevertheless, and may use more of what
/// the slots stand for than there is.
fn warn_of_oversized(group: &Group) {
    let Group { name, slots, oversized, .. } = group;
    if *oversized > 0 {
        let takes = if *oversized == 1 { "takes" } else { "take" };
        warn(&format!(
            "{} {takes} more slots than {} has now ({slots}); each runs alone in the group, but with all its slots: \
             `bgctl edit ID --slots N` changes that",
            count(*oversized, "pending task"),
            clean(name),
        ));
    }
}

fn print_all(context: &mut Context) -> Result<Code, Failure> {
    let result = context.call::<GroupList>(&NoParams::default())?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        context.print(&list(&result.groups, &ListFormat::of_output(context.colours())))?;
    }
    Ok(Code::OK)
}

fn remove(name: String, context: &mut Context) -> Result<Code, Failure> {
    let removed = context.call::<GroupRemove>(&GroupParams { name });
    let result = removed.map_err(|failure| match failure.kind {
        // The failure's hint explains how to create the group.
        "unknown_group" => Failure { hint: None, ..failure },
        _ => failure,
    })?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        context.print(&format!("removed {}\n", clean(&result.group.name)))?;
    }
    Ok(Code::OK)
}

fn print(result: &GroupResult, context: &mut Context) -> Result<Code, Failure> {
    if context.json() {
        context.print_json(result)?;
    } else {
        context.print(&row(&result.group))?;
    }
    Ok(Code::OK)
}
