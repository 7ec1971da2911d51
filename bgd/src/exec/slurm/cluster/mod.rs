//! One cluster that runs tasks of this daemon: submits their jobs, and combines the cluster's reports with the notes of
//! the jobs. Nothing is lost while a cluster can't be asked: submissions have keys, jobs have the name of this daemon's
//! instance, and everything is queried again. Makes no decisions about tasks.

mod actions;
mod after;
mod aside;
mod costs;
mod login_node;
mod looks;
mod news;
mod recovery;
mod settings;
mod submit;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use bgd_shared::request::ExecutorCheck;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use crate::core::Fact;
use crate::exec::elsewhere::due::Due;
use crate::exec::elsewhere::places;
use crate::exec::host::SIGKILL;
use crate::exec::ready::LineWatch;
use crate::exec::slurm::actions::JobActions;
use crate::exec::slurm::batch::{Gathering, PendingSubmission, UnconfirmedSubmission};
use crate::exec::slurm::check;
use crate::exec::slurm::clusters::Clusters;
use crate::exec::slurm::commands;
use crate::exec::slurm::costs::Costs;
use crate::exec::slurm::error::CommandError;
use crate::exec::slurm::job::JobId;
use crate::exec::slurm::login_work::LoginWork;
use crate::exec::slurm::pace::PollSchedule;
use crate::exec::slurm::parked::Parked;
use crate::exec::slurm::parse::Settings;
use crate::exec::slurm::reach::{Availability, Room};
use crate::exec::slurm::remote_files;
use crate::exec::slurm::run::Run;
use crate::exec::slurm::tools::Tools;
use crate::exec::slurm::turn::Before;
use crate::exec::slurm::work::{self, Done, Files};
use crate::os::clock::sleep_until;
use crate::os::watch::Changes;
use crate::remotes::Slurm;

/// How often outputs and notes that grow on other machines are looked at.
const TICK: Duration = Duration::from_secs(1);

/// The maximum number of submissions in progress, and of commands that carry out orders. Of two submissions, one is
/// sent to the cluster while the files of the next are written.
const AT_ONCE: usize = 2;

/// How long the end of a run may take to be confirmed once nothing stronger can be done.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

/// How long the connection to a login node stays open without jobs.
const IDLE: Duration = Duration::from_mins(1);

/// How long the last command at the daemon's end may take.
const LAST_WITHIN: Duration = Duration::from_secs(5);

type Order = places::Order<Run, Slurm>;

