//! The output of tasks on other machines, copied into the files of this daemon as it grows there.

use std::io;

use bgd_shared::id::TaskId;
use bgd_shared::request::{OutputResult, Stream};

use crate::core::Fact;
use crate::exec::context::Context;
use crate::exec::output::OutputFolder;

/// Creates a task's output files unless an earlier attempt has. Returns where this run's output begins in them.
///
/// # Errors
/// The system's, such as a full disk.
pub fn prepare(folder: &OutputFolder, task: TaskId, split: bool) -> io::Result<[u64; 2]> {
    folder.append(task, Stream::Stdout)?;
    if split {
        folder.append(task, Stream::Stderr)?;
    }
    Ok(folder.sizes(task, split))
}

/// Writes a part at its place. Returns what was lost of it, if it can't be written.
pub async fn write(
    context: &Context,
    task: TaskId,
    stream: Stream,
    base: u64,
    part: &mut OutputResult,
) -> Option<Fact> {
    let bytes = part.encoding.decode(std::mem::take(&mut part.data)).unwrap_or_default();
    if bytes.is_empty() {
        return None;
    }
    // What was dropped there becomes a hole here, so that offsets stay valid.
    let (at, folder) = (base + part.offset, context.folder.clone());
    context.workers.run(move || folder.put(task, stream, &bytes, at)).await.flatten()
}
