//! Assembles a text from two overlapping sources: pieces in events, and the whole text in messages that were read.
//! Emits every byte of the text once, in order. No I/O.

use serde::{Deserialize, Serialize};

/// A text part of a message.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Text {
    /// How many bytes were emitted.
    given: usize,
    /// Whitespace after the emitted bytes, held back until something follows it: some versions of the server trim it
    /// when the text is complete.
    held: String,
    /// How many bytes of the text the events cover so far; `None` while events may be missing, until an event contains
    /// the whole text.
    at: Option<usize>,
    /// Whether the text is complete.
    closed: bool,
}

impl Text {
    /// Notes that events may have been lost.
    pub fn lose_track(&mut self) {
        self.at = None;
    }

    /// Handles an event with a further piece. Returns the new text.
    pub fn grow(&mut self, piece: &str) -> String {
        let Some(at) = self.at else { return String::new() };
        let end = at.saturating_add(piece.len());
        self.at = Some(end);
        let known = self.known();
        // A message that was read meanwhile may already have covered a part of the piece.
        match known.checked_sub(at).and_then(|skipped| piece.get(skipped..)) {
            Some(new) => self.take(new),
            None => String::new(),
        }
    }

    /// Handles an event with the whole text so far. Returns the new text.
    pub fn update(&mut self, text: &str, closed: bool) -> String {
        self.at = Some(text.len());
        self.read(text, closed)
    }

    /// Handles the text so far as read in a message, which does not tell how far the events are. Returns the new text.
    pub fn read(&mut self, text: &str, closed: bool) -> String {
        if self.closed {
            return String::new();
        }
        if !closed {
            return text.get(self.known()..).map(|new| self.take(new)).unwrap_or_default();
        }
        self.closed = true;
        self.held = String::new();
        let new = text.get(self.given..).unwrap_or_default().to_owned();
        self.given += new.len();
        new
    }

    fn known(&self) -> usize {
        self.given + self.held.len()
    }

    fn take(&mut self, new: &str) -> String {
        if self.closed {
            return String::new();
        }
        self.held.push_str(new);
        let end = self.held.trim_end().len();
        let rest = self.held.split_off(end);
        self.given += end;
        std::mem::replace(&mut self.held, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> Text {
        let mut text = Text::default();
        assert_eq!(text.update("", false), "");
        text
    }

    #[test]
    fn deltas_make_up_the_text() {
        let mut text = opened();
        assert_eq!(text.grow("one "), "one");
        assert_eq!(text.grow("two"), " two");
        assert_eq!(text.grow("  \n"), "");
        assert_eq!(text.update("one two", true), "");
        assert_eq!(text.grow("late"), "");
    }

    #[test]
    fn lost_deltas_are_filled_in_from_the_whole_text() {
        let mut text = opened();
        assert_eq!(text.grow("one"), "one");
        text.lose_track();
        assert_eq!(text.grow(" three"), "");
        assert_eq!(text.update("one two three", true), " two three");
        assert_eq!(text.read("one two three", true), "");
    }

    #[test]
    fn text_already_read_is_not_repeated() {
        let mut text = Text::default();
        assert_eq!(text.grow("x"), "", "where this piece belongs is not known");
        assert_eq!(text.read("one two", false), "one two");
        assert_eq!(text.update("", false), "");
        assert_eq!(text.grow("one "), "");
        assert_eq!(text.grow("two th"), " th");
        assert_eq!(text.read("one two three", true), "ree");
    }

    #[test]
    fn rewritten_text_yields_nothing() {
        let mut text = opened();
        assert_eq!(text.grow("aü"), "aü");
        assert_eq!(text.update("üü", false), "");
        assert_eq!(text.update("ü", true), "");
    }
}
