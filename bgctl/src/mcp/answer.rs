//! The answers of the tools, and their conversion to MCP results: notifications at the head, text, structured
//! content. Pure functions.

use std::collections::{HashMap, HashSet};

use bgd_shared::id::TaskId;
use bgd_shared::notice::{InboxItem, NoticeKind};
use bgd_shared::task::Task;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;
use serde_json::Value;

use super::refusal::Refusal;
use super::shapes::{
    Blocked, Cancelled, Cleared, Counts, Head, Listed, Output, Started, TaskFacts, facts, news,
};
use super::words;

/// The part of an answer that is specific to a tool.
#[derive(Clone, Debug)]
pub enum Body {
    Started,
    Output {
        /// The result, or the output so far.
        output: String,
        /// Whether the output is incomplete.
        truncated: bool,
        /// The file with the complete output.
        file: String,
    },
    Blocked {
        /// Whether the timeout expired first.
        timed_out: bool,
        /// Whether this server's limit shortened the wait.
        cut: bool,
        /// The ids of the ended tasks.
        finished: Vec<String>,
        /// The ids of the tasks that have not ended.
        active: Vec<String>,
        /// The matching line.
        line: Option<String>,
        /// The daemon instance that has the tasks, as far as is known.
        instance: Option<String>,
    },
    Cancelled,
    Listed {
        /// Whether there are older tasks.
        more: bool,
        summary: Counts,
    },
    Cleared {
        cleared: u64,
    },
}

/// How an answer reports the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// The status, with the result.
    Whole,
    /// Only whether it was cancelled.
    Cancel,
}

/// Maximum number of tasks shown in one answer.
pub const SHOWN: usize = 100;

/// Minimum number of bytes for each result in an answer with many.
const LEAST_RESULT_BYTES: usize = 200;

/// The answer of a tool, without the notifications at its head.
#[derive(Clone, Debug)]
pub struct ToolAnswer {
    /// A sentence on what was done.
    pub opening: String,
    pub tasks: Vec<TaskFacts>,
    /// The ends of runs that the answer itself reports, so that they need no notification.
    pub reported: HashMap<(TaskId, u32), Reported>,
    /// The number of further tasks that the answer is about.
    pub not_shown: usize,
    pub body: Body,
    /// Advice on the next step.
    pub next: String,
}

impl ToolAnswer {
    /// Creates an answer about these tasks that reports the ends of those that have ended. Shows the first [`SHOWN`]
    /// tasks.
    pub fn about(tasks: &[Task], session: &str, body: Body) -> Self {
        let ended = tasks.iter().enumerate().filter(|(_, task)| !task.status.is_active());
        let reported = |at| if at < SHOWN { Reported::Whole } else { Reported::Cancel };
        Self {
            opening: String::new(),
            tasks: tasks.iter().take(SHOWN).map(|task| facts(task, session)).collect(),
            reported: ended.map(|(at, task)| ((task.id, task.run), reported(at))).collect(),
            not_shown: tasks.len().saturating_sub(SHOWN),
            body,
            next: String::new(),
        }
    }

    /// Sets the opening and the advice.
    #[must_use]
    pub fn with(mut self, opening: impl Into<String>, next: impl Into<String>) -> Self {
        self.opening = opening.into();
        self.next = next.into();
        self
    }

    /// Reports whether the answer itself reports this item.
    pub fn reports(&self, item: &InboxItem) -> bool {
        let task = &item.notice.task;
        match self.reported.get(&(task.id, task.run)) {
            Some(Reported::Whole) => item.notice.kind.is_end(),
            Some(Reported::Cancel) => item.notice.kind == NoticeKind::Cancelled,
            None => false,
        }
    }

    /// Reports whether the answer announces that the item's task was started or resumed.
    pub fn starts(&self, item: &InboxItem) -> bool {
        matches!(self.body, Body::Started) && {
            let id = item.notice.task.id.to_string();
            let resumed = item.notice.task.resume_count;
            let is_begun = self.tasks.iter().any(|task| task.task_id == id && task.resumed == resumed);
            // A task that was cancelled on submission is reported as such.
            is_begun && !self.reports(item)
        }
    }
}

/// Selects the items to send with an answer: those that it reports itself, and the oldest of the others as far as they
/// fit.
#[derive(Debug)]
pub struct Sieve<'a> {
    answer: Option<&'a ToolAnswer>,
    bytes: usize,
    is_full: bool,
    /// Number of ends reported by the answer whose items have not come up yet.
    to_report: usize,
    unreported: HashSet<TaskId>,
}

