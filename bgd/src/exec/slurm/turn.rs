//! Keeps submissions in order: each is sent to the cluster after the previous one.

use tokio::sync::oneshot;

/// The outcome of a submission, for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It had its turn: the cluster has decided about it, or may have it.
    Had,
    /// It is repeated, before the next one.
    Again,
}

/// The outcome of the previous submission.
#[derive(Debug)]
pub struct Before(oneshot::Receiver<Outcome>);

#[derive(Debug)]
pub struct SubmitTurn {
    before: Option<Before>,
    done: oneshot::Sender<Outcome>,
}

impl SubmitTurn {
    /// Creates the turn after the previous one, if there was one. Returns the outcome that the next turn waits for as
    /// well.
    pub fn after(before: Option<Before>) -> (Self, Before) {
        let (done, outcome) = oneshot::channel();
        (Self { before, done }, Before(outcome))
    }

    /// Waits until it is this submission's turn. Returns `false` if the previous one is repeated first.
    pub async fn come(&mut self) -> bool {
        match self.before.take() {
            // An abandoned submission sends no outcome.
            Some(Before(outcome)) => outcome.await != Ok(Outcome::Again),
            None => true,
        }
    }

    /// Notifies the next submission of this one's outcome.
    pub fn end(self, outcome: Outcome) {
        // There may be no next one.
        let _ = self.done.send(outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn r146_submission_to_be_repeated_blocks_the_next_one() {
        let (mut first, before) = SubmitTurn::after(None);
        let (mut second, before) = SubmitTurn::after(Some(before));
        let (mut third, before) = SubmitTurn::after(Some(before));
        let (mut fourth, _) = SubmitTurn::after(Some(before));
        assert!(first.come().await);
        first.end(Outcome::Had);
        assert!(second.come().await);
        second.end(Outcome::Again);
        assert!(!third.come().await);
        drop(third);
        assert!(fourth.come().await);
    }
}
