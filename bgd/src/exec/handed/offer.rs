//! A process that another program offers.

use std::os::fd::OwnedFd;

use bgd_shared::request::{HandoffParams, HandoffStream};

/// The order to take over a process of another program, with what came along.
#[derive(Debug)]
pub struct Handoff {
    /// What was said of it.
    pub params: HandoffParams,
    /// The handle to the process, as the caller says.
    pub pidfd: OwnedFd,
    /// What `params.streams` names, in that order.
    pub streams: Vec<(HandoffStream, OwnedFd)>,
}
