//! The part of a job's output that was written while its connection was lost, until it has been read and shown (R142).

use bgd_shared::request::OutputNews;

use crate::output::filter::TextFilter;

/// Maximum number of bytes shown, from the end of the missed output.
const SHOWN_BYTES: u64 = 8 << 20;

/// Returns the offset from which to show the output between `from` and `end`: its latest bytes.
pub fn latest(from: u64, end: u64) -> u64 {
    from.max(end.saturating_sub(SHOWN_BYTES))
}

/// Describes how much output is skipped by starting at `next` instead of `from`; `None` if nothing is.
pub fn left_out(from: u64, next: u64) -> Option<String> {
    match next.saturating_sub(from) {
        0 => None,
        1 => Some("1 byte is not shown; `bgctl output` has it".to_owned()),
        bytes => Some(format!("{bytes} bytes are not shown; `bgctl output` has them")),
    }
}

/// The part being read.
pub struct Gap {
    /// Offset of the next byte to read.
    pub next: u64,
    /// Offset at which the part ends.
    pub end: u64,
    /// The call in flight for the next bytes.
    pub call: u64,
    /// Extracts the showable part.
    pub filter: TextFilter,
    /// Output that the daemon has sent since, to be shown afterwards.
    pub held: Vec<OutputNews>,
    /// More output arrived than is held back.
    pub is_over: bool,
}
