//! A machine's connection: the reactions when it is made, breaks, or can't be made.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::event::News;
use bgd_shared::id::TaskId;
use bgd_shared::pauses::next_pause;
use bgd_shared::task::Task;

use super::{FAILURES, IDLE, Machine, PAUSES};
use crate::core::{Fact, PlaceFact};
use crate::exec::remote::bridge::{self, Bridge, BridgeError};
use crate::exec::remote::link::{Link, LinkEvent};
use crate::exec::remote::room::Room;
use crate::exec::remote::run::{Run, why_it_awaits};
use crate::remotes::Ssh;

impl Machine {
    pub(super) fn open(&mut self) {
        self.sweeps_at = None;
        let (host, shell, origin) = (self.host.clone(), self.ssh.shell.clone(), Arc::clone(&self.origin));
        self.link =
            Link::Opening(Box::pin(
                async move { bridge::connect(&host, &shell, Some(&origin.session)).await },
            ));
    }

    pub(super) fn bridge(&self) -> Option<Arc<Bridge>> {
        match &self.link {
            Link::Open(bridge, _) => Some(Arc::clone(bridge)),
            Link::Idle | Link::Opening(_) | Link::Broken(..) => None,
        }
    }

    /// Reports whether this is the current connection, and not an earlier one.
    pub(super) fn is_current(&self, bridge: &Arc<Bridge>) -> bool {
        matches!(&self.link, Link::Open(open, _) if Arc::ptr_eq(bridge, open))
    }

