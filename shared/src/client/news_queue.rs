//! The events of a connection that were received but not consumed yet. A daemon that sends them faster than they are
//! consumed costs bounded memory: one gap stands for those without room, as where a daemon drops the events of a slow
//! subscriber.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::Notify;

use crate::event::{EventParams, Gap, GapKind, News};
use crate::mutex::Mutex;

/// The maximum number of events. Thousands may arrive before their consumer has a turn.
pub(super) const EVENTS: usize = 16 * 1024;

/// The size in bytes from which on no further events are kept.
const BYTES: usize = 32 * 1024 * 1024;

/// How many events there is still room for once all of them were consumed.
const KEPT: usize = 16;

/// The events, in the order of their arrival.
#[derive(Debug, Default)]
struct Unread {
    /// Each with its size in bytes.
    events: VecDeque<(EventParams, usize)>,
    bytes: usize,
    is_closed: bool,
}

impl Unread {
    fn push(&mut self, params: EventParams, bytes: usize) {
        if self.events.len() < EVENTS && self.bytes < BYTES {
            self.bytes += bytes;
            self.events.push_back((params, bytes));
            return;
        }
        let EventParams { subscription, news } = params;
        let missing = as_gap(&news);
        let last = self.events.back_mut().filter(|(last, _)| last.subscription == subscription);
        if let Some((EventParams { news: News::Gap(gap), .. }, _)) = last {
            gap.to = gap.to.max(missing.to);
            gap.ended |= missing.ended;
            return;
        }
        // Gaps are bounded as well, however many subscriptions the daemon names.
        if self.events.len() < 2 * EVENTS {
            self.events.push_back((EventParams { subscription, news: News::Gap(missing) }, 0));
        }
    }

    fn pop(&mut self) -> Option<EventParams> {
        let (params, bytes) = self.events.pop_front()?;
        self.bytes -= bytes;
        if self.events.is_empty() {
            self.events.shrink_to(KEPT);
        }
        Some(params)
    }
}

/// Returns the gap that stands for this.
fn as_gap(news: &News) -> Gap {
    match news {
        News::Event(event) => Gap { kind: GapKind::Gap, from: event.seq, to: event.seq, ended: false },
        News::Gap(gap) => *gap,
    }
}

/// A queue of events.
#[derive(Debug, Default)]
pub(super) struct NewsQueue {
    unread: Mutex<Unread>,
    /// Notified of each event, and of the end.
    changed: Notify,
    /// Held by the one consumer that waits.
    turn: tokio::sync::Mutex<()>,
}

impl NewsQueue {
    /// Takes the next event; `None` once there will be no more.
    fn poll(&self) -> Poll<Option<EventParams>> {
        let mut unread = self.unread.lock();
        match unread.pop() {
            None if !unread.is_closed => Poll::Pending,
            params => Poll::Ready(params),
        }
    }

    /// Waits for the next event; `None` once there will be no more. Cancel-safe.
    pub async fn next(&self) -> Option<EventParams> {
        // This also lets other work of the runtime run between many events.
        let _turn = self.turn.lock().await;
        loop {
            if let Poll::Ready(params) = self.poll() {
                return params;
            }
            self.changed.notified().await;
        }
    }
}

/// The end of a queue to which events are added. Dropping it closes the queue.
#[derive(Debug)]
pub(super) struct NewsSender(Arc<NewsQueue>);

impl NewsSender {
    /// Creates a queue with this end.
    pub fn new() -> (Self, Arc<NewsQueue>) {
        let queue = Arc::<NewsQueue>::default();
        (Self(Arc::clone(&queue)), queue)
    }

    /// Adds an event of this size in bytes, or notes in a gap that it is missing.
    pub fn send(&self, params: EventParams, bytes: usize) {
        self.0.unread.lock().push(params, bytes);
        self.0.changed.notify_one();
    }
}

impl Drop for NewsSender {
    fn drop(&mut self) {
        self.0.unread.lock().is_closed = true;
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns something that happened at this number, which is itself a gap.
    fn news(subscription: u64, number: u64) -> EventParams {
        let gap = Gap { kind: GapKind::Gap, from: number, to: number, ended: false };
        EventParams { subscription, news: News::Gap(gap) }
    }

    /// Takes everything, and returns the subscription and the range of each.
    fn take_all(unread: &mut Unread) -> Vec<(u64, u64, u64)> {
        let all = std::iter::from_fn(|| unread.pop());
        all.map(|params| {
            let gap = as_gap(&params.news);
            (params.subscription, gap.from, gap.to)
        })
        .collect()
    }

    #[test]
    fn large_events_without_room_become_one_gap() {
        let mut unread = Unread::default();
        for number in 1..=4 {
            unread.push(news(1, number), BYTES / 3);
        }
        for number in 5..=9 {
            unread.push(news(2, number), 1);
        }
        assert_eq!(unread.pop(), Some(news(1, 1)));
        unread.push(news(2, 10), 1);
        let expected = [(1, 2, 2), (1, 3, 3), (1, 4, 4), (2, 5, 9), (2, 10, 10)];
        assert_eq!(take_all(&mut unread), expected);
        assert_eq!(unread.bytes, 0);
    }

    #[test]
    fn gap_keeps_that_a_subscription_has_ended() {
        let mut unread = Unread::default();
        unread.push(news(2, 1), BYTES);
        unread.push(news(1, 2), 1);
        let ended = Gap { kind: GapKind::Gap, from: 3, to: 7, ended: true };
        unread.push(EventParams { subscription: 1, news: News::Gap(ended) }, 1);
        unread.pop();
        let gap = Gap { kind: GapKind::Gap, from: 2, to: 7, ended: true };
        assert_eq!(unread.pop(), Some(EventParams { subscription: 1, news: News::Gap(gap) }));
        assert_eq!(unread.pop(), None);
    }

    #[test]
    fn gaps_of_many_subscriptions_are_bounded() {
        let mut unread = Unread::default();
        for number in 0..3 * EVENTS as u64 {
            unread.push(news(number, number), 1);
        }
        assert_eq!(unread.events.len(), 2 * EVENTS);
    }
}
