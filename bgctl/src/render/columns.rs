//! The columns that a list can have, and the order of its rows (R166).

use std::cmp::Ordering;
use std::str::FromStr;

use bgd_shared::id::TaskId;
use bgd_shared::task::Task;
use bgd_shared::time::Timestamp;
use clap::ValueEnum;

/// A column of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Field {
    /// The host, if several were asked.
    Host,
    /// The short id.
    Id,
    /// The status with its details.
    Status,
    /// Time since the submission.
    Age,
    /// Run time.
    Time,
    /// Progress, as the output says.
    Progress,
    /// Parent session.
    Session,
    /// Group.
    Group,
    /// Batch.
    Batch,
    /// Tags.
    Tags,
    /// Agent.
    Agent,
    /// Description.
    Description,
}

impl Field {
    /// The columns without `--columns`.
    pub const USUAL: [Self; 6] =
        [Self::Host, Self::Id, Self::Status, Self::Age, Self::Time, Self::Description];
}

/// By what a list is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    field: Field,
    is_reverse: bool,
}

impl FromStr for Sort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.strip_prefix('-').unwrap_or(text);
        let field = Field::from_str(name, true).ok().filter(|field| compared(*field));
        let field = field.ok_or_else(|| {
            let names = Field::value_variants().iter().filter(|field| compared(**field));
            let names = names.filter_map(|field| Some(field.to_possible_value()?.get_name().to_owned()));
            format!("one of {}; a `-` before it reverses the order", names.collect::<Vec<_>>().join(", "))
        })?;
        Ok(Self { field, is_reverse: name.len() < text.len() })
    }
}

/// Whether tasks can be sorted by a column.
const fn compared(field: Field) -> bool {
    !matches!(field, Field::Host | Field::Progress)
}

impl Sort {
    /// Sorts tasks; those that are equal keep their order.
    pub fn apply(self, tasks: &mut [Task], now: Timestamp) {
        tasks.sort_by(|one, other| {
            let order = compare(self.field, one, other, now);
            if self.is_reverse { order.reverse() } else { order }
        });
    }
}

fn compare(field: Field, one: &Task, other: &Task, now: Timestamp) -> Ordering {
    let ran = |task: &Task| {
        let started = task.started_at?;
        Some(task.completed_at.unwrap_or(now).unix_ms().saturating_sub(started.unix_ms()))
    };
    match field {
        Field::Id => one.id.as_u128().cmp(&other.id.as_u128()),
        Field::Status => one.status.cmp(&other.status),
        // The youngest first.
        Field::Age => other.created_at.cmp(&one.created_at),
        Field::Time => ran(one).cmp(&ran(other)),
        Field::Session => one.session.cmp(&other.session),
        Field::Group => one.group.cmp(&other.group),
        Field::Batch => one.batch.map(TaskId::as_u128).cmp(&other.batch.map(TaskId::as_u128)),
        Field::Tags => one.tags.cmp(&other.tags),
        Field::Agent => one.agent.cmp(&other.agent),
        Field::Description => one.description.cmp(&other.description),
        Field::Host | Field::Progress => Ordering::Equal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples::task;

    #[test]
    fn r166_tasks_are_sorted_by_any_column() {
        let now = Timestamp::from_unix_ms(2_000_000);
        let named = |name: &str, started: Option<i64>| Task {
            description: name.into(),
            started_at: started.map(|second| Timestamp::from_unix_ms(second * 1000)),
            ..task()
        };
        let mut tasks = [named("b", Some(1_500)), named("c", None), named("a", Some(1_900))];
        let mut sorted = |by: &str| {
            by.parse::<Sort>().unwrap().apply(&mut tasks, now);
            tasks.iter().map(|task| task.description.clone()).collect::<String>()
        };
        assert_eq!(sorted("description"), "abc");
        assert_eq!(sorted("-description"), "cba");
        assert_eq!(sorted("time"), "cab", "what never started has the least");
        assert_eq!(sorted("age"), "cab", "equal ones keep their order");
        for wrong in ["host", "progress", "cpu", "", "--age"] {
            let error = wrong.parse::<Sort>().unwrap_err();
            assert!(error.starts_with("one of id, status, age, time, session"), "{error}");
        }
    }
}
