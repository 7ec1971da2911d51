//! Terminals in params: their size, and the terminal that a task comes from. This module declares no method.

use serde::{Deserialize, Serialize};

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Rows, 1 to 1000.
    pub rows: u16,
    /// Columns, 1 to 1000.
    pub cols: u16,
}

/// The terminal from which a task was submitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OriginTerminal {
    /// Device path, as in `/dev/pts/3`.
    pub path: String,
    /// Process id of its session leader, the shell. The daemon writes to the terminal only while this process is the
    /// session leader.
    pub leader: i32,
}
