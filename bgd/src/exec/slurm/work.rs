//! The background work of a cluster's owner: files written and read by workers, commands run. Each piece of work ends
//! with a [`Done`] and touches no state.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use bgd_shared::id::TaskId;
use bgd_shared::request::Stream;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::actions::{self, JobAction};
use super::batch::Batch;
use super::commands::{self, RECORDS, Submission};
use super::error::CommandError;
use super::folder::{Scan, WorkFolder};
use super::folder_scan::{FolderScan, Looked};
use super::job::JobId;
use super::login::Login;
use super::parse::{self, Settings};
use super::program::Programs;
use super::remote_files::{self, Copied, Piece};
use super::run::Job;
use super::tools::{self, NotSubmitted, Tools};
use super::turn::{Outcome, SubmitTurn};
use crate::core::{Conclusion, Fact, PlaceFact};
use crate::exec::ready::LineWatch;

/// The result of a piece of work.
#[derive(Debug)]
pub enum Done {
    /// The cluster's settings.
    Known(Result<Settings, CommandError>),
    /// A submission.
    Submitted(Batch, Result<Accepted, NotSubmitted>),
    /// A search for a submission, by its key.
    Found(Arc<str>, Result<Option<JobId>, CommandError>),
    /// A query for all jobs, with the time at which it began.
    Asked(Instant, Result<String, CommandError>),
    /// A query for the accounting's records: the jobs that were answered, each group with its answer, and the other
    /// jobs with the reason.
    Recorded(Vec<(Vec<JobId>, String)>, Option<(Vec<JobId>, CommandError)>),
    /// A query for how the scripts of jobs have ended.
    Exits(Result<String, CommandError>),
    /// A look at the notes: the names of all notes seen, and the result; `None` if the daemon is ending.
    Scanned(HashSet<String>, Option<Result<Scan, CommandError>>),
    /// A look over a login node, with the time at which it began.
    Looked(Instant, FolderScan, Result<Looked, CommandError>),
    /// Parts of outputs that were copied from a login node.
    Copied(Vec<Piece>, Result<Vec<Copied>, CommandError>),
    /// Work without a result to handle, such as files removed if possible.
    Abandoned,
    /// Jobs of no known run were ended; `false` if that must be repeated.
    EndedUnknown(bool),
    /// Orders, and whether they succeeded.
    Acted(Vec<JobAction>, Result<(), CommandError>),
    /// The last facts about a run, and its files.
    Settled(TaskId, u32, Vec<Fact>, Files),
    /// The beginning of the output of a run's next attempt was determined.
    Based(TaskId, u32),
    /// A search for jobs of earlier daemons; `false` if it must be repeated.
    Swept(bool),
}

/// The files of a job, which are needed until its end is known for good.
#[derive(Clone, Debug)]
pub struct Files {
    /// Its submission, and its index in the submission.
    pub place: (Arc<str>, u32),
    /// How often it was restarted.
    pub restarts: u32,
    /// Whether it has two output files.
    pub split: bool,
}

/// A submission that the cluster has accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The number of the job or of the array.
    pub job: u64,
    /// Reports new notes, if requested and supported by the system.
    pub watch: Option<Inotify>,
}

/// Submits runs. With `watches`, also sets up a watch for notes.
pub async fn submit(
    tools: Tools,
    (batch, mut turn): (Batch, SubmitTurn),
    jobs: Vec<(TaskId, Arc<Job>)>,
    watches: bool,
) -> Done {
    let result = try_submit(&tools, (&batch, &mut turn), jobs, watches).await;
    let comes_again = matches!(
        result,
        Err(NotSubmitted::NotYet | NotSubmitted::CommandError(CommandError::Unreachable(_)))
    );
    // The submission may have failed before its turn.
    let has_come = turn.come().await;
    turn.end(if has_come && !comes_again { Outcome::Had } else { Outcome::Again });
    if !matches!(&result, Ok(_) | Err(NotSubmitted::CommandError(CommandError::Unanswered(_)))) {
        abandon(tools, Arc::clone(&batch.key)).await;
    }
    Done::Submitted(batch, result)
}

