//! The output of tasks on other machines, copied into the files of this daemon as it grows.

use std::io;

use bgd_shared::id::TaskId;
use bgd_shared::request::{OutputResult, Stream};

use crate::core::{Fact, PlaceFact};
use crate::exec::context::Context;
use crate::exec::output::OutputFolder;

/// Creates a task's output files unless an earlier attempt or daemon has done so. Returns their sizes.
///
/// # Errors
/// Returns the system error, such as a full disk.
pub fn prepare(folder: &OutputFolder, task: TaskId, split: bool) -> io::Result<[u64; 2]> {
    folder.append(task, Stream::Stdout)?;
    if split {
        folder.append(task, Stream::Stderr)?;
    }
    Ok(folder.sizes(task, split))
}

/// Writes a part that was requested from `offset` to its position `at` in the local file. Returns the losses: bytes
/// that the machine dropped before they were read, and bytes that can't be written here. A part after a gap is left to
/// be read again, as nothing may be written after the gap before it is recorded for the next daemon.
pub async fn write(
    context: &Context,
    (task, stream): (TaskId, Stream),
    (offset, at): (u64, u64),
    part: &mut OutputResult,
) -> Losses {
    let before = part.offset.saturating_sub(offset);
    if before > 0 {
        part.next = part.offset;
        return Losses(vec![(before, DROPPED.into())]);
    }
    let bytes = part.encoding.decode(std::mem::take(&mut part.data)).unwrap_or_default();
    let behind = part.next.saturating_sub(part.offset).saturating_sub(bytes.len() as u64);
    let dropped = (behind > 0).then(|| (behind, DROPPED.into()));
    let unwritten = if bytes.is_empty() {
        None
    } else {
        let folder = context.folder.clone();
        match context.workers.run(move || folder.put(task, stream, &bytes, at)).await.flatten() {
            Some(Fact::Lost { bytes, why }) => Some((bytes, why)),
            _ => None,
        }
    };
    Losses(dropped.into_iter().chain(unwritten).collect())
}

/// The reason for missing output that was dropped on its machine.
const DROPPED: &str = "it was dropped over there as it exceeds limits.output_bytes";

/// The lost bytes of a part, with reasons. They take no space in the local files.
#[derive(Debug, Default)]
pub struct Losses(Vec<(u64, Box<str>)>);

impl Losses {
    /// Returns the total number of lost bytes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|(bytes, _)| bytes).sum()
    }

    /// Returns the facts to report.
    pub fn into_facts(self, stream: Stream) -> impl ExactSizeIterator<Item = Fact> {
        self.0.into_iter().map(move |(bytes, why)| Fact::Elsewhere(PlaceFact::Lost { stream, bytes, why }))
    }
}
