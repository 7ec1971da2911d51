//! What clients ask for.

use std::sync::Arc;

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskRef;
use bgd_shared::limits::FOREGROUND_JOBS;
use bgd_shared::task::Status;

use super::{Asker, Core, Phase, orders};
use crate::core::agent::AgentPart;
use crate::core::caller::ReplyTo;
use crate::core::effect::{Control, CoreError, Reply};
use crate::core::input::{Cancel, Command, Request, Selection};
use crate::core::queue::Standing;
use crate::core::task::{Finished, Lingering, Ordinal, Outcome, State, StopReason, Task, Work};
use crate::core::time::Now;
use crate::core::waiters::{Then, Until};

/// SIGTERM: the first signal of a cancel, unless the caller names one.
const SIGTERM: i32 = 15;

/// Who asks for the end of tasks by this request.
fn asker(to: ReplyTo, request: &Request) -> Option<Asker> {
    let removes = match request {
        Request::Cancel(_) => false,
        Request::Clear { .. } | Request::EndSession { .. } => true,
        Request::Submit(_)
        | Request::Detach { .. }
        | Request::Adopt { .. }
        | Request::Resume { .. }
        | Request::Answer { .. }
        | Request::Retrieve { .. }
        | Request::Block { .. }
        | Request::Signal { .. }
        | Request::OwnSession { .. }
        | Request::ReadInbox { .. }
        | Request::AckInbox { .. }
        | Request::Shutdown { .. } => return None,
    };
    Some(Asker { client: to.client, removes })
}

