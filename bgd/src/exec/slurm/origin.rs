//! Identifies this daemon's jobs on a cluster, and tracks the jobs that it leaves there if it is killed: they keep
//! running. They have the name of the daemon's instance, so that the next daemon can cancel them with one command. A
//! note in the state folder records that there may be some, so that a daemon without such jobs asks no cluster.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use bgd_shared::replace::replace;
use bgd_shared::resources::Resources;
use serde::{Deserialize, Serialize};

use super::folder::WorkFolder;
use crate::os::files::{private_folder, remove_if_there};
use crate::remotes::{Shell, Slurm};

/// The folder of the notes, in the state folder.
const FOLDER: &str = "executors";

/// The prefix of the names of notes about clusters.
const KIND: &str = "slurm+";

/// The content of a note: how to find the remaining jobs and files, even if the cluster is no longer configured.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// The folder of the jobs' files.
    folder: Vec<u8>,
    /// How to reach the login node, if there is one.
    shell: Option<Shell>,
    /// Variables for Slurm's own commands.
    env: BTreeMap<String, String>,
}

/// The names of this daemon's jobs and notes for a cluster.
#[derive(Debug)]
pub struct Origin {
    /// The name of all its jobs on the cluster.
    pub job_name: String,
    note: PathBuf,
    prefix: String,
    shell: Option<Shell>,
    env: BTreeMap<String, String>,
}

/// An earlier daemon that may have left jobs and files.
#[derive(Debug)]
pub struct Earlier {
    pub job_name: String,
    note: PathBuf,
    folder: Option<WorkFolder>,
}

impl Origin {
    /// Names the daemon at this socket; `instance` is its current run, `state` its state folder.
    pub fn new(state: &Path, socket: &Path, instance: &str, executor: &str, slurm: &Slurm) -> Self {
        // Neither the names of executors nor those of instances contain `+` or `@`.
        let prefix = format!("{KIND}{executor}{}", of_socket(socket));
        let job_name = format!("bgd-{instance}-{executor}");
        let note = state.join(FOLDER).join(format!("{prefix}{job_name}"));
        Self { job_name, note, prefix, shell: slurm.shell.clone(), env: slurm.env.clone() }
    }

    /// Records that there may be jobs on the cluster, and where their files are.
    ///
    /// # Errors
    /// An error of the system, such as a full disk.
    pub fn remember(&self, folder: &Path) -> io::Result<()> {
        if self.note.exists() {
            return Ok(());
        }
        if let Some(parent) = self.note.parent() {
            private_folder(parent)?;
        }
        let folder = folder.as_os_str().as_bytes().to_vec();
        let note = Note { folder, shell: self.shell.clone(), env: self.env.clone() };
        // Variables may be confidential.
        let text = serde_json::to_vec(&note)?;
        replace(&self.note, 0o600, |file| file.write_all(&text))
    }

    /// Returns whether this very instance may have jobs on the cluster: jobs of an earlier daemon of the same
    /// durability, or jobs from before an upgrade.
    pub fn has_been_there(&self) -> bool {
        self.note.exists()
    }

    /// Returns these settings with the work folder of this very instance's jobs, if it may have left some in another one
    /// than the configured one. Jobs on another host are not followed: that host may be gone, and nothing would reach
    /// the configured one.
    pub fn left_settings(&self, configured: &Slurm) -> Option<Slurm> {
        let Note { folder, shell, .. } = read(&self.note)?;
        let host = |shell: Option<Shell>| shell.map(|shell| shell.host);
        if host(shell) != host(configured.shell.clone()) {
            return None;
        }
        let folder = PathBuf::from(std::ffi::OsString::from_vec(folder));
        // No damaged note can name a folder of something else.
        let parent = folder.parent().filter(|_| folder.file_name() == Some(self.job_name.as_ref()))?;
        let state = self.note.parent()?.parent()?;
        if configured.work_folder.as_deref().unwrap_or(state) == parent {
            return None;
        }
        let work_folder = (parent != state).then(|| parent.to_owned());
        Some(Slurm { work_folder, ..configured.clone() })
    }

    /// Records that nothing is left on the cluster.
    pub fn forget(&self) {
        remove(&self.note);
    }

    /// Returns the earlier daemons that may have left something on the cluster.
    pub fn earlier(&self) -> Vec<Earlier> {
        let entries = self.note.parent().and_then(|folder| fs::read_dir(folder).ok());
        let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
        paths
            .filter(|path| *path != self.note)
            .filter_map(|note| {
                let job_name = note.file_name()?.to_str()?.strip_prefix(&self.prefix)?.to_owned();
                let folder = read(&note).map(|note| note.folder);
                let folder = folder.map(|path| WorkFolder::new(std::ffi::OsString::from_vec(path).into()));
                // The folder of jobs has the same name as the jobs, so that no damaged note can name another folder.
                let folder = folder.filter(|folder| folder.path().file_name() == Some(job_name.as_ref()));
                Some(Earlier { job_name, note, folder })
            })
            .collect()
    }
}

impl Earlier {
    /// Returns its folder, if known.
    pub const fn folder(&self) -> Option<&WorkFolder> {
        self.folder.as_ref()
    }

    /// Removes its files, if they are in a folder that this machine shares with the nodes. Returns whether none is left.
    pub fn remove_files(&self) -> bool {
        let removed = self.folder.as_ref().map_or(Ok(()), WorkFolder::remove);
        if let Err(error) = &removed {
            tracing::warn!(%error, "files of an earlier daemon not removed");
        }
        removed.is_ok()
    }

    /// Removes the note about it.
    pub fn forget(&self) {
        remove(&self.note);
    }
}

