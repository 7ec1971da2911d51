//! Holds on owners that have threads of their own, for an upgrade in place (R121): a held owner reads, writes and
//! reports nothing, and its state stays as it handed it over.

use std::convert::Infallible;

use tokio::sync::oneshot;

/// The order to keep still until the hold is dropped.
#[derive(Debug)]
pub struct KeepStill<T> {
    still: oneshot::Sender<T>,
    resumed: oneshot::Receiver<Infallible>,
}

impl<T> KeepStill<T> {
    /// Hands over the state, and waits for as long as the hold lasts.
    pub async fn keep(self, state: T) {
        if self.still.send(state).is_ok() {
            let _ = self.resumed.await;
        }
    }
}

/// Keeps an owner still until this is dropped.
#[derive(Debug)]
pub struct Hold<T> {
    receiver: oneshot::Receiver<T>,
    state: Option<T>,
    is_gone: bool,
    _resume: oneshot::Sender<Infallible>,
}

impl<T> Hold<T> {
    /// Creates the hold, and the order for the owner to be held.
    pub fn new() -> (Self, KeepStill<T>) {
        let ((still, receiver), (held, resumed)) = (oneshot::channel(), oneshot::channel());
        (Self { receiver, state: None, is_gone: false, _resume: held }, KeepStill { still, resumed })
    }

    /// Checks whether the owner is still by now.
    pub fn look(&mut self) {
        match self.receiver.try_recv() {
            Ok(still) => self.state = Some(still),
            Err(oneshot::error::TryRecvError::Empty) => {}
            Err(oneshot::error::TryRecvError::Closed) => self.is_gone = self.state.is_none(),
        }
    }

    /// Reports whether the owner was still at the last look, or has ended.
    pub fn is_still(&self) -> bool {
        self.is_gone || self.state.is_some()
    }

    /// Returns the owner's state; `None` if it has not handed it over, or has ended.
    pub fn still(&self) -> Option<&T> {
        self.state.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn r121_held_task_continues_when_the_hold_ends() {
        let (mut hold, order) = Hold::new();
        hold.look();
        assert!(!hold.is_still());
        let kept = tokio::spawn(order.keep(7));
        tokio::task::yield_now().await;
        hold.look();
        assert_eq!((hold.is_still(), hold.still()), (true, Some(&7)));
        hold.look();
        assert!(hold.is_still() && !kept.is_finished());
        drop(hold);
        kept.await.unwrap();
        let (mut hold, order) = Hold::<i32>::new();
        drop(order);
        hold.look();
        assert_eq!((hold.is_still(), hold.still()), (true, None), "it has ended");
    }
}
