//! Supervises processes, with one small runtime task per process, from its start to the end of its tree. Which
//! processes belong to a tree is known only to `tree`.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use bgd_shared::task::Exit;
use bgd_shared::usage::{LiveUsage, Usage};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use super::progress::{Progress, Shown, Stage};
use super::starting::Starting;
use crate::core::Fact;
use crate::exec::context::Context;
use crate::exec::handed::drain::Drains;
use crate::exec::handed::exit::Handed;
use crate::exec::handed::tree::HandedTree;
use crate::exec::input::{InputPipe, UnreadState};
use crate::exec::messages::{Report, StartOrder, StartedProcess};
use crate::exec::processes::forked::ForkedCopies;
use crate::exec::processes::members::{Member, send};
use crate::exec::ready::{self, LastLook, Probe};
use crate::exec::terminal::Terminal;
use crate::exec::threads::thread_pool::ThreadPool;
use crate::exec::tree::Tree;
use crate::exec::tree::pause::Paused;
use crate::os::clock::{Stamp, sleep_until};
use crate::os::pidfd::{PidFd, SIGCONT, SIGKILL};
use crate::os::watch;

/// The delay before a supervisor retries an operation for which no event exists.
pub(super) const REST: Duration = Duration::from_millis(100);

/// A command to a supervisor.
#[derive(Debug)]
pub(in crate::exec) enum Control {
    /// Signal the leader, or the whole tree.
    Signal { signal: i32, tree: bool, done: oneshot::Sender<()> },
    /// Pause the tree, or continue it.
    SetPaused { paused: bool, done: oneshot::Sender<()> },
    /// Continue a job that has stopped, with its tree.
    ContinueStopped,
    /// Continue a tree that was handed over while its leader was stopped.
    ContinueHanded,
    /// Measure the current usage of the tree.
    Usage { done: oneshot::Sender<LiveUsage> },
    /// End the tree.
    End { signal: i32 },
    /// The leader's exit, as reported by the program that handed it over.
    Reported(Exit),
    /// The program that handed over the leader has disconnected.
    Left,
}

/// The job of a process that leads a terminal.
#[derive(Debug)]
pub struct TerminalJob {
    pub pid: i32,
    pub handle: Arc<PidFd>,
    /// The terminal's path.
    pub name: PathBuf,
    pub terminal: Terminal,
}

/// A process that another program started and the daemon takes over.
#[derive(Debug)]
pub struct Taken {
    pub pid: i32,
    /// The pidfd, already watched: a process that can't be watched is not taken over.
    pub pidfd: AsyncFd<PidFd>,
    pub tree: HandedTree,
    /// Whether standard output and error have separate files.
    pub split: bool,
    /// The file that the process itself writes its output to, if any.
    pub own_file: Option<PathBuf>,
    /// The further state of its supervisor.
    pub handed: Handed,
}

#[derive(Debug)]
pub(in crate::exec) struct Supervised {
    pub(in crate::exec) run: u32,
    pub(in crate::exec) control: mpsc::UnboundedSender<Control>,
    pub(in crate::exec) input: Option<InputPipe>,
    /// The pending writes of the previous program, until they are resumed.
    pub(in crate::exec) unread: UnreadState,
    /// Checks whether the process is ready, for as long as its leader lives.
    pub(in crate::exec) probe: Option<Probe>,
    /// The tree as it was at the start.
    pub(in crate::exec) tree: Tree,
    /// Whether standard output and error have separate files.
    pub(in crate::exec) split: bool,
    pub(in crate::exec) shown: Shown,
    /// The pid and pidfd of the job that it leads, if it leads a terminal.
    pub(in crate::exec) job: Option<(i32, Arc<PidFd>)>,
}

/// All processes of the daemon.
#[derive(Debug)]
pub struct Processes {
    pub(in crate::exec) supervised: HashMap<TaskId, Supervised>,
    pub(in crate::exec) starting: Starting,
    orders: ThreadPool<StartOrder>,
    pub(in crate::exec) context: Context,
}

impl Processes {
    /// Creates the owner without processes; `orders` leads to the spawner threads.
    pub fn new(orders: ThreadPool<StartOrder>, context: Context) -> Self {
        Self { supervised: HashMap::new(), starting: Starting::default(), orders, context }
    }

