//! The messages to the channels' thread, as data.

use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::notice::Notice as Wire;
use bgd_shared::request::OriginTerminal;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot, watch};

use super::counts::Counts;
use super::hook::HookLeft;
use super::progress::ProgressState;
use crate::carry::standstill::FreezeOrder;
use crate::channels::{Channel, Channels};
use crate::core::{Notice, Tried};

/// A parent session to which typing is shown until the sender of the receiver is dropped.
pub type TypingOrder = (Option<Arc<str>>, oneshot::Receiver<()>);

/// A notice for a channel's worker.
#[derive(Debug)]
pub struct Order {
    pub notice: Arc<Notice>,
    /// Earlier progress of its delivery.
    pub before: Before,
}

/// The progress of a notice's delivery in an earlier daemon, or in the program before an upgrade.
#[derive(Debug, Default)]
pub struct Before {
    /// The failed tries.
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
    /// This process submitted a task in this terminal, where the task's end will be reported.
    Awaited(OriginTerminal, Option<i32>),
    Forgotten(TaskId),
    /// The run of this agent's task has ended.
    Ended(TaskId),
    /// The end of this task was reported in the terminal whose session leader is this process.
    Reported(i32, TaskId),
    /// The channel was removed or has another type now. What it would show later goes to this one of its type.
    LeftTo(mpsc::UnboundedSender<Self>),
    /// Such a channel has left this.
    Inherited(Box<RawValue>),
}

/// The receiving side of a channel, for its worker.
#[derive(Debug)]
pub struct Served {
    pub channel: Arc<Channel>,
    /// The channel's own state from before an upgrade.
    pub before: Option<Box<RawValue>>,
    /// Whether an upgrade is about to happen.
    pub holds: watch::Receiver<bool>,
    /// Whether the channel was removed from the configuration.
    pub gone: watch::Receiver<bool>,
    pub orders: mpsc::UnboundedReceiver<Order>,
    /// Agent turns that are shown as typing.
    pub typing: mpsc::UnboundedReceiver<TypingOrder>,
    pub events: mpsc::UnboundedReceiver<ChannelEvent>,
    pub counts: Arc<Counts>,
}

/// An order to the channels' thread.
#[derive(Debug)]
pub enum ThreadOrder {
    Serve(Box<Served>),
    /// Freeze for an upgrade.
    Freeze(Freeze),
}

/// A notice with its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadState {
    pub notice: Box<Wire>,
    /// Whether the task has been removed already.
    pub is_removed: bool,
}

/// An order to send the state and freeze.
#[derive(Debug)]
pub struct Freeze {
    /// Whether to fail while a notice is being sent.
    pub waits: bool,
    /// The channels as configured now, as those of the next program.
    pub channels: Channels,
    pub order: FreezeOrder<Vec<Frozen>>,
}

/// The state of a frozen worker.
#[derive(Debug)]
pub struct Frozen {
    pub channel: Arc<str>,
    /// The number of the notice being delivered, the notice if its result was read, and the progress.
    pub current: Option<(u64, Option<ReadState>, ProgressState)>,
    /// The channel's own state.
    pub adapter: Option<Box<RawValue>>,
}
