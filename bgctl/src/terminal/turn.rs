//! One turn of a loop: the events it waits for, and those that have happened.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Instant;

use bgd_shared::client::{ClientError, PolledClient};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::signals::Signals;
use crate::link::poll_timeout;

/// Number of sources, not counting additional connections.
const OWN: usize = 6;

/// The events that a turn waits for. A source that is `None` is not polled.
#[derive(Debug)]
pub struct Wants<'a> {
    pub link: Option<BorrowedFd<'a>>,
    pub reads_link: bool,
    pub writes_link: bool,
    /// When to check on a silent daemon. Ignored unless `reads_link`.
    pub link_until: Option<Instant>,
    /// A second connection to read from.
    pub news: Option<BorrowedFd<'a>>,
    /// The keyboard. Its loss is always reported.
    pub keyboard: Option<BorrowedFd<'a>>,
    pub reads_keyboard: bool,
    /// The signals, which are always read.
    pub signals: BorrowedFd<'a>,
    /// The terminal, if output is pending.
    pub screen: Option<BorrowedFd<'a>>,
    /// A source of changes, such as an inotify descriptor.
    pub changes: Option<BorrowedFd<'a>>,
    /// The deadline of the wait.
    pub until: Option<Instant>,
}

/// The events that have happened. None is set if only the deadline passed or a signal arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "any of them may have come together")]
pub struct Ready {
    /// The connection is readable or closed.
    pub reads_link: bool,
    /// The connection accepts more output.
    pub writes_link: bool,
    /// The connection was to be read, but has no data.
    pub quiet_link: bool,
    /// The second connection is readable or closed.
    pub news: bool,
    /// The keyboard has input.
    pub keyboard: bool,
    /// The keyboard is gone.
    pub hung_up: bool,
    /// The screen accepts more output, or is gone.
    pub screen: bool,
    /// The source of changes is readable.
    pub changes: bool,
}

/// One of several connections that a turn waits for.
#[derive(Clone, Copy, Debug)]
pub struct LinkWants<'a> {
    descriptor: BorrowedFd<'a>,
    writes: bool,
    until: Option<Instant>,
}

impl<'a> LinkWants<'a> {
    /// Waits for any event on a connection, and for the time to check on a silent daemon.
    pub fn of(link: &'a PolledClient) -> Self {
        Self { descriptor: link.as_fd(), writes: link.wants_write(), until: link.until() }
    }

    /// Waits until the descriptor is readable.
    pub const fn of_descriptor(descriptor: BorrowedFd<'a>) -> Self {
        Self { descriptor, writes: false, until: None }
    }
}

/// The events that have happened on one of several connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkReady {
    /// The connection is readable or closed.
    pub reads: bool,
    /// The connection accepts more output.
    pub writes: bool,
}

impl LinkReady {
    /// Writes pending output to the daemon, and checks on a silent one.
    ///
    /// # Errors
    /// The connection is broken, or the daemon does not answer.
    pub fn tend(self, link: &mut PolledClient) -> Result<(), ClientError> {
        if self.writes {
            link.write()?;
        }
        if self.reads { Ok(()) } else { link.keep_up() }
    }
}

impl Ready {
    /// Writes pending output to the daemon, and checks on a silent one.
    ///
    /// # Errors
    /// The connection is broken, or the daemon does not answer.
    pub fn tend(self, link: &mut PolledClient) -> Result<(), ClientError> {
        if self.writes_link {
            link.write()?;
        }
        if self.quiet_link { link.keep_up() } else { Ok(()) }
    }
}

impl<'a> Wants<'a> {
    /// Waits for signals and for any event on a connection.
    pub fn of_link(link: &'a PolledClient, signals: &'a Signals) -> Self {
        Self {
            link: Some(link.as_fd()),
            reads_link: true,
            writes_link: link.wants_write(),
            link_until: link.until(),
            ..Self::new(signals.as_fd())
        }
    }

    /// Waits for signals only.
    pub const fn new(signals: BorrowedFd<'a>) -> Self {
        Self {
            link: None,
            reads_link: false,
            writes_link: false,
            link_until: None,
            news: None,
            keyboard: None,
            reads_keyboard: false,
            signals,
            screen: None,
            changes: None,
            until: None,
        }
    }

