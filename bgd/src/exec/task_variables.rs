//! The variables that describe a process's place among other tasks (R102, R104). If the submitter is a task itself, its
//! own variables are not passed on.

use std::ffi::CString;

use bgd_shared::order::DEFAULT_GROUP;
use bgd_shared::request::Stream;
use bgd_shared::text::Env;

use super::output::OutputFolder;
use crate::core::{AfterTask, RunPlace, Spec};

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

/// The beginning of the tag by which a daemon marks its tasks on another machine, and of their parent session. The tasks
/// that those submit in turn do not inherit the tag.
pub const DAEMON_TAG: &str = "bgd:";

/// Returns the variables of a task that the daemon of another machine has submitted: it has its place there, and the
/// slots and groups here mean nothing to its user. `None` for any other task, as its submitter may be a task, which has
/// variables of its own.
pub fn given(spec: &Spec, env: &Env) -> Option<Vec<CString>> {
    let is_of_daemon = spec.session.as_ref().is_some_and(|session| session.starts_with(DAEMON_TAG))
        && spec.tags.iter().any(|tag| tag.starts_with(DAEMON_TAG));
    // An earlier version sends none of them.
    if !is_of_daemon || env.get(GROUP).is_none() {
        return None;
    }
    let given = env.0.iter().filter(|(name, _)| is_variable(name));
    let of = |name: &str, value: &[u8]| CString::new([name.as_bytes(), b"=", value].concat()).ok();
    Some(given.filter_map(|(name, value)| of(name, value.as_bytes())).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r145_only_a_task_of_another_daemon_brings_its_variables_along() {
        let env = |list: &[(&str, &str)]| {
            list.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        let sent: Env = env(&[("A", "1"), (GROUP, "far"), (SLOTS, "0")]);
        let tags = ["bgd:here:/run/bgd.sock".into()];
        let session = Some("bgd:3f2a".into());
        let of_daemon = Spec { tags: tags.clone().into(), session, ..Spec::of_daemon() };
        let given_there = given(&of_daemon, &sent).unwrap();
        assert_eq!(given_there, [c"BGD_GROUP=far".to_owned(), c"BGD_SLOTS=0".to_owned()]);
        assert_eq!(given(&of_daemon, &env(&[(SLOT, "1")])), None, "an earlier version does not send them");
        let of_a_task = Spec { tags: ["mine".into()].into(), ..Spec::of_daemon() };
        assert_eq!(given(&of_a_task, &sent), None);
        let tagged = Spec { tags: tags.into(), session: Some("work".into()), ..Spec::of_daemon() };
        assert_eq!(given(&tagged, &sent), None, "anybody may use such a tag");
    }
}
