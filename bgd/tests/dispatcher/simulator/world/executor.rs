//! The executor of a simulated daemon: passes the dispatcher's calls to the world.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bgd::carry::{CarriedFds, Obstacle};
use bgd::core::Control;
use bgd::exec::carried::Carried;
use bgd::exec::executor::{Done, Executor, Start};
use bgd::exec::left::{HeldRun, Resumed};
use bgd_shared::id::TaskId;
use tokio::sync::oneshot;

use super::{Due, Kind, Ordered, Process, SIGKILL, Stage, World};

/// The executor of a daemon in this world.
pub struct Simulated(pub Arc<World>);

/// Returns a future that resolves when an operation is done, or can no longer be done.
fn until(is_done: oneshot::Receiver<()>) -> Done {
    Box::pin(async move {
        // Fails if the sender was dropped.
        let _ = is_done.await;
        None
    })
}

impl Executor for Simulated {
    fn start(&mut self, start: Start) {
        let Start { task, run, .. } = start;
        let now = self.0.now();
        self.0.trace(format!("start {task} {run}").as_bytes());
        let mut state = self.0.state();
        assert!(state.started.insert((task, run)), "run {run} of {task} was started twice");
        let process = Process {
            run,
            stage: Stage::Spawning,
            disturbed: 0,
            ends: None,
            is_paused: false,
            orders: VecDeque::new(),
            is_asked_to_end: false,
            is_killed: false,
            bytes: 0,
        };
        let before = state.processes.insert(task, process);
        assert!(before.is_none(), "run {run} of {task} was started beside {before:?}");
        state.runs += 1;
        state.later(now, 1500, Due::Step { task, disturbed: 0 });
        drop(state);
        self.0.changed.notify_one();
    }

    fn control(&mut self, task: TaskId, run: u32, control: Control) -> Option<Done> {
        let now = self.0.now();
        self.0.trace(format!("control {task} {run} {control:?}").as_bytes());
        let mut state = self.0.state();
        let is_durable = self.0.kind == Kind::Durable;
        let process = state.processes.get_mut(&task).filter(|process| process.run == run)?;
        match control {
            Control::Pause | Control::Continue if is_durable => {
                let (done, is_done) = oneshot::channel();
                let pauses = control == Control::Pause;
                let order = if pauses { Ordered::Pause(done) } else { Ordered::Continue(done) };
                state.order(now, task, run, order);
                drop(state);
                self.0.changed.notify_one();
                return Some(until(is_done));
            }
            Control::Pause => process.is_paused = true,
            Control::Continue => {
                process.is_paused = false;
                process.disturbed += 1;
                let disturbed = process.disturbed;
                state.later(now, 1000, Due::Step { task, disturbed });
            }
            Control::Signal { signal, .. } => {
                if matches!(signal, 9 | 15) {
                    state.signal(now, task, signal);
                }
                drop(state);
                self.0.changed.notify_one();
                return None;
            }
            Control::Answer { .. }
            | Control::Hold { .. }
            | Control::Priority { .. }
            | Control::Detach { .. } => {
                return None;
            }
        }
        let (done, is_done) = oneshot::channel();
        state.later(now, 300, Due::Done(done));
        drop(state);
        self.0.changed.notify_one();
        Some(until(is_done))
    }

    fn end(&mut self, task: TaskId, run: u32, signal: i32, _: Duration) {
        let now = self.0.now();
        self.0.trace(format!("end {task} {run} {signal}").as_bytes());
        let mut state = self.0.state();
        if self.0.kind == Kind::Durable {
            state.order(now, task, run, Ordered::End(signal));
        } else if let Some(process) = state.processes.get_mut(&task).filter(|process| process.run == run) {
            process.is_killed |= signal == SIGKILL;
            state.signal(now, task, signal);
        }
        drop(state);
        self.0.changed.notify_one();
    }

    fn forget(&mut self, task: TaskId) {
        self.0.trace(format!("forget {task}").as_bytes());
        let state = self.0.state();
        let left = state.processes.get(&task);
        assert!(left.is_none(), "{task} is forgotten, and runs: {left:?}");
    }

    fn adopt(&mut self, left: HeldRun, resumed: &Resumed) -> io::Result<i32> {
        self.0.run_resumed(left.key, resumed)
    }

    fn end_recorded(&mut self, task: TaskId, run: u32) {
        self.0.over(task, run);
    }

    fn sent_unrecorded(&mut self, seq: Option<u64>) {
        self.0.sent_unrecorded(seq);
    }

    fn caught_up(&mut self, _: u64) {
        self.0.caught_up();
    }

    fn carry(&mut self, _: &mut CarriedFds) -> Result<Carried, Obstacle> {
        // The world holds the processes, as the kernel would.
        Ok(Carried::Nothing)
    }
}
