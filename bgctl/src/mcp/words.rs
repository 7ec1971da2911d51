//! The wording of answers for a model: short lines of text, with full ids. Pure functions.

use std::fmt;

use bgd_shared::failure::FailureKind;
use bgd_shared::notice::{InboxItem, Notice, NoticeKind, Part};
use bgd_shared::request::BlockResult;
use bgd_shared::show::{count, elapsed, exit_code};
use bgd_shared::task::{Kind, Status, Task};
use bgd_shared::text::{beginning, ending};

use super::shapes::TaskFacts;
use crate::render::table::signal_name;
use crate::render::{clean_lines, survivors};

/// Maximum number of bytes of a task's output in one answer.
pub const OUTPUT_BYTES: usize = 32 * 1024;

/// Maximum number of bytes of the result in one notification.
const NEWS_RESULT_BYTES: usize = 8 * 1024;

/// Maximum number of bytes of all notifications in one answer, which has at least one.
pub const NEWS_BYTES: usize = 24 * 1024;

/// Maximum number of bytes of a matching line.
pub const LINE_BYTES: usize = 4 * 1024;

/// What to do once all of several tasks have ended.
pub const MORE_OF_EACH: &str = "background_output shows more output of each.";

/// What the end of the daemon means.
pub const DAEMON_ENDED: &str = "The bgd daemon has ended. All earlier tasks are lost, unless it is durable. The next call of \
     one of these tools starts a new daemon, and its result says which: only then start the ones you still need again.";

/// What another daemon than that of the tasks means.
pub const OTHER_DAEMON: &str = "The daemon that had these tasks has ended, and its tasks are gone.";

/// A text that may be truncated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    pub text: String,
    pub is_cut: bool,
}

/// Returns about `most` bytes of a text: the beginning of an agent's answer, or the end of a command's output, which
/// shows how it went.
pub fn excerpt(text: &str, most: usize, kind: Kind) -> Excerpt {
    let clean = clean_lines(&text.replace("\r\n", "\n"));
    let text = clean.trim_end();
    if text.len() <= most {
        return Excerpt { text: text.to_owned(), is_cut: false };
    }
    let part = match kind {
        Kind::Agent => format!("{} …", beginning(text, most)),
        Kind::Process | Kind::Unknown => format!("… {}", ending(text, most)),
    };
    Excerpt { text: part, is_cut: true }
}

/// Returns the result in a notice, cut to about `most` bytes; `None` if there is none.
pub fn result(notice: &Notice, most: usize) -> Option<String> {
    let result = notice.result.as_ref()?;
    if result.part == Part::Gone {
        return Some("(its output is gone: the task was cleared)".to_owned());
    }
    let excerpt = excerpt(&result.text, most.min(NEWS_RESULT_BYTES), notice.task.kind);
    let is_whole = !excerpt.is_cut && result.part == Part::All;
    let rest = format!(
        "({} bytes in total: background_output {{\"task_id\": \"{}\"}}, or the file {})",
        result.bytes, notice.task.id, notice.task.output.path
    );
    match (excerpt.text.is_empty(), is_whole) {
        (true, _) if result.bytes == 0 => None,
        (true, true) => Some(format!("(only white space: {})", count(result.bytes, "byte"))),
        (true, false) => Some(format!("(the part that fits here is only white space)\n{rest}")),
        (false, true) => Some(excerpt.text),
        (false, false) => Some(format!("{}\n{rest}", excerpt.text)),
    }
}

/// Formats an inbox item for the head of an answer.
pub fn item_text(item: &InboxItem) -> String {
    let notice = &item.notice;
    if notice.kind == NoticeKind::NeedsInput {
        return format!(
            "{}\nOnly the user can answer this: tell them, and continue. The agent is waiting for the answer.",
            clean_lines(notice.text.trim_end())
        );
    }
    let mut text = format!("{}\ntask_id: {}", clean_lines(&notice.title), notice.task.id);
    if let Some(code) = notice.task.exit.as_ref().filter(|_| !notice.task.timed_out).and_then(exit) {
        text = format!("{text}; {code}");
    }
    if let Some(why) = &notice.task.suspect {
        text = format!("{text}\nsuspect: {}", clean_lines(why));
    }
    match (result(notice, NEWS_RESULT_BYTES), &notice.result, notice.task.kind) {
        (Some(result), _, _) => format!("{text}\n{result}"),
        (None, Some(_), Kind::Process | Kind::Unknown) => format!("{text}; no output"),
        (None, Some(_), Kind::Agent) => format!("{text}; the agent gave no answer"),
        (None, None, _) => text,
    }
}

fn exit(exit: &bgd_shared::task::Exit) -> Option<String> {
    use bgd_shared::task::Exit;
    match exit {
        Exit::Code(code) => Some(exit_code(*code)),
        Exit::Signal(signal) => Some(signal_name(*signal)),
        Exit::Unknown(_) => None,
    }
}