impl<'a> Sieve<'a> {
    /// Creates a sieve for this answer, or for one that reports nothing itself.
    pub fn new(answer: Option<&'a ToolAnswer>) -> Self {
        let to_report = answer.map_or(0, |answer| answer.reported.len());
        Self { answer, bytes: 0, is_full: false, to_report, unreported: HashSet::new() }
    }

    /// Reports whether this item is to be sent. Call it for the items in their order.
    pub fn takes(&mut self, item: &InboxItem) -> bool {
        // Otherwise the end of a task would be reported before its start.
        if self.answer.is_some_and(|answer| answer.starts(item)) {
            return false;
        }
        if self.answer.is_some_and(|answer| answer.reports(item)) {
            self.to_report = self.to_report.saturating_sub(1);
            return true;
        }
        let size = words::item_text(item).len();
        self.is_full |= self.bytes > 0 && self.bytes + size > words::NEWS_BYTES;
        if !self.is_full {
            self.bytes += size;
        } else if item.notice.kind.is_end() {
            self.unreported.insert(item.notice.task.id);
        }
        !self.is_full
    }

    /// Reports whether no further item will be accepted.
    pub fn is_enough(&self) -> bool {
        self.is_full && self.to_report == 0
    }

    /// Returns whether anything did not fit, and the tasks whose ends did not.
    pub fn left(self) -> (bool, HashSet<TaskId>) {
        (self.is_full, self.unreported)
    }
}

/// The daemon whose inbox was read.
#[derive(Debug, Default)]
pub enum Source {
    /// It can't be reached, or was not asked.
    #[default]
    Unknown,
    /// No daemon is running.
    NoDaemon,
    /// This instance.
    Instance(String),
}

/// The news to send with an answer.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Where the items are from.
    pub source: Source,
    /// The inbox items since the last answer.
    pub items: Vec<InboxItem>,
    /// The server's own notes.
    pub notes: Vec<String>,
    /// Whether there is more than fits.
    pub more: bool,
    /// Tasks whose ends do not fit, as far as the inbox was read.
    pub unreported: HashSet<TaskId>,
}

impl Outgoing {
    /// Appends news found later.
    pub fn and(mut self, later: Self) -> Self {
        self.items.extend(later.items);
        self.notes.extend(later.notes);
        Self { more: self.more || later.more, ..self }
    }
}

/// Builds the MCP result.
pub fn result(outcome: Result<ToolAnswer, Refusal>, news: Outgoing) -> CallToolResult {
    match outcome {
        Ok(answer) => success(answer, news),
        Err(refusal) => {
            let head = Head::of(&news.items, news.notes, news.more);
            CallToolResult::error(vec![ContentBlock::text(format!("{}{refusal}", preface(&head)))])
        }
    }
}

fn success(mut answer: ToolAnswer, news: Outgoing) -> CallToolResult {
    let (reported, others): (Vec<_>, Vec<_>) = news.items.into_iter().partition(|item| answer.reports(item));
    if !matches!(answer.body, Body::Output { .. }) {
        let most = (words::NEWS_BYTES / reported.len().max(1)).max(LEAST_RESULT_BYTES);
        for item in &reported {
            let id = item.notice.task.id.to_string();
            for task in answer.tasks.iter_mut().filter(|task| task.task_id == id) {
                task.result = words::result(&item.notice, most);
            }
        }
    }
    if let Some(next) = after_daemon(&answer, &news.source) {
        next.clone_into(&mut answer.next);
    } else if let Some(where_it_is) = other_output(&answer, &reported) {
        let next = std::mem::take(&mut answer.next);
        // Without any output in this answer there is no more of it either.
        let is_said = reported.is_empty() && next == words::MORE_OF_EACH;
        answer.next =
            if is_said { where_it_is } else { format!("{where_it_is} {next}").trim_end().to_owned() };
    }
    let head = Head {
        message: answer.opening.clone(),
        next: answer.next.clone(),
        ..Head::of(&others, news.notes, news.more)
    };
    let text = format!("{}{}", preface(&head), text(&answer));
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = structured(answer, head);
    result
}

