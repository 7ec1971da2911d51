//! The process executor: one small task supervises each process, from its start to the end of its tree.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::task::Exit;
use nix::errno::Errno;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc as async_mpsc;

use super::input::InputPipe;
use super::output::{OutputFolder, OutputWatch};
use super::spawner::StartOrder;
use super::tree::{self, Member, Tree};
use super::workers::Workers;
use crate::core::Fact;
use crate::mailbox::{Begun, Facts, Report};
use crate::sys::pidfd::{PidFd, SIGKILL};
use crate::sys::watch;

/// How many processes of a tree without its leader are watched at once. When these have ended, the next
/// ones are; so a large tree does not use up the descriptors.
const WATCHED: usize = 8;

/// How long a supervisor rests when it must try again and no event tells when.
const REST: Duration = Duration::from_millis(100);

const SIGCONT: i32 = 18;

/// What a supervisor is told.
#[derive(Clone, Copy, Debug)]
enum Control {
    /// A signal for the leader, or for the whole tree.
    Signal { signal: i32, tree: bool },
    /// End the tree.
    End { signal: i32 },
}

/// What supervisors share.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Where outputs are.
    pub folder: Arc<OutputFolder>,
    /// Who follows them.
    pub outputs: OutputWatch,
    /// Who does what blocks.
    pub workers: Workers,
    /// Who hears of it.
    pub facts: Facts,
}

/// A supervised process.
#[derive(Debug)]
struct Supervised {
    run: u32,
    control: async_mpsc::UnboundedSender<Control>,
    input: Option<InputPipe>,
}

/// All processes of the daemon.
#[derive(Debug)]
pub struct Processes {
    supervised: HashMap<TaskId, Supervised>,
    orders: mpsc::Sender<StartOrder>,
    around: Surroundings,
}

impl Processes {
    /// No processes yet.
    pub fn new(orders: mpsc::Sender<StartOrder>, around: Surroundings) -> Self {
        Self { supervised: HashMap::new(), orders, around }
    }

    /// Has a process started; [`Report::Begun`] follows.
    pub fn start(&self, order: StartOrder) {
        let (task, run) = (order.task, order.run);
        if self.orders.send(order).is_err() {
            let error = "the daemon's spawner threads have ended".into();
            self.around.facts.send(Report::Begun { task, run, result: Err(error) });
        }
    }

    /// Takes over a process that has begun, and returns its number.
    pub fn adopt(&mut self, task: TaskId, run: u32, begun: Begun) -> i32 {
        let Begun { pid, pidfd, input, cgroup, split } = begun;
        let input = input.and_then(|end| {
            InputPipe::new(end).inspect_err(|error| tracing::warn!(%task, %error, "no standard input")).ok()
        });
        let (control, orders) = async_mpsc::unbounded_channel();
        if let Some(split) = split {
            self.around.outputs.track(task, run, split);
        }
        let files = self.around.folder.files(task, split.unwrap_or(false));
        let tree = Tree { task, leader: pid, leader_is_ours: true, files, cgroup };
        let supervisor =
            Supervisor { tree, run, around: self.around.clone(), orders, ending: None, missed: false };
        tokio::spawn(supervisor.run(pidfd));
        self.supervised.insert(task, Supervised { run, control, input });
        pid
    }

    /// Sends a signal to a task's leader or to its tree.
    pub fn signal(&self, task: TaskId, run: u32, signal: i32, tree: bool) {
        self.control(task, run, Control::Signal { signal, tree });
    }

    /// Ends a task's tree.
    pub fn end(&self, task: TaskId, run: u32, signal: i32) {
        self.control(task, run, Control::End { signal });
    }

    fn control(&self, task: TaskId, run: u32, control: Control) {
        if let Some(supervised) = self.supervised.get(&task).filter(|supervised| supervised.run == run) {
            // A supervisor that has ended has reported so already.
            let _ = supervised.control.send(control);
        }
    }

    /// The standard input of a task.
    pub fn input(&self, task: TaskId) -> Option<InputPipe> {
        self.supervised.get(&task)?.input.clone()
    }

    /// A task's leader has ended: nobody reads its standard input any more.
    pub fn close_input(&mut self, task: TaskId) {
        if let Some(supervised) = self.supervised.get_mut(&task) {
            supervised.input = None;
        }
    }

    /// A task's tree has ended.
    pub fn gone(&mut self, task: TaskId, run: u32) {
        if self.supervised.get(&task).is_some_and(|supervised| supervised.run == run) {
            self.supervised.remove(&task);
        }
    }
}

/// Watches over one tree.
struct Supervisor {
    tree: Tree,
    run: u32,
    around: Surroundings,
    orders: async_mpsc::UnboundedReceiver<Control>,
    /// The signal that the tree was told to end with.
    ending: Option<i32>,
    /// Not every process could be reached with it, so it is sent again.
    missed: bool,
}

