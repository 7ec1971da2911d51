//! The rules that must hold after every step.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::wire::failures;
use bgd_core::{
    Begin, Blocked, Control, CoreError, Effect, Lingering, Outcome, QueuePlace, Reply, ReplyTo, Snapshot,
    Spec, State, StopReason, Work,
};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::order::DEFAULT_GROUP;
use bgd_shared::task::Status;
use bgd_shared::text::Env;
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};

use super::super::expected::{Answer, Decision, Expected, Prompted, SentNotice};
use super::super::model::Phase;
use super::super::support::{FIRST_PROMPT, KILL};
use super::procs::{Proc, ProcState};
use super::{Checked, Sim};

impl Sim {
    /// Compares the core's effects with the expected ones, and checks every rule that holds after each step.
    pub(super) fn check(&mut self, mut expected: Expected, effects: Vec<Effect>) -> Checked {
        self.steps += 1;
        if let Some(place) = self.model.forgot.take() {
            self.reach(place);
        }
        let mut done = Expected::default();
        for effect in effects {
            prop_assert!(!done.exit, "something comes after the exit: {:?}", effect);
            self.carry_out(effect, &mut done)?;
        }
        for effects in [&mut expected, &mut done] {
            effects.ends.sort_by_key(|(task, _)| *task);
            effects.decisions.sort_by_key(|decision| decision.task);
            effects.events.sort_by_key(|(task, _)| *task);
            effects.notices.sort_by_key(|notice| notice.task);
            effects.forgets.sort();
        }
        prop_assert_eq!(&done, &expected);
        done.places().into_iter().for_each(|place| self.reach(place));
        self.r55_every_end_has_a_notice()?;
        self.write_down();
        self.r126_no_order_is_lost()?;
        self.rules_after_each_step(&done)
    }

    fn is_started(
        &mut self,
        task: TaskId,
        run: u32,
        spec: &Spec,
        begin: Begin,
        done: &mut Expected,
    ) -> Checked {
        match begin {
            Begin::Process { env, .. } => {
                let known = self.model.get(task);
                prop_assert!(known.is_some_and(|known| run == known.run && known.session == spec.session));
                self.begin(task, run, false, &env)?;
                done.starts.push(task);
            }
            Begin::Prompt { env, prompt, settings, session, .. } => {
                prop_assert!(matches!(spec.work, Work::Agent(_)));
                self.begin(task, run, true, &env)?;
                if session.is_some() {
                    done.prompts.push(Prompted { task, run, prompt, settings, session });
                } else {
                    let set = self.model.get(task).and_then(|task| Some(&task.chat.as_ref()?.settings));
                    prop_assert_eq!((&*prompt, Some(&*settings)), (FIRST_PROMPT, set));
                    done.starts.push(task);
                }
            }
            Begin::HandedOver => {
                self.take_over(task, run)?;
                done.adopts.push(task);
            }
        }
        Ok(())
    }

