//! Applies the effects of the core: to executors, subscribers, channels and waiting clients.

use std::sync::Arc;
use std::time::Duration;

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::{ClearResult, SessionEndResult};
use bgd_shared::show;
use bgd_shared::task::Kind;
use bgd_shared::time::Timestamp;

use super::{Clear, Dispatcher};
use crate::core::{Begin, Control, Effect, ExecutorName, Fact, Reply, Snapshot, Spec};
use crate::exec::executor::{Executor, Start};
use crate::wire::view;

impl Dispatcher {
    /// Applies the effects of a step of the core.
    pub(super) fn apply(&mut self, mut effects: Vec<Effect>) {
        self.prepare(&mut effects);
        let (mut forgotten, mut clears) = (Vec::new(), Vec::new());
        let (mut done, mut is_signal, mut ended) = (Vec::new(), false, Vec::new());
        for effect in effects {
            match effect {
                Effect::Start { executor, task, run, spec, begin } => {
                    self.start(executor, task, run, spec, begin);
                }
                Effect::Control { executor, task, run, control } => {
                    is_signal |= matches!(control, Control::Signal { .. });
                    self.with(executor, |executor| done.extend(executor.control(task, run, control)));
                }
                Effect::End { executor, task, run, signal, grace_ms } => {
                    let grace = Duration::from_millis(grace_ms);
                    self.with(executor, |executor| executor.end(task, run, signal, grace));
                }
                Effect::Over { executor, task, run } => {
                    self.with(executor, |executor| executor.end_recorded(task, run));
                }
                Effect::Written { executor, task, run } => {
                    self.with(executor, |executor| executor.report_recorded(task, run));
                }
                Effect::CaughtUp { mark } => {
                    self.executors.all().for_each(|executor| executor.caught_up(mark));
                }
                Effect::Forget { executor, task, run } => {
                    self.release_inherited(task);
                    self.with(executor, |executor| executor.forget(task));
                    // Only the runs of agents leave results.
                    let runs = if executor == ExecutorName::AGENT { run } else { 0 };
                    forgotten.extend(self.may_remove(task, runs).then_some((task, runs)));
                }
                Effect::Event { seq, at, kind, task } => {
                    ended.extend(Some(task.id).filter(|_| kind.is_terminal()));
                    self.publish(seq, at, kind, &task);
                }
                Effect::Notice { notice, seen_by: _ } => self.notify(notice),
                Effect::Reply { to, reply } => {
                    if let Reply::ShutDown { cancelled, left } = reply {
                        log_stop(cancelled, left);
                    }
                    // The core replies to a request right after its controls, even if the call is gone by now.
                    let (done, is_signal) = (std::mem::take(&mut done), std::mem::take(&mut is_signal));
                    let Some((answer, shape)) = self.pending.remove(&to) else { continue };
                    match reply {
                        Reply::Cleared { cleared, tasks: _ } => {
                            let unrecorded = self.unrecorded().filter(|_| cleared > 0);
                            clears.push((answer, Clear::Tasks(ClearResult { cleared, unrecorded })));
                        }
                        Reply::SessionEnded { cancelled, cleared, tasks: _ } => {
                            let result = SessionEndResult { cancelled, cleared };
                            clears.push((answer, Clear::Session(result)));
                        }
                        reply @ (Reply::Task(_) | Reply::Tasks(_)) if !done.is_empty() => {
                            self.reply_later(answer, &shape, reply, (done, is_signal));
                        }
                        reply => self.reply(answer, shape, reply),
                    }
                }
                Effect::Exit => self.begin_closing(),
            }
        }
        self.answer_known_exits();
        self.remove_outputs(forgotten, clears);
        for task in ended {
            // The task's start may hang; calls no longer wait for it.
            self.act_on_early(task);
        }
    }

    /// Corrects the times in these effects, and notes what they free and report.
    fn prepare(&mut self, effects: &mut [Effect]) {
        self.correct_waits(effects);
        self.note_freed(effects);
        self.note_reported(effects);
    }

    /// Reports whether the output of a cleared task may be removed at once: not if a notice is still to be read, which is
    /// then noted.
    fn may_remove(&mut self, task: TaskId, runs: u32) -> bool {
        let is_needed = self.notifier.reads(task);
        if is_needed {
            self.kept_for_notices.insert(task, runs);
        } else {
            self.notifier.forget(task);
        }
        !is_needed
    }

    fn publish(&mut self, seq: u64, at: Timestamp, kind: EventKind, task: &Snapshot) {
        // Once it has started, the keeper holds its process instead.
        if (kind.is_terminal() || kind == EventKind::Started) && task.spec.takes_descriptors() {
            self.release_inherited(task.id);
        }
        if kind.is_terminal() || kind == EventKind::Retrying {
            self.notifier.end_typing(task.id);
            if task.spec.kind() == Kind::Agent {
                self.notifier.ended(task.id);
            }
        }
        self.figures.count(kind, at, task);
        let session = task.spec.session.clone();
        self.subscribers.publish(seq, at, kind, &view::task(task, &self.context.folder), session);
    }

    pub(super) fn start(
        &mut self,
        executor: ExecutorName,
        task: TaskId,
        run: u32,
        spec: Arc<Spec>,
        begin: Begin,
    ) {
        if self.leave_start(task, &begin) {
            return;
        }
        if spec.kind() == Kind::Agent {
            self.notifier.begin_typing(task, &spec);
        }
        let shown = spec.pty.and_then(|_| self.core.get(&task.into()).ok());
        let owner = shown.and_then(|task| task.foreground);
        let owner = owner.and_then(|client| self.clients.get(&client).cloned());
        let inherited = self.inherited.remove(&task).and_then(Arc::into_inner).unwrap_or_default();
        self.has_started = true;
        let start = Start { task, run, spec, begin, inherited, owner };
        let Some(executor) = self.executors.of(executor) else {
            let failure = format!("this daemon has no executor of type {:?}", executor.0).into();
            return self.context.facts.send(task, run, Fact::StartFailed { failure });
        };
        executor.start(start);
    }

    pub(super) fn with(&mut self, name: ExecutorName, act: impl FnOnce(&mut dyn Executor)) {
        if let Some(executor) = self.executors.of(name) {
            act(executor);
        }
    }
}

/// Logs the result of a shutdown by a signal, whose sender gets no answer.
fn log_stop(cancelled: u64, left: u64) {
    let were = if cancelled == 1 { "was" } else { "were" };
    let keep = if left == 1 { "keeps" } else { "keep" };
    let cancelled = show::count(cancelled, "task");
    tracing::info!("stopping: {cancelled} {were} cancelled, {left} {keep} running");
}
