//! Task events on a separate connection, so that no event arrives between a call and its answer.

use std::iter;
use std::os::fd::{AsFd, BorrowedFd};

use bgd_shared::client::{Client, ClientError};
use bgd_shared::event::{Event, EventParams, News};
use bgd_shared::id::TaskId;
use bgd_shared::request::{EventsSubscribe, IdParams, Method, SubscribeParams, TaskGet};
use bgd_shared::task::Task;

use super::wait::sleep;
use crate::failure::Failure;

/// Maximum number of tasks to name in a subscription; with more, it covers all events.
const NAMED: usize = 1000;

/// Receives the events of some tasks, from now on or after a given one.
pub struct Listener {
    client: Client,
    params: SubscribeParams,
    /// The number of the last event before those to come.
    seq: u64,
}

/// News that a listener receives.
pub enum Heard {
    Event(Box<Event>),
    /// Events are missing: the state of the tasks must be looked up.
    Gap,
}

impl Listener {
    /// Subscribes on a connection that is used for nothing else, except [`Self::call`].
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn new(mut client: Client, params: SubscribeParams) -> Result<Self, Failure> {
        let begun = client.call::<EventsSubscribe>(&params)?;
        let seq = params.since.unwrap_or(begun.seq);
        // After a gap it continues from then on.
        Ok(Self { client, params: SubscribeParams { since: None, ..params }, seq })
    }

    /// Returns the number of the last event that was returned, or is missing.
    pub const fn seq(&self) -> u64 {
        self.seq
    }

    /// Subscribes to the events of these tasks.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn of(client: Client, ids: &[TaskId]) -> Result<Self, Failure> {
        let ids = if ids.len() > NAMED { Vec::new() } else { ids.iter().map(|id| (*id).into()).collect() };
        Self::new(client, SubscribeParams { ids, ..SubscribeParams::default() })
    }

    /// Waits until `is_so` holds for a task, and returns the task.
    ///
    /// # Errors
    /// The task, the daemon or the reader of standard output is gone.
    pub fn until(client: Client, id: TaskId, is_so: impl Fn(&Task) -> bool) -> Result<Task, Failure> {
        // The task is looked up after subscribing and after each event or gap, as it may change before the subscription
        // and while events are missing.
        let mut listener = Self::of(client, &[id])?;
        loop {
            let task = listener.call::<TaskGet>(&IdParams { id: id.into() })?.task;
            if is_so(&task) {
                return Ok(task);
            }
            listener.next_for_reader()?;
        }
    }

    /// Makes a call; events that arrive meanwhile are kept.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, ClientError> {
        self.client.call::<M>(params)
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn next(&mut self) -> Result<Heard, ClientError> {
        let news = self.client.next_news()?;
        self.understand(news)
    }

    /// Waits for the next event as long as standard output has a reader.
    ///
    /// # Errors
    /// The daemon or the reader of standard output is gone.
    pub fn next_for_reader(&mut self) -> Result<Heard, Failure> {
        let mut news = self.client.received_news()?;
        let news = loop {
            if let Some(news) = news {
                break news;
            }
            sleep([Some(self.client.as_fd())], None)?;
            news = self.client.arrived_news()?;
        };
        Ok(self.understand(news)?)
    }

    /// Returns the events that have arrived, once the connection is readable. There may be none: it is also readable when
    /// the daemon has answered a probe.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn heard(&mut self) -> Result<Vec<Heard>, Failure> {
        let first = self.client.arrived_news().transpose();
        let rest = iter::from_fn(|| self.client.received_news().transpose());
        let news = first.into_iter().chain(rest).collect::<Result<Vec<_>, _>>()?;
        news.into_iter().map(|news| Ok(self.understand(news)?)).collect()
    }

    fn understand(&mut self, params: EventParams) -> Result<Heard, ClientError> {
        Ok(match params.news {
            News::Event(event) => {
                self.seq = event.seq;
                Heard::Event(event)
            }
            News::Gap(gap) => {
                self.seq = gap.to;
                // This client read too slowly, so its subscription has ended.
                if gap.ended {
                    self.seq = self.client.call::<EventsSubscribe>(&self.params)?.seq;
                }
                Heard::Gap
            }
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.client.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    #[test]
    fn r21_listener_does_not_wait_for_an_event_behind_a_probe_reply() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let begun = r#"{"jsonrpc":"2.0","id":1,"result":{"subscription":1,"instance":"i","seq":7}}"#;
        writeln!(there, "{begun}").unwrap();
        let mut client = Client::over(here.into());
        // Only to fail instead of waiting forever.
        client.wait_at_most(Duration::from_millis(100));
        let mut listener = Listener::new(client, SubscribeParams::default()).unwrap();
        there.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}\n").unwrap();
        assert!(listener.heard().unwrap().is_empty(), "it is only the answer to a probe");
        let gap =
            r#"{"jsonrpc":"2.0","method":"event","params":{"subscription":1,"kind":"gap","from":8,"to":9}}"#;
        write!(there, "{gap}\n{gap}\n").unwrap();
        assert_eq!(listener.heard().unwrap().len(), 2);
        assert_eq!(listener.seq(), 9);
    }
}