    pub(super) fn unreachable(&self) -> String {
        match &self.link {
            Link::Broken(_, trouble) => {
                format!("{} can't be reached: {}", self.ssh.shell.host, trouble.message)
            }
            Link::Idle | Link::Opening(_) | Link::Open(..) => {
                format!("{} is being connected to", self.ssh.shell.host)
            }
        }
    }

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
        if let Some(before) = self.previous_host(&instance) {
            return self.go_back(before);
        }
        (self.has_opened, self.is_back) = (true, false);
        let bridge = Arc::new(bridge);
        self.link = Link::Open(Arc::clone(&bridge), Instant::now() + IDLE);
        if self.instance.as_ref().is_some_and(|known| *known != instance) {
            self.concluded.clear();
            let why = format!("the daemon of {} was restarted, and its tasks are lost", self.ssh.shell.host);
            for task in self.of_runs(Run::may_exist) {
                self.vanish(task, &why);
            }
        }
        // Noted before anything is submitted: the next daemon needs the instance that may have it.
        self.origin.note_there(&instance, &self.ssh.shell.host);
        self.instance = Some(instance);
        self.sweep(bridge);
        self.has_connected = true;
        self.ready.extend(self.in_order());
    }

    /// Returns the host that the previous daemon was connected to, if the configuration was changed since then so that
    /// this instance is another machine's. The same machine may only have another name.
    fn previous_host(&self, instance: &str) -> Option<String> {
        if self.next_host.is_some() || self.instance.as_deref().is_none_or(|known| known == instance) {
            return None;
        }
        self.origin.host_before().filter(|before| *before != self.ssh.shell.host)
    }

    /// Connects to the previous host first, which may still have tasks, and changes to the configured one as after any
    /// change of the configuration.
    fn go_back(&mut self, before: String) {
        tracing::info!(host = before, "the host was changed; the previous one may still have tasks");
        self.next_host = Some(std::mem::replace(&mut self.ssh.shell.host, before));
        // The previous daemon had not sent a run that still waited for the configured host.
        let host = &self.ssh.shell.host;
        self.runs.values_mut().for_each(|run| run.unsend_if_it_awaits(host));
        self.is_back = true;
        self.reset_failures();
        self.ready.extend(self.in_order());
        self.open();
    }

    /// Uses these settings from now on. The host stays the same as long as it may have tasks, which would otherwise be
    /// abandoned. Before the first connection the runs may be on another host, which the note names, so the configured
    /// one is connected to at once, and its answer decides.
    pub(super) fn configure(&mut self, ssh: Ssh) {
        let host = std::mem::replace(&mut self.ssh, ssh).shell.host;
        let next = std::mem::replace(&mut self.ssh.shell.host, host);
        let is_changed = next != *self.next_host.as_ref().unwrap_or(&self.ssh.shell.host);
        let may_go_back = self.instance.is_none() || self.origin.host_before().is_some();
        if is_changed && !self.has_opened && may_go_back {
            self.open_instead(next);
        } else {
            self.next_host = Some(next).filter(|next| *next != self.ssh.shell.host);
        }
        self.ready.extend(self.in_order());
    }

    /// Connects to this host instead of the one that could not be connected to yet.
    fn open_instead(&mut self, host: String) {
        tracing::info!(from = self.ssh.shell.host, to = host, "the host was changed before a connection");
        self.ssh.shell.host = host;
        (self.next_host, self.is_back, self.gave_up_sweep) = (None, false, false);
        self.reset_failures();
        if self.sweeps_at.is_some() || !matches!(self.link, Link::Idle) {
            self.open();
        }
    }

    /// Changes to the configured host once the previous one has no tasks. Tasks that are no longer awaited, because it
    /// can't be reached, are left to it.
    pub(super) fn change_host(&mut self) {
        if self.next_host.is_none() || self.is_clearing {
            return;
        }
        self.give_up_sweep();
        let has_more = !self.unwritten.is_empty() || !self.concluded.is_empty();
        let is_swept = self.has_swept && !self.is_sweeping || self.gave_up_sweep;
        if has_more || self.runs.values().any(may_run) || self.sweeps && !is_swept {
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
        self.switch_to(host);
    }

    /// Leaves its runs to the previous host, as it refuses further connections and may be gone for good, and returns to
    /// the configured host.
    fn leave_previous(&mut self, trouble: &BridgeError) {
        let Some(next) = self.next_host.take() else { return };
        let left = self.of_runs(Run::may_exist);
        tracing::warn!(
            host = self.ssh.shell.host,
            left = left.len(),
            sessions = self.origin.sessions(),
            "tasks may be left on the previous host, which refuses connections: use `bgctl session end` there"
        );
        let why = format!(
            "it is lost on {}, the previous host of its executor: {}",
            self.ssh.shell.host, trouble.message
        );
        for task in left {
            self.vanish(task, &why);
        }
        self.switch_to(next);
        if self.runs.is_empty() {
            self.disconnect_idle();
        }
    }

    /// Switches to another host, on which nothing is yet.
    fn switch_to(&mut self, host: String) {
        self.ssh.shell.host = host;
        (self.is_back, self.gave_up_sweep) = (false, false);
        (self.link, self.instance, self.room) = (Link::Idle, None, Room::default());
        self.reset_failures();
        // The next daemon must not expect the previous host's daemon here either.
        self.origin.forget_there();
        self.early.clear();
        self.ready.extend(self.in_order());
    }

    /// Leaves what earlier daemons may have left to a previous host that can't be reached again and again, if runs wait
    /// for the next one and nothing else on the previous one is awaited.
    fn give_up_sweep(&mut self) {
        let is_blocked = self.next_host.is_some() && self.sweeps && !self.has_swept && !self.gave_up_sweep;
        let is_gone = self.failures >= FAILURES;
        if !is_blocked || !is_gone || self.runs.is_empty() || self.runs.values().any(may_run) {
            return;
        }
        self.gave_up_sweep = true;
        tracing::warn!(
            host = self.ssh.shell.host,
            sessions = self.origin.sessions(),
            "an earlier daemon may have left tasks on the previous host, which can't be reached: use \
             `bgctl session end` there"
        );
    }

    /// Reports that a run waits until the host can be changed.
    pub(super) fn await_next_host(&self, task: TaskId, number: u32) {
        let host = &*self.ssh.shell.host;
        let fact = PlaceFact::Unsent { awaits: host.into(), reason: why_it_awaits(host).into() };
        self.context.facts.send(task, number, Fact::Elsewhere(fact));
    }

    /// Returns the tasks of all runs in their order, in which those that wait for a connection are submitted.
    pub(super) fn in_order(&self) -> Vec<TaskId> {
        let mut runs: Vec<(u64, TaskId)> = self.runs.iter().map(|(task, run)| (run.turn, *task)).collect();
        runs.sort_unstable();
        runs.into_iter().map(|(_, task)| task).collect()
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
        self.pause = next_pause(pause, PAUSES);
        pause
    }

    /// Notes that the machine is of use, so that the next failure is the first one.
    pub(super) const fn reset_failures(&mut self) {
        (self.pause, self.failures) = (Duration::ZERO, 0);
    }

    /// Returns why the states of the runs are not known, with what to do if that may last for ever and others wait.
    fn why_unknown(&self, trouble: &BridgeError) -> Box<str> {
        match &self.next_host {
            Some(next) if trouble.is_final || self.failures >= FAILURES => format!(
                "{}; if {} is gone, cancel its tasks: others then go to {next}",
                trouble.message, self.ssh.shell.host
            )
            .into(),
            _ => trouble.message.clone(),
        }
    }

    /// Notes that there is no connection, and schedules a retry after at least this pause.
    pub(super) fn failed(&mut self, trouble: BridgeError, at_least: Duration) {
        tracing::warn!(host = self.ssh.shell.host, error = %trouble.message, "not connected");
        self.ends_at = None;
        self.failures = self.failures.saturating_add(1);
        if trouble.is_final && self.is_back {
            return self.leave_previous(&trouble);
        }
        // Runs that wait for the next host are not concerned.
        if trouble.is_final && self.next_host.is_none() {
            let message = format!("{}: {}", self.ssh.shell.host, trouble.sentence());
            let fact = Fact::StartFailed { failure: message.into() };
            for task in self.of_runs(|run| !run.may_exist()) {
                let Some(run) = self.runs.get(&task) else { continue };
                self.context.facts.send(task, run.number, fact.clone());
                self.remove(task);
            }
        }
        if trouble.is_final {
            // Access may never be granted again to clear them; they are removed with the session on the machine.
            self.concluded.clear();
        }
        let unknown = self.why_unknown(&trouble);
        for (task, run) in self.runs.iter_mut().filter(|(_, run)| !run.is_given_up) {
            run.is_unknown = true;
            let why = unknown.clone();
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

/// Reports whether a run may be on the machine, and is awaited.
fn may_run(run: &Run) -> bool {
    run.may_exist() && !run.is_given_up
}
