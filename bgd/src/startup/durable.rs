//! The start of a durable daemon (R125 to R130): opens the journal, continues the instance that it belongs to, and
//! passes its content to the dispatcher.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bgd_shared::holder::Note;
use bgd_shared::id::TaskId;

use super::failure::{Failure, UNAVAILABLE, failed};
use super::instance;
use super::left_behind::why_ended;
use super::running::Daemon;
use crate::config::Durable;
use crate::dispatcher::durable::LeftRuns;
use crate::exec::left::{HeldRun, SparedProcesses, read_pending};
use crate::exec::output::PROMPT;
use crate::exec::processes::mark::Marks;
use crate::journal::{self, Durability, Head, Journal, OpenError, Opened};
use crate::keeper::client::{Found, Keeper, NotFound};
use crate::keeper::{self, Key};
use crate::os::clock::Stamp;
use crate::wire::mailbox::{Internal, Internals};

/// How many marks are skipped after an earlier daemon, which may have used some that were not written down.
const MARKS_LEFT_OUT: u32 = 1 << 20;

/// The file with the ID of this boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why tasks are lost whose processes the keeper held, if it was killed.
const KEEPER_KILLED: &str = "the keeper was killed while the daemon was stopped";
const BOTH_KILLED: &str = "the daemon and the keeper were killed";

/// The state left by the previous durable daemon.
pub(super) struct Before {
    opened: Opened,
    boot: String,
    /// The ID of the instance that the journal belongs to.
    pub(super) instance: Option<String>,
    /// The number of the first mark of a process tree.
    pub(super) first_mark: u32,
    /// The keeper of the previous daemon, if there is one.
    pub(super) keeper: Option<Arc<Keeper>>,
    /// The runs held by the keeper that can be continued.
    pub(super) left: LeftRuns,
}

impl Before {
    /// Returns the processes to spare: those of the continued runs, and the keeper, which may have outputs of others
    /// open.
    pub(super) fn spared(&self) -> SparedProcesses {
        let mut spared = SparedProcesses::of(self.left.runs.values());
        if let Some(keeper) = &self.keeper {
            spared.add_process(keeper.socket().pid);
        }
        spared
    }

    /// Returns the sockets of processes that have yet to report readiness.
    pub(super) fn notify_sockets(&self) -> Vec<&Path> {
        self.left.runs.values().filter_map(HeldRun::notify_socket).collect()
    }
}

fn durability(durable: Durable) -> Option<Durability> {
    match durable {
        Durable::No => None,
        Durable::Yes => Some(Durability::Written),
        Durable::Sync => Some(Durability::Synced),
    }
}

fn unusable(error: &OpenError) -> Failure {
    Failure::new(UNAVAILABLE, error.to_string())
}

/// Returns the ID of this boot of the machine.
fn boot() -> String {
    fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned()
}

/// Opens the journal if the daemon is to be durable.
pub(super) fn open(state: &Path, durable: Durable) -> Result<Option<Before>, Failure> {
    let Some(durability) = durability(durable) else { return Ok(None) };
    let mut opened = journal::open(state, durability).map_err(|error| unusable(&error))?;
    let written = opened.head.as_ref().map(|head| head.instance.clone()).or_else(|| opened.instance.clone());
    // The ID is used as a directory name.
    let instance = written.filter(|id| uuid::Uuid::try_parse(id).is_ok_and(|uuid| uuid.to_string() == *id));
    // The head of a journal salvaged without one does not describe the previous daemon.
    opened.head = opened.head.filter(|head| !head.boot.is_empty());
    let boot = boot();
    let folder = instance.as_ref().map(|id| instance::folder(state, id));
    let (keeper, left) = match (folder, &opened.head) {
        // No process survives from another boot.
        (Some(folder), Some(head)) if head.boot != boot => {
            keeper::client::dismiss(&folder);
            (None, LeftRuns { lost_because: why_ended(&folder), ..LeftRuns::default() })
        }
        (Some(folder), Some(_)) => find(&folder, &opened)?,
        // A keeper that answers is of this boot. Without one, it is not known whether it ended by itself.
        (Some(folder), None) => match find(&folder, &opened)? {
            (None, left) => (None, LeftRuns { lost_because: left.lost_because, ..LeftRuns::default() }),
            found => found,
        },
        // Nothing was started before for a new journal.
        (None, _) => {
            let is_complete = opened.kept.tasks.is_empty();
            (None, LeftRuns { is_complete, sent_seq: is_complete.then_some(0), ..LeftRuns::default() })
        }
    };
    let next = opened.head.as_ref().map(|head| head.next_mark);
    let last = || left.runs.values().filter_map(HeldRun::mark_number).max();
    let first_mark = next.or_else(last).map_or(1, |next| next.wrapping_add(MARKS_LEFT_OUT).max(1));
    Ok(Some(Before { opened, boot, instance, first_mark, keeper, left }))
}

