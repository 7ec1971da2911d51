//! Stub for `chats` in builds without them. The configuration rejects these channels in such builds, so none has to be
//! served.

use std::rc::Rc;
use std::sync::Arc;

use crate::channels::Channel;
use crate::notify::adapter::Adapter;
use crate::notify::counts::Counts;
use crate::notify::outcomes::Outcomes;

/// State shared by the HTTPS channels; empty.
#[derive(Debug, Default)]
pub struct Chats {}

impl Chats {
    /// Returns no adapter.
    #[expect(clippy::unused_self, reason = "it has the shape of what it stands for")]
    pub fn adapter(&self, _: &Outcomes) -> Option<Rc<dyn Adapter>> {
        None
    }
}

/// The token files to be read; none here.
#[derive(Debug, Default)]
pub struct TokenFiles {}

/// Reports no problems.
pub fn check_settings(channels: Vec<(Arc<Channel>, Arc<Counts>)>, _: &TokenFiles) {
    for (_, counts) in channels {
        counts.configured(None, None);
    }
}
