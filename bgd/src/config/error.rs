//! Errors in a configuration file, in words for whoever wrote it.

use std::io;
use std::path::PathBuf;

/// An error in a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{}: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file is not TOML, or a value has the wrong type.
    #[error("{}: {message}", .path.display())]
    Parse {
        path: PathBuf,
        /// The position and the problem.
        message: String,
    },
    #[error("{}: {place}: unknown key `{key}`{advice}", .path.display())]
    UnknownKey {
        path: PathBuf,
        /// The position in the file.
        place: String,
        key: String,
        /// A suggestion, starting with a semicolon; empty if there is none.
        advice: String,
    },
    /// An invalid value.
    #[error("{}: {place}`{key}` {what}", .path.display())]
    Value {
        path: PathBuf,
        /// The position in the file, with a colon and a blank; empty if the file has nothing of the key.
        place: String,
        key: String,
        /// The problem with the value.
        what: String,
    },
    /// A value out of range.
    #[error("{}: {place}`{key}` is {value}; it must be {range}", .path.display())]
    Range {
        path: PathBuf,
        /// The position, as in [`Self::Value`].
        place: String,
        key: &'static str,
        value: u64,
        range: String,
    },
}
