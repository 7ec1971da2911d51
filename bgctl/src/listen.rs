//! Events of tasks, waited for beside other things: on a connection of their own, so that none comes between a call
//! and its answer.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;
use std::{io, iter};

use bgd_shared::client::Client;
use bgd_shared::event::{Event, News};
use bgd_shared::id::TaskId;
use bgd_shared::request::{EventsSubscribe, SubscribeParams};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::failure::Failure;
use crate::follow::left_until;

/// The most tasks that are named to the daemon; with more every event is taken.
const NAMED: usize = 1000;

/// The events of some tasks from now on.
pub struct Listener {
    client: Client,
    params: SubscribeParams,
}

/// What a listener is told.
pub enum Heard {
    /// Something happened.
    Event(Box<Event>),
    /// Events are missing: how the tasks are has to be looked up.
    Gap,
}

impl Listener {
    /// Listens on a connection that nothing else is said on.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn new(mut client: Client, ids: &[TaskId]) -> Result<Self, Failure> {
        let ids = if ids.len() > NAMED { Vec::new() } else { ids.iter().map(|id| (*id).into()).collect() };
        let params = SubscribeParams { ids, ..SubscribeParams::default() };
        client.call::<EventsSubscribe>(&params)?;
        Ok(Self { client, params })
    }

    /// All that has come, once the connection can be read.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn heard(&mut self) -> Result<Vec<Heard>, Failure> {
        let first = self.client.next_news()?;
        let rest = iter::from_fn(|| self.client.received_news().transpose());
        let news = iter::once(Ok(first)).chain(rest).collect::<Result<Vec<_>, _>>()?;
        let mut heard = Vec::with_capacity(news.len());
        for params in news {
            heard.push(match params.news {
                News::Event(event) => Heard::Event(event),
                News::Gap(gap) => {
                    if gap.ended {
                        self.client.call::<EventsSubscribe>(&self.params)?;
                    }
                    Heard::Gap
                }
            });
        }
        Ok(heard)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.client.as_fd()
    }
}

/// Sleeps until something can be read from one of these that are there, or until then at the latest; which of them can
/// be.
///
/// # Errors
/// Nobody reads standard output any more.
pub fn sleep<const COUNT: usize>(
    descriptors: [Option<BorrowedFd<'_>>; COUNT],
    until: Option<Instant>,
) -> Result<[bool; COUNT], Failure> {
    let out = io::stdout();
    let there = descriptors.iter().flatten();
    let mut sources: Vec<_> = there.map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // Without flags only a reader who went away is told.
    sources.push(PollFd::new(out.as_fd(), PollFlags::empty()));
    loop {
        match poll(&mut sources, until.map_or(PollTimeout::NONE, left_until)) {
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(Failure::io("can't wait", &error.into())),
        }
    }
    let mut met = sources.iter().map(|source| source.any().unwrap_or(false));
    let which = descriptors.map(|descriptor| descriptor.is_some() && met.next().unwrap_or(false));
    if met.next().unwrap_or(false) {
        return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
    }
    Ok(which)
}
