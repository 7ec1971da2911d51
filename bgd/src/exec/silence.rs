//! Clients that wait for the answer of another machine or of an agent. An upgrade in place can't carry these waits, and
//! must not depend on what does not respond: the waits are abandoned, and each client receives an error, or what is
//! known already.

use bgd_shared::error::{ErrorKind, RpcError};
use tokio::sync::watch;

#[derive(Clone, Debug)]
pub struct Waits(watch::Sender<()>);

/// A wait for another machine, which may be abandoned.
#[derive(Debug)]
pub struct Wait(watch::Receiver<()>);

impl Default for Waits {
    fn default() -> Self {
        Self(watch::Sender::new(()))
    }
}

impl Waits {
    pub fn begin(&self) -> Wait {
        Wait(self.0.subscribe())
    }

    /// Abandons all current waits.
    pub fn give_up(&self) {
        self.0.send_replace(());
    }
}

impl Wait {
    /// Waits for this future. Returns `None` if the wait is abandoned first.
    pub async fn until<T>(&mut self, done: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = done => Some(done),
            Ok(()) = self.0.changed() => None,
        }
    }
}

/// The result in `executor.list` for a machine whose wait was abandoned.
pub const UNCHECKED: &str = "it did not answer before the daemon was upgraded";

/// Returns the error for a client whose call was abandoned; `what` may or may not have been done.
pub fn given_up(what: &str) -> RpcError {
    unknown("the daemon was upgraded before an answer came", what).hint(CHECK)
}

/// Returns the error for a client whose order was not answered in time; `what` may or may not have been done.
pub fn no_answer(what: &str) -> RpcError {
    unknown("no answer came in time", what).hint(CHECK)
}

/// Returns the error for a client whose call to a machine was cut off; `what` may or may not have been done. The caller
/// knows what to do about that.
pub fn cut(place: &str, what: &str) -> RpcError {
    unknown(&format!("the connection to {place} was lost before an answer came"), what)
}

/// What to do about a call that can be repeated.
const CHECK: &str = "check the task, and repeat it if necessary";

fn unknown(why: &str, what: &str) -> RpcError {
    RpcError::new(ErrorKind::Internal, format!("{why}: it is not known whether {what}"))
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn r121_give_up_ends_current_waits_only() {
        let waits = Waits::default();
        let mut before = waits.begin();
        assert_eq!(before.until(ready(1)).await, Some(1));
        waits.give_up();
        let mut after = waits.begin();
        assert_eq!(before.until(pending::<()>()).await, None);
        tokio::select! {
            biased;
            _ = after.until(pending::<()>()) => panic!("it goes on"),
            () = ready(()) => {}
        }
        assert_eq!(after.until(ready(2)).await, Some(2));
    }
}