    /// Carries out an effect as executors, clients and subscribers would, and records it.
    fn carry_out(&mut self, effect: Effect, done: &mut Expected) -> Checked {
        match effect {
            Effect::Start { executor, task, run, spec, begin } => {
                prop_assert_eq!(executor, spec.executor());
                self.is_started(task, run, &spec, begin, done)?;
            }
            Effect::Control { task, control: Control::Detach { client }, .. } => {
                self.hide(task, client)?;
                done.detached.push((task, client));
            }
            Effect::Control { task, run, control: Control::Answer { key, option, .. }, .. } => {
                let proc = self.procs.iter_mut().find(|proc| (proc.task, proc.run) == (task, run));
                let waited = proc.is_some_and(|proc| proc.waiting.remove(&key));
                prop_assert!(waited, "{task} does not wait for an answer to {key}, or not any more");
                done.decisions.push(Decision { task, key, option: option.map(Into::into) });
            }
            Effect::End { task, run, signal, .. } => {
                self.is_ordered_to_end(task, run, signal)?;
                done.ends.push((task, signal));
            }
            Effect::Control { task, run, control: Control::Signal { signal, tree }, .. } => {
                prop_assert!(self.takes_signals(task, run), "nobody is left to be told");
                done.signals.push((task, signal, tree));
            }
            Effect::Control {
                task, run, control: control @ (Control::Pause | Control::Continue), ..
            } => {
                let Some(proc) = self.living(task, run) else {
                    return Err(TestCaseError::fail("nobody is left to be paused"));
                };
                proc.orders.add(&control);
                done.pauses.push((task, control == Control::Pause));
            }
            Effect::Control { control: Control::Hold { .. } | Control::Priority { .. }, .. } => {
                return Err(TestCaseError::fail("a task of this machine waits in no other queue"));
            }
            Effect::Over { task, run, .. } => {
                prop_assert!(self.living(task, run).is_none(), "its end is not over");
            }
            Effect::Written { .. } => return Err(TestCaseError::fail("nothing of it is elsewhere")),
            Effect::Forget { task, run, .. } => {
                let lives = self.procs.iter().any(|proc| proc.task == task && !proc.gave_up);
                prop_assert!(!lives, "forgotten while it lives");
                prop_assert!(
                    self.runs.get(&task).is_none_or(|(last, _)| *last == run || *last + 1 == run),
                    "another run is forgotten"
                );
                done.forgets.push(task);
            }
            Effect::Reply { to, reply } => self.is_answered(to, &reply, done)?,
            Effect::Event { seq, at, kind, task } => {
                prop_assert_eq!((seq, at), (self.seq + 1, self.now.wall));
                self.seq = seq;
                prop_assert!(kind != EventKind::Cleared || done.forgets.contains(&task.id));
                self.life_goes_on(kind, &task)?;
                self.job_goes_on(kind, &task, done)?;
                self.expect_notice(kind, &task)?;
                done.events.push((task.id, kind));
            }
            Effect::Notice { notice, seen_by } => {
                self.is_seen_truly(&seen_by)?;
                let sent = SentNotice::from(&*notice);
                self.notice_is_true(&notice, &sent)?;
                done.notices.push(sent);
            }
            Effect::Exit => done.exit = true,
            Effect::CaughtUp { .. } => panic!("only a dispatcher says so"),
        }
        Ok(())
    }

    /// Only clients with pending calls may be listed as seeing a notice anyway.
    fn is_seen_truly(&mut self, seen_by: &BTreeSet<u64>) -> Checked {
        let is_open = |client: &u64| self.open.iter().any(|to| to.client == *client);
        prop_assert!(seen_by.iter().all(is_open), "{:?} see it, and ask for nothing", seen_by);
        if !seen_by.is_empty() {
            self.reach("a notice is seen anyway");
        }
        Ok(())
    }

    fn is_answered(&mut self, to: ReplyTo, reply: &Reply, done: &mut Expected) -> Checked {
        let answer = Answer::from(reply);
        self.reply_follows_its_effect(&answer)?;
        self.hand_over_is_reported_truly(to, &answer, done)?;
        self.r55_an_inbox_is_true(to, &answer)?;
        let of_resume = self.resumes.remove(&to);
        let is_gone = !self.clients.contains(&to.client);
        prop_assert!(of_resume || !is_gone, "a client that is gone is answered");
        if is_gone {
            self.reach("resume of nobody");
        }
        prop_assert!(self.open.remove(&to), "answered twice");
        done.replies.insert(to, answer);
        Ok(())
    }

    fn is_ordered_to_end(&mut self, task: TaskId, run: u32, signal: i32) -> Checked {
        if signal == KILL
            && let Some(proc) = self.starting(task, run)
        {
            // The process gets the signal once it runs.
            proc.ends.push(signal);
            proc.gave_up = true;
            self.reach("a start hangs");
            return Ok(());
        }
        let Some(proc) = self.living(task, run) else {
            return Err(TestCaseError::fail("nobody is left to be ended"));
        };
        proc.ends.push(signal);
        proc.orders.add_end(signal);
        if self.model.get(task).is_some_and(|task| task.phase == Phase::Resuming) {
            self.reach("stopped while resuming");
        }
        Ok(())
    }

