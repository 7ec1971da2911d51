//! The variables that describe a process's place among other tasks (R102, R104). If the submitter is a task itself, its
//! own variables are not passed on.

use std::ffi::CString;

use bgd_shared::order::DEFAULT_GROUP;
use bgd_shared::request::Stream;

use super::output::OutputFolder;
use crate::core::{AfterTask, RunPlace};

/// The lowest of the task's slots.
const SLOT: &str = "BGD_SLOT";

/// The number of its slots.
const SLOTS: &str = "BGD_SLOTS";

/// All its slots, separated by commas, if they fit into a variable.
const SLOT_LIST: &str = "BGD_SLOT_LIST";

const GROUP: &str = "BGD_GROUP";

/// The number of its attempt.
const ATTEMPT: &str = "BGD_ATTEMPT";

/// The ids of the tasks that it ran after, separated by spaces.
const AFTER: &str = "BGD_AFTER";

/// The prefix of the variables with the output paths of those tasks, numbered from 1.
const AFTER_FILE: &str = "BGD_AFTER_FILE_";

/// The maximum length of a variable in bytes (Linux: `MAX_ARG_STRLEN`, including its NUL).
const VARIABLE_BYTES: usize = 128 * 1024;

/// Reports whether this is the name of one of these variables.
pub fn is_variable(name: &str) -> bool {
    [SLOT, SLOTS, SLOT_LIST, GROUP, ATTEMPT, AFTER].contains(&name) || name.starts_with(AFTER_FILE)
}

/// Reports whether this is the name of a variable that contains a path, which is meaningless on another machine.
pub fn is_path(name: &str) -> bool {
    name.starts_with(AFTER_FILE)
}

/// Returns the variables of a process with this place.
pub fn variables(place: &RunPlace, folder: &OutputFolder) -> Vec<CString> {
    let RunPlace { slots, group, attempt, priority: _, after } = place;
    let mut list = vec![
        format!("{GROUP}={}", group.as_deref().unwrap_or(DEFAULT_GROUP)),
        format!("{SLOTS}={}", slots.len()),
    ];
    if let Some(first) = slots.first() {
        let all: Vec<_> = slots.iter().map(ToString::to_string).collect();
        list.push(format!("{SLOT}={first}"));
        // A longer variable would prevent the process from starting.
        list.extend(
            Some(format!("{SLOT_LIST}={}", all.join(","))).filter(|text| text.len() < VARIABLE_BYTES),
        );
    }
    list.extend(attempt.map(|attempt| format!("{ATTEMPT}={attempt}")));
    if !after.is_empty() {
        let ids: Vec<_> = after.iter().map(|other| other.id.to_string()).collect();
        list.push(format!("{AFTER}={}", ids.join(" ")));
        let files = after
            .iter()
            .zip(1..)
            .map(|(other, number)| format!("{AFTER_FILE}{number}={}", output_of(other, folder)));
        list.extend(files);
    }
    // Ids, group names and paths in our own folder contain no NUL.
    list.into_iter().filter_map(|variable| CString::new(variable).ok()).collect()
}

fn output_of(other: &AfterTask, folder: &OutputFolder) -> String {
    let files = match &other.task {
        Some(task) => folder.files_of(task.id, &task.spec),
        None => folder.files(other.id, false),
    };
    files.path(Stream::Stdout).to_string_lossy().into_owned()
}
