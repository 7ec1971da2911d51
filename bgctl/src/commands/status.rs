//! `status`: prints everything about a task.

use std::collections::VecDeque;

use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskRef;
use bgd_shared::request::{IdParams, TaskGet, TaskResult};
use bgd_shared::time::Timestamp;

use crate::cli::StatusArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::pick;
use crate::render::page;
use crate::render::wall::Clock;

/// Number of tasks requested at once, as each round trip takes time.
const AT_ONCE: usize = 64;

/// Prints a page per task.
pub fn run(args: StatusArgs, context: &mut Context) -> Result<Code, Failure> {
    let StatusArgs { ids: mut names, select } = args;
    // One of several selected tasks may have been cleared since. Of several named ones, each must be there.
    let cleared = [ErrorKind::TaskNotFound.as_str()];
    let (ids, left_out) = if names.len() > 1 {
        (pick::all(names, context)?, &[][..])
    } else {
        (pick::each(names.pop(), select, context)?, &cleared[..])
    };
    let mut ahead = Ahead::of(&ids);
    pick::for_each(ids, left_out, |id, before| {
        let result = match ahead.take(|all| context.link.call_together::<TaskGet>(all))? {
            Some(result) => result,
            // It was refused, and this says why.
            None => context.call::<TaskGet>(&IdParams { id })?,
        };
        if context.json() {
            return context.print_json(&result);
        }
        let between = if before > 0 { "\n" } else { "" };
        let page = page::task(&result.task, &Clock::system(Timestamp::now()));
        context.print(&format!("{between}{page}"))
    })?;
    Ok(Code::OK)
}

/// Requests tasks ahead, in their order.
struct Ahead {
    left: VecDeque<IdParams>,
    known: VecDeque<Option<TaskResult>>,
}

impl Ahead {
    fn of(ids: &[TaskRef]) -> Self {
        let left = ids.iter().map(|id| IdParams { id: id.clone() }).collect();
        Self { left, known: VecDeque::new() }
    }

    /// Returns the next task; `None` if the request for it was refused. `calls` makes several requests at once.
    fn take(
        &mut self,
        calls: impl FnOnce(&[IdParams]) -> Result<Vec<Option<TaskResult>>, Failure>,
    ) -> Result<Option<TaskResult>, Failure> {
        if self.known.is_empty() {
            let count = self.left.len().min(AT_ONCE);
            let all: Vec<IdParams> = self.left.drain(..count).collect();
            self.known.extend(calls(&all)?);
        }
        Ok(self.known.pop_front().flatten())
    }
}

#[cfg(test)]
mod tests {
    use bgd_shared::id::TaskId;
    use bgd_shared::task::Task;

    use super::*;
    use crate::render::samples;

    #[test]
    fn r113_pages_of_many_tasks_take_few_round_trips() {
        let ids: Vec<TaskId> = (0..150).map(TaskId::from_u128).collect();
        let mut ahead = Ahead::of(&ids.iter().copied().map(TaskRef::from).collect::<Vec<_>>());
        let (mut asked, gone) = (Vec::new(), ids[70]);
        let answer = |params: &IdParams| {
            let id = params.id.exact().expect("a whole id");
            (id != gone).then(|| TaskResult { task: Task { id, ..samples::task() } })
        };
        for id in &ids {
            let found = ahead.take(|all| {
                asked.push(all.len());
                Ok(all.iter().map(answer).collect())
            });
            let found = found.unwrap().map(|result| result.task.id);
            assert_eq!(found, Some(*id).filter(|id| *id != gone));
        }
        assert_eq!(asked, [64, 64, 22]);
    }
}
