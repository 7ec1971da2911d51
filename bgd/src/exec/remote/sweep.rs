//! The tasks that this daemon leaves on a machine if it is killed, as they keep running. A note in the state folder
//! lists the instances that may have tasks on the machine, so that the next daemon ends exactly those tasks, and a
//! daemon without such tasks makes no connection.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use bgd_shared::client::ClientError;
use bgd_shared::error::ErrorKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::mutex::Mutex;
use bgd_shared::replace::replace;
use bgd_shared::request::{
    CancelParams, ClearParams, InboxAck, InboxAckParams, ListParams, SessionEnd, SessionEndParams,
    TaskCancel, TaskClear, TaskList,
};
use bgd_shared::task::Task;

use super::bridge::Bridge;
use crate::exec::task_variables::DAEMON_TAG;
use crate::os::files::{private_folder, remove_if_there};

/// A number higher than that of any notice, which every JSON reader accepts exactly.
const ALL_NOTICES: u64 = (1 << 53) - 1;

/// The beginning of the line in a note that contains the instance of the machine's daemon.
const THERE: &str = "there ";

/// The beginning of the line in a note that contains the host through which that daemon was reached.
const HOST: &str = "host ";

/// How many tasks are listed or ended by one call.
const PAGE: usize = 1000;

/// The identity of this daemon on another machine.
#[derive(Debug)]
pub struct Origin {
    /// The tag of its tasks on the machine, for humans: this machine and the daemon's socket.
    pub tag: String,
    /// The parent session of the tasks of this instance.
    pub session: String,
    instance: String,
    note: PathBuf,
    /// The machine at the last connection. Locked while the note is changed.
    there: Mutex<There>,
}

/// The machine that has the tasks, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct There {
    /// The instance of its daemon.
    instance: Option<String>,
    /// The host through which it was reached. An earlier version did not note it.
    host: Option<String>,
}

impl Origin {
    /// Creates the identity of this machine's daemon at this socket; `instance` is its current run, or a durable daemon
    /// as a whole, and `state` its state folder.
    pub fn new(state: &Path, socket: &Path, instance: &str, executor: &str) -> Self {
        let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let tag = format!("{DAEMON_TAG}{}:{}", machine.trim(), socket.display());
        // A socket's path fits into a file name: it has at most 107 bytes.
        let name = format!("{executor}@{}", socket.to_string_lossy().replace('/', "+"));
        let note = state.join("executors").join(name);
        let there = Note::read(&note).there;
        Self {
            tag,
            session: session_of(instance),
            instance: instance.to_owned(),
            note,
            there: Mutex::new(there),
        }
    }

    /// Notes that this instance may have tasks on the machine.
    ///
    /// # Errors
    /// Returns the system error, such as a full disk.
    pub fn remember(&self) -> io::Result<()> {
        let there = self.there.lock();
        let mut note = Note::read(&self.note);
        if note.instances.insert(self.instance.clone()) || note.there != *there {
            note.there.clone_from(&there);
            note.write(&self.note)?;
        }
        Ok(())
    }

    /// Notes the instance of the machine's daemon that receives tasks from now on, and the host that leads to it.
    pub fn note_there(&self, instance: &str, host: &str) {
        let mut there = self.there.lock();
        let seen = There { instance: Some(instance.to_owned()), host: Some(host.to_owned()) };
        if *there == seen {
            return;
        }
        *there = seen;
        let mut note = Note::read(&self.note);
        if !note.instances.is_empty() {
            note.there.clone_from(&there);
            self.note_changed(note.write(&self.note));
        }
    }

    /// Notes that tasks go to another machine from now on, to which there was no connection yet.
    pub fn forget_there(&self) {
        let mut there = self.there.lock();
        *there = There::default();
        let mut note = Note::read(&self.note);
        if std::mem::take(&mut note.there) != There::default() {
            self.note_changed(note.write(&self.note));
        }
    }

    /// Returns the instance of the machine's daemon at the last connection, by this daemon or the previous one.
    pub fn seen_there(&self) -> Option<String> {
        self.there.lock().instance.clone()
    }

    /// Returns the host of the last connection, by this daemon or the previous one.
    pub fn host_before(&self) -> Option<String> {
        self.there.lock().host.clone()
    }

    /// Notes that this instance has no task left on the machine.
    pub fn forget(&self) {
        self.drop_from_note(&self.instance);
    }

    /// Reports whether an instance may have left tasks on the machine.
    pub fn is_remembered(&self) -> bool {
        !Note::read(&self.note).instances.is_empty()
    }

    /// Reports whether this same instance may have tasks on the machine: those of an earlier daemon that was as
    /// durable, or of the program before an upgrade.
    pub fn has_been_there(&self) -> bool {
        Note::read(&self.note).instances.contains(&self.instance)
    }

