//! What the channels carry over an upgrade in place, as data.

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
use crate::carry::Came;
use crate::core::{Notice, Tried};

/// The channels for the program that takes over.
#[derive(Debug, Serialize, Deserialize)]
pub struct NotifierState {
    pub(super) counts: BTreeMap<Arc<str>, CountsState>,
    pub(super) unreported: u64,
    /// The turns of agents that are shown as typing, with their channels and sessions.
    #[serde(default)]
    pub(super) typing: Vec<(TaskId, Arc<str>, Option<Arc<str>>)>,
    /// The notices that are not delivered, oldest first.
    #[serde(default)]
    pub(super) undelivered: Vec<UndeliveredState>,
    /// What the channels themselves hold, by their names.
    #[serde(default)]
    pub(super) adapters: BTreeMap<Arc<str>, Box<RawValue>>,
}

/// A notice that is not delivered.
#[derive(Debug, Serialize, Deserialize)]
pub struct UndeliveredState {
    pub(super) number: u64,
    pub(super) channel: Arc<str>,
    /// `None`: the channel itself holds it.
    pub(super) notice: Option<Arc<Notice>>,
    /// Whether it needs the output of its task.
    pub(super) reads: bool,
    pub(super) tried: Option<Tried>,
    /// The notice as it is sent, if its result was read.
    pub(super) read: Option<ReadState>,
    /// The command that runs for it.
    pub(super) hook: Option<HookState>,
}

/// What came over an upgrade, until everything else is built.
#[derive(Debug)]
pub struct Resumed {
    pub(super) typing: Vec<(TaskId, Arc<str>, Option<Arc<str>>)>,
    pub(super) undelivered: Vec<(UndeliveredState, Option<LeftFds>)>,
}

/// The descriptors of a command.
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
    pub(super) fn take(hook: &HookState, came: &mut Came) -> io::Result<Self> {
        let stdin =
            hook.feed.as_ref().map(|feed| Ok::<_, io::Error>((came.take(feed.pipe)?, feed.rest.clone())));
        Ok(Self {
            stdin: stdin.transpose()?,
            output: hook.output.map(|output| came.take(output)).transpose()?,
        })
    }
}
