//! Params and results of the methods on foreground jobs, their terminals, and children of other programs (R60 to
//! R71); and the notifications about a terminal.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

use super::terminal::OriginTerminal;
use crate::encoding::Encoding;
use crate::id::{TaskId, TaskRef};
use crate::task::{Exit, Task};
use crate::text::OsText;
use crate::time::Timestamp;

/// Params of `task.attach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AttachParams {
    /// Id of the task, or a unique prefix of at least 4 characters.
    pub id: TaskRef,
    /// Rows of the caller's terminal, 1 to 1000. With several attached terminals the smallest size is used. Default:
    /// the current size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u16>,
    /// Columns of the caller's terminal, 1 to 1000; requires `rows`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cols: Option<u16>,
}

/// Params of `task.detach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DetachParams {
    /// Id of a foreground job of this connection, or of a task that it is attached to.
    pub id: TaskRef,
    /// Whether to move a foreground job to the background. Otherwise only an attachment ends.
    #[serde(default)]
    pub background: bool,
}

/// Result of a method that moves a job to the background or ends an attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DetachResult {
    /// The task.
    pub task: Task,
    /// Message for the user when a job was moved: exactly `Command was manually backgrounded by user with ID <id>`.
    pub message: String,
}

/// Params of `task.resize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResizeParams {
    /// Id of a task whose terminal this connection shows.
    pub id: TaskRef,
    /// Rows of the caller's terminal, 1 to 1000.
    pub rows: u16,
    /// Columns of the caller's terminal, 1 to 1000.
    pub cols: u16,
}

/// Kind of a descriptor that is sent with `task.handoff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HandoffStream {
    /// The read end of the pipe (or socket pair) that is the process's standard output.
    Stdout,
    /// The same for its standard error.
    Stderr,
    /// The master of the pseudo-terminal that the process runs in.
    Pty,
    /// A regular file that the process writes to.
    File,
}

/// Who started a handed-over process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OriginKind {
    /// A tool or an agent, on the user's behalf.
    #[default]
    Tool,
    /// The user, with `!command`. Such processes are rejected.
    Direct,
}

/// Params of `task.handoff`. A pidfd of the process is sent with the line, followed by the descriptors in
/// `streams`, in that order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HandoffParams {
    /// Process id: a child of the caller, owned by the same user.
    pub pid: i32,
    /// Description for lists.
    pub description: String,
    /// Command of the process. Default: as reported by the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<OsText>>,
    /// Start time of the process. Default: as reported by the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Key of the parent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Channel for notifications, as in `task.submit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Terminal from which the process was started, for the channel `tty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<OriginTerminal>,
    /// Tags chosen by the submitter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Kinds of the descriptors after the pidfd: each at most once; `pty` and `file` can't be combined with others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<HandoffStream>,
    /// Who started the process.
    #[serde(default)]
    pub origin_kind: OriginKind,
}

/// Params of `task.exit`: the parent of a handed-over process reports how it ended. Needed only before Linux 6.15;
/// does not override what the daemon already knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExitParams {
    /// Id of the task, or a unique prefix of at least 4 characters.
    pub id: TaskRef,
    /// How its process ended.
    #[serde(deserialize_with = "one_exit")]
    pub exit: Exit,
}

/// Parses an exit, so that an error says what it must be: serde's own parser takes every other object for broken JSON.
fn one_exit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Exit, D::Error> {
    struct One;

    impl<'de> de::Visitor<'de> for One {
        type Value = Exit;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with one of `code`, `signal` and `unknown`")
        }

        fn visit_map<A: de::MapAccess<'de>>(self, mut members: A) -> Result<Exit, A::Error> {
            let not = |found| de::Error::invalid_value(de::Unexpected::Other(found), &One);
            let Some(name) = members.next_key::<String>()? else { return Err(not("an empty object")) };
            let exit = match name.as_str() {
                "code" => Exit::Code(members.next_value()?),
                "signal" => Exit::Signal(members.next_value()?),
                "unknown" => Exit::Unknown(members.next_value()?),
                other => return Err(de::Error::unknown_variant(other, &["code", "signal", "unknown"])),
            };
            match members.next_key::<de::IgnoredAny>()? {
                Some(_) => Err(not("one with several members")),
                None => Ok(exit),
            }
        }
    }

    deserializer.deserialize_map(One)
}

/// Params of an `output` notification: a part of a terminal's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutputNews {
    /// The task.
    pub id: TaskId,
    /// Start of the part within the task's output; with `redraw`, everything before it is on the screen.
    pub offset: u64,
    /// Bytes to write to the caller's terminal.
    pub data: String,
    /// Encoding of `data`.
    #[serde(default)]
    pub encoding: Encoding,
    /// Whether `data` redraws the whole screen: at the start of an attachment, and after a slow reader was skipped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redraw: bool,
    /// Bytes that restore the caller's terminal when nothing more is shown: alternate screen, mouse, cursor and keys.
    /// Only present when changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<String>,
}

/// Params of a `stopped` notification: a job was stopped, as by Ctrl-Z. Send SIGCONT with `task.signal` to continue
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoppedNews {
    /// The task.
    pub id: TaskId,
}
