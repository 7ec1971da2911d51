//! The daemon's log: a file in the state folder that can't grow without bound, or standard error for
//! a service manager, which keeps it in the journal.

use std::io;
use std::path::Path;
use std::sync::Mutex;

use file_rotate::compression::Compression;
use file_rotate::suffix::AppendCount;
use file_rotate::{ContentLimit, FileRotate};
use tracing_subscriber::filter::LevelFilter;

/// Bytes after which a new file is begun; one old file is kept.
const LOG_BYTES: usize = 4 * 1024 * 1024;

/// Where the log goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `bgd.log` in the state folder.
    File,
    /// Standard error, without times: the journal has its own.
    Stderr,
}

impl Target {
    /// Standard error under a service manager, else the file.
    pub fn detect() -> Self {
        let managed = ["JOURNAL_STREAM", "INVOCATION_ID"].iter().any(|name| std::env::var_os(name).is_some());
        if managed { Self::Stderr } else { Self::File }
    }
}

/// Begins to log. The level is `$BGD_LOG` (`error`, `warn`, `info`, `debug`, `trace`), else `info`.
///
/// # Errors
/// The state folder can't be written.
pub fn start(target: Target, state: &Path) -> io::Result<()> {
    let level =
        std::env::var("BGD_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::INFO);
    let log = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_target(false);
    match target {
        Target::Stderr => log.without_time().with_writer(io::stderr).init(),
        Target::File => {
            let file = FileRotate::new(
                state.join("bgd.log"),
                AppendCount::new(1),
                ContentLimit::BytesSurpassed(LOG_BYTES),
                Compression::None,
                Some(private()),
            );
            log.with_writer(Mutex::new(file)).init();
        }
    }
    Ok(())
}

/// The log names commands and folders, so it is for its user alone.
fn private() -> std::fs::OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    options
}
