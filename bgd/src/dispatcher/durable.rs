//! The dispatcher's part in a durable daemon (R125 to R130): nothing leaves the core before its cause is written to the
//! journal. The effects of a step wait for that, in order; the core itself proceeds with the next step meanwhile.
//!
//! While the journal can't be written, submissions are refused, and pending tasks do not start: an unrecorded start
//! could happen twice. Everything else continues. The same applies on a full disk, where the journal has a reserve for
//! the rest.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::time::Timestamp;

use super::Dispatcher;
use super::recording::{Durable, HeldStart, Step};
use crate::client::answer::Answer;
use crate::core::durable::{Kept, TaskRow};
use crate::core::{Begin, Core, Effect, Fact, Input, Ordinal, Reply, ReplyTo, Request, State, Task};
use crate::exec::left::{Ended, HeldRun, Resumed};
use crate::exec::messages::Inherited;
use crate::journal::{Journal, Recorded, Trouble};
use crate::keeper::Key;
use crate::os::clock::Stamp;
use crate::os::signals;
use crate::wire::calls::Body;

/// How long to wait for the size of an output on another disk.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);

/// For how long after the end of a run elsewhere its resource usage is still looked up, in milliseconds.
const COUNTED_WITHIN_MS: i64 = 60_000;

/// The runs that a killed daemon left.
#[derive(Debug, Default)]
pub struct LeftRuns {
    pub runs: BTreeMap<Key, HeldRun>,
    /// Runs kept by another version, of which only the key can be read: they have started, and can't be continued.
    pub unread: BTreeSet<Key>,
    /// The descriptors that pending tasks are to start with.
    pub pending: BTreeMap<TaskId, Inherited>,
    /// Whether these include every process that announced itself and whose end was not written down.
    pub is_complete: bool,
    /// The last number of the reported events that may not be written down; `None` if unknown.
    pub sent_seq: Option<u64>,
    /// Why the runs that the keeper held are lost, if it was killed.
    pub lost_because: Option<&'static str>,
}

impl LeftRuns {
    /// Returns the keys of everything held.
    pub fn held(&self) -> impl Iterator<Item = Key> {
        let pending = self.pending.keys().copied().map(Key::of_pending);
        self.runs.keys().chain(&self.unread).copied().chain(pending)
    }

    /// Keeps the runs that tasks still have, those whose output has not ended, and the descriptors of tasks that have not
    /// started.
    pub fn retain_known(&mut self, kept: &Kept) {
        let of = |(_, row): &(Ordinal, TaskRow)| {
            let task = &row.task;
            task.spec.is_here().then_some((Key { task: task.id, run: task.run }, task.has_run()))
        };
        let known: HashMap<Key, bool> = kept.tasks.iter().filter_map(of).collect();
        self.runs.retain(|key, run| known.get(key).is_some_and(|has_run| *has_run || run.is_drained()));
        self.unread.retain(|key| known.get(key) == Some(&true));
        let is_yet_to_start =
            |task: &Task| matches!(task.state, State::Queued { .. } | State::Starting { .. });
        let tasks = kept.tasks.iter().map(|(_, row)| &row.task);
        let takers = tasks.filter(|task| task.spec.takes_descriptors() && is_yet_to_start(task));
        let takers: HashSet<TaskId> = takers.map(|task| task.id).collect();
        self.pending.retain(|task, _| takers.contains(task));
    }
}

/// Reports whether a task's process announces itself before it executes its program.
fn announces_itself(task: &Task) -> bool {
    task.spec.is_here()
}

/// Returns the effect for a run that is not continued: the data kept for it is no longer needed.
fn over_of(task: &Task) -> Effect {
    Effect::Over { executor: task.spec.executor(), task: task.id, run: task.run }
}

impl Dispatcher {
    /// Makes the daemon durable. `can_leave`: whether its tasks on this machine can outlive it.
    pub fn make_durable(&mut self, journal: Journal, warning: Option<String>, can_leave: bool) {
        self.ending.can_leave = can_leave;
        self.core.track();
        self.notifier.make_durable();
        self.durable = Some(Box::new(Durable::new(journal, warning)));
    }

    /// Continues the core's clock, which started at `epoch` if that was in this boot of the machine, or else in an
    /// earlier one. Returns the start of the clock.
    pub fn resume_clock(&mut self, kept: &mut Kept, epoch: Option<Stamp>) -> Stamp {
        if let Some(epoch) = epoch {
            self.epoch = self.clock.instant(epoch);
        } else {
            let passed = Duration::from_millis(kept.reached().0);
            // The clock of this boot may be younger than the earlier daemon was.
            self.epoch = self.clock.now().checked_sub(passed).unwrap_or(self.epoch);
            kept.rebase(self.now().mono, self.now().wall);
        }
        self.clock.stamp(self.epoch)
    }

