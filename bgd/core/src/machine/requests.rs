//! Requests from clients.

use std::collections::BTreeSet;
use std::sync::Arc;

use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::limits::FOREGROUND_JOBS;
use bgd_shared::task::Status;
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;

use super::{Core, Phase, commands, wall_time};
use crate::agent::AgentPart;
use crate::caller::{Asker, ReplyTo};
use crate::control::Control;
use crate::effect::{CoreError, Reply};
use crate::input::{Cancel, Command, LeavePolicy, Request, Selection};
use crate::plan::{Attempt, Plan};
use crate::queue::Standing;
use crate::room::{GivesWay, Stays};
use crate::task::{Finished, Lingering, Ordinal, Outcome, SIGTERM, Spec, State, StopReason, Task, Work};
use crate::time::Now;
use crate::waiters::{Block, Until, WaitAction};

/// The parts of a new task.
pub(super) struct NewTask {
    pub id: TaskId,
    pub spec: Spec,
    pub env: Arc<Env>,
    /// The prompt, for an agent.
    pub prompt: Option<Arc<str>>,
    pub key: Option<Arc<str>>,
    /// The client whose foreground job it is.
    pub client: Option<u64>,
    pub plan: Option<Box<Plan>>,
}

/// Returns the asker if this request ends tasks.
fn asker(to: ReplyTo, request: &Request) -> Option<Asker> {
    let removes = match request {
        Request::Cancel(_) => false,
        Request::Clear { .. } | Request::EndSession { .. } => true,
        Request::Submit(_)
        | Request::SubmitMany(_)
        | Request::Rerun(_)
        | Request::Detach { .. }
        | Request::Adopt { .. }
        | Request::Resume { .. }
        | Request::Answer { .. }
        | Request::Retrieve { .. }
        | Request::Block { .. }
        | Request::Hold { .. }
        | Request::Edit(_)
        | Request::SetGroup { .. }
        | Request::PauseGroup { .. }
        | Request::RemoveGroup { .. }
        | Request::Signal { .. }
        | Request::SetPaused { .. }
        | Request::OwnSession { .. }
        | Request::ReadInbox { .. }
        | Request::AckInbox { .. }
        | Request::TakeItem { .. }
        | Request::Shutdown { .. } => return None,
    };
    Some(Asker { client: to.client, removes })
}

impl Core {
    pub(super) fn request(&mut self, now: Now, to: ReplyTo, request: Request) {
        self.asker = asker(to, &request);
        let outcome = match request {
            Request::Submit(command) => self.submit(now, to, *command),
            Request::SubmitMany(part) => self.submit_many(now, to, *part),
            Request::Rerun(rerun) => self.rerun(now, to, &rerun),
            Request::Detach { id } => self.detach(now, to, &id),
            Request::Adopt { command, pid, started_at } => self.adopt(now, to, *command, pid, started_at),
            Request::Resume { id, prompt, settings } => self.resume(to, &id, prompt, &settings),
            Request::Answer { id, request, option } => self.answer(now, to, &id, request, option),
            Request::Retrieve { id, complete } => self.retrieve(now, to, &id, complete),
            Request::Block { which, timeout_ms, mode, until } => {
                let deadline = timeout_ms.map(|timeout| now.mono.plus_ms(timeout));
                self.block(now, &which, Block { to, tasks: Vec::new(), batch: None, deadline, mode, until })
            }
            Request::Cancel(cancel) => self.cancel(now, to, &cancel),
            Request::Clear { which, active_too } => self.clear(now, to, &which, active_too),
            Request::Hold { which, held } => self.hold(now, to, &which, held),
            Request::Edit(edit) => self.edit(now, to, *edit),
            Request::SetGroup { name, slots } => self.set_group(to, &name, slots),
            Request::PauseGroup { name, paused } => self.pause_group(to, &name, paused),
            Request::RemoveGroup { name } => self.remove_group(to, &name),
            Request::Signal { id, signal, tree } => self.signal(to, &id, signal, tree),
            Request::SetPaused { which, paused } => self.set_paused(now, to, &which, paused),
            Request::EndSession { session } => {
                let tasks = self.registry.of_session(Some(&session));
                let may_wait = self.may_wait_for_end(to, &tasks);
                may_wait.map(|()| self.end_session(now, Some(to), &session, &[]))
            }
            Request::OwnSession { session } => self.own(to, session),
            Request::ReadInbox { session, after, wait_ms, limit } => {
                self.read_inbox(now, to, session, after, wait_ms, limit)
            }
            Request::AckInbox { session, upto } => {
                let counts = self.inboxes.acknowledge(to.client, &session, upto);
                self.acknowledged(to, counts);
                Ok(())
            }
            Request::TakeItem { session, number, removes } => {
                self.take_item(to, &session, number, removes);
                Ok(())
            }
            Request::Shutdown { grace_ms, leaves } => {
                self.shutdown(now, to, grace_ms, leaves);
                Ok(())
            }
        };
        self.asker = None;
        if let Err(error) = outcome {
            self.reply(Some(to), Reply::Error(error));
        }
    }

