//! A socket in front of the daemon's, whose connections a test can cut. It passes on bytes and understands
//! none of them.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A relay that lives as long as the process.
#[derive(Debug)]
pub struct Relay {
    socket: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Both sides of every connection so far.
    streams: Vec<UnixStream>,
    is_held: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, mut is_over: impl FnMut(&State) -> bool) -> MutexGuard<'_, State> {
        let state = self.changed.wait_while(self.state(), |state| !is_over(state));
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Relay {
    /// Listens in a new folder of this home, and passes on to this socket.
    #[track_caller]
    pub fn start(home: &Path, daemon: &Path) -> Self {
        let folder = home.join("relay");
        std::fs::DirBuilder::new().mode(0o700).create(&folder).expect("a folder in the home");
        let socket = folder.join("bgd.sock");
        let listener = UnixListener::bind(&socket).expect("a socket in the home");
        let shared = Arc::new(Shared::default());
        let (serving, target) = (Arc::clone(&shared), daemon.to_owned());
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                drop(serving.wait(|state| !state.is_held));
                // Where there is no daemon the connection ends at once.
                let _ = pass(client, &target, &serving);
            }
        });
        Self { socket, shared }
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        for stream in self.shared.state().streams.drain(..) {
            // It may have ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Cuts every connection, and lets new ones wait.
    pub fn hold(&self) {
        self.shared.state().is_held = true;
        self.cut();
    }

    /// Passes on what waits and what comes.
    pub fn release(&self) {
        self.shared.state().is_held = false;
        self.shared.changed.notify_all();
    }
}

fn pass(client: UnixStream, target: &Path, shared: &Shared) -> io::Result<()> {
    let daemon = UnixStream::connect(target)?;
    for (from, to) in [(&client, &daemon), (&daemon, &client)] {
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        thread::spawn(move || copy(from, to));
    }
    shared.state().streams.extend([client, daemon]);
    Ok(())
}

/// Copies until one side ends, which ends the other.
fn copy(mut from: UnixStream, mut to: UnixStream) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
