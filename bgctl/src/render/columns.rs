//! The columns available for a list, and the order of its rows (R166).

use std::cmp::Ordering;
use std::collections::HashMap;
use std::str::FromStr;

use bgd_shared::consumption::Cost;
use bgd_shared::id::TaskId;
use bgd_shared::task::Task;
use bgd_shared::time::Timestamp;
use bgd_shared::usage::LiveUsage;
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
    /// Progress, as shown in the output.
    Progress,
    /// CPU time.
    Cpu,
    /// Memory: now, or the peak of an ended task.
    Memory,
    /// Bytes written to disks by an ended task.
    Written,
    /// Tokens that the agent has consumed, in all runs.
    Tokens,
    /// How full the agent's context is.
    Context,
    /// Cost of the agent's work.
    Cost,
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
    /// The default columns.
    pub const DEFAULT: [Self; 6] =
        [Self::Host, Self::Id, Self::Status, Self::Age, Self::Time, Self::Description];

    /// Reports whether the column requires measuring running tasks.
    pub const fn is_measured(self) -> bool {
        matches!(self, Self::Cpu | Self::Memory)
    }

    /// Returns the name by which it is chosen.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Current usage of running tasks, where it was measured.
pub type Measured = HashMap<TaskId, LiveUsage>;

/// Returns the CPU time of the latest run, so far or in all, in milliseconds.
pub fn cpu_ms(task: &Task, measured: &Measured) -> Option<u64> {
    let live = measured.get(&task.id).map(|live| live.user_ms.saturating_add(live.system_ms));
    live.or_else(|| Some(task.usage.as_ref()?.cpu_ms()))
}

/// Returns the current memory usage of a task, or its peak, in bytes.
pub fn memory_bytes(task: &Task, measured: &Measured) -> Option<u64> {
    measured.get(&task.id).map(|live| live.memory_bytes).or_else(|| task.usage.as_ref()?.peak_memory_bytes)
}

/// Returns the bytes that the latest run has written.
pub fn written_bytes(task: &Task) -> Option<u64> {
    Some(task.usage.as_ref()?.written_bytes)
}

/// Returns the tokens that an agent has consumed.
pub fn tokens(task: &Task) -> Option<u64> {
    task.agent_usage.as_ref()?.tokens()
}

/// Returns how full an agent's context is, in percent.
pub fn context_percent(task: &Task) -> Option<u64> {
    task.agent_usage.as_ref()?.context_percent()
}

/// Returns the cost of an agent's work.
pub fn cost(task: &Task) -> Option<&Cost> {
    task.agent_usage.as_ref()?.cost.as_ref()
}

/// A sort order.
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

/// Reports whether tasks can be sorted by a column.
const fn compared(field: Field) -> bool {
    !matches!(field, Field::Host | Field::Progress)
}

impl Sort {
    /// Reports whether the sort column requires measuring running tasks.
    pub const fn is_measured(self) -> bool {
        self.field.is_measured()
    }

    /// Sorts tasks; equal tasks keep their order.
    pub fn apply(self, tasks: &mut [Task], measured: &Measured, now: Timestamp) {
        tasks.sort_by(|one, other| {
            let order = compare(self.field, one, other, measured, now);
            if self.is_reverse { order.reverse() } else { order }
        });
    }
}

