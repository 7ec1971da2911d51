//! The dispatcher's part in carrying an upgrade in place: writes its state and that of everything it owns, and resumes
//! from it. Structures are destructured by field name, without `..`, so that a new field can't be forgotten here.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::request::UpgradeResult;
use serde_json::value::to_raw_value;

use super::Dispatcher;
use super::state::{DispatcherState, read_core};
use super::upgrading::refusal;
use crate::carry::{CarriedFds, Obstacle, ReceivedFds};
use crate::client::Client;
use crate::client::answer::Answer;
use crate::core::sharing;
use crate::exec::carried::{Carried, InheritedState};
use crate::notify::carried::NotifierState;
use crate::wire::mailbox::Mailbox;

impl Dispatcher {
    /// Returns the state of the dispatcher. Waits for notices being sent only if `waits`.
    ///
    /// # Errors
    /// Something is in progress, or can't be carried.
    pub fn freeze(
        &mut self,
        mailbox: &Mailbox,
        asked: &Answer,
        waits: bool,
        named: &mut CarriedFds,
    ) -> Result<DispatcherState, Obstacle> {
        self.is_settled(mailbox, asked)?;
        // Comes first, as its commands are carried by the executors.
        let notifier = self.notifier.state(waits, named)?;
        let mut carried = BTreeMap::new();
        for (name, executor) in self.executors.each() {
            carried.insert(name.0.to_owned(), executor.carry(named)?);
        }
        // Repeated, as the threads of channels and executors were not frozen until now.
        self.is_settled(mailbox, asked)?;
        self.carried(carried, notifier, named)
    }

    fn carried(
        &self,
        executors: BTreeMap<String, Carried>,
        notifier: NotifierState,
        named: &mut CarriedFds,
    ) -> Result<DispatcherState, Obstacle> {
        let Self {
            core,
            agent_warnings,
            subscribers,
            kept_for_notices,
            figures,
            identity,
            config,
            pending,
            last_call,
            inherited,
            clock,
            epoch,
            // Carried above.
            executors: _,
            notifier: _,
            // Rebuilt from the configuration.
            remotes: _,
            agents: _,
            context: _,
            internals: _,
            reader: _,
            server_limits: _,
            freed: _,
            // Carried with the connections.
            clients: _,
            // Empty or unset, as the dispatcher is settled and the daemon is not ending.
            early: _,
            exits: _,
            removals: _,
            has_started: _,
            ended: _,
            forced_at: _,
            ending: _,
            // The journal is reopened; only its warning is carried.
            durable,
            // The resources acquired at startup, and the upgrade itself.
            upgrade_context: _,
            upgrade: _,
        } = self;
        let pending = pending.iter();
        let pending = pending.map(|(to, (answer, shape))| (*to, answer.state(), shape.clone()));
        let inherited = inherited.iter().map(|(task, fds)| (*task, InheritedState::of(fds, named))).collect();
        let core = sharing::written_once(|| to_raw_value(core));
        let core = core.map_err(|error| Obstacle::lasting(format!("the tasks can't be written: {error}")))?;
        Ok(DispatcherState {
            core,
            epoch: clock.stamp(*epoch),
            executors,
            agent_warnings: agent_warnings.clone(),
            subscribers: subscribers.state(),
            notifier,
            kept_for_notices: kept_for_notices.iter().map(|(task, run)| (*task, *run)).collect(),
            figures: figures.clone(),
            pending: pending.collect(),
            last_call: *last_call,
            inherited,
            config: (config.text.0.to_string(), identity.config_path.as_os_str().into()),
            config_loaded: identity.config_loaded,
            config_modified: identity.config_modified,
            config_error: identity.config_error.clone(),
            journal_warning: durable.as_ref().and_then(|durable| durable.warning.clone()),
        })
    }

