//! The part of a job's output that was written while its connection was lost, until it has been read and shown (R142).

use bgd_shared::request::OutputNews;

use super::filter::TextFilter;

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

impl Gap {
    /// Whether this call reads it.
    pub fn is_read_by(&self, call: u64) -> bool {
        self.call == call
    }
}
