//! The executor of tasks that a Slurm cluster runs (R146), driven by Slurm's own commands on this machine or, by ssh,
//! on a login node. One async task serves each cluster. This module only passes on orders; it makes no decisions and
//! runs no commands itself.

mod acts;
mod batch;
mod check;
mod cluster;
mod commands;
mod copy;
mod costs;
mod far;
mod folder;
mod job;
mod login;
mod look;
mod origin;
mod over;
mod pace;
mod parse;
mod part;
mod pipe;
mod program;
mod reach;
mod run;
mod script;
mod states;
mod there;
mod tools;
mod trouble;
mod turn;
mod work;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bgd_shared::id::TaskId;
use futures_util::future::LocalBoxFuture;

use self::cluster::Cluster;
use self::folder::WorkFolder;
use self::origin::Origin;
use self::program::Programs;
use self::run::{Job, Run};
use self::tools::Tools;
use super::carried::Carried;
use super::context::Context;
use super::executor::{Check, Close, Done, Durable, Executor, Interactive, Lifecycle, Start, Upgradable};
use super::host::{Host, Purpose};
use super::left::Spared;
use super::places::{self, Elsewhere, Places};
use crate::agents::Agents;
use crate::carry::{Named, Obstacle};
use crate::client::Client;
use crate::core::{Begin, Control, Fact, KnownRun, Uncounted};
use crate::remotes::{Remotes, Slurm};

/// The executor of tasks on clusters.
#[derive(Debug)]
pub struct Clusters {
    context: Context,
    host: Host,
    state: PathBuf,
    instance: String,
    remotes: Arc<Remotes>,
    is_durable: bool,
    places: Places<Run, Slurm>,
}

impl Clusters {
    /// Creates the executor. Jobs that an earlier daemon may have left are cancelled, except those that are taken up
    /// immediately.
    pub fn new(elsewhere: Elsewhere) -> Self {
        let Elsewhere { context, state, instance, remotes, is_durable } = elsewhere;
        let host = Host::new(context.reports.clone(), Purpose::Bridge);
        let mut clusters =
            Self { context, host, state, instance, remotes, is_durable, places: Places::default() };
        let remotes = Arc::clone(&clusters.remotes);
        for (name, slurm) in remotes.all().filter_map(|remote| remote.slurm()) {
            let origin = clusters.origin(name, slurm);
            let has_earlier = !origin.earlier().is_empty();
            if has_earlier || origin.has_been_there() {
                clusters.serve(name, slurm, has_earlier);
            }
        }
        clusters.sweep_unknown();
        clusters
    }

    /// Ends remaining jobs on clusters that are no longer configured.
    fn sweep_unknown(&mut self) {
        let is_known = |name: &str| self.remotes.get(name).is_some_and(|remote| remote.slurm().is_some());
        for (name, slurm) in origin::unknown(&self.state, &self.context.socket, is_known) {
            if let Some(slurm) = slurm {
                tracing::info!(name, "ending jobs on a cluster that is no longer configured");
                self.serve(&name.into(), &slurm, true);
            } else {
                tracing::warn!(
                    name,
                    "an earlier daemon may have left jobs on a cluster that is no longer configured: configure it \
                     again, or use scancel there"
                );
            }
        }
    }

    fn origin(&self, name: &str, slurm: &Slurm) -> Origin {
        Origin::new(&self.state, &self.context.socket, &self.instance, name, slurm)
    }

    fn serve(&mut self, name: &Arc<str>, slurm: &Slurm, sweeps: bool) {
        let origin = self.origin(name, slurm);
        let folder = slurm.work_folder.as_ref().unwrap_or(&self.state).join(&origin.job_name);
        let tools = Tools {
            programs: Programs::new(self.host.clone(), slurm, &self.context.socket, name),
            name: Arc::clone(name),
            folder: Arc::new(WorkFolder::new(folder)),
            origin: Arc::new(origin),
            context: self.context.clone(),
            is_durable: self.is_durable,
        };
        let (slurm, host) = (slurm.clone(), self.host.clone());
        self.places.serve(name, |orders| Cluster::new(slurm, host, tools, orders).run(sweeps));
    }

