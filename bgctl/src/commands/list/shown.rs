//! How `list` shows tasks, and the extra requests needed for that: resource usage and progress. Prints nothing.

use std::collections::HashMap;

use bgd_shared::id::TaskId;
use bgd_shared::limits::USAGES;
use bgd_shared::request::{OutputParams, OutputResult, TaskOutput, TaskUsage, UsageParams, UsageResult};
use bgd_shared::task::{Status, Task};
use bgd_shared::time::Timestamp;

use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::percent::{LINE_BYTES, in_output};
use crate::render::columns::{Field, Measured, Sort};
use crate::render::list_format::{ListFormat, lines};
use crate::render::table::{list, tree};

/// How the tasks are shown.
pub struct Shown {
    /// The columns; empty for the default ones.
    pub columns: Vec<Field>,
    /// The sort order; `None` to keep the tasks as they came.
    pub sort: Option<Sort>,
    /// Whether to draw a tree.
    pub tree: bool,
    /// Maximum number of tasks.
    pub most: usize,
}

impl Shown {
    /// Sorts the tasks as requested.
    pub fn sort(&self, tasks: &mut [Task], measured: &Measured) {
        if let Some(sort) = self.sort {
            sort.apply(tasks, measured, Timestamp::now());
        }
    }

    /// Measures the usage of running tasks, if it is shown or sorted by.
    pub fn measured(&self, tasks: &[Task], context: &mut Context) -> Result<Measured, Failure> {
        if self.is_measured() {
            measured(tasks, |params| context.call::<TaskUsage>(params))
        } else {
            Ok(Measured::new())
        }
    }

    /// Reports whether the usage of running tasks is shown or sorted by.
    pub fn is_measured(&self) -> bool {
        self.columns.iter().copied().any(Field::is_measured) || self.sort.is_some_and(Sort::is_measured)
    }

    /// Sets the columns, and adds that of the progress if any is known.
    pub fn set_columns(&self, format: &mut ListFormat) {
        if !self.columns.is_empty() {
            format.columns.clone_from(&self.columns);
            // A tree is drawn in the id column.
            if self.tree && !format.columns.contains(&Field::Id) {
                format.columns.insert(0, Field::Id);
            }
        } else if !format.percents.is_empty() {
            let at = format.columns.iter().position(|field| *field == Field::Description);
            format.columns.insert(at.unwrap_or(0), Field::Progress);
        }
    }

    /// Renders the tasks, with their progress if it is visible.
    pub fn text(
        &self,
        tasks: &mut [Task],
        format: &mut ListFormat,
        context: &mut Context,
    ) -> Result<String, Failure> {
        format.measured = self.measured(tasks, context)?;
        self.sort(tasks, &format.measured);
        if format.table || self.columns.contains(&Field::Progress) {
            format.percents = percents(tasks, |all| context.link.call_together::<TaskOutput>(all))?;
        }
        self.set_columns(format);
        Ok(if self.tree { tree(tasks, lines(), format) } else { list(tasks, format) })
    }
}

/// Maximum number of running tasks whose output is searched for progress.
const LOOKED_AT: usize = 50;

/// Number of outputs requested at once: to a host far away, each round trip takes long.
const AT_ONCE: usize = 10;

fn is_running(task: &Task) -> bool {
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
