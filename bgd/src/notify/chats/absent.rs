//! What stands for `chats` in a build without them. The configuration refuses these channels there, so that there is
//! none to be served.

use std::rc::Rc;
use std::sync::Arc;

use crate::channels::Channel;
use crate::notify::counts::Counts;
use crate::notify::{Adapter, Outcomes};

/// What none of these channels share.
#[derive(Debug, Default)]
pub struct Chats {}

impl Chats {
    /// No adapter.
    #[expect(clippy::unused_self, reason = "it has the shape of what it stands for")]
    pub fn adapter(&self, _: &Outcomes) -> Option<Rc<dyn Adapter>> {
        None
    }
}

/// Finds nothing wrong with the settings of channels that have none.
pub fn look_at(channels: Vec<(Arc<Channel>, Arc<Counts>)>) {
    for (_, counts) in channels {
        counts.configured(None, None);
    }
}
