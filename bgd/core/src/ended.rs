//! How a task ended, and why: its outcome, the reasons of failures and cancellations, and what is left of its tree.

use bgd_shared::order::Condition;
use bgd_shared::show::plain;
use bgd_shared::task::{Exit, Status};
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::elsewhere::Cause;
use super::plan::{AttemptError, EndedTask};
use super::time::Mono;

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Completed, failed or cancelled.
    pub outcome: Outcome,
    /// The leader's process id, if there was one.
    pub pid: Option<i32>,
    /// When the run started; `None` if it never did.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub completed_at: Timestamp,
    /// How the leader ended.
    pub exit: Option<Exit>,
    /// Whether processes of its tree are left.
    pub lingering: Lingering,
    /// Whether it was a foreground job to its end, so that its client has seen how it ended.
    #[serde(default)]
    pub in_foreground: bool,
}

/// The outcome of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Completed,
    /// It failed, and why.
    Failed(Failure),
    /// It was ended on purpose, and why.
    Cancelled(StopReason),
}

impl Outcome {
    /// Whether an agent task that ended so can be resumed.
    pub const fn is_resumable(&self) -> bool {
        match self {
            Self::Completed | Self::Failed(Failure::Interrupted(_)) => true,
            Self::Failed(
                Failure::Spawn(_)
                | Failure::Exit
                | Failure::Agent(_)
                | Failure::CrashLoop { .. }
                | Failure::TimedOut { .. }
                | Failure::NotReady { .. }
                | Failure::Elsewhere { .. },
            )
            | Self::Cancelled(_) => false,
        }
    }

    /// Returns the status of a task that ended so.
    pub const fn status(&self) -> Status {
        match self {
            Self::Completed => Status::Completed,
            Self::Failed(_) => Status::Failed,
            Self::Cancelled(_) => Status::Cancelled,
        }
    }
}

/// Why a task failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// Its process could not be started.
    Spawn(Box<SpawnFailure>),
    /// Its process ended unsuccessfully by itself; [`Finished::exit`] says how.
    Exit,
    /// Its agent refused the prompt or ended the turn with this error.
    Agent(Box<str>),
    /// Its agent's turn was cut for this reason, which is not the agent's. It can be resumed (R127).
    Interrupted(Box<str>),
    /// It was to be kept alive, but ended too soon too often in a row (R109).
    CrashLoop {
        /// How often in a row.
        ends: u32,
        /// Why the last attempt failed, if its exit does not say.
        error: Option<Box<AttemptError>>,
    },
    /// It exceeded its time limit.
    TimedOut {
        /// The limit, in milliseconds.
        limit_ms: u64,
        /// The last thing that its agent said besides its answer.
        last_words: Option<Box<str>>,
    },
    /// It was not ready in time.
    NotReady {
        /// The time that it was allowed, in milliseconds.
        limit_ms: u64,
    },
    /// It failed in the place that ran it, for a reason that its exit does not tell.
    Elsewhere {
        /// The kind of reason.
        cause: Cause,
        /// The reason, for people.
        message: Box<str>,
    },
}

impl Failure {
    /// Returns the bytes of its texts.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Exit | Self::NotReady { .. } => 0,
            Self::CrashLoop { error, .. } => error.as_deref().map_or(0, AttemptError::text_bytes),
            Self::Spawn(failure) => failure.message.len(),
            Self::Agent(text) | Self::Interrupted(text) => text.len(),
            Self::TimedOut { last_words, .. } => last_words.as_deref().map_or(0, str::len),
            Self::Elsewhere { message, .. } => message.len(),
        }
    }
}

/// Why a process could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnFailure {
    /// The errno, if a system call failed.
    pub errno: Option<i32>,
    /// The exit code that a shell would report if the program itself is at fault: 127 if it is not found, 126 if it
    /// can't be executed.
    pub code: Option<i32>,
    /// What went wrong, as worded by the executor.
    pub message: Box<str>,
}

impl<T: Into<Box<str>>> From<T> for SpawnFailure {
    fn from(message: T) -> Self {
        let message: Box<str> = message.into();
        Self { errno: None, code: None, message: plain(&message).into() }
    }
}

/// What is left of the tree of a finished task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lingering {
    /// Nothing.
    No,
    /// Processes that nobody has told to end.
    Yes,
    /// Processes that were told to end. Holds the time at which SIGKILL is due; `None` once it was sent.
    Ending(Option<Mono>),
    /// Processes that survive SIGKILL, or one that is still being started long after it was told to end. Nobody waits for
    /// them: nothing is left to try.
    Stuck,
}

impl Lingering {
    /// Whether there is nothing left to wait for.
    pub const fn is_settled(self) -> bool {
        match self {
            Self::No | Self::Stuck => true,
            Self::Yes | Self::Ending(_) => false,
        }
    }
}

/// Why a task is being ended. The first reason wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// A user asked for it.
    Cancelled,
    /// Its time limit was exceeded, in milliseconds.
    TimedOut(u64),
    /// It was not ready within this time, in milliseconds.
    NotReady(u64),
    /// Its parent session has ended.
    SessionEnded,
    /// It was a foreground job, and its client is gone (R71).
    Abandoned,
    /// The daemon is shutting down.
    Shutdown,
    /// A condition on another task can no longer come true (R103).
    Dependency(Condition, EndedTask),
    /// This many tasks of its batch have failed (R112).
    MaxFails(u32),
    /// Somebody else cancelled it in the place that ran it (R148).
    Elsewhere,
    /// It has ended by itself, and the rest of its tree must end before the next attempt (R108, R109).
    NextAttempt,
}
