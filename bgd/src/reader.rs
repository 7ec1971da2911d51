//! Answers that need a look at an output file before they can be given: read on the workers.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::limits::{AGENT_RESULT_BYTES, RESULT_BYTES};
use bgd_shared::request::{Encoding, OutputParams, OutputResult, ResultResult, Stream, TaskResult};
use bgd_shared::task::{Kind, Task as WireTask};

use crate::answer::Answer;
use crate::calls::OUTPUT_DEFAULT_BYTES;
use crate::core::Snapshot;
use crate::exec::output::{OutputFolder, Part, last_line, read_part};
use crate::exec::workers::Workers;
use crate::view;

/// Answers from output files, on the workers.
#[derive(Debug)]
pub struct Reader {
    folder: Arc<OutputFolder>,
    workers: Workers,
}

impl Reader {
    /// Reads in this folder.
    pub fn new(folder: Arc<OutputFolder>, workers: Workers) -> Self {
        Self { folder, workers }
    }

    /// `task.get`: a task with its progress.
    pub fn get(&self, snapshot: Snapshot, answer: Answer) {
        let folder = Arc::clone(&self.folder);
        self.workers.later(move || {
            let mut task = with_progress(&snapshot, &folder);
            task.prompt = snapshot.agent.as_deref().map(|agent| agent.prompt.to_string());
            answer.give(&TaskResult { task });
        });
    }

    /// `task.output`: a part of its output.
    pub fn output(&self, snapshot: Snapshot, params: OutputParams, answer: Answer) {
        let folder = Arc::clone(&self.folder);
        self.workers.later(move || match output(&snapshot, &params, &folder) {
            Ok(result) => answer.give(&result),
            Err(error) => {
                answer.refuse(&unreadable(&snapshot, params.stream.unwrap_or_default(), &folder, &error));
            }
        });
    }

    /// `task.result`: the end of its output.
    pub fn result(&self, snapshot: Snapshot, answer: Answer) {
        let folder = Arc::clone(&self.folder);
        self.workers.later(move || {
            // An agent's answer is in a file of its own; a command's result is what it wrote.
            let part = match snapshot.spec.kind {
                Kind::Agent => last_part(&folder.result(snapshot.id), true, AGENT_RESULT_BYTES, 0),
                Kind::Process => {
                    let files = folder.files_of(snapshot.id, &snapshot.spec);
                    let (path, dropped) = (files.path(Stream::Stdout), snapshot.dropped[0]);
                    last_part(path, snapshot.has_begun(), RESULT_BYTES, dropped)
                }
            };
            match part {
                Ok(part) => {
                    let task = with_progress(&snapshot, &folder);
                    let truncated_bytes = part.offset;
                    let (result, encoding) = Encoding::encode(part.bytes);
                    answer.give(&ResultResult { task, result, encoding, truncated_bytes });
                }
                Err(error) => answer.refuse(&unreadable(&snapshot, Stream::Stdout, &folder, &error)),
            }
        });
    }
}

/// The last bytes of a file.
fn last_part(path: &Path, begun: bool, bytes: u64, dropped: u64) -> io::Result<Part> {
    read_part(path, begun, -bytes.cast_signed(), bytes, dropped)
}

fn unreadable(snapshot: &Snapshot, stream: Stream, folder: &OutputFolder, error: &io::Error) -> RpcError {
    let files = folder.files_of(snapshot.id, &snapshot.spec);
    let path = files.path(stream).display();
    let message = format!("the output of task {} can't be read: {path}: {error}", snapshot.id);
    RpcError::new(ErrorKind::Internal, message).hint("somebody may have removed the file")
}

fn with_progress(snapshot: &Snapshot, folder: &OutputFolder) -> WireTask {
    let mut task = view::task(snapshot, folder);
    let files = folder.files_of(snapshot.id, &snapshot.spec);
    if !snapshot.is_finished() {
        let bytes = files.size();
        task.progress.output_bytes = bytes;
        task.output.bytes = bytes;
    }
    task.progress.last_line = last_line(files.path(Stream::Stdout));
    task
}

fn output(snapshot: &Snapshot, params: &OutputParams, folder: &OutputFolder) -> io::Result<OutputResult> {
    let stream = params.stream.unwrap_or_default();
    let files = folder.files_of(snapshot.id, &snapshot.spec);
    let dropped = match stream {
        Stream::Stdout => snapshot.dropped[0],
        Stream::Stderr => snapshot.dropped[1],
    };
    let limit = params.limit.unwrap_or(OUTPUT_DEFAULT_BYTES);
    let part =
        read_part(files.path(stream), snapshot.has_begun(), params.offset.unwrap_or(0), limit, dropped)?;
    let Part { bytes, offset, next, size } = part;
    // A process that lingers may still write.
    let eof = snapshot.is_settled() && next >= size;
    let (data, encoding) = Encoding::encode(bytes);
    Ok(OutputResult { task: with_progress(snapshot, folder), data, encoding, offset, next, eof })
}