    /// Continues the state that an earlier daemon wrote, and the runs that it left. Other runs are lost, for the reason
    /// `why` or that of the keeper, unless they certainly did not start.
    pub fn begin_again(&mut self, mut kept: Kept, left: LeftRuns, why: &str) {
        let LeftRuns { mut runs, unread, pending, is_complete, sent_seq, lost_because } = left;
        let notices = std::mem::take(&mut kept.notices);
        self.core = Core::restore(self.config.core_limits(), self.config.group_settings(), kept);
        if self.durable.is_some() {
            self.core.track();
        }
        let did_more = self.core.number_after(self.now(), sent_seq);
        self.subscribers.continue_numbering_after(self.core.seq());
        self.report_excess();
        // Must precede later notices.
        self.notify_again(notices);
        if let Some(durable) = &mut self.durable {
            durable.trouble.clone_from(&durable.journal.trouble);
            durable.accepted.extend(self.core.entering_batches());
        }
        // Until it is known what runs, a new start would be mistaken for one of the daemon before.
        self.handle(Input::HoldStarts(true));
        self.continue_inherited(pending);
        let (now, inherited) = (self.now(), &self.inherited);
        let effects = self.core.end_unstartable(now, |task| inherited.contains_key(&task));
        self.commit_effects(effects);
        for client in self.core.clients_before() {
            self.handle(Input::Disconnected { client });
        }
        if !is_complete {
            self.executors.all().for_each(|executor| executor.mark_incomplete());
        }
        let (mut ran, mut over) = (Vec::new(), Vec::new());
        for task in self.core.with_runs() {
            if task.spec.output_file.is_none() {
                self.look_at_output(&task);
            }
            let key = Key { task: task.id, run: task.run };
            let is_held = runs.contains_key(&key) || unread.contains(&key);
            let is_resumed = match runs.remove(&key) {
                None if task.spec.is_elsewhere() => self.take_up(task.id),
                Some(run) => self.take_over_run(&task, run, false, did_more),
                None => {
                    let can_start = is_complete && !is_held && announces_itself(&task);
                    can_start && self.take_back_start(task.id)
                }
            };
            if !is_resumed {
                let because = lost_because.filter(|_| announces_itself(&task));
                ran.push((task.id, because.unwrap_or(why)));
                over.extend(is_held.then(|| over_of(&task)));
            }
        }
        let (now, inherited) = (self.now(), &self.inherited);
        let mut effects = self.core.lose(now, &ran, |task| inherited.contains_key(&task));
        effects.extend(over);
        effects.push(Effect::CaughtUp { mark: 0 });
        self.commit_effects(effects);
        for (Key { task, .. }, run) in runs {
            if let Ok(task) = self.core.get(&task.into())
                && !self.take_over_run(&task, run, true, did_more)
            {
                self.commit_effects(vec![over_of(&task)]);
            }
        }
        if did_more {
            let orders = self.core.continue_running(self.now());
            self.commit_effects(orders);
        }
        self.count_again();
        self.handle(Input::HoldStarts(self.has_trouble()));
        self.handle(Input::Continue);
    }

    /// Records how much output a run has written while there was no daemon. If the output is outside the folder, a
    /// worker looks it up, as its disk may hang.
    fn look_at_output(&mut self, task: &Task) {
        let (id, run, split) = (task.id, task.run, task.spec.split);
        let fact = |bytes| Fact::Output { bytes, dropped: [0; 2], publish: false };
        if let Some(bytes) = self.context.folder.sizes_unless_linked(id, split) {
            return self.handle(Input::Fact { task: id, run, fact: fact(bytes) });
        }
        let context = self.context.clone();
        tokio::spawn(async move {
            let folder = Arc::clone(&context.folder);
            let looked = context.workers.elsewhere(LOOK_PATIENCE, move || folder.sizes(id, split)).await;
            if let Some(bytes) = looked {
                context.facts.send(id, run, fact(bytes));
            }
        });
    }