/// Returns what to do after a wait whose daemon has gone meanwhile: nothing can be done with its tasks. Only one
/// answer has a note about the next daemon at its head.
fn after_daemon(answer: &ToolAnswer, source: &Source) -> Option<&'static str> {
    let Body::Blocked { instance: Some(instance), .. } = &answer.body else { return None };
    match source {
        Source::NoDaemon => Some(words::DAEMON_ENDED),
        Source::Instance(other) if other != instance => Some(words::OTHER_DAEMON),
        Source::Instance(_) | Source::Unknown => None,
    }
}

/// Says where the output of ended tasks is that a wait shows without a report: an earlier answer had it, another answer
/// has it, or another reader of the session acknowledged it.
fn other_output(answer: &ToolAnswer, reported: &[InboxItem]) -> Option<String> {
    let Body::Blocked { finished, .. } = &answer.body else { return None };
    let is_reported =
        |task: &TaskFacts| reported.iter().any(|item| item.notice.task.id.to_string() == task.task_id);
    let ids: Vec<&str> = answer
        .tasks
        .iter()
        .filter(|task| finished.contains(&task.task_id) && task.output_bytes > 0)
        .filter(|task| !task.ended_with_daemon && !is_reported(task))
        .map(|task| &*task.task_id)
        .collect();
    match (&ids[..], answer.tasks.len()) {
        ([], _) => None,
        ([id], 1) => Some(format!(
            "Its output is not in this answer: background_output {{\"task_id\": \"{id}\"}} shows it."
        )),
        _ => Some(format!(
            "The output of {} is not in this answer: background_output shows it.",
            ids.join(", ")
        )),
    }
}

impl Head {
    fn of(items: &[InboxItem], mut notes: Vec<String>, more: bool) -> Self {
        if more {
            notes
                .push("More tasks have ended than fit here: the rest follows in the next result.".to_owned());
        }
        let notices = items.iter().map(|item| news(item, words::item_text(item))).collect();
        Self { notices, notes, ..Self::default() }
    }
}

fn structured(answer: ToolAnswer, head: Head) -> Option<Value> {
    fn value(shape: &impl Serialize) -> Option<Value> {
        serde_json::to_value(shape).ok()
    }
    let mut tasks = answer.tasks;
    match answer.body {
        Body::Started => value(&Started { head, task: tasks.pop()? }),
        Body::Output { output, truncated, file } => {
            value(&Output { head, task: tasks.pop()?, output, truncated, output_file: file })
        }
        Body::Blocked { timed_out, cut, finished, active, line, instance: _ } => {
            value(&Blocked { head, timed_out, cut, tasks, finished, active, line })
        }
        Body::Cancelled => value(&Cancelled { head, tasks, not_shown: answer.not_shown }),
        Body::Listed { more, summary } => value(&Listed { head, tasks, more, summary }),
        Body::Cleared { cleared } => value(&Cleared { head, cleared }),
    }
}

/// Formats the notes and notifications above an answer.
fn preface(head: &Head) -> String {
    let news = head.notices.iter().map(|news| news.text.clone());
    let parts: Vec<String> = head.notes.iter().cloned().chain(news).collect();
    if parts.is_empty() {
        return String::new();
    }
    format!("{}\n\n---\n\n", parts.join("\n\n"))
}

/// Formats the answer itself.
fn text(answer: &ToolAnswer) -> String {
    let mut parts = Vec::new();
    if !answer.opening.is_empty() {
        parts.push(answer.opening.clone());
    }
    if let Body::Blocked { line: Some(line), .. } = &answer.body {
        parts.push(line.clone());
    }
    for task in &answer.tasks {
        let mut lines = vec![words::task_line(task)];
        lines.extend(words::details(task));
        lines.extend(task.result.clone());
        parts.push(lines.join("\n"));
    }
    if answer.not_shown > 0 {
        parts.push(format!("And {} more: see background_list.", answer.not_shown));
    }
    if let Body::Output { output, .. } = &answer.body {
        let has_some = answer.tasks.iter().any(|task| task.output_bytes > 0);
        parts.push(match (output.is_empty(), has_some) {
            (true, true) => "(only white space)".to_owned(),
            (true, false) => "(no output)".to_owned(),
            (false, _) => output.clone(),
        });
    }
    if !answer.next.is_empty() {
        parts.push(answer.next.clone());
    }
    let is_list = matches!(answer.body, Body::Listed { .. });
    parts.join(if is_list { "\n" } else { "\n\n" })
}