/// Finds the keeper of the previous daemon, and the runs that tasks still have. Fails if the keeper may be alive but
/// does not answer: starting without it would end all the processes it holds.
fn find(folder: &Path, opened: &Opened) -> Result<(Option<Arc<Keeper>>, LeftRuns), Failure> {
    let (keeper, found) = match Keeper::find(folder) {
        Ok(found) => found,
        Err(NotFound::Gone(error)) => {
            tracing::error!(%error, "the keeper of running tasks was ended");
            // A stop alone harms no task.
            let is_stopped = opened.head.as_ref().is_some_and(|head| head.is_stopped);
            let killed = if is_stopped { KEEPER_KILLED } else { BOTH_KILLED };
            let why = why_ended(folder).unwrap_or(killed);
            return Ok((None, LeftRuns { lost_because: Some(why), ..LeftRuns::default() }));
        }
        Err(NotFound::Silent(error)) => {
            let message = format!(
                "the keeper of running tasks, `bgd --keeper {}`, does not answer: {error}; the tasks end with it if \
                 it is killed",
                folder.display()
            );
            tracing::error!("{message}");
            return Err(Failure::new(UNAVAILABLE, message));
        }
    };
    let mut left = LeftRuns { lost_because: why_ended(folder), ..read(found) };
    let Some(keeper) = keeper.map(Arc::new) else { return Ok((None, left)) };
    let held: Vec<Key> = left.held().collect();
    left.retain_known(&opened.kept);
    let known: HashSet<Key> = left.held().collect();
    held.into_iter().filter(|key| !known.contains(key)).for_each(|key| keeper.close(key));
    Ok((Some(keeper), left))
}

/// Parses the content of the keeper.
fn read(found: Found) -> LeftRuns {
    let Found { runs, is_complete, sent_seq } = found;
    let mut left = LeftRuns { is_complete, sent_seq: Some(sent_seq), ..LeftRuns::default() };
    for kept in runs {
        let key = kept.key;
        let result = if key.is_of_pending() {
            read_pending(kept).map(|inherited| _ = left.pending.insert(key.task, inherited))
        } else {
            HeldRun::read(kept).map(|run| _ = left.runs.insert(key, run))
        };
        if let Err(error) = result {
            tracing::error!(task = %key.task, %error, "what the keeper holds can't be read");
            left.unread.insert(key);
        }
    }
    left
}

/// Passes the journal's content to the dispatcher, and starts the journal's thread.
pub(super) fn begin(
    daemon: &mut Daemon,
    before: Before,
    note: &Note,
    marks: &Arc<Marks>,
) -> Result<(), Failure> {
    let Before { mut opened, boot, mut left, .. } = before;
    let (mut kept, head) = (std::mem::take(&mut opened.kept), opened.head.take());
    let is_same_boot = head.as_ref().is_some_and(|head| head.boot == boot);
    let why = match (&head, is_same_boot) {
        (Some(_), false) => "the machine was restarted",
        (Some(head), true) if head.is_stopped => "the daemon was stopped",
        (Some(_) | None, _) => "the daemon was killed",
    };
    if head.as_ref().is_some_and(|head| head.is_stopped) {
        // A daemon that was stopped had written everything.
        left.sent_seq.get_or_insert_default();
    }
    let epoch = head.filter(|_| is_same_boot).map(|head| head.epoch);
    let tasks = kept.tasks.iter().map(|(_, row)| row.task.id);
    // A notice may need the output of a removed task.
    let notices = kept.notices.iter().map(|(_, row)| row.notice.task.id);
    let ids: HashSet<TaskId> = tasks.chain(notices).collect();
    let epoch = daemon.dispatcher.resume_clock(&mut kept, epoch);
    let head = Head::new(note.instance.clone(), boot, epoch, marks.number());
    let damage = opened.damage.take();
    let outputs = daemon.outputs();
    remove_prompts(&outputs);
    let unknown = unknown_outputs(&outputs, &ids);
    match &damage {
        // The tasks were removed, or never accepted.
        None => unknown.for_each(|output| _ = fs::remove_file(output)),
        Some(damage) => match damage.keep_outputs(unknown) {
            Ok(()) => damage.settle(),
            Err(error) => tracing::error!(%error, "outputs of tasks that can't be read stay where they are"),
        },
    }
    let journal = start(opened, head, note, marks, &daemon.internals)?;
    daemon.make_durable(journal, damage.map(|damage| damage.warning));
    daemon.dispatcher.begin_again(kept, left, why);
    Ok(())
}

