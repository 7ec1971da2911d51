//! A subscription to events that a test can wait on.

use bgd_shared::client::Client;
use bgd_shared::event::{Event, EventKind, EventParams, News};
use bgd_shared::id::TaskId;
use bgd_shared::request::{EventsSubscribe, SubscribeParams, SubscribeResult};

/// An event subscription with its own connection.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    /// The daemon's answer to the subscription.
    pub subscribed: SubscribeResult,
}

impl Watch {
    /// Subscribes over this connection.
    #[track_caller]
    pub fn new(mut client: Client, params: &SubscribeParams) -> Self {
        let subscribed = client.call::<EventsSubscribe>(params).expect("events.subscribe");
        Self { client, subscribed }
    }

    /// The next notification, a gap included.
    #[track_caller]
    pub fn next_params(&mut self) -> EventParams {
        self.client.next_news().expect("the next event")
    }

    /// The next event. A gap fails the test.
    #[track_caller]
    pub fn next_event(&mut self) -> Event {
        match self.next_params().news {
            News::Event(event) => *event,
            News::Gap(gap) => panic!("events are missing: {gap:?}"),
        }
    }

    /// Waits for an event for which `wanted` holds, and drops the others.
    #[track_caller]
    pub fn until(&mut self, mut wanted: impl FnMut(&Event) -> bool) -> Event {
        loop {
            let event = self.next_event();
            if wanted(&event) {
                return event;
            }
        }
    }

    /// Waits for an event of this kind about a task.
    #[track_caller]
    pub fn until_kind(&mut self, id: TaskId, kind: EventKind) -> Event {
        self.until(|event| event.task.id == id && event.kind == kind)
    }
}
