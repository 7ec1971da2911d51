//! The output of a task's earlier runs: how it ends, and how it is kept apart from the output of the next run.

use std::fs::File;
use std::io::{self, Write as _};

use bgd_shared::id::TaskId;
use bgd_shared::request::Stream;
use serde::{Deserialize, Serialize};

use crate::exec::output::{OutputFolder, read_part};

/// How the output of earlier runs ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// There is no output.
    #[default]
    Nothing,
    /// It ends with a complete line.
    Line,
    /// It ends in the middle of a line.
    Word,
}

impl Ending {
    /// Looks at a stream of a task's output. If it can't be read, it may end in the middle of a line: a needless blank
    /// line does less harm than two texts in one line.
    pub fn of(folder: &OutputFolder, task: TaskId, split: bool, stream: Stream) -> Self {
        let files = folder.files(task, split);
        match read_part(files.path(stream), false, -1, 1, 0) {
            Ok(part) if part.bytes.is_empty() => Self::Nothing,
            Ok(part) if part.bytes == b"\n" => Self::Line,
            Ok(_) | Err(_) => Self::Word,
        }
    }
}

/// The newline after the last line of earlier output, if that had none. Dropping this takes the newline back, unless
/// more has been written since.
#[derive(Debug)]
pub struct LineEnd {
    file: Option<File>,
    /// The size of the file before.
    size: u64,
}

impl LineEnd {
    /// Ends the last line of a task's stream, which has a file of its own. Goes on without the newline if there is no
    /// space for it, as it is no reason to refuse a run.
    pub fn add(folder: &OutputFolder, task: TaskId, stream: Stream) -> Self {
        let none = Self { file: None, size: 0 };
        if Ending::of(folder, task, true, stream) != Ending::Word {
            return none;
        }
        Self::write(folder, task, stream).unwrap_or_else(|error| {
            tracing::debug!(%error, %task, "an earlier run's output was not ended by a newline");
            none
        })
    }

    fn write(folder: &OutputFolder, task: TaskId, stream: Stream) -> io::Result<Self> {
        let mut file = File::from(folder.append(task, stream)?);
        let size = file.metadata()?.len();
        file.write_all(b"\n")?;
        Ok(Self { file: Some(file), size })
    }

    /// Leaves the newline there.
    pub fn keep(mut self) {
        self.file = None;
    }
}

impl Drop for LineEnd {
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        if file.metadata().is_ok_and(|now| now.len() == self.size + 1)
            && let Err(error) = file.set_len(self.size)
        {
            tracing::warn!(%error, "the newline after an earlier run's output was not taken back");
        }
    }
}