/// Formats a task as one line; the id of a resumed task is followed by `(resumed)` (R38).
pub fn task_line(facts: &TaskFacts) -> String {
    let resumed = if facts.resumed > 0 { " (resumed)" } else { "" };
    let mut how = vec![facts.status.clone()];
    how.extend(facts.paused.map(|_| "paused by the user".to_owned()));
    if facts.status == Status::Running.as_str() {
        how.extend(facts.ready.map(|is_ready| if is_ready { "ready" } else { "not ready yet" }.to_owned()));
    }
    how.extend(facts.exit_code.map(exit_code));
    how.extend(facts.signal.map(signal_name));
    how.extend(facts.run_time_ms.map(elapsed));
    how.extend(facts.lingering.map(|_| "its processes are still running".to_owned()));
    let agent = facts.agent.as_deref().map(|agent| format!(" [agent {agent}]")).unwrap_or_default();
    let foreign = if facts.foreign { " [of another session]" } else { "" };
    let on = facts.on.as_deref().map(|on| format!(" [on {on}]")).unwrap_or_default();
    format!("{}{resumed}  {}  \"{}\"{agent}{on}{foreign}", facts.task_id, how.join(", "), facts.description)
}

/// Lists further facts about a task, one per line.
pub fn details(facts: &TaskFacts) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(facts.unknown_since.as_deref().map(|since| {
        let on = facts.on.as_deref().unwrap_or("its machine");
        format!("{on} has not been reachable since {since}; nothing is decided until it can be reached again")
    }));
    lines.extend(facts.waits.as_deref().map(|what| format!("waits: {what}")));
    lines.extend(facts.error.as_deref().map(|error| format!("error: {error}")));
    lines.extend(facts.suspect.as_deref().map(|why| format!("suspect: {why}")));
    lines.extend(facts.warning.as_deref().map(|what| format!("warning: {what}")));
    lines.extend(facts.last_words.as_deref().map(|words| format!("the agent's last output: {words}")));
    lines.extend(facts.output_warning.clone());
    lines.extend(facts.asks.as_deref().map(|asks| {
        format!("its agent asks, and only the user can answer (bgctl answer {}): {asks}", facts.task_id)
    }));
    lines.extend(
        facts.tool_calls.filter(|count| *count > 0).map(|count| format!("tools called so far: {count}")),
    );
    lines.extend(facts.plan.as_ref().map(|plan| format!("its plan: {}", plan.join("; "))));
    lines.extend(facts.used.as_deref().map(|what| format!("used: {what}")));
    lines.extend(facts.consumed.as_deref().map(|what| format!("consumed so far: {what}")));
    lines.extend(facts.last_line.as_deref().map(|line| format!("last line: {line}")));
    lines
}

/// Returns advice on what to do while these tasks run.
pub fn while_running(ids: &[String]) -> String {
    let list: Vec<String> = ids.iter().map(|id| format!("\"{id}\"")).collect();
    format!(
        "Continue with other work: a later result of these tools reports its end. If there is nothing else to \
         do, wait with background_block {{\"task_ids\": [{}]}}.",
        list.join(", ")
    )
}

/// Returns advice on what can be done with a task that was just shown.
pub fn after(task: &Task, is_own: bool) -> String {
    let id = task.id;
    if !is_own {
        return "It belongs to another session: you can only look at it and wait for it.".to_owned();
    }
    match (task.status.is_active(), task.kind) {
        (true, _) => while_running(&[id.to_string()]),
        (false, Kind::Agent) if task.status == Status::Completed => format!(
            "To send the same agent a follow-up: background_task {{\"resume\": \"{id}\", \"prompt\": \"…\"}}."
        ),
        (false, Kind::Agent) if is_interrupted(task) => format!(
            "Its turn was cut short, but the conversation can go on: background_task {{\"resume\": \"{id}\", \
             \"prompt\": \"…\"}}."
        ),
        (false, _) if let Some(left) = survivors(task) => format!("It was cancelled, but {left}."),
        (false, _) if task.lingering => format!(
            "It has ended, but processes it started are still running: background_cancel {{\"task_id\": \
             \"{id}\"}} ends them."
        ),
        (false, _) => "Nothing more will come from this task.".to_owned(),
    }
}

/// Reports whether a task's last turn was cut short by the end of its daemon.
fn is_interrupted(task: &Task) -> bool {
    task.failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::Interrupted)
}

/// Describes what has become of cancelled tasks, if the end of all processes is not confirmed for some: `left` says what
/// is left of each of these.
pub fn unconfirmed(count: usize, left: &[String]) -> String {
    match (count, left) {
        (1, [left]) => format!("It was cancelled, but {left}."),
        (_, [left]) => format!("{count} tasks were cancelled. Of one of them: {left}."),
        _ => {
            let number = left.len();
            format!("{count} tasks were cancelled, but {number} of them may still have processes, as shown.")
        }
    }
}

