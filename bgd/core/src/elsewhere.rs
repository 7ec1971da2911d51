//! Tasks that another machine or a cluster runs: what is asked of that place, what it says of a run, and how a run
//! there can end.

use std::sync::Arc;

use bgd_shared::request::Chosen;
use bgd_shared::resources::{ExecutorKind, Resources};
use bgd_shared::task::Exit;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Which executor runs a task elsewhere, and what is asked of it. Tasks with equal ones share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct On {
    /// The configured name of the executor.
    pub name: Arc<str>,
    pub kind: ExecutorKind,
    /// What the task asks of a cluster.
    pub resources: Resources,
    /// Which parts of its folder and environment were chosen for the task.
    pub chosen: Chosen,
}

/// What is known of a run elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// Its id there, once that place has accepted it.
    pub id: Option<Box<str>>,
    /// Why it waits there.
    pub reason: Option<Box<str>>,
    /// Since when the place can't be asked, and why.
    pub unknown: Option<(Timestamp, Box<str>)>,
    /// What that place last refused to do to it, and why.
    pub refused: Option<Box<str>>,
    /// How often it was put back into the queue there.
    pub requeued: u32,
    /// When it started, by the clock of that place, which may be wrong.
    pub started: Option<Timestamp>,
    /// How many bytes of this run's output, per stream, are not in the files here, although later ones may be.
    #[serde(default)]
    pub missing: [u64; 2],
    /// The key of its submission, and its index there, where that is no name of the run itself.
    #[serde(default)]
    pub submission: Option<(Arc<str>, u32)>,
}

impl Elsewhere {
    /// Whether that place has said nothing of it yet.
    pub fn is_silent(&self) -> bool {
        let Self { id, reason, unknown, refused, requeued, started: _, missing: _, submission: _ } = self;
        id.is_none() && reason.is_none() && unknown.is_none() && refused.is_none() && *requeued == 0
    }

    /// Returns the bytes of its texts.
    pub fn text_bytes(&self) -> usize {
        let unknown = self.unknown.as_ref().map(|(_, why)| why.len());
        let texts = [&self.id, &self.reason, &self.refused].into_iter().flatten().map(|text| text.len());
        let submission = self.submission.as_ref().map(|(key, _)| key.len());
        texts.chain(unknown).chain(submission).sum()
    }
}

/// How a run elsewhere has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conclusion {
    /// How its process ended, if that is known.
    pub exit: Option<Exit>,
    /// What follows from it.
    pub verdict: Verdict,
    /// When it ended, by the clock of that place.
    pub at: Option<Timestamp>,
}

/// What follows from the end of a run elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// What its exit says.
    ByExit,
    /// It failed for a reason that its exit does not tell.
    Failed(Cause, Box<str>),
    /// Somebody else cancelled it there.
    Cancelled,
}

/// Why a run elsewhere failed, if its exit does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// It exceeded the time limit of that place.
    Timeout,
    /// It used more memory than it was allowed.
    Memory,
    /// The machine that ran it failed.
    Node,
    /// The place does not know it any more.
    Lost,
    /// Something else.
    Other,
}
