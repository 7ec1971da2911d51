//! The offer of a process by another program.

use std::os::fd::OwnedFd;

use bgd_shared::request::{HandoffParams, HandoffStream};

/// The order to take over a process of another program, with the received descriptors.
#[derive(Debug)]
pub struct Handoff {
    pub params: HandoffParams,
    /// The pidfd of the process, as the caller claims.
    pub pidfd: OwnedFd,
    /// The descriptors that `params.streams` names, in that order.
    pub streams: Vec<(HandoffStream, OwnedFd)>,
}
