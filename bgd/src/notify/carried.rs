//! The state of the channels during an upgrade in place, as data.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::counts::CountsState;
use super::hook::HookState;
use super::orders::ReadState;
use super::waiting::Entry;
use crate::carry::ReceivedFds;
use crate::core::{Notice, Tried};

/// The channels' state for the new program.
#[derive(Debug, Serialize, Deserialize)]
pub struct NotifierState {
    pub(super) counts: BTreeMap<Arc<str>, CountsState>,
    pub(super) unreported: u64,
    /// The agent turns that are shown as typing, with their channels and sessions.
    #[serde(default)]
    pub(super) typing: Vec<(TaskId, Arc<str>, Option<Arc<str>>)>,
    /// The undelivered notices, oldest first.
    #[serde(default)]
    pub(super) undelivered: Vec<UndeliveredState>,
    /// The channels' own states, by channel name.
    #[serde(default)]
    pub(super) adapters: BTreeMap<Arc<str>, Box<RawValue>>,
}

/// An undelivered notice.
#[derive(Debug, Serialize, Deserialize)]
pub struct UndeliveredState {
    pub(super) number: u64,
    pub(super) channel: Arc<str>,
    /// `None`: held by the channel itself.
    pub(super) notice: Option<Arc<Notice>>,
    /// Whether the notice still needs its task's output.
    pub(super) reads: bool,
    pub(super) tried: Option<Tried>,
    /// The notice as it is sent, if its result has been read.
    pub(super) read: Option<ReadState>,
    /// The command running for the notice.
    pub(super) hook: Option<HookState>,
}

/// The state taken over in an upgrade, kept until everything else is built.
#[derive(Debug)]
pub struct Resumed {
    pub(super) typing: Vec<(TaskId, Arc<str>, Option<Arc<str>>)>,
    pub(super) undelivered: Vec<(UndeliveredState, Option<LeftFds>)>,
}

/// The file descriptors of a command.
#[derive(Debug)]
pub struct LeftFds {
    pub(super) stdin: Option<(OwnedFd, Vec<u8>)>,
    pub(super) output: Option<OwnedFd>,
}

impl UndeliveredState {
    pub(super) fn of(number: u64, entry: &Entry) -> Self {
        let Entry { channel, notice, tried, reads, reads_again: _ } = entry;
        Self {
            number,
            channel: Arc::clone(channel),
            notice: notice.clone(),
            reads: *reads,
            tried: tried.clone(),
            read: None,
            hook: None,
        }
    }
}

impl LeftFds {
    pub(super) fn take(hook: &HookState, received: &mut ReceivedFds) -> io::Result<Self> {
        let stdin =
            hook.feed.as_ref().map(|feed| Ok::<_, io::Error>((received.take(feed.pipe)?, feed.rest.clone())));
        Ok(Self {
            stdin: stdin.transpose()?,
            output: hook.output.map(|output| received.take(output)).transpose()?,
        })
    }
}
