//! Tasks on another machine or a cluster: the requests to that place, its reports about a run, and how a run there can
//! end.

use std::num::NonZeroI32;
use std::sync::Arc;

use bgd_shared::request::Chosen;
use bgd_shared::resources::{ExecutorKind, Resources};
use bgd_shared::task::Exit;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Which executor runs a task elsewhere, and the requests to it. Tasks with equal values share them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// The configured name of the executor.
    pub name: Arc<str>,
    pub kind: ExecutorKind,
    /// The task's requests to a cluster.
    pub resources: Resources,
    /// Which parts of its folder and environment were chosen for the task.
    pub chosen: Chosen,
}

/// The known state of a run elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// Its id there, once the place has accepted it.
    pub id: Option<Box<str>>,
    /// Why it waits there.
    pub reason: Option<Box<str>>,
    /// The previous host of its machine if it waits for the end of the tasks there, and so was never submitted.
    #[serde(default)]
    pub awaits: Option<Box<str>>,
    /// Since when the place can't be queried, and why.
    pub unknown: Option<(Timestamp, Box<str>)>,
    /// The operation that the place refused last, and why.
    pub refused: Option<Box<str>>,
    /// How often it was requeued there.
    pub requeued: u32,
    /// When it started, by the clock of that place, which may be wrong. While it waits again after it was requeued: when
    /// it last started, by the clock here.
    pub started: Option<Timestamp>,
    /// How many bytes of this run's output, per stream, are missing from the files here, although later ones may be
    /// present.
    #[serde(default)]
    pub missing: [u64; 2],
    /// The key of its submission, and its index there, where the submission does not identify the run itself.
    #[serde(default)]
    pub submission: Option<(Arc<str>, u32)>,
    /// The last signal that was sent to end it, other than SIGKILL.
    #[serde(default)]
    pub signal: Option<NonZeroI32>,
    /// The last priority that the place refused after the next one was ordered, and the one that it kept.
    #[serde(default)]
    pub refused_priority: Option<(i32, i32)>,
}

impl Elsewhere {
    /// Reports whether the place has not reported anything about it yet.
    pub fn has_no_reports(&self) -> bool {
        let Self {
            id,
            reason,
            awaits: _,
            unknown,
            refused,
            requeued,
            started: _,
            missing: _,
            submission: _,
            signal: _,
            refused_priority: _,
        } = self;
        id.is_none() && reason.is_none() && unknown.is_none() && refused.is_none() && *requeued == 0
    }

    /// Returns the priority that the place has if it refuses the one ordered after this one, which it may also have
    /// refused.
    pub fn kept_priority(&self, before: i32) -> i32 {
        self.refused_priority.filter(|(refused, _)| *refused == before).map_or(before, |(_, kept)| kept)
    }

    /// Returns the size of its texts.
    pub fn text_bytes(&self) -> usize {
        let unknown = self.unknown.as_ref().map(|(_, why)| why.len());
        let texts = [&self.id, &self.reason, &self.awaits, &self.refused];
        let texts = texts.into_iter().flatten().map(|text| text.len());
        let submission = self.submission.as_ref().map(|(key, _)| key.len());
        texts.chain(unknown).chain(submission).sum()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conclusion {
    /// The exit of its process, if known.
    pub exit: Option<Exit>,
    pub verdict: Verdict,
    /// When it ended, by the clock there; `None` if unknown.
    pub at: Option<Timestamp>,
}

/// How a run elsewhere is judged after its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// By its exit.
    ByExit,
    /// It failed for a reason not evident from its exit.
    Failed(Cause, Box<str>),
    /// It was ended because it was not ready in time.
    NotReady(Box<str>),
    /// It was cancelled there, not by this daemon.
    Cancelled,
}

/// Why a run elsewhere failed, if its exit does not explain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// It exceeded the time limit of that place.
    Timeout,
    /// It used more memory than it was allowed.
    Memory,
    /// The machine that ran it failed.
    Node,
    /// The place no longer has it.
    Lost,
    Other,
}
