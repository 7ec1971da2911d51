//! Determines how a piece of an answer relates to the piece before it. No I/O.

use serde::{Deserialize, Serialize};

/// How a piece of text relates to the text before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// It continues it, or there is none.
    Continues,
    /// It belongs to another part of the same message.
    OtherPart,
    /// It belongs to another message.
    OtherMessage,
}

/// Where the last piece of a turn's text belongs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LastPiece {
    /// `None` before the first piece.
    message: Option<String>,
    /// `None` also if a tool was called since.
    part: Option<String>,
}

impl LastPiece {
    /// Notes a tool call, which separates texts by itself.
    pub fn tool_called(&mut self) {
        self.part = None;
    }

    /// Records where a piece of text belongs, and returns its relation to the one before it.
    pub fn relate(&mut self, message: &str, part: &str, text: &str) -> Relation {
        // Nothing but whitespace begins no message: otherwise it would become the answer.
        if text.trim().is_empty() {
            return Relation::Continues;
        }
        let relation = match (&self.message, &self.part) {
            (Some(before), _) if before != message => Relation::OtherMessage,
            (Some(_), Some(before)) if before != part => Relation::OtherPart,
            _ => Relation::Continues,
        };
        if self.message.as_deref() != Some(message) {
            self.message = Some(message.to_owned());
        }
        if self.part.as_deref() != Some(part) {
            self.part = Some(part.to_owned());
        }
        relation
    }
}

#[cfg(test)]
mod tests {
    use super::Relation::{Continues, OtherMessage, OtherPart};
    use super::*;

    #[test]
    fn piece_relates_to_the_last_text_with_words() {
        let mut last = LastPiece::default();
        let pieces = [
            ("m1", "p1", "I", Continues),
            ("m1", "p1", " look.", Continues),
            ("m1", "p2", "\n", Continues),
            ("m1", "p2", "It is", OtherPart),
            ("m1", "p2", " here.", Continues),
            ("m2", "p3", " ", Continues),
            ("m2", "p3", "It starts", OtherMessage),
            ("m2", "p3", " there.", Continues),
        ];
        for (message, part, text, relation) in pieces {
            assert_eq!(last.relate(message, part, text), relation, "{text:?}");
        }
    }

    #[test]
    fn tool_call_separates_parts_by_itself() {
        let mut last = LastPiece::default();
        last.relate("m1", "p1", "I look.");
        last.tool_called();
        assert_eq!(last.relate("m1", "p3", "It is here."), Continues);
        assert_eq!(last.relate("m1", "p4", "And there."), OtherPart);
    }
}
