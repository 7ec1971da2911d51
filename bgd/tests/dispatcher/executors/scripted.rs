//! An executor whose tasks follow a script in their arguments, and one that only ends: no processes, no threads, no clock.

use std::collections::HashMap;
use std::future::ready;
use std::sync::mpsc::Sender;
use std::time::Duration;

use bgd::carry::{CarriedFds, Obstacle};
use bgd::client::Client;
use bgd::core::{Begin, Control, Fact, Work};
use bgd::exec::carried::Carried;
use bgd::exec::executor::{Close, Done, Executor, Offer, OfferCallback, Start};
use bgd::exec::handed::Handoff;
use bgd::exec::messages::Facts;
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::task::Exit;
use bgd_shared::time::Timestamp;

const SIGKILL: i32 = 9;

/// How many facts of a flood are sent at once, each with one more byte of output.
const WAVE: u64 = 1000;

/// The behaviour of a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Script {
    /// Runs until it gets any signal.
    Runs,
    /// Runs until it gets SIGKILL.
    Stubborn,
    /// Runs until it gets any signal, and refuses all other orders.
    Refuses,
    /// Runs, and has its end reported wrongly.
    Forgets,
    /// Runs until it gets any signal, with more facts waiting at any time. So many were sent.
    Floods(u64),
}

/// The executor, with its running tasks.
pub struct Scripted {
    running: HashMap<TaskId, Script>,
    facts: Facts,
    /// The last run that floods.
    flooding: Option<(TaskId, u32)>,
    /// Gets the runs that are over, if anybody wants to know.
    over: Option<Sender<(TaskId, u32)>>,
}

impl Scripted {
    /// Creates an executor without tasks. It does not resume any runs of an earlier daemon.
    pub fn new(facts: Facts, over: Option<Sender<(TaskId, u32)>>) -> Self {
        Self { running: HashMap::new(), facts, flooding: None, over }
    }

    /// Sends the next wave of a flood, unless it is over.
    fn flood(&mut self) {
        let Some((task, run)) = self.flooding else { return };
        let Some(Script::Floods(sent)) = self.running.get_mut(&task) else { return };
        for number in *sent + 1..=*sent + WAVE {
            let fact = Fact::Output { bytes: [number, 0], dropped: [0; 2], publish: false };
            self.facts.send(task, run, fact);
        }
        *sent += WAVE;
        self.facts.ask_caught_up(*sent);
    }

    fn exited(&mut self, task: TaskId, run: u32, exit: Exit) {
        self.running.remove(&task);
        self.facts.send(task, run, Fact::Exited { exit, others: false, at: None });
    }
}

impl Executor for Scripted {
    fn start(&mut self, start: Start) {
        let Start { task, run, spec, begin, .. } = start;
        let Work::Argv(words) = &spec.work else { panic!("a script has words") };
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let started = Fact::Started { pid: None };
        let script = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["runs"] => Script::Runs,
            ["stubborn"] => Script::Stubborn,
            ["refuses"] => Script::Refuses,
            ["forgets"] => Script::Forgets,
            ["floods"] => {
                self.facts.send(task, run, started);
                self.running.insert(task, Script::Floods(0));
                self.flooding = Some((task, run));
                // While one wave is handled, the next one already waits.
                self.flood();
                return self.flood();
            }
            ["ends", code] => {
                self.facts.send(task, run, started);
                return self.exited(task, run, Exit::Code(code.parse().unwrap()));
            }
            ["fails", why] => return self.facts.send(task, run, Fact::StartFailed { failure: why.into() }),
            ref other => panic!("no such script: {other:?}"),
        };
        self.running.insert(task, script);
        // What is handed over has been running before.
        if !matches!(begin, Begin::HandedOver) {
            self.facts.send(task, run, started);
        }
    }

    /// Accepts whatever is offered; its command is the script.
    fn offer(&mut self, task: TaskId, handoff: Box<Handoff>, _: &Client, callback: OfferCallback) {
        let params = handoff.params;
        let offer = Offer {
            pid: params.pid,
            started_at: Timestamp::now(),
            argv: params.argv.expect("a script has words"),
            cwd: "/".into(),
            split: false,
            pty: None,
            output_file: None,
        };
        callback(task, Ok(offer));
    }

    fn control(&mut self, task: TaskId, _: u32, _: Control) -> Option<Done> {
        let refuses = self.running.get(&task) == Some(&Script::Refuses);
        let refusal = RpcError::new(ErrorKind::Internal, format!("task {task} can't be ordered now"));
        refuses.then(|| -> Done { Box::pin(ready(Some(refusal))) })
    }

    fn end(&mut self, task: TaskId, run: u32, signal: i32, _: Duration) {
        match self.running.get(&task) {
            None => {}
            Some(Script::Stubborn) if signal != SIGKILL => {}
            Some(Script::Runs | Script::Stubborn | Script::Refuses | Script::Floods(_)) => {
                self.exited(task, run, Exit::Signal(signal));
            }
            // Report the end of a run that never existed, and of a task that nobody submitted.
            Some(Script::Forgets) if signal != SIGKILL => {
                let exited = Fact::Exited { exit: Exit::Code(0), others: false, at: None };
                self.facts.send(task, run + 1, exited.clone());
                self.facts.send(TaskId::random(), run, exited);
            }
            Some(Script::Forgets) => {
                self.facts.send(task, run, Fact::GaveUp { why: "nobody knows".into() });
            }
        }
    }

    fn forget(&mut self, task: TaskId) {
        self.running.remove(&task);
    }

    fn end_recorded(&mut self, task: TaskId, run: u32) {
        self.over.iter().for_each(|over| _ = over.send((task, run)));
    }

    fn caught_up(&mut self, _mark: u64) {
        self.flood();
    }

    fn carry(&mut self, _named: &mut CarriedFds) -> Result<Carried, Obstacle> {
        Err(Obstacle::lasting("a script runs"))
    }
}

/// An executor without tasks whose last commands end only after the daemon has hurried once.
pub struct Closing {
    closed: Sender<Close>,
    is_busy: bool,
}

impl Closing {
    /// Creates an executor that reports each call of [`Executor::close`].
    pub const fn new(closed: Sender<Close>) -> Self {
        Self { closed, is_busy: true }
    }
}

impl Executor for Closing {
    fn start(&mut self, start: Start) {
        panic!("no task is for this executor: {}", start.task);
    }

    fn control(&mut self, _: TaskId, _: u32, _: Control) -> Option<Done> {
        None
    }

    fn end(&mut self, _: TaskId, _: u32, _: i32, _: Duration) {}

    fn forget(&mut self, _: TaskId) {}

    fn carry(&mut self, _named: &mut CarriedFds) -> Result<Carried, Obstacle> {
        Ok(Carried::Nothing)
    }

    fn close(&mut self, close: Close) {
        self.is_busy = close == Close::Asked;
        self.closed.send(close).unwrap();
    }

    fn is_busy(&self) -> bool {
        self.is_busy
    }
}
