//! The dispatcher's part in observation: choosing channels, subscriptions to events, inboxes, lists of tasks, and the
//! daemon's status.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::limits::SUBSCRIPTIONS;
use bgd_shared::params::shortened;
use bgd_shared::request::{
    DaemonStatus, InboxListResult, InboxSummary, ListResult, SubscribeParams, SubscribeResult,
};
use bgd_shared::show;
use tokio::time::timeout;

use super::{Dispatcher, Shape};
use crate::client::Client;
use crate::client::answer::Answer;
use crate::core::{
    CoreError, Effect, ListQuery, Now, Reply, Request, Snapshot, Spec, SubmitterLocation, Task,
};
use crate::exec::threads::workers::Workers;
use crate::journal::JournalFile;
use crate::notify::{ExecProgram, terminal_of};
use crate::wire::status::Counted;
use crate::wire::subscribers::Filter;
use crate::wire::{refusals, view};

/// How long to wait for status information from the disk. A client gives up after 5 seconds.
const DISK_PATIENCE: Duration = Duration::from_secs(2);

impl Dispatcher {
    /// Chooses the channel of a new task (R50), which this client submits.
    pub(super) fn choose_channel(&self, spec: &mut Spec, client: &Client) -> Result<(), RpcError> {
        let channels = self.notifier.channels();
        spec.channel = channels.resolve(spec.channel.as_deref(), spec.session.as_deref())?;
        // Only some channels need the submitter's environment and terminal.
        if !spec.channel.as_deref().is_some_and(|name| channels.wants_place(name)) {
            spec.place = None;
        }
        // Programs need only name the session that `bgctl session key` prints, and usually run in its terminal.
        let is_given = spec.place.as_ref().is_some_and(|place| place.terminal.is_some());
        if !is_given
            && spec.channel.as_deref().is_some_and(|name| channels.is_tty(name))
            && let Some(terminal) = client.leader.and_then(terminal_of)
        {
            let place = spec.place.take().map(Arc::unwrap_or_clone).unwrap_or_default();
            spec.place = Some(Arc::new(SubmitterLocation { terminal: Some(terminal), ..place }));
        }
        Ok(())
    }

    pub(super) fn subscribe(&mut self, answer: &Answer, params: SubscribeParams) {
        if self.subscribers.count_of(answer.client().id) >= SUBSCRIPTIONS {
            let message = format!("this connection has reached the limit of {SUBSCRIPTIONS} subscriptions");
            let error = RpcError::new(ErrorKind::TooManyRequests, message);
            return answer.refuse(&error.hint("use another connection"));
        }
        if let Err(error) = self.check_instance(params.instance) {
            return answer.refuse(&error);
        }
        if let Some(since) = params.since.filter(|since| *since > self.subscribers.seq()) {
            let message = format!("`since` is {since}, but the latest event is {}", self.subscribers.seq());
            let error = RpcError::new(ErrorKind::InvalidParams, message);
            let hint = "the number comes from another daemon; use 0 for all events that this one has kept";
            return answer.refuse(&error.hint(hint));
        }
        let ids: Result<HashSet<TaskId>, CoreError> =
            params.ids.iter().map(|id| self.core.get(id).map(|task| task.id)).collect();
        let ids = match ids {
            Ok(ids) => (!ids.is_empty()).then_some(ids),
            Err(error) => return answer.refuse(&refusals::of_core(error)),
        };
        let filter = Filter { session: params.session, ids };
        let client = Arc::clone(answer.client());
        // The core may be ahead of the published events, which wait until they are written.
        let seq = self.subscribers.seq();
        let (subscription, gap) = self.subscribers.subscribe(client, filter, params.since);
        answer.give(&SubscribeResult { subscription, seq, instance: self.identity.instance.clone() });
        self.subscribers.begin(answer.client(), subscription, gap);
    }

    /// Reads or acknowledges an inbox, if the instance is this daemon.
    pub(super) fn inbox(&mut self, answer: Answer, instance: Option<String>, request: Request) {
        match self.check_instance(instance) {
            Ok(()) => self.ask(answer, Shape::Plain, request),
            Err(error) => answer.refuse(&error),
        }
    }

    /// Lists the parent sessions whose inbox has its oldest item after this number.
    pub(super) fn list_inboxes(&self, after: u64, limit: usize) -> InboxListResult {
        // Takes one extra to detect whether there are more.
        let listed = self.core.list_inboxes(after).take(limit + 1).map(|(session, oldest, items)| {
            InboxSummary { session: session.to_string(), oldest, items: items as u64 }
        });
        let mut inboxes: Vec<InboxSummary> = listed.collect();
        let more = inboxes.len() > limit;
        inboxes.truncate(limit);
        InboxListResult { inboxes, more, instance: self.identity.instance.clone() }
    }

