//! Determines the tasks that are left after a call that named all of them was refused because some were cleared.

use bgd_shared::id::TaskRef;
use bgd_shared::request::BlockResult;

use crate::failure::Failure;

/// Returns the tasks that are left, in the given order. `look` returns the state of all given tasks, and fails if any
/// of them is missing.
///
/// # Errors
/// `look` fails for another reason.
pub fn remaining(
    ids: &[TaskRef],
    look: &mut dyn FnMut(&[TaskRef]) -> Result<BlockResult, Failure>,
) -> Result<BlockResult, Failure> {
    let nothing = BlockResult {
        tasks: Vec::new(),
        timed_out: false,
        finished: Vec::new(),
        active: Vec::new(),
        cleared: None,
    };
    if ids.is_empty() {
        return Ok(nothing);
    }
    match look(ids) {
        Err(failure) if failure.is_of_missing_task() && ids.len() == 1 => Ok(nothing),
        // The refusal names only one of those that are missing.
        Err(failure) if failure.is_of_missing_task() => {
            let (first, second) = ids.split_at(ids.len() / 2);
            let mut all = remaining(first, look)?;
            let rest = remaining(second, look)?;
            all.tasks.extend(rest.tasks);
            all.finished.extend(rest.finished);
            all.active.extend(rest.active);
            Ok(all)
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use bgd_shared::id::TaskId;

    use super::*;
    use crate::exit::Code;
    use crate::render::samples::task;

    #[test]
    fn r126_tasks_that_are_left_are_found_in_order_by_few_calls() {
        let missing = [3u128, 4, 900];
        let ids: Vec<TaskRef> = (0..1000).map(|number| TaskId::from_u128(number).into()).collect();
        let mut calls = 0;
        let left = remaining(&ids, &mut |ids| {
            calls += 1;
            let ids: Vec<TaskId> = ids.iter().filter_map(TaskRef::exact).collect();
            if ids.iter().any(|id| missing.iter().any(|missing| *id == TaskId::from_u128(*missing))) {
                return Err(Failure::new(Code::NO_TASK, "task_not_found", "gone"));
            }
            let tasks = ids.iter().map(|id| bgd_shared::task::Task { id: *id, ..task() }).collect();
            Ok(BlockResult { tasks, timed_out: false, finished: ids, active: Vec::new(), cleared: None })
        });
        let left = left.unwrap();
        let expected: Vec<TaskId> =
            (0..1000).filter(|number| !missing.contains(number)).map(TaskId::from_u128).collect();
        assert_eq!(left.finished, expected);
        assert_eq!(left.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), expected);
        assert!(calls < 60, "{calls}");
        let none = remaining(&ids, &mut |_| Err(Failure::new(Code::NO_TASK, "task_not_found", "gone")));
        assert!(none.unwrap().tasks.is_empty());
        let refused = remaining(&ids, &mut |_| Err(Failure::usage("no")));
        assert_eq!(refused.unwrap_err(), Failure::usage("no"));
    }
}
