//! What a list does not have of running tasks: their resource usage and their progress, which take requests of their own.

use std::collections::HashMap;

use bgd_shared::id::TaskId;
use bgd_shared::limits::USAGES;
use bgd_shared::request::{OutputParams, OutputResult, UsageParams, UsageResult};
use bgd_shared::task::{Status, Task};

use crate::exit::Code;
use crate::failure::Failure;
use crate::progress::percent::{LINE_BYTES, in_output};
use crate::render::columns::Measured;

/// Maximum number of running tasks whose output is searched for progress.
const LOOKED_AT: usize = 50;

/// Number of outputs requested at once: to a host far away, each round trip takes long.
const AT_ONCE: usize = 10;

/// Reports whether a task runs, so that it can be measured.
pub fn is_running(task: &Task) -> bool {
    matches!(task.status, Status::Running | Status::Resumed)
}

/// Measures the current usage of running tasks.
pub fn measured(
    tasks: &[Task],
    mut call: impl FnMut(&UsageParams) -> Result<UsageResult, Failure>,
) -> Result<Measured, Failure> {
    let ids: Vec<_> = tasks.iter().filter(|task| is_running(task)).map(|task| task.id.into()).collect();
    let mut measured = Measured::new();
    for ids in ids.chunks(USAGES) {
        match call(&UsageParams { ids: ids.to_vec() }) {
            Ok(answer) => measured.extend(answer.usages.into_iter().map(|usage| (usage.id, usage))),
            // One of the tasks was cleared in the meantime.
            Err(failure) if failure.code == Code::NO_TASK => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(measured)
}

/// Looks up the progress of running tasks. `calls` makes several calls, and answers `None` for those that are refused:
/// the task was cleared in the meantime, or its output can't be read; the others can.
pub fn percents(
    tasks: &[Task],
    mut calls: impl FnMut(&[OutputParams]) -> Result<Vec<Option<OutputResult>>, Failure>,
) -> Result<HashMap<TaskId, u8>, Failure> {
    let running = tasks.iter().filter(|task| is_running(task)).take(LOOKED_AT);
    let ids: Vec<TaskId> = running.map(|task| task.id).collect();
    let mut percents = HashMap::new();
    for ids in ids.chunks(AT_ONCE) {
        let params = |id: &TaskId| OutputParams {
            id: (*id).into(),
            offset: Some(-LINE_BYTES),
            limit: u64::try_from(LINE_BYTES).ok(),
            stream: None,
        };
        let answers = calls(&ids.iter().map(params).collect::<Vec<_>>())?;
        let known = ids.iter().zip(answers).filter_map(|(id, answer)| Some((*id, in_output(answer?)?)));
        percents.extend(known);
    }
    Ok(percents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;

    #[test]
    fn r165_progress_of_many_tasks_takes_few_round_trips() {
        let task =
            |number: u128| Task { id: TaskId::from_u128(number), status: Status::Running, ..samples::task() };
        let tasks: Vec<Task> = (0..60).map(task).collect();
        let mut asked = Vec::new();
        let found = percents(&tasks, |all| {
            asked.push(all.len());
            Ok(all.iter().map(|_| None).collect())
        });
        assert!(found.unwrap().is_empty());
        assert_eq!(asked, [AT_ONCE; LOOKED_AT / AT_ONCE]);
    }
}
