//! The parts shared by all clusters of a daemon, and the parts that each needs for its work. This module runs nothing.

use std::path::PathBuf;
use std::sync::Arc;

use super::folder::WorkFolder;
use super::origin::Origin;
use super::program::Programs;
use super::tools::Tools;
use crate::exec::context::Context;
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
}

impl Clusters {
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