/// A cluster, and its runs.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Cluster {
    settings: Box<Slurm>,
    /// The configured settings, if they name another host or folder.
    next: Option<Box<Slurm>>,
    kind: Clusters,
    tools: Tools,
    orders: mpsc::UnboundedReceiver<Order>,
    runs: HashMap<TaskId, Run>,
    /// The names in `runs` of earlier runs whose jobs are yet to end.
    aside: HashMap<(TaskId, u32), TaskId>,
    by_id: HashMap<JobId, TaskId>,
    by_place: HashMap<(Arc<str>, u32), TaskId>,
    /// The watches for the readiness of running runs.
    readiness: HashMap<TaskId, LineWatch>,
    /// Runs whose output is tracked.
    tracked: HashSet<TaskId>,
    gathering: Gathering,
    /// The last turn assigned to a run.
    last_turn: u64,
    /// The outcome that the next submission waits for, if there was an earlier one.
    before: Option<Before>,
    /// Runs that wait for the ids of the runs that they follow.
    parked: Parked,
    unsure: HashMap<Arc<str>, UnconfirmedSubmission>,
    actions: JobActions,
    works: FuturesUnordered<BoxFuture<'static, Done>>,
    /// How many submissions and how many commands for orders are in progress.
    under_way: [usize; 2],
    /// How many searches for submissions are in progress.
    searches: usize,
    is_asking: bool,
    /// Whether a query to the accounting is in progress.
    is_recording: bool,
    costs: Costs,
    /// Whether a query for the exits of scripts is in progress.
    is_asking_exits: bool,
    /// An answer that waits for a look at the notes, with the start of its query.
    answer: Option<(Instant, String)>,
    /// The names of the notes that were seen; `None` during a look.
    seen: Option<HashSet<String>>,
    /// Whether the look at the notes began after the answer came.
    scan_is_after_answer: bool,
    /// When the notes are looked at next.
    scan_at: Option<Instant>,
    last_scan: Option<Instant>,
    /// Whether the last look found notes of runs that can't be read.
    has_unread_notes: bool,
    /// The start of the last look that has found all notes.
    looked: Option<Instant>,
    /// Whether the notes can be read.
    reading: Availability,
    tick_at: Option<Instant>,
    watch: Option<AsyncFd<Changes>>,
    pace: PollSchedule,
    reach: Availability,
    /// Whether the cluster accepts more jobs.
    room: Room,
    known: Option<Settings>,
    /// Whether a query for the cluster's settings is in progress.
    is_learning: bool,
    sweep_at: Option<Instant>,
    /// When the ends of these runs are no longer waited for, and whether they were to be killed: of several orders of
    /// one kind, the first counts.
    give_up: Due<(TaskId, u32, bool)>,
    /// When these runs are ordered to end again, as the cluster has refused an order to end them.
    end_again: Due<TaskId>,
    login_work: LoginWork,
    /// Submissions that wait until the core has recorded that they may exist.
    pending: Vec<PendingSubmission>,
    /// The files of ended runs, until the ends are recorded.
    ended: BTreeMap<(TaskId, u32), Files>,
    /// Whether the runs are left to the next daemon.
    leaves: bool,
    /// Whether no new work is started, as an upgrade waits for a moment without work.
    is_held: bool,
    /// Whether all notes that existed at the start were read.
    has_scanned: bool,
    /// Whether there may be jobs with this daemon's name that belong to no known run.
    may_have_left: bool,
    /// Whether such jobs are being ended.
    is_ending_unknown: bool,
    /// Whether a submission has, or may have, reached the cluster.
    has_submitted: bool,
}

impl Cluster {
    /// Creates a cluster without runs.
    pub fn new(
        settings: Slurm,
        kind: Clusters,
        tools: Tools,
        orders: mpsc::UnboundedReceiver<Order>,
    ) -> Self {
        let may_have_left = tools.origin.has_been_there();
        Self {
            settings: Box::new(settings),
            next: None,
            kind,
            tools,
            orders,
            runs: HashMap::new(),
            aside: HashMap::new(),
            by_id: HashMap::new(),
            by_place: HashMap::new(),
            readiness: HashMap::new(),
            tracked: HashSet::new(),
            gathering: Gathering::default(),
            last_turn: 0,
            before: None,
            parked: Parked::default(),
            unsure: HashMap::new(),
            actions: JobActions::default(),
            works: FuturesUnordered::new(),
            under_way: [0; 2],
            searches: 0,
            is_asking: false,
            is_recording: false,
            costs: Costs::default(),
            is_asking_exits: false,
            answer: None,
            seen: Some(HashSet::new()),
            scan_is_after_answer: false,
            scan_at: None,
            last_scan: None,
            has_unread_notes: false,
            looked: None,
            reading: Availability::default(),
            tick_at: None,
            watch: None,
            pace: PollSchedule::default(),
            reach: Availability::default(),
            room: Room::default(),
            known: None,
            is_learning: false,
            sweep_at: None,
            give_up: Due::default(),
            end_again: Due::default(),
            login_work: LoginWork::default(),
            pending: Vec::new(),
            ended: BTreeMap::new(),
            leaves: false,
            is_held: false,
            has_scanned: false,
            may_have_left,
            is_ending_unknown: false,
            has_submitted: false,
        }
    }

