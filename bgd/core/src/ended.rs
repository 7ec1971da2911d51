//! The end of a task: its outcome, the reasons for failures and cancellations, and the rest of its tree.

use bgd_shared::order::Condition;
use bgd_shared::show::plain;
use bgd_shared::task::{Exit, Status};
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::elsewhere::Cause;
use super::plan::{AttemptError, EndedTask, Need};
use super::time::Mono;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    pub outcome: Outcome,
    /// The leader's process id; `None` without a process.
    pub pid: Option<i32>,
    /// When the run started; `None` if it never did.
    pub started_at: Option<Timestamp>,
    pub completed_at: Timestamp,
    /// The leader's exit; `None` if it had none.
    pub exit: Option<Exit>,
    /// Whether processes of its tree are left.
    pub lingering: Lingering,
    /// Whether it was a foreground job until its end, so that its client has seen the end.
    #[serde(default)]
    pub in_foreground: bool,
}

/// Upper bound for the fixed wording and numbers of a failure, in bytes.
const FAILURE_BYTES: usize = 64;

/// Upper bound for the sentence about a condition that can no longer be met, in bytes.
const DEPENDENCY_BYTES: usize = 160;

impl Finished {
    /// Returns the size of its failure in a task object, where it appears twice: in `error` and in `failure`.
    pub fn text_bytes(&self) -> usize {
        match (&self.outcome, &self.exit) {
            (Outcome::Cancelled(StopReason::Dependency(..)), _) => DEPENDENCY_BYTES,
            (Outcome::Completed | Outcome::Cancelled(_), _) => 0,
            (
                Outcome::Failed(Failure::Exit | Failure::CrashLoop { error: None, .. }),
                Some(Exit::Unknown(why)),
            ) => 2 * (FAILURE_BYTES + why.len()),
            (Outcome::Failed(failure), _) => 2 * (FAILURE_BYTES + failure.text_bytes()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Completed,
    Failed(Failure),
    /// It was ended on purpose.
    Cancelled(StopReason),
}

impl Outcome {
    /// Reports whether an agent task with this outcome can be resumed.
    pub const fn is_resumable(&self) -> bool {
        match self {
            Self::Completed | Self::Failed(Failure::Interrupted(_)) => true,
            Self::Failed(
                Failure::Spawn(_)
                | Failure::Unstartable(_)
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

    /// Returns the status of a task with this outcome.
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
    /// It could not start, as something that it needs was lost.
    Unstartable(Need),
    /// Its process exited unsuccessfully by itself; see [`Finished::exit`].
    Exit,
    /// Its agent refused the prompt or ended the turn with this error.
    Agent(Box<str>),
    /// Its agent's turn was cut short for this reason, which is not the agent's fault. It can be resumed (R127).
    Interrupted(Box<str>),
    /// It was to be kept alive, but ended too soon too often in a row (R109).
    CrashLoop {
        ends: u32,
        /// Why the last attempt failed, if its exit does not explain it.
        error: Option<Box<AttemptError>>,
    },
    /// It exceeded its time limit.
    TimedOut {
        /// The limit, in milliseconds.
        limit_ms: u64,
        /// The agent's last message besides its answer.
        last_words: Option<Box<str>>,
    },
    /// It was not ready in time.
    NotReady {
        /// The time it had to become ready, in milliseconds.
        limit_ms: u64,
    },
    /// It failed in the place that ran it, for a reason not evident from its exit.
    Elsewhere {
        cause: Cause,
        /// The reason, for people.
        message: Box<str>,
    },
}

impl Failure {
    /// Returns the size of its texts.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Unstartable(_) | Self::Exit | Self::NotReady { .. } => 0,
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
    /// The problem, as worded by the executor.
    pub message: Box<str>,
}

impl<T: Into<Box<str>>> From<T> for SpawnFailure {
    fn from(message: T) -> Self {
        let message: Box<str> = message.into();
        Self { errno: None, code: None, message: plain(&message).into() }
    }
}

/// The rest of the tree of a finished task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lingering {
    No,
    /// Processes that were not asked to end.
    Yes,
    /// Processes that were asked to end. Holds the time at which SIGKILL is due; `None` once it was sent.
    Ending(Option<Mono>),
    /// Processes that survive SIGKILL, or one that is still being started long after it was asked to end. The daemon
    /// does not wait for them, as nothing is left to try.
    Stuck,
}

impl Lingering {
    /// Reports whether there is nothing left to wait for.
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
    /// At a user's request.
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
    /// A condition on another task can no longer be met (R103).
    Dependency(Condition, EndedTask),
    /// This many tasks of its batch have failed (R112).
    MaxFails(u32),
    /// It was cancelled in the place that ran it, not by this daemon (R148).
    Elsewhere,
    /// It has ended by itself, and the rest of its tree must end before the next attempt (R108, R109).
    NextAttempt,
}
