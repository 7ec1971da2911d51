//! The part of a job's output that was written while its connection was lost, until it has been read and shown (R142).

use bgd_shared::request::OutputNews;

use super::filter::TextFilter;

/// How much of it is shown, the latest bytes.
const SHOWN_BYTES: u64 = 8 << 20;

/// Returns where to begin with the output that was written from there up to an end: its latest bytes.
pub fn latest(from: u64, end: u64) -> u64 {
    from.max(end.saturating_sub(SHOWN_BYTES))
}

/// Says what is left out of the output by beginning later.
pub fn left_out(from: u64, next: u64) -> Option<String> {
    match next.saturating_sub(from) {
        0 => None,
        1 => Some("1 byte is not shown; `bgctl output` has it".to_owned()),
        bytes => Some(format!("{bytes} bytes are not shown; `bgctl output` has them")),
    }
}

/// The part that is being read.
pub struct Gap {
    /// The end of what was read.
    pub next: u64,
    /// Where it ends.
    pub end: u64,
    /// The call that reads on.
    pub call: u64,
    /// What of it can be shown.
    pub filter: TextFilter,
    /// What the daemon has sent since, to be shown after it.
    pub held: Vec<OutputNews>,
    /// More came than is held.
    pub is_over: bool,
}