    /// Serves the cluster until the daemon ends. With `sweeps`, also ends the jobs that earlier daemons have left
    /// there.
    pub async fn run(mut self, sweeps: bool) {
        self.sweep_at = sweeps.then(Instant::now);
        // Resumed runs must be known before anything is ended.
        while let Ok(order) = self.orders.try_recv() {
            self.order(order);
        }
        if self.may_have_left {
            self.pace.note_activity(Instant::now());
            self.scan_by(Instant::now());
        }
        loop {
            if !self.is_held {
                self.advance(Instant::now());
            }
            let due = self.due().filter(|_| !self.is_held);
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(Order::Close) | None => break,
                    Some(order) => self.order(order),
                },
                Some(done) = self.works.next(), if !self.works.is_empty() => {
                    self.done(Instant::now(), done);
                    self.unpark(Instant::now());
                }
                () = changed(self.watch.as_ref()) => self.scan_by(Instant::now()),
                () = sleep_until(due) => {}
            }
        }
        self.close().await;
    }

    /// Cancels this daemon's remaining jobs, and removes its files, unless they are left to the next daemon.
    async fn close(mut self) {
        // Nothing continues this work, which would keep sessions on the login node occupied.
        self.works.clear();
        let has_jobs = !self.runs.is_empty() || !self.unsure.is_empty() || self.may_have_left;
        if self.leaves && (has_jobs || !self.ended.is_empty()) {
            return;
        }
        if self.known.is_none() && !self.has_submitted && !has_jobs {
            return;
        }
        let Tools { programs, origin, is_durable, .. } = &self.tools;
        if has_jobs {
            let cancelled = programs.run(commands::cancel_all(&origin.job_name));
            match tokio::time::timeout(LAST_WITHIN, cancelled).await {
                Ok(Ok(_) | Err(CommandError::Gone)) => {}
                // The next daemon cancels the jobs.
                Ok(Err(_)) | Err(_) => return,
            }
        }
        let removed = remote_files::remove_all(&self.tools, *is_durable);
        match tokio::time::timeout(LAST_WITHIN, removed).await {
            Ok(Ok(())) => origin.forget(),
            Ok(Err(error)) => tracing::warn!(error, "files for a cluster not removed"),
            Err(_) => tracing::warn!("files for a cluster not removed in time"),
        }
    }

    fn order(&mut self, order: Order) {
        let now = Instant::now();
        match order {
            Order::Start { task, mut run } => {
                run.turn = self.next_turn();
                if run.is_to_compare {
                    return self.take_up(now, task, *run);
                }
                // The files of an earlier run have no other name than that of its job.
                self.set_aside(task);
                self.remove(task);
                self.runs.insert(task, *run);
                self.gather(now, task);
            }
            // A cluster has its own grace.
            Order::End { task, run, signal, grace: _ } => self.end(now, task, run, signal),
            Order::Control { task, control, done } => self.control(task, &control, done),
            Order::Write { asked } => asked.refuse(),
            Order::Forget { task } => {
                if self.runs.get(&task).is_some_and(|run| !run.is_given_up) {
                    self.remove(task);
                }
                self.remove_concluded(task, 0..=u32::MAX);
                self.written_down(now, task);
                if !self.is_far() {
                    let folder = Arc::clone(&self.tools.folder);
                    self.tools.context.workers.later(move || folder.remove_output(task));
                }
            }
            Order::Count { task, run, id } => self.count(now, task, run, &id),
            Order::EndRecorded { task, run } => self.remove_concluded(task, run..=run),
            Order::Written { task, run } => self.written(now, task, run),
            Order::Hold { holds } => self.is_held = holds,
            Order::Leave => self.leaves = true,
            Order::Check { done } => self.check(done),
            Order::Configure(settings) => {
                self.configure(settings);
            }
            Order::Close => {}
        }
    }

    /// Checks whether the cluster works, with the configured host and folder, even if jobs still have the previous ones.
    fn check(&self, mut done: oneshot::Sender<ExecutorCheck>) {
        let (tools, settings) = match &self.next {
            Some(next) => (self.tools_of_next(next), next.clone()),
            None => (self.tools.clone(), self.settings.clone()),
        };
        // As work, so that the connection to the login node stays open meanwhile, and is closed some time afterwards.
        self.works.push(Box::pin(async move {
            tokio::select! {
                check = check::check(tools, &settings) => drop(done.send(check)),
                // The result is no longer awaited: leave the session on the login node to the tasks.
                () = done.closed() => {}
            }
            Done::Abandoned
        }));
    }

    fn send(&self, task: TaskId, run: u32, fact: Fact) {
        self.tools.context.facts.send(task, run, fact);
    }

    fn end(&mut self, now: Instant, task: TaskId, number: u32, signal: i32) {
        let Some(run) = self.runs.get_mut(&task).filter(|run| run.number == number) else { return };
        run.is_to_end(signal);
        let turn = run.turn;
        let is_kill = signal == SIGKILL;
        let is_last = is_kill || run.is_waiting();
        self.parked.changed(task);
        if self.gathering.withdraw(turn) || self.parked.remove(task) {
            let failure = "it was cancelled before it was submitted".into();
            self.send(task, number, Fact::StartFailed { failure });
            return self.remove(task);
        }
        if is_last {
            self.give_up.add(now + CONFIRMED_WITHIN, (task, number, is_kill));
        }
        self.order_end(task);
    }

    fn remove(&mut self, task: TaskId) {
        let Some(run) = self.runs.remove(&task) else { return };
        self.parked.changed(task);
        if run.is_aside {
            self.aside.retain(|_, name| *name != task);
        }
        if run.place.is_none() {
            self.gathering.withdraw(run.turn);
            self.parked.remove(task);
        }
        if let Some(id) = run.id {
            self.by_id.remove(&id);
            self.room.may_have_more(Instant::now());
        }
        let restarts = run.restarts();
        if let Some(place) = run.place {
            self.by_place.remove(&place);
            // Without a copy, the files were removed before, or there never were any.
            if self.login_work.copies.remove(&task).is_some() {
                self.leave(&place, run.job.spec.split, restarts);
            }
        }
        self.readiness.remove(&task);
        self.tracked.remove(&task);
    }

    /// Returns when work is due that no event triggers.
    fn due(&self) -> Option<Instant> {
        let after_pause = |at: Instant| self.reach.until().map_or(at, |until| at.max(until));
        let scan = self.next_scan().map(|at| if self.is_far() { after_pause(at) } else { at });
        let gathered = self.gathering.due().filter(|_| self.may_submit() && !self.is_learning);
        let room = self.room.availability().until();
        let gathered = gathered.map(|at| room.map_or(at, |until| at.max(until)));
        let query = self.pace.due().filter(|_| self.may_ask() && !self.is_learning);
        let search = self.unsure.values().map(|unsure| unsure.at).min().filter(|_| self.searches == 0);
        let actions = (self.actions.is_due() && self.under_way[1] < AT_ONCE).then(Instant::now);
        let asking = [gathered, query, search, actions, self.sweep_at, self.costs_due()]
            .into_iter()
            .flatten()
            .map(after_pause);
        [self.give_up.next_at(), self.end_again.next_at(), scan, self.tick_at, self.login_work.idle_at]
            .into_iter()
            .flatten()
            .chain(asking)
            .min()
    }

    /// Begins the work that is due.
    fn advance(&mut self, now: Instant) {
        while let Some((task, number, _)) = self.give_up.take_due(now) {
            self.report_unconfirmed_end(task, number);
        }
        while let Some(task) = self.end_again.take_due(now) {
            self.order_end(task);
        }
        self.move_on();
        self.tick(now);
        self.scan(now);
        self.be_idle(now);
        if self.reach.is_open(now) {
            self.ask(now);
        }
    }

    /// Closes the connection to a login node after some time without jobs.
    fn be_idle(&mut self, now: Instant) {
        if !self.is_far() || !self.runs.is_empty() || !self.works.is_empty() {
            self.login_work.idle_at = self.is_far().then(|| now + IDLE).filter(|_| self.runs.is_empty());
        } else if self.login_work.idle_at.take_if(|at| *at <= now).is_some()
            && let Some(login) = self.tools.programs.login().cloned()
        {
            tokio::spawn(async move { login.disconnect().await });
        }
    }

    /// Returns whether the cluster may be queried for all jobs. While an answer waits for the notes, it is only queried
    /// for orders.
    fn may_ask(&self) -> bool {
        !self.is_asking && (self.answer.is_none() || self.actions.has_doubts())
    }

    /// Returns whether a further submission may be in progress: only one while the cluster accepts no more jobs.
    fn may_submit(&self) -> bool {
        let is_full = self.room.availability().why().is_some();
        self.under_way[0] < if is_full { 1 } else { AT_ONCE }
    }

    /// Begins the commands that are due.
    fn ask(&mut self, now: Instant) {
        if self.sweep_at.take_if(|at| *at <= now).is_some() {
            self.works.push(Box::pin(work::sweep(self.tools.clone())));
        }
        while self.under_way[1] < AT_ONCE && self.actions.is_due() {
            self.under_way[1] += 1;
            let together = self.actions.take();
            self.works.push(Box::pin(work::act(self.tools.clone(), together)));
        }
        let has_room = self.room.availability().is_open(now);
        while has_room && self.gathering.due().is_some_and(|at| at <= now) && self.may_submit() {
            if let Some(most) = self.known.as_ref().map(Settings::max_elements) {
                self.submit(self.room.limited(most));
            } else {
                self.learn();
                break;
            }
        }
        if self.by_id.is_empty() && !self.actions.has_doubts() && !self.may_have_left {
            self.pace.rests();
        }
        let asks = self.pace.due().is_some_and(|at| at <= now) && self.may_ask();
        if asks && self.known.is_none() {
            // Only the cluster's settings show whether an answer without a job is significant.
            self.learn();
        } else if asks {
            self.is_asking = true;
            self.pace.asks(now);
            self.works.push(Box::pin(work::ask(self.tools.clone())));
        }
        self.ask_costs(now);
        let lost = self.unsure.values().find(|unsure| unsure.at <= now && self.searches == 0);
        if let Some(key) = lost.map(|unsure| Arc::clone(&unsure.batch.key)) {
            self.searches += 1;
            self.works.push(Box::pin(work::find(self.tools.clone(), key)));
        }
    }

    fn done(&mut self, now: Instant, done: Done) {
        match done {
            Done::Known(result) => {
                self.is_learning = false;
                self.learned(now, result);
            }
            Done::Submitted(batch, result) => {
                self.under_way[0] -= 1;
                self.submitted(now, batch, result);
            }
            Done::Found(key, result) => {
                self.searches -= 1;
                self.found(now, &key, result);
            }
            Done::Asked(asked, result) => {
                self.is_asking = false;
                match result {
                    Ok(text) => {
                        self.reached();
                        self.answer_acts(now, asked, &text);
                        // The notes that existed when the query ended take precedence over the answer. An answer that
                        // is already waiting is kept: it lists jobs that the cluster may have forgotten since.
                        self.answer.get_or_insert((asked, text));
                        self.scan_by(now);
                    }
                    Err(trouble) => {
                        self.pace.answered(now, true, true);
                        self.failed(now, &trouble);
                    }
                }
            }
            Done::Exits(result) => self.exits(now, &result),
            Done::Recorded(answered, trouble) => {
                self.is_recording = false;
                self.recorded(now, &answered, trouble);
            }
            Done::Scanned(seen, result) => self.scanned(now, seen, result),
            Done::Looked(began, look, result) => self.looked(now, began, look, result),
            Done::Copied(pieces, result) => self.copied(now, pieces, result),
            Done::Acted(actions, result) => self.acted(now, actions, &result),
            Done::Settled(task, run, facts, files) => {
                for fact in facts {
                    self.send(task, run, fact);
                }
                self.has_ended(task, run, files);
                if self.runs.get(&task).is_some_and(|known| known.number == run) {
                    self.want_costs(now, task);
                    self.remove(task);
                }
            }
            Done::Based(task, run) => self.based(task, run),
            Done::EndedUnknown(are_all_ended) => self.ended_unknown(now, are_all_ended),
            Done::Swept(true) | Done::Abandoned => {}
            Done::Swept(false) => self.sweep_at = Some(now + CONFIRMED_WITHIN),
        }
    }

    /// Notes that the cluster has answered.
    fn reached(&mut self) {
        self.reach.answered();
        self.are_known();
    }

    /// Notes that the cluster can't be queried. This decides nothing.
    fn failed(&mut self, now: Instant, trouble: &CommandError) {
        let why = trouble.to_string();
        if self.reach.failed(now, &why) {
            tracing::warn!(why, "a cluster can't be asked");
        }
        self.are_unknown(&why);
        self.refuse_acts(now, &why);
    }
}

/// Waits for a change in a watched folder; never resolves if no folder is watched. Cancel-safe.
async fn changed(watch: Option<&AsyncFd<Changes>>) {
    let Some(watch) = watch else { return std::future::pending().await };
    let Ok(mut ready) = watch.readable().await else { return std::future::pending().await };
    while watch.get_ref().0.read_events().is_ok() {}
    ready.clear_ready();
}