    /// Refuses numbers from another daemon, which are meaningless here.
    fn check_instance(&self, instance: Option<String>) -> Result<(), RpcError> {
        let own = &self.identity.instance;
        let Some(other) = instance.filter(|other| other != own) else { return Ok(()) };
        let other = shortened(&other);
        let message = format!("`instance` is {other:?}, but this daemon is {own:?}");
        Err(RpcError::new(ErrorKind::InvalidParams, message).hint(
            "the earlier daemon has ended, and its tasks, events and inboxes are lost: start over from number 0",
        ))
    }

    /// Returns one task as people see it now.
    pub(super) fn get(&self, task: &TaskRef) -> Result<Snapshot, CoreError> {
        let mut task = self.core.get(task)?;
        correct_wait(&mut task, self.now());
        Ok(task)
    }

    pub(super) fn list(&self, query: &ListQuery) -> Result<ListResult, CoreError> {
        let mut page = self.core.list(query)?;
        let now = self.now();
        for task in &mut page.tasks {
            correct_wait(task, now);
        }
        Ok(ListResult {
            tasks: page.tasks.iter().map(|task| view::task(task, &self.context.folder)).collect(),
            next: page.next.map(|ordinal| ordinal.0),
            summary: page.summary,
            cleared: page.cleared,
        })
    }

    /// Makes effects show tasks as people see them now.
    pub(super) fn correct_waits(&self, effects: &mut [Effect]) {
        let now = self.now();
        for effect in effects {
            match effect {
                Effect::Event { task, .. } | Effect::Reply { reply: Reply::Task(task), .. } => {
                    correct_wait(task, now);
                }
                Effect::Reply { reply: Reply::Tasks(tasks) | Reply::Blocked { tasks, .. }, .. } => {
                    for task in tasks {
                        correct_wait(task, now);
                    }
                }
                _ => {}
            }
        }
    }

    /// Answers `daemon.status`. Information from files is looked up on a separate thread, as a disk may hang.
    pub(super) fn give_status(&self, answer: Answer) {
        let (mut status, identity, workers) =
            (self.status(), self.identity.clone(), self.context.workers.clone());
        let programs = self.notifier.programs();
        let journal = self.durable.as_ref().and_then(|durable| durable.journal.file().cloned());
        let is_reported = self.durable.as_ref().is_some_and(|durable| durable.is_missing());
        tokio::spawn(async move {
            let (mut looked_at, looking) = (status.clone(), identity.clone());
            let look = workers.look(move || {
                looking.look(&mut looked_at);
                if let Some(path) = journal.as_ref().and_then(JournalFile::missing_path) {
                    journal_is_missing(&mut looked_at, path, is_reported);
                }
                looked_at
            });
            let look = timeout(DISK_PATIENCE, look);
            let (looked_at, mut problems) = tokio::join!(look, program_problems(&workers, programs));
            if let Ok(Some(looked_at)) = looked_at {
                status = looked_at;
            } else {
                identity.disk_is_silent(&mut status);
            }
            for channel in &mut status.channels {
                let problem = problems.remove(&*channel.name);
                channel.problem = channel.problem.take().or(problem);
            }
            answer.give(&status);
        });
    }

    fn status(&self) -> DaemonStatus {
        let counted = Counted {
            connections: self.clients.len(),
            seq: self.subscribers.seq(),
            subscriptions: self.subscribers.count(),
            waited: self.figures.waited.shown(),
            ran: self.figures.ran.shown(),
            channels: self.notifier.status(),
            unreported: self.notifier.unreported(),
            outputs_unwatched: self.context.outputs.unwatched(),
            limit_errors: self.context.outputs.limit_errors(),
            journal: self.durable.as_ref().map(|durable| durable.warnings()).unwrap_or_default(),
            is_shutting_down: self.is_shutting_down(),
        };
        self.identity.status(&self.core, &self.config, counted)
    }
}

/// Corrects until when a task waits: the machine may have slept since.
fn correct_wait(task: &mut Task, now: Now) {
    if let Some(not_before) = task.plan.as_deref_mut().and_then(|plan| plan.not_before.as_mut()) {
        not_before.correct(now);
    }
}

/// Returns the problems with the programs of channels, by channel. A disk that does not respond proves nothing.
async fn program_problems(
    workers: &Workers,
    programs: Vec<(Arc<str>, ExecProgram)>,
) -> HashMap<Arc<str>, String> {
    if programs.is_empty() {
        return HashMap::new();
    }
    let look = move || {
        let problems = programs.into_iter().filter_map(|(name, program)| Some((name, program.problem()?)));
        problems.collect::<HashMap<_, _>>()
    };
    workers.program(DISK_PATIENCE, look).await.unwrap_or_default()
}

/// Adds that the journal is not at this path, with a warning unless one about the journal `is_reported` already.
fn journal_is_missing(status: &mut DaemonStatus, path: &Path, is_reported: bool) {
    let path = path.display().to_string();
    if !is_reported {
        let is_missing = show::missing_journal(&path);
        let warning =
            format!("{is_missing}: unless its folder is put back, all tasks are lost with the daemon");
        status.warnings.push(warning);
    }
    status.missing_journal = Some(path);
}
