//! The wording of notices: title, text, and how much of the result fits. This module reads no files.

use bgd_shared::notice::{Notice as Wire, NoticeKind, NoticeResult, Part};
use bgd_shared::quote::quoted;
use bgd_shared::show;
use bgd_shared::task::{Exit, Task};
use bgd_shared::text::{shortened, truncated};

use crate::core::Notice;

/// The maximum number of characters of an error or a question in a title.
const TITLE_PART_CHARS: usize = 200;

/// The maximum number of characters of a description in a title.
const TITLE_NAME_CHARS: usize = 80;

/// From this duration on, in milliseconds, a run's notice contains its usage.
const LONG_MS: u64 = 60_000;

/// The escaping that makes a channel show text literally.
#[derive(Clone, Copy)]
pub struct Style {
    /// Formats prose: titles, facts, questions. Their text is safe to show.
    pub words: fn(&str) -> String,
    /// Formats a result, which is never empty, and safe to show.
    pub result: fn(&str) -> String,
}

impl Style {
    /// For channels that show text unchanged.
    pub const PLAIN: Self = Self { words: str::to_owned, result: str::to_owned };
}

/// Builds the notice in its wire form.
pub fn notice(notice: &Notice, task: Task, result: Option<NoticeResult>) -> Wire {
    let run = task.run;
    let key = match notice.kind {
        NoticeKind::Started => format!("{}/{run}/started", task.id),
        NoticeKind::NeedsInput => {
            let request = task.progress.needs_input.as_ref().map_or(0, |asked| asked.request);
            format!("{}/{run}/question-{request}", task.id)
        }
        NoticeKind::Completed | NoticeKind::Failed | NoticeKind::Cancelled => format!("{}/{run}", task.id),
        NoticeKind::Unknown => format!("{}/{run}/unknown", task.id),
    };
    let mut wire = Wire {
        key,
        kind: notice.kind,
        at: notice.at,
        resume: task.resume_count > 0,
        title: String::new(),
        text: String::new(),
        active: notice.active,
        duration_ms: run_ms(notice.kind, &task),
        result,
        task,
    };
    wire.title = title(&wire);
    wire.text = text(&wire, reason(&wire).map(String::as_str), wire.result.as_ref(), Style::PLAIN);
    wire
}

/// Returns the run's duration, if it had started and has ended.
fn run_ms(kind: NoticeKind, task: &Task) -> Option<u64> {
    task.run_time_ms(task.completed_at?).filter(|_| kind.is_end())
}

/// Builds the title: the event, the task, and how it ended. The description comes last because a channel may cut off
/// the end.
fn title(notice: &Wire) -> String {
    let name = shortened(&name(notice), TITLE_NAME_CHARS);
    format!("{}: \"{name}\"", head(notice))
}

/// Returns the task's description on one line.
pub fn name(notice: &Wire) -> String {
    show::line(&notice.task.description).trim().to_owned()
}

/// Returns the title without the description.
pub fn head(notice: &Wire) -> String {
    let what = if notice.resume { "RESUME" } else { "TASK" };
    let word = match notice.kind {
        NoticeKind::Started => "STARTED",
        NoticeKind::NeedsInput => "NEEDS INPUT",
        NoticeKind::Completed => "COMPLETED",
        NoticeKind::Failed => "FAILED",
        NoticeKind::Cancelled => "CANCELLED",
        NoticeKind::Unknown => "NOTICE",
    };
    let lead = match notice.kind {
        NoticeKind::NeedsInput => "asks: ",
        // The reason is a clause: "its parent session ended".
        NoticeKind::Cancelled => "because ",
        NoticeKind::Started | NoticeKind::Completed | NoticeKind::Failed | NoticeKind::Unknown => "",
    };
    let why = reason(notice).map(|why| format!(" {lead}{}", one_line(why))).unwrap_or_default();
    let comma = if why.is_empty() { "" } else { "," };
    let time = match (notice.kind, notice.duration_ms) {
        (NoticeKind::Completed, Some(ms)) => format!(" in {}", show::elapsed(ms)),
        // The reason includes the time limit, which is how long the task ran.
        (_, Some(_)) if notice.task.timed_out => String::new(),
        (_, Some(ms)) => format!("{comma} after {}", show::elapsed(ms)),
        (_, None) => String::new(),
    };
    let suspect = if notice.task.suspect.is_some() { " (suspect)" } else { "" };
    format!("[BACKGROUND {what} {word}] {}{suspect}{why}{time}", notice.task.id.short())
}

