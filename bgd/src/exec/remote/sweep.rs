//! What this daemon leaves on a machine if it is killed: its tasks there go on. A note in the state folder names the
//! instances that may have tasks there, so that the next daemon ends exactly those, and a daemon without such tasks
//! connects to nobody.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bgd_shared::request::{InboxAck, InboxAckParams, SessionEnd, SessionEndParams};

use super::bridge::Bridge;

/// A number that no notice reaches, and that every JSON reader takes as it is.
const ALL_NOTICES: u64 = (1 << 53) - 1;

/// How this daemon is known on another machine.
#[derive(Debug)]
pub struct Origin {
    /// The tag of its tasks there: this machine and the daemon's socket, for people.
    pub tag: String,
    /// The parent session of the tasks of this instance.
    pub session: String,
    instance: String,
    note: PathBuf,
}

impl Origin {
    /// Names the daemon of this machine at this socket; `instance` is its current run, `state` its state folder.
    pub fn new(state: &Path, socket: &Path, instance: &str, executor: &str) -> Self {
        let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let tag = format!("bgd:{}:{}", machine.trim(), socket.display());
        // A socket's path fits into a file's name: it has 107 bytes at most.
        let name = format!("{executor}@{}", socket.to_string_lossy().replace('/', "+"));
        let note = state.join("executors").join(name);
        Self { tag, session: session_of(instance), instance: instance.to_owned(), note }
    }

    /// Notes that this instance may have tasks on the machine.
    ///
    /// # Errors
    /// The system's, such as a full disk.
    pub fn remember(&self) -> io::Result<()> {
        if self.instances().contains(&self.instance) {
            return Ok(());
        }
        if let Some(folder) = self.note.parent() {
            DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
        }
        let mut note = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&self.note)?;
        note.write_all(format!("{}\n", self.instance).as_bytes())
    }

    /// Notes that this instance has no task left on the machine.
    pub fn forget(&self) {
        self.drop_from_note(|instance| instance == self.instance);
    }

    /// Whether an instance may have left tasks on the machine.
    pub fn is_remembered(&self) -> bool {
        !self.instances().is_empty()
    }

    /// The instances that may have tasks on the machine.
    fn instances(&self) -> BTreeSet<String> {
        let text = fs::read_to_string(&self.note).unwrap_or_default();
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    fn drop_from_note(&self, is_dropped: impl Fn(&str) -> bool) {
        let left: Vec<String> = self.instances().into_iter().filter(|one| !is_dropped(one)).collect();
        let written = if left.is_empty() {
            fs::remove_file(&self.note)
        } else {
            let new = self.note.with_extension("new");
            fs::write(&new, left.join("\n") + "\n").and_then(|()| fs::rename(new, &self.note))
        };
        match written {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.note.display(), %error, "note not changed");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// Returns the names of machines on which earlier daemons of this socket may have left tasks, as far as the filter does
/// not know them, with the parent sessions of those tasks.
pub fn unknown(
    state: &Path,
    socket: &Path,
    is_known: impl Fn(&str) -> bool,
) -> Vec<(String, BTreeSet<String>)> {
    let end = format!("@{}", socket.to_string_lossy().replace('/', "+"));
    let entries = fs::read_dir(state.join("executors")).into_iter().flatten().flatten();
    let of_note = |note: PathBuf| {
        let name = note.file_name()?.to_str()?.strip_suffix(&end)?.to_owned();
        let text = fs::read_to_string(&note).ok().filter(|_| !is_known(&name))?;
        Some((name, text.lines().filter(|line| !line.is_empty()).map(session_of).collect()))
    };
    entries.filter_map(|entry| of_note(entry.path())).collect()
}

/// The parent session of an instance's tasks. Instances have random names, so no other daemon has it.
fn session_of(instance: &str) -> String {
    format!("bgd:{instance}")
}

/// Ends the tasks that earlier instances of this daemon have left on a machine.
pub async fn end_earlier(bridge: &Bridge, origin: &Origin) {
    for instance in origin.instances().into_iter().filter(|instance| *instance != origin.instance) {
        tracing::info!(instance, "what an earlier daemon has left on another machine is ended");
        match bridge.wait::<SessionEnd>(&SessionEndParams { session: session_of(&instance) }).await {
            Ok(_) => origin.drop_from_note(|noted| noted == instance),
            Err(error) => tracing::warn!(%error, "tasks of an earlier daemon not ended"),
        }
    }
}

/// Acknowledges the notices there of ended tasks, whose ends are told here. Nobody else would ever do so.
pub async fn forget_notices(bridge: &Bridge, origin: &Origin) {
    let params = InboxAckParams { session: origin.session.clone(), upto: ALL_NOTICES, instance: None };
    // What is left goes with the session.
    if let Err(error) = bridge.call::<InboxAck>(&params).await {
        tracing::debug!(%error, "notices on another machine not acknowledged");
    }
}

/// Ends this instance's tasks on a machine, if any are left, and removes everything of theirs.
pub async fn end_session(bridge: &Bridge, origin: &Origin) {
    let params = SessionEndParams { session: origin.session.clone() };
    if let Err(error) = bridge.wait::<SessionEnd>(&params).await {
        tracing::warn!(%error, "the session on another machine was not ended");
    }
}