    /// Orders a process to be started; [`Report::Begun`] follows.
    pub fn start(&mut self, order: StartOrder) {
        let (task, run) = (order.task, order.run);
        self.starting.begin(task, run);
        if self.orders.send(order).is_err() {
            let error = "the daemon's spawner threads have ended".into();
            self.context.reports.send(Report::Begun { task, run, result: Err(error) });
        }
    }

    /// Supervises a started process, and returns its pid, or that of its job, which does the work, if it leads a
    /// terminal.
    pub fn adopt(&mut self, task: TaskId, run: u32, begun: StartedProcess, job: Option<TerminalJob>) -> i32 {
        let StartedProcess { pid, pidfd, input, cgroup, mark, split, awaited, terminal: _, announced: _ } =
            begun;
        let input = input.and_then(|end| {
            InputPipe::new(end).inspect_err(|error| tracing::warn!(%task, %error, "no standard input")).ok()
        });
        if let Some(split) = split {
            self.context.outputs.track(task, run, split);
        }
        let files = self.context.folder.files(task, split.unwrap_or(false));
        let tree = Tree {
            task,
            leader: pid,
            has_leader: true,
            handle: None,
            leader_only_leads_terminal: job.is_some(),
            files,
            terminal: job.as_ref().map(|job| job.name.clone()),
            cgroup,
            mark: Some(mark),
            handed: None,
            is_inherited: false,
            adopted: Arc::clone(&self.context.adopted),
        };
        let pid = job.as_ref().map_or(pid, |job| job.pid);
        let watch = |awaited: Box<_>| ready::watch(*awaited, run, tree.clone(), self.context.clone());
        let (probe, last_look) = awaited.map(watch).unzip();
        let begins = SupervisorStart { input, job, last_look, ..SupervisorStart::default() };
        self.supervise(run, tree, split.unwrap_or(false), watch::process(pidfd), begins);
        if let Some(supervised) = self.supervised.get_mut(&task) {
            supervised.probe = probe;
        }
        pid
    }

    /// Supervises a process that another program started.
    pub fn take_over(&mut self, task: TaskId, run: u32, taken: Taken) {
        let Taken { pid, pidfd, tree, split, own_file, handed } = taken;
        match own_file {
            Some(file) => self.context.outputs.track_own(task, run, &file),
            None => self.context.outputs.track(task, run, split),
        }
        let files = self.context.folder.files(task, split);
        let handed_tree = Some(Arc::new(tree));
        let tree = Tree {
            task,
            leader: pid,
            has_leader: false,
            handle: None,
            leader_only_leads_terminal: false,
            files,
            terminal: None,
            cgroup: None,
            mark: None,
            handed: handed_tree,
            is_inherited: false,
            adopted: Arc::clone(&self.context.adopted),
        };
        let begins = SupervisorStart { handed: Some(handed), ..SupervisorStart::default() };
        self.supervise(run, tree, split, Ok(pidfd), begins);
    }

    pub(in crate::exec) fn supervise(
        &mut self,
        run: u32,
        tree: Tree,
        split: bool,
        pidfd: io::Result<AsyncFd<PidFd>>,
        begins: SupervisorStart,
    ) {
        let SupervisorStart { input, job, handed, last_look, progress } = begins;
        let (control, orders) = mpsc::unbounded_channel();
        let shown = Shown::default();
        let (task, of_owner) = (tree.task, tree.clone());
        let supervised = Supervised {
            run,
            control,
            input,
            unread: UnreadState::default(),
            probe: None,
            tree: of_owner,
            split,
            shown: shown.clone(),
            job: job.as_ref().map(|job| (job.pid, Arc::clone(&job.handle))),
        };
        self.supervised.insert(task, supervised);
        let context = self.context.clone();
        let supervisor = Supervisor {
            tree,
            job,
            run,
            context,
            orders,
            ending: progress.ending,
            give_up_at: progress.give_up_at.map(Stamp::instant),
            missed: false,
            asked: progress.asked.into_iter().collect(),
            forked: ForkedCopies::default(),
            paused: progress.paused,
            has_ended: false,
            handed,
            last_look,
            usage: progress.usage,
            shown,
        };
        match progress.stage {
            Stage::Rest => tokio::spawn(supervisor.resume_rest()),
            Stage::AtWork | Stage::Leader => tokio::spawn(supervisor.run(pidfd)),
        };
    }