fn compare(field: Field, one: &Task, other: &Task, measured: &Measured, now: Timestamp) -> Ordering {
    let ran = |task: &Task| task.run_time_ms(now);
    match field {
        Field::Id => one.id.as_u128().cmp(&other.id.as_u128()),
        Field::Status => one.status.cmp(&other.status),
        // Youngest first.
        Field::Age => other.created_at.cmp(&one.created_at),
        Field::Time => ran(one).cmp(&ran(other)),
        // Unknown values come first, as do tasks that never started.
        Field::Cpu => cpu_ms(one, measured).cmp(&cpu_ms(other, measured)),
        Field::Memory => memory_bytes(one, measured).cmp(&memory_bytes(other, measured)),
        Field::Written => written_bytes(one).cmp(&written_bytes(other)),
        Field::Tokens => tokens(one).cmp(&tokens(other)),
        Field::Context => context_percent(one).cmp(&context_percent(other)),
        // By amount: the exchange rate of credits and dollars is unknown.
        Field::Cost => cost(one).map(|cost| cost.amount).cmp(&cost(other).map(|cost| cost.amount)),
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
    use bgd_shared::consumption::{AgentUsage, Amount};
    use bgd_shared::usage::Usage;

    use super::*;
    use crate::render::samples::task;

    #[test]
    fn r166_sort_accepts_any_column_in_both_directions() {
        let now = Timestamp::from_unix_ms(2_000_000);
        let named = |name: &str, started: Option<i64>| Task {
            description: name.into(),
            started_at: started.map(|second| Timestamp::from_unix_ms(second * 1000)),
            ..task()
        };
        let mut tasks = [named("b", Some(1_500)), named("c", None), named("a", Some(1_900))];
        let mut sorted = |by: &str| {
            by.parse::<Sort>().unwrap().apply(&mut tasks, &Measured::new(), now);
            tasks.iter().map(|task| task.description.clone()).collect::<String>()
        };
        assert_eq!(sorted("description"), "abc");
        assert_eq!(sorted("-description"), "cba");
        assert_eq!(sorted("time"), "cab", "what never started has the least");
        assert_eq!(sorted("age"), "cab", "equal ones keep their order");
        for wrong in ["host", "progress", "cpus", "", "--age"] {
            let error = wrong.parse::<Sort>().unwrap_err();
            assert!(
                error
                    .starts_with("one of id, status, age, time, cpu, memory, written, tokens, context, cost"),
                "{error}"
            );
        }
    }

    #[test]
    fn r160_tasks_are_sorted_by_agent_consumption() {
        let consumed = |number: u128, tokens, units| Task {
            id: TaskId::from_u128(number),
            agent_usage: Some(AgentUsage {
                input_tokens: tokens,
                context_tokens: tokens,
                context_size: Some(100),
                cost: Amount::of(units).map(|amount| Cost { amount, currency: "USD".into() }),
                ..AgentUsage::default()
            }),
            ..task()
        };
        let mut tasks = [consumed(1, Some(20), 0.5), consumed(2, None, 2.0), consumed(3, Some(10), -1.0)];
        let mut sorted = |by: &str| {
            by.parse::<Sort>().unwrap().apply(&mut tasks, &Measured::new(), Timestamp::from_unix_ms(0));
            tasks.iter().map(|task| task.id.as_u128().to_string()).collect::<String>()
        };
        assert_eq!(
            (sorted("tokens"), sorted("-context"), sorted("-cost")),
            ("231".into(), "132".into(), "213".into())
        );
    }

    #[test]
    fn r164_tasks_are_sorted_by_resource_usage() {
        let used = |number: u128, user_ms, peak, written_bytes| Task {
            id: TaskId::from_u128(number),
            usage: Some(Usage { user_ms, system_ms: 1, peak_memory_bytes: peak, written_bytes }),
            ..task()
        };
        let running = Task { id: TaskId::from_u128(4), ..task() };
        let live = LiveUsage { id: running.id, processes: 1, user_ms: 15, system_ms: 0, memory_bytes: 25 };
        let measured = Measured::from([(running.id, live)]);
        let mut tasks = [used(1, 20, Some(10), 7), used(2, 10, Some(30), 8), used(3, 0, None, 9), running];
        let mut sorted = |by: &str| {
            by.parse::<Sort>().unwrap().apply(&mut tasks, &measured, Timestamp::from_unix_ms(0));
            tasks.iter().map(|task| task.id.as_u128().to_string()).collect::<String>()
        };
        assert_eq!(sorted("cpu"), "3241");
        assert_eq!(sorted("-memory"), "2413", "a peak that is not known is the least");
        assert_eq!(sorted("written"), "4123", "what a running one writes is not known");
    }
}
