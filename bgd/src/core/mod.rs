//! The core: every decision about tasks, as a pure function with memory.
//!
//! [`Core::handle`] takes the time and an input and returns effects; [`Core::deadline`] says when it
//! wants to be called again and [`Core::on_deadline`] is that call. It may not do I/O, read a clock or
//! draw random numbers: ids, times and facts come in with the input, so that millions of random
//! histories can be run against it in seconds. What it asks for is done by executors, which report
//! facts; a fact names its task and its run, so that a late one changes nothing.
//!
//! Its state can be serialised whole, at any time.

mod agent;
mod batch;
mod caller;
mod effect;
mod filter;
mod group;
mod held;
mod inbox;
mod input;
mod intern;
mod kept;
mod machine;
mod notice;
mod ordinal;
mod owners;
mod plan;
mod queue;
mod registry;
mod task;
mod time;
mod waiters;

pub use agent::{AgentPart, AgentWork, Note, Notes, QUESTIONS, Question};
pub use caller::ReplyTo;
pub use effect::{
    AfterTask, Begin, Control, CoreError, Effect, OrderError, Reply, RunPlace, Unmovable, Unpausable,
    Unrepeatable,
};
pub use filter::Filter;
pub use group::GroupState;
pub use held::env_bytes;
pub use input::{
    BatchItem, BatchLimits, Cancel, Command, Edit, Fact, Input, Part, PlanRequest, Refusal, Request, Rerun,
    Selection, StartTime,
};
pub use machine::Core;
pub use notice::{Item, Notice};
pub use plan::{Again, Attempt, AttemptError, Dependency, EndedTask, HowEnded, NotBefore, Plan, Rule, draw};
pub use registry::{CANDIDATES, ListQuery, Page};
pub use task::{
    ExecutorName, Failure, Finished, Lingering, Ordinal, Outcome, Place, QueuePlace, Snapshot, SpawnFailure,
    Spec, State, StopReason, Task, Work,
};
pub use time::{Mono, Now};

use serde::{Deserialize, Serialize};

/// The limits that the core enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreLimits {
    /// Tasks that run at once, at least 1. The next ones wait; those that must not wait (foreground jobs,
    /// resumes, processes that are handed over) count, but begin above the limit too.
    pub max_concurrent_tasks: usize,
    /// Tasks held, finished ones included.
    pub tasks: usize,
    /// Bytes that tasks and inboxes may hold when another task comes.
    pub memory: usize,
    /// Bytes of environments that are kept so that tasks can be submitted again.
    pub environments: usize,
    /// How long a cancelled task has to end before SIGKILL, in milliseconds.
    pub grace_ms: u64,
    /// Items of one inbox, at least 1. With one more the oldest are dropped.
    pub inbox_items: usize,
}
