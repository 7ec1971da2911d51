//! The graph of dependencies around a task, as lines: what it starts after, the task, and what starts after it.

use std::collections::{HashMap, HashSet};

use bgd_shared::id::TaskId;

use super::model::Model;

/// The deepest level that is drawn.
const DEPTH: usize = 12;

/// The most lines.
const LINES: usize = 1000;

/// Returns the lines. Tasks that were deleted are shown by their id alone.
pub fn lines(model: &Model, id: TaskId) -> Vec<String> {
    let mut lines = Vec::new();
    let mut seen = HashSet::new();
    above(model, id, 0, &mut seen, &mut lines);
    // The farthest condition comes first.
    lines.reverse();
    lines.push(format!("> {}", name(model, id)));
    let mut seen = HashSet::from([id]);
    below(model, &model.dependents(), id, 1, &mut seen, &mut lines);
    if lines.len() == 1 {
        lines.push("  it depends on no task, and none depends on it".to_owned());
    }
    lines
}

fn name(model: &Model, id: TaskId) -> String {
    match model.row(id) {
        Some(row) => format!("{} {} {}", id.short(), row.state, row.description),
        None => format!("{} (deleted)", id.short()),
    }
}

fn above(model: &Model, id: TaskId, depth: usize, seen: &mut HashSet<TaskId>, lines: &mut Vec<String>) {
    let Some(row) = model.row(id) else { return };
    for after in &row.after {
        if depth < DEPTH && lines.len() < LINES && seen.insert(*after) {
            lines.push(format!("{}^ {}", "  ".repeat(depth + 1), name(model, *after)));
            above(model, *after, depth + 1, seen, lines);
        }
    }
}

fn below(
    model: &Model,
    dependents: &HashMap<TaskId, Vec<TaskId>>,
    id: TaskId,
    depth: usize,
    seen: &mut HashSet<TaskId>,
    lines: &mut Vec<String>,
) {
    if depth > DEPTH {
        return;
    }
    for next in dependents.get(&id).into_iter().flatten() {
        if lines.len() < LINES && seen.insert(*next) {
            lines.push(format!("{}v {}", "  ".repeat(depth), name(model, *next)));
            below(model, dependents, *next, depth + 1, seen, lines);
        }
    }
}