#[cfg(test)]
mod tests {
    use bgd_shared::notice::{Notice, NoticeResult, Part};
    use bgd_shared::task::Status;
    use bgd_shared::time::Timestamp;

    use super::*;
    use crate::render::samples::task;

    fn ended(id: u128) -> Task {
        Task { id: TaskId::from_u128(id), status: Status::Completed, session: Some("s".into()), ..task() }
    }

    fn item(number: u64, task: Task) -> InboxItem {
        let notice = Notice {
            key: String::new(),
            kind: NoticeKind::Completed,
            at: Timestamp::from_unix_ms(0),
            resume: false,
            title: "[BACKGROUND TASK COMPLETED] Task \"x\" completed".into(),
            text: String::new(),
            active: None,
            duration_ms: None,
            result: Some(NoticeResult { text: "the words\n".into(), bytes: 10, part: Part::All }),
            task,
        };
        InboxItem { number, notice }
    }

    fn blocked(tasks: &[Task]) -> ToolAnswer {
        let (finished, active) = (Vec::new(), Vec::new());
        let (timed_out, cut, line, instance) = (false, false, None, Some("one".to_owned()));
        let body = Body::Blocked { timed_out, cut, finished, active, line, instance };
        ToolAnswer::about(tasks, "s", body).with("All have ended.", "Go on.")
    }

    fn words_of(result: &CallToolResult) -> String {
        result.content[0].as_text().unwrap().text.clone()
    }

    #[test]
    fn head_omits_notices_that_the_answer_itself_reports() {
        let (one, other) = (ended(1), ended(2));
        let news = Outgoing { items: vec![item(1, one.clone()), item(2, other)], ..Outgoing::default() };
        let result = result(Ok(blocked(&[one])), news);
        let (head, own) =
            words_of(&result).split_once("\n\n---\n\n").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        assert!(head.contains("00000000-0000-0000-0000-000000000002"), "{head}");
        assert!(!head.contains("00000000-0000-0000-0000-000000000001"), "{head}");
        assert!(own.contains("\nthe words\n"), "{own}");
        let structured = result.structured_content.unwrap();
        assert_eq!(structured["told"].as_array().unwrap().len(), 1);
        assert_eq!(structured["tasks"][0]["result"], "the words");
    }

    #[test]
    fn r24_wait_says_where_the_output_is_that_it_does_not_report() {
        let with_output = |id| {
            let mut task = ended(id);
            task.output.bytes = 4;
            task
        };
        let silent = ended(3);
        let next = |tasks: &[Task], items| {
            let mut answer = blocked(tasks);
            if let Body::Blocked { finished, .. } = &mut answer.body {
                *finished = tasks.iter().map(|task| task.id.to_string()).collect();
            }
            let result = result(Ok(answer), Outgoing { items, ..Outgoing::default() });
            let next = result.structured_content.as_ref().unwrap()["next"].as_str().unwrap().to_owned();
            assert!(words_of(&result).ends_with(&next), "{}", words_of(&result));
            next
        };
        let one = with_output(1);
        let id = one.id;
        assert_eq!(
            next(std::slice::from_ref(&one), Vec::new()),
            format!(
                "Its output is not in this answer: background_output {{\"task_id\": \"{id}\"}} shows it. Go on."
            )
        );
        assert_eq!(next(std::slice::from_ref(&one), vec![item(1, one.clone())]), "Go on.");
        assert_eq!(next(std::slice::from_ref(&silent), Vec::new()), "Go on.", "it has none");
        let tasks = [one.clone(), with_output(2), silent];
        assert_eq!(
            next(&tasks, vec![item(1, tasks[1].clone())]),
            format!("The output of {id} is not in this answer: background_output shows it. Go on.")
        );
        let mut answer = blocked(&tasks).with("All have ended.", words::MORE_OF_EACH);
        if let Body::Blocked { finished, .. } = &mut answer.body {
            *finished = tasks.iter().map(|task| task.id.to_string()).collect();
        }
        let nothing_new = result(Ok(answer), Outgoing::default()).structured_content.unwrap();
        let both = format!("{id}, {}", tasks[1].id);
        assert_eq!(
            nothing_new["next"],
            format!("The output of {both} is not in this answer: background_output shows it.")
        );
    }

