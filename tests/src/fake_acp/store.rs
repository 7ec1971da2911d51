//! The conversations on disk: one file per session, so that another process can continue it and a test can
//! delete it. Nothing may be cached in memory, because the files are authoritative.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

pub struct Store {
    folder: PathBuf,
}

pub struct Conversation {
    pub cwd: String,
    /// Role (`user` or `agent`) and text.
    pub messages: Vec<(String, String)>,
}

impl Conversation {
    pub fn prompts(&self) -> Vec<&str> {
        let said = self.messages.iter().filter(|(role, _)| role == "user");
        said.map(|(_, text)| text.as_str()).collect()
    }
}

impl Store {
    pub fn open(home: &Path) -> io::Result<Self> {
        let folder = home.join("sessions");
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// Creates a session and returns its id. Ids begin with the time, so that they sort, and are never reused.
    pub fn create(&self, cwd: &str) -> io::Result<String> {
        loop {
            let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
            let id = format!("fake-{nanos:020x}-{}", process::id());
            match OpenOptions::new().write(true).create_new(true).open(self.folder.join(&id)) {
                Ok(mut file) => {
                    file.write_all(format!("{}\n", json!({ "cwd": cwd })).as_bytes())?;
                    return Ok(id);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads a session. `None` if it does not exist.
    pub fn read(&self, id: &str) -> Option<Conversation> {
        let text = fs::read_to_string(self.path(id)?).ok()?;
        let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let cwd = lines.next()?["cwd"].as_str()?.to_owned();
        let messages = lines
            .filter_map(|line| Some((line["role"].as_str()?.to_owned(), line["text"].as_str()?.to_owned())));
        Some(Conversation { cwd, messages: messages.collect() })
    }

    /// Appends to a session. Does not recreate one that was deleted meanwhile.
    pub fn append(&self, id: &str, role: &str, text: &str) {
        let line = format!("{}\n", json!({ "role": role, "text": text }));
        let file = self.path(id).and_then(|path| OpenOptions::new().append(true).open(path).ok());
        if let Some(mut file) = file {
            file.write_all(line.as_bytes()).expect("a session can be written");
        }
    }

    /// Returns the ids of all sessions, oldest first.
    pub fn ids(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut ids: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        ids.sort();
        ids
    }

    /// Returns the file of a session. The id comes from the client, so it must not lead out of the folder.
    fn path(&self, id: &str) -> Option<PathBuf> {
        let is_name = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_name.then(|| self.folder.join(id))
    }
}
