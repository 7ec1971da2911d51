//! Stub for `chats` in builds without them. The configuration rejects these channels there, so none has to be served.

use std::rc::Rc;
use std::sync::Arc;

use crate::channels::Channel;
use crate::notify::adapter::Adapter;
use crate::notify::counts::Counts;
use crate::notify::outcomes::Outcomes;

/// State shared by the HTTPS channels; there is none.
#[derive(Debug, Default)]
pub struct Chats {}

impl Chats {
    /// Returns no adapter.
    #[expect(clippy::unused_self, reason = "it has the shape of what it stands for")]
    pub fn adapter(&self, _: &Outcomes) -> Option<Rc<dyn Adapter>> {
        None
    }
}

/// The files of tokens that are to be read; there are none.
#[derive(Debug, Default)]
pub struct TokenFiles {}

/// Reports no problems.
pub fn check_settings(channels: Vec<(Arc<Channel>, Arc<Counts>)>, _: &TokenFiles) {
    for (_, counts) in channels {
        counts.configured(None, None);
    }
}