    /// Has executors look up the resource usage of runs elsewhere that ended shortly before this daemon or program
    /// started (R164).
    pub(super) fn count_again(&mut self) {
        let since = self.now().wall.unix_ms().saturating_sub(COUNTED_WITHIN_MS);
        for ended in self.core.uncounted(Timestamp::from_unix_ms(since)) {
            if let Some(executor) = self.executors.of(ended.spec.executor()) {
                executor.collect_usage(ended);
            }
        }
    }

    /// Has the executor of a run elsewhere continue it. Returns false if the task has no such run.
    pub(super) fn take_up(&mut self, task: TaskId) -> bool {
        self.core.leave_passed_limit_to_place(self.now(), task);
        let Some(known) = self.core.run_elsewhere(self.now(), task) else { return false };
        let Some(executor) = self.executors.of(known.spec.executor()) else { return false };
        executor.adopt_elsewhere(known);
        true
    }

    /// Takes over a run that the previous daemon left, or only its output if the run is over. `did_more` says whether that
    /// daemon may have done what it did not write to the journal. Returns whether that works.
    fn take_over_run(&mut self, task: &Task, run: HeldRun, is_over: bool, did_more: bool) -> bool {
        let has_exited = task.is_finished() || matches!(task.state, State::Stopping { exit: Some(_), .. });
        let ended = match (is_over, has_exited) {
            (true, _) => Ended::Tree,
            (false, true) => Ended::Leader,
            (false, false) => Ended::Nothing,
        };
        let resumed = Resumed {
            spec: Arc::clone(&task.spec),
            ended,
            is_ready: task.ready_at.is_some(),
            may_be_paused: task.paused || task.may_lack_order() || did_more,
        };
        let Some(executor) = self.executors.of(task.spec.executor()) else { return false };
        let pid = match executor.adopt(run, &resumed) {
            Ok(pid) => pid,
            Err(error) => {
                tracing::error!(task = %task.id, %error, "cannot continue it");
                return false;
            }
        };
        if matches!(task.state, State::Starting { .. }) {
            // This also repeats earlier orders to the task.
            self.handle(Input::Fact { task: task.id, run: task.run, fact: Fact::Started { pid: Some(pid) } });
        } else {
            let orders = self.core.orders_again(self.now(), task.id);
            self.commit_effects(orders);
        }
        true
    }

