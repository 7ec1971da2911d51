//! The delays between looks at a state that no event reports. This module looks at nothing itself.

use std::time::Duration;

use super::looks::Looks;

/// The delays between looks where no event exists: 100 ms at first, growing to 1 s.
#[derive(Debug)]
pub struct Pauses(Duration);

impl Pauses {
    const FIRST: Duration = Duration::from_millis(100);
    const LAST: Duration = Duration::from_secs(1);

    pub fn new() -> Self {
        Self(Self::FIRST)
    }

    /// Sleeps for the next delay.
    pub async fn pause(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 3 / 2).min(Self::LAST);
    }

    /// Sleeps for the next delay, or until the last look is due.
    pub async fn pause_unless_due(&mut self, looks: &Looks) {
        tokio::select! {
            () = self.pause() => {}
            () = looks.until_due() => {}
        }
    }
}
