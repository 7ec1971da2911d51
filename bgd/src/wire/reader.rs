//! Responses that take long, which are built on worker threads: those that require reading an output file, and those
//! with many tasks.
//!
//! A file outside the daemon's folder may be on a hanging disk. Requests for it get a response all the same, without
//! its content, and only a limited number of threads wait for it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::limits::INBOX_PAGE_BYTES;
use bgd_shared::notice::{InboxItem, Notice as WireNotice, NoticeKind, NoticeResult, Part as ShownPart};
use bgd_shared::request::{
    Encoding, InboxReadResult, OutputParams, OutputResult, ResultResult, Stream, TaskResult,
};
use bgd_shared::task::{Kind, Task as WireTask};
use serde::Serialize;

use crate::client::answer::Answer;
use crate::core::{Item, Notice, Snapshot, Task};
use crate::exec::output::results::result;
use crate::exec::output::{OutputFolder, Part, last_line, read_part};
use crate::exec::threads::workers::Workers;
use crate::notice as words;
use crate::wire::calls::OUTPUT_DEFAULT_BYTES;
use crate::wire::view;

/// How long a disk elsewhere may take: less than clients wait for a first response.
const PATIENCE: Duration = Duration::from_secs(3);

/// The most tasks of a response that is built at once. More would delay the other clients.
const FEW_TASKS: usize = 256;

/// Builds long responses, and those from output files, on worker threads.
#[derive(Clone, Debug)]
pub struct Reader {
    folder: Arc<OutputFolder>,
    workers: Workers,
}

impl Reader {
    /// Creates a reader for this directory.
    pub fn new(folder: Arc<OutputFolder>, workers: Workers) -> Self {
        Self { folder, workers }
    }

    /// Runs a job on a worker, which sends the response. If the output is elsewhere and does not respond in time,
    /// `late` builds the response instead; it must not access the output.
    fn answer<T: Serialize + Send + 'static>(
        &self,
        is_elsewhere: bool,
        answer: Answer,
        read: impl FnOnce(&OutputFolder) -> Result<T, RpcError> + Send + 'static,
        late: impl FnOnce(&OutputFolder) -> Result<T, RpcError> + Send + 'static,
    ) {
        let respond = |answer: &Answer, result: Result<T, RpcError>| match result {
            Ok(result) => answer.give(&result),
            Err(error) => answer.refuse(&error),
        };
        let folder = Arc::clone(&self.folder);
        if !is_elsewhere {
            return self.workers.later(move || respond(&answer, read(&folder)));
        }
        let workers = self.workers.clone();
        tokio::spawn(async move {
            let there = Arc::clone(&folder);
            match workers.elsewhere(PATIENCE, move || read(&there)).await {
                Some(result) => respond(&answer, result),
                None => workers.later(move || respond(&answer, late(&folder))),
            }
        });
    }

    /// `task.get`: the task with its progress.
    pub fn get(&self, snapshot: Snapshot, answer: Answer) {
        let known = snapshot.clone();
        let result = |snapshot: &Snapshot, mut task: WireTask| {
            task.prompt = snapshot.agent.as_deref().map(|agent| agent.prompt.to_string());
            Ok(TaskResult { task })
        };
        self.answer(
            is_elsewhere(&snapshot),
            answer,
            move |folder| result(&snapshot, with_progress(&snapshot, folder)),
            move |folder| result(&known, view::task(&known, folder)),
        );
    }

    /// Responds with these tasks as `result` arranges them.
    pub fn tasks<T: Serialize>(
        &self,
        list: Vec<Snapshot>,
        answer: Answer,
        result: impl FnOnce(Vec<WireTask>) -> T + Send + 'static,
    ) {
        let is_short = list.len() <= FEW_TASKS;
        let folder = Arc::clone(&self.folder);
        let respond = move || {
            let tasks = list.iter().map(|task| view::task(task, &folder)).collect();
            answer.give(&result(tasks));
        };
        if is_short {
            return respond();
        }
        self.workers.later(respond);
    }

    /// `task.output`: a part of the output.
    pub fn output(&self, snapshot: Snapshot, params: OutputParams, answer: Answer) {
        let (known, stream) = (snapshot.clone(), params.stream.unwrap_or_default());
        self.answer(
            is_elsewhere(&snapshot),
            answer,
            move |folder| {
                output(&snapshot, &params, folder)
                    .map_err(|error| unreadable(&snapshot, stream, folder, &error))
            },
            move |folder| Err(silent(&known, stream, folder)),
        );
    }

    /// `task.result`: the end of the output.
    pub fn result(&self, snapshot: Snapshot, answer: Answer) {
        let (known, is_there) = (snapshot.clone(), is_elsewhere(&snapshot));
        let read = move |folder: &OutputFolder| {
            let part = result(&snapshot, folder)
                .map_err(|error| unreadable(&snapshot, Stream::Stdout, folder, &error))?;
            let task = with_progress(&snapshot, folder);
            let truncated_bytes = part.offset;
            let (result, encoding) = Encoding::encode(part.bytes);
            Ok(ResultResult { task, result, encoding, truncated_bytes })
        };
        let late = move |folder: &OutputFolder| Err(silent(&known, Stream::Stdout, folder));
        self.answer(is_there, answer, read, late);
    }

    /// `inbox.read`: the items with their results, as many as fit into a page.
    pub fn inbox(&self, items: Vec<Item>, result: InboxReadResult, answer: Answer) {
        let (known, page) = (items.clone(), result.clone());
        self.answer(
            items.iter().any(|(_, notice)| is_elsewhere(&notice.task)),
            answer,
            move |folder| Ok(page_of(items, result, |stored| notice(stored, folder))),
            move |folder| Ok(page_of(known, page, |stored| notice_unread(stored, folder))),
        );
    }
}