    /// Reports whether so much is waiting to be written that no request should be accepted.
    pub(super) fn is_journal_full(&self) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.is_full())
    }

    /// Applies the effects of a step once the step is written to the journal; at once if there is no journal.
    pub(super) fn commit_effects(&mut self, mut effects: Vec<Effect>) {
        let notices = self.choose_notices(&mut effects);
        if self.durable.is_none() {
            return self.apply(effects);
        }
        let changes = self.core.take_changes(self.now());
        let Some(durable) = &mut self.durable else { return };
        let mut step = Step { number: durable.last, effects, ..Step::default() };
        match changes {
            // Every notice comes with an event, which is a change.
            Some(mut changes) => {
                changes.notices = notices;
                durable.last += 1;
                step.number = durable.last;
                step.added = std::mem::take(&mut changes.added);
                step.entering = changes.entering.iter().map(|(id, row)| (*id, row.is_some())).collect();
                step.bytes = changes.bytes();
                durable.journal.write(durable.last, changes);
            }
            None if durable.waiting.is_empty() => return self.apply(step.effects),
            None => {}
        }
        durable.bytes += step.bytes;
        durable.waiting.push_back(step);
    }

    /// Applies the effects of steps after the journal wrote them or failed to.
    pub(super) fn recorded(&mut self, recorded: Recorded) {
        let Recorded { upto, is_written, trouble } = recorded;
        let Some(durable) = &mut self.durable else { return };
        let (held, holds) = (durable.trouble.is_some(), trouble.is_some());
        (durable.trouble, durable.is_written) = (trouble, is_written);
        self.drop_stopped_starts();
        let Some(durable) = &mut self.durable else { return };
        if is_written && std::mem::take(&mut durable.has_reported_unrecorded) {
            self.executors.all().for_each(|executor| executor.sent_unrecorded(None));
        }
        if is_written {
            let (held, held_effects) =
                (std::mem::take(&mut durable.held), std::mem::take(&mut durable.held_effects));
            for HeldStart { executor, task, run, spec, begin } in held {
                self.start(executor, task, run, spec, begin);
            }
            self.apply(held_effects);
        }
        let mut withdrawn = HashSet::new();
        let has_steps = |durable: &Durable| durable.waiting.front().is_some_and(|step| step.number <= upto);
        if !is_written && self.durable.as_deref().is_some_and(has_steps) {
            // The journal can't record the events reported from now on.
            let seq = self.core.seq();
            self.executors.all().for_each(|executor| executor.sent_unrecorded(Some(seq)));
            self.durable.iter_mut().for_each(|durable| durable.has_reported_unrecorded = true);
        }
        while let Some(durable) = &mut self.durable
            && durable.waiting.front().is_some_and(|step| step.number <= upto)
            && let Some(step) = durable.waiting.pop_front()
        {
            durable.bytes = durable.bytes.saturating_sub(step.bytes);
            if is_written {
                durable.note_entering(&step.entering);
                self.apply(step.effects);
            } else {
                self.apply_unwritten(step, &mut withdrawn);
            }
        }
        if let Some(durable) = self.durable.as_mut().filter(|_| !withdrawn.is_empty()) {
            durable.drop_starts(&withdrawn);
        }
        self.drop_stopped_starts();
        if held != holds {
            self.handle(Input::HoldStarts(holds));
        }
    }

    /// Applies a step that could not be written: its submissions are refused and its starts are held back. A batch that
    /// the journal already has is not refused. A later submission with the same key as a refused one is refused, too.
    /// Executors keep the data that the next daemon needs of a run until the run's end is written.
    fn apply_unwritten(&mut self, step: Step, withdrawn: &mut HashSet<TaskId>) {
        let Some(durable) = &mut self.durable else { return };
        let Step { effects, mut added, entering, .. } = step;
        let refused = durable.refused_batches(&entering);
        let core = &self.core;
        added.retain(|id| core.batch_of(*id).is_none_or(|batch| !durable.accepted.contains(&batch)));
        added.extend(core.batch_members(&refused));
        withdrawn.extend(added.iter().copied());
        let (mut rest, mut held_back) = (Vec::with_capacity(effects.len()), Vec::new());
        let (mut unaccepted, mut unaccepted_resumes) = (Vec::new(), Vec::new());
        // A step may add tasks of a batch besides carrying out a request: only replies about these tasks are refused.
        let is_refused = |reply: &Reply, accepted: &BTreeSet<TaskId>| match reply {
            Reply::Task(task) => withdrawn.contains(&task.id),
            Reply::Rerun(pairs) => pairs.iter().any(|(new, _)| withdrawn.contains(new)),
            Reply::Many { batch, ids } => {
                !accepted.contains(batch) && ids.iter().any(|id| withdrawn.contains(id))
            }
            _ => false,
        };
        let is_resuming =
            |task: TaskId| core.get(&task.into()).is_ok_and(|task| matches!(task.state, State::Resuming(_)));
        for effect in effects {
            match effect {
                Effect::Start { task, run, .. } if is_resuming(task) => unaccepted_resumes.push((task, run)),
                Effect::Start { executor, task, run, spec, begin } if !withdrawn.contains(&task) => {
                    durable.held.push(HeldStart { executor, task, run, spec, begin });
                    held_back.push(task);
                }
                // The process is already running, and the program that handed it over is notified that it continues
                // here.
                Effect::Start { begin: Begin::HandedOver, .. } => rest.push(effect),
                Effect::Start { .. } => {}
                Effect::Over { .. } | Effect::Written { .. } | Effect::CaughtUp { .. } => {
                    durable.held_effects.push(effect);
                }
                Effect::Reply { to, reply } if is_refused(&reply, &durable.accepted) => unaccepted.push(to),
                effect => rest.push(effect),
            }
        }
        durable.note_entered(&entering);
        self.refuse_unwritten(unaccepted);
        self.apply(rest);
        if !added.is_empty() || !refused.is_empty() {
            self.withdraw(&added, &refused);
        }
        for (task, run) in unaccepted_resumes {
            if let Some(error) = self.unwritable() {
                self.fact(task, run, Fact::Refused(Box::new(error.into())));
            }
        }
        for task in held_back.iter().chain(&added) {
            self.act_on_early(*task);
        }
    }

    /// Withdraws tasks that could not be written, and the tasks of these batches that are still to be added.
    fn withdraw(&mut self, tasks: &[TaskId], batches: &[TaskId]) {
        let why = self.trouble_words();
        let mut effects = self.core.withdraw(self.now(), tasks, batches, &why);
        let mut unaccepted = Vec::new();
        effects.retain(|effect| match effect {
            Effect::Reply { to, reply: Reply::Many { .. } } => {
                unaccepted.push(*to);
                false
            }
            _ => true,
        });
        self.refuse_unwritten(unaccepted);
        self.commit_effects(effects);
    }

    /// Refuses calls whose tasks could not be written.
    fn refuse_unwritten(&mut self, calls: Vec<ReplyTo>) {
        for to in calls {
            if let (Some((answer, _)), Some(error)) = (self.pending.remove(&to), self.unwritable()) {
                answer.refuse(&error);
            }
        }
    }

    pub(super) fn trouble_words(&self) -> String {
        let trouble = self.durable.as_ref().and_then(|durable| durable.trouble.as_ref());
        let why = trouble.map_or_else(|| "the reason is unknown".to_owned(), Trouble::to_string);
        format!("the journal can't be written: {why}")
    }

    /// Returns why what is done now is not in the journal; `None` if it is, or if there is no journal.
    pub(super) fn unrecorded(&self) -> Option<String> {
        let is_written = self.durable.as_ref().is_none_or(|durable| durable.is_written);
        (!is_written).then(|| self.trouble_words())
    }

    /// Returns the error for a submission while the journal can't be written; `None` if it can.
    pub(super) fn unwritable(&self) -> Option<RpcError> {
        let durable = self.durable.as_ref().filter(|durable| durable.trouble.is_some())?;
        let hint = if durable.is_missing() {
            // The reason says what to do.
            "running tasks continue, and submissions are accepted again within a second after the folder is back"
        } else if durable.has_panicked() {
            "running tasks continue, and the next daemon finds them again"
        } else if durable.is_file_limited() {
            "`bgctl daemon restart` from a shell without that limit: running tasks continue"
        } else {
            "free some space, or make the disk writable again: running tasks continue, and submissions are accepted \
             again within a second after that"
        };
        Some(RpcError::new(ErrorKind::JournalUnwritable, self.trouble_words()).hint(hint))
    }

    /// Refuses a call that would add a task while the journal can't be written. Otherwise returns the call.
    pub(super) fn refuse_unwritable(&mut self, answer: Answer, body: Body) -> Option<(Answer, Body)> {
        let adds = matches!(
            &body,
            Body::Submit(..)
                | Body::Many(..)
                | Body::Prompt(..)
                | Body::Handoff(..)
                | Body::Core(Request::Rerun(_) | Request::Resume { .. } | Request::Adopt { .. })
        );
        match self.unwritable().filter(|_| adds) {
            Some(error) => {
                if matches!(body, Body::Many(..)) {
                    self.refuse_part(&answer, &error);
                } else {
                    answer.refuse(&error);
                }
                None
            }
            None => Some((answer, body)),
        }
    }

    /// Reports whether the journal can't be written.
    pub(super) fn has_trouble(&self) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.trouble.is_some())
    }

    /// Reports whether the journal can't be written until the daemon is restarted.
    pub(super) fn has_panicked_journal(&self) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.has_panicked())
    }

    /// Leaves the start of a process to the next daemon if this one is ending, or was just asked to: the end of the unit
    /// or scope that contains both would kill a process that starts now. Returns whether it does.
    pub(super) fn leave_start(&mut self, task: TaskId, begin: &Begin) -> bool {
        let is_process = matches!(begin, Begin::Process { .. });
        if self.durable.is_none() || !is_process || !(self.core.is_closing() || signals::is_end_pending()) {
            return false;
        }
        let outlives = |task: &Task| announces_itself(task) && task.outlives_daemon();
        let is_left =
            self.core.get(&task.into()).is_ok_and(|task| outlives(&task)) && self.take_back_start(task);
        if is_left {
            // Nothing starts until the signal is read, nor after that.
            self.handle(Input::HoldStarts(!self.core.is_closing() || self.has_trouble()));
        }
        is_left
    }

    /// Reports whether a task's start is held back until the journal can be written.
    pub(super) fn is_held_back(&self, task: TaskId) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.held.iter().any(|start| start.task == task))
    }

    /// Ends tasks that were stopped while their start was held back.
    fn drop_stopped_starts(&mut self) {
        let Some(durable) = &mut self.durable else { return };
        let core = &self.core;
        let is_stopped = |start: &mut HeldStart| {
            let task = core.get(&start.task.into());
            task.map_or(true, |task| !matches!(task.state, State::Starting { stop: None, .. }))
        };
        let stopped: Vec<HeldStart> = durable.held.extract_if(.., is_stopped).collect();
        for HeldStart { task, run, .. } in stopped {
            let failure = "it was not started".into();
            self.fact(task, run, Fact::StartFailed { failure });
        }
    }
}
