//! Calls about tasks that keys request, and how they are divided among hosts.

use std::collections::BTreeMap;

use bgd_shared::id::TaskId;

use super::task_key::{HostNo, TaskKey};

/// A call about tasks: of several hosts as requested by a key, or by their ids for a single host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act<T = TaskKey> {
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
        /// The id of the option.
        option: String,
    },
    /// Send a follow-up prompt.
    Prompt(T, String),
}

impl Act {
    /// Divides the call among the hosts of the tasks.
    pub fn by_host(self) -> Vec<(HostNo, Act<TaskId>)> {
        match self {
            Self::Cancel(tasks) => parts(tasks, Act::Cancel),
            Self::Kill(tasks) => parts(tasks, Act::Kill),
            Self::Rerun(tasks) => parts(tasks, Act::Rerun),
            Self::Hold(tasks) => parts(tasks, Act::Hold),
            Self::Release(tasks) => parts(tasks, Act::Release),
            Self::Answer { task: TaskKey { host, id }, request, option } => {
                vec![(host, Act::Answer { task: id, request, option })]
            }
            Self::Prompt(TaskKey { host, id }, prompt) => vec![(host, Act::Prompt(id, prompt))],
        }
    }
}

/// Divides the tasks by host, keeping their order.
fn parts(tasks: Vec<TaskKey>, act: fn(Vec<TaskId>) -> Act<TaskId>) -> Vec<(HostNo, Act<TaskId>)> {
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
        let parts = Act::Cancel(marked.to_vec()).by_host();
        assert_eq!(
            parts,
            [(HostNo(0), Act::Cancel(vec![id(7)])), (HostNo(1), Act::Cancel(vec![id(5), id(3)]))]
        );
        let prompt = Act::Prompt(HostNo(3).task(id(1)), "go on".into());
        assert_eq!(prompt.by_host(), [(HostNo(3), Act::Prompt(id(1), "go on".into()))]);
    }
}
