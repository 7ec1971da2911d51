//! The output of tasks on other machines, copied into the files of this daemon as it grows there.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;

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
    let written = context.workers.run(move || {
        let path = folder.files(task, stream == Stream::Stderr);
        let count = bytes.len() as u64;
        let file = fs::OpenOptions::new().write(true).open(path.path(stream));
        file.and_then(|file| file.write_all_at(&bytes, at)).map_err(|error| (count, error))
    });
    match written.await? {
        Ok(()) => None,
        Err((bytes, error)) => Some(Fact::Lost { bytes, why: error.to_string().into() }),
    }
}
