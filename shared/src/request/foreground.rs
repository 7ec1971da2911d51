//! Params and results of the methods on foreground jobs, their terminals, and children of other programs
//! (R60 to R71); and what the daemon tells about a terminal without being asked.

use serde::{Deserialize, Serialize};

use super::OriginTerminal;
use crate::encoding::Encoding;
use crate::id::{TaskId, TaskRef};
use crate::task::{Exit, Task};
use crate::text::OsText;
use crate::time::Timestamp;

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Lines, 1 to 1000.
    pub rows: u16,
    /// Characters in a line, 1 to 1000.
    pub cols: u16,
}

/// An output of a process that goes elsewhere than to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Given {
    /// To the descriptor that travels with the line (`SCM_RIGHTS`).
    Fd,
}

/// Params of `task.attach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AttachParams {
    /// The task, which has a terminal.
    pub id: TaskRef,
    /// The size of the caller's terminal. Of all that are attached the fewest rows and the fewest columns
    /// win, so that everybody sees all of it. Left out: the caller takes what there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u16>,
    /// Goes with `rows`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cols: Option<u16>,
}

/// Params of `task.detach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DetachParams {
    /// The task: a foreground job of this connection, or one whose terminal it is attached to.
    pub id: TaskRef,
    /// Whether a foreground job shall go on in the background. Without it only an attachment ends.
    #[serde(default)]
    pub background: bool,
}

/// Result of a method that hands a job over to the background, or ends an attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DetachResult {
    /// The task.
    pub task: Task,
    /// What the user is told, for a job that was handed over: exactly `Command was manually backgrounded
    /// by user with ID <id>` (R61).
    pub message: String,
}

/// Params of `task.resize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResizeParams {
    /// The task, whose terminal this connection shows.
    pub id: TaskRef,
    /// Lines of the caller's terminal, 1 to 1000.
    pub rows: u16,
    /// Characters in a line, 1 to 1000.
    pub cols: u16,
}

/// What a descriptor is that travels with `task.handoff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HandoffStream {
    /// The reading end of the pipe (or of the socket pair) that is the process's standard output.
    Stdout,
    /// The same for its standard error.
    Stderr,
    /// The master of the pseudo-terminal that the process runs in.
    Pty,
    /// A regular file that the process writes to by itself.
    File,
}

/// Who started a process that is handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OriginKind {
    /// A tool or an agent, on the user's behalf.
    #[default]
    Tool,
    /// The user, with `!command`. It is not handed over (R64).
    Direct,
}

/// Params of `task.handoff`. With the line travel a pidfd of the process and then the descriptors that
/// `streams` names, in that order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HandoffParams {
    /// The process: a child of the caller, of the same user.
    pub pid: i32,
    /// What people shall read in lists.
    pub description: String,
    /// Its command. Default: as the system tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<OsText>>,
    /// When it was started. Default: as the system tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// The parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Where news of the task is delivered, as with `task.submit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// The terminal that it was started from, for the channel `tty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<OriginTerminal>,
    /// Free labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What the descriptors behind the pidfd are: each kind at most once, `pty` and `file` alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<HandoffStream>,
    /// Who started it.
    #[serde(default)]
    pub origin_kind: OriginKind,
}

/// Params of `task.exit`: the parent of a process that was handed over tells how it ended. Only needed
/// before Linux 6.15, where nobody but the parent can know; what the daemon knows already stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExitParams {
    /// The task.
    pub id: TaskRef,
    /// How its process ended.
    pub exit: Exit,
}

/// The params of an `output` notification: a part of what a terminal shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutputNews {
    /// The task.
    pub id: TaskId,
    /// Where in the task's output the part begins; with `redraw`, what the screen shows came before this.
    pub offset: u64,
    /// What to write to the caller's terminal.
    pub data: String,
    /// How it is written.
    #[serde(default)]
    pub encoding: Encoding,
    /// Whether `data` draws the whole screen anew: at the beginning of an attachment, and where a caller
    /// that read too slowly was left behind.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redraw: bool,
    /// What to write to the caller's terminal to leave it usable if nothing more is shown there: the
    /// alternate screen, mouse, cursor and keys as they were. Only there when it has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<String>,
}

/// The params of a `stopped` notification: a job was stopped, as by Ctrl-Z, and goes on when it gets
/// SIGCONT by `task.signal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoppedNews {
    /// The task.
    pub id: TaskId,
}