    /// Starts serving a cluster at its first order. `None` if the cluster is not configured.
    fn serve_by_name(&mut self, name: &str) -> Option<()> {
        if !self.places.is_served(name) {
            let remotes = Arc::clone(&self.remotes);
            let (name, slurm) = remotes.get(name).and_then(|remote| remote.slurm())?;
            self.serve(name, slurm, false);
        }
        Some(())
    }
}

impl Clusters {
    fn try_take_up(&mut self, known: &KnownRun) -> Result<(), Fact> {
        let Some(on) = &known.spec.on else { return Err(places::lost("it has no cluster to run on")) };
        // The run may never have been submitted, and submitting it now would use another environment.
        if known.env.is_none() && known.elsewhere.id.is_none() {
            return Err(places::no_environment());
        }
        let gone = || places::lost(&format!("the executor {} is no longer configured", on.name));
        self.serve_by_name(&on.name).ok_or_else(gone)?;
        let env = known.env.clone().unwrap_or_default();
        self.places.start(&on.name, known.task, Run::again(Instant::now(), known, env));
        Ok(())
    }
}

impl Executor for Clusters {
    fn start(&mut self, start: Start) {
        let (task, number) = (start.task, start.run);
        let facts = self.context.facts.clone();
        let fail = |why: String| facts.send(task, number, Fact::StartFailed { failure: why.as_str().into() });
        let (Some(on), Begin::Process { env, place }) = (&start.spec.on, start.begin) else {
            return fail("it has no cluster to run on".to_owned());
        };
        if self.serve_by_name(&on.name).is_none() {
            return fail(format!("the executor {} is no longer configured", on.name));
        }
        let run = Run::new(number, Job::new(Arc::clone(&start.spec), env, place));
        self.places.start(&on.name, task, run);
    }

    fn control(&mut self, task: TaskId, _run: u32, control: Control) -> Option<Done> {
        Some(self.places.control(task, control))
    }

    fn end(&mut self, task: TaskId, run: u32, signal: i32) {
        self.places.end(task, run, signal);
    }

    fn forget(&mut self, task: TaskId) {
        self.places.forget(task);
    }
}

impl Interactive for Clusters {
    fn check(&mut self, check: Check) {
        let Check::Place { remote, tell } = check else { return };
        // A cluster that is no longer configured is not served, and so does not answer.
        let _ = self.serve_by_name(&remote.name);
        self.places.check(&remote.name, tell);
    }
}

impl Durable for Clusters {
    fn adopt_elsewhere(&mut self, known: KnownRun) {
        if let Err(fact) = self.try_take_up(&known) {
            self.context.facts.send(known.task, known.run, fact);
        }
    }

    fn collect_usage(&mut self, ended: Uncounted) {
        let Uncounted { task, run, spec, id } = ended;
        let Some(on) = &spec.on else { return };
        if self.serve_by_name(&on.name).is_some() {
            self.places.count(&on.name, task, run, id);
        }
    }

    fn end_recorded(&mut self, task: TaskId, run: u32) {
        self.places.over(task, run);
    }

    fn report_recorded(&mut self, task: TaskId, run: u32) {
        self.places.written(task, run);
    }

    fn leave(&mut self, _left: &mut Spared) {
        self.places.leave();
    }
}

impl Upgradable for Clusters {
    fn hold_starts(&mut self, holds: bool) {
        self.places.hold(holds);
    }

    /// Carries nothing: the core knows the runs, and everything else is queried again.
    fn carry(&mut self, _named: &mut Named) -> Result<Carried, Obstacle> {
        Ok(Carried::Nothing)
    }

    fn activate(&mut self, _clients: &HashMap<u64, Arc<Client>>) {
        self.host.end_rest(&self.context);
    }
}

impl Lifecycle for Clusters {
    fn configure(&mut self, _: &Arc<Agents>, remotes: &Arc<Remotes>) {
        self.remotes = Arc::clone(remotes);
        for (name, slurm) in remotes.all().filter_map(|remote| remote.slurm()) {
            self.places.configure(name, slurm.clone());
        }
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
