//! Waits for a matching line in the output. Reads each byte once, from the offset at which the process began to write.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::ready::{LineSearch, line_regex};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

use super::looks::Looks;
use super::pauses::Pauses;
use crate::exec::output::OutputFiles;
use crate::exec::threads::workers::Workers;
use crate::os::watch::{self, Changes};

/// The maximum number of bytes searched at once, so that other jobs of the worker do not wait for long.
const CHUNK: u64 = 256 * 1024;

/// The poll interval where inotify is not available.
const TICK: Duration = Duration::from_millis(250);

/// The pause after each look, so that a process that writes byte by byte does not cause a look per byte.
const REST: Duration = Duration::from_millis(5);

/// The output files of a process, and how far they have been searched.
#[derive(Debug)]
pub struct Streams(Vec<Stream>);

#[derive(Debug)]
struct Stream {
    path: PathBuf,
    /// The offset up to which the file was read.
    offset: u64,
    /// The size of the file at the last look.
    size: u64,
    /// The state of the search; `None` before the first look.
    search: Option<LineSearch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// A matching line.
    Line,
    /// No match yet, and there is more to read.
    More,
    /// No match yet.
    Nothing,
}

impl Streams {
    /// Creates a search of these files that starts at these offsets.
    pub fn new(files: &OutputFiles, sizes: [u64; 2]) -> Self {
        let stream =
            |(path, offset): (&Path, u64)| Stream { path: path.into(), offset, size: 0, search: None };
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
    /// Searches the bytes written since the last look. Starts over if the file was truncated.
    fn look(&mut self, pattern: &str) -> io::Result<Found> {
        let mut file = File::open(&self.path)?;
        let before = std::mem::replace(&mut self.size, file.metadata()?.len());
        if self.size < before {
            (self.offset, self.search) = (0, None);
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.take(CHUNK).read_to_end(&mut bytes)?;
        self.offset += bytes.len() as u64;
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let search = match &mut self.search {
            Some(search) => search,
            None => self.search.insert(LineSearch::new(line_regex(pattern).map_err(invalid)?)),
        };
        let is_found = search.read(&bytes).is_some();
        Ok(match (is_found, bytes.len() as u64 == CHUNK) {
            (true, _) => Found::Line,
            (false, true) => Found::More,
            (false, false) => Found::Nothing,
        })
    }
}

/// The disk of the output files.
#[derive(Clone, Copy, Debug)]
enum Disk {
    /// That of the daemon's own folder.
    Own,
    /// Any other, which may hang.
    Foreign,
}

/// Waits until a line matches. Reports to `looks` whenever everything written was searched in vain.
pub async fn until_found(pattern: &str, streams: Streams, workers: &Workers, looks: &Looks) {
    let changes = changes_of(&streams).inspect_err(|error| tracing::debug!(%error, "output is polled"));
    look_until_found(pattern, streams, (workers, Disk::Own), (changes.ok(), looks)).await;
}

/// Like [`until_found`], for files that other machines write, which cause no events.
pub async fn until_found_from_afar(pattern: &str, streams: Streams, workers: &Workers, looks: &Looks) {
    look_until_found(pattern, streams, (workers, Disk::Foreign), (None, looks)).await;
}

async fn look_until_found(
    pattern: &str,
    mut streams: Streams,
    (workers, disk): (&Workers, Disk),
    (changes, looks): (Option<AsyncFd<Changes>>, &Looks),
) {
    let pattern = Arc::<str>::from(pattern);
    let mut pauses = Pauses::new();
    loop {
        let begun = looks.begin();
        let wanted = Arc::clone(&pattern);
        let look = move || (streams.look(&wanted), streams);
        let found = match disk {
            Disk::Own => workers.run(look).await,
            Disk::Foreign => workers.ready_line(look).await,
        };
        let Some((found, back)) = found else { return looks.give_up().await };
        streams = back;
        match found {
            Ok(Found::Line) => return,
            Ok(Found::More) => continue,
            Ok(Found::Nothing) => {
                looks.note_vain(begun);
                pauses = Pauses::new();
            }
            Err(error) if is_final(&error, changes.is_some()) => {
                tracing::warn!(%error, "the output of a task can't be searched");
                return looks.give_up().await;
            }
            // The file may be on a server that can't be reached for a moment.
            Err(error) => {
                tracing::debug!(%error, "the output of a task can't be searched at the moment");
                pauses.pause_unless_due(looks).await;
                continue;
            }
        }
        tokio::select! {
            () = until_changed(changes.as_ref()) => {}
            () = looks.until_due() => {}
        }
    }
}

/// Waits until there may be more to search.
async fn until_changed(changes: Option<&AsyncFd<Changes>>) {
    match changes {
        Some(changes) => {
            tokio::time::sleep(REST).await;
            wait_for_change(changes).await;
        }
        None => tokio::time::sleep(TICK).await,
    }
}

/// Reports whether another look is pointless: the pattern is invalid, or the file was removed although there are events
/// for it. On another machine's disk a file may seem to be missing.
fn is_final(error: &io::Error, has_events: bool) -> bool {
    error.kind() == io::ErrorKind::InvalidInput || has_events && error.kind() == io::ErrorKind::NotFound
}

fn changes_of(streams: &Streams) -> io::Result<AsyncFd<Changes>> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    for stream in &streams.0 {
        inotify.add_watch(&stream.path, AddWatchFlags::IN_MODIFY)?;
    }
    watch::changes(inotify)
}

/// Waits for a write, including one before this call.
async fn wait_for_change(changes: &AsyncFd<Changes>) {
    let Ok(mut ready) = changes.readable().await else { return };
    while changes.get_ref().0.read_events().is_ok() {}
    ready.clear_ready();
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Mutex;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use tokio::time::timeout;

    use super::*;
    use crate::exec::threads::workers::Job;

    #[tokio::test]
    async fn r110_temporarily_unreadable_output_is_searched_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, next) = (folder.path().join("output"), folder.path().join("next"));
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        fs::write(&next, "starting\nup\n").unwrap();
        let streams = Streams(vec![Stream { path: path.clone(), offset: 0, size: 0, search: None }]);
        let mended = tokio::task::spawn_blocking(move || {
            // Opens as soon as a look does; the look then fails, as seeking in a pipe is impossible.
            let _writer = File::options().write(true).open(&path).unwrap();
            fs::rename(&next, &path).unwrap();
        });
        let workers = Workers::start().unwrap();
        let looks = Looks::default();
        let found = until_found_from_afar("up", streams, &workers, &looks);
        timeout(Duration::from_mins(1), found).await.expect("the line is found");
        mended.await.unwrap();
    }

    #[tokio::test]
    async fn outputs_on_hanging_disk_occupy_few_workers() {
        // Jobs that never end.
        let hung = Arc::new(Mutex::new(Vec::<Job>::new()));
        let all = Arc::clone(&hung);
        let workers = Workers::simulated(move |job| all.lock().unwrap().push(job));
        let streams = || Streams(vec![Stream { path: "/far".into(), offset: 0, size: 0, search: None }]);
        let looks = Looks::default();
        let mut searches: Vec<_> =
            (0..40).map(|_| Box::pin(until_found_from_afar("up", streams(), &workers, &looks))).collect();
        for search in &mut searches {
            assert!(timeout(Duration::ZERO, search).await.is_err());
        }
        let count = hung.lock().unwrap().len();
        assert!((1..20).contains(&count), "{count} workers are taken");
        assert_eq!(workers.elsewhere(Duration::ZERO, || ()).await, None);
        assert_eq!(hung.lock().unwrap().len(), count + 1, "output files elsewhere are still read");
    }

    #[test]
    fn r110_truncated_output_is_searched_from_its_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("output");
        fs::write(&path, "an earlier attempt is up\nstarting").unwrap();
        let mut stream = Stream { path: path.clone(), offset: 25, size: 0, search: None };
        assert_eq!(stream.look("up").unwrap(), Found::Nothing);
        fs::write(&path, "up\n").unwrap();
        assert_eq!(stream.look("^up").unwrap(), Found::Line);
    }

    #[test]
    fn only_missing_file_or_invalid_pattern_ends_the_search() {
        let gone = io::Error::from(io::ErrorKind::NotFound);
        assert!(is_final(&gone, true) && !is_final(&gone, false));
        let invalid = io::Error::from(io::ErrorKind::InvalidInput);
        assert!(is_final(&invalid, true) && is_final(&invalid, false));
        for kind in [io::ErrorKind::StaleNetworkFileHandle, io::ErrorKind::PermissionDenied] {
            assert!(!is_final(&io::Error::from(kind), true), "{kind}");
        }
        assert!(!is_final(&io::Error::from_raw_os_error(nix::libc::EIO), true));
    }
}
