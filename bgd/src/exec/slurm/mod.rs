//! The executor of tasks that a Slurm cluster runs (R146), driven by Slurm's own commands on this machine or, by ssh,
//! on a login node. One async task serves each cluster. This module only passes on orders; it makes no decisions and
//! runs no commands itself.

mod actions;
mod batch;
mod check;
mod cluster;
mod clusters;
mod commands;
mod copy;
mod costs;
mod error;
mod folder;
mod folder_scan;
mod job;
mod login;
mod login_work;
mod origin;
mod pace;
mod parked;
mod parse;
mod part;
mod pipe;
mod program;
mod reach;
mod remote_files;
mod remote_scripts;
mod run;
mod script;
mod states;
mod tools;
mod turn;
mod work;

use std::sync::Arc;
use std::time::Instant;

use self::cluster::Cluster;
pub use self::clusters::Clusters;
use self::run::{Job, Run};
use super::elsewhere::places::{Elsewhere, Order, Places};
use super::elsewhere::{Kind, New, NotConfigured};
use super::host::Host;
use crate::core::{KnownRun, Placement};
use crate::remotes::{Remote, Remotes, Slurm};

impl Clusters {
    /// Serves a cluster; `sweeps` says whether to end the jobs that earlier daemons have left. If this very instance may
    /// have jobs in another work folder than the configured one, that is served first.
    fn serve_sweeping(&self, places: &mut Places<Run, Slurm>, name: &Arc<str>, slurm: &Slurm, sweeps: bool) {
        let left = self.origin(name, slurm).left_settings(slurm);
        let (kind, served) = (self.clone(), left.as_ref().unwrap_or(slurm).clone());
        let tools = self.tools(name, &served);
        places.serve(name, |orders| Cluster::new(served, kind, tools, orders).run(sweeps));
        if left.is_some() {
            let name = &**name;
            tracing::info!(
                name,
                "jobs may be in the previous `work_folder`, which is used until a restart without jobs"
            );
            places.send(name, Order::Configure(Box::new(slurm.clone())));
        }
    }
}

impl Kind for Clusters {
    const NOUN: &'static str = "cluster";

    type Run = Run;
    type Settings = Slurm;

    fn new(elsewhere: &Elsewhere, host: &Host) -> Self {
        Self::at(elsewhere, host)
    }

    fn settings(remote: &Remote) -> Option<(&Arc<str>, &Slurm)> {
        remote.slurm()
    }

    /// Also serves clusters that are no longer configured, if their settings are still known.
    fn sweep(&mut self, places: &mut Places<Run, Slurm>, remotes: &Remotes) {
        for (name, slurm) in remotes.all().filter_map(|remote| remote.slurm()) {
            let origin = self.origin(name, slurm);
            let has_earlier = !origin.earlier().is_empty();
            if has_earlier || origin.has_been_there() {
                self.serve_sweeping(places, name, slurm, has_earlier);
            }
        }
        let is_known = |name: &str| remotes.get(name).is_some_and(|remote| remote.slurm().is_some());
        for (name, slurm) in origin::unknown(&self.state, &self.context.socket, is_known) {
            if let Some(slurm) = slurm {
                tracing::info!(name, "ending jobs on a cluster that is no longer configured");
                self.serve_sweeping(places, &name.into(), &slurm, true);
            } else {
                tracing::warn!(
                    name,
                    "an earlier daemon may have left jobs on a cluster that is no longer configured: configure it \
                     again, or use scancel there"
                );
            }
        }
    }

    fn serve(&mut self, places: &mut Places<Run, Slurm>, name: &Arc<str>, slurm: &Slurm) {
        self.serve_sweeping(places, name, slurm, false);
    }

    fn run(&self, new: New<'_>, _: Option<&Slurm>) -> Result<Run, NotConfigured> {
        let New { number, spec, env, place, .. } = new;
        Ok(Run::new(number, Job::new(Arc::clone(spec), env, place)))
    }

    fn run_again(&self, known: &KnownRun, _: &Placement, _: Option<&Slurm>) -> Result<Run, NotConfigured> {
        let env = known.env.clone().unwrap_or_default();
        Ok(Run::restore(Instant::now(), known, env))
    }

    fn needs_restart(&self, name: &str, slurm: &Slurm) -> Vec<&'static str> {
        self.waiting(name, slurm)
    }

    fn needs_env(_: &Placement) -> bool {
        true
    }

    fn keeps_usage() -> bool {
        true
    }
}
