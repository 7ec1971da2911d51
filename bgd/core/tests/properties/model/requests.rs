//! Naive model of clients' requests.

use bgd_core::{
    Cancel, Command, CoreError, Filter, LeavePolicy, Now, OrderError, ReplyTo, Request, Selection, Unpausable,
};
use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::{BlockMode, BlockUntil};
use bgd_shared::task::Status;

use super::super::expected::Answer;
use super::super::support::TERM;
use super::notices::Read;
use super::{End, Kind, Known, Model, Phase, Why, number};

impl Model {
    pub(super) fn request(&mut self, now: Now, to: ReplyTo, request: &Request) -> Result<(), CoreError> {
        match request {
            Request::Submit(command) => return self.submit(now, to, command),
            Request::SubmitMany(part) => return self.submit_many(now, to, part),
            Request::Rerun(_) => {} // Its ids are random; `rules_rerun` covers it.
            Request::Detach { id } => return self.detach(now, to, id),
            Request::Adopt { command, started_at, .. } => return self.adopt(now, to, command, *started_at),
            Request::Resume { id, prompt, settings } => return self.resume(to, id, prompt, settings),
            Request::Answer { id, request, option } => {
                return self.decide(now, to, id, *request, option.as_deref());
            }
            Request::Retrieve { id, complete } => return self.retrieve(now, to, id, *complete),
            Request::Block { which, timeout_ms, mode, until } => {
                let tasks = self.select(which, |_| true)?;
                self.check_ready(*until, &tasks)?;
                let deadline = timeout_ms.map(|timeout| now.mono.plus_ms(timeout).0);
                self.wait(to, tasks, block(*mode, *until, deadline));
            }
            Request::Cancel(Cancel { which, signal, grace_ms }) => {
                let tasks = self.select(which, |task| task.phase != Phase::Done)?;
                let grace = grace_ms.unwrap_or(self.limits.grace_ms);
                self.stop_all(now, &tasks, Why::Cancelled, signal.unwrap_or(TERM), grace);
                self.wait(to, tasks, Kind::Cancel);
            }
            Request::Clear { which, active_too } => {
                let tasks = self.select(which, |task| *active_too || task.settled() && !task.stuck)?;
                let mut all = tasks.iter().filter_map(|id| self.get(*id));
                if let (false, Some(task)) = (active_too, all.find(|task| task.phase != Phase::Done)) {
                    return Err(CoreError::StillActive(task.id, task.status()));
                }
                self.stop_all(now, &tasks, Why::Cancelled, TERM, self.limits.grace_ms);
                self.wait(to, tasks, Kind::Clear);
            }
            Request::Signal { id, signal, tree } => {
                let task = self.find(id)?;
                let (id, status) = (task.id, task.status());
                if task.chat.is_some() {
                    return Err(CoreError::NoSignals(id));
                }
                let leader_lives = task.phase == Phase::Running && !task.leader_gone;
                if !(leader_lives || *tree && (task.left || task.stuck)) {
                    return Err(CoreError::NotRunning(id, status));
                }
                self.expected.signals.push((id, *signal, *tree));
                self.reply(Some(to), Answer::Task(id, status));
            }
            Request::Hold { which, held } => return self.hold(to, which, *held),
            Request::Edit(edit) => return self.edit(now, to, edit),
            Request::SetGroup { .. } | Request::PauseGroup { .. } | Request::RemoveGroup { .. } => {
                return self.change_group(to, request);
            }
            Request::SetPaused { which, paused } => return self.pause(to, which, *paused),
            Request::EndSession { session } => self.end_session(now, Some(to), session, &[]),
            Request::OwnSession { session } => self.own(to, session),
            Request::ReadInbox { session, after, wait_ms, limit } => {
                let (session, due) = (session.clone(), now.mono.plus_ms(*wait_ms).0);
                let read = Read { to, session, after: *after, limit: *limit, due };
                return self.read(read, *wait_ms);
            }
            Request::AckInbox { session, upto } => self.acknowledge(to, session, *upto),
            Request::TakeItem { .. } => unreachable!("no operation is about a single item"),
            Request::Shutdown { grace_ms, leaves } => self.shut_down(now, to, *grace_ms, *leaves),
        }
        Ok(())
    }