    /// Waits for the end of drains whose tree has ended, and then reports the final output.
    pub fn finish_drains(&self, task: TaskId, run: u32, drains: Drains) {
        let context = self.context.clone();
        tokio::spawn(async move {
            drains.end().await;
            if let Some(fact) = context.outputs.settle(task, run, false).await {
                context.reports.send(Report::Fact { task, run, fact });
            }
        });
    }

    /// Passes on the exit of a handed-over process, as reported by the program that handed it over.
    pub fn report_exit(&self, task: TaskId, exit: Exit) {
        self.tell(task, Control::Reported(exit));
    }

    /// Notes that the program that handed over this task's process has disconnected.
    pub fn client_disconnected(&self, task: TaskId) {
        self.tell(task, Control::Left);
    }

    /// Sends a signal to a task's leader or to its whole tree. The receiver resolves when it was sent.
    pub fn signal(&self, task: TaskId, run: u32, signal: i32, tree: bool) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.control(task, run, Control::Signal { signal, tree, done });
        is_done
    }

    /// Pauses or continues a task's tree. The receiver resolves when the tree has stopped or runs again.
    pub fn set_paused(&self, task: TaskId, run: u32, paused: bool) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.control(task, run, Control::SetPaused { paused, done });
        is_done
    }

    /// Continues a job that has stopped, with its tree. A pause lasts, but ends for that job, too.
    pub fn continue_stopped(&self, task: TaskId, run: u32) {
        self.control(task, run, Control::ContinueStopped);
    }

    /// Continues a tree that was handed over while its leader was stopped, as a shell's `bg` does.
    pub fn continue_handed(&self, task: TaskId, run: u32) {
        self.control(task, run, Control::ContinueHanded);
    }

    /// Returns the pid of a task's leader, which is also the id of its session if it leads one.
    pub fn leader_of(&self, task: TaskId) -> Option<i32> {
        self.supervised.get(&task).map(|supervised| supervised.tree.leader)
    }

    /// Measures the current usage of a task's tree.
    pub fn usage(&self, task: TaskId, run: u32) -> oneshot::Receiver<LiveUsage> {
        let (done, is_done) = oneshot::channel();
        self.control(task, run, Control::Usage { done });
        is_done
    }

    pub fn end(&self, task: TaskId, run: u32, signal: i32) {
        self.control(task, run, Control::End { signal });
    }

    fn control(&self, task: TaskId, run: u32, control: Control) {
        if self.supervised.get(&task).is_some_and(|supervised| supervised.run == run) {
            self.tell(task, control);
        }
    }

    fn tell(&self, task: TaskId, control: Control) {
        if let Some(supervised) = self.supervised.get(&task) {
            supervised.shown.works();
            // A supervisor that has ended has already reported its end.
            let _ = supervised.control.send(control);
        }
    }

    /// Returns the standard input of a task, if it is a pipe.
    pub fn input(&self, task: TaskId) -> Option<InputPipe> {
        self.supervised.get(&task)?.input.clone()
    }

    /// Drops the readiness check of a task whose leader has ended, and returns its standard input, which must then be
    /// closed.
    pub fn take_input(&mut self, task: TaskId, run: u32) -> Option<InputPipe> {
        let supervised = self.supervised.get_mut(&task).filter(|known| known.run == run)?;
        supervised.probe = None;
        supervised.input.take()
    }

    /// Forgets a run whose tree has ended. Returns whether it was the task's latest run.
    pub fn forget_ended(&mut self, task: TaskId, run: u32) -> bool {
        let is_latest = self.supervised.get(&task).is_none_or(|supervised| supervised.run == run);
        if is_latest {
            self.supervised.remove(&task);
        }
        is_latest
    }
}

/// Supervises one tree.
pub(super) struct Supervisor {
    pub(super) tree: Tree,
    /// The information needed to continue the tree, if it is paused.
    pub(super) paused: Option<Paused>,
    /// Whether the leader has ended. The rest of the tree is then no longer paused, because it could not be continued.
    pub(super) has_ended: bool,
    /// The job that the leader leads, if it leads a terminal.
    pub(super) job: Option<TerminalJob>,
    run: u32,
    pub(super) context: Context,
    pub(super) orders: mpsc::UnboundedReceiver<Control>,
    /// The signal to end that the tree was sent.
    pub(super) ending: Option<i32>,
    /// When to report, after SIGKILL, that the tree does not end.
    pub(super) give_up_at: Option<Instant>,
    /// Whether some process could not be reached by that signal, so that it is sent again.
    pub(super) missed: bool,
    /// The processes that were sent the signal.
    pub(super) asked: HashSet<i32>,
    /// Those of `asked` that may have swallowed the signal.
    pub(super) forked: ForkedCopies,
    /// The state of a process that was handed over.
    pub(super) handed: Option<Handed>,
    /// Has the check of whether the process is ready look once more, when the leader has ended.
    last_look: Option<LastLook>,
    /// The usage of the leader and of the children that it has waited for, once it has ended.
    pub(super) usage: Option<Usage>,
    pub(super) shown: Shown,
}

