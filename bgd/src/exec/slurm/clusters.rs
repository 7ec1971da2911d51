//! The parts shared by all clusters of a daemon, and the parts that each needs for its work. This module runs nothing.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use bgd_shared::mutex::Mutex;

use super::folder::WorkFolder;
use super::origin::Origin;
use super::program::Programs;
use super::tools::Tools;
use crate::exec::context::Context;
use crate::exec::elsewhere::places::Elsewhere;
use crate::exec::host::Host;
use crate::remotes::Slurm;

/// Clusters with Slurm.
#[derive(Clone, Debug)]
pub struct Clusters {
    pub(super) context: Context,
    pub(super) host: Host,
    pub(super) state: PathBuf,
    pub(super) instance: String,
    pub(super) is_durable: bool,
    /// The places of the clusters that must stay where they are until a restart.
    in_use: Arc<Mutex<HashMap<Arc<str>, Location>>>,
}

/// Where a cluster's jobs and their files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    host: Option<String>,
    work_folder: Option<PathBuf>,
}

impl Location {
    pub(super) fn of(slurm: &Slurm) -> Self {
        let host = slurm.shell.as_ref().map(|shell| shell.host.clone());
        Self { host, work_folder: slurm.work_folder.clone() }
    }
}

impl Clusters {
    pub(super) fn at(elsewhere: &Elsewhere, host: &Host) -> Self {
        let Elsewhere { context, state, instance, is_durable, .. } = elsewhere.clone();
        Self { context, host: host.clone(), state, instance, is_durable, in_use: Arc::default() }
    }

    /// Notes that jobs or files of a cluster may be where these settings say.
    pub(super) fn uses(&self, name: &Arc<str>, slurm: &Slurm) {
        let mut in_use = self.in_use.lock();
        in_use.entry(Arc::clone(name)).or_insert_with(|| Location::of(slurm));
    }

    /// Returns the names of the settings that don't take effect while jobs or files may be elsewhere.
    pub(super) fn waiting(&self, name: &str, slurm: &Slurm) -> Vec<&'static str> {
        let in_use = self.in_use.lock();
        let Some(used) = in_use.get(name) else { return Vec::new() };
        let place = Location::of(slurm);
        let host = (used.host != place.host).then_some("host");
        host.into_iter().chain((used.work_folder != place.work_folder).then_some("work_folder")).collect()
    }

    pub(super) fn origin(&self, name: &str, slurm: &Slurm) -> Origin {
        Origin::new(&self.state, &self.context.socket, &self.instance, name, slurm)
    }

    /// Returns the resources for a cluster's work.
    pub(super) fn tools(&self, name: &Arc<str>, slurm: &Slurm) -> Tools {
        let origin = self.origin(name, slurm);
        let folder = slurm.work_folder.as_ref().unwrap_or(&self.state).join(&origin.job_name);
        Tools {
            programs: Programs::new(self.host.clone(), slurm, &self.context.socket, name),
            name: Arc::clone(name),
            folder: Arc::new(WorkFolder::new(folder)),
            origin: Arc::new(origin),
            context: self.context.clone(),
            is_durable: self.is_durable,
        }
    }
}