impl Core {
    pub(super) fn request(&mut self, now: Now, to: ReplyTo, request: Request) {
        self.asker = asker(to, &request);
        let outcome = match request {
            Request::Submit(command) => self.submit(now, to, *command),
            Request::Detach { id } => self.detach(now, to, &id),
            Request::Adopt { command, pid, started_at } => self.adopt(now, to, *command, pid, started_at),
            Request::Resume { id, prompt, settings } => self.resume(to, &id, prompt, &settings),
            Request::Answer { id, request, option } => self.answer(now, to, &id, request, &option),
            Request::Retrieve { id, complete } => self.retrieve(now, to, &id, complete),
            Request::Block { ids, timeout_ms, mode } => self.block(now, to, &ids, timeout_ms, mode),
            Request::Cancel(cancel) => self.cancel(now, to, &cancel),
            Request::Clear { which, active_too } => self.clear(now, to, &which, active_too),
            Request::Signal { id, signal, tree } => self.signal(to, &id, signal, tree),
            Request::EndSession { session } => {
                self.end_session(now, Some(to), &session, &[]);
                Ok(())
            }
            Request::OwnSession { session } => self.own(to, session),
            Request::ReadInbox { session, after, wait_ms, limit } => {
                self.read_inbox(now, to, session, after, wait_ms, limit)
            }
            Request::AckInbox { session, upto } => {
                self.acknowledge(to, &session, upto);
                Ok(())
            }
            Request::Shutdown { grace_ms } => {
                self.shutdown(now, to, grace_ms);
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
            let known = Box::new(known.clone());
            self.reply(Some(to), Reply::Task(known));
            return Ok(());
        }
        let client = command.foreground.then_some(to.client);
        if client.is_some_and(|client| self.jobs_of(client).len() >= FOREGROUND_JOBS) {
            return Err(CoreError::TooManyJobs(FOREGROUND_JOBS));
        }
        let ordinal = self.insert(now, command, client)?;
        self.event(now, EventKind::Submitted, ordinal);
        if let Some(snapshot) = self.snapshot(ordinal) {
            self.reply(Some(to), Reply::Task(snapshot));
        }
        // Whoever looks at a job does not wait for a slot, though the job takes one.
        if client.is_some() {
            self.begin(ordinal);
        }
        Ok(())
    }

    /// Adds a pending task; with a client, it is a foreground job of that one.
    pub(super) fn insert(
        &mut self,
        now: Now,
        command: Command,
        client: Option<u64>,
    ) -> Result<Ordinal, CoreError> {
        if self.phase != Phase::Open {
            return Err(CoreError::ShuttingDown);
        }
        let Command { id, mut spec, env, prompt, key, foreground: _ } = command;
        if self.registry.len() >= self.limits.tasks {
            return Err(CoreError::Full(self.limits.tasks));
        }
        self.registry.share_spec(&mut spec);
        let env = self.registry.share_env(env);
        let agent = match &spec.work {
            Work::Agent(work) => {
                Some(Box::new(AgentPart::new(work, prompt.unwrap_or_default(), env.clone())))
            }
            Work::Argv(_) | Work::Shell(_) => None,
        };
        let task = Task {
            id,
            spec: Arc::new(spec),
            key,
            created_at: now.wall,
            retrieved_at: None,
            run: 1,
            resume_count: 0,
            output_bytes: 0,
            dropped: [0; 2],
            lost: None,
            updated_at: None,
            agent,
            foreground: client,
            state: State::Queued { env },
        };
        self.check_memory(self.registry.held_more_with(&task))?;
        let standing = Standing::from(&task.state);
        let ordinal = self.registry.insert(task);
        self.queue.change(ordinal, Standing::Out, standing);
        if let Some(client) = client {
            self.foreground.insert((client, ordinal));
        }
        Ok(ordinal)
    }

    /// Whether so many bytes more may be held.
    pub(super) fn check_memory(&self, more: usize) -> Result<(), CoreError> {
        let (held, limit) = (self.held(), self.limits.memory);
        if held.saturating_add(more) > limit {
            return Err(CoreError::FullMemory { held, more, limit });
        }
        Ok(())
    }

    fn retrieve(&mut self, now: Now, to: ReplyTo, id: &TaskRef, complete: bool) -> Result<(), CoreError> {
        let ordinal = self.registry.find(id)?;
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
        let tasks = match &cancel.which {
            Selection::Ids(ids) => self.find_all(ids)?,
            Selection::All { session } => self.active_of(session.as_deref()),
        };
        let signal = cancel.signal.unwrap_or(SIGTERM);
        let grace_ms = cancel.grace_ms.unwrap_or(self.limits.grace_ms);
        self.stop_all(now, &tasks, StopReason::Cancelled, signal, grace_ms);
        self.wait(now, self.waiter(to, &tasks, Until::Settled, Then::Cancel));
        Ok(())
    }

    /// Those that have not ended, the oldest first. A task that is being resumed is one of them, although
    /// its status is not an active one yet.
    fn active_of(&self, session: Option<&str>) -> Vec<Ordinal> {
        let mut tasks = self.registry.of_session(session);
        tasks.retain(|ordinal| self.registry.get(*ordinal).is_some_and(|task| !task.is_finished()));
        tasks
    }

    fn clear(&mut self, now: Now, to: ReplyTo, which: &Selection, active_too: bool) -> Result<(), CoreError> {
        let tasks = match which {
            Selection::Ids(ids) => {
                let tasks = self.find_all(ids)?;
                if !active_too && let Some(task) = self.first_active(&tasks) {
                    return Err(CoreError::StillActive(task.id, task.status()));
                }
                tasks
            }
            Selection::All { session } => {
                let mut tasks = self.registry.of_session(session.as_deref());
                if !active_too {
                    tasks.retain(|ordinal| self.registry.get(*ordinal).is_some_and(Task::is_settled));
                }
                tasks
            }
        };
        self.stop_all(now, &tasks, StopReason::Cancelled, SIGTERM, self.limits.grace_ms);
        self.wait(now, self.waiter(to, &tasks, Until::Settled, Then::Clear));
        Ok(())
    }

    fn first_active(&self, tasks: &[Ordinal]) -> Option<&Task> {
        tasks.iter().filter_map(|ordinal| self.registry.get(*ordinal)).find(|task| !task.is_finished())
    }

    fn signal(&mut self, to: ReplyTo, id: &TaskRef, signal: i32, tree: bool) -> Result<(), CoreError> {
        let ordinal = self.registry.find(id)?;
        let Some(task) = self.registry.get(ordinal) else { return Ok(()) };
        let id = task.id;
        if task.agent.is_some() {
            return Err(CoreError::NoSignals(id));
        }
        let takes_signals = match &task.state {
            State::Queued { .. } | State::Starting { .. } | State::Resuming { .. } => false,
            State::Running { .. } => true,
            State::Stopping { exit, .. } => exit.is_none() || tree,
            State::Finished(Finished { lingering, .. }) => tree && *lingering != Lingering::No,
        };
        if !takes_signals {
            return Err(CoreError::NotRunning(id, task.status()));
        }
        let signalled = orders::control(task, Control::Signal { signal, tree });
        self.effects.push(signalled);
        if let Some(snapshot) = self.snapshot(ordinal) {
            self.reply(Some(to), Reply::Task(snapshot));
        }
        Ok(())
    }

    /// Ends a parent session: cancels, clears, and forgets what it was told. Those that are `told` to end
    /// already are not told again.
    pub(super) fn end_session(
        &mut self,
        now: Now,
        to: Option<ReplyTo>,
        session: &Arc<str>,
        told: &[Ordinal],
    ) {
        self.inboxes.remove(session);
        let tasks = self.registry.of_session(Some(session));
        let cancelled = self.count_active(&tasks);
        let untold: Vec<Ordinal> = tasks.iter().copied().filter(|task| !told.contains(task)).collect();
        self.stop_all(now, &untold, StopReason::SessionEnded, SIGTERM, self.limits.grace_ms);
        self.wait(now, self.waiter(to, &tasks, Until::Settled, Then::EndSession { cancelled }));
    }

    fn shutdown(&mut self, now: Now, to: ReplyTo, grace_ms: Option<u64>) {
        if self.phase == Phase::Open {
            self.phase = Phase::Closing;
        }
        let tasks: Vec<Ordinal> =
            self.registry.iter().filter(|(_, task)| !task.is_settled()).map(|(ordinal, _)| ordinal).collect();
        let cancelled = self.count_active(&tasks);
        let grace_ms = grace_ms.unwrap_or(self.limits.grace_ms);
        self.stop_all(now, &tasks, StopReason::Shutdown, SIGTERM, grace_ms);
        self.wait(now, self.waiter(to, &tasks, Until::Settled, Then::Shutdown { cancelled }));
    }

    fn count_active(&self, tasks: &[Ordinal]) -> u64 {
        let active =
            |ordinal: &&Ordinal| self.registry.get(**ordinal).is_some_and(|task| !task.is_finished());
        tasks.iter().filter(active).count() as u64
    }

    /// Ends a task that never started.
    pub(super) fn finish_unstarted(&mut self, now: Now, ordinal: Ordinal, outcome: Outcome) {
        let finished = Finished {
            outcome,
            pid: None,
            started_at: None,
            completed_at: now.wall,
            exit: None,
            lingering: Lingering::No,
        };
        self.finish(now, ordinal, finished);
    }
}
