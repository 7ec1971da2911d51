//! What the view knows only of tasks that are looked at.

/// What is only known of tasks that are looked at: read in the output, and measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// How far it is, in percent.
    pub percent: Option<u8>,
    /// The last line of its output, safe to show.
    pub line: String,
    /// Whether its output has grown since.
    pub is_stale: bool,
    /// How much of one processor it takes, in percent.
    pub cpu: Option<u64>,
    /// Resident memory of its processes, in bytes.
    pub memory_bytes: Option<u64>,
}
