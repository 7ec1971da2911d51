//! File operations for jobs, through a login node: for many jobs at once, in few sessions. Touches no state.

use std::sync::Arc;
use std::time::Instant;

use bgd_shared::id::TaskId;
use bgd_shared::request::Stream;

use super::error::{self, CommandError};
use super::folder_scan::{self, FolderScan, Looked};
use super::login::Login;
use super::part::{self, Part, Wanted};
use super::remote_scripts::{self, GONE, JobFile, PRINTED_BYTES, Script};
use super::run::Job;
use super::tools::{self, NotSubmitted, Tools};
use crate::core::Fact;
use crate::exec::context::Context;

/// A part of a run's output to be copied.
#[derive(Debug)]
pub struct Piece {
    pub task: TaskId,
    pub run: u32,
    pub stream: Stream,
    /// The part of the remote file.
    pub wanted: Wanted,
    /// The offset in the local file, in bytes.
    pub here: u64,
}

/// The result of copying a piece.
#[derive(Debug)]
pub enum Copied {
    /// This many bytes were read and copied; `lost` reports those that could not be written here.
    Here { count: u64, lost: Option<Fact> },
    /// The file does not exist.
    Gone,
    /// The file could not be read.
    Unread,
}

/// Runs a script that prints little.
async fn run(login: &Login, script: &Script) -> Result<(), CommandError> {
    let ran = login.run(script, PRINTED_BYTES).await?;
    if ran.code == 0 { Ok(()) } else { Err(CommandError::Refused(error::message(&ran.errors))) }
}

/// Writes the files of a submission's jobs.
///
/// # Errors
/// The files can't be written there, or the local preparations failed.
pub async fn write(
    tools: &Tools,
    login: &Login,
    key: &Arc<str>,
    jobs: Vec<(TaskId, Arc<Job>)>,
) -> Result<(), NotSubmitted> {
    let (owned, batch) = (tools.clone(), Arc::clone(key));
    let prepared = tools.context.workers.run(move || prepare(&owned, &batch, &jobs));
    let files = match prepared.await {
        Some(Ok(files)) => files,
        Some(Err(error)) => return Err(NotSubmitted::Unwritten(format!("cannot write its files: {error}"))),
        None => return Err(NotSubmitted::Unwritten("the daemon is ending".to_owned())),
    };
    for script in remote_scripts::write(&tools.folder, key, &files) {
        run(login, &script).await.map_err(|trouble| match trouble {
            CommandError::Refused(why) => NotSubmitted::Unwritten(format!(
                "cannot write its files to {} on {}: {why}",
                tools.folder.path().display(),
                login.host()
            )),
            // The files can be written again: no job needs them yet.
            CommandError::Unanswered(why) => NotSubmitted::CommandError(CommandError::Unreachable(why)),
            other @ (CommandError::Unreachable(_)
            | CommandError::NoAccess(_)
            | CommandError::Full(_)
            | CommandError::Gone) => NotSubmitted::CommandError(other),
        })?;
    }
    Ok(())
}

/// Records that there will be jobs, creates the local output files, and composes the remote files.
fn prepare(tools: &Tools, key: &str, jobs: &[(TaskId, Arc<Job>)]) -> std::io::Result<Vec<JobFile>> {
    let Tools { folder, origin, context, .. } = tools;
    origin.remember(folder.path())?;
    (0..)
        .zip(jobs)
        .map(|(index, (task, job))| {
            let split = job.spec.split;
            for stream in Stream::of(split) {
                context.folder.append(*task, stream)?;
            }
            job.set_base(context.folder.sizes(*task, split));
            let path = |stream| folder.path().join("output").join(remote_scripts::output(key, index, stream));
            let errors = split.then(|| path(Stream::Stderr));
            let text = tools::file_of(job, context, &path(Stream::Stdout), errors.as_deref(), true);
            Ok(JobFile { index, text, split })
        })
        .collect()
}

/// Returns why a script that reads files has failed.
fn failed(login: &Login, errors: &str) -> CommandError {
    let why = error::message(errors);
    let why = if why.is_empty() { "without a word" } else { &*why };
    CommandError::Refused(format!("{} can't read the files of its jobs: {why}", login.host()))
}

