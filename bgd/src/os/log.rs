//! The daemon's log: a size-limited file in the state directory, or standard error under a service manager, which
//! keeps it in the journal.
//!
//! Its disk may hang, and so may the reader of standard error. Once the daemon has threads, one of them writes the log,
//! so that nothing else hangs with it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use bgd_shared::mutex::Mutex;
use bgd_shared::show;
use tracing_subscriber::filter::LevelFilter;

/// The size in bytes at which a new file is started; one old file is kept.
const LOG_BYTES: u64 = 4 * 1024 * 1024;

/// The name of the log file in the state directory.
pub const FILE: &str = "bgd.log";

/// How long a thread waits until its event is written. Normally it is there afterwards, even if the process is killed.
const PATIENCE: Duration = Duration::from_millis(500);

/// The maximum number of events that wait to be written; further ones are lost.
const WAITING: usize = 256;

/// The size of the writing thread's stack in bytes.
const STACK_BYTES: usize = 256 * 1024;

/// The log of this process, once it has one.
static LOG: OnceLock<Mutex<Log>> = OnceLock::new();

/// Where the log goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `bgd.log` in the state directory.
    File,
    /// Standard error, without timestamps: the journal adds its own.
    Stderr,
}

impl Target {
    /// Chooses standard error under a service manager, else the file.
    pub fn detect() -> Self {
        let managed = ["JOURNAL_STREAM", "INVOCATION_ID"].iter().any(|name| std::env::var_os(name).is_some());
        if managed { Self::Stderr } else { Self::File }
    }
}

/// Starts logging. The level is `$BGD_LOG` (`error`, `warn`, `info`, `debug`, `trace`), by default `info`.
///
/// # Errors
/// The log file can't be opened.
pub fn start(target: Target, state: &Path) -> io::Result<()> {
    let (level, unknown) = level(chosen_level().as_deref());
    let log = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_target(false);
    // By default, a failed log write is reported on standard error; if that fails as well, it panics. A failing log
    // must not end the daemon.
    let log = log.log_internal_errors(false).with_writer(|| Event);
    let out: Out = match target {
        Target::Stderr => Box::new(Clean(io::stderr())),
        Target::File => Box::new(Clean(BoundedLog::open(state.join(FILE))?)),
    };
    let _ = LOG.set(Mutex::new(Log { out: Arc::new(Mutex::new(out)), writer: None }));
    match target {
        Target::Stderr => log.without_time().init(),
        Target::File => log.init(),
    }
    if let Some(unknown) = unknown {
        tracing::warn!("{unknown}");
    }
    Ok(())
}

/// Starts the thread that writes the log from now on. Must be called after the signals for the daemon were blocked.
///
/// # Errors
/// The system allows no more threads.
pub fn write_on_thread() -> io::Result<()> {
    let Some(log) = LOG.get() else { return Ok(()) };
    let mut log = log.lock();
    if log.writer.is_none() {
        log.writer = Some(Writer::start(Arc::clone(&log.out), PATIENCE)?);
    }
    Ok(())
}

/// Returns what is wrong with the log level that the user has chosen, if anything.
pub fn level_warning() -> Option<String> {
    level(chosen_level().as_deref()).1
}

fn chosen_level() -> Option<String> {
    let chosen = std::env::var_os("BGD_LOG").filter(|level| !level.is_empty());
    chosen.map(|level| level.to_string_lossy().into_owned())
}

/// Returns a level, and what is wrong with the chosen one if it is not that.
fn level(chosen: Option<&str>) -> (LevelFilter, Option<String>) {
    match chosen.map(str::parse::<LevelFilter>) {
        None => (LevelFilter::INFO, None),
        Some(Ok(level)) => (level, None),
        Some(Err(_)) => {
            let chosen = chosen.unwrap_or_default();
            let what = format!(
                "BGD_LOG is {chosen:?}, which is no log level: use error, warn, info, debug or trace; until then \
                 it is info"
            );
            (LevelFilter::INFO, Some(what))
        }
    }
}

/// Where the log is written to.
type Out = Box<dyn Write + Send>;

struct Log {
    out: Arc<Mutex<Out>>,
    writer: Option<Writer>,
}

/// An event that is about to be written to [`LOG`].
struct Event;

impl Write for Event {
    /// Expects a whole event per call, which is how the subscriber writes.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        if let Some(log) = LOG.get() {
            let mut log = log.lock();
            match &mut log.writer {
                Some(writer) => writer.write(event),
                None => log.out.lock().write_all(event)?,
            }
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The thread that writes the log, as others see it.
struct Writer {
    events: Sender<Vec<u8>>,
    /// Receives a message for each event that was written, or failed to be.
    written: Receiver<()>,
    waiting: usize,
    lost: u64,
    patience: Duration,
}

impl Writer {
    /// Starts the thread. It ends when this value is dropped.
    fn start(out: Arc<Mutex<Out>>, patience: Duration) -> io::Result<Self> {
        let (events, ordered) = mpsc::channel::<Vec<u8>>();
        let (says, written) = mpsc::channel();
        let run = move || {
            for event in ordered {
                // A failing log must not end the daemon.
                let _ = out.lock().write_all(&event);
                if says.send(()).is_err() {
                    break;
                }
            }
        };
        thread::Builder::new().name("log".to_owned()).stack_size(STACK_BYTES).spawn(run)?;
        Ok(Self { events, written, waiting: 0, lost: 0, patience })
    }

