//! Tells whether a daemon of this machine has gone, and finds the one that goes on with the tasks of a killed one. Knows
//! no other machines, and prints nothing.

use std::time::{Duration, Instant};

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::ErrorKind;
use bgd_shared::holder::{Note, Phase};
use bgd_shared::request::{Hello, HelloParams};
use bgd_shared::socket::SocketPath;
use bgd_shared::transport::{self, ConnectError};

use super::connect::{self, Started};
use crate::failure::Failure;

/// How many daemons in a row may be killed, each within [`IN_A_ROW`] after the one before. What waits for a task must not
/// start daemons forever that die at once.
const KILLED: u32 = 8;

/// Daemons that are killed within this time count as killed in a row.
const IN_A_ROW: Duration = Duration::from_secs(10);

/// The daemons that were killed while this process waited.
#[derive(Debug, Default)]
pub struct Successors {
    last: Option<Instant>,
    count: u32,
}

impl Successors {
    /// Connects to the daemon that has the tasks of one that has just closed its connections; with `starts`, starts it
    /// if it does not run. `None`: the tasks are lost, the daemon was stopped, too many were killed in a row, or nobody
    /// starts the next one.
    ///
    /// # Errors
    /// The next daemon could not be started.
    pub fn next(&mut self, socket: &SocketPath, starts: bool) -> Option<Result<(Client, Started), Failure>> {
        while has_tasks_of(socket) && self.may_try() {
            let connected = if starts {
                connect::connect(socket, true)
            } else {
                // A service manager may start it again.
                Ok((connect::connect_patiently(socket).ok()?, Started::Before))
            };
            let (mut client, started) = match connected {
                Ok(connected) => connected,
                Err(failure) => return Some(Err(failure)),
            };
            match client.call::<Hello>(&HelloParams::default()) {
                // The killed daemon was not quite gone.
                Err(ClientError::Closed | ClientError::Io(_)) => {}
                Err(error) => return Some(Err(error.into())),
                Ok(_) => return Some(Ok((client, started))),
            }
        }
        None
    }

    fn may_try(&mut self) -> bool {
        let is_in_a_row = self.last.is_some_and(|last| last.elapsed() < IN_A_ROW);
        self.count = if is_in_a_row { self.count + 1 } else { 1 };
        self.last = Some(Instant::now());
        self.count <= KILLED
    }
}

/// Whether the daemon at this socket has, or the next one will have, the tasks of one that has just closed its
/// connections.
pub fn has_tasks_of(socket: &SocketPath) -> bool {
    // The killed daemon has left the note, or the next one has written its own already.
    let note = Note::read(&socket.beside("lock"));
    note.durable && note.phase != Phase::Ending
}

/// Whether the daemon has gone since we connected, with all that a call may have done. If it is shutting down, waits for
/// that.
pub fn is_gone(error: &ClientError, client: &mut Client, socket: &SocketPath) -> bool {
    match error {
        ClientError::Rpc(error) if error.kind() == ErrorKind::ShuttingDown => client.until_closed().is_ok(),
        ClientError::Closed | ClientError::Io(_) => {
            !has_tasks_of(socket) && transport::connect(socket).as_ref().is_err_and(ConnectError::is_absent)
        }
        ClientError::Rpc(_)
        | ClientError::Connect(_)
        | ClientError::NoAnswer(_)
        | ClientError::Garbled(_) => false,
    }
}
