//! What this daemon leaves on a machine if it is killed: its tasks there go on. They carry its name, so that the next
//! daemon finds and ends them. A note in the state folder says that there may be some, so that a daemon without such
//! tasks connects to nobody.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use bgd_shared::limits;
use bgd_shared::request::{ListParams, SessionEnd, SessionEndParams, TaskList};

use super::bridge::Bridge;

/// How this daemon is known on another machine.
#[derive(Debug)]
pub struct Origin {
    /// The tag of all tasks of this machine's daemon at this socket, whichever instance submits them.
    pub tag: String,
    /// The parent session of the tasks of this instance.
    pub session: String,
    note: PathBuf,
}

impl Origin {
    /// Names the daemon of this machine at this socket; `instance` is its current run, `state` its state folder.
    pub fn new(state: &Path, socket: &Path, instance: &str, executor: &str) -> Self {
        let machine = fs::read_to_string("/etc/machine-id").or_else(|_| fs::read_to_string("/etc/hostname"));
        let machine = machine.unwrap_or_default();
        let tag = format!("bgd:{}:{}", machine.trim(), socket.display());
        let session = format!("{tag}:{instance}");
        // A socket's path fits into a file's name: it has 107 bytes at most.
        let name = format!("{executor}@{}", socket.to_string_lossy().replace('/', "+"));
        Self { tag, session, note: state.join("executors").join(name) }
    }

    /// Notes that there may be tasks on the machine.
    ///
    /// # Errors
    /// The system's, such as a full disk.
    pub fn remember(&self) -> io::Result<()> {
        if let Some(folder) = self.note.parent() {
            DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
        }
        fs::OpenOptions::new().write(true).create(true).truncate(false).open(&self.note).map(drop)
    }

    /// Notes that there is no task left on the machine.
    pub fn forget(&self) {
        match fs::remove_file(&self.note) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.note.display(), %error, "note not removed");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Whether an earlier daemon may have left tasks on the machine.
    pub fn is_remembered(&self) -> bool {
        self.note.exists()
    }
}

/// Ends the tasks that earlier instances of this daemon have left on a machine.
pub async fn end_earlier(bridge: &Bridge, origin: &Origin) {
    let mut sessions = BTreeSet::new();
    let mut after = None;
    loop {
        let params = ListParams {
            tags: vec![origin.tag.clone()],
            limit: Some(limits::LIST_PAGE),
            after,
            ..ListParams::default()
        };
        let page = match bridge.call::<TaskList>(&params).await {
            Ok(page) => page,
            Err(error) => return tracing::warn!(%error, "tasks of earlier daemons not looked for"),
        };
        let others = page.tasks.into_iter().filter_map(|task| task.session);
        sessions.extend(others.filter(|session| *session != origin.session));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    for session in sessions {
        tracing::info!(session, "tasks of an earlier daemon are ended");
        if let Err(error) = bridge.wait::<SessionEnd>(&SessionEndParams { session }).await {
            tracing::warn!(%error, "tasks of an earlier daemon not ended");
        }
    }
}

/// Ends this instance's tasks on a machine, if any are left, and removes everything of theirs.
pub async fn end_session(bridge: &Bridge, origin: &Origin) {
    let params = SessionEndParams { session: origin.session.clone() };
    if let Err(error) = bridge.wait::<SessionEnd>(&params).await {
        tracing::warn!(%error, "the session on another machine was not ended");
    }
}