    /// Has an event written. Waits for that only if none before it is late.
    fn write(&mut self, event: &[u8]) {
        self.waiting = self.waiting.saturating_sub(self.written.try_iter().count());
        if self.waiting >= WAITING {
            self.lost += 1;
            return;
        }
        let lost = std::mem::take(&mut self.lost);
        if lost > 0 {
            self.send(format!("{lost} events are missing here: the log could not be written\n").into_bytes());
        }
        self.send(event.to_vec());
    }

    fn send(&mut self, event: Vec<u8>) {
        let is_late = self.waiting > 0;
        // The thread lives as long as this value.
        let _ = self.events.send(event);
        self.waiting += 1;
        if !is_late && self.written.recv_timeout(self.patience).is_ok() {
            self.waiting -= 1;
        }
    }
}

/// Writes each event as one line without effect on a terminal: events quote text from anywhere, which must not look
/// like an event of its own.
struct Clean<W>(W);

impl<W: Write> Write for Clean<W> {
    /// Expects a whole event per call, which is how the subscriber writes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let line = show::line(text.strip_suffix('\n').unwrap_or(&text)) + "\n";
        self.0.write_all(line.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A log file that is renamed to `….1` when it is full, replacing an older one. Existing crates for this depend on
/// calendar and compression crates.
struct BoundedLog {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl BoundedLog {
    fn open(path: PathBuf) -> io::Result<Self> {
        // The log names commands and directories, so only its user may read it.
        let file = File::options().append(true).create(true).mode(0o600).open(&path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path, file, bytes })
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        match fs::rename(&self.path, old) {
            // The file was already removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        *self = Self::open(self.path.clone())?;
        Ok(())
    }
}

impl Write for BoundedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The file was removed or renamed. If its directory is gone as well, a later write recreates it.
        let place = |meta: fs::Metadata| (meta.dev(), meta.ino());
        let is_there = fs::metadata(&self.path).map(place).ok() == self.file.metadata().map(place).ok();
        if !is_there && let Ok(new) = Self::open(self.path.clone()) {
            *self = new;
        }
        if self.bytes >= LOG_BYTES {
            self.begin_anew()?;
        }
        let count = self.file.write(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that hangs until the sender of `hangs` is dropped.
    struct HungDisk {
        hangs: Receiver<()>,
        written: Sender<Vec<u8>>,
    }

    impl Write for HungDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.hangs.recv();
            self.written.send(bytes.to_vec()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn r05_events_wait_for_hung_disk_up_to_a_limit_and_hold_up_nobody() {
        let (hang, hangs) = mpsc::channel();
        let (says, written) = mpsc::channel();
        let out: Out = Box::new(HungDisk { hangs, written: says });
        let mut writer = Writer::start(Arc::new(Mutex::new(out)), Duration::ZERO).unwrap();
        for number in 0..WAITING + 2 {
            writer.write(number.to_string().as_bytes());
        }
        drop(hang);
        let next = || String::from_utf8(written.recv_timeout(Duration::from_mins(1)).unwrap()).unwrap();
        for number in 0..WAITING {
            assert_eq!(next(), number.to_string());
        }
        // The reports about them may still be under way.
        while writer.waiting > 0 {
            writer.written.recv_timeout(Duration::from_mins(1)).unwrap();
            writer.waiting -= 1;
        }
        writer.patience = Duration::from_mins(1);
        writer.write(b"after");
        assert_eq!(next(), "2 events are missing here: the log could not be written\n");
        assert_eq!(next(), "after");
        assert_eq!(writer.waiting, 0, "it was waited for");
    }

    #[test]
    fn log_event_is_one_sanitized_line() {
        let mut log = Clean(Vec::new());
        log.write_all("a=\x1b[2J\u{9b}b \u{202e}c\nERROR forged\n".as_bytes()).unwrap();
        assert_eq!(String::from_utf8(log.0).unwrap(), "a=\u{fffd}[2J\u{fffd}b \u{fffd}c ERROR forged\n");
    }

    #[test]
    fn unknown_log_level_is_info_and_reported_with_the_known_ones() {
        assert_eq!(level(None), (LevelFilter::INFO, None));
        assert_eq!(level(Some("debug")), (LevelFilter::DEBUG, None));
        assert_eq!(level(Some("ERROR")), (LevelFilter::ERROR, None));
        for other in ["verbose", "debgu", " "] {
            let (level, said) = level(Some(other));
            assert_eq!(level, LevelFilter::INFO);
            assert!(said.unwrap().contains("error, warn, info, debug or trace"), "{other}");
        }
    }

    #[test]
    fn renamed_log_is_continued_in_a_new_file() {
        let home = tempfile::tempdir().unwrap();
        let [path, old] = ["bgd.log", "bgd.log.old"].map(|name| home.path().join(name));
        let mut log = BoundedLog::open(path.clone()).unwrap();
        log.write_all(b"one\n").unwrap();
        fs::rename(&path, &old).unwrap();
        log.write_all(b"two\n").unwrap();
        assert_eq!([&path, &old].map(|path| fs::read_to_string(path).unwrap()), ["two\n", "one\n"]);
    }

    #[test]
    fn full_log_is_rotated_once() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("bgd.log");
        let mut log = BoundedLog::open(path.clone()).unwrap();
        let line = vec![b'x'; 1 << 20];
        for _ in 0..11 {
            log.write_all(&line).unwrap();
        }
        let sizes: Vec<u64> = ["bgd.log", "bgd.log.1"]
            .iter()
            .map(|name| fs::metadata(home.path().join(name)).unwrap().len())
            .collect();
        assert_eq!(sizes, [3 << 20, LOG_BYTES]);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2);
    }
}
