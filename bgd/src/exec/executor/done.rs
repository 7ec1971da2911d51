//! The ends of orders, which the answers to clients wait for.

use std::time::Duration;

use bgd_shared::error::RpcError;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::core::Control;
use crate::exec::silence;

/// Resolves when an operation is done, will be done later, or can no longer be done, and in any case within a time that
/// its executor chooses. An error is the answer to a client whose order was refused.
pub type Done = BoxFuture<'static, Option<RpcError>>;

/// Resolves a [`Done`], also by being dropped.
pub type DoneSender = oneshot::Sender<RpcError>;

/// How long the answer to an order usually waits: processes may take a moment to stop.
pub const DONE: Duration = Duration::from_secs(6);

/// Waits until an operation is done or refused. If that takes longer than `within`, `unknown` is the answer.
pub fn done_within(within: Duration, done: oneshot::Receiver<RpcError>, unknown: Option<RpcError>) -> Done {
    Box::pin(async move { timeout(within, done).await.map_or(unknown, Result::ok) })
}

/// Returns the answer to an order without an outcome after [`DONE`]: an error for a signal, which is not sent later.
pub fn unknown_signal(control: &Control) -> Option<RpcError> {
    matches!(control, Control::Signal { .. }).then(|| silence::no_answer("the signal was delivered"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn r106_order_is_answered_when_done_or_refused_or_after_a_time() {
        let unknown = || Some(silence::no_answer("it was done"));
        let (sender, done) = oneshot::channel();
        drop(sender);
        assert_eq!(done_within(DONE, done, unknown()).await, None);
        let (sender, done) = oneshot::channel();
        let refusal = silence::given_up("it was done");
        sender.send(refusal.clone()).unwrap();
        assert_eq!(done_within(DONE, done, unknown()).await, Some(refusal));
        let (_sender, done) = oneshot::channel();
        assert_eq!(done_within(DONE, done, unknown()).await, unknown());
    }

    #[test]
    fn r106_only_a_signal_without_an_outcome_is_an_error() {
        assert!(unknown_signal(&Control::Signal { signal: 10, tree: true }).is_some());
        assert!(unknown_signal(&Control::Pause).is_none());
    }
}
