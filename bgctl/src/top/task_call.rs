//! Calls about tasks that keys request, and how they are divided among hosts.

use std::collections::BTreeMap;

use bgd_shared::id::TaskId;

use super::task_key::{HostNo, TaskKey};

/// A call about tasks: of several hosts as requested by a key, or by their ids for a single host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskCall<T = TaskKey> {
    /// Cancel them.
    Cancel(Vec<T>),
    /// End them by SIGKILL.
    Kill(Vec<T>),
    /// Submit them again as new tasks.
    Rerun(Vec<T>),
    /// Keep them from starting.
    Hold(Vec<T>),
    /// Let them start.
    Release(Vec<T>),
    /// Answer a question with one of its options.
    Answer {
        /// The task whose agent asks the question.
        task: T,
        /// The number of the question.
        request: u64,
        /// The id of the option; `None` denies although no option does that.
        option: Option<String>,
    },
    /// Send a follow-up prompt.
    Prompt(T, String),
}

impl TaskCall {
    /// Divides the call among the hosts of the tasks.
    pub fn by_host(self) -> Vec<(HostNo, TaskCall<TaskId>)> {
        match self {
            Self::Cancel(tasks) => parts(tasks, TaskCall::Cancel),
            Self::Kill(tasks) => parts(tasks, TaskCall::Kill),
            Self::Rerun(tasks) => parts(tasks, TaskCall::Rerun),
            Self::Hold(tasks) => parts(tasks, TaskCall::Hold),
            Self::Release(tasks) => parts(tasks, TaskCall::Release),
            Self::Answer { task: TaskKey { host, id }, request, option } => {
                vec![(host, TaskCall::Answer { task: id, request, option })]
            }
            Self::Prompt(TaskKey { host, id }, prompt) => vec![(host, TaskCall::Prompt(id, prompt))],
        }
    }
}

/// Divides the tasks by host, keeping their order.
fn parts(tasks: Vec<TaskKey>, act: fn(Vec<TaskId>) -> TaskCall<TaskId>) -> Vec<(HostNo, TaskCall<TaskId>)> {
    let mut parts: BTreeMap<HostNo, Vec<TaskId>> = BTreeMap::new();
    for TaskKey { host, id } in tasks {
        parts.entry(host).or_default().push(id);
    }
    parts.into_iter().map(|(host, ids)| (host, act(ids))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r144_call_is_split_by_host() {
        let id = TaskId::from_u128;
        let marked = [(1, 5), (0, 7), (1, 3)].map(|(host, number)| HostNo(host).task(id(number)));
        let parts = TaskCall::Cancel(marked.to_vec()).by_host();
        assert_eq!(
            parts,
            [(HostNo(0), TaskCall::Cancel(vec![id(7)])), (HostNo(1), TaskCall::Cancel(vec![id(5), id(3)]))]
        );
        let prompt = TaskCall::Prompt(HostNo(3).task(id(1)), "go on".into());
        assert_eq!(prompt.by_host(), [(HostNo(3), TaskCall::Prompt(id(1), "go on".into()))]);
    }
}
