//! A socket in front of the daemon's, whose connections a test can cut. It forwards bytes without interpreting them.

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
    /// Every connection so far.
    connections: Vec<Connection>,
    /// How many connections there were.
    count: usize,
    is_held: bool,
    /// Cut every connection right after a client has sent these bytes.
    last_words: Option<Vec<u8>>,
    /// Everything that clients have sent.
    said: Vec<u8>,
}

#[derive(Debug)]
struct Connection {
    number: usize,
    /// Both sides.
    streams: [UnixStream; 2],
    /// Everything that the client has sent over it.
    said: Vec<u8>,
}

impl Connection {
    fn cut(&self) {
        for stream in &self.streams {
            // The stream may have ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn contains(said: &[u8], words: &[u8]) -> bool {
    said.windows(words.len()).any(|part| part == words)
}

impl State {
    fn cut(&mut self) {
        self.cut_up_to(self.count);
    }

    /// Cuts the connections up to the one with this number.
    fn cut_up_to(&mut self, last: usize) {
        for connection in self.connections.extract_if(.., |connection| connection.number <= last) {
            connection.cut();
        }
    }

    /// Keeps these bytes of a connection. Reports whether they contain the last words, which are then forgotten.
    fn ends_with(&mut self, number: usize, said: &[u8]) -> bool {
        self.said.extend_from_slice(said);
        if let Some(connection) = self.connections.iter_mut().find(|one| one.number == number) {
            connection.said.extend_from_slice(said);
        }
        let is_end = self.last_words.as_deref().is_some_and(|last| contains(said, last));
        if is_end {
            self.last_words = None;
        }
        is_end
    }
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
    /// Listens in a new folder of this home and forwards to this socket.
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
                // Without a daemon the connection ends at once.
                let _ = pass(client, &target, &serving);
            }
        });
        Self { socket, shared }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns everything that clients have sent so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.shared.state().said).into_owned()
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        self.shared.state().cut();
    }

    /// Cuts the connections over which clients have sent these words, and no others.
    pub fn cut_where_said(&self, words: &str) {
        let is_meant = |connection: &&Connection| contains(&connection.said, words.as_bytes());
        self.shared.state().connections.iter().filter(is_meant).for_each(Connection::cut);
    }

    /// Cuts the connections open when a client sends these words, once; they must arrive in one read. The daemon receives
    /// them, but its answer gets lost.
    pub fn cut_behind(&self, words: &str) {
        self.shared.state().last_words = Some(words.into());
    }

    /// Cuts every connection and makes new ones wait.
    pub fn hold(&self) {
        self.shared.state().is_held = true;
        self.cut();
    }

    /// Forwards the waiting connections and all new ones.
    pub fn release(&self) {
        self.shared.state().is_held = false;
        self.shared.changed.notify_all();
    }
}

fn pass(client: UnixStream, target: &Path, shared: &Arc<Shared>) -> io::Result<()> {
    let daemon = UnixStream::connect(target)?;
    let number = {
        let mut state = shared.state();
        state.count += 1;
        let (number, streams) = (state.count, [client.try_clone()?, daemon.try_clone()?]);
        state.connections.push(Connection { number, streams, said: Vec::new() });
        number
    };
    let answers = (daemon.try_clone()?, client.try_clone()?);
    let answers = thread::spawn(move || copy(answers.0, answers.1, |_| false));
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        let mut last = 0;
        let is_over = copy(client, daemon, |said| {
            let mut state = shared.state();
            last = state.count;
            state.ends_with(number, said)
        });
        if is_over {
            // Wait for the answer, although it is discarded: the daemon does not act on a request if it notices that
            // the client is gone before it has read the request.
            let _ = answers.join();
            // The client may have connected again meanwhile.
            shared.state().cut_up_to(last);
        }
    });
    Ok(())
}

/// Copies until one side ends, and then ends the other. Also stops after the last words: the target then sees
/// EOF. Returns whether the last words ended it.
fn copy(mut from: UnixStream, mut to: UnixStream, mut is_last: impl FnMut(&[u8]) -> bool) -> bool {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let is_over = is_last(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
        if is_over {
            let _ = to.shutdown(Shutdown::Write);
            // Only now: the client's next request, over another connection, must not overtake this one.
            let _ = from.shutdown(Shutdown::Both);
            return true;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
    false
}