/// Returns the question, or why the task did not succeed.
fn reason(notice: &Wire) -> Option<&String> {
    match notice.kind {
        NoticeKind::NeedsInput => notice.task.progress.needs_input.as_ref().map(|asked| &asked.question),
        NoticeKind::Failed | NoticeKind::Cancelled => notice.task.error.as_ref(),
        NoticeKind::Started | NoticeKind::Completed | NoticeKind::Unknown => None,
    }
}

/// Builds the whole text with these parts of the reason and the result. It is made safe to show before it is escaped, as
/// only a result in [`Wire::result`] is data for programs.
fn text(notice: &Wire, why: Option<&str>, result: Option<&NoticeResult>, style: Style) -> String {
    let task = &notice.task;
    let mut words = vec![notice.title.clone(), facts(notice)];
    // The person who answers must see the whole question; the title has only its beginning.
    if let Some(why) = why.filter(|why| one_line(why) != **why) {
        words.extend([String::new(), show::lines(why.trim_end())]);
    }
    if let Some(asked) = task.progress.needs_input.as_ref().filter(|_| notice.kind == NoticeKind::NeedsInput)
    {
        words.push(String::new());
        words.extend(asked.options.iter().map(|option| {
            format!("bgctl answer {} {} --request {}", task.id, quoted(&option.id), asked.request)
        }));
    }
    if result.is_some_and(|result| result.part == Part::Gone) {
        words.extend([String::new(), "(its output is gone: the task was cleared)".to_owned()]);
    }
    let mut lines = vec![(style.words)(&show::lines(&words.join("\n")))];
    if let Some(result) = result.filter(|result| !result.text.trim().is_empty()) {
        let rest = || (style.words)(&format!("({} bytes in all: bgctl output {})", result.bytes, task.id));
        let body = show::lines(result.text.trim_end());
        lines.push(String::new());
        match result.part {
            Part::All | Part::Gone | Part::Unknown => lines.push((style.result)(&body)),
            Part::Beginning => lines.extend([(style.result)(&format!("{body} …")), rest()]),
            Part::End => lines.extend([rest(), (style.result)(&format!("… {body}"))]),
        }
    }
    lines.join("\n")
}

/// Builds the line of facts below the title.
fn facts(notice: &Wire) -> String {
    let mut facts = vec![format!("ID {}", notice.task.id)];
    if let Some(agent) = &notice.task.agent {
        facts.push(format!("agent {}", one_line(agent)));
    }
    match &notice.task.exit {
        // The signal came from the time limit, which the title mentions. Here it would look as if the task had been
        // killed by hand.
        _ if notice.task.timed_out => {}
        Some(Exit::Code(code)) => facts.push(show::exit_code(*code)),
        Some(Exit::Signal(signal)) => facts.push(format!("signal {signal}")),
        Some(Exit::Unknown(_)) => facts.push("exit unknown".to_owned()),
        None => {}
    }
    if notice.duration_ms.is_some_and(|ms| ms >= LONG_MS) {
        facts.extend(notice.task.usage.as_ref().map(show::usage));
        facts.extend(notice.task.agent_usage.as_ref().and_then(show::agent_usage));
    }
    match notice.active {
        None => {}
        Some(0) => facts.push("no other task of this session is active".to_owned()),
        Some(1) => facts.push("1 other task of this session is active".to_owned()),
        Some(count) => facts.push(format!("{count} other tasks of this session are active")),
    }
    // A command that writes to files itself notices a full disk; only bgd knows about output lost here.
    facts.extend(notice.task.output.loss());
    facts.extend(notice.task.suspect.as_deref().map(|why| format!("suspect: {}", one_line(why))));
    facts.join("; ")
}

/// Formats a notice for a channel with a size limit. Omits the part of the result, question or error that does not fit,
/// and adds how to get it. `size` measures text in the same way as the channel.
pub fn fitting(notice: &Wire, style: Style, most: usize, size: impl Fn(&str) -> usize) -> String {
    let why = reason(notice).map(String::as_str);
    let whole = text(notice, why, notice.result.as_ref(), style);
    if size(&whole) <= most {
        return whole;
    }
    // Includes `body`, and explains how to get the rest.
    let with = |result: &NoticeResult, body: &str| {
        let part = if result.part == Part::All { part_of(notice) } else { result.part };
        let shorter = NoticeResult { text: body.to_owned(), bytes: result.bytes, part };
        text(notice, why, Some(&shorter), style)
    };
    let Some(result) = notice.result.as_ref().filter(|result| size(&with(result, "x")) < most) else {
        return without_result(notice, style, most, &size);
    };
    let size = |body: &str| size(&with(result, body));
    with(
        result,
        match part_of(notice) {
            Part::End => cut_front(result.text.trim_end(), most, &size),
            Part::All | Part::Beginning | Part::Gone | Part::Unknown => cut(&result.text, most, &size),
        },
    )
}

