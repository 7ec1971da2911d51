//! A machine's connection: the reactions when it is made, breaks, or can't be made.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::event::News;
use bgd_shared::id::TaskId;
use bgd_shared::task::Task;

use super::{IDLE, Machine, PAUSES};
use crate::core::{Fact, PlaceFact};
use crate::exec::remote::bridge::{Bridge, BridgeError};
use crate::exec::remote::link::{Link, LinkEvent};
use crate::exec::remote::run::Run;
use crate::remotes::Ssh;

impl Machine {
    /// Handles an event of the connection.
    pub(super) fn linked(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Opened(bridge) => self.opened(*bridge),
            LinkEvent::Failed(trouble) => self.failed(trouble, PAUSES[0]),
            LinkEvent::News(News::Event(event)) => match self.by_id.get(&event.task.id).copied() {
                Some(task) => self.learn(task, &event.task),
                None => self.keep_early(event.task),
            },
            // Some events were lost, so the state of every run is requested.
            LinkEvent::News(News::Gap(_)) => self.cut("its events came too fast"),
            LinkEvent::Closed => self.cut("the connection was closed"),
        }
    }

    /// Keeps an event of a task whose submit is pending, as the answer to the submit arrives separately.
    fn keep_early(&mut self, known: Task) {
        if self.runs.values().any(|run| run.is_busy && run.there.is_none()) {
            self.early.insert(known.id, Box::new(known));
        } else {
            self.early.clear();
        }
    }

    fn opened(&mut self, bridge: Bridge) {
        let instance = bridge.hello.instance.clone();
        let bridge = Arc::new(bridge);
        self.link = Link::Open(Arc::clone(&bridge), Instant::now() + IDLE);
        if self.instance.as_ref().is_some_and(|known| *known != instance) {
            self.concluded.clear();
            let why = format!("the daemon of {} was restarted, and its tasks are lost", self.ssh.shell.host);
            for task in self.of_runs(Run::may_exist) {
                self.vanish(task, &why);
            }
        }
        if self.instance.as_ref() != Some(&instance) {
            // Noted before anything is submitted: the next daemon needs the instance that may have it.
            self.origin.note_there(&instance);
            self.instance = Some(instance);
        }
        self.sweep(bridge);
        self.has_connected = true;
        self.ready.extend(self.runs.keys().copied());
    }

    /// Uses these settings from now on. The host stays the same as long as it may have tasks, which would otherwise be
    /// abandoned.
    pub(super) fn configure(&mut self, ssh: Ssh) {
        let host = std::mem::replace(&mut self.ssh, ssh).shell.host;
        let next = std::mem::replace(&mut self.ssh.shell.host, host);
        self.next_host = Some(next).filter(|next| *next != self.ssh.shell.host);
        self.ready.extend(self.runs.keys().copied());
    }

    /// Changes to the configured host once the previous one has no tasks. Tasks that are no longer awaited, because it
    /// can't be reached, are left to it.
    pub(super) fn change_host(&mut self) {
        if self.next_host.is_none() || self.is_clearing {
            return;
        }
        let may_run = |run: &Run| run.may_exist() && !run.is_given_up;
        let has_more = !self.unwritten.is_empty() || !self.concluded.is_empty();
        if has_more || self.runs.values().any(may_run) {
            return;
        }
        let Some(host) = self.next_host.take() else { return };
        let left = self.of_runs(Run::may_exist);
        tracing::info!(from = self.ssh.shell.host, to = host, left = left.len(), "the host was changed");
        for task in &left {
            self.remove(*task);
        }
        // The runs that wait are already in the note.
        if left.is_empty() && self.runs.is_empty() && self.has_swept {
            self.origin.forget();
        }
        self.ssh.shell.host = host;
        (self.link, self.instance, self.pause) = (Link::Idle, None, Duration::ZERO);
        // The next daemon must not expect the previous host's daemon here either.
        self.origin.forget_there();
        self.early.clear();
        self.ready.extend(self.runs.keys().copied());
    }

    /// Reports that a run waits until the host can be changed.
    pub(super) fn await_next_host(&self, task: TaskId, number: u32) {
        let reason = format!("for the end of the tasks on {}, the previous host", self.ssh.shell.host);
        let fact = PlaceFact::Waiting { reason: reason.into() };
        self.context.facts.send(task, number, Fact::Elsewhere(fact));
    }

    /// Returns the tasks of the runs that pass the filter.
    fn of_runs(&self, filter: impl Fn(&Run) -> bool) -> Vec<TaskId> {
        self.runs.iter().filter(|(_, run)| filter(run)).map(|(task, _)| *task).collect()
    }

    /// Drops a connection that broke.
    pub(super) fn cut(&mut self, why: &str) {
        if !matches!(self.link, Link::Open(..)) {
            return;
        }
        self.runs.values_mut().for_each(Run::cut);
        self.early.clear();
        if self.runs.is_empty() {
            return self.disconnect_idle();
        }
        // The connection may have been open for a moment only, and so may the next one.
        self.failed(BridgeError { message: why.into(), hint: None, is_final: false }, PAUSES[0]);
    }

    /// Drops the connection, as no run needs one. If tasks of an earlier daemon could not be looked for, or ended tasks
    /// could not be cleared, that is retried.
    pub(super) fn disconnect_idle(&mut self) {
        self.link = Link::Idle;
        if self.sweeps && !self.has_swept || !self.concluded.is_empty() {
            self.sweep_again();
        }
    }

    /// Schedules another sweep after a pause; a connection is made for it if there is none.
    pub(super) fn sweep_again(&mut self) {
        self.sweeps_at = Some(Instant::now() + self.next_pause(PAUSES[0]));
    }

    /// Returns the pause before the next attempt, which is at least this long, and doubles the one after it.
    fn next_pause(&mut self, at_least: Duration) -> Duration {
        let pause = self.pause.max(at_least);
        self.pause = (pause * 2).clamp(PAUSES[0], PAUSES[1]);
        pause
    }

    /// Notes that there is no connection, and schedules a retry after at least this pause.
    pub(super) fn failed(&mut self, trouble: BridgeError, at_least: Duration) {
        tracing::warn!(host = self.ssh.shell.host, error = %trouble.message, "not connected");
        self.ends_at = None;
        if trouble.is_final {
            let message = format!("{}: {}", self.ssh.shell.host, trouble.sentence());
            let fact = Fact::StartFailed { failure: message.into() };
            for task in self.of_runs(|run| !run.may_exist()) {
                let Some(run) = self.runs.get(&task) else { continue };
                self.context.facts.send(task, run.number, fact.clone());
                self.remove(task);
            }
            // Access may never be granted again to clear them; they are removed with the session on the machine.
            self.concluded.clear();
        }
        for (task, run) in self.runs.iter_mut().filter(|(_, run)| !run.is_given_up) {
            run.is_unknown = true;
            let why = trouble.message.clone();
            self.context.facts.send(*task, run.number, Fact::Elsewhere(PlaceFact::Unknown { why }));
        }
        if self.runs.is_empty() {
            return self.disconnect_idle();
        }
        self.link = Link::Broken(Instant::now() + self.next_pause(at_least), trouble);
        self.has_connected = true;
        self.refuse_kept();
    }
}
