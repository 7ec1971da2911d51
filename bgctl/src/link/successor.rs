//! Detects whether a daemon of this machine has gone, and finds the one that takes over the tasks of one that was
//! killed or restarted. Independent of remote machines, and prints nothing.

use std::time::{Duration, Instant};

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::ErrorKind;
use bgd_shared::holder::{Note, Phase};
use bgd_shared::request::{Hello, HelloParams};
use bgd_shared::socket::SocketPath;
use bgd_shared::transport::{self, ConnectError};

use super::connect::{self, StartError, Started};
use super::turn::Turn;
use crate::failure::Failure;

/// Maximum number of connections that may be closed before the next daemon has answered.
const TRIES: u32 = 8;

/// Maximum number of daemons that may end within [`BURST_TIME`].
const BURST: u32 = 10;

/// The time in which ended daemons are counted, from the first one on. Service managers restart a crashing daemon about
/// as often.
const BURST_TIME: Duration = Duration::from_secs(10);

/// The outcome of an attempt to connect to the next daemon.
enum Attempt {
    Connected(Box<Client>, Started),
    /// The daemon can't be started, or refuses the connection.
    Refused(Failure),
    /// The daemon that was starting has ended.
    Ended(Failure),
    /// The old daemon, which was not quite gone, or the next one closed the connection.
    Closed,
}

/// The daemons that have ended while this process waited.
#[derive(Debug, Default)]
pub struct Successors {
    /// The instance of the durable daemon when a wait began.
    instance: Option<String>,
    /// When the daemons began to be counted, and how many have ended since.
    burst: Option<(Instant, u32)>,
}

impl Successors {
    /// Remembers the daemon whose tasks are waited for, as noted at this socket.
    pub fn remember(&mut self, socket: &SocketPath) {
        self.instance = durable_at(socket).map(|note| note.instance);
    }

    /// Connects to the daemon that has the tasks of one that has just closed its connections; with `starts`, starts it
    /// if it is not running. A daemon that ends before it answers has a successor, too. `None` if the tasks are lost,
    /// the daemon was stopped, too many daemons have ended within a short time, or no process starts the next one.
    ///
    /// # Errors
    /// The next daemon could not be started, or too many have ended before they answered.
    pub fn next(&mut self, socket: &SocketPath, starts: bool) -> Option<Result<(Client, Started), Failure>> {
        let (mut tries, mut deaths, mut last) = (0, 0, None);
        // Those that take longer to die are no burst, but not to be followed for ever.
        while deaths < BURST && self.may_follow() {
            loop {
                match self.attempt(socket, starts)? {
                    Attempt::Connected(client, started) => return Some(Ok((*client, started))),
                    Attempt::Refused(failure) => return Some(Err(failure)),
                    Attempt::Ended(failure) => {
                        last = Some(Err(failure));
                        deaths += 1;
                        break;
                    }
                    Attempt::Closed => {
                        tries += 1;
                        if tries == TRIES {
                            return None;
                        }
                    }
                }
            }
        }
        last
    }

    /// Makes one attempt to connect to the next daemon. `None` as for [`Self::next`].
    fn attempt(&self, socket: &SocketPath, starts: bool) -> Option<Attempt> {
        let (note, is_started) = left_at(socket)?;
        let connected = if is_started {
            // The process that restarts the daemon starts it, or another one that waits for it.
            connect::connect_to_started(socket)
        } else if starts {
            connect::connect_or_start(socket, true)
        } else {
            // A service manager may start it again.
            Ok((connect::connect_patiently(socket).ok()?, Started::Before))
        };
        let (mut client, started) = match connected {
            Ok(connected) => connected,
            Err(StartError::Ended(failure)) => return Some(Attempt::Ended(failure)),
            Err(StartError::Refused(failure)) => return Some(Attempt::Refused(failure)),
        };
        let before = self.instance.as_ref().unwrap_or(&note.instance);
        match client.call::<Hello>(&HelloParams::default()) {
            Err(ClientError::Closed | ClientError::Io(_)) => Some(Attempt::Closed),
            Err(error) => Some(Attempt::Refused(error.into())),
            Ok(hello) => (hello.instance == *before).then(|| Attempt::Connected(Box::new(client), started)),
        }
    }

    /// Counts a daemon that has ended. Reports whether the next one may be waited for.
    fn may_follow(&mut self) -> bool {
        let now = Instant::now();
        let current = self.burst.filter(|(begin, _)| now.duration_since(*begin) < BURST_TIME);
        let (begin, ended) = current.unwrap_or((now, 0));
        self.burst = Some((begin, ended + 1));
        ended < BURST
    }
}

/// Returns the note of the current or last daemon at this socket, if its tasks outlive it.
fn durable_at(socket: &SocketPath) -> Option<Note> {
    Some(Note::read(&socket.beside("lock"))).filter(|note| note.durable)
}

/// Returns the note of the daemon whose tasks the next one takes over, and whether a process is starting the next one.
/// `None` if the daemon was stopped for good.
fn left_at(socket: &SocketPath) -> Option<(Note, bool)> {
    // Checked before the note: a process that restarts a daemon holds the turn until the next daemon has answered.
    let is_started = Turn::is_taken(socket);
    let note = durable_at(socket)?;
    (is_started || note.phase != Phase::Ending).then_some((note, is_started))
}

/// Reports whether the last daemon at this socket was asked to end, and its tasks outlive it.
pub fn was_stopped(socket: &SocketPath) -> bool {
    durable_at(socket).is_some_and(|note| note.phase == Phase::Ending)
}

/// Returns the path of the journal of the last daemon at this socket, if that was stopped and the journal was not there:
/// the next daemon does not have its tasks.
pub fn missing_journal(socket: &SocketPath) -> Option<String> {
    let note = durable_at(socket).filter(|note| note.phase == Phase::Ending)?;
    Some(note.missing_journal?.to_string_lossy().into_owned())
}

/// Reports whether the last daemon at this socket may have left tasks running.
pub fn has_left(socket: &SocketPath) -> bool {
    durable_at(socket).is_some_and(|note| note.left || note.phase != Phase::Ending)
}

/// Reports whether the effects of a call outlive the current or last daemon at this socket.
pub fn outlives(socket: &SocketPath) -> bool {
    durable_at(socket).is_some()
}

/// Reports whether no daemon is at this socket, and nothing that the last one did outlives it.
pub fn has_left_nothing(socket: &SocketPath) -> bool {
    !outlives(socket) && transport::connect(socket).as_ref().is_err_and(ConnectError::is_absent)
}

/// Reports whether the daemon has gone since we connected, along with all effects of a call. If it is shutting down,
/// waits by `until_closed` until it has gone.
pub fn is_gone(
    error: &ClientError,
    client: &mut Client,
    socket: &SocketPath,
    until_closed: impl FnOnce(&mut Client) -> Result<(), ClientError>,
) -> bool {
    match error {
        ClientError::Rpc(error) if error.kind() == ErrorKind::ShuttingDown => until_closed(client).is_ok(),
        ClientError::Closed | ClientError::Io(_) => has_left_nothing(socket),
        ClientError::Rpc(_)
        | ClientError::Connect(_)
        | ClientError::NoAnswer(_)
        | ClientError::Garbled(_) => false,
    }
}