/// Formats a notice that does not fit even without a result: keeps the beginning of the error, or both ends of
/// the question and the commands that answer.
fn without_result(notice: &Wire, style: Style, most: usize, size: &impl Fn(&str) -> usize) -> String {
    let rest = format!("(the rest: bgctl status {})", notice.task.id);
    let with = |why: &str| text(notice, Some(&format!("{why} …\n{rest}")), None, style);
    if let Some(why) = reason(notice)
        && size(&with("")) <= most
    {
        // What a command does may be at its end, and an answer must not allow what it hides.
        if notice.kind == NoticeKind::NeedsInput {
            let with = |why: &str| text(notice, Some(&format!("{why}\n{rest}")), None, style);
            return with(&cut_middle(why.trim_end(), most, &|part: &str| size(&with(part))));
        }
        return with(cut(why, most, &|part: &str| size(&with(part))));
    }
    // Cut before escaping, so that no escape sequence is split.
    let cut_off = |part: &str| (style.words)(&format!("{part} …\n{rest}"));
    let plain = text(notice, reason(notice).map(String::as_str), None, Style::PLAIN);
    cut_off(cut(&plain, most, &|part: &str| size(&cut_off(part))))
}

/// Returns which part of a result to keep if it does not fit. An agent's answer is read from its beginning; a command
/// reports its outcome at the end.
pub fn part_of(notice: &Wire) -> Part {
    if notice.task.agent.is_some() { Part::Beginning } else { Part::End }
}

/// Returns the longest prefix that is not larger than `most`.
fn cut<'a>(text: &'a str, most: usize, size: &impl Fn(&str) -> usize) -> &'a str {
    let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let count = ends.partition_point(|end| size(&text[..*end]) <= most);
    &text[..ends[count.saturating_sub(1)]]
}

/// Cuts as little as possible out of the middle, so that the result is not larger than `most`.
fn cut_middle(text: &str, most: usize, size: &impl Fn(&str) -> usize) -> String {
    let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let count = ends.len() - 1;
    let kept = |number: usize| {
        let (begin, end) = (&text[..ends[number - number / 2]], &text[ends[count - number / 2]..]);
        format!("{begin} … {end}")
    };
    let numbers: Vec<usize> = (0..=count).collect();
    let fitting = numbers.partition_point(|number| size(&kept(*number)) <= most);
    kept(fitting.saturating_sub(1))
}

/// Returns the longest suffix that is not larger than `most`.
fn cut_front<'a>(text: &'a str, most: usize, size: &impl Fn(&str) -> usize) -> &'a str {
    let begins: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let too_large = begins.partition_point(|begin| size(&text[*begin..]) > most);
    &text[begins[too_large.min(begins.len() - 1)]..]
}

