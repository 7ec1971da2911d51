//! What waits for the journal of a durable daemon, as data.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use bgd_shared::id::TaskId;

use crate::core::{Begin, Effect, ExecutorName, Spec};
use crate::journal::Journal;

/// No request is taken while steps of more bytes than this wait to be written.
const UNWRITTEN_BYTES: usize = 32 << 20;

/// No request is taken while more steps than this wait to be written.
const UNWRITTEN: usize = 16_384;

/// The journal, and what waits for it.
#[derive(Debug)]
pub(super) struct Durable {
    pub(super) journal: Journal,
    /// The number of the last step that was given to the journal.
    pub(super) last: u64,
    pub(super) waiting: VecDeque<Step>,
    pub(super) bytes: usize,
    /// Why no work is added: the journal can't be written, or has nothing but its room ahead.
    pub(super) trouble: Option<Arc<str>>,
    /// Whether all was written that the journal has tried to write.
    pub(super) is_written: bool,
    /// Starts that were not written down.
    pub(super) held: Vec<HeldStart>,
    /// What executors are to know once it is written down, and was not: [`Effect::Over`], [`Effect::Written`],
    /// [`Effect::CaughtUp`].
    pub(super) untold: Vec<Effect>,
    /// Whether events were told that are not written down.
    pub(super) has_told: bool,
    /// The numbers of the notices that are in the journal.
    pub(super) notices: BTreeSet<u64>,
    /// What people should know of the journal that was found.
    warning: Option<String>,
}

/// What a step of the core leads to.
#[derive(Debug)]
pub(super) struct Step {
    /// The step of the journal that it waits for.
    pub(super) number: u64,
    pub(super) effects: Vec<Effect>,
    /// The tasks that it adds.
    pub(super) added: Vec<TaskId>,
    pub(super) bytes: usize,
}

/// A start that waits until it is written down.
#[derive(Debug)]
pub(super) struct HeldStart {
    pub(super) executor: ExecutorName,
    pub(super) task: TaskId,
    pub(super) run: u32,
    pub(super) spec: Arc<Spec>,
    pub(super) begin: Begin,
}

impl Durable {
    /// Begins with an open journal.
    pub(super) fn new(journal: Journal, warning: Option<String>) -> Self {
        Self {
            journal,
            last: 0,
            waiting: VecDeque::new(),
            bytes: 0,
            trouble: None,
            is_written: true,
            held: Vec::new(),
            untold: Vec::new(),
            has_told: false,
            notices: BTreeSet::new(),
            warning,
        }
    }

    /// Returns what people should know of the journal.
    pub(super) fn warnings(&self) -> Vec<String> {
        let trouble = self.trouble.as_ref().map(|why| {
            let lost = if self.is_written {
                ""
            } else {
                "; what changes meanwhile is lost if the daemon ends before it can be written"
            };
            format!(
                "the journal can't be written ({why}): nothing is submitted, and pending tasks do not start{lost}"
            )
        });
        trouble.into_iter().chain(self.warning.clone()).collect()
    }

    /// Drops the starts of tasks that were withdrawn: a later step may have begun one, in the slot of one before it.
    pub(super) fn drop_starts(&mut self, withdrawn: &HashSet<TaskId>) {
        let is_of_one =
            |effect: &Effect| matches!(effect, Effect::Start { task, .. } if withdrawn.contains(task));
        self.waiting.iter_mut().for_each(|step| step.effects.retain(|effect| !is_of_one(effect)));
    }

    /// Whether so much waits to be written that no request should be taken.
    pub(super) fn is_full(&self) -> bool {
        self.bytes > UNWRITTEN_BYTES || self.waiting.len() > UNWRITTEN
    }

    /// Whether nothing waits to be written.
    pub(super) fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.held.is_empty() && self.trouble.is_none()
    }
}
