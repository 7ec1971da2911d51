//! The resources of all work for a cluster, and the content of a job's file. Performs no I/O itself.

use std::path::Path;
use std::sync::Arc;

use super::error::CommandError;
use super::folder::WorkFolder;
use super::origin::Origin;
use super::program::Programs;
use super::run::Job;
use super::script::{self, Command};
use crate::exec::context::Context;
use crate::exec::processes::members::{INSTANCE_MARK, TASK_MARK};
use crate::exec::task_variables;

/// The resources of all work for a cluster.
#[derive(Clone, Debug)]
pub struct Tools {
    pub programs: Programs,
    /// The folder that is shared with the cluster.
    pub folder: Arc<WorkFolder>,
    /// The name of the executor.
    pub name: Arc<str>,
    /// The names of this daemon's jobs on the cluster.
    pub origin: Arc<Origin>,
    /// Workers and the output folder.
    pub context: Context,
    /// Whether the daemon is durable: it reports when facts are recorded, and tasks and outputs remain after its end.
    pub is_durable: bool,
}

/// Why a submission failed.
#[derive(Debug)]
pub enum NotSubmitted {
    /// The files could not be written.
    Unwritten(String),
    /// The cluster did not accept it.
    CommandError(CommandError),
    /// The previous submission has to be repeated first.
    NotYet,
}

/// Returns the text of a job's file. On another machine, a job gets only the chosen parts of the submitter's
/// environment.
pub fn file_of(job: &Job, context: &Context, output: &Path, errors: Option<&Path>, is_far: bool) -> Vec<u8> {
    let own = task_variables::variables(&job.place, &context.folder);
    let own = own.iter().filter_map(|variable| {
        let (name, value) = variable.to_str().ok()?.split_once('=')?;
        Some((name, value.as_bytes()))
    });
    let own = own.filter(|(name, _)| !is_far || !task_variables::is_path(name));
    let chosen = job.spec.on.as_ref().map(|on| &on.chosen).filter(|_| is_far);
    let is_chosen = |name: &str| chosen.is_none_or(|chosen| chosen.env.iter().any(|one| one == name));
    let is_ours =
        |name: &str| [TASK_MARK, INSTANCE_MARK].contains(&name) || task_variables::is_variable(name);
    let given = job.env.0.iter().filter(|(name, _)| !is_ours(name) && is_chosen(name));
    let env = given.map(|(name, value)| (&**name, value.as_bytes())).chain(own).collect();
    let folder = chosen.is_none_or(|chosen| chosen.cwd).then(|| job.spec.cwd.as_bytes());
    let umask = (!is_far).then_some(job.spec.umask);
    let output = output.as_os_str().as_encoded_bytes();
    let errors = errors.map(|path| path.as_os_str().as_encoded_bytes());
    script::file(&Command { argv: job.spec.work.argv(), env, folder, output, errors, umask })
}