/// Reopens the journal after an upgrade in place.
pub(super) fn reopen(
    daemon: &mut Daemon,
    durable: Durable,
    state: &Path,
    note: &Note,
    marks: &Arc<Marks>,
    epoch: Stamp,
) -> Result<(), Failure> {
    let Some(durability) = durability(durable) else { return Ok(()) };
    let opened = journal::reopen(state, durability, &note.instance).map_err(|error| unusable(&error))?;
    let head = Head::new(note.instance.clone(), boot(), epoch, marks.number());
    let journal = start(opened, head, note, marks, &daemon.internals)?;
    daemon.make_durable(journal, None);
    Ok(())
}

fn start(
    opened: Opened,
    head: Head,
    note: &Note,
    marks: &Arc<Marks>,
    internals: &Internals,
) -> Result<Journal, Failure> {
    let (marks, internals) = (Arc::clone(marks), internals.clone());
    let report = move |recorded| internals.send(Internal::Recorded(recorded));
    Journal::start(opened, head, note, move || marks.number(), report).map_err(failed("the journal"))
}

/// Removes the prompts of interrupted turns: each is in a file for one turn only, and no turn outlives its daemon.
fn remove_prompts(outputs: &Path) {
    let all = fs::read_dir(outputs).into_iter().flatten().flatten().map(|entry| entry.path());
    let prompts = all.filter(|path| path.extension().is_some_and(|ending| ending == PROMPT));
    prompts.for_each(|path| {
        if let Err(error) = fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "a prompt's file was not removed");
        }
    });
}

/// Returns the outputs of tasks that are not in the journal.
fn unknown_outputs(outputs: &Path, known: &HashSet<TaskId>) -> impl Iterator<Item = PathBuf> {
    let is_unknown = move |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.get(..36)).and_then(|id| id.parse::<TaskId>().ok());
        id.is_none_or(|id| !known.contains(&id))
    };
    fs::read_dir(outputs).into_iter().flatten().flatten().filter(is_unknown).map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r126_unreadable_kept_run_is_held_until_the_journal_decides() {
        let key = Key { task: TaskId::random(), run: 2 };
        let process = fs::File::open("/dev/null").unwrap().into();
        let (text, descriptors) = (b"{\"later\":1}".to_vec(), vec![process]);
        let kept = keeper::Kept { key, pid: 1, text, descriptors, ended_at: None };
        let mut left = read(Found { runs: vec![kept], is_complete: true, sent_seq: 3 });
        assert!(left.runs.is_empty() && left.is_complete);
        assert_eq!((left.held().collect::<Vec<_>>(), left.sent_seq), (vec![key], Some(3)));
        left.retain_known(&bgd_core::durable::Kept::default());
        assert_eq!(left.held().next(), None, "the journal does not have its task");
    }

    #[test]
    fn r127_only_leftover_prompt_files_are_removed() {
        let outputs = tempfile::tempdir().unwrap();
        let task = TaskId::random();
        for ending in ["prompt", "out", "result.1"] {
            fs::write(outputs.path().join(format!("{task}.{ending}")), "").unwrap();
        }
        remove_prompts(outputs.path());
        let left = fs::read_dir(outputs.path()).unwrap().map(|entry| entry.unwrap().path());
        let left: HashSet<PathBuf> = left.collect();
        let kept = ["out", "result.1"].map(|ending| outputs.path().join(format!("{task}.{ending}")));
        assert_eq!(left, kept.into());
    }
}
