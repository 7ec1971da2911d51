//! The executor of tasks elsewhere, for every kind of place: starts serving a place at the first order for it, and
//! passes orders on. It makes no decisions and depends on no kind; [`Kind`] abstracts the differences between machines
//! and clusters.

pub mod due;
pub mod places;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::text::Env;
use futures_util::future::LocalBoxFuture;
use tokio::sync::oneshot;

use self::places::{Elsewhere, Order, Places};
use super::carried::Carried;
use super::context::Context;
use super::executor::{Ask, Asked, Check, Close, DONE, Done, Executor, Start, done_within, unknown_signal};
use super::host::{Host, Purpose};
use super::left::SparedProcesses;
use super::silence;
use crate::agents::Agents;
use crate::carry::{CarriedFds, Obstacle};
use crate::client::Client;
use crate::core::{Begin, Control, Fact, KnownRun, Placement, RunPlace, Spec, UsagePending};
use crate::remotes::{Remote, Remotes};

/// How long a client waits until its order is carried out by a place that does not keep orders. Busy clusters take many
/// seconds for a command, and are given up after 30; an order may need two commands.
const ANSWERED_WITHIN: Duration = Duration::from_mins(1);

/// A kind of place, which makes its runs and serves its places.
pub trait Kind: Sized + 'static {
    /// The users' word for such a place.
    const NOUN: &'static str;

    type Run: 'static;
    type Settings: Clone + 'static;

    /// Creates the kind, for a daemon whose helpers `host` starts.
    fn new(elsewhere: &Elsewhere, host: &Host) -> Self;

    /// Returns the name and the settings of a configured place if it is of this kind.
    fn settings(remote: &Remote) -> Option<(&Arc<str>, &Self::Settings)>;

    /// Starts serving the places on which an earlier daemon may have left runs, to end those that are not adopted at
    /// once.
    fn sweep(&mut self, places: &mut Places<Self::Run, Self::Settings>, remotes: &Remotes);

    /// Starts serving a place.
    fn serve(
        &mut self,
        places: &mut Places<Self::Run, Self::Settings>,
        name: &Arc<str>,
        settings: &Self::Settings,
    );

    /// Returns a new run for a place; `settings` are `None` if it is still served but no longer configured.
    ///
    /// # Errors
    /// The place must be configured.
    fn run(&self, new: New<'_>, settings: Option<&Self::Settings>) -> Result<Self::Run, NotConfigured>;

    /// Returns a run that another daemon or program has left at a place.
    ///
    /// # Errors
    /// The place must be configured.
    fn run_again(
        &self,
        known: &KnownRun,
        on: &Placement,
        settings: Option<&Self::Settings>,
    ) -> Result<Self::Run, NotConfigured>;

    /// Returns the names of the settings of a place that take effect only after a restart of the daemon.
    fn needs_restart(&self, _name: &str, _settings: &Self::Settings) -> Vec<&'static str> {
        Vec::new()
    }

    /// Reports whether a run that may never have been submitted needs its submitter's environment for that.
    fn needs_env(on: &Placement) -> bool;

    /// Reports whether clients may write to the standard input of a run.
    fn accepts_input() -> bool {
        false
    }

    /// Reports whether an order whose answer does not come in time is certainly carried out later, or reported as refused
    /// by the place, so that its client may be told that it stands.
    fn keeps_orders() -> bool {
        false
    }

    /// Reports whether places of this kind still have the usage of runs that ended under an earlier daemon.
    fn keeps_usage() -> bool {
        false
    }
}

/// A place is not configured.
#[derive(Debug)]
pub struct NotConfigured;

/// A run to be started at a place.
#[derive(Debug)]
pub struct New<'a> {
    pub task: TaskId,
    pub number: u32,
    pub spec: &'a Arc<Spec>,
    pub on: &'a Placement,
    pub env: Arc<Env>,
    pub place: Box<RunPlace>,
}

/// The executor of tasks at places of one kind.
#[derive(Debug)]
pub struct PlaceExecutor<K: Kind> {
    kind: K,
    context: Context,
    host: Host,
    remotes: Arc<Remotes>,
    places: Places<K::Run, K::Settings>,
}

impl<K: Kind> PlaceExecutor<K> {
    /// Creates the executor. Ends the runs that an earlier daemon may have left, except those that are adopted at once.
    pub fn new(elsewhere: &Elsewhere) -> Self {
        let context = elsewhere.context.clone();
        let host = Host::new(context.reports.clone(), Purpose::Bridge);
        let mut kind = K::new(elsewhere, &host);
        let mut places = Places::default();
        let remotes = Arc::clone(&elsewhere.remotes);
        kind.sweep(&mut places, &remotes);
        Self { kind, context, host, remotes, places }
    }

    /// Starts serving a place at the first order for it. Returns its settings, or `None` if it is served but no longer
    /// configured.
    fn serve(&mut self, name: &str) -> Result<Option<K::Settings>, NotConfigured> {
        let configured = self.remotes.get(name).and_then(|remote| K::settings(remote));
        if !self.places.is_served(name) {
            let (name, settings) = configured.ok_or(NotConfigured)?;
            self.kind.serve(&mut self.places, name, settings);
        }
        Ok(configured.map(|(_, settings)| settings.clone()))
    }