    /// Returns the parent sessions of the tasks that this daemon and earlier ones may have on the machine.
    pub fn sessions(&self) -> String {
        Note::read(&self.note).sessions()
    }

    /// Returns the other instances that may have tasks on the machine.
    fn earlier(&self) -> BTreeSet<String> {
        let mut instances = Note::read(&self.note).instances;
        instances.remove(&self.instance);
        instances
    }

    fn drop_from_note(&self, instance: &str) {
        let _there = self.there.lock();
        let mut note = Note::read(&self.note);
        if note.instances.remove(instance) {
            self.note_changed(note.write(&self.note));
        }
    }

    fn note_changed(&self, written: io::Result<()>) {
        if let Err(error) = written {
            tracing::warn!(path = %self.note.display(), %error, "note not changed");
        }
    }
}

/// The content of a note.
#[derive(Debug, Default)]
struct Note {
    /// The instances of this daemon that may have tasks on the machine.
    instances: BTreeSet<String>,
    there: There,
}

impl Note {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut note = Self::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(instance) = line.strip_prefix(THERE) {
                note.there.instance = Some(instance.to_owned());
            } else if let Some(host) = line.strip_prefix(HOST) {
                note.there.host = Some(host.to_owned());
            } else {
                note.instances.insert(line.to_owned());
            }
        }
        note
    }

    /// Returns the parent sessions of the instances' tasks.
    fn sessions(&self) -> String {
        self.instances.iter().map(|instance| session_of(instance)).collect::<Vec<_>>().join(" ")
    }

    /// Replaces the file, or removes it if there are no instances.
    fn write(&self, path: &Path) -> io::Result<()> {
        if self.instances.is_empty() {
            return remove_if_there(path);
        }
        if let Some(folder) = path.parent() {
            private_folder(folder)?;
        }
        let there = self.there.instance.iter().map(|instance| format!("{THERE}{instance}"));
        let host = self.there.host.iter().map(|host| format!("{HOST}{host}"));
        let lines = self.instances.iter().cloned().chain(there).chain(host);
        let text: String = lines.map(|line| line + "\n").collect();
        replace(path, 0o600, |file| file.write_all(text.as_bytes()))
    }
}

/// Returns the names of machines on which earlier daemons of this socket may have left tasks, except those that the
/// filter knows, with the parent sessions of those tasks.
pub fn unknown(state: &Path, socket: &Path, is_known: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let end = format!("@{}", socket.to_string_lossy().replace('/', "+"));
    let entries = fs::read_dir(state.join("executors")).into_iter().flatten().flatten();
    let of_note = |note: PathBuf| {
        let name = note.file_name()?.to_str()?.strip_suffix(&end)?.to_owned();
        let note = Some(Note::read(&note)).filter(|_| !is_known(&name))?;
        Some((name, note.sessions()))
    };
    entries.filter_map(|entry| of_note(entry.path())).collect()
}

/// Returns the parent session of an instance's tasks. Instances have random names, so no other daemon has it.
fn session_of(instance: &str) -> String {
    format!("{DAEMON_TAG}{instance}")
}

/// Ends the tasks that earlier instances of this daemon have left on a machine.
///
/// # Errors
/// No answer arrived, so tasks may remain. A refusal is logged, and is no error, as it would be repeated.
pub async fn end_earlier(bridge: &Bridge, origin: &Origin) -> Result<(), ClientError> {
    for instance in origin.earlier() {
        tracing::info!(instance, "ending what an earlier daemon left on another machine");
        match bridge.wait::<SessionEnd>(&SessionEndParams { session: session_of(&instance) }).await {
            Ok(_) => origin.drop_from_note(&instance),
            Err(error) => {
                tracing::warn!(%error, "tasks of an earlier daemon not ended");
                unless_refused(error)?;
            }
        }
    }
    Ok(())
}

/// Returns the error unless it is a refusal by the machine's daemon that would be repeated.
pub fn unless_refused(error: ClientError) -> Result<(), ClientError> {
    if is_passing(error.kind()) { Err(error) } else { Ok(()) }
}

/// Reports whether a call that failed with this kind of error may succeed later; `None` if it got no answer.
pub const fn is_passing(kind: Option<ErrorKind>) -> bool {
    matches!(kind, None | Some(ErrorKind::ShuttingDown | ErrorKind::TooManyRequests))
}

/// Acknowledges the machine's notices of ended tasks, which this daemon reports itself. No other client does so.
pub async fn forget_notices(bridge: &Bridge, origin: &Origin) {
    let params =
        InboxAckParams { session: origin.session.clone(), upto: ALL_NOTICES, ..InboxAckParams::default() };
    // Remaining notices are removed with the session.
    if let Err(error) = bridge.call::<InboxAck>(&params).await {
        tracing::debug!(%error, "notices on another machine not acknowledged");
    }
}

