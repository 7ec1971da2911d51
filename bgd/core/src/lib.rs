//! The core: every decision about tasks, as a pure function with memory.
//!
//! [`Core::handle`] takes the time and an input and returns effects. [`Core::deadline`] returns when to call
//! [`Core::on_deadline`]. The core may not do I/O, read a clock or draw random numbers: ids, times and facts come in
//! with the input, so that tests can run millions of random histories against it in seconds. Executors carry out the
//! effects and report facts. A fact names its task and run, so that a late one changes nothing.
//!
//! The whole state can be serialised at any time.

mod agent;
mod batch;
mod caller;
mod consumed;
mod control;
pub mod durable;
mod effect;
mod elsewhere;
mod ended;
mod filter;
mod group;
mod held;
mod history;
mod inbox;
mod input;
mod intern;
mod kept;
mod known;
mod limits;
mod machine;
mod notice;
mod ordinal;
mod owners;
mod plan;
mod portions;
mod query;
mod queue;
mod queue_place;
mod registry;
mod rlimits;
mod room;
pub mod sharing;
mod task;
mod time;
mod touched;
mod undelivered;
mod waiters;

pub use agent::{AgentPart, AgentWork, LAST_TOOLS, Note, Notes, QUESTIONS, Question};
pub use batch::{Batch, Entering};
pub use caller::ReplyTo;
pub use consumed::{Consumed, Context, CostScope, Report, Tokens};
pub use control::Control;
pub use effect::{
    AfterTask, Begin, CoreError, Effect, OrderError, Reply, RunPlace, Unmovable, Unpausable, Unrepeatable,
};
pub use elsewhere::{Cause, Conclusion, Elsewhere, Placement, Verdict};
pub use filter::Filter;
pub use group::{GroupSettings, GroupState};
pub use held::env_bytes;
pub use history::HistoryLimits;
pub use input::{
    BatchItem, BatchLimits, Cancel, Command, Edit, Fact, Input, LeavePolicy, Part, PlaceFact, PlanRequest,
    Refusal, Request, Rerun, Selection, StartTime,
};
pub use known::{KnownRun, KnownStop, UsagePending};
pub use limits::CoreLimits;
pub use machine::Core;
pub use notice::{Delivery, Item, Notice, Tried};
pub use plan::{
    Attempt, AttemptError, Dependency, EndReason, EndedTask, Need, NotBefore, Plan, Repetition, Rule, draw,
};
pub use query::{ListQuery, Page, SEARCH_BYTES, Text};
pub use registry::CANDIDATES;
pub use task::{
    Blocked, ExecutorName, Failure, Finished, GIVE_UP_MS, Lingering, Ordinal, Outcome, QueuePlace, SIGTERM,
    Snapshot, SpawnFailure, Spec, State, StopReason, SubmitterLocation, Task, Work,
};
pub use time::{Mono, Now, RunTime};
pub use undelivered::{Order, Undelivered};
