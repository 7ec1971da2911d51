//! The folder shared by this machine and the cluster's nodes: the script, the files of the tasks, their outputs, and
//! the notes of the jobs. Everything here may block, as the folder may be on a slow or silent file server.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::replace::replace;
use bgd_shared::request::Stream;
use bgd_shared::time::Timestamp;

use super::script::{JOB, NOTE_BYTES, NoteKind, Noted};
use crate::os::files::{private_folder, remove_if_there};

/// The maximum number of notes read at once.
pub const NOTES: usize = 10_000;

/// The pause before a removal is tried again that a job's note has prevented.
const NOTED_WITHIN: Duration = Duration::from_millis(100);

/// The folder of a daemon instance for one cluster.
#[derive(Clone, Debug)]
pub struct WorkFolder(PathBuf);

/// A note of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The name of its file.
    pub name: String,
    /// Its content.
    pub text: Vec<u8>,
    /// When it was written, by the clock of the file server.
    pub at: Option<Timestamp>,
}

/// The result of a look at the notes.
#[derive(Debug, Default)]
pub struct Scan {
    /// The new notes, starts first.
    pub notes: Vec<Note>,
    /// The names of notes that could not be read, with the reasons.
    pub unread: Vec<(String, String)>,
    /// Whether there are more notes.
    pub has_more: bool,
}

impl WorkFolder {
    /// Names the folder; nothing is created.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Creates the folder with the script, unless it exists.
    ///
    /// # Errors
    /// An error of the system, such as a full disk.
    pub fn prepare(&self) -> io::Result<()> {
        for folder in [self.notes(), self.0.join("jobs"), self.0.join("output")] {
            private_folder(folder)?;
        }
        if !self.script().exists() {
            replace(&self.script(), 0o600, |file| file.write_all(JOB.as_bytes()))?;
        }
        Ok(())
    }

    /// Returns another folder beside this one, to test whether files can be written without touching files in use.
    pub fn for_check(&self) -> Self {
        let mut path = self.0.clone().into_os_string();
        path.push(".check");
        Self(path.into())
    }

    /// Returns the path of the script of all jobs.
    pub fn script(&self) -> PathBuf {
        self.0.join("job.sh")
    }

    pub fn notes(&self) -> PathBuf {
        self.0.join("notes")
    }

    /// Returns the folder for the files of a submission.
    pub fn jobs(&self, key: &str) -> PathBuf {
        self.0.join("jobs").join(key)
    }

    /// Creates the folder for the files of a submission.
    ///
    /// # Errors
    /// An error of the system, such as a full disk.
    pub fn create_jobs(&self, key: &str) -> io::Result<()> {
        private_folder(self.jobs(key))
    }

    /// Writes the file of a job.
    ///
    /// # Errors
    /// An error of the system, such as a full disk.
    pub fn write_job(&self, key: &str, index: u32, text: &[u8]) -> io::Result<()> {
        write(&self.jobs(key).join(index.to_string()), text)
    }

    /// Returns the file for a task's output.
    pub fn output(&self, task: TaskId, stream: Stream) -> PathBuf {
        self.0.join("output").join(format!("{task}.{}", stream.suffix()))
    }

    /// Creates the file for a task's output, unless an earlier run has created it.
    ///
    /// # Errors
    /// An error of the system, such as a full disk.
    pub fn create_output(&self, task: TaskId, stream: Stream) -> io::Result<PathBuf> {
        let path = self.output(task, stream);
        OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
        Ok(path)
    }

    /// Opens a task's output once to refresh its size: some file systems update the size only when a file is opened.
    pub fn refresh(&self, task: TaskId, split: bool) {
        for stream in Stream::of(split) {
            let _ = fs::File::open(self.output(task, stream));
        }
    }

    pub fn remove_output(&self, task: TaskId) {
        for stream in Stream::of(true) {
            remove(&self.output(task, stream));
        }
    }

