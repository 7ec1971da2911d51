//! The content of a request, once it is parsed and checked. Nothing is parsed here.

use std::sync::Arc;

use bgd_shared::agent::AgentListParams;
use bgd_shared::error::RpcError;
use bgd_shared::id::TaskRef;
use bgd_shared::limits;
use bgd_shared::message::RequestId;
use bgd_shared::request::{ExecutorListParams, OutputParams, SubscribeParams, TerminalSize, UpgradeParams};
use bgd_shared::task::Exit;

use super::submission::PromptRequest;
use crate::core::{Cancel, Command, ListQuery, Part, Request, Selection};
use crate::exec::handed::Handoff;
use crate::exec::messages::Inherited;
use crate::remotes::OnRequest;

/// A client's request.
#[derive(Debug)]
pub struct Call {
    /// The ID for its response; `None` for a notification, which gets none.
    pub id: Option<RequestId>,
    /// Bytes reserved in the client's queue for its response.
    pub reserved: usize,
    pub body: Body,
}

/// The content of a request.
#[derive(Debug)]
pub enum Body {
    /// `hello`, with the parent session that ends with the connection.
    Hello(Option<Arc<str>>),
    /// `task.submit` of a command, with the descriptors sent with it, and where it should run.
    Submit(Box<Command>, Inherited, Box<OnRequest>),
    /// `task.submit` of a prompt.
    Prompt(Box<PromptRequest>),
    /// `task.submit_many`, and where the tasks should run.
    Many(Box<Part>, Box<OnRequest>),
    /// `agent.list`
    Agents(AgentListParams),
    /// A request that the core answers directly.
    Core(Request),
    /// `inbox.read` and `inbox.ack`, with the daemon instance they are meant for.
    Inbox(Option<String>, Request),
    /// `inbox.list`: the number after which to start, and the maximum number of entries.
    Inboxes(u64, usize),
    /// `task.output`
    Output(OutputParams),
    /// `task.result`
    Result(TaskRef),
    /// `task.list`
    List(Box<ListQuery>),
    /// `executor.list`
    Executors(ExecutorListParams),
    /// `task.usage`
    Usage(Vec<TaskRef>),
    /// `group.list`
    Groups,
    /// `task.get`
    Get(TaskRef),
    /// `task.write`
    Write(TaskRef, Vec<u8>, bool),
    /// `task.attach`, with the size of the caller's terminal.
    Attach(TaskRef, Option<TerminalSize>),
    /// `task.detach` without `background`, which only ends an attachment.
    Leave(TaskRef),
    /// `task.resize`
    Resize(TaskRef, TerminalSize),
    /// `task.handoff`
    Handoff(Box<Handoff>),
    /// `task.exit`
    Exit(TaskRef, Exit),
    /// `events.subscribe`
    Subscribe(SubscribeParams),
    /// `daemon.status`
    Status,
    /// `daemon.reload`
    Reload,
    /// `daemon.upgrade`
    Upgrade(UpgradeParams),
    /// `task.submit_many` with an invalid part, which ends its batch.
    PartRefused(RpcError),
    /// A line that is not a valid request.
    Refused(RpcError),
}

impl Body {
    /// Returns how many bytes the response may need beyond a task or two.
    pub fn reserve(&self) -> usize {
        match self {
            Self::Output(params) => {
                let bytes = params.limit.unwrap_or(OUTPUT_DEFAULT_BYTES);
                usize::try_from(bytes).map_or(usize::MAX, |bytes| bytes / 3 * 4)
            }
            #[allow(clippy::cast_possible_truncation, reason = "1 MiB")]
            Self::Result(_) => limits::AGENT_RESULT_BYTES as usize / 3 * 4,
            Self::Inboxes(_, limit) => limit * (limits::LABEL_BYTES + 128),
            Self::List(query) => (query.limit * TASK_BYTES).min(limits::LIST_PAGE_BYTES),
            // A call that has to wait then releases the reserved bytes.
            Self::Core(
                Request::Block { which, .. }
                | Request::Cancel(Cancel { which, .. })
                | Request::Hold { which, .. }
                | Request::SetPaused { which, .. },
            ) => match which {
                Selection::Ids(ids) => ids.len() * TASK_BYTES,
                Selection::All { .. } | Selection::Matching(_) => limits::LIST_PAGE_BYTES,
            },
            Self::Many(part, _) => part.items.len() * ID_BYTES,
            // A read that has to wait then releases the reserved bytes, as it gets one item. Otherwise no other request
            // of that client would be read meanwhile, not even a check whether the daemon is alive.
            Self::Inbox(_, Request::ReadInbox { .. }) => limits::INBOX_PAGE_BYTES,
            // With its whole prompt.
            Self::Get(_) => limits::FRAME_BYTES,
            Self::Hello(_)
            | Self::Submit(..)
            | Self::Prompt(..)
            | Self::Agents(_)
            | Self::Core(_)
            | Self::Inbox(..)
            | Self::Groups
            | Self::Executors(_)
            | Self::Usage(_)
            | Self::Write(..)
            | Self::Attach(..)
            | Self::Leave(_)
            | Self::Resize(..)
            | Self::Handoff(_)
            | Self::Exit(..)
            | Self::Subscribe(_)
            | Self::Status
            | Self::Reload
            | Self::Upgrade(_)
            | Self::PartRefused(_)
            | Self::Refused(_) => 0,
        }
    }
}

/// The size of an ID in a list, in bytes.
const ID_BYTES: usize = 39;

/// The typical size of a task object, in bytes.
const TASK_BYTES: usize = 1024;

/// The default `limit` of `task.output`, in bytes.
pub const OUTPUT_DEFAULT_BYTES: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Many calls can be in progress at once, and the client may not read.
    #[test]
    fn r26_calls_reserve_room_for_their_largest_reply() {
        for wait_ms in [0, 60_000] {
            let read = Request::ReadInbox { session: "a".into(), after: 0, wait_ms, limit: 1 };
            assert_eq!(Body::Inbox(None, read).reserve(), limits::INBOX_PAGE_BYTES, "wait_ms: {wait_ms}");
        }
        let task = TaskRef::from(bgd_shared::id::TaskId::random());
        assert_eq!(Body::Get(task).reserve(), limits::FRAME_BYTES, "as much as the prompt may have");
    }
}
