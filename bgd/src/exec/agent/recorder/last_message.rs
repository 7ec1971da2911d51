//! The last message of an agent's answer, which is the task's result.

use bgd_shared::limits::AGENT_RESULT_BYTES;
use serde::{Deserialize, Serialize};

use crate::exec::agent::signs;

/// The maximum length of an answer, in bytes; the beginning of a longer one is cut off.
#[allow(clippy::cast_possible_truncation, reason = "1 MiB")]
const ANSWER_BYTES: usize = AGENT_RESULT_BYTES as usize;

/// How the next piece of an answer relates to the text before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Next {
    /// It continues the same message.
    #[default]
    Goes,
    /// A tool was called in between.
    AfterTool,
    /// It belongs to another part of the same message.
    OtherPart,
    /// It belongs to another message.
    OtherMessage,
}

/// Prefixes of notices that adapters send as messages of the agent. A notice after the answer is not the
/// answer. Seen with codex-acp.
const NOTICES: [&str; 3] = ["**Warning:**", "Warning: ", "Config warning: "];

/// The last message since the last tool call, or the one before that call if nothing has followed it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LastMessage {
    pub said: String,
    /// How many bytes were cut off its beginning.
    cut: u64,
    /// The previous message, with the number of bytes cut off its beginning. It is the answer if the last message is
    /// only a notice.
    pub before: Option<(u64, String)>,
    pub next: Next,
    pub any_tool: bool,
}

impl LastMessage {
    pub fn push(&mut self, text: &str) {
        match std::mem::take(&mut self.next) {
            Next::Goes => {}
            Next::OtherPart => self.said.push_str(if self.said.ends_with('\n') { "\n" } else { "\n\n" }),
            Next::AfterTool => *self = Self { any_tool: self.any_tool, ..Self::default() },
            Next::OtherMessage => {
                self.bound();
                let before = (self.cut, std::mem::take(&mut self.said));
                if !is_notice(&before.1) && !before.1.trim().is_empty() {
                    self.before = Some(before);
                }
                self.cut = 0;
            }
        }
        self.said.push_str(text);
        if self.said.len() > 2 * ANSWER_BYTES {
            self.bound();
        }
    }

    /// Replaces both the last message and the previous one.
    pub fn replace(&mut self, said: String) {
        *self = Self { said, any_tool: self.any_tool, ..Self::default() };
        self.bound();
    }

    /// Notes a tool call, after which another message begins.
    pub fn tool_called(&mut self) {
        self.next = Next::AfterTool;
        self.any_tool = true;
    }

    /// Notes that the text that follows belongs to another message.
    pub fn other_message(&mut self) {
        // A tool call discards more, so it takes precedence. Before the first text there is no message to end.
        if self.next != Next::AfterTool && !self.said.is_empty() {
            self.next = Next::OtherMessage;
        }
    }

    /// Notes that the text that follows belongs to another part of the same message.
    pub fn other_part(&mut self) {
        if self.next == Next::Goes && !self.said.is_empty() {
            self.next = Next::OtherPart;
        }
    }

    /// Returns the message if it is an error of the model instead of an answer.
    pub fn error(&self) -> Option<&str> {
        // An agent that has used tools may quote an error.
        signs::error_as_answer(&self.said).filter(|_| !self.any_tool)
    }

    /// Returns whether the turn has produced nothing visible.
    pub fn is_nothing(&self) -> bool {
        let is_blank = |said: &str| said.trim().is_empty();
        !self.any_tool && is_blank(&self.said) && self.before.is_none()
    }

    /// Cuts off the beginning beyond [`ANSWER_BYTES`].
    fn bound(&mut self) {
        let surplus = self.said.len().saturating_sub(ANSWER_BYTES);
        let cut = self.said.ceil_char_boundary(surplus);
        self.said.drain(..cut);
        self.cut += cut as u64;
    }

    /// Returns the answer, and how many bytes were cut off before it.
    pub fn last(mut self) -> (u64, String) {
        self.bound();
        match self.before {
            Some(before) if is_notice(&self.said) => before,
            Some(_) | None => (self.cut, self.said),
        }
    }
}

fn is_notice(said: &str) -> bool {
    NOTICES.iter().any(|begin| said.trim_start().starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_the_last_text_between_tool_calls() {
        let mut answer = LastMessage::default();
        answer.push("Let me ");
        answer.push("look.");
        answer.tool_called();
        answer.push("It is ");
        answer.push("here.");
        answer.tool_called();
        assert_eq!(answer.last(), (0, "It is here.".to_owned()));
    }

    #[test]
    fn answer_is_the_last_message_ignoring_trailing_warnings() {
        let answer = |messages: &[&str]| {
            let mut answer = LastMessage::default();
            for message in messages {
                answer.other_message();
                answer.push(&message[..1]);
                answer.push(&message[1..]);
            }
            answer
        };
        let last = |messages: &[&str]| answer(messages).last().1;
        assert_eq!(last(&["I look.", "It is here."]), "It is here.");
        assert_eq!(last(&["It is here.", "**Warning:** old model"]), "It is here.");
        assert_eq!(last(&["**Warning:** old model", "It is here."]), "It is here.");
        assert_eq!(last(&["It is here.", "Warning: a", "Config warning: b"]), "It is here.");
        assert_eq!(last(&["Warning: a", "Warning: b"]), "Warning: b", "better than nothing");
        let mut after_tool = answer(&["It is here."]);
        after_tool.tool_called();
        after_tool.other_message();
        after_tool.push("Warning: a");
        assert_eq!(after_tool.last().1, "Warning: a");
    }

    #[test]
    fn answer_has_all_parts_of_the_last_message_as_paragraphs() {
        let mut answer = LastMessage::default();
        answer.other_part();
        answer.push("I look.");
        answer.other_message();
        answer.push("It is ");
        answer.push("here.");
        answer.other_part();
        answer.push("It starts.\n");
        answer.other_part();
        answer.push("It ends.");
        assert_eq!(answer.last().1, "It is here.\n\nIt starts.\n\nIt ends.");
    }

    #[test]
    fn model_error_is_not_an_answer_unless_tools_ran() {
        let answer = |text: &str| LastMessage { said: text.to_owned(), ..LastMessage::default() };
        assert_eq!(answer(" API Error: 400 bad\n").error(), Some("API Error: 400 bad"));
        assert_eq!(answer("The API Error is in line 3").error(), None);
        let after_work = LastMessage { any_tool: true, ..answer("API Error: 400") };
        assert_eq!(after_work.error(), None);
    }

    #[test]
    fn long_answer_keeps_its_end_in_whole_characters() {
        let mut answer = LastMessage::default();
        for _ in 0..3 * ANSWER_BYTES / 3 {
            answer.push("€");
        }
        answer.push("end");
        let (cut, last) = answer.last();
        assert_eq!(cut + last.len() as u64, 3 * ANSWER_BYTES as u64 / 3 * 3 + 3);
        assert!(last.len() <= ANSWER_BYTES && last.len() > ANSWER_BYTES - 4, "{}", last.len());
        assert!(last.starts_with('€') && last.ends_with("end"));
    }
}