    fn submit(&mut self, now: Now, to: ReplyTo, command: Command) -> Result<(), CoreError> {
        if self.phase != Phase::Open {
            return Err(CoreError::ShuttingDown);
        }
        let session = command.spec.session.as_deref();
        if let Some(known) = command.key.as_deref().and_then(|key| self.registry.by_key(session, key)) {
            let known = self.registry.ordinal(known.id);
            if let Some(known) = known.filter(|_| command.foreground) {
                self.regain(known, to.client)?;
            }
            if let Some(known) = known.and_then(|known| self.snapshot(known)) {
                self.reply(Some(to), Reply::Task(known));
            }
            return Ok(());
        }
        let client = command.foreground.then_some(to.client);
        if client.is_some_and(|client| self.jobs_of(client).len() >= FOREGROUND_JOBS) {
            return Err(CoreError::TooManyJobs(FOREGROUND_JOBS));
        }
        let ordinal = self.insert(now, command, client)?;
        self.event(now, EventKind::Submitted, ordinal);
        self.watch_dependencies(now, ordinal);
        if let Some(snapshot) = self.snapshot(ordinal) {
            self.reply(Some(to), Reply::Task(snapshot));
        }
        // A foreground job takes a slot but does not wait for one, as its user is watching.
        if client.is_some() {
            self.begin(ordinal);
        }
        Ok(())
    }

    /// Creates and adds a pending task: the foreground job of `client`, if given.
    pub(super) fn insert(
        &mut self,
        now: Now,
        command: Command,
        client: Option<u64>,
    ) -> Result<Ordinal, CoreError> {
        if self.phase != Phase::Open {
            return Err(CoreError::ShuttingDown);
        }
        let Command { id, spec, env, prompt, key, foreground: _, plan } = command;
        let plan = self.plan_of(now, plan)?;
        let mut stays = Stays::of(plan.iter().flat_map(|plan| plan.needed()));
        if self.room(&stays) == 0 {
            return Err(CoreError::Full(self.limits.tasks));
        }
        let env = self.registry.share_env(env);
        let task = self.new_task(now, NewTask { id, spec, env, prompt, key, client, plan });
        stays.extend_with(&task);
        self.check_memory(self.registry.held_more_with([&task]), &stays)?;
        self.give_way(GivesWay::TO_TASKS);
        Ok(self.add(task))
    }

    /// Builds a pending task.
    pub(super) fn new_task(&mut self, now: Now, new: NewTask) -> Task {
        let NewTask { id, mut spec, env, prompt, key, client, mut plan } = new;
        self.registry.share_spec(&mut spec);
        if let Some(again) = plan.as_deref_mut().and_then(|plan| plan.again.as_deref_mut()) {
            again.env = env.clone();
        }
        let agent = match &spec.work {
            Work::Agent(work) => {
                Some(Box::new(AgentPart::new(work, prompt.unwrap_or_default(), env.clone())))
            }
            Work::Argv(_) | Work::Shell(_) => None,
        };
        let task = Task::new(id, Arc::new(spec), now.wall, State::Queued { env });
        Task { key, agent, foreground: client, plan, ..task }
    }

    /// Adds a pending task to the registry, the queue and the timers.
    pub(super) fn add(&mut self, task: Task) -> Ordinal {
        let (standing, deadline, time) = (Standing::from(&task), task.deadline(), wall_time(&task));
        let client = task.foreground;
        let ordinal = self.registry.insert(task);
        self.queue.change(ordinal, &Standing::Out, &standing);
        self.retime_to(ordinal, None, deadline);
        self.wall_timers.extend(time.map(|at| (at, ordinal)));
        if let Some(client) = client {
            self.foreground.insert((client, ordinal));
        }
        ordinal
    }

    fn retrieve(&mut self, now: Now, to: ReplyTo, id: &TaskRef, complete: bool) -> Result<(), CoreError> {
        let ordinal = self.find(id)?;
        let Some(task) = self.registry.get(ordinal) else { return Ok(()) };
        let status = task.status();
        if complete && status != Status::Completed {
            let finished = task.finished().cloned().map(Box::new);
            return Err(CoreError::NotComplete(task.id, status, finished));
        }
        if status == Status::Completed && task.retrieved_at.is_none() {
            self.registry.change(ordinal, |task| task.retrieved_at = Some(now.wall));
        }
        if let Some(snapshot) = self.snapshot(ordinal) {
            self.reply(Some(to), Reply::Task(snapshot));
        }
        Ok(())
    }