    /// Reads notes that are not in `seen`, at most [`NOTES`], and adds their names to it; removes those of notes that are
    /// gone. There are none if the folder does not exist.
    ///
    /// # Errors
    /// An error of the system. Then nothing was read.
    pub fn scan(&self, seen: &mut HashSet<String>) -> io::Result<Scan> {
        let entries = match fs::read_dir(self.notes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Scan::default()),
            other => other?,
        };
        let mut names = HashSet::with_capacity(seen.len());
        for entry in entries {
            names.extend(entry?.file_name().into_string().ok());
        }
        seen.retain(|name| names.contains(name));
        names.retain(|name| !seen.contains(name) && Noted::parse(name).is_some());
        let mut scan = Scan::default();
        for name in names {
            if scan.notes.len() >= NOTES {
                scan.has_more = true;
                break;
            }
            match read(&self.notes().join(&name)) {
                Ok((text, at)) => {
                    seen.insert(name.clone());
                    scan.notes.push(Note { name, text, at });
                }
                // The note was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => scan.unread.push((name, error.to_string())),
            }
        }
        in_order(&mut scan.notes);
        Ok(scan)
    }

    /// Removes the file of a job, and its notes up to this restart.
    pub fn remove_job(&self, key: &str, index: u32, restarts: u32) {
        remove(&self.jobs(key).join(index.to_string()));
        // Fails as long as other jobs of the submission need the folder.
        let _ = fs::remove_dir(self.jobs(key));
        for restarts in 0..=restarts {
            for kind in NoteKind::ALL {
                remove(&self.notes().join(Noted { batch: key, index, restarts, kind }.to_string()));
            }
        }
    }

    /// Removes the files of a submission. A job that needs them afterwards ends before it begins.
    pub fn remove_jobs(&self, key: &str) {
        let _ = fs::remove_dir_all(self.jobs(key));
    }

    /// Removes the folder with everything in it.
    ///
    /// # Errors
    /// An error of the system.
    pub fn remove(&self) -> io::Result<()> {
        let mut tries_left = 5;
        loop {
            match fs::remove_dir_all(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                // A job that is just ending has written its note meanwhile.
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && tries_left > 0 => {
                    tries_left -= 1;
                    std::thread::sleep(NOTED_WITHIN);
                }
                other => return other,
            }
        }
    }
}

/// Sorts notes in the order in which a job writes its own.
pub fn in_order(notes: &mut [Note]) {
    notes.sort_by_cached_key(|note| {
        Noted::parse(&note.name).map(|noted| (noted.restarts, noted.kind != NoteKind::Start))
    });
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)
}

fn read(path: &Path) -> io::Result<(Vec<u8>, Option<Timestamp>)> {
    let file = fs::File::open(path)?;
    let written = file.metadata()?.modified()?.duration_since(std::time::UNIX_EPOCH).ok();
    let at = written.and_then(|at| i64::try_from(at.as_millis()).ok()).map(Timestamp::from_unix_ms);
    let mut text = Vec::new();
    file.take(NOTE_BYTES as u64).read_to_end(&mut text)?;
    Ok((text, at))
}

fn remove(path: &Path) {
    if let Err(error) = remove_if_there(path) {
        tracing::warn!(path = %path.display(), %error, "file not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r147_notes_are_read_once_with_starts_first() {
        let home = tempfile::tempdir().unwrap();
        let folder = WorkFolder::new(home.path().join("work"));
        folder.prepare().unwrap();
        for name in ["k.0.0.exit", "k.0.0.start", ".k.0.0", "other"] {
            fs::write(folder.notes().join(name), "x").unwrap();
        }
        let mut seen = HashSet::new();
        let names = |scan: Scan| scan.notes.into_iter().map(|note| note.name).collect::<Vec<_>>();
        assert_eq!(names(folder.scan(&mut seen).unwrap()), ["k.0.0.start", "k.0.0.exit"]);
        assert!(folder.scan(&mut seen).unwrap().notes.is_empty());
        folder.remove_job("k", 0, 0);
        assert_eq!(fs::read_dir(folder.notes()).unwrap().count(), 2);
        assert_eq!(seen.len(), 2);
        assert!(folder.scan(&mut seen).unwrap().notes.is_empty());
        assert!(seen.is_empty(), "their names need no room");
        folder.remove().unwrap();
        folder.remove().unwrap();
    }
    #[test]
    fn r151_unreadable_notes_are_distinguished_from_missing_ones() {
        let home = tempfile::tempdir().unwrap();
        let folder = WorkFolder::new(home.path().join("work"));
        let mut seen = HashSet::new();
        let nothing = folder.scan(&mut seen).unwrap();
        assert!(nothing.notes.is_empty() && nothing.unread.is_empty() && !nothing.has_more);
        folder.prepare().unwrap();
        fs::write(folder.notes().join("k.0.0.start"), "n1 7\n").unwrap();
        // A folder can't be read as a file, and a dangling link is not a file.
        fs::create_dir(folder.notes().join("k.0.0.exit")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.notes().join("k.1.0.exit")).unwrap();
        let scan = folder.scan(&mut seen).unwrap();
        assert_eq!((scan.notes.len(), &*scan.unread[0].0, scan.unread.len()), (1, "k.0.0.exit", 1));
        assert!(!seen.contains("k.0.0.exit"), "it is read once that is possible");
        fs::remove_dir_all(folder.notes()).unwrap();
        fs::write(folder.notes(), "").unwrap();
        assert!(folder.scan(&mut seen).is_err());
    }
}
