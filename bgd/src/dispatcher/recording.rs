//! Steps and starts that wait for the journal of a durable daemon, as data.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use bgd_shared::id::TaskId;

use crate::core::{Begin, Effect, ExecutorName, Spec};
use crate::journal::{Journal, Trouble};

/// No request is accepted while more than this many bytes wait to be written.
const UNWRITTEN_BYTES: usize = 32 << 20;

/// No request is accepted while more than this many steps wait to be written.
const UNWRITTEN: usize = 16_384;

/// The journal, and the steps that wait for it.
#[derive(Debug)]
pub(super) struct Durable {
    pub(super) journal: Journal,
    /// The number of the last step passed to the journal.
    pub(super) last: u64,
    pub(super) waiting: VecDeque<Step>,
    pub(super) bytes: usize,
    /// Why no work is added: the journal can't be written, or has only its reserve left.
    pub(super) trouble: Option<Trouble>,
    /// Whether the journal's latest write succeeded.
    pub(super) is_written: bool,
    /// Starts that are not written yet.
    pub(super) held: Vec<HeldStart>,
    /// Effects for executors that are not written yet, held back until then: [`Effect::Over`], [`Effect::Written`],
    /// [`Effect::CaughtUp`].
    pub(super) held_effects: Vec<Effect>,
    /// Whether events were reported that are not written.
    pub(super) has_reported_unrecorded: bool,
    /// The batches whose tasks are being added, and which the journal has: however this daemon ends, all of their tasks
    /// will exist.
    pub(super) accepted: BTreeSet<TaskId>,
    /// The numbers of the notices in the journal.
    pub(super) notices: BTreeSet<u64>,
    /// A warning for users about the journal found at startup.
    pub(super) warning: Option<String>,
}

/// The effects of a step of the core.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// The step of the journal that the effects wait for.
    pub(super) number: u64,
    pub(super) effects: Vec<Effect>,
    /// The tasks added by the step.
    pub(super) added: Vec<TaskId>,
    /// The batches that the step writes to the journal because some of their tasks are still to be added, or removes
    /// from it (`false`) because all are added.
    pub(super) entering: Vec<(TaskId, bool)>,
    pub(super) bytes: usize,
}

/// A start that is held back until it is written.
#[derive(Debug)]
pub(super) struct HeldStart {
    pub(super) executor: ExecutorName,
    pub(super) task: TaskId,
    pub(super) run: u32,
    pub(super) spec: Arc<Spec>,
    pub(super) begin: Begin,
}

impl Durable {
    pub(super) fn new(journal: Journal, warning: Option<String>) -> Self {
        Self {
            journal,
            last: 0,
            waiting: VecDeque::new(),
            bytes: 0,
            trouble: None,
            is_written: true,
            held: Vec::new(),
            held_effects: Vec::new(),
            has_reported_unrecorded: false,
            accepted: BTreeSet::new(),
            notices: BTreeSet::new(),
            warning,
        }
    }

    /// Returns the warnings about the journal, for users.
    pub(super) fn warnings(&self) -> Vec<String> {
        let trouble = self.trouble.as_ref().map(|why| {
            let lost = if self.is_written {
                ""
            } else if self.is_missing() {
                "; all tasks are lost if the daemon ends before that"
            } else {
                "; what changes meanwhile is lost if the daemon ends before it can be written"
            };
            format!(
                "the journal can't be written ({why}): nothing is submitted, and pending tasks do not start{lost}"
            )
        });
        trouble.into_iter().chain(self.warning.clone()).collect()
    }

    /// Reports whether the journal can't be written because its file is not at its path.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self.trouble, Some(Trouble::Missing(_)))
    }

    /// Reports whether the journal can't be written until the daemon is restarted.
    pub(super) fn has_panicked(&self) -> bool {
        self.trouble == Some(Trouble::Panicked)
    }

    /// Reports whether the journal can't be written because files of this daemon may not become larger.
    pub(super) fn is_file_limited(&self) -> bool {
        self.trouble == Some(Trouble::FileLimit)
    }

    /// Notes which batches a step wrote to the journal or removed from it.
    pub(super) fn note_entering(&mut self, entering: &[(TaskId, bool)]) {
        self.accepted.extend(entering.iter().filter(|(_, is_entering)| *is_entering).map(|(id, _)| *id));
        self.note_entered(entering);
    }

    /// Notes which batches have entered according to a step, whether it was written or not.
    pub(super) fn note_entered(&mut self, entering: &[(TaskId, bool)]) {
        for (id, _) in entering.iter().filter(|(_, is_entering)| !is_entering) {
            self.accepted.remove(id);
        }
    }

    /// Returns the batches that a step was the first to write, but could not.
    pub(super) fn refused_batches(&self, entering: &[(TaskId, bool)]) -> Vec<TaskId> {
        let is_refused = |(id, is_entering): &&(TaskId, bool)| *is_entering && !self.accepted.contains(id);
        entering.iter().filter(is_refused).map(|(id, _)| *id).collect()
    }

    /// Drops the starts of withdrawn tasks: a later step may have started one, in the slot of an earlier one.
    pub(super) fn drop_starts(&mut self, withdrawn: &HashSet<TaskId>) {
        let is_of_one =
            |effect: &Effect| matches!(effect, Effect::Start { task, .. } if withdrawn.contains(task));
        self.waiting.iter_mut().for_each(|step| step.effects.retain(|effect| !is_of_one(effect)));
    }

    /// Reports whether so much is waiting to be written that no request should be accepted.
    pub(super) fn is_full(&self) -> bool {
        self.bytes > UNWRITTEN_BYTES || self.waiting.len() > UNWRITTEN
    }

    /// Reports whether nothing is waiting to be written.
    pub(super) fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.held.is_empty() && self.trouble.is_none()
    }
}
