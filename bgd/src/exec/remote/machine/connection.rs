//! A machine's connection: what follows when it is made, breaks, or can't be made.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::event::News;
use bgd_shared::id::TaskId;
use bgd_shared::task::Task;

use super::{IDLE, Machine, PAUSES};
use crate::core::{Fact, PlaceFact};
use crate::exec::places;
use crate::exec::remote::bridge::{Bridge, Trouble};
use crate::exec::remote::link::{Link, LinkEvent};
use crate::exec::remote::run::Run;

impl Machine {
    /// Handles news of the connection.
    pub(super) fn linked(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Opened(bridge) => self.opened(*bridge),
            LinkEvent::Failed(trouble) => self.failed(trouble, PAUSES[0]),
            LinkEvent::News(News::Event(event)) => match self.by_id.get(&event.task.id).copied() {
                Some(task) => self.learn(task, &event.task),
                None => self.keep_early(event.task),
            },
            // Some events were lost: every run is asked for.
            LinkEvent::News(News::Gap(_)) => self.cut("its events came too fast"),
            LinkEvent::Closed => self.cut("the connection was closed"),
        }
    }

    /// Keeps news of a task whose submit is under way: its answer comes by another channel.
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
            let text = format!("the daemon of {} was restarted, and its tasks are lost", self.ssh.shell.host);
            self.lose(Run::may_exist, &places::lost(&text));
        }
        if self.instance.as_ref() != Some(&instance) {
            // Before anything is submitted there: the next daemon must know which one may have it.
            self.origin.note_there(&instance);
            self.instance = Some(instance);
        }
        self.sweep(bridge);
        self.has_connected = true;
        self.ready.extend(self.runs.keys().copied());
    }

    /// Ends the runs that pass the filter by this fact.
    fn lose(&mut self, filter: impl Fn(&Run) -> bool, fact: &Fact) {
        let lost: Vec<TaskId> =
            self.runs.iter().filter(|(_, run)| filter(run)).map(|(task, _)| *task).collect();
        for task in lost {
            let Some(run) = self.runs.get(&task) else { continue };
            self.context.facts.send(task, run.number, fact.clone());
            self.remove(task);
        }
    }

    /// Gives up a connection that broke.
    pub(super) fn cut(&mut self, why: &str) {
        if !matches!(self.link, Link::Open(..)) {
            return;
        }
        self.runs.values_mut().for_each(Run::cut);
        self.early.clear();
        if self.runs.is_empty() {
            return self.rest();
        }
        // It may have been open for a moment only, and the next one may be, too.
        self.failed(Trouble { message: why.into(), hint: None, is_final: false }, PAUSES[0]);
    }

    /// Does without a connection, as no run needs one. If what an earlier daemon has left there could not be looked for,
    /// or what has ended could not be cleared, that is tried again.
    pub(super) fn rest(&mut self) {
        self.link = Link::Idle;
        if self.sweeps && !self.has_swept || !self.concluded.is_empty() {
            self.sweep_again();
        }
    }

    /// Has another sweep follow after a pause, for which a connection is made if there is none.
    pub(super) fn sweep_again(&mut self) {
        self.sweeps_at = Some(Instant::now() + self.next_pause(PAUSES[0]));
    }

    /// Returns the pause before the next attempt, which is at least that long. The one after that is twice as long.
    fn next_pause(&mut self, at_least: Duration) -> Duration {
        let pause = self.pause.max(at_least);
        self.pause = (pause * 2).clamp(PAUSES[0], PAUSES[1]);
        pause
    }

    /// Notes that there is no connection, and when to try again after at least this pause.
    pub(super) fn failed(&mut self, trouble: Trouble, at_least: Duration) {
        tracing::warn!(host = self.ssh.shell.host, error = %trouble.message, "not connected");
        if trouble.is_final {
            let message = format!("{}: {}", self.ssh.shell.host, trouble.sentence());
            self.lose(|run| !run.may_exist(), &Fact::StartFailed { failure: message.into() });
            // Nobody would ever be let in to clear them; they go with the session there.
            self.concluded.clear();
        }
        for (task, run) in self.runs.iter_mut().filter(|(_, run)| !run.is_given_up) {
            run.is_unknown = true;
            let why = trouble.message.clone();
            self.context.facts.send(*task, run.number, Fact::Elsewhere(PlaceFact::Unknown { why }));
        }
        if self.runs.is_empty() {
            return self.rest();
        }
        self.link = Link::Broken(Instant::now() + self.next_pause(at_least), trouble);
        self.has_connected = true;
        self.refuse_kept();
    }
}
