//! A subscription to events that a test can wait on.

use bgd_shared::client::Client;
use bgd_shared::event::{Event, EventKind, EventParams, News};
use bgd_shared::id::TaskId;
use bgd_shared::request::{EventsSubscribe, SubscribeParams, SubscribeResult};

#[derive(Debug)]
pub struct Watch {
    client: Client,
    pub subscribed: SubscribeResult,
    /// Whether it gets all events, so that no number may be missing.
    is_complete: bool,
    latest: Option<u64>,
}

impl Watch {
    /// Subscribes over this connection.
    #[track_caller]
    pub fn new(mut client: Client, params: &SubscribeParams) -> Self {
        let subscribed = client.call::<EventsSubscribe>(params).expect("events.subscribe");
        let is_complete = params.ids.is_empty() && params.session.is_none();
        let latest = params.since.is_none().then_some(subscribed.seq);
        Self { client, subscribed, is_complete, latest }
    }

    /// Subscribes again over the same connection, whose subscription has ended.
    #[track_caller]
    #[must_use]
    pub fn again(self, params: &SubscribeParams) -> Self {
        Self::new(self.client, params)
    }

    /// Returns the next notification, including gaps. A number that is missing or comes twice fails the test.
    #[track_caller]
    pub fn next_params(&mut self) -> EventParams {
        let params = self.client.next_news().expect("the next event");
        let latest = match &params.news {
            News::Event(event) => Some(event.seq),
            News::Gap(_) => None,
        };
        if let (true, Some(before), Some(seq)) = (self.is_complete, self.latest, latest) {
            assert_eq!(seq, before + 1, "events are missing or come twice");
        }
        self.latest = latest;
        params
    }

    /// Returns the next event. A gap fails the test.
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
