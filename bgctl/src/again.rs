//! Going on after a connection has broken. It starts no daemon: whoever stopped one wants none.

use std::io;
use std::os::fd::AsFd as _;

use bgd_shared::client::{Client, ClientError};
use bgd_shared::socket::SocketPath;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::connect;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;

/// How often a connection may break before it is good for anything, one after the other.
const RECONNECTS: u32 = 8;

/// Connects again and says something; `None` if no daemon runs, or its connections break at once.
///
/// # Errors
/// The daemon's refusal, or what is at the socket must not be trusted.
pub fn connect<T>(
    context: &mut Context,
    say: impl Fn(&mut Client) -> Result<T, ClientError>,
) -> Result<Option<T>, Failure> {
    for _ in 0..RECONNECTS {
        let outcome = match context.reconnect() {
            Ok(client) => say(client).map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        match outcome {
            Ok(said) => return Ok(Some(said)),
            Err(failure) if failure.kind == "connection_lost" => {}
            Err(failure) if failure.code == Code::NO_DAEMON && failure.kind != "no_answer" => break,
            Err(failure) => return Err(failure),
        }
    }
    Ok(None)
}

/// Tells when a daemon comes to where none is. One that is there already when this is made it may not see.
pub struct Coming {
    socket: SocketPath,
    changes: Inotify,
}

impl Coming {
    /// Watches the folder of the daemon's socket.
    ///
    /// # Errors
    /// There is no such folder, or the system has no more watches.
    pub fn new(context: &Context) -> Result<Self, Failure> {
        let socket = context.socket()?;
        let folder = socket.as_path().parent().unwrap_or(socket.as_path());
        let watched = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).and_then(|changes| {
            changes.add_watch(folder, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO)?;
            Ok(changes)
        });
        let changes = watched.map_err(|error| {
            Failure::io(format!("can't wait for a daemon in {}", folder.display()), &error.into())
        })?;
        Ok(Self { socket, changes })
    }

    /// Sleeps until a daemon has made its socket and listens, or failed to.
    ///
    /// # Errors
    /// Nobody reads standard output any more, or the folder is gone.
    pub fn wait(&self) -> Result<(), Failure> {
        loop {
            Context::wait_for(self.changes.as_fd())?;
            let events = match self.changes.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN | Errno::EINTR) => continue,
                Err(error) => return Err(Failure::io("can't wait for a daemon", &io::Error::from(error))),
            };
            if events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_IGNORED)) {
                let message = "the daemon has ended, and the folder of its socket is gone";
                return Err(Failure::new(Code::NO_DAEMON, "no_daemon", message));
            }
            let is_socket = |name: &_| self.socket.as_path().file_name() == Some(name);
            if events.iter().any(|event| event.name.as_deref().is_some_and(is_socket)) {
                // It is made a moment before it can be connected to.
                let _ = connect::connect_patiently(&self.socket);
                return Ok(());
            }
        }
    }
}
