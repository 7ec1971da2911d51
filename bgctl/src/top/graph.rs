//! The dependency graph around a task, as lines: the tasks it starts after, the task itself, and those that start after
//! it.

use std::collections::{HashMap, HashSet};

use super::model::Model;
use super::task_key::TaskKey;

/// Maximum depth drawn.
const DEPTH: usize = 12;

/// Maximum number of lines.
const LINES: usize = 1000;

/// Returns the lines. Deleted tasks are shown only by their ids.
pub fn lines(model: &Model, key: TaskKey) -> Vec<String> {
    let mut lines = Vec::new();
    let mut seen = HashSet::new();
    above(model, key, 0, &mut seen, &mut lines);
    // The most distant condition comes first.
    lines.reverse();
    lines.push(format!("> {}", name(model, key)));
    let mut seen = HashSet::from([key]);
    below(model, &model.dependents(), key, 1, &mut seen, &mut lines);
    if lines.len() == 1 {
        lines.push("  it depends on no task, and none depends on it".to_owned());
    }
    lines
}

fn name(model: &Model, key: TaskKey) -> String {
    match model.row(key) {
        Some(row) => format!("{} {} {}", key.short(), row.state, row.description),
        None => format!("{} (deleted)", key.short()),
    }
}

fn above(model: &Model, key: TaskKey, depth: usize, seen: &mut HashSet<TaskKey>, lines: &mut Vec<String>) {
    let Some(row) = model.row(key) else { return };
    for after in row.after.iter().map(|id| row.host.task(*id)) {
        if depth < DEPTH && lines.len() < LINES && seen.insert(after) {
            lines.push(format!("{}^ {}", "  ".repeat(depth + 1), name(model, after)));
            above(model, after, depth + 1, seen, lines);
        }
    }
}

fn below(
    model: &Model,
    dependents: &HashMap<TaskKey, Vec<TaskKey>>,
    key: TaskKey,
    depth: usize,
    seen: &mut HashSet<TaskKey>,
    lines: &mut Vec<String>,
) {
    if depth > DEPTH {
        return;
    }
    for next in dependents.get(&key).into_iter().flatten() {
        if lines.len() < LINES && seen.insert(*next) {
            lines.push(format!("{}v {}", "  ".repeat(depth), name(model, *next)));
            below(model, dependents, *next, depth + 1, seen, lines);
        }
    }
}