/// Reports whether a task's output may be outside the folder.
fn is_elsewhere(snapshot: &Task) -> bool {
    snapshot.spec.output_file.is_some() || snapshot.spec.on.is_some()
}

/// Fills a page of an inbox.
fn page_of(
    items: Vec<Item>,
    mut result: InboxReadResult,
    notice: impl Fn(&Notice) -> WireNotice,
) -> InboxReadResult {
    let mut bytes = 0;
    for (number, stored) in items {
        let notice = notice(&stored);
        // The result is in the text, and apart.
        bytes += TASK_BYTES + stored.task.text_bytes() + 2 * notice.text.len();
        if bytes > INBOX_PAGE_BYTES && !result.items.is_empty() {
            result.more = true;
            break;
        }
        result.items.push(InboxItem { number, notice });
    }
    result
}

/// The typical size of a task object besides its texts, in bytes.
const TASK_BYTES: usize = 1024;

/// Builds a notice with the result of its run. If the result can't be read because the task was cleared meanwhile, the
/// notice states that.
fn notice(notice: &Notice, folder: &OutputFolder) -> WireNotice {
    let result = notice_result(notice, folder);
    words::notice(notice, view::task(&notice.task, folder), result)
}

/// Reads the result of a notice on a worker. `None` if the worker panicked.
pub async fn read_notice(
    stored: Arc<Notice>,
    folder: Arc<OutputFolder>,
    workers: &Workers,
) -> Option<WireNotice> {
    if !is_elsewhere(&stored.task) {
        return workers.run(move || notice(&stored, &folder)).await;
    }
    let (known, there) = (Arc::clone(&stored), Arc::clone(&folder));
    match workers.elsewhere(PATIENCE, move || notice(&stored, &there)).await {
        Some(notice) => Some(notice),
        None => workers.run(move || notice_unread(&known, &folder)).await,
    }
}

/// Builds a notice without the result of its run if that is on a disk that does not respond.
fn notice_unread(stored: &Notice, folder: &OutputFolder) -> WireNotice {
    if is_elsewhere(&stored.task) {
        words::notice(stored, view::task(&stored.task, folder), None)
    } else {
        notice(stored, folder)
    }
}

