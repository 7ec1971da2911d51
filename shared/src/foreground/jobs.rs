//! Foreground jobs, and the effect of the key on them.

use std::borrow::Cow;

use super::key::Key;
use crate::error::{ErrorKind, RpcError};
use crate::id::TaskId;

/// Whether a job can be moved to the background.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Can {
    /// It can be moved.
    Yes,
    /// The user started it directly: it stays, and gets the key itself.
    Direct,
    /// It can't be moved, for this reason: a clause, such as `it reads from a pipe`.
    No(Cow<'static, str>),
}

/// The effect of a key press.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Press<J> {
    /// Nothing is in the foreground: do nothing, or show a very subtle hint.
    Nothing,
    /// Hand over this job, and report the result with [`Foreground::answered`].
    Take(J),
    /// A hand-over is in flight: do nothing.
    Ignore,
    /// All jobs were started directly by the user and get the key themselves, so pass it on.
    Pass,
    /// No job can be moved to the background: show this sentence.
    Refuse(String),
}

/// Result of a hand-over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The job is a background task now, with this id.
    Backgrounded(TaskId),
    /// The job had finished before it could be handed over.
    AlreadyFinished,
    /// The job was not handed over and won't be, for this reason: a clause.
    Failed(String),
}

/// The outcome of a job's hand-over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome<J> {
    /// It has left the foreground, with this text as its result there.
    Backgrounded(J, String),
    /// It finished first and has left the foreground: show its real result.
    Finished(J),
    /// It stays in the foreground: show this sentence.
    Stays(J, String),
}

/// The action to take when a job has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Finished {
    /// It has left the foreground: show its result.
    Show,
    /// Its hand-over is in flight, and the answer decides: keep the result until then.
    Wait,
    /// It is not in the foreground: its result was shown, or belongs to the background task.
    Elsewhere,
}

/// The foreground jobs in start order, and the rules for the key.
///
/// `J` identifies jobs: an id, a pid, a number. Each call takes time proportional to the number of jobs, which is not
/// limited here.
#[derive(Clone, Debug)]
pub struct Foreground<J> {
    key: Key,
    jobs: Vec<Job<J>>,
}

#[derive(Clone, Debug)]
struct Job<J> {
    id: J,
    can: Can,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// A hand-over is in flight. At most one job is in this stage or the next.
    HandingOver,
    /// The job was seen to finish during its hand-over.
    FinishedMeanwhile,
}

impl<J: Clone + PartialEq> Foreground<J> {
    /// Creates a foreground without jobs.
    pub const fn new(key: Key) -> Self {
        Self { key, jobs: Vec::new() }
    }

    /// Adds a started job. A job that is already there stays unchanged.
    pub fn started(&mut self, id: J, can: Can) {
        if self.place(&id).is_none() {
            self.jobs.push(Job { id, can, stage: Stage::Running });
        }
    }

    /// Records that a job has finished, as seen by the caller.
    pub fn finished(&mut self, id: &J) -> Finished {
        let Some(place) = self.place(id) else { return Finished::Elsewhere };
        if self.jobs[place].stage == Stage::Running {
            self.jobs.remove(place);
            return Finished::Show;
        }
        self.jobs[place].stage = Stage::FinishedMeanwhile;
        Finished::Wait
    }

    /// Handles a press of the key. It moves at most one job: of those that can be moved, the one started last.
    pub fn pressed(&mut self) -> Press<J> {
        if self.jobs.iter().any(|job| job.stage != Stage::Running) {
            return Press::Ignore;
        }
        if let Some(job) = self.jobs.iter_mut().rfind(|job| job.can == Can::Yes) {
            job.stage = Stage::HandingOver;
            return Press::Take(job.id.clone());
        }
        let reason = self.jobs.iter().rev().find_map(|job| match &job.can {
            Can::No(reason) => Some(reason),
            Can::Yes | Can::Direct => None,
        });
        match reason {
            Some(reason) => Press::Refuse(format!("This job can't be backgrounded: {reason}")),
            None if self.jobs.is_empty() => Press::Nothing,
            None => Press::Pass,
        }
    }

    /// Handles the result of a hand-over that [`Press::Take`] requested. `None` if none is in flight for this job.
    ///
    /// The answer decides even if the job was seen to finish meanwhile: the daemon checks that before taking it over.
    pub fn answered(&mut self, id: &J, answer: Answer) -> Option<Outcome<J>> {
        let place = self.place(id)?;
        let outcome = match (self.jobs[place].stage, answer) {
            (Stage::Running, _) => return None,
            (Stage::HandingOver, Answer::Failed(reason)) => {
                let job = &mut self.jobs[place];
                job.stage = Stage::Running;
                let message = format!("This job could not be backgrounded and keeps running here: {reason}");
                return Some(Outcome::Stays(job.id.clone(), message));
            }
            (_, Answer::Backgrounded(task)) => Outcome::Backgrounded(id.clone(), backgrounded_message(task)),
            (_, Answer::AlreadyFinished) | (Stage::FinishedMeanwhile, Answer::Failed(_)) => {
                Outcome::Finished(id.clone())
            }
        };
        self.jobs.remove(place);
        Some(outcome)
    }

    /// Returns the hint to show now: there is one while a job can be moved to the background.
    pub fn hint(&self) -> Option<String> {
        let can = self.jobs.iter().any(|job| job.can == Can::Yes && job.stage == Stage::Running);
        if can { self.key.hint() } else { None }
    }

    /// Reports whether no job is in the foreground.
    pub const fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    fn place(&self, id: &J) -> Option<usize> {
        self.jobs.iter().position(|job| job.id == *id)
    }
}

/// Returns the result of a foreground job that was moved to the background.
pub fn backgrounded_message(id: TaskId) -> String {
    format!("Command was manually backgrounded by user with ID {id}")
}

/// Converts the daemon's refusal of a hand-over. If the connection broke instead, the result is unknown: query the
/// task on a new connection.
impl From<&RpcError> for Answer {
    fn from(error: &RpcError) -> Self {
        if error.kind() == ErrorKind::AlreadyFinished {
            Self::AlreadyFinished
        } else {
            Self::Failed(error.message.clone())
        }
    }
}