    /// Begins a run: it must have a new number and the submitter's environment.
    fn begin(&mut self, task: TaskId, run: u32, is_agent: bool, env: &Arc<Env>) -> Checked {
        prop_assert!(self.procs.iter().all(|proc| proc.task != task || proc.gave_up), "{task} runs already");
        let bytes = self.core.get(&task.into()).map_or(0, |task| task.output_bytes[0]);
        if let Some((before, known)) = self.runs.insert(task, (run, Arc::clone(env))) {
            prop_assert!(run > before && *env == known, "run {run} comes after {before}");
        }
        self.procs.push(Proc::new(task, run, is_agent, bytes));
        Ok(())
    }

    pub(super) fn reach(&mut self, place: &'static str) {
        *self.reached.entry(place).or_default() += 1;
    }

    /// Returns a process that is being started.
    fn starting(&mut self, task: TaskId, run: u32) -> Option<&mut Proc> {
        let is_starting = |proc: &&mut Proc| !proc.is_agent && proc.state == ProcState::Spawning;
        self.procs.iter_mut().find(|proc| (proc.task, proc.run) == (task, run) && is_starting(proc))
    }

    /// Reports whether an executor accepts a signal for a run. After a start that was given up, there may be no process
    /// to receive it yet.
    fn takes_signals(&mut self, task: TaskId, run: u32) -> bool {
        let is_given_up = self.starting(task, run).is_some_and(|proc| proc.gave_up);
        is_given_up || self.living(task, run).is_some()
    }

    /// Returns the executor of a run that accepts commands: that of a process once it runs, that of an agent at any
    /// time.
    fn living(&mut self, task: TaskId, run: u32) -> Option<&mut Proc> {
        self.procs.iter_mut().find(|proc| {
            (proc.task, proc.run) == (task, run) && (proc.is_agent || proc.state != ProcState::Spawning)
        })
    }

    /// Checks that the core, the model and the agent agree about a task.
    pub(super) fn compare(&self, id: TaskId) -> Checked {
        let Some(known) = self.model.get(id) else { return Ok(()) };
        let Ok(task) = self.core.get(&id.into()) else {
            return Err(TestCaseError::fail(format!("{id} is gone")));
        };
        prop_assert!(known.agrees(&task), "{:?}\nis not\n{:?}", task, known);
        prop_assert!(task.place != QueuePlace::Next, "{} could have started", id);
        let is_parked = task.place == QueuePlace::Blocked(Blocked::Batch);
        prop_assert_eq!(is_parked, self.model.is_parked(known), "{} waits for its batch", id);
        self.is_shown_rightly(&task)?;
        self.notes_no_order(id)?;
        self.questions_have_notices(&task)?;
        let Some(agent) = &task.agent else { return Ok(()) };
        let asked = agent.questions.iter().map(|question| question.key);
        let proc = self.procs.iter().find(|proc| proc.task == id);
        prop_assert!(asked.eq(proc.into_iter().flat_map(|proc| proc.waiting.iter().copied())));
        if task.status().is_active() {
            prop_assert!(!self.ended.contains_key(&id), "{id} is active again, and nobody heard of it");
        } else {
            prop_assert_eq!(self.ended.get(&id), Some(&end_of(&task)), "the end of {} has changed", id);
            prop_assert!(!agent.stalled && agent.questions.is_empty(), "{id} has ended and still waits");
        }
        Ok(())
    }

    /// A task that a reply shows as ended must have had its terminal event before.
    fn reply_follows_its_effect(&self, answer: &Answer) -> Checked {
        let tasks = match answer {
            Answer::Tasks(tasks) | Answer::Blocked { tasks, .. } => tasks.as_slice(),
            Answer::Task(id, status)
            | Answer::Backgrounded(id, status)
            | Answer::Error(CoreError::EndedFirst(id, status)) => &[(*id, *status)],
            _ => &[],
        };
        for (id, status) in tasks {
            let latest = self.latest_events.get(id);
            let is_over = latest.is_some_and(|kind| kind.is_terminal() || *kind == EventKind::Cleared);
            prop_assert!(is_over != status.is_active(), "{id} is {status}, told: {latest:?}");
        }
        Ok(())
    }