/// Ends this instance's tasks on a machine, if any are left, and removes all their data.
///
/// # Errors
/// They were not ended.
pub async fn end_session(bridge: &Bridge, origin: &Origin) -> Result<(), ClientError> {
    let params = SessionEndParams { session: origin.session.clone() };
    let ended = bridge.wait::<SessionEnd>(&params).await.map(drop);
    ended.inspect_err(|error| tracing::warn!(%error, "the session on another machine was not ended"))
}

/// Returns the machine's tasks that were submitted by this instance; none if its daemon refuses to list them.
///
/// # Errors
/// They can't be listed now.
pub async fn leftover_tasks(bridge: &Bridge, origin: &Origin) -> Result<Vec<Task>, ClientError> {
    let session = Some(origin.session.clone());
    let mut params = ListParams { session, limit: Some(PAGE), ..ListParams::default() };
    let mut tasks = Vec::new();
    loop {
        let page = match bridge.call::<TaskList>(&params).await {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(%error, "tasks on another machine not listed");
                return unless_refused(error).map(|()| tasks);
            }
        };
        tasks.extend(page.tasks);
        params.after = page.next;
        if params.after.is_none() {
            return Ok(tasks);
        }
    }
}

/// Ends and removes tasks on a machine.
///
/// # Errors
/// No answer arrived, so tasks may remain. A refusal is logged, and is no error, as it would be repeated.
pub async fn end_tasks(bridge: &Bridge, origin: &Origin, tasks: &[TaskId]) -> Result<(), ClientError> {
    for part in tasks.chunks(PAGE) {
        tracing::info!(tasks = part.len(), "ending what nobody is waiting for on another machine");
        let Err(error) = end_together(bridge, part).await else { continue };
        unless_refused(error)?;
        // A task that is gone must not prevent the others from being ended.
        for task in part {
            if let Err(error) = end_together(bridge, std::slice::from_ref(task)).await {
                tracing::warn!(%task, %error, "a task on another machine not ended");
                unless_refused(error)?;
            }
        }
    }
    forget_notices(bridge, origin).await;
    Ok(())
}

async fn end_together(bridge: &Bridge, tasks: &[TaskId]) -> Result<(), ClientError> {
    let ids: Vec<TaskRef> = tasks.iter().map(|id| (*id).into()).collect();
    let cancel = CancelParams { ids: ids.clone(), ..CancelParams::default() };
    bridge.wait::<TaskCancel>(&cancel).await?;
    let clear = ClearParams { ids: Some(ids), ..ClearParams::default() };
    bridge.wait::<TaskClear>(&clear).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(state: &Path) -> Origin {
        Origin::new(state, Path::new("/run/bgd.sock"), "here", "far")
    }

    #[test]
    fn r145_next_daemon_does_not_take_another_machine_for_a_restarted_daemon() {
        let state = tempfile::tempdir().unwrap();
        let first = origin(state.path());
        first.remember().unwrap();
        first.note_there("one", "far.example");
        let next = origin(state.path());
        assert_eq!(next.seen_there().as_deref(), Some("one"));
        assert_eq!(next.host_before().as_deref(), Some("far.example"));
        assert_eq!(next.sessions(), "bgd:here");
        first.forget_there();
        assert_eq!((first.seen_there(), first.host_before()), (None, None));
        let next = origin(state.path());
        assert_eq!((next.seen_there(), next.host_before()), (None, None));
        assert!(next.has_been_there(), "its tasks may still be on either machine");
    }

    #[test]
    fn r145_changed_host_of_the_same_machine_is_noted() {
        let state = tempfile::tempdir().unwrap();
        let first = origin(state.path());
        first.note_there("one", "far");
        first.remember().unwrap();
        let next = origin(state.path());
        next.note_there("one", "far.example");
        assert_eq!(origin(state.path()).host_before().as_deref(), Some("far.example"));
    }

    #[test]
    fn r145_note_of_an_earlier_version_names_no_host() {
        let state = tempfile::tempdir().unwrap();
        let first = origin(state.path());
        first.remember().unwrap();
        fs::write(&first.note, "here\nearlier\nthere one\n").unwrap();
        let next = origin(state.path());
        assert_eq!((next.seen_there().as_deref(), next.host_before()), (Some("one"), None));
        assert_eq!(next.earlier(), ["earlier".to_owned()].into());
        next.drop_from_note("earlier");
        assert_eq!(fs::read_to_string(&first.note).unwrap(), "here\nthere one\n");
    }
}
