//! Submissions one after the other: each is told to the cluster once the one before it was.

use tokio::sync::oneshot;

/// What came of a submission, for the one after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has had its turn: the cluster has decided about it, or may have it.
    Had,
    /// It comes again, before the next one.
    Again,
}

/// The submission before another one.
#[derive(Debug)]
pub struct Before(oneshot::Receiver<Outcome>);

/// The turn of a submission.
#[derive(Debug)]
pub struct SubmitTurn {
    before: Option<Before>,
    tell: oneshot::Sender<Outcome>,
}

impl SubmitTurn {
    /// Creates the turn after the one before, if there was one. Returns with it what the next one waits for.
    pub fn after(before: Option<Before>) -> (Self, Before) {
        let (tell, outcome) = oneshot::channel();
        (Self { before, tell }, Before(outcome))
    }

    /// Waits until it is this submission's turn. Returns whether it is, or the one before comes again.
    pub async fn come(&mut self) -> bool {
        match self.before.take() {
            // One that was given up tells nothing.
            Some(Before(outcome)) => outcome.await != Ok(Outcome::Again),
            None => true,
        }
    }

    /// Tells the next submission what came of this one.
    pub fn end(self, outcome: Outcome) {
        // There may be no next one.
        let _ = self.tell.send(outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn r146_a_submission_that_comes_again_lets_none_pass() {
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