/// Removes the files of a submission that did not succeed.
pub async fn abandon(tools: Tools, key: Arc<str>) -> Done {
    if let Some(login) = tools.programs.login() {
        // The files may stay: no job needs them, and they are removed with the work folder.
        let _ = remote_files::remove_jobs(&tools, login, &key).await;
        return Done::Abandoned;
    }
    let folder = Arc::clone(&tools.folder);
    let _ = tools.context.workers.run(move || folder.remove_jobs(&key)).await;
    Done::Abandoned
}

async fn try_submit(
    tools: &Tools,
    (batch, turn): (&Batch, &mut SubmitTurn),
    jobs: Vec<(TaskId, Arc<Job>)>,
    watches: bool,
) -> Result<Accepted, NotSubmitted> {
    let count = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
    let watch = if let Some(login) = tools.programs.login() {
        remote_files::write(tools, login, &batch.key, jobs).await?;
        None
    } else {
        write_here(tools, &batch.key, jobs, watches).await?
    };
    let folder = &tools.folder;
    let submission = Submission {
        resources: &batch.wish.resources,
        time_limit_ms: batch.wish.time_limit_ms,
        name: &tools.origin.job_name,
        key: &batch.key,
        elements: (count > 1).then_some(count),
        dependency: batch.wish.dependency.as_deref(),
        is_held: batch.wish.is_held,
        nice: batch.wish.nice,
        script: &folder.script(),
        files: &folder.jobs(&batch.key),
        notes: &folder.notes(),
    };
    if !turn.come().await {
        return Err(NotSubmitted::NotYet);
    }
    let answer =
        tools.programs.run(commands::submit(&submission)).await.map_err(NotSubmitted::CommandError)?;
    let job = parse::submitted(&answer).ok_or_else(|| {
        NotSubmitted::CommandError(CommandError::Unanswered("sbatch printed no job number".to_owned()))
    })?;
    Ok(Accepted { job, watch })
}

/// Writes the files of a submission's jobs into a folder that this machine shares with the nodes.
async fn write_here(
    tools: &Tools,
    key: &Arc<str>,
    jobs: Vec<(TaskId, Arc<Job>)>,
    watches: bool,
) -> Result<Option<Inotify>, NotSubmitted> {
    let (owned, key) = (tools.clone(), Arc::clone(key));
    let written = tools.context.workers.run(move || {
        let written = write(&owned, &key, &jobs);
        written.map(|()| if watches { watch(&owned.folder) } else { None })
    });
    match written.await {
        Some(Ok(watch)) => Ok(watch),
        Some(Err(error)) => {
            let folder = tools.folder.path().display();
            Err(NotSubmitted::Unwritten(format!("cannot write its files to {folder}: {error}")))
        }
        None => Err(NotSubmitted::Unwritten("the daemon is ending".to_owned())),
    }
}

/// Writes the files of a submission's jobs.
fn write(tools: &Tools, key: &str, jobs: &[(TaskId, Arc<Job>)]) -> io::Result<()> {
    let Tools { folder, origin, context, .. } = tools;
    // Noted before anything exists that may have to be ended.
    origin.remember(folder.path())?;
    folder.prepare()?;
    folder.create_jobs(key)?;
    for (index, (task, job)) in (0..).zip(jobs) {
        let output = folder.create_output(*task, Stream::Stdout)?;
        context.folder.link(*task, Stream::Stdout, &output)?;
        let errors = if job.spec.split {
            let errors = folder.create_output(*task, Stream::Stderr)?;
            context.folder.link(*task, Stream::Stderr, &errors)?;
            Some(errors)
        } else {
            None
        };
        job.set_base(context.folder.sizes(*task, job.spec.split));
        let text = tools::file_of(job, context, &output, errors.as_deref(), false);
        folder.write_job(key, index, &text)?;
    }
    Ok(())
}

/// Watches for notes that are written on this machine.
fn watch(folder: &WorkFolder) -> Option<Inotify> {
    let watch = || {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        inotify.add_watch(&folder.notes(), AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ONLYDIR)?;
        Ok::<_, nix::Error>(inotify)
    };
    watch().inspect_err(|error| tracing::debug!(%error, "notes are looked for every second")).ok()
}

/// Queries the cluster's settings.
///
/// # Errors
/// The cluster can't be asked.
pub async fn settings(programs: &Programs) -> Result<Settings, CommandError> {
    programs.run(commands::settings()).await.map(|text| parse::settings(&text))
}