    /// Sleeps until something happens. Signals are not reported: their descriptor is read in every turn.
    ///
    /// # Errors
    /// `poll` fails.
    pub fn wait(&self) -> io::Result<Ready> {
        self.wait_with(&[]).map(|(ready, _)| ready)
    }

    /// Like [`Self::wait`], for any of these connections as well. Returns the events on each of them.
    ///
    /// # Errors
    /// `poll` fails.
    pub fn wait_with(&self, links: &[LinkWants<'_>]) -> io::Result<(Ready, Vec<LinkReady>)> {
        let flags = |reads: bool, writes: bool| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, reads);
            flags.set(PollFlags::POLLOUT, writes);
            flags
        };
        let link = self.link.filter(|_| self.reads_link || self.writes_link);
        // A missing descriptor is replaced by another one for which no events are requested.
        let other = |descriptor: Option<BorrowedFd<'a>>, flags| match descriptor {
            Some(descriptor) => PollFd::new(descriptor, flags),
            None => PollFd::new(self.signals, PollFlags::empty()),
        };
        let own = [
            PollFd::new(self.signals, PollFlags::POLLIN),
            other(link, flags(self.reads_link, self.writes_link)),
            other(self.keyboard, flags(self.reads_keyboard, false)),
            other(self.screen, PollFlags::POLLOUT),
            other(self.changes, PollFlags::POLLIN),
            other(self.news, PollFlags::POLLIN),
        ];
        let others = links.iter().map(|link| PollFd::new(link.descriptor, flags(true, link.writes)));
        let mut sources: Vec<PollFd<'_>> = own.into_iter().chain(others).collect();
        let until = [self.until, self.link_until.filter(|_| self.reads_link)];
        let until = until.into_iter().chain(links.iter().map(|link| link.until)).flatten().min();
        loop {
            match poll(&mut sources, until.map_or(PollTimeout::NONE, poll_timeout)) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut met = sources.iter().map(|source| source.revents().unwrap_or(PollFlags::empty()));
        let [_, link, keyboard, screen, changes, news] =
            [(); OWN].map(|()| met.next().unwrap_or(PollFlags::empty()));
        let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
        let typed = keyboard.contains(PollFlags::POLLIN);
        let ready = Ready {
            reads_link: link.intersects(PollFlags::POLLIN | gone),
            writes_link: link.contains(PollFlags::POLLOUT),
            quiet_link: self.link.is_some() && self.reads_link && !link.intersects(PollFlags::POLLIN | gone),
            news: news.intersects(PollFlags::POLLIN | gone),
            keyboard: typed,
            hung_up: keyboard.intersects(gone) && !typed,
            screen: !screen.is_empty(),
            changes: !changes.is_empty(),
        };
        let of_link = |met: PollFlags| LinkReady {
            reads: met.intersects(PollFlags::POLLIN | gone),
            writes: met.contains(PollFlags::POLLOUT),
        };
        Ok((ready, met.map(of_link).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn wait_reports_only_wanted_events_and_hangup() {
        let (quiet, _other) = UnixStream::pair().unwrap();
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(b"x").unwrap();
        let mut wants = Wants::new(quiet.as_fd());
        wants.until = Some(Instant::now() + Duration::from_millis(1));
        wants.link = Some(here.as_fd());
        wants.keyboard = Some(here.as_fd());
        assert_eq!(wants.wait().unwrap(), Ready::default(), "the time has come");
        wants.until = None;
        wants.writes_link = true;
        assert_eq!(wants.wait().unwrap(), Ready { writes_link: true, ..Ready::default() });
        wants.reads_keyboard = true;
        assert!(wants.wait().unwrap().keyboard);
        let several = [here.as_fd(), quiet.as_fd()].map(LinkWants::of_descriptor);
        let (_, links) = wants.wait_with(&several).unwrap();
        assert_eq!(links, [LinkReady { reads: true, writes: false }, LinkReady::default()]);
        drop(there);
        wants.reads_keyboard = false;
        wants.writes_link = false;
        assert_eq!(wants.wait().unwrap(), Ready { hung_up: true, ..Ready::default() });
    }
}