/// The initial state of a supervisor.
#[derive(Debug, Default)]
pub(in crate::exec) struct SupervisorStart {
    pub(in crate::exec) input: Option<InputPipe>,
    pub(in crate::exec) job: Option<TerminalJob>,
    pub(in crate::exec) handed: Option<Handed>,
    pub(in crate::exec) last_look: Option<LastLook>,
    /// The progress before an upgrade.
    pub(in crate::exec) progress: Progress,
}

impl Supervisor {
    /// Shows the owner what the supervisor waits for.
    fn waits(&self, stage: Stage) {
        // A signal that some processes may have missed is repeated within moments.
        let is_settled = !self.missed && self.forked.is_empty();
        self.shown.waits(Progress {
            stage: if is_settled { stage } else { Stage::AtWork },
            ending: self.ending,
            asked: self.asked.iter().copied().collect(),
            give_up_at: self.give_up_at.map(Stamp::of),
            paused: self.paused.clone(),
            usage: self.usage,
            reported: self.handed.as_ref().and_then(|handed| handed.reported.clone()),
            is_left: self.handed.as_ref().is_some_and(|handed| handed.is_left),
        });
    }

    async fn run(mut self, pidfd: io::Result<AsyncFd<PidFd>>) {
        let (exit, usage) = match pidfd {
            Ok(pidfd) => {
                self.until_ended(&pidfd).await;
                if self.handed.is_some() || self.tree.is_inherited {
                    let exit = self.exit_of_another(&pidfd).await;
                    self.context.adopted.remove(self.tree.leader);
                    (exit, None)
                } else {
                    self.reap(pidfd.get_ref()).await
                }
            }
            // Without a watch the end would go unnoticed, and nothing that the daemon started may run unsupervised.
            Err(error) => {
                let why = format!("the process could not be watched: {error}");
                self.end_all(SIGKILL).await;
                (Exit::Unknown(why.into()), None)
            }
        };
        self.tree.has_leader = false;
        self.has_ended = true;
        self.unpause().await;
        let members = self.survivors().await;
        let others = !members.is_empty();
        let drains = self.drains();
        drains.settle().await;
        let unknown = self.report_output(others || !drains.have_ended()).await;
        // A terminal's leader exits like its job, unless it could not determine the job's exit.
        let exit = unknown.map_or(exit, Exit::Unknown);
        self.usage = self.report_usage(usage).await;
        if let Some(last_look) = self.last_look.take() {
            last_look.take().await;
        }
        self.report(Fact::Exited { exit, others, at: None });
        if others {
            self.until_empty(members, &drains).await;
        }
        self.finish(&drains).await;
    }

    pub(super) fn report(&self, fact: Fact) {
        self.context.reports.send(Report::Fact { task: self.tree.task, run: self.run, fact });
    }

    /// Saves all output and reports its size. Returns the reason why the exit of a terminal's job is unknown, if its
    /// leader reported one.
    pub(super) async fn report_output(&self, lives_on: bool) -> Option<Box<str>> {
        let mut unknown = None;
        let handed = self.handed.as_ref().and_then(|handed| handed.terminal.as_ref());
        if let Some(terminal) = self.job.as_ref().map(|job| &job.terminal).or(handed) {
            unknown = terminal.drain().await;
        }
        if let Some(fact) = self.context.outputs.settle(self.tree.task, self.run, lives_on).await {
            self.report(fact);
        }
        unknown
    }