    fn shut_down(&mut self, now: Now, to: ReplyTo, grace_ms: Option<u64>, leaves: LeavePolicy) {
        self.closing = true;
        let (is_durable, leaves) = (self.is_durable, leaves == LeavePolicy::All);
        let stays = |task: &Known| {
            is_durable && (task.phase == Phase::Pending || leaves && task.foreground.is_none())
        };
        let tasks = self.of(None, |task| !task.settled() && !stays(task));
        let cancelled = self.active_among(&tasks);
        // Earlier requesters also wait for these tasks.
        let mut calls = std::mem::take(&mut self.calls);
        for call in &mut calls {
            if let Kind::Shutdown { cancelled } = &mut call.kind {
                let more: Vec<_> = tasks.iter().copied().filter(|task| !call.tasks.contains(task)).collect();
                *cancelled += self.active_among(&more);
                call.tasks.extend(&more);
                call.open.extend(&more);
            }
        }
        self.calls = calls;
        let grace = grace_ms.unwrap_or(self.limits.grace_ms);
        self.stop_all(now, &tasks, Why::Shutdown, TERM, grace);
        self.wait(to, tasks, Kind::Shutdown { cancelled });
    }

    fn check_ready(&self, until: BlockUntil, tasks: &[TaskId]) -> Result<(), CoreError> {
        let active = tasks.iter().filter_map(|id| self.get(*id)).filter(|task| task.phase != Phase::Done);
        let never = |task: &&Known| until == BlockUntil::Ready && !task.becomes_ready;
        match active.into_iter().find(never) {
            Some(task) => Err(CoreError::Order(OrderError::NeverReady(task.id))),
            None => Ok(()),
        }
    }

    fn change_group(&mut self, to: ReplyTo, request: &Request) -> Result<(), CoreError> {
        match request {
            Request::SetGroup { name, slots } => self.set_group(to, name, *slots),
            Request::PauseGroup { name, paused } => self.pause_group(to, name, *paused),
            Request::RemoveGroup { name } => self.remove_group(to, name),
            _ => Ok(()),
        }
    }

    fn retrieve(&mut self, now: Now, to: ReplyTo, id: &TaskRef, complete: bool) -> Result<(), CoreError> {
        let task = self.find(id)?;
        let (id, status) = (task.id, task.status());
        if status == Status::Completed {
            task.retrieved_at.get_or_insert(now.wall);
        } else if complete {
            let error = task.verdict.clone().and_then(|(_, error)| error);
            self.reply(Some(to), Answer::NoResult(id, status, error));
            return Ok(());
        }
        self.reply(Some(to), Answer::Task(id, status));
        Ok(())
    }

    fn submit(&mut self, now: Now, to: ReplyTo, command: &Command) -> Result<(), CoreError> {
        if self.closing {
            return Err(CoreError::ShuttingDown);
        }
        let session = command.spec.session.clone();
        let same =
            |task: &&Known| task.key.is_some() && (&task.key, &task.session) == (&command.key, &session);
        if let Some(known) = self.live.values().find(same) {
            let answer = Answer::Task(known.id, known.status());
            self.reply(Some(to), answer);
            return Ok(());
        }
        let order = self.order_of(now, &command.plan)?;
        self.room_for(command, &order.after)?;
        self.gives_way = true;
        let client = command.foreground.then_some(to.client);
        let mut task = Known { order, ..Known::new(now, command, client) };
        if client.is_some() {
            task.phase = Phase::Starting;
            self.expected.starts.push(command.id);
        }
        self.live.insert(number(command.id), task);
        self.expected.events.push((command.id, EventKind::Submitted));
        self.judge(now, number(command.id));
        let status = self.get(command.id).map_or(Status::Pending, Known::status);
        // A foreground job starts after the reply.
        let status = if client.is_some() { Status::Pending } else { status };
        self.reply(Some(to), Answer::Task(command.id, status));
        Ok(())
    }

    /// Pauses or continues all selected tasks, or none.
    fn pause(&mut self, to: ReplyTo, which: &Selection, paused: bool) -> Result<(), CoreError> {
        let tasks = self.select(which, |task| task.pausable().is_ok())?;
        for id in &tasks {
            self.get(*id).map_or(Ok(()), Known::pausable)?;
        }
        for id in &tasks {
            let Some(task) = self.live.get_mut(&number(*id)) else { continue };
            if task.phase == Phase::Running {
                self.expected.pauses.push((*id, paused));
            }
            if std::mem::replace(&mut task.paused, paused) != paused {
                let kind = if paused { EventKind::Paused } else { EventKind::Continued };
                self.expected.events.push((*id, kind));
            }
        }
        let answer = Answer::Tasks(self.statuses(&tasks));
        self.reply(Some(to), answer);
        Ok(())
    }