    #[test]
    fn r24_wait_gives_no_advice_on_tasks_whose_daemon_has_gone() {
        let mut task = ended(1);
        task.output.bytes = 4;
        let said = |source| {
            let mut answer = blocked(std::slice::from_ref(&task));
            if let Body::Blocked { finished, .. } = &mut answer.body {
                finished.push(task.id.to_string());
            }
            words_of(&result(Ok(answer), Outgoing { source, ..Outgoing::default() }))
        };
        let shows = "background_output {\"task_id\"";
        let same = said(Source::Instance("one".to_owned()));
        assert!(same.contains(shows) && same.ends_with("Go on."), "{same}");
        assert_eq!(said(Source::Unknown), same);
        let gone = said(Source::NoDaemon);
        assert!(gone.ends_with(words::DAEMON_ENDED) && !gone.contains(shows), "{gone}");
        let other = said(Source::Instance("two".to_owned()));
        assert!(other.ends_with(words::OTHER_DAEMON) && !other.contains(shows), "{other}");
        assert!(!other.contains("Go on."), "{other}");
    }

    #[test]
    fn notice_of_earlier_run_is_not_covered_by_the_answer() {
        let earlier = ended(1);
        let now = Task { run: 2, ..ended(1) };
        assert!(!blocked(&[now]).reports(&item(1, earlier.clone())));
        assert!(blocked(std::slice::from_ref(&earlier)).reports(&item(1, earlier)));
    }

    #[test]
    fn start_answer_defers_notice_of_the_end_of_the_same_run() {
        let answer = ToolAnswer::about(&[Task { status: Status::Pending, ..ended(1) }], "s", Body::Started);
        assert!(answer.starts(&item(1, ended(1))));
        assert!(!answer.starts(&item(2, ended(2))));
        let resumed = ToolAnswer::about(&[Task { resume_count: 1, run: 2, ..ended(1) }], "s", Body::Started);
        assert!(!resumed.starts(&item(1, ended(1))), "an earlier run");
    }

    #[test]
    fn error_answer_has_a_head_too() {
        let items = vec![item(1, ended(1))];
        let news = Outgoing { items, notes: vec!["A note.".into()], ..Outgoing::default() };
        let result = result(Err(Refusal::new("It can't be.")), news);
        assert_eq!(result.is_error, Some(true));
        let text = words_of(&result);
        assert!(text.starts_with("A note.\n\n[BACKGROUND TASK COMPLETED]"), "{text}");
        assert!(text.ends_with("\n\n---\n\nIt can't be."), "{text}");
    }

    #[test]
    fn many_results_share_the_size_limit() {
        let tasks: Vec<Task> = (1..=10).map(ended).collect();
        let long = |id| {
            let mut item = item(id, ended(u128::from(id)));
            let text = "x".repeat(8000);
            item.notice.result = Some(NoticeResult { bytes: 8000, text, part: Part::All });
            item
        };
        let news = Outgoing { items: (1..=10).map(long).collect(), ..Outgoing::default() };
        let result = result(Ok(blocked(&tasks)), news);
        let shown = result.structured_content.unwrap();
        for task in shown["tasks"].as_array().unwrap() {
            let text = task["result"].as_str().unwrap();
            assert!(text.len() > 2000 && text.len() < 3000 && text.contains("background_output"), "{text}");
        }
        assert!(shown["told"].as_array().unwrap().is_empty());
    }

    #[test]
    fn answer_lists_100_tasks_and_counts_the_rest_as_not_shown() {
        let tasks: Vec<Task> = (1..=103).map(ended).collect();
        let answer = ToolAnswer::about(&tasks, "s", Body::Cancelled);
        assert!(answer.reports(&item(1, ended(100))));
        assert!(!answer.reports(&item(1, ended(101))), "what came of it is not shown");
        let mut cancelled = item(1, ended(101));
        cancelled.notice.kind = NoticeKind::Cancelled;
        assert!(answer.reports(&cancelled));
        let result = result(Ok(answer), Outgoing::default());
        assert!(words_of(&result).contains("And 3 more"), "{}", words_of(&result));
        assert_eq!(result.structured_content.unwrap()["not_shown"], 3);
    }

    #[test]
    fn answer_without_news_has_no_head() {
        let text = words_of(&result(Ok(blocked(&[])), Outgoing::default()));
        assert_eq!(text, "All have ended.\n\nGo on.");
    }
}
