//! Freezes the thread of an owner, so that nothing changes between the writing of its state and the next program.

use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Duration;

use super::{CarriedFds, Obstacle};

/// How long a thread may take to freeze.
const PATIENCE: Duration = Duration::from_secs(1);

/// The state of an owner and its descriptors, or the reason why there is none now.
pub type Answer<T> = Result<(T, CarriedFds), Obstacle>;

/// An order to a thread to report its state and freeze.
#[derive(Debug)]
pub struct FreezeOrder<T> {
    answer: Sender<Answer<T>>,
    /// Closed to let the thread continue.
    until: Receiver<()>,
}

impl<T> FreezeOrder<T> {
    /// Reports the state. If there is one, then blocks the whole thread until it may continue.
    pub fn report(self, state: Answer<T>) {
        if self.until.try_recv() == Err(TryRecvError::Disconnected) {
            // Too late: nobody would use it.
            return;
        }
        let has_state = state.is_ok();
        if self.answer.send(state).is_ok() && has_state {
            let _ = self.until.recv();
        }
    }
}

/// The dispatcher's hold on a thread.
#[derive(Debug)]
pub struct Standstill<T> {
    /// While the thread is frozen; dropping it lets the thread continue.
    still: Option<Sender<()>>,
    /// The receiver of a late answer.
    unanswered: Option<Receiver<Answer<T>>>,
}

impl<T> Default for Standstill<T> {
    fn default() -> Self {
        Self { still: None, unanswered: None }
    }
}

impl<T> Standstill<T> {
    /// Freezes a thread until [`Self::release`], and returns its state. `send` passes the order to the thread. Blocks
    /// for at most a second.
    ///
    /// # Errors
    /// The thread's own obstacle, or `busy` if it does not answer in time.
    pub fn freeze(
        &mut self,
        busy: &str,
        named: &mut CarriedFds,
        send: impl FnOnce(FreezeOrder<T>),
    ) -> Result<T, Obstacle> {
        // A thread that has not answered yet is not asked again: each wait for it blocks the dispatcher.
        if let Some(unanswered) = &self.unanswered
            && matches!(unanswered.try_recv(), Err(TryRecvError::Empty))
        {
            return Err(Obstacle::passing(busy));
        }
        self.unanswered = None;
        let (answer, answered) = mpsc::channel();
        let (still, until) = mpsc::channel();
        send(FreezeOrder { answer, until });
        // If the thread freezes later than that, it continues at once, as `still` is dropped here.
        let Ok(answer) = answered.recv_timeout(PATIENCE) else {
            self.unanswered = Some(answered);
            return Err(Obstacle::passing(busy));
        };
        let (state, own) = answer?;
        self.still = Some(still);
        named.join(own);
        Ok(state)
    }

    /// Lets the frozen thread continue.
    pub fn release(&mut self) {
        self.still = None;
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn thread_is_frozen_until_its_release() {
        let (mut standstill, mut named) = (Standstill::default(), CarriedFds::default());
        let (orders, queue) = mpsc::channel::<FreezeOrder<u8>>();
        let (progress, continued) = mpsc::channel();
        let worker = thread::spawn(move || {
            for order in queue {
                order.report(Ok((7, CarriedFds::default())));
                progress.send(()).unwrap();
            }
        });
        let state = standstill.freeze("it works", &mut named, |order| orders.send(order).unwrap());
        assert_eq!(state, Ok(7));
        assert_eq!(continued.try_recv(), Err(TryRecvError::Empty));
        standstill.release();
        continued.recv_timeout(Duration::from_mins(1)).unwrap();
        drop(orders);
        worker.join().unwrap();
    }

    #[test]
    fn thread_is_not_asked_again_before_it_has_answered() {
        let (mut standstill, mut named) = (Standstill::<u8>::default(), CarriedFds::default());
        let busy = Err(Obstacle::passing("it works"));
        let mut pending = None;
        assert_eq!(standstill.freeze("it works", &mut named, |order| pending = Some(order)), busy);
        assert_eq!(standstill.freeze("it works", &mut named, |_| panic!("it is asked again")), busy);
        // The late answer is not used, and the thread continues at once.
        pending.unwrap().report(Ok((7, CarriedFds::default())));
        let obstacle = Obstacle::lasting("it can't");
        let answer = |order: FreezeOrder<u8>| order.report(Err(obstacle.clone()));
        assert_eq!(standstill.freeze("it works", &mut named, answer), Err(obstacle.clone()));
        // A thread that has ended is not waited for, either.
        assert_eq!(standstill.freeze("it works", &mut named, drop), busy);
        assert_eq!(standstill.freeze("it works", &mut named, answer), Err(obstacle.clone()));
    }
}