/// Returns the clusters on which earlier daemons of this socket may have left jobs, except those that `is_known`
/// accepts: each with its settings from one of the notes, or `None` if that can't be read.
pub fn unknown(
    state: &Path,
    socket: &Path,
    is_known: impl Fn(&str) -> bool,
) -> BTreeMap<String, Option<Slurm>> {
    let entries = fs::read_dir(state.join(FOLDER)).into_iter().flatten().flatten();
    let mut found = BTreeMap::new();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(KIND));
        let Some((executor, _)) = name.and_then(|name| name.split_once(&of_socket(socket))) else { continue };
        if is_known(executor) {
            continue;
        }
        let slurm = read(&path).map(|Note { folder, shell, env }| Slurm {
            shell,
            resources: Resources::default(),
            time_limit_ms: None,
            env,
            work_folder: Path::new(std::ffi::OsStr::from_bytes(&folder)).parent().map(Path::to_owned),
        });
        let settings = found.entry(executor.to_owned()).or_default();
        if slurm.is_some() {
            *settings = slurm;
        }
    }
    found
}

fn of_socket(socket: &Path) -> String {
    format!("@{}@", socket.to_string_lossy().replace('/', "+"))
}

fn read(note: &Path) -> Option<Note> {
    serde_json::from_slice(&fs::read(note).ok()?).ok()
}

fn remove(note: &Path) {
    if let Err(error) = remove_if_there(note) {
        tracing::warn!(path = %note.display(), %error, "note not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slurm(host: Option<&str>, work_folder: Option<&Path>) -> Slurm {
        let shell = |host: &str| Shell {
            ssh: "ssh".into(),
            host: host.into(),
            connect_timeout: std::time::Duration::from_secs(30),
            bootstrap: false,
        };
        Slurm {
            shell: host.map(shell),
            resources: Resources::default(),
            time_limit_ms: None,
            env: BTreeMap::new(),
            work_folder: work_folder.map(Path::to_owned),
        }
    }

    #[test]
    fn r151_own_jobs_are_looked_for_where_they_were_submitted() {
        let home = tempfile::tempdir().unwrap();
        let origin = |slurm: &Slurm| Origin::new(home.path(), Path::new("/run/bgd.sock"), "a1", "hpc", slurm);
        let all = [
            slurm(None, None),
            slurm(None, Some(Path::new("/shared"))),
            slurm(Some("login"), Some(Path::new("/shared"))),
            slurm(Some("login"), Some(Path::new("/other"))),
            slurm(Some("new"), Some(Path::new("/other"))),
        ];
        for before in &all {
            let old = origin(before);
            old.remember(&before.work_folder.as_deref().unwrap_or(home.path()).join(&old.job_name)).unwrap();
            for now in &all {
                let left = origin(now).left_settings(now);
                // A changed host may be gone.
                let is_followed = before != now && before.shell == now.shell;
                assert_eq!(left.as_ref(), is_followed.then_some(before), "{before:?} {now:?}");
            }
            old.forget();
            assert_eq!(origin(before).left_settings(&all[4]), None);
        }
        // A damaged note names no folder.
        let old = origin(&all[1]);
        old.remember(Path::new("/etc")).unwrap();
        assert_eq!(old.left_settings(&all[0]), None);
    }

    #[test]
    fn r151_next_daemon_finds_jobs_and_files_of_a_killed_one() {
        let home = tempfile::tempdir().unwrap();
        let slurm = slurm(Some("login"), Some(home.path()));
        let socket = Path::new("/run/bgd.sock");
        let origin = |instance, executor| Origin::new(home.path(), socket, instance, executor, &slurm);
        let (old, new) = (origin("a1", "hpc"), origin("b2", "hpc"));
        let folder = WorkFolder::new(home.path().join(&old.job_name));
        folder.prepare().unwrap();
        old.remember(folder.path()).unwrap();
        new.remember(Path::new("/")).unwrap();
        assert!(origin("b2", "hp").earlier().is_empty());
        assert!(unknown(home.path(), socket, |name| name == "hpc").is_empty());
        assert!(unknown(home.path(), Path::new("/run/other.sock"), |_| false).is_empty());
        let found = unknown(home.path(), socket, |_| false);
        assert_eq!(found["hpc"].as_ref().and_then(|slurm| slurm.shell.clone()), slurm.shell);
        let earlier = new.earlier();
        assert_eq!(earlier.iter().map(|left| &left.job_name).collect::<Vec<_>>(), [&old.job_name]);
        assert!(earlier[0].remove_files());
        earlier[0].forget();
        assert!(!folder.path().exists() && new.earlier().is_empty());
    }

    #[test]
    fn r151_damaged_notes_do_not_hide_intact_settings() {
        let home = tempfile::tempdir().unwrap();
        let slurm = Slurm {
            shell: None,
            resources: Resources::default(),
            time_limit_ms: None,
            env: BTreeMap::from([("SLURM_CONF".into(), "/etc/other.conf".into())]),
            work_folder: None,
        };
        let socket = Path::new("/run/bgd.sock");
        let origin = |instance| Origin::new(home.path(), socket, instance, "hpc", &slurm);
        origin("c").remember(Path::new("/shared/bgd")).unwrap();
        for instance in ["a", "b", "d", "e", "f", "g"] {
            fs::write(origin(instance).note, "{").unwrap();
        }
        let found = unknown(home.path(), socket, |_| false);
        assert_eq!(found["hpc"].as_ref().map(|slurm| &slurm.env), Some(&slurm.env));
        fs::remove_file(origin("c").note).unwrap();
        assert!(unknown(home.path(), socket, |_| false)["hpc"].is_none());
    }
}