/// Queries the cluster's settings, before the first submission.
pub async fn learn(tools: Tools) -> Done {
    Done::Known(settings(&tools.programs).await)
}

/// Searches for a submission whose answer was lost.
pub async fn find(tools: Tools, key: Arc<str>) -> Done {
    let answer = tools.programs.run(commands::keys(&tools.origin.job_name)).await;
    let found = answer.map(|text| {
        let mut jobs = parse::keys(&text);
        jobs.find(|(_, other)| **other == *key).map(|(id, _)| id)
    });
    Done::Found(key, found)
}

/// Queries all jobs.
pub async fn ask(tools: Tools) -> Done {
    let asked = Instant::now();
    Done::Asked(asked, tools.programs.run(commands::queue(&[&tools.origin.job_name])).await)
}

/// Looks for new notes.
pub async fn scan(tools: Tools, mut seen: HashSet<String>) -> Done {
    let folder = Arc::clone(&tools.folder);
    let scanned = tools.context.workers.run(move || (folder.scan(&mut seen), seen));
    let Some((scan, seen)) = scanned.await else { return Done::Scanned(HashSet::new(), None) };
    let path = tools.folder.notes();
    let why =
        |error| CommandError::Unreachable(format!("the notes in {} can't be read: {error}", path.display()));
    Done::Scanned(seen, Some(scan.map_err(why)))
}

/// Removes the files of a job that never started.
pub async fn discard(tools: Tools, key: Arc<str>, index: u32) -> Done {
    if tools.programs.login().is_none() {
        let folder = Arc::clone(&tools.folder);
        let _ = tools.context.workers.run(move || folder.remove_job(&key, index, 0)).await;
    }
    Done::Abandoned
}

/// Carries out orders of one kind.
pub async fn act(tools: Tools, actions: Vec<JobAction>) -> Done {
    let mut result = Ok(());
    for command in actions::commands(&tools.origin.job_name, &actions) {
        match tools.programs.run(command).await {
            Ok(_) => {}
            // Some of the jobs may have ended meanwhile.
            Err(CommandError::Gone) if actions.len() > 1 => {}
            Err(trouble) => result = Err(trouble),
        }
    }
    Done::Acted(actions, result)
}

/// Queries how the scripts of all jobs have ended.
pub async fn exits(tools: Tools) -> Done {
    Done::Exits(tools.programs.run(commands::exits(&tools.origin.job_name)).await)
}

/// Queries the accounting for these jobs, in several queries if there are many.
pub async fn record(tools: Tools, jobs: Vec<JobId>) -> Done {
    let mut answered = Vec::new();
    for (index, some) in jobs.chunks(RECORDS).enumerate() {
        match tools.programs.run(commands::records(&tools.origin.job_name, some)).await {
            Ok(text) => answered.push((some.to_vec(), text)),
            Err(trouble) => {
                let rest = jobs[index * RECORDS..].to_vec();
                return Done::Recorded(answered, Some((rest, trouble)));
            }
        }
    }
    Done::Recorded(answered, None)
}

/// Looks at a run's output for the last time, and reports how the run has ended.
pub async fn settle(tools: Tools, task: TaskId, run: u32, job: Settling) -> Done {
    let Settling { files, is_tracked, missing, watch, conclusion } = job;
    let Tools { folder, context, .. } = &tools;
    let (folder, split) = (Arc::clone(folder), files.split);
    if missing.is_none() {
        let _ = context.workers.run(move || folder.refresh(task, split)).await;
    }
    if !is_tracked {
        context.outputs.track(task, run, split);
    }
    let lost = missing.filter(|(bytes, _)| *bytes > 0);
    let lost = lost.map(|(bytes, why)| Fact::Lost { bytes, why: why.into() });
    let output = context.outputs.settle(task, run, false).await;
    if let Some(watch) = watch {
        watch.finish().await;
    }
    let end = Fact::Elsewhere(PlaceFact::Concluded(conclusion));
    Done::Settled(task, run, lost.into_iter().chain(output).chain([end]).collect(), files)
}

