//! What the channels' thread is told, as data.

use std::sync::Arc;
use std::sync::mpsc as sync_mpsc;

use bgd_shared::id::TaskId;
use bgd_shared::notice::Notice as Wire;
use bgd_shared::request::OriginTerminal;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot, watch};

use super::counts::Counts;
use super::hook::HookLeft;
use super::progress::ProgressState;
use crate::carry::{Named, Obstacle};
use crate::channels::Channel;
use crate::core::{Notice, Tried};

/// A parent session that is shown typing until the other end of the receiver is dropped.
pub type TypingOrder = (Option<Arc<str>>, oneshot::Receiver<()>);

/// A notice for a channel's worker.
#[derive(Debug)]
pub struct Order {
    pub notice: Arc<Notice>,
    /// What was done for it.
    pub before: Before,
}

/// What was done for a notice by an earlier daemon, or by the program before an upgrade.
#[derive(Debug, Default)]
pub struct Before {
    /// What was tried.
    pub tried: Option<Tried>,
    /// The notice with its result, if that was read.
    pub read: Option<ReadState>,
    /// The command that was started for it.
    pub left: Option<HookLeft>,
}

/// Events that help a channel deliver, other than notices.
#[derive(Clone, Debug)]
pub enum ChannelEvent {
    /// Someone uses `bgctl` in the terminal whose session leader is this process.
    Visited(i32),
    /// This process submitted a task in this terminal, which will be told of the task's end.
    Awaited(OriginTerminal, Option<i32>),
    /// A task was removed.
    Forgotten(TaskId),
}

/// The receiving side of a channel, for its worker.
#[derive(Debug)]
pub struct Served {
    pub channel: Arc<Channel>,
    /// What the channel held before an upgrade.
    pub before: Option<Box<RawValue>>,
    /// Whether an upgrade is about to happen.
    pub holds: watch::Receiver<bool>,
    /// Whether the channel is not configured any more.
    pub gone: watch::Receiver<bool>,
    /// Notices.
    pub orders: mpsc::UnboundedReceiver<Order>,
    /// Turns of agents that are shown as typing.
    pub typing: mpsc::UnboundedReceiver<TypingOrder>,
    /// Other events.
    pub signs: mpsc::UnboundedReceiver<ChannelEvent>,
    /// The channel's counters.
    pub counts: Arc<Counts>,
}

/// An order to the channels' thread.
#[derive(Debug)]
pub enum ThreadOrder {
    /// Serve a channel.
    Serve(Box<Served>),
    /// Stand still.
    Freeze(Freeze),
}

/// A notice with its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadState {
    pub notice: Box<Wire>,
    /// Whether the task was removed already.
    pub is_removed: bool,
}

/// The state of all channels with its descriptors, or why there is none now.
pub type FrozenAll = Result<(Vec<Frozen>, Named), Obstacle>;

/// The order to stand still with a state.
#[derive(Debug)]
pub struct Freeze {
    /// Whether to wait for what is being sent.
    pub waits: bool,
    /// Receives the state.
    pub tell: sync_mpsc::Sender<FrozenAll>,
    /// Closes when the thread may go on.
    pub until: sync_mpsc::Receiver<()>,
}

/// A channel's worker that stands still.
#[derive(Debug)]
pub struct Frozen {
    pub channel: Arc<str>,
    /// The number of the notice that it works on, the notice if it was read, and how far it has come.
    pub current: Option<(u64, Option<ReadState>, ProgressState)>,
    /// What the channel itself holds.
    pub adapter: Option<Box<RawValue>>,
}