    /// Checks the order of events: `submitted` comes first, `started` once per attempt, one terminal event, `cleared`
    /// last. Only a resume comes between a completion and another terminal event.
    fn life_goes_on(&mut self, kind: EventKind, task: &Snapshot) -> Checked {
        use EventKind::{
            Backgrounded, Cancelled, Cleared, Completed, Continued, Edited, Failed, Held, NeedsInput, Output,
            Paused, Progress, Ready, Released, Resumed, Retrying, Started, Submitted,
        };
        let (id, status) = (task.id, task.status());
        let before = self.latest_events.get(&id).copied();
        let at_work = match before {
            Some(Started) => Some(Status::Running),
            Some(Resumed) => Some(Status::Resumed),
            _ => None,
        };
        let waits = matches!(before, Some(Submitted | Retrying));
        let (fits, shown) = match kind {
            Submitted => (before.is_none(), status == Status::Pending),
            Started => (waits, status == Status::Running),
            Held | Released | Edited => (waits, status == Status::Pending),
            // A later attempt may fail to start.
            Retrying => (at_work.is_some() || before == Some(Retrying), status == Status::Pending),
            Resumed => (before == Some(Completed), status == Status::Resumed),
            // Only after its end may a run's usage become known, and its last process be gone.
            Progress if before.is_some_and(EventKind::is_terminal) => {
                (self.has_news_of_its_end(task), !status.is_active())
            }
            Output | Progress | NeedsInput | Ready => (at_work.is_some(), Some(status) == at_work),
            Completed => (at_work.is_some(), status == Status::Completed),
            Failed => (waits || at_work.is_some(), status == Status::Failed),
            Cancelled => (waits || at_work.is_some(), status == Status::Cancelled),
            Cleared => (before.is_some_and(EventKind::is_terminal), !status.is_active()),
            Paused | Continued | Backgrounded => {
                (waits || before == Some(Started), status == Status::Running)
            }
        };
        prop_assert!(fits && shown, "{:?} after {:?}, with a task that is {}", kind, before, status);
        self.start_is_true(task)?;
        if let Some(end) = task.finished() {
            self.rests.insert(id, (end.lingering, task.usage));
        }
        self.note_turn(kind, before, task);
        if let Some(agent) = &task.agent {
            prop_assert!(kind != NeedsInput || !agent.questions.is_empty());
            prop_assert!(!agent.stalled || agent.questions.is_empty(), "who waits is not stalled");
            if agent.stalled {
                self.reach("stalled");
            }
            if kind.is_terminal() {
                self.ended.insert(id, end_of(task));
            } else {
                self.ended.remove(&id);
            }
        }
        prop_assert!(!task.paused || kind != Continued && !kind.is_terminal(), "{id} is paused");
        let is_turn = !matches!(
            kind,
            Output
                | Progress
                | NeedsInput
                | Backgrounded
                | Held
                | Released
                | Edited
                | Ready
                | Paused
                | Continued
        );
        if is_turn {
            self.latest_events.insert(id, kind);
        }
        Ok(())
    }

    /// Reports whether an ended task shows more than its latest event did: its usage, or that nothing is left to wait
    /// for. What is given up may be gone later, after all.
    fn has_news_of_its_end(&self, task: &Snapshot) -> bool {
        let Some((end, (before, usage))) = task.finished().zip(self.rests.get(&task.id)) else {
            return false;
        };
        let has_settled = *before != Lingering::No && *before != end.lingering && end.lingering.is_settled();
        has_settled || task.usage != *usage
    }

    /// An ended task shows the start of the last run that has started, whatever could not start since then.
    fn start_is_true(&mut self, task: &Snapshot) -> Checked {
        if let State::Running { started_at, .. } | State::Stopping { started_at, .. } = &task.state {
            self.starts.insert(task.id, *started_at);
        }
        // Nothing may show that an agent that failed at once has started: it has no exit.
        if let Some(end) = task.finished().filter(|_| task.agent.is_none()) {
            prop_assert_eq!(end.started_at, self.starts.get(&task.id).copied(), "{} started then", task.id);
        }
        Ok(())
    }

