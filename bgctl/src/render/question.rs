//! Renders an agent's question and its possible answers.

use std::fmt::Write as _;

use bgd_shared::agent::{InputOption, NeedsInput, OptionKind};
use bgd_shared::id::TaskId;
use bgd_shared::show;
use bgd_shared::time::Timestamp;

use super::{bounded, clean, clean_lines};

/// Maximum number of characters to show of a question: more than a daemon passes on, as nobody can allow what they can't
/// read.
pub const QUESTION_CHARS: usize = 32_000;

/// Renders the question with everything needed to answer it.
pub fn question(id: TaskId, asked: &NeedsInput, now: Timestamp) -> String {
    let text = clean_lines(&bounded(asked.question.trim_end(), QUESTION_CHARS));
    let mut page = format!("question {}: {text}\n{}", asked.request, options(asked));
    // Writing to a string can't fail.
    let _ = writeln!(page, "{}", how(id));
    for note in [expiry(asked, now), behind(asked)].into_iter().flatten() {
        let _ = writeln!(page, "{note}");
    }
    page
}

/// Lists the options, one per line: id, name, effect.
pub fn options(asked: &NeedsInput) -> String {
    let widest = asked.options.iter().map(|option| clean(&option.id).chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for option in &asked.options {
        let _ = writeln!(text, "  {}", line(option, widest));
    }
    text
}

/// Renders an option, with its id padded to `width`.
pub fn line(option: &InputOption, width: usize) -> String {
    let does = match option.kind {
        OptionKind::AllowOnce => " (allows it once)",
        OptionKind::AllowAlways => " (always allows it)",
        OptionKind::RejectOnce => " (denies it once)",
        OptionKind::RejectAlways => " (always denies it)",
        OptionKind::Other => "",
    };
    format!("{:<width$}  {}{does}", clean(&option.id), clean(&option.name))
}

/// Explains how to answer.
pub fn how(id: TaskId) -> String {
    format!(
        "answer with `bgctl answer {} OPTION`: an id or name from this list, or allow or deny",
        id.short()
    )
}

/// Describes when the question is denied automatically; `None` if never.
pub fn expiry(asked: &NeedsInput, now: Timestamp) -> Option<String> {
    asked.expires_at.map(|at| format!("denied in {} unless answered", show::elapsed(at.millis_since(now))))
}

/// Describes how many questions are queued behind this one.
pub fn behind(asked: &NeedsInput) -> Option<String> {
    match asked.waiting {
        0 => None,
        1 => Some("1 more question is waiting".to_owned()),
        count => Some(format!("{count} more questions are waiting")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;

    #[test]
    fn question_is_shown_with_options_command_and_deadline() {
        let mut asked = samples::question();
        asked.question = "Run \x1b[2J`make`?\nIn /src.\n".into();
        asked.waiting = 2;
        assert_eq!(
            question(samples::task().id, &asked, Timestamp::from_unix_ms(1_000_000)),
            "question 7: Run \u{fffd}[2J`make`?\nIn /src.\n  \
             once    Allow once (allows it once)\n  \
             reject  No (denies it once)\n\
             answer with `bgctl answer 3f2a9c1e OPTION`: an id or name from this list, or allow or deny\n\
             denied in 5m 00s unless answered\n\
             2 more questions are waiting\n"
        );
    }

    #[test]
    fn long_question_is_truncated() {
        let asked = NeedsInput { question: "x".repeat(100_000), ..samples::question() };
        assert!(question(samples::task().id, &asked, Timestamp::from_unix_ms(0)).len() < 2 * QUESTION_CHARS);
    }
}
