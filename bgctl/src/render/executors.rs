//! Renders the list of executors: a table with notes for people, tab-separated columns for programs.

use std::fmt::Write as _;

use bgd_shared::request::ExecutorInfo;
use comfy_table::Color;

use super::list_format::ListFormat;
use super::table::coloured;
use super::{clean, clean_lines};

const HEADER: [&str; 7] = ["NAME", "TYPE", "HOST", "PENDING", "RUNNING", "STATE", "VERSION"];

/// Indices of the columns that only a check fills.
const OF_CHECK: std::ops::Range<usize> = 5..7;

/// Index of the state column.
const STATE: usize = 5;

/// Lists the executors in the given order.
pub fn list(executors: &[ExecutorInfo], checked: bool, format: &ListFormat) -> String {
    if format.table {
        let left_out = (!checked).then_some(OF_CHECK);
        let rows = executors.iter().map(|executor| (columns(executor), colour(executor)));
        return coloured(HEADER, left_out.as_ref(), STATE, rows, format) + &notes(executors);
    }
    let mut text = String::new();
    for executor in executors {
        let mut columns = columns(executor);
        if let Some(problem) = executor.check.as_ref().and_then(|check| check.problem.as_ref()) {
            // Keep everything in one column, so that each executor stays on one line.
            let _ = write!(columns[STATE], ": {}", clean(problem));
        }
        text.push_str(&columns.join("\t"));
        if checked {
            let _ = write!(text, "\t{}", more(executor));
        }
        text.push('\n');
    }
    text
}

/// Returns additional findings of a check on one line: how to fix a problem, and the executor's resources.
fn more(executor: &ExecutorInfo) -> String {
    let Some(check) = &executor.check else { return "-".to_owned() };
    let facts = check.facts.iter().map(|(fact, value)| format!("{}: {}", clean(fact), clean(value)));
    let all: Vec<String> = check.hint.iter().map(|hint| clean(hint)).chain(facts).collect();
    if all.is_empty() { "-".to_owned() } else { all.join("; ") }
}

fn colour(executor: &ExecutorInfo) -> Color {
    if executor.check.as_ref().is_some_and(|check| check.ok) { Color::Green } else { Color::Red }
}

/// Renders notes that do not fit into the table: an executor's resources, and its problem with the fix.
fn notes(executors: &[ExecutorInfo]) -> String {
    let mut text = String::new();
    for executor in executors {
        let Some(check) = &executor.check else { continue };
        let name = clean(&executor.name);
        if let Some(problem) = &check.problem {
            let _ = writeln!(text, "\n{name}: {}", clean_lines(problem));
        } else if !check.facts.is_empty() {
            let _ = writeln!(text, "\n{name}:");
        }
        for (fact, value) in &check.facts {
            let _ = writeln!(text, "  {}: {}", clean(fact), clean(value));
        }
        if let Some(hint) = &check.hint {
            let _ = writeln!(text, "  {}", clean_lines(hint));
        }
    }
    text
}

/// Returns name, type, host, the numbers of pending and running tasks, state and version.
fn columns(executor: &ExecutorInfo) -> [String; 7] {
    let check = executor.check.as_ref();
    let state = check.map_or("-", |check| if check.ok { "works" } else { "fails" });
    [
        clean(&executor.name),
        clean(&executor.kind),
        clean(executor.host.as_deref().unwrap_or("-")),
        executor.pending.to_string(),
        executor.running.to_string(),
        state.to_owned(),
        clean(check.and_then(|check| check.version.as_deref()).unwrap_or("-")),
    ]
}

#[cfg(test)]
mod tests {
    use bgd_shared::request::ExecutorCheck;

    use super::*;

    #[test]
    fn r145_executor_check_shows_problem_and_hint() {
        let far = |check| ExecutorInfo {
            name: "far".into(),
            kind: "ssh".into(),
            host: Some("me@far".into()),
            pending: 1,
            running: 2,
            check,
        };
        let plain = ListFormat { table: false, colour: false, ..ListFormat::of_tests() };
        assert_eq!(list(&[far(None)], false, &plain), "far\tssh\tme@far\t1\t2\t-\t-\n");
        let fails = ExecutorCheck {
            problem: Some("no bgctl there".into()),
            hint: Some("install it".into()),
            ..ExecutorCheck::default()
        };
        let line = list(&[far(Some(fails.clone()))], true, &plain);
        assert_eq!(line, "far\tssh\tme@far\t1\t2\tfails: no bgctl there\t-\tinstall it\n");
        let shown = list(&[far(Some(fails))], true, &ListFormat { table: true, ..plain.clone() });
        assert!(shown.ends_with("\nfar: no bgctl there\n  install it\n"), "{shown}");
        let works = ExecutorCheck {
            ok: true,
            version: Some("1.2".into()),
            facts: vec![("answer".into(), "3 ms".into())],
            ..ExecutorCheck::default()
        };
        let line = list(&[far(Some(works.clone())), far(None)], true, &plain);
        assert_eq!(
            line,
            "far\tssh\tme@far\t1\t2\tworks\t1.2\tanswer: 3 ms\nfar\tssh\tme@far\t1\t2\t-\t-\t-\n"
        );
        let shown = list(&[far(Some(works))], true, &ListFormat { table: true, ..plain.clone() });
        assert!(shown.contains("works") && shown.ends_with("\nfar:\n  answer: 3 ms\n"), "{shown}");
    }
}
