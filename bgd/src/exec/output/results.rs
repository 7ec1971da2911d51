//! The result of a task: the answer of an agent, or the output of a command. This module only reads.

use std::io;
use std::path::{Path, PathBuf};

use bgd_shared::limits::{AGENT_RESULT_BYTES, RESULT_BYTES};
use bgd_shared::request::Stream;
use bgd_shared::task::Kind;

use super::{OutputFolder, Part, read_part};
use crate::core::Task;

/// Returns the result of a task, or the end of a long one: an agent's answer has its own file, a command's result is
/// its output.
///
/// # Errors
/// The file can't be read.
pub fn result(task: &Task, folder: &OutputFolder) -> io::Result<Part> {
    match task.spec.kind() {
        Kind::Agent => last_part(&answer_file(task, folder), true, AGENT_RESULT_BYTES, 0),
        Kind::Process | Kind::Unknown => end_of_output(task, folder, RESULT_BYTES),
    }
}

/// Returns the last bytes of a task's output.
///
/// # Errors
/// The file can't be read.
pub fn end_of_output(task: &Task, folder: &OutputFolder, bytes: u64) -> io::Result<Part> {
    let files = folder.files_of(task.id, &task.spec);
    last_part(files.path(Stream::Stdout), task.has_begun(), bytes, task.dropped[0])
}

/// Returns the path of the latest answer of an agent's task.
fn answer_file(task: &Task, folder: &OutputFolder) -> PathBuf {
    folder.result(task.id, task.agent.as_deref().map_or(0, |agent| agent.answered))
}

fn last_part(path: &Path, begun: bool, bytes: u64, dropped: u64) -> io::Result<Part> {
    read_part(path, begun, -bytes.cast_signed(), bytes, dropped)
}