    fn try_start(&mut self, start: Start) -> Result<(), String> {
        let (Some(on), Begin::Process { env, place }) = (&start.spec.on, start.begin) else {
            return Err(no_place::<K>());
        };
        let new = New { task: start.task, number: start.run, spec: &start.spec, on, env, place };
        let settings = self.serve(&on.name);
        let run = settings.and_then(|settings| self.kind.run(new, settings.as_ref()));
        self.places.start(&on.name, start.task, run.map_err(|NotConfigured| not_configured(on))?);
        Ok(())
    }

    fn try_adopt(&mut self, known: &KnownRun) -> Result<(), Fact> {
        let Some(on) = &known.spec.on else { return Err(places::lost(&no_place::<K>())) };
        // The run may never have been submitted, and would now be submitted with another environment.
        if known.env.is_none() && known.elsewhere.id.is_none() && K::needs_env(on) {
            return Err(places::no_environment());
        }
        let settings = self.serve(&on.name);
        let run = settings.and_then(|settings| self.kind.run_again(known, on, settings.as_ref()));
        let run = run.map_err(|NotConfigured| places::lost(&not_configured(on)))?;
        self.places.start(&on.name, known.task, run);
        Ok(())
    }
}

fn not_configured(on: &Placement) -> String {
    format!("the executor {} is no longer configured", on.name)
}

fn no_place<K: Kind>() -> String {
    format!("it has no {} to run on", K::NOUN)
}

impl<K: Kind> Executor for PlaceExecutor<K> {
    fn start(&mut self, start: Start) {
        let (task, run) = (start.task, start.run);
        if let Err(why) = self.try_start(start) {
            self.context.facts.send(task, run, Fact::StartFailed { failure: why.as_str().into() });
        }
    }

    fn control(&mut self, task: TaskId, _run: u32, control: Control) -> Option<Done> {
        let (done, is_done) = oneshot::channel();
        let (within, unknown) = if K::keeps_orders() {
            (DONE, unknown_signal(&control))
        } else {
            let what = format!("the order for task {task} is carried out");
            (ANSWERED_WITHIN, Some(silence::no_answer(&what)))
        };
        self.places.order(task, Order::Control { task, control, done });
        Some(done_within(within, is_done, unknown))
    }

    fn end(&mut self, task: TaskId, run: u32, signal: i32, grace: Duration) {
        self.places.order(task, Order::End { task, run, signal, grace });
    }

    fn forget(&mut self, task: TaskId) {
        self.places.forget(task);
    }

    fn ask(&mut self, asked: Asked) {
        let is_write = matches!(asked.what, Ask::Write { .. });
        if is_write && K::accepts_input() && asked.task.elsewhere.is_some() {
            self.places.order(asked.task.id, Order::Write { asked: Box::new(asked) });
        } else {
            asked.refuse();
        }
    }

    fn check(&mut self, check: Check) {
        let Check::Place { remote, done } = check else { return };
        // A place that is no longer configured is not served; the check's `done` is then dropped.
        let _ = self.serve(&remote.name);
        self.places.send(&remote.name, Order::Check { done });
    }

    fn adopt_elsewhere(&mut self, known: KnownRun) {
        if let Err(fact) = self.try_adopt(&known) {
            self.context.facts.send(known.task, known.run, fact);
        }
    }

    fn collect_usage(&mut self, ended: UsagePending) {
        let UsagePending { task, run, spec, id } = ended;
        let Some(on) = spec.on.as_ref().filter(|_| K::keeps_usage()) else { return };
        if self.serve(&on.name).is_ok() {
            self.places.send(&on.name, Order::Count { task, run, id });
        }
    }

    fn end_recorded(&mut self, task: TaskId, run: u32) {
        self.places.order(task, Order::EndRecorded { task, run });
    }

    fn report_recorded(&mut self, task: TaskId, run: u32) {
        self.places.order(task, Order::Written { task, run });
    }

    fn leave(&mut self, _left: &mut SparedProcesses) {
        self.places.send_all(|| Order::Leave);
    }

    fn hold_starts(&mut self, holds: bool) {
        self.places.send_all(|| Order::Hold { holds });
    }

    /// Carries nothing: the core knows the runs, connections are made again, and everything else is queried again.
    fn carry(&mut self, _named: &mut CarriedFds) -> Result<Carried, Obstacle> {
        Ok(Carried::Nothing)
    }

    fn activate(&mut self, _clients: &HashMap<u64, Arc<Client>>) {
        self.host.end_rest(&self.context);
    }

    fn configure(&mut self, _: &Arc<Agents>, remotes: &Arc<Remotes>) {
        self.remotes = Arc::clone(remotes);
        for (name, settings) in remotes.all().filter_map(|remote| K::settings(remote)) {
            self.places.send(name, Order::Configure(Box::new(settings.clone())));
        }
    }

    fn needs_restart(&self, remotes: &Remotes) -> Vec<String> {
        let places = remotes.all().filter_map(|remote| K::settings(remote));
        let keys = places.flat_map(|(name, settings)| {
            let keys = self.kind.needs_restart(name, settings).into_iter();
            keys.map(move |key| format!("executors.{name}.{key}"))
        });
        keys.collect()
    }

    fn attend(&mut self) -> LocalBoxFuture<'_, ()> {
        Box::pin(self.places.attend())
    }

    fn close(&mut self, close: Close) {
        self.places.close(close);
    }

    fn is_busy(&self) -> bool {
        self.places.is_busy()
    }
}