    fn cancel(&mut self, now: Now, to: ReplyTo, cancel: &Cancel) -> Result<(), CoreError> {
        let mut tasks = self.select(&cancel.which)?;
        // A task being resumed has not ended, although its status is not active yet.
        if !matches!(cancel.which, Selection::Ids(_)) {
            tasks.retain(|ordinal| self.registry.get(*ordinal).is_some_and(|task| !task.is_finished()));
        }
        self.may_wait_for_end(to, &tasks)?;
        self.cancel_entering(&cancel.which)?;
        let signal = cancel.signal.unwrap_or(SIGTERM);
        let grace_ms = cancel.grace_ms.unwrap_or(self.limits.grace_ms);
        self.stop_all(now, &tasks, StopReason::Cancelled, signal, grace_ms);
        self.wait(now, self.waiter(to, &tasks, Until::Settled, WaitAction::Cancel));
        Ok(())
    }

    fn clear(&mut self, now: Now, to: ReplyTo, which: &Selection, active_too: bool) -> Result<(), CoreError> {
        let mut tasks = self.select(which)?;
        match which {
            Selection::Ids(_) => {
                if let Some(task) = self.first_active(&tasks).filter(|_| !active_too) {
                    return Err(CoreError::StillActive(task.id, task.status()));
                }
            }
            Selection::All { .. } | Selection::Matching(_) if !active_too => {
                tasks.retain(|ordinal| self.registry.get(*ordinal).is_some_and(Task::is_gone));
            }
            Selection::All { .. } | Selection::Matching(_) => {}
        }
        self.may_wait_for_end(to, &tasks)?;
        if active_too {
            let is_meant = self.means_entering(which)?;
            self.drop_entering(is_meant);
        }
        self.stop_all(now, &tasks, StopReason::Cancelled, SIGTERM, self.limits.grace_ms);
        self.wait(now, self.waiter(to, &tasks, Until::Settled, WaitAction::Clear));
        Ok(())
    }

    fn first_active(&self, tasks: &[Ordinal]) -> Option<&Task> {
        tasks.iter().filter_map(|ordinal| self.registry.get(*ordinal)).find(|task| !task.is_finished())
    }

    fn signal(&mut self, to: ReplyTo, id: &TaskRef, signal: i32, tree: bool) -> Result<(), CoreError> {
        let ordinal = self.find(id)?;
        let Some(task) = self.registry.get(ordinal) else { return Ok(()) };
        let id = task.id;
        if task.agent.is_some() {
            return Err(CoreError::NoSignals(id));
        }
        let takes_signals = match &task.state {
            State::Queued { .. } | State::Starting { .. } | State::Resuming(_) => false,
            State::Running { .. } => true,
            State::Stopping { exit, .. } => exit.is_none() || tree,
            State::Finished(Finished { lingering, .. }) => tree && *lingering != Lingering::No,
        };
        if !takes_signals {
            return Err(CoreError::NotRunning(id, task.status()));
        }
        let signalled = commands::control(task, Control::Signal { signal, tree });
        self.effects.push(signalled);
        if let Some(snapshot) = self.snapshot(ordinal) {
            self.reply(Some(to), Reply::Task(snapshot));
        }
        Ok(())
    }

    /// Ends a parent session: cancels and clears its tasks, and empties its inbox. Drops the tasks of its batches that
    /// are still to be added, and its incomplete batches. The tasks in `asked` were already asked to end, and are not
    /// asked again.
    pub(super) fn end_session(
        &mut self,
        now: Now,
        to: Option<ReplyTo>,
        session: &Arc<str>,
        asked: &[Ordinal],
    ) {
        self.inboxes.remove(session);
        self.batches.staged.retain(|_, staged| staged.common.spec.session.as_ref() != Some(session));
        self.drop_entering(|entering| entering.spec.session.as_ref() == Some(session));
        let tasks = self.registry.of_session(Some(session));
        let cancelled = self.count_active(&tasks);
        let others: Vec<Ordinal> = tasks.iter().copied().filter(|task| !asked.contains(task)).collect();
        self.stop_all(now, &others, StopReason::SessionEnded, SIGTERM, self.limits.grace_ms);
        self.wait(now, self.waiter(to, &tasks, Until::Settled, WaitAction::EndSession { cancelled }));
    }

