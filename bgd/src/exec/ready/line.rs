//! Whether a line of the output matches. Each byte is read once, from where the process has begun to write.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::ready::{LineSearch, line_regex};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

use crate::exec::output::OutputFiles;
use crate::exec::workers::Workers;
use crate::os::watch::{self, Changes};

/// The most bytes that are searched at once: other jobs of the worker must not wait for long.
const CHUNK: u64 = 256 * 1024;

/// How often it is looked for more where the system tells of no writes.
const TICK: Duration = Duration::from_millis(250);

/// How long it rests after each look, so that one who writes byte by byte does not have it look at each.
const REST: Duration = Duration::from_millis(5);

/// The outputs of a process.
#[derive(Debug)]
pub struct Streams(Vec<Stream>);

#[derive(Debug)]
struct Stream {
    path: PathBuf,
    /// How far it was read.
    offset: u64,
    /// What searches it, once it was looked at.
    search: Option<LineSearch>,
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// A line that matches.
    Line,
    /// None yet, and there is more to be read.
    More,
    /// None yet.
    Nothing,
}

impl Streams {
    /// These files, from these sizes on.
    pub fn new(files: &OutputFiles, sizes: [u64; 2]) -> Self {
        let stream = |(path, offset): (&Path, u64)| Stream { path: path.into(), offset, search: None };
        Self(files.paths().zip(sizes).map(stream).collect())
    }

    fn look(&mut self, pattern: &str) -> io::Result<Found> {
        let mut found = Found::Nothing;
        for stream in &mut self.0 {
            match stream.look(pattern)? {
                Found::Line => return Ok(Found::Line),
                Found::More => found = Found::More,
                Found::Nothing => {}
            }
        }
        Ok(found)
    }
}

impl Stream {
    /// Searches what has come since the last look.
    fn look(&mut self, pattern: &str) -> io::Result<Found> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.take(CHUNK).read_to_end(&mut bytes)?;
        self.offset += bytes.len() as u64;
        let search = match &mut self.search {
            Some(search) => search,
            None => self.search.insert(LineSearch::new(line_regex(pattern).map_err(io::Error::other)?)),
        };
        let is_found = search.read(&bytes).is_some();
        Ok(match (is_found, bytes.len() as u64 == CHUNK) {
            (true, _) => Found::Line,
            (false, true) => Found::More,
            (false, false) => Found::Nothing,
        })
    }
}

/// Waits until a line matches.
pub async fn until_found(pattern: &str, mut streams: Streams, workers: &Workers) {
    let pattern = Arc::<str>::from(pattern);
    let changes = changes_of(&streams).inspect_err(|error| tracing::debug!(%error, "output is looked at"));
    let changes = changes.ok();
    loop {
        let wanted = Arc::clone(&pattern);
        let looked = workers.run(move || (streams.look(&wanted), streams)).await;
        let Some((found, back)) = looked else { return std::future::pending().await };
        streams = back;
        match found {
            Ok(Found::Line) => return,
            Ok(Found::More) => continue,
            Ok(Found::Nothing) => {}
            // Somebody has removed it; it does not come back.
            Err(error) => {
                tracing::warn!(%error, "the output of a task can't be searched");
                return std::future::pending().await;
            }
        }
        match &changes {
            Some(changes) => {
                tokio::time::sleep(REST).await;
                wait_for_change(changes).await;
            }
            None => tokio::time::sleep(TICK).await,
        }
    }
}

fn changes_of(streams: &Streams) -> io::Result<AsyncFd<Changes>> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    for stream in &streams.0 {
        inotify.add_watch(&stream.path, AddWatchFlags::IN_MODIFY)?;
    }
    watch::changes(inotify)
}

/// Waits for a write, also for one that was before.
async fn wait_for_change(changes: &AsyncFd<Changes>) {
    let Ok(mut ready) = changes.readable().await else { return };
    while changes.get_ref().0.read_events().is_ok() {}
    ready.clear_ready();
}