/// Describes a wait that ended because a task asks its user a question.
pub fn asked(result: &BlockResult) -> String {
    let (active, all) = (result.active.len(), result.tasks.len());
    if all == 1 {
        return "It asks the user a question and is waiting for the answer.".to_owned();
    }
    format!("A task asks the user a question and is waiting for the answer: {}.", how_many_ended(active, all))
}

/// Why a wait ended before its condition was met.
#[derive(Debug)]
pub enum Over {
    /// The timeout, given as text, expired.
    TimedOut(String),
    /// The input ended, so the answer is no longer awaited.
    InputEnded,
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut(time) => write!(f, "Timed out ({time})"),
            Self::InputEnded => f.write_str("The wait was stopped because this server's input has ended"),
        }
    }
}

/// Describes the outcome of a wait for the end of tasks.
pub fn ended(result: &BlockResult, over: &Over) -> String {
    let (active, all) = (result.active.len(), result.tasks.len());
    match (active, &result.tasks[..]) {
        (0, [_]) => "It has ended.".to_owned(),
        (0, _) => format!("All {all} have ended."),
        (_, [task]) => format!("{over}; it {}.", still(task)),
        _ => format!("{over}: {}.", how_many_ended(active, all)),
    }
}

fn how_many_ended(active: usize, all: usize) -> String {
    let ended = all - active;
    let have = |count: usize| if count == 1 { "has" } else { "have" };
    format!("{ended} of {all} {} ended, {active} {} not", have(ended), have(active))
}

/// Describes the outcome of a wait for tasks to become ready.
pub fn ready(result: &BlockResult, over: &Over) -> String {
    let all = result.tasks.len();
    let ready = result.tasks.iter().filter(|task| task.ready_at.is_some()).count();
    let is_late = result.tasks.iter().any(|task| task.status.is_active() && task.ready_at.is_none());
    let are = if ready == 1 { "is" } else { "are" };
    match (&result.tasks[..], is_late) {
        ([task], true) if task.status == Status::Pending => {
            format!("{over}; it has not started.")
        }
        ([_], true) => format!("{over}; it is not ready."),
        (_, true) => format!("{over}: {ready} of {all} {are} ready."),
        ([task], false) => match (task.ready_at.is_some(), task.status.is_active()) {
            (true, true) => "It is ready.",
            (true, false) => "It was ready, and has ended.",
            (false, _) => "It has ended without becoming ready.",
        }
        .to_owned(),
        (_, false) if ready == all => format!("All {all} are ready, or were."),
        (_, false) => {
            let were = if ready == 1 { "was" } else { "were" };
            let others = if all - ready == 1 { "other" } else { "others" };
            format!("{ready} of {all} {are} ready, or {were}; the {others} ended without becoming ready.")
        }
    }
}

/// Describes the outcome of a wait for a line of one task.
pub fn line(result: &BlockResult, is_there: bool, over: &Over) -> String {
    match result.tasks.first() {
        _ if is_there => "It printed this line:".to_owned(),
        Some(task) if task.status == Status::Pending && !task.has_begun() => {
            format!("{over}; it has not started.")
        }
        Some(task) if task.status.is_active() => {
            format!("{over}; it has not printed a matching line.")
        }
        _ => "It has ended without a matching line.".to_owned(),
    }
}

/// Returns what an active task is doing.
fn still(task: &Task) -> &'static str {
    if task.status == Status::Pending { "has not started" } else { "is still running" }
}

#[cfg(test)]
mod tests {
    use bgd_shared::failure::Failure;
    use bgd_shared::notice::NoticeResult;
    use bgd_shared::time::Timestamp;

    use super::*;
    use crate::mcp::shapes::facts;
    use crate::render::samples::task;

    #[test]
    fn long_text_keeps_beginning_for_agents_and_end_for_commands() {
        assert_eq!(excerpt("all\n", 10, Kind::Agent), Excerpt { text: "all".into(), is_cut: false });
        let cut = |kind| excerpt("ääbb", 3, kind).text;
        assert_eq!(cut(Kind::Agent), "ä …");
        assert_eq!(cut(Kind::Process), "… bb");
        assert_eq!(excerpt("a\x1b[2J\r\nb", 20, Kind::Process).text, "a\u{fffd}[2J\nb");
    }

    fn notice(kind: NoticeKind, of: Kind, result: Option<(&str, u64, Part)>) -> Notice {
        let result = result.map(|(text, bytes, part)| NoticeResult { text: text.to_owned(), bytes, part });
        Notice {
            key: String::new(),
            kind,
            at: Timestamp::from_unix_ms(0),
            resume: false,
            title: "The title".into(),
            text: "The text\n".into(),
            active: None,
            duration_ms: None,
            result,
            task: Task { kind: of, ..task() },
        }
    }

