//! How this daemon's jobs are told from others, and what it leaves on a cluster if it is killed: its jobs go on. They
//! carry the name of its instance, so that the next daemon cancels them by one command. A note in the state folder says
//! that there may be some, so that a daemon without such jobs asks nobody.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::folder::WorkFolder;

/// How this daemon is known on a cluster.
#[derive(Debug)]
pub struct Origin {
    /// The name of all its jobs there.
    pub job_name: String,
    note: PathBuf,
    prefix: String,
}

/// What an earlier daemon may have left.
#[derive(Debug)]
pub struct Earlier {
    /// The name of its jobs.
    pub job_name: String,
    note: PathBuf,
    folder: Option<WorkFolder>,
}

impl Origin {
    /// Names the daemon at this socket; `instance` is its current run, `state` its state folder.
    pub fn new(state: &Path, socket: &Path, instance: &str, executor: &str) -> Self {
        // Neither the names of executors nor instances have such characters.
        let prefix = format!("slurm+{executor}@{}@", socket.to_string_lossy().replace('/', "+"));
        let job_name = format!("bgd-{instance}-{executor}");
        let note = state.join("executors").join(format!("{prefix}{job_name}"));
        Self { job_name, note, prefix }
    }

    /// Notes that there may be jobs on the cluster, and where their files are.
    ///
    /// # Errors
    /// The system's, such as a full disk.
    pub fn remember(&self, folder: &Path) -> io::Result<()> {
        if self.note.exists() {
            return Ok(());
        }
        if let Some(parent) = self.note.parent() {
            DirBuilder::new().mode(0o700).recursive(true).create(parent)?;
        }
        fs::write(&self.note, folder.as_os_str().as_bytes())
    }

    /// Notes that there is nothing left on the cluster.
    pub fn forget(&self) {
        remove(&self.note);
    }

    /// Returns what earlier daemons may have left on the cluster.
    pub fn earlier(&self) -> Vec<Earlier> {
        let entries = self.note.parent().and_then(|folder| fs::read_dir(folder).ok());
        let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
        paths
            .filter(|path| *path != self.note)
            .filter_map(|note| {
                let job_name = note.file_name()?.to_str()?.strip_prefix(&self.prefix)?.to_owned();
                let folder = fs::read(&note).ok().filter(|path| !path.is_empty());
                let folder = folder.map(|path| WorkFolder::new(std::ffi::OsString::from_vec(path).into()));
                // The folder of jobs has their name, so that no damaged note can name another one.
                let folder = folder.filter(|folder| folder.path().file_name() == Some(job_name.as_ref()));
                Some(Earlier { job_name, note, folder })
            })
            .collect()
    }
}

impl Earlier {
    /// Its folder, as far as it is known.
    pub const fn folder(&self) -> Option<&WorkFolder> {
        self.folder.as_ref()
    }

    /// Removes its files, which are in a folder that this machine shares with the nodes.
    pub fn remove_files(&self) {
        if let Some(Err(error)) = self.folder.as_ref().map(WorkFolder::remove) {
            tracing::warn!(%error, "files of an earlier daemon not removed");
        }
    }

    /// Removes the note of it.
    pub fn forget(&self) {
        remove(&self.note);
    }
}

fn remove(note: &Path) {
    match fs::remove_file(note) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %note.display(), %error, "note not removed");
        }
        Ok(()) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r151_the_next_daemon_finds_what_a_killed_one_has_left() {
        let home = tempfile::tempdir().unwrap();
        let origin =
            |instance, executor| Origin::new(home.path(), Path::new("/run/bgd.sock"), instance, executor);
        let (old, new) = (origin("a1", "hpc"), origin("b2", "hpc"));
        let folder = WorkFolder::new(home.path().join(&old.job_name));
        folder.prepare().unwrap();
        old.remember(folder.path()).unwrap();
        new.remember(Path::new("/")).unwrap();
        assert!(origin("b2", "hp").earlier().is_empty());
        let earlier = new.earlier();
        assert_eq!(earlier.iter().map(|left| &left.job_name).collect::<Vec<_>>(), [&old.job_name]);
        earlier[0].remove_files();
        earlier[0].forget();
        assert!(!folder.path().exists() && new.earlier().is_empty());
    }
}