impl Supervisor {
    async fn run(mut self, pidfd: PidFd) {
        let exit = match watch::process(pidfd) {
            Ok(pidfd) => {
                self.until_ended(&pidfd).await;
                self.reap(pidfd.get_ref()).await
            }
            // Without a watch nobody would learn of the end, and nothing may run unseen.
            Err(error) => {
                let why = format!("the process could not be watched: {error}");
                self.end_all(SIGKILL).await;
                Exit::Unknown(why.into())
            }
        };
        self.tree.leader_is_ours = false;
        let mut members = self.rest().await;
        let others = !members.is_empty();
        self.tell_output(others).await;
        self.report(Fact::Exited { exit, others });
        if others {
            while !members.is_empty() {
                if self.ending == Some(SIGKILL) {
                    self.signal(SIGKILL).await;
                }
                self.until_all_ended(members).await;
                members = self.rest().await;
            }
            self.tell_output(false).await;
            self.report(Fact::TreeEmpty);
        }
        if let Some(cgroup) = self.tree.cgroup.take() {
            self.around.workers.later(move || tree::remove_cgroup(&cgroup));
        }
    }

    fn report(&self, fact: Fact) {
        self.around.facts.send(Report::Fact { task: self.tree.task, run: self.run, fact });
    }

    async fn tell_output(&self, lives_on: bool) {
        if let Some(fact) = self.around.outputs.settle(self.tree.task, lives_on).await {
            self.report(fact);
        }
    }

    /// Waits for the leader's end and obeys orders meanwhile.
    async fn until_ended(&mut self, pidfd: &AsyncFd<PidFd>) {
        loop {
            tokio::select! {
                biased;
                _ = pidfd.readable() => return,
                Some(order) = self.orders.recv() => match order {
                    Control::Signal { signal, tree: false } => send(pidfd.get_ref(), signal),
                    order => self.obey(order).await,
                },
                () = tokio::time::sleep(REST), if self.missed => {
                    // Not all could be held; the leader is, by this handle.
                    if let Some(signal) = self.ending {
                        send(pidfd.get_ref(), signal);
                        self.end_all(signal).await;
                    }
                }
            }
        }
    }

    /// Takes the ended leader away. A debugger may hold on to it for a while, and no event tells when it
    /// lets go.
    async fn reap(&self, pidfd: &PidFd) -> Exit {
        loop {
            match pidfd.reap() {
                Some(exit) => return exit,
                None => tokio::time::sleep(REST).await,
            }
        }
    }

    /// Waits until all of these have ended and obeys orders meanwhile.
    async fn until_all_ended(&mut self, members: Vec<Member>) {
        let mut watched = Vec::new();
        for member in members {
            match watch::process(member.handle) {
                Ok(handle) => watched.push(handle),
                Err(error) => tracing::warn!(pid = member.pid, %error, "cannot watch a process"),
            }
        }
        if watched.is_empty() {
            tokio::time::sleep(REST).await;
        }
        for handle in watched {
            loop {
                tokio::select! {
                    biased;
                    _ = handle.readable() => break,
                    Some(order) = self.orders.recv() => self.obey(order).await,
                    () = tokio::time::sleep(REST), if self.missed => {
                        if let Some(signal) = self.ending {
                            self.end_all(signal).await;
                        }
                    }
                }
            }
        }
    }

    async fn obey(&mut self, order: Control) {
        match order {
            Control::Signal { signal, .. } => drop(self.signal(signal).await),
            Control::End { signal } => self.end_all(signal).await,
        }
    }

    async fn end_all(&mut self, signal: i32) {
        self.ending = Some(signal);
        if signal == SIGKILL
            && let Some(cgroup) = &self.tree.cgroup
            && let Err(error) = tree::kill_cgroup(cgroup)
        {
            tracing::warn!(cgroup = %cgroup.display(), %error, "cgroup.kill failed");
        }
        self.missed = !self.signal(signal).await;
        if signal != SIGKILL && signal != SIGCONT {
            // A stopped process can't obey.
            self.signal(SIGCONT).await;
        }
    }

    /// Who is left behind the leader. Nearly always nobody, so the quick question comes first.
    async fn rest(&self) -> Vec<Member> {
        if self.tree.cgroup.is_none() && tree::orphans().is_empty() {
            return Vec::new();
        }
        loop {
            let tree = self.tree.clone();
            match self.around.workers.run(move || tree.members(WATCHED)).await {
                Some(Ok(members)) => return members,
                Some(Err(error)) => {
                    tracing::warn!(task = %self.tree.task, %error, "cannot look at a tree");
                    tokio::time::sleep(REST).await;
                }
                None => {
                    tracing::error!(task = %self.tree.task, "looking at a tree failed");
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }

    /// Signals every process of the tree. False: not all could be reached.
    async fn signal(&self, signal: i32) -> bool {
        let tree = self.tree.clone();
        self.around.workers.run(move || tree.signal(signal)).await.unwrap_or(false)
    }
}

fn send(process: &PidFd, signal: i32) {
    if let Err(error) = process.signal(signal)
        && error.raw_os_error() != Some(Errno::ESRCH as i32)
    {
        tracing::warn!(signal, %error, "cannot signal a process");
    }
}