fn notice_result(notice: &Notice, folder: &OutputFolder) -> Option<NoticeResult> {
    let task = &notice.task;
    let is_wanted = match (notice.kind, task.spec.kind()) {
        (NoticeKind::Completed, _) | (NoticeKind::Failed, Kind::Process | Kind::Unknown) => task.has_begun(),
        (NoticeKind::Failed, Kind::Agent)
        | (NoticeKind::Started | NoticeKind::NeedsInput | NoticeKind::Cancelled | NoticeKind::Unknown, _) => {
            false
        }
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
    RpcError::new(ErrorKind::Internal, message).hint(
        "somebody may have removed the file, or the task was cleared while the journal could not be written",
    )
}

/// Returns the error for an output whose disk does not respond.
fn silent(snapshot: &Snapshot, stream: Stream, folder: &OutputFolder) -> RpcError {
    let files = folder.files_of(snapshot.id, &snapshot.spec);
    let path = files.path(stream).display();
    let seconds = PATIENCE.as_secs();
    let message =
        format!("the output of task {} can't be read: {path} has not answered for {seconds} s", snapshot.id);
    RpcError::new(ErrorKind::Internal, message).hint("its disk or file server may hang; try again later")
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
    let dropped = snapshot.dropped[stream.index()];
    let limit = params.limit.unwrap_or(OUTPUT_DEFAULT_BYTES);
    let part =
        read_part(files.path(stream), snapshot.has_begun(), params.offset.unwrap_or(0), limit, dropped)?;
    let Part { mut bytes, offset, mut next, size } = part;
    // If a dropped part follows, so was the rest of the character.
    if next < size && next == offset + bytes.len() as u64 {
        // A part of a text must not end within a character: it would no longer be text.
        let left_over = bytes.len() - whole_characters(&bytes);
        bytes.truncate(bytes.len() - left_over);
        next -= left_over as u64;
    }
    // A lingering process may still write.
    let eof = snapshot.is_settled() && next >= size;
    let (data, encoding) = Encoding::encode(bytes);
    let attempt_offset = snapshot.plan().again.as_deref().map(|again| again.offset[stream.index()]);
    let task = with_progress(snapshot, folder);
    Ok(OutputResult { task, data, encoding, offset, next, eof, attempt_offset })
}

/// Returns how many bytes are before an incomplete character at the end of a text; all, if they are no text, or no whole
/// character comes before.
fn whole_characters(bytes: &[u8]) -> usize {
    match str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        Ok(_) | Err(_) => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use bgd_shared::id::TaskId;
    use bgd_shared::request::TasksResult;
    use bgd_shared::text::Env;
    use bgd_shared::time::Timestamp;

    use super::*;
    use crate::client::{Client, ClientLimits};
    use crate::core::{
        Command, Core, CoreLimits, Effect, Fact, Input, Mono, Now, PlanRequest, Reply, ReplyTo, Request,
        Spec, Work,
    };

    #[test]
    fn part_of_a_text_ends_with_a_whole_character() {
        for (bytes, whole) in [
            (&b"abc"[..], 3),
            ("a\u{e9}".as_bytes(), 3),
            (&"a\u{e9}".as_bytes()[..2], 1),
            (&"\u{1f600}\u{1f600}".as_bytes()[..7], 4),
            (b"\xc3", 1),
            (b"a\xff\xc3", 3),
            (b"", 0),
        ] {
            assert_eq!(whole_characters(bytes), whole, "{bytes:?}");
        }
    }

    const LIMITS: CoreLimits = CoreLimits {
        max_concurrent_tasks: 10,
        tasks: 10,
        memory: 1 << 30,
        environments: 1 << 20,
        grace_ms: 1,
        inbox_items: 10,
        history: None,
    };

    fn now() -> Now {
        Now { mono: Mono(1), wall: Timestamp::default() }
    }

    /// Submits a task with this number and program. Returns what follows from it.
    fn submit(core: &mut Core, number: u64, program: &str) -> Vec<Effect> {
        let (id, env, plan) = (TaskId::from_u128(number.into()), Env::default(), PlanRequest::default());
        let spec = Spec { work: Work::Argv(vec![program.into()].into()), ..Spec::of_daemon() };
        let command = Command { id, spec, env, prompt: None, key: None, foreground: false, plan };
        let to = ReplyTo { client: 1, call: number };
        core.handle(now(), Input::Request { to, request: Request::Submit(Box::new(command)) })
    }

    #[test]
    fn answer_with_many_tasks_is_built_on_a_worker() {
        let home = tempfile::tempdir().unwrap();
        let folder = Arc::new(OutputFolder::open(home.path().to_owned()).unwrap());
        let (sender, jobs) = std::sync::mpsc::channel();
        let reader = Reader::new(folder, Workers::simulated(move |job| sender.send(job).unwrap()));
        let client = Arc::new(Client::new(1, ClientLimits { requests: 2, write_queue_bytes: 10 }));
        let effects = submit(&mut Core::new(LIMITS, [].into()), 1, "true");
        let task = effects.into_iter().find_map(|effect| match effect {
            Effect::Reply { reply: Reply::Task(task), .. } => Some(task),
            _ => None,
        });
        let task = task.expect("it is submitted");
        let give = |count: usize| {
            assert!(client.begin_request(0));
            let answer = Answer::new(Arc::clone(&client), None, 0);
            let list = std::iter::repeat_n(task.clone(), count).collect();
            reader.tasks(list, answer, |tasks| TasksResult { tasks });
        };
        give(FEW_TASKS);
        assert_eq!(client.unanswered(), 0);
        give(FEW_TASKS + 1);
        assert_eq!(client.unanswered(), 1, "other clients are served meanwhile");
        jobs.try_recv().unwrap()();
        assert_eq!(client.unanswered(), 0);
    }

    #[test]
    fn page_of_inbox_is_bounded_even_if_its_tasks_have_long_command_lines() {
        let mut core = Core::new(LIMITS, [].into());
        let items: Vec<Item> = (1..=3_u64)
            .map(|number| {
                drop(submit(&mut core, number, &"x".repeat(600 * 1024)));
                let (task, fact) =
                    (TaskId::from_u128(number.into()), Fact::StartFailed { failure: "no".into() });
                let effects = core.handle(now(), Input::Fact { task, run: 1, fact });
                let notice = effects.into_iter().find_map(|effect| match effect {
                    Effect::Notice { notice, .. } => Some(notice),
                    _ => None,
                });
                (number, notice.expect("its end is reported"))
            })
            .collect();
        let home = tempfile::tempdir().unwrap();
        let folder = OutputFolder::open(home.path().to_owned()).unwrap();
        let read = |from: usize| {
            let page = InboxReadResult::default();
            let page = page_of(items[from..].to_vec(), page, |stored| notice_unread(stored, &folder));
            (page.items.iter().map(|item| item.number).collect::<Vec<_>>(), page.more)
        };
        assert_eq!(read(0), (vec![1], true));
        assert_eq!(read(2), (vec![3], false));
    }
}
