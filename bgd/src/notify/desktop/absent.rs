//! Stub for the channel `desktop` in builds without it. As the channel exists without configuration, the stub reports
//! why nothing is shown.

use futures_util::future::{LocalBoxFuture, ready};
use serde_json::value::RawValue;

use crate::features::Feature;
use crate::notify::adapter::{Adapter, Notification};
use crate::notify::undelivered::Undelivered;

/// Shows no bubbles.
#[derive(Default)]
pub struct Desktop {}

impl Adapter for Desktop {
    fn notify<'a>(&'a self, _: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>> {
        let why = format!("a desktop notification {}", Feature::Desktop.needed());
        Box::pin(ready(Err(Undelivered(why))))
    }

    fn state(&self) -> Option<Box<RawValue>> {
        let Self {} = self;
        None
    }

    fn resume(&self, _: &RawValue) {}
}
