//! Responses that require reading an output file, which is done on worker threads.

use std::io;
use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::limits::INBOX_PAGE_BYTES;
use bgd_shared::notice::{InboxItem, Notice as WireNotice, NoticeKind, NoticeResult, Part as ShownPart};
use bgd_shared::request::{
    Encoding, InboxReadResult, OutputParams, OutputResult, ResultResult, Stream, TaskResult,
};
use bgd_shared::task::{Kind, Task as WireTask};

use crate::client::answer::Answer;
use crate::core::{Item, Notice, Snapshot};
use crate::exec::output::{OutputFolder, Part, last_line, read_part};
use crate::exec::results::result;
use crate::exec::workers::Workers;
use crate::notice as words;
use crate::wire::calls::OUTPUT_DEFAULT_BYTES;
use crate::wire::view;

/// Builds responses from output files on worker threads.
#[derive(Debug)]
pub struct Reader {
    folder: Arc<OutputFolder>,
    workers: Workers,
}

impl Reader {
    /// Creates a reader for this directory.
    pub fn new(folder: Arc<OutputFolder>, workers: Workers) -> Self {
        Self { folder, workers }
    }

    /// `task.get`: the task with its progress.
    pub fn get(&self, snapshot: Snapshot, answer: Answer) {
        let folder = Arc::clone(&self.folder);
        self.workers.later(move || {
            let mut task = with_progress(&snapshot, &folder);
            task.prompt = snapshot.agent.as_deref().map(|agent| agent.prompt.to_string());
            answer.give(&TaskResult { task });
        });
    }

    /// `task.output`: a part of the output.
    pub fn output(&self, snapshot: Snapshot, params: OutputParams, answer: Answer) {
        let folder = Arc::clone(&self.folder);
        self.workers.later(move || match output(&snapshot, &params, &folder) {
            Ok(result) => answer.give(&result),
            Err(error) => {
                answer.refuse(&unreadable(&snapshot, params.stream.unwrap_or_default(), &folder, &error));
            }
        });
    }

    /// `task.result`: the end of the output.
    pub fn result(&self, snapshot: Snapshot, answer: Answer) {
        let folder = Arc::clone(&self.folder);
        self.workers.later(move || match result(&snapshot, &folder) {
            Ok(part) => {
                let task = with_progress(&snapshot, &folder);
                let truncated_bytes = part.offset;
                let (result, encoding) = Encoding::encode(part.bytes);
                answer.give(&ResultResult { task, result, encoding, truncated_bytes });
            }
            Err(error) => answer.refuse(&unreadable(&snapshot, Stream::Stdout, &folder, &error)),
        });
    }

    /// `inbox.read`: the items with their results, as many as fit into a page.
    pub fn inbox(&self, items: Vec<Item>, mut result: InboxReadResult, answer: Answer) {
        let folder = Arc::clone(&self.folder);
        self.workers.later(move || {
            let mut bytes = 0;
            for (number, told) in items {
                let notice = notice(&told, &folder);
                bytes += TASK_BYTES + 2 * notice.text.len();
                if bytes > INBOX_PAGE_BYTES && !result.items.is_empty() {
                    result.more = true;
                    break;
                }
                result.items.push(InboxItem { number, notice });
            }
            answer.give(&result);
        });
    }
}

/// The typical size of a task object, in bytes.
const TASK_BYTES: usize = 1024;

/// Builds a notice with the result of its run. If the result can't be read any more because the task was cleared
/// meanwhile, the notice says so.
pub fn notice(notice: &Notice, folder: &OutputFolder) -> WireNotice {
    let result = notice_result(notice, folder);
    words::notice(notice, view::task(&notice.task, folder), result)
}

fn notice_result(notice: &Notice, folder: &OutputFolder) -> Option<NoticeResult> {
    let task = &notice.task;
    let is_wanted = match (notice.kind, task.spec.kind()) {
        (NoticeKind::Completed, _) | (NoticeKind::Failed, Kind::Process) => task.has_begun(),
        (NoticeKind::Failed, Kind::Agent)
        | (NoticeKind::Started | NoticeKind::NeedsInput | NoticeKind::Cancelled, _) => false,
    };
    if !is_wanted {
        return None;
    }
    // The same amount as in `task.result`.
    Some(match result(task, folder) {
        Ok(part) => {
            let shown = if part.bytes.len() as u64 >= part.size { ShownPart::All } else { ShownPart::End };
            let text = String::from_utf8_lossy(&part.bytes).into_owned();
            NoticeResult { text, bytes: part.size, part: shown }
        }
        Err(_) => NoticeResult { text: String::new(), bytes: 0, part: ShownPart::Gone },
    })
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
    // A lingering process may still write.
    let eof = snapshot.is_settled() && next >= size;
    let (data, encoding) = Encoding::encode(bytes);
    Ok(OutputResult { task: with_progress(snapshot, folder), data, encoding, offset, next, eof })
}
