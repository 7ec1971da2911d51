//! `group`: groups of tasks with their own slots (R100).

use bgd_shared::request::{
    GroupContinue, GroupList, GroupParams, GroupPause, GroupRemove, GroupResult, GroupSet, GroupSetParams,
    NoParams,
};

use crate::cli::{GroupArgs, GroupVerb};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::clean;
use crate::render::group::{list, row};
use crate::render::list_format::ListFormat;

/// Carries out the subcommand, then prints the affected groups.
pub fn run(args: GroupArgs, context: &mut Context) -> Result<Code, Failure> {
    let result = match args.verb {
        GroupVerb::List => return print_all(context),
        GroupVerb::Remove { name } => return remove(name, context),
        GroupVerb::Set { name, slots } => context.call::<GroupSet>(&GroupSetParams { name, slots })?,
        GroupVerb::Pause { name } => context.call::<GroupPause>(&GroupParams { name })?,
        GroupVerb::Continue { name } => context.call::<GroupContinue>(&GroupParams { name })?,
    };
    print(&result, context)
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