    fn news(kind: NoticeKind, of: Kind, result: Option<(&str, u64, Part)>) -> String {
        let notice = notice(kind, of, result);
        let text = item_text(&InboxItem { number: 1, notice });
        text.strip_prefix("The title\ntask_id: 3f2a9c1e-0000-4000-8000-000000000001").unwrap().to_owned()
    }

    #[test]
    fn r81_notice_describes_empty_blank_partial_and_missing_output() {
        use NoticeKind::{Cancelled, Completed, Failed};
        let command = |kind, text, bytes, part| news(kind, Kind::Process, Some((text, bytes, part)));
        assert_eq!(command(Completed, "a\n", 2, Part::All), "\na");
        assert_eq!(command(Completed, "", 0, Part::All), "; no output");
        assert_eq!(command(Failed, "", 0, Part::All), "; no output");
        assert_eq!(command(Completed, "\n\n\n", 3, Part::All), "\n(only white space: 3 bytes)");
        let part = command(Completed, "\n\n\n", 99, Part::End);
        assert!(
            part.starts_with("\n(the part that fits here is only white space)\n(99 bytes in total: "),
            "{part}"
        );
        assert_eq!(command(Completed, "", 0, Part::Gone), "\n(its output is gone: the task was cleared)");
        assert_eq!(news(Completed, Kind::Agent, Some(("", 0, Part::All))), "; the agent gave no answer");
        assert_eq!(news(Cancelled, Kind::Process, None), "");
    }

    #[test]
    fn agent_question_is_left_to_the_user() {
        let question = notice(NoticeKind::NeedsInput, Kind::Agent, None);
        let text = item_text(&InboxItem { number: 1, notice: question });
        assert!(text.starts_with("The text\n") && text.contains("Only the user can answer"), "{text}");
    }

    #[test]
    fn r38_resumed_task_is_marked_after_its_id() {
        let of = |resume_count| {
            let task = bgd_shared::task::Task { resume_count, session: Some("s".into()), ..task() };
            task_line(&facts(&task, "s"))
        };
        let id = "3f2a9c1e-0000-4000-8000-000000000001";
        assert_eq!(of(0), format!("{id}  pending  \"make -j8\""));
        assert_eq!(of(2), format!("{id} (resumed)  pending  \"make -j8\""));
    }

    #[test]
    fn wait_answer_states_why_it_ended() {
        let running = Task { status: Status::Running, ..task() };
        let active = vec![running.id];
        let result =
            BlockResult { tasks: vec![running], timed_out: false, finished: vec![], active, cleared: None };
        let timed_out = Over::TimedOut("50s".to_owned());
        assert_eq!(ended(&result, &timed_out), "Timed out (50s); it is still running.");
        let stopped = ended(&result, &Over::InputEnded);
        assert!(stopped.ends_with("this server's input has ended; it is still running."), "{stopped}");
        assert_eq!(ready(&result, &timed_out), "Timed out (50s); it is not ready.");
    }

    #[test]
    fn next_step_depends_on_status_and_kind() {
        let of = |status, kind| after(&bgd_shared::task::Task { status, kind, ..task() }, true);
        assert!(of(Status::Running, Kind::Process).contains("background_block"));
        assert!(of(Status::Completed, Kind::Agent).contains("\"resume\""));
        assert!(of(Status::Failed, Kind::Agent).contains("Nothing more"));
        assert!(of(Status::Completed, Kind::Process).contains("Nothing more"));
        let of = |kind, failed| {
            let failure = Some(Failure::new(failed, "the daemon ended"));
            after(&Task { status: Status::Failed, kind, failure, ..task() }, true)
        };
        let interrupted = of(Kind::Agent, FailureKind::Interrupted);
        assert!(interrupted.contains("\"resume\"") && !interrupted.contains("Nothing more"), "{interrupted}");
        assert!(of(Kind::Agent, FailureKind::Agent).contains("Nothing more"));
        let lingering = Task { status: Status::Completed, lingering: true, ..task() };
        assert!(after(&lingering, true).contains("background_cancel"), "{}", after(&lingering, true));
        let stuck = Task { status: Status::Cancelled, lingering: true, ..task() };
        assert_eq!(
            after(&stuck, true),
            "It was cancelled, but some of its processes do not end after SIGKILL."
        );
        let left = ["it may still run on far".to_owned()];
        assert_eq!(unconfirmed(1, &left), "It was cancelled, but it may still run on far.");
        assert_eq!(unconfirmed(3, &left), "3 tasks were cancelled. Of one of them: it may still run on far.");
    }
}