/// Notes the sizes of a run's output files, where the output of its next attempt begins.
pub async fn base(tools: Tools, (task, run): (TaskId, u32), job: Arc<Job>) -> Done {
    let Tools { context, .. } = &tools;
    let folder = Arc::clone(&context.folder);
    let _ = context.workers.run(move || job.set_base(folder.sizes(task, job.spec.split))).await;
    Done::Based(task, run)
}

/// Removes the files that only one job needed.
pub async fn clean(tools: Tools, files: Files) -> Done {
    let Files { place: (key, index), restarts, .. } = files;
    let folder = Arc::clone(&tools.folder);
    let _ = tools.context.workers.run(move || folder.remove_job(&key, index, restarts)).await;
    Done::Abandoned
}

/// The input of the last look at a run's output.
#[derive(Debug)]
pub struct Settling {
    pub files: Files,
    /// Whether its output is being tracked.
    pub is_tracked: bool,
    /// How many bytes of its output could not be copied from a login node, and why; `None` if nothing has to be copied.
    pub missing: Option<(u64, &'static str)>,
    /// The watch for the line that makes it ready.
    pub watch: Option<LineWatch>,
    /// How the run has ended.
    pub conclusion: Conclusion,
}

/// Ends the remaining jobs of earlier daemons on the cluster.
pub async fn sweep(tools: Tools) -> Done {
    let origin = Arc::clone(&tools.origin);
    let left = tools.context.workers.run(move || origin.earlier()).await.unwrap_or_default();
    let mut is_done = true;
    for earlier in left {
        tracing::info!(jobs = earlier.job_name, "cancelling jobs of an earlier daemon");
        match tools.programs.run(commands::cancel_all(&earlier.job_name)).await {
            Ok(_) | Err(CommandError::Gone) => {
                let there = earlier.folder().zip(tools.programs.login());
                let is_far = there.is_some();
                if let Some((folder, login)) = there
                    && let Err(trouble) = remote_files::remove(login, folder.path()).await
                {
                    tracing::warn!(%trouble, "files of an earlier daemon not removed");
                    // The note stays, so that the next sweep or the next daemon tries again.
                    is_done &= !matches!(trouble, CommandError::Unanswered(_));
                    continue;
                }
                let outputs = Arc::clone(&tools.context.folder);
                let forget = move || {
                    if let Some(folder) = earlier.folder().filter(|_| !is_far) {
                        // A durable daemon has the tasks of the previous one.
                        outputs.move_into_folder(folder.path())?;
                        if !earlier.remove_files() {
                            return Ok(());
                        }
                    }
                    earlier.forget();
                    Ok::<_, std::io::Error>(())
                };
                if let Some(Err(error)) = tools.context.workers.run(forget).await {
                    tracing::warn!(%error, "outputs of an earlier daemon not kept, which is tried again");
                    is_done = false;
                }
            }
            Err(trouble) => {
                tracing::warn!(?trouble, "jobs of an earlier daemon not cancelled, which is tried again");
                is_done = false;
            }
        }
    }
    Done::Swept(is_done)
}

/// Looks for notes and sizes of outputs over a login node.
pub async fn look(tools: Tools, login: Arc<Login>, look: FolderScan) -> Done {
    let (began, looked) = remote_files::look(&tools, &login, &look).await;
    Done::Looked(began, look, looked)
}

/// Copies parts of outputs from a login node.
pub async fn copy(tools: Tools, login: Arc<Login>, pieces: Vec<Piece>) -> Done {
    let copied = remote_files::copy(&tools, &login, &pieces).await;
    Done::Copied(pieces, copied)
}

/// Ends jobs that have this daemon's name but belong to no known run.
pub async fn end_unknown(tools: Tools, jobs: Vec<JobId>) -> Done {
    tracing::info!(jobs = jobs.len(), "cancelling jobs that nobody is waiting for");
    let mut are_all_ended = true;
    for command in commands::cancel_named(&tools.origin.job_name, jobs) {
        match tools.programs.run(command).await {
            Ok(_) | Err(CommandError::Gone) => {}
            Err(trouble) => {
                let what = "jobs that nobody is waiting for were not cancelled, which is tried again";
                tracing::warn!(?trouble, "{what}");
                are_all_ended = false;
            }
        }
    }
    Done::EndedUnknown(are_all_ended)
}