/// Escapes a text for consumers that interpret markup.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the beginning of a text on one line, limited to what fits in a title.
pub fn one_line(text: &str) -> String {
    show::line(&truncated(text, TITLE_PART_CHARS)).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn notice_line_is_sanitized_and_bounded() {
        assert_eq!(one_line("\x1b[2Jb\u{2066}c\n"), "\u{fffd}[2Jb\u{fffd}c");
        assert_eq!(one_line(&"x".repeat(TITLE_PART_CHARS + 1)), "x".repeat(TITLE_PART_CHARS) + "…");
    }

    /// Creates a notice of a task that has run for this long, with these additional fields.
    fn notice(kind: &str, ms: u64, more: &serde_json::Value) -> Wire {
        let at = "1970-01-01T00:00:00.000Z";
        let progress = json!({"output_bytes": 0, "tool_calls": 0, "denied": 0, "stalled": false});
        let output = json!({"path": "/o", "bytes": 0, "dropped_bytes": 0});
        let mut task = json!({"id": "00000000-0000-0000-0000-000000000001", "kind": "process", "origin": "submit",
            "status": kind, "description": "d", "cwd": "/", "run": 1, "resume_count": 0, "created_at": at,
            "progress": progress, "output": output});
        for (key, value) in more.as_object().unwrap() {
            task[key] = value.clone();
        }
        let notice = json!({"key": "k", "kind": kind, "at": at, "resume": false, "title": "", "text": "",
            "duration_ms": ms, "task": task});
        serde_json::from_value(notice).unwrap()
    }

    #[test]
    fn r164_notice_of_a_long_run_includes_cpu_time() {
        let id = "00000000-0000-0000-0000-000000000001";
        let usage = json!({"user_ms": 50_000, "system_ms": 20_000, "written_bytes": 0});
        let notice = |ms| notice("completed", ms, &json!({"exit": {"code": 0}, "usage": usage}));
        assert_eq!(facts(&notice(60_000)), format!("ID {id}; exit code 0; 1m 10s of CPU"));
        assert_eq!(facts(&notice(59_999)), format!("ID {id}; exit code 0"));
    }

    #[test]
    fn r51_question_that_is_too_long_keeps_its_answers() {
        let options = ["allow-once", "reject"].map(|id| json!({"id": id, "name": id, "kind": "allow_once"}));
        let question =
            format!("execute: {}\nchanges: a\u{20ac}\n{}", "rm *; ".repeat(60), "- b\n+ c\n".repeat(60));
        let progress = json!({"output_bytes": 0, "tool_calls": 0, "denied": 0, "stalled": false,
            "needs_input": {"request": 3, "question": question, "options": options}});
        let mut notice = notice("completed", 1000, &json!({"progress": progress}));
        notice.kind = NoticeKind::NeedsInput;
        notice.title = title(&notice);
        // As in Markdown.
        let words = |text: &str| text.replace('-', "\\-").replace('*', "\\*");
        let style = Style { words, result: str::to_owned };
        let size = |text: &str| text.encode_utf16().count();
        let whole = size(&fitting(&notice, style, usize::MAX, size));
        for most in 1000..whole {
            let text = fitting(&notice, style, most, size);
            assert!((most - 10..=most).contains(&size(&text)), "{most}: {text}");
            for option in ["allow\\-once", "reject"] {
                assert!(text.contains(&format!(" {option} \\-\\-request 3")), "{most}: {text}");
            }
            let ends = ["rm \\*; ", " … ", "+ c\n(the rest: bgctl status 00000000"];
            assert!(ends.iter().all(|part| text.contains(part)), "{most}: {text}");
        }
        // There is no room even for the answers.
        let text = fitting(&notice, style, 300, size);
        assert!(size(&text) <= 300 && text.contains(" …\n(the rest: bgctl status "), "{text}");
        assert!(!fitting(&notice, style, whole, size).contains("(the rest: "));
    }

    #[test]
    fn r51_text_of_a_notice_shows_hidden_characters_of_a_result() {
        let raw = "a\x1b[31m\x07\u{202e}b\u{85}\u{200b}\tc\n\u{2066}<d>";
        let mut notice = notice("failed", 1000, &json!({"error": "no\u{202e}\nwhy\x1b"}));
        notice.result = Some(NoticeResult { text: raw.to_owned(), bytes: 9, part: Part::All });
        notice.title = title(&notice);
        let shown = "a\u{fffd}[31m\u{fffd}b\u{fffd}\tc\n\u{fffd}<d>";
        for style in [Style::PLAIN, Style { words: escaped, result: escaped }] {
            let whole = fitting(&notice, style, usize::MAX, str::len);
            assert!(whole.ends_with(&(style.result)(shown)), "{whole}");
            // What must be cut is clean, too.
            for most in 1..=whole.len() {
                let text = fitting(&notice, style, most, str::len);
                let is_clean = |c: char| matches!(c, '\n' | '\t') || !show::is_hidden(c) || c == '\u{fffd}';
                assert!(text.chars().all(is_clean), "{most}: {text:?}");
            }
        }
    }

    #[test]
    fn title_of_a_cancelled_task_includes_reason_and_duration() {
        let why = json!({"error": "its terminal was closed or its client ended"});
        assert_eq!(
            title(&notice("cancelled", 1000, &why)),
            "[BACKGROUND TASK CANCELLED] 00000000 because its terminal was closed or its client ended, after 1s: \"d\""
        );
        assert_eq!(
            title(&notice("cancelled", 1000, &json!({}))),
            "[BACKGROUND TASK CANCELLED] 00000000 after 1s: \"d\""
        );
    }
}
