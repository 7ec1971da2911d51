//! The jobs in the foreground, and what a press of the key does to them.

use std::borrow::Cow;

use super::backgrounded_message;
use super::key::Key;
use crate::error::{ErrorKind, RpcError};
use crate::id::TaskId;

/// Whether a job can be moved to the background.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Can {
    /// It can.
    Yes,
    /// The user started it directly: it stays, and the key is its own.
    Direct,
    /// It can't, for this reason: half a sentence, such as `it reads from a pipe`.
    No(Cow<'static, str>),
}

/// What a press of the key does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Press<J> {
    /// Nothing is in the foreground: do nothing, or hint at that most subtly.
    Nothing,
    /// Hand over this job, and tell by [`Foreground::answered`] what came of it.
    Take(J),
    /// A hand-over is under way: do nothing.
    Ignore,
    /// Only jobs that the user started directly are there: the key is theirs, so pass it on.
    Pass,
    /// No job can be moved to the background: show this sentence.
    Refuse(String),
}

/// What came of a hand-over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The job is a background task now, with this id.
    Backgrounded(TaskId),
    /// The job had finished before it could be taken.
    AlreadyFinished,
    /// The job was not taken and won't be, for this reason: half a sentence.
    Failed(String),
}

/// What becomes of a job after its hand-over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome<J> {
    /// It has left the foreground, and this is its result there.
    Backgrounded(J, String),
    /// It has left the foreground because it finished first: show its real result.
    Finished(J),
    /// It stays in the foreground, as this sentence says.
    Stays(J, String),
}

/// What to do when a job has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Finished {
    /// It has left the foreground: show its result.
    Show,
    /// Its hand-over is under way, and the answer decides. Keep the result until then.
    Wait,
    /// It is not in the foreground: its result was shown, or is the background's.
    Elsewhere,
}

/// The jobs in the foreground in the order of their starts, and the rules for the key.
///
/// Jobs are named by what their caller names them by: an id, a pid, a number. The time that a call
/// takes grows with their number, which has no limit here.
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
    /// At most one job is in this stage or the next.
    HandingOver,
    /// It was seen to finish while it was handed over.
    FinishedMeanwhile,
}

impl<J: Clone + PartialEq> Foreground<J> {
    /// No jobs, and the key for them.
    pub const fn new(key: Key) -> Self {
        Self { key, jobs: Vec::new() }
    }

    /// A job was started. A job that is there already stays as it is.
    pub fn started(&mut self, id: J, can: Can) {
        if self.place(&id).is_none() {
            self.jobs.push(Job { id, can, stage: Stage::Running });
        }
    }

    /// A job has finished, as its caller saw.
    pub fn finished(&mut self, id: &J) -> Finished {
        let Some(place) = self.place(id) else { return Finished::Elsewhere };
        if self.jobs[place].stage == Stage::Running {
            self.jobs.remove(place);
            return Finished::Show;
        }
        self.jobs[place].stage = Stage::FinishedMeanwhile;
        Finished::Wait
    }

    /// The key was pressed. It takes one job at most: of those that can be taken the one started last.
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

    /// What came of the hand-over of a job that [`Press::Take`] named. `None` if none is under way for it.
    ///
    /// The answer decides even if the job was seen to finish meanwhile: whoever took it looked whether
    /// it had.
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

    /// The hint to be shown now: there is one while a job can be moved to the background.
    pub fn hint(&self) -> Option<String> {
        let can = self.jobs.iter().any(|job| job.can == Can::Yes && job.stage == Stage::Running);
        if can { self.key.hint() } else { None }
    }

    /// Whether no job is in the foreground.
    pub const fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    fn place(&self, id: &J) -> Option<usize> {
        self.jobs.iter().position(|job| job.id == *id)
    }
}

/// For the daemon's refusal of a hand-over. Of a connection that broke meanwhile nobody knows the answer:
/// ask for the task on a new one.
impl From<&RpcError> for Answer {
    fn from(error: &RpcError) -> Self {
        if error.kind() == ErrorKind::AlreadyFinished {
            Self::AlreadyFinished
        } else {
            Self::Failed(error.message.clone())
        }
    }
}