/// Looks for notes and for the sizes of outputs, after removing files that are no longer needed.
///
/// # Errors
/// The login node can't be reached, or ([`CommandError::Refused`]) it can't read the files.
pub async fn look(
    tools: &Tools,
    login: &Login,
    look: &FolderScan,
) -> (Instant, Result<Looked, CommandError>) {
    let began = Instant::now();
    let looked = match login.run(&folder_scan::look(&tools.folder, look), PRINTED_BYTES).await {
        Ok(ran) if ran.code == 0 => folder_scan::looked(&ran.output, &look.outputs).ok_or_else(|| {
            CommandError::Unreachable(format!("the answer from {} is incomplete", login.host()))
        }),
        Ok(ran) if ran.code == GONE => Ok(Looked::nothing(look)),
        Ok(ran) => Err(failed(login, &ran.errors)),
        Err(trouble) => Err(trouble),
    };
    (began, looked)
}

/// Copies parts of outputs.
///
/// # Errors
/// The login node can't be reached, or ([`CommandError::Refused`]) it can't read the files.
pub async fn copy(tools: &Tools, login: &Login, pieces: &[Piece]) -> Result<Vec<Copied>, CommandError> {
    let wanted: Vec<Wanted> = pieces.iter().map(|piece| piece.wanted.clone()).collect();
    let ran = login.run(&part::read(&tools.folder, &wanted), PRINTED_BYTES).await?;
    let parts = match ran.code {
        0 => part::parts(ran.output, &wanted),
        GONE => Some(vec![Part::Gone; pieces.len()]),
        _ => return Err(failed(login, &ran.errors)),
    };
    let Some(parts) = parts else {
        let why = format!("the answer from {} is incomplete", login.host());
        return Err(CommandError::Unreachable(why));
    };
    let mut copied = Vec::with_capacity(parts.len());
    for (piece, part) in pieces.iter().zip(parts) {
        copied.push(match part {
            Part::Bytes(bytes) => {
                let count = bytes.len() as u64;
                Copied::Here { count, lost: put(&tools.context, piece, bytes).await }
            }
            Part::Gone => Copied::Gone,
            Part::Unread => Copied::Unread,
        });
    }
    Ok(copied)
}

/// Writes a part at its place. Returns the loss if it can't be written.
async fn put(context: &Context, piece: &Piece, part: Vec<u8>) -> Option<Fact> {
    let (folder, at) = (context.folder.clone(), piece.here);
    let (task, stream) = (piece.task, piece.stream);
    let written = context.workers.run(move || folder.put(task, stream, &part, at));
    written.await.flatten()
}

/// Tests whether files can be written.
///
/// # Errors
/// They can't be written.
pub async fn check(tools: &Tools, login: &Login) -> Result<(), CommandError> {
    run(login, &remote_scripts::check(&tools.folder.for_check())).await
}

/// Removes the files of a submission. A job that needs them afterwards ends before it begins.
///
/// # Errors
/// The login node can't be reached, or the files can't be removed.
pub async fn remove_jobs(tools: &Tools, login: &Login, key: &str) -> Result<(), CommandError> {
    run(login, &remote_scripts::remove(&tools.folder.jobs(key))).await
}

/// Removes all files of a daemon instance, wherever they are. With `keeps_outputs`, moves outputs to this machine's own
/// folder first, if they are on this machine.
///
/// # Errors
/// Returns why the files can't be removed, as words for people.
pub async fn remove_all(tools: &Tools, keeps_outputs: bool) -> Result<(), String> {
    let Tools { programs, folder, context, .. } = tools;
    if let Some(login) = programs.login() {
        return remove(login, folder.path()).await.map_err(|trouble| trouble.to_string());
    }
    let (outputs, folder) = (Arc::clone(&context.folder), Arc::clone(folder));
    let remove = move || {
        if keeps_outputs {
            outputs.move_into_folder(folder.path())?;
        }
        folder.remove()
    };
    let removed = context.workers.run(remove).await;
    removed.map_or(Ok(()), |removed| removed.map_err(|error| error.to_string()))
}

/// Removes all files of a daemon instance on a login node.
///
/// # Errors
/// The login node can't be reached, or the files can't be removed.
pub async fn remove(login: &Login, folder: &std::path::Path) -> Result<(), CommandError> {
    run(login, &remote_scripts::remove(folder)).await
}