    /// Waits until the leader has ended, and handles commands meanwhile.
    async fn until_ended(&mut self, pidfd: &AsyncFd<PidFd>) {
        let handle = self.job.as_ref().and_then(|job| job.handle.as_fd().try_clone_to_owned().ok());
        let mut job = handle.and_then(|handle| watch::process(handle.into()).ok());
        loop {
            self.waits(Stage::Leader);
            tokio::select! {
                biased;
                _ = pidfd.readable() => return self.shown.works(),
                () = ended(job.as_ref()) => {
                    // The leader exits as the job did, but not while it is stopped, which the job may have caused.
                    job = None;
                    send(self.tree.leader, pidfd.get_ref(), SIGCONT);
                }
                Some(order) = self.orders.recv() => {
                    self.shown.works();
                    match order {
                        Control::Signal { signal, tree: false, done } => {
                            self.signal_leader(pidfd.get_ref(), signal);
                            let _ = done.send(());
                        }
                        order => self.handle_control(order).await,
                    }
                }
                () = sleep_until(self.give_up_at) => self.give_up().await,
                () = rest_if(self.missed) => {
                    self.shown.works();
                    // Some process could not be reached for lack of descriptors, but the leader's pidfd is open.
                    if let Some(signal) = self.ending {
                        self.send_to_leader(pidfd.get_ref(), signal);
                        self.end_all(signal).await;
                    }
                }
                () = rest_if(!self.forked.is_empty()) => self.signal_forked(),
            }
        }
    }

    /// Signals the leader, or the job that it leads.
    pub(super) fn send_to_leader(&self, leader: &PidFd, signal: i32) {
        let job = self.job.as_ref().map(|job| (job.pid, &*job.handle));
        let (pid, process) = job.unwrap_or((self.tree.leader, leader));
        send(pid, process, signal);
    }

    /// Reaps the ended leader. A debugger may hold it for a while, and no event reports its release.
    async fn reap(&mut self, pidfd: &PidFd) -> (Exit, Option<Usage>) {
        loop {
            if let Some((exit, usage)) = pidfd.reap() {
                self.context.adopted.remove(self.tree.leader);
                return (exit, Some(usage));
            }
            tokio::select! {
                biased;
                Some(order) = self.orders.recv() => self.handle_control(order).await,
                () = sleep_until(self.give_up_at) => self.give_up().await,
                () = tokio::time::sleep(REST) => {}
            }
        }
    }

    /// Waits until all of these have ended, and handles commands meanwhile.
    pub(super) async fn until_all_ended(&mut self, members: Vec<Member>) {
        let mut watched = Vec::new();
        for Member { pid, handle } in members {
            match watch::process(handle) {
                Ok(handle) => watched.push((pid, handle)),
                Err(error) => tracing::warn!(pid, %error, "cannot watch a process"),
            }
        }
        if watched.is_empty() {
            tokio::time::sleep(REST).await;
        }
        for (_, handle) in &watched {
            loop {
                self.waits(Stage::Rest);
                tokio::select! {
                    biased;
                    _ = handle.readable() => break,
                    Some(order) = self.orders.recv() => {
                        self.shown.works();
                        self.handle_control(order).await;
                        self.end_held(&watched);
                    }
                    () = sleep_until(self.give_up_at) => self.give_up().await,
                    () = rest_if(self.missed) => {
                        self.shown.works();
                        if let Some(signal) = self.ending {
                            self.end_all(signal).await;
                        }
                    }
                    () = rest_if(!self.forked.is_empty()) => self.signal_forked(),
                }
            }
        }
        self.shown.works();
    }

    pub(super) async fn handle_control(&mut self, order: Control) {
        match order {
            Control::Reported(exit) => self.update_handed(|handed| handed.reported = Some(exit)),
            Control::Left => self.update_handed(|handed| handed.is_left = true),
            Control::Signal { signal, done, .. } => {
                self.signal_as_ordered(signal).await;
                // The client may have disconnected.
                let _ = done.send(());
            }
            Control::SetPaused { paused, done } => {
                self.set_paused(paused).await;
                let _ = done.send(());
            }
            Control::ContinueStopped => self.continue_stopped().await,
            Control::ContinueHanded => self.reach_all(Tree::continue_with_leader).await,
            Control::Usage { done } => self.measure_live_usage(done),
            Control::End { signal } => self.end_as_ordered(signal).await,
        }
    }

    fn update_handed(&mut self, change: impl FnOnce(&mut Handed)) {
        if let Some(handed) = &mut self.handed {
            change(handed);
        }
    }
}

async fn ended(process: Option<&AsyncFd<PidFd>>) {
    match process {
        Some(process) => _ = process.readable().await,
        None => std::future::pending().await,
    }
}

/// Waits for [`REST`]; for ever, and without a timer, if nothing is due.
async fn rest_if(is_due: bool) {
    if is_due { tokio::time::sleep(REST).await } else { std::future::pending().await }
}