    /// Checks that nothing is in progress that the state would lack: messages, work on other threads, answers that
    /// others are about to send.
    fn is_settled(&mut self, mailbox: &Mailbox, asked: &Answer) -> Result<(), Obstacle> {
        let is_quiet = mailbox.calls.is_empty() && mailbox.facts.is_empty() && mailbox.internals.is_empty();
        if !is_quiet || self.core.has_more() || self.has_started {
            return Err(Obstacle::passing("a request is being handled"));
        }
        if !self.context.workers.are_idle() {
            let what = "an operation on files or processes, perhaps on a disk that hangs, is under way";
            return Err(Obstacle::passing(what));
        }
        if self.durable.as_ref().is_some_and(|durable| !durable.is_settled()) {
            return Err(Obstacle::passing("the journal is being written"));
        }
        if !self.early.is_empty() {
            return Err(Obstacle::passing("a request is waiting for a task to start"));
        }
        if !self.exits.is_empty() {
            return Err(Obstacle::passing("the exit of a handed-over process is not known yet"));
        }
        // Any other answer is about to be sent by another thread.
        let mut own: HashMap<u64, usize> = HashMap::from([(asked.client().id, 1)]);
        self.pending.keys().for_each(|to| *own.entry(to.client).or_default() += 1);
        self.executors.all().for_each(|executor| executor.count_owed(&mut own));
        let is_all = |client: &Client| client.unanswered() == own.get(&client.id).copied().unwrap_or(0);
        if self.clients.values().all(|client| is_all(client)) {
            Ok(())
        } else {
            Err(Obstacle::passing("a request is being answered"))
        }
    }

    /// Restores the state of the program before an upgrade.
    ///
    /// # Errors
    /// A part of the state is missing or can't be read.
    pub fn resume(
        &mut self,
        state: DispatcherState,
        clients: HashMap<u64, Arc<Client>>,
        received: &mut ReceivedFds,
    ) -> io::Result<()> {
        let DispatcherState {
            core,
            epoch,
            mut executors,
            agent_warnings,
            subscribers,
            notifier,
            kept_for_notices,
            figures,
            pending,
            last_call,
            inherited,
            config: _,
            config_loaded,
            config_modified,
            config_error,
            journal_warning,
        } = state;
        self.core = read_core(&core).map_err(io::Error::other)?;
        if let Some(durable) = &mut self.durable {
            self.core.track();
            durable.warning = journal_warning;
            durable.accepted.extend(self.core.entering_batches());
        }
        self.epoch = self.clock.instant(epoch);
        self.clients = clients;
        (self.agent_warnings, self.figures, self.last_call) = (agent_warnings, figures, last_call);
        (self.identity.config_loaded, self.identity.config_modified) = (config_loaded, config_modified);
        self.identity.config_error = config_error;
        self.subscribers.resume(subscribers, &self.clients);
        self.notifier.resume(notifier, received)?;
        self.kept_for_notices = kept_for_notices.into_iter().collect();
        for (to, answer, shape) in pending {
            if let Some(answer) = answer.resume(&self.clients) {
                self.pending.insert(to, (answer, shape));
            }
        }
        for (task, fds) in inherited {
            self.inherited.insert(task, Arc::new(fds.take(received)?));
        }
        let core = &self.core;
        let spec = |task: TaskId| core.get(&task.into()).ok().map(|task| Arc::clone(&task.spec));
        for (name, executor) in self.executors.each() {
            if let Some(carried) = executors.remove(name.0) {
                executor.resume(carried, received, &spec)?;
            }
        }
        for task in self.core.with_runs() {
            self.take_up(task.id);
        }
        self.count_again();
        match executors.keys().next() {
            None => Ok(()),
            Some(name) => Err(io::Error::other(format!("this program has no executor {name:?}"))),
        }
    }

    /// Returns the number of active tasks.
    pub fn active(&self) -> u64 {
        self.core.summary().active()
    }

    /// Resumes work after an upgrade; until then, the carried state is unchanged.
    pub fn resume_work(&mut self, asked: Option<Answer>, done: Result<UpgradeResult, String>) {
        self.subscribers.pump_all();
        let Self { executors, clients, .. } = self;
        executors.all().for_each(|executor| executor.activate(clients));
        self.keep_all_inherited();
        self.notifier.resume_work();
        if let Some(durable) = &mut self.durable {
            durable.notices.extend(self.notifier.undelivered());
        }
        self.has_started = true;
        match (asked, done) {
            (Some(answer), Ok(result)) => answer.give(&result),
            (Some(answer), Err(why)) => answer.refuse(&refusal(&why)),
            (None, _) => {}
        }
    }
}