    pub(super) fn end_session(&mut self, now: Now, to: Option<ReplyTo>, session: &str, spared: &[TaskId]) {
        let tasks = self.of(Some(session), |_| true);
        let cancelled = self.active_among(&tasks);
        self.staged.retain(|_, staged| staged.session() != Some(session));
        self.empty_inbox(session, &tasks);
        let to_stop: Vec<TaskId> = tasks.iter().copied().filter(|id| !spared.contains(id)).collect();
        self.stop_all(now, &to_stop, Why::Session, TERM, self.limits.grace_ms);
        self.wait(to, tasks, Kind::EndSession { cancelled });
    }

    /// Returns the named tasks, or the wanted ones among the matching tasks.
    pub(super) fn select(
        &mut self,
        which: &Selection,
        wanted: impl Fn(&Known) -> bool,
    ) -> Result<Vec<TaskId>, CoreError> {
        match which {
            Selection::Ids(ids) => self.find_all(ids),
            Selection::All { session } => Ok(self.of(session.as_deref(), wanted)),
            Selection::Matching(filter) => {
                let Filter { session, group, batch, tags, status } = &**filter;
                if let Some(name) = group
                    && !self.groups.contains_key(&**name)
                    && self.live.values().all(|task| task.order.group() != &**name)
                {
                    return Err(self.unknown(name));
                }
                let batch = batch.as_ref().map(|batch| self.batch_named(batch)).transpose()?;
                assert!(tags.is_empty(), "no task here has labels");
                Ok(self.of(session.as_deref(), |task| {
                    wanted(task)
                        && (batch.is_none() || task.order.batch == batch)
                        && group.as_deref().is_none_or(|group| task.order.group() == group)
                        && (status.is_empty() || status.contains(&task.status()))
                }))
            }
        }
    }

    pub(super) fn of(&self, session: Option<&str>, wanted: impl Fn(&Known) -> bool) -> Vec<TaskId> {
        let of_session =
            |task: &&Known| session.is_none_or(|session| task.session.as_deref() == Some(session));
        self.live.values().filter(of_session).filter(|task| wanted(task)).map(|task| task.id).collect()
    }

    fn active_among(&self, tasks: &[TaskId]) -> u64 {
        tasks.iter().filter(|id| self.get(**id).is_some_and(|task| task.phase != Phase::Done)).count() as u64
    }

    /// Finds a task by its written id, as a user would.
    pub(super) fn find(&mut self, reference: &TaskRef) -> Result<&mut Known, CoreError> {
        let text = reference.as_str();
        let begins = |id: TaskId| id.to_string().starts_with(text);
        let batches: Vec<TaskId> = self.batches.keys().copied().filter(|id| begins(*id)).collect();
        let mut found: Vec<&mut Known> = self.live.values_mut().filter(|task| begins(task.id)).collect();
        found.sort_by_key(|task| task.id.to_string());
        match found.len() {
            0 => Err(match &batches[..] {
                [batch] => CoreError::IsBatch(*batch),
                _ => CoreError::NotFound(text.to_owned()),
            }),
            1 => Ok(found.swap_remove(0)),
            _ => {
                let candidates = found.iter().take(20).map(|task| task.id).collect();
                Err(CoreError::Ambiguous(text.to_owned(), candidates))
            }
        }
    }

    fn find_all(&mut self, references: &[TaskRef]) -> Result<Vec<TaskId>, CoreError> {
        let mut tasks = Vec::new();
        for reference in references {
            let id = self.find(reference)?.id;
            if !tasks.contains(&id) {
                tasks.push(id);
            }
        }
        Ok(tasks)
    }
}

fn block(mode: BlockMode, until: BlockUntil, deadline: Option<u64>) -> Kind {
    let any = matches!(mode, BlockMode::Any | BlockMode::AnyOrAsks);
    let hears = matches!(mode, BlockMode::AllOrAsks | BlockMode::AnyOrAsks);
    Kind::Block { any, hears, ready: until == BlockUntil::Ready, deadline }
}

impl Known {
    /// Checks whether it can be paused: only processes that are running and not being ended can.
    fn pausable(&self) -> Result<(), CoreError> {
        let why = match self.phase {
            Phase::Done | Phase::Resuming => return Err(CoreError::NotRunning(self.id, self.status())),
            Phase::Pending => Unpausable::Pending,
            Phase::Starting | Phase::Running if self.chat.is_some() => Unpausable::Agent,
            Phase::Starting | Phase::Running if self.why.is_some() || self.end != End::NotBegun => {
                Unpausable::Ending
            }
            Phase::Starting | Phase::Running => return Ok(()),
        };
        Err(CoreError::NotPausable(self.id, why))
    }
}
