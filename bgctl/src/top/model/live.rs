//! Data that the live view has only for visible tasks.

/// Data about a visible task, from its output and from measurements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Its progress, in percent.
    pub percent: Option<u8>,
    /// The last line of its output, cleaned for display.
    pub line: String,
    /// Whether the output has grown since it was read.
    pub is_stale: bool,
    /// CPU use, in percent of one processor.
    pub cpu: Option<u64>,
    /// Resident memory of its processes, in bytes.
    pub memory_bytes: Option<u64>,
}
