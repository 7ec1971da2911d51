//! Why no work should be added to the journal: a kind for the daemon, and words for users.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Why no work should be added. Its words are for users: decisions depend on the kind alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The file is not at this path any more.
    Missing(Arc<Path>),
    /// The journal's thread panicked, after which nothing is written any more.
    Panicked,
    /// The daemon was started under `ulimit -f`. `SQLite` reports such a write as an error of the disk.
    FileLimit,
    /// The disk can't be written for this reason, or is full.
    Disk(Arc<str>),
}

impl Trouble {
    pub fn of_disk(why: impl Into<Arc<str>>) -> Self {
        Self::Disk(why.into())
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(path) => write!(
                f,
                "{} was removed, moved or replaced: put its folder back, or restart the daemon, which then begins without \
                 these tasks",
                path.display()
            ),
            Self::Panicked => f.write_str("internal error in the daemon: see its log, then restart it"),
            Self::FileLimit => f.write_str("it has reached the daemon's limit of file sizes (`ulimit -f`)"),
            Self::Disk(why) => f.write_str(why),
        }
    }
}