    fn shutdown(&mut self, now: Now, to: ReplyTo, grace_ms: Option<u64>, leaves: LeavePolicy) {
        if self.phase == Phase::Open {
            self.phase = Phase::Closing;
        }
        // Pending tasks outlive a durable daemon in any case.
        let is_left = |task: &Task| match leaves {
            LeavePolicy::Nothing => false,
            LeavePolicy::Elsewhere => task.outlives_daemon() && task.spec.is_elsewhere(),
            LeavePolicy::All => task.outlives_daemon(),
        };
        let stays = |task: &Task| {
            self.registry.is_tracked() && (matches!(task.state, State::Queued { .. }) || is_left(task))
        };
        let left =
            self.registry.iter().filter(|(_, task)| task.has_run() && !task.is_finished() && stays(task));
        let left = left.count() as u64;
        let ends = |task: &Task| !task.is_settled() && !stays(task);
        let tasks: Vec<Ordinal> =
            self.registry.iter().filter(|(_, task)| ends(task)).map(|(ordinal, _)| ordinal).collect();
        let cancelled = self.count_active(&tasks);
        let earlier = self.earlier_shutdowns(&tasks, left);
        let grace_ms = grace_ms.unwrap_or(self.limits.grace_ms);
        self.stop_all(now, &tasks, StopReason::Shutdown, SIGTERM, grace_ms);
        for (to, tasks, then) in earlier {
            self.wait(now, self.waiter(to, &tasks, Until::Settled, then));
        }
        self.wait(now, self.waiter(to, &tasks, Until::Settled, WaitAction::Shutdown { cancelled, left }));
    }

    /// Takes out the waits of earlier shutdown requests. As a later request may end more tasks, earlier ones have to
    /// wait for these, too: the daemon ends with the first of these waits that is over.
    fn earlier_shutdowns(
        &mut self,
        tasks: &[Ordinal],
        left: u64,
    ) -> Vec<(Option<ReplyTo>, Vec<Ordinal>, WaitAction)> {
        let mut earlier = Vec::new();
        let about_to_end = std::mem::take(&mut self.portions.shutdowns);
        for waiter in self.waiters.take_shutdowns().into_iter().chain(about_to_end) {
            let WaitAction::Shutdown { mut cancelled, .. } = waiter.then else { continue };
            let mut all: BTreeSet<Ordinal> = waiter.tasks.iter().map(|(ordinal, _)| *ordinal).collect();
            let more: Vec<Ordinal> = tasks.iter().copied().filter(|task| all.insert(*task)).collect();
            cancelled += self.count_active(&more);
            earlier.push((waiter.to, all.into_iter().collect(), WaitAction::Shutdown { cancelled, left }));
        }
        earlier
    }

    fn count_active(&self, tasks: &[Ordinal]) -> u64 {
        let active =
            |ordinal: &&Ordinal| self.registry.get(**ordinal).is_some_and(|task| !task.is_finished());
        tasks.iter().filter(active).count() as u64
    }

    /// Ends a task that is not running: it has not started, or waits for another attempt.
    pub(super) fn finish_unstarted(&mut self, now: Now, ordinal: Ordinal, outcome: Outcome) {
        self.end(now, ordinal, self.unstarted(now, ordinal, outcome));
    }

    /// Describes the end of a task that is not running. Process and exit are those of its last attempt, if any, and the
    /// start is that of the last one that has started; a cluster requeues a task without ending the attempt.
    pub(super) fn unstarted(&self, now: Now, ordinal: Ordinal, outcome: Outcome) -> Finished {
        let attempt = self.failed_start(now, ordinal, outcome);
        let before = self.last_attempt(ordinal);
        Finished {
            pid: before.and_then(|attempt| attempt.pid),
            started_at: self.last_start(ordinal).or(attempt.started_at),
            exit: before.and_then(|attempt| attempt.exit.clone()),
            ..attempt
        }
    }

    /// Describes the end of an attempt that has not started, as far as is known: process, start and exit of the attempt
    /// before are not its own.
    pub(super) fn failed_start(&self, now: Now, ordinal: Ordinal, outcome: Outcome) -> Finished {
        let elsewhere = self.registry.get(ordinal).and_then(|task| task.elsewhere.as_ref());
        Finished {
            outcome,
            pid: None,
            started_at: elsewhere.filter(|known| known.requeued > 0).and_then(|known| known.started),
            completed_at: now.wall,
            exit: None,
            lingering: Lingering::No,
            in_foreground: false,
        }
    }

    /// Returns the last ended attempt of a task that has another one.
    fn last_attempt(&self, ordinal: Ordinal) -> Option<&Attempt> {
        self.registry.get(ordinal)?.plan().again.as_deref()?.attempts.last()
    }

    /// Returns when the last ended attempt that has started did so.
    pub(super) fn last_start(&self, ordinal: Ordinal) -> Option<Timestamp> {
        Some(self.registry.get(ordinal)?.plan().again.as_deref()?.last_started()?.started_at)
    }
}
