//! What work for a cluster needs, and what a job's file says. It does nothing by itself.

use std::path::Path;
use std::sync::Arc;

use super::folder::WorkFolder;
use super::origin::Origin;
use super::program::Programs;
use super::run::Job;
use super::script::{self, Command};
use super::trouble::Trouble;
use crate::core::Work;
use crate::exec::context::Context;
use crate::exec::members::{INSTANCE_MARK, TASK_MARK};
use crate::exec::place;

/// What all work needs.
#[derive(Clone, Debug)]
pub struct Tools {
    /// Runs commands.
    pub programs: Programs,
    /// The folder that is shared with the cluster.
    pub folder: Arc<WorkFolder>,
    /// The name of the executor.
    pub name: Arc<str>,
    /// How this daemon is known there.
    pub origin: Arc<Origin>,
    /// Workers and the output folder.
    pub context: Context,
    /// Whether the daemon is durable: it tells when what is reported is written down, and tasks and outputs stay after its end.
    pub is_durable: bool,
}

/// Why there is no job.
#[derive(Debug)]
pub enum NotSubmitted {
    /// The files could not be written.
    Unwritten(String),
    /// The cluster did not take it.
    Trouble(Trouble),
    /// The submission before it has to come again.
    NotYet,
}

/// Returns the text of a job's file. On another machine, a job gets nothing of the submitter's surroundings but what was
/// chosen for it.
pub fn file_of(job: &Job, context: &Context, output: &Path, errors: Option<&Path>, is_far: bool) -> Vec<u8> {
    let argv: Vec<&[u8]> = match &job.spec.work {
        Work::Argv(argv) => argv.iter().map(bgd_shared::text::OsText::as_bytes).collect(),
        Work::Shell(line) => vec![b"/bin/sh", b"-c", b"--", line.as_bytes()],
        Work::Agent(_) => Vec::new(),
    };
    let own = place::variables(&job.place, &context.folder);
    let own = own.iter().filter_map(|variable| {
        let (name, value) = variable.to_str().ok()?.split_once('=')?;
        Some((name, value.as_bytes()))
    });
    let own = own.filter(|(name, _)| !is_far || !place::is_path(name));
    let chosen = job.spec.on.as_ref().map(|on| &on.chosen).filter(|_| is_far);
    let is_chosen = |name: &str| chosen.is_none_or(|chosen| chosen.env.iter().any(|one| one == name));
    let is_ours = |name: &str| [TASK_MARK, INSTANCE_MARK].contains(&name) || place::is_variable(name);
    let given = job.env.0.iter().filter(|(name, _)| !is_ours(name) && is_chosen(name));
    let env = given.map(|(name, value)| (&**name, value.as_bytes())).chain(own).collect();
    let folder = chosen.is_none_or(|chosen| chosen.cwd).then(|| job.spec.cwd.as_bytes());
    let umask = (!is_far).then_some(job.spec.umask);
    let output = output.as_os_str().as_encoded_bytes();
    let errors = errors.map(|path| path.as_os_str().as_encoded_bytes());
    script::file(&Command { argv, env, folder, output, errors, umask })
}