    /// Counts the rarer transitions in a task's life.
    fn note_turn(&mut self, kind: EventKind, before: Option<EventKind>, task: &Snapshot) {
        use EventKind::{Cancelled, Failed, Paused, Resumed, Retrying, Started, Submitted};
        match (kind, before) {
            (Failed, Some(Started))
                if failures::error(task).is_some_and(|error| error.starts_with("not ready")) =>
            {
                self.reach("not ready");
            }
            (Retrying, _) if self.model.closing => self.reach("left to be tried again"),
            (Paused, Some(Submitted | Retrying)) => self.reach("paused while starting"),
            (Failed, Some(Resumed))
                if failures::error(task).is_some_and(|error| error.starts_with("timed out")) =>
            {
                self.reach("timed out after a resume");
            }
            (Failed, _) if failures::error(task).is_some_and(|error| error.starts_with("crash loop")) => {
                self.reach("a crash loop");
            }
            (Cancelled, _) if stopped_by(task).is_some_and(|why| matches!(why, StopReason::MaxFails(_))) => {
                self.reach("the rest of a batch is cancelled");
            }
            (Cancelled, _)
                if stopped_by(task).is_some_and(|why| matches!(why, StopReason::Dependency(..))) =>
            {
                self.reach("a dependency can't come true");
            }
            (Started, _) if task.plan().after.iter().any(|one| one.met) => self.reach("starts behind others"),
            (Failed, Some(Resumed)) => self.reach("resume fails"),
            (Cancelled, Some(Resumed)) => self.reach("resume is cancelled"),
            _ => {}
        }
    }

    fn rules_after_each_step(&mut self, done: &Expected) -> Checked {
        let model = &self.model;
        for (group, (slots, _)) in &model.groups {
            let had_waited = |id: &TaskId| {
                let task = model.get(*id);
                task.is_some_and(|task| {
                    task.foreground.is_none() && task.order.group() == group && task.order.slots > 0
                })
            };
            let (begins, used) = (done.starts.iter().any(had_waited), model.used(group));
            let takes = |task: &&super::super::model::Known| task.has_slot() && task.order.slots > 0;
            let alone = model.live.values().filter(|task| takes(task) && task.order.group() == group);
            prop_assert!(!begins || used <= *slots || alone.count() == 1, "{used} of {slots} slots are used");
            prop_assert!(
                model.next_of(group).is_none() || !model.starts_tasks(),
                "a slot of {group} is idle"
            );
        }
        if !model.closing && model.groups.keys().any(|group| model.next_of(group).is_some()) {
            self.reach("its start is held back");
        }
        let model = &self.model;
        if model.live.values().any(|task| model.is_parked(task)) {
            self.reach("waits for its batch");
        }
        let model = &self.model;
        for (running, jobs) in model.running_of_batches() {
            prop_assert!(running <= jobs as usize, "{running} of a batch run, and {jobs} may");
        }
        let wall_deadline = self.core.wall_deadline().map(bgd_shared::time::Timestamp::unix_ms);
        prop_assert_eq!(wall_deadline, model.wall_deadline());
        let (slots, limit) = (model.used(DEFAULT_GROUP), model.groups[DEFAULT_GROUP].0);
        prop_assert_eq!(self.core.summary(), model.summary(None));
        prop_assert_eq!(self.core.inboxes().lost, model.post.lost);
        prop_assert_eq!(self.core.deadline().map(|at| at.0), model.next_deadline());
        prop_assert_eq!(self.core.seq(), self.seq);
        prop_assert_eq!(self.core.is_closing(), model.closing);
        let none_is_left = self.procs.iter().all(|proc| proc.gave_up);
        // Tasks that a durable daemon leaves belong to the next one.
        prop_assert!(!done.exit || self.is_durable || (none_is_left && model.unanswered() == 0));
        for (id, _) in &done.events {
            self.compare(*id)?;
        }
        if slots > limit {
            self.reach("more than slots");
        }
        Ok(())
    }
}

/// Describes how a task has ended, with all data about that end.
fn end_of(task: &Snapshot) -> String {
    let Some(finished) = task.finished() else { return "not at all".to_owned() };
    let agent = task.agent.as_ref().map(|agent| {
        (&agent.prompt, &agent.session, agent.tool_calls, &agent.last_tools, agent.questions.len())
    });
    format!("{finished:?} {} {agent:?}", task.resume_count)
}

/// Returns why a task was cancelled.
fn stopped_by(task: &Snapshot) -> Option<StopReason> {
    match &task.finished()?.outcome {
        Outcome::Cancelled(reason) => Some(*reason),
        Outcome::Completed | Outcome::Failed(_) => None,
    }
}
