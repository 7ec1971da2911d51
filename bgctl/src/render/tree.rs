//! Computes the tree of tasks by their dependencies, with the lines to draw in front of the ids.

use std::collections::HashMap;

use bgd_shared::id::TaskId;
use bgd_shared::task::Task;

/// The line-drawing strings of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    branch: &'static str,
    last: &'static str,
    down: &'static str,
}

/// Box-drawing characters.
pub const BOXES: Lines = Lines { branch: "├─ ", last: "└─ ", down: "│  " };

/// ASCII characters, which every terminal supports.
pub const ASCII: Lines = Lines { branch: "|- ", last: "`- ", down: "|  " };

/// Maximum indentation level; deeper nodes are drawn at this level.
const DEPTH: usize = 12;

/// A task in a tree.
#[derive(Debug, PartialEq, Eq)]
pub struct Node {
    /// Index of the task in the list.
    pub place: usize,
    /// Prefix to draw before the task.
    pub before: String,
    /// Further tasks that the task starts after, besides its parent.
    pub others: Vec<TaskId>,
}

/// Returns the tasks in tree order: each task once, below the first of its dependencies that is in the list; tasks
/// without such a parent are roots, in list order.
pub fn nodes(tasks: &[Task], lines: Lines) -> Vec<Node> {
    let places: HashMap<TaskId, usize> =
        tasks.iter().enumerate().map(|(place, task)| (task.id, place)).collect();
    let parents: Vec<Option<TaskId>> = tasks
        .iter()
        .map(|task| {
            task.after.iter().map(|after| after.id).find(|id| places.contains_key(id) && *id != task.id)
        })
        .collect();
    let mut children: HashMap<TaskId, Vec<usize>> = HashMap::new();
    for (place, parent) in parents.iter().enumerate() {
        if let Some(parent) = parent {
            children.entry(*parent).or_default().push(place);
        }
    }
    let mut nodes = Vec::with_capacity(tasks.len());
    let mut drawn = vec![false; tasks.len()];
    let roots = (0..tasks.len()).filter(|place| parents[*place].is_none());
    // Tasks can form a cycle if one was edited between the fetches of two pages; the full range visits those too.
    for root in roots.chain(0..tasks.len()) {
        // An explicit stack, as chains may be long; the next node is at the end.
        let mut next = vec![(root, String::new(), String::new(), 0)];
        while let Some((place, before, below, depth)) = next.pop() {
            if std::mem::replace(&mut drawn[place], true) {
                continue;
            }
            let task = &tasks[place];
            let parent = if depth > 0 { parents[place] } else { None };
            let others = task.after.iter().map(|after| after.id).filter(|id| Some(*id) != parent);
            // A root has no parent line, and its status already shows what it waits for.
            let others = if depth > 0 { others.collect() } else { Vec::new() };
            nodes.push(Node { place, before, others });
            let found = children.get(&task.id).map(Vec::as_slice).unwrap_or_default();
            for (number, child) in found.iter().enumerate().rev() {
                let is_last = number + 1 == found.len();
                let (line, rest) = if is_last { (lines.last, "   ") } else { (lines.branch, lines.down) };
                let deeper = if depth + 1 < DEPTH { format!("{below}{rest}") } else { below.clone() };
                next.push((*child, format!("{below}{line}"), deeper, depth + 1));
            }
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;
    use bgd_shared::order::{Condition, Dependency};

    fn id(number: u128) -> TaskId {
        TaskId::from_u128(number << 96)
    }

    fn task(number: u128, after: &[u128]) -> Task {
        let after =
            after.iter().map(|other| Dependency { id: id(*other), condition: Condition::Ok, met: false });
        Task { id: id(number), after: after.collect(), ..samples::task() }
    }

    fn drawn(tasks: &[Task], lines: Lines) -> Vec<String> {
        let shown = |node: Node| {
            let others: Vec<String> = node.others.iter().map(|id| id.short()).collect();
            format!("{}{}{}", node.before, tasks[node.place].id.short(), others.join("+"))
        };
        nodes(tasks, lines).into_iter().map(shown).collect()
    }

    #[test]
    fn r115_tree_shows_each_task_once_below_a_dependency() {
        let tasks =
            [task(9, &[]), task(5, &[3, 2]), task(4, &[2]), task(3, &[1]), task(2, &[1]), task(1, &[])];
        assert_eq!(
            drawn(&tasks, BOXES),
            [
                "00000009",
                "00000001",
                "├─ 00000003",
                "│  └─ 0000000500000002",
                "└─ 00000002",
                "   └─ 00000004",
            ]
        );
        assert_eq!(drawn(&tasks, ASCII)[2..4], ["|- 00000003", "|  `- 0000000500000002"]);
    }

    #[test]
    fn r115_tree_ignores_unlisted_dependencies_and_breaks_cycles() {
        assert_eq!(drawn(&[task(2, &[7])], BOXES), ["00000002"]);
        assert_eq!(drawn(&[task(1, &[1])], BOXES), ["00000001"]);
        let circle = [task(1, &[2]), task(2, &[1])];
        assert_eq!(drawn(&circle, BOXES), ["00000001", "└─ 00000002"]);
    }

    #[test]
    fn r115_tree_draws_chain_of_10000_tasks_with_bounded_indent() {
        let chain: Vec<Task> = (1..=10_000).map(|number| task(number, &[number + 1])).collect();
        let drawn = nodes(&chain, ASCII);
        assert_eq!(drawn.len(), chain.len());
        assert_eq!(drawn[0].place, 9_999);
        assert!(drawn.iter().all(|node| node.before.len() <= 3 * DEPTH));
    }
}
