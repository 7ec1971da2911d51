//! A TCP connection to a program, such as an sshd, that can be slow, silent or cut. It forwards bytes without
//! interpreting them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A wire that lives as long as this handle.
#[derive(Debug)]
pub struct Wire {
    port: u16,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Delay of the bytes, each way.
    delay: Duration,
    is_frozen: bool,
    is_over: bool,
    /// Bytes forwarded so far, both ways.
    carried: usize,
    /// Cut every connection, once, when this many bytes have been forwarded.
    cut_at: Option<usize>,
    /// Bytes forwarded so far from the clients.
    asked_bytes: usize,
    /// Cut every connection, once, when this many bytes have been forwarded from the clients.
    cut_asking_at: Option<usize>,
    /// Both ends of every connection so far.
    streams: Vec<UnixStream>,
    /// How often the client of each connection has sent something since the wire was frozen, by the connection's
    /// number. Without connections that began later or are closed.
    asked: BTreeMap<usize, usize>,
    /// Number of connections so far.
    connections: usize,
    /// Connections whose client has not closed them.
    open: BTreeSet<usize>,
}

impl Wire {
    /// Runs the program for each connection, which becomes its standard input and output.
    #[track_caller]
    pub fn to(program: &Path) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let shared = Arc::new(Shared::default());
        let (serving, program) = (Arc::clone(&shared), program.to_owned());
        let listener = thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if serving.state().is_over {
                    return;
                }
                let (serving, program) = (Arc::clone(&serving), program.clone());
                thread::spawn(move || {
                    serve(stream, &program, &serving).expect("a program for the connection");
                });
            }
        });
        Self { port, shared, listener: Some(listener) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Delays every byte from now on, each way.
    pub fn delay(&self, delay: Duration) {
        self.shared.state().delay = delay;
    }

    /// Returns the number of bytes forwarded so far, both ways.
    pub fn carried(&self) -> usize {
        self.shared.state().carried
    }

    /// Cuts every connection, once, after this many more bytes. Earlier bytes still arrive.
    pub fn cut_after(&self, bytes: usize) {
        let mut state = self.shared.state();
        state.cut_at = Some(state.carried + bytes);
    }

    /// Returns the number of bytes forwarded so far from the clients.
    pub fn carried_there(&self) -> usize {
        self.shared.state().asked_bytes
    }

    /// Like [`Self::cut_after`], counting only bytes of the clients, so that a request is cut.
    pub fn cut_asking_after(&self, bytes: usize) {
        let mut state = self.shared.state();
        state.cut_asking_at = Some(state.asked_bytes + bytes);
    }

    /// Reports whether an ordered cut is still to come.
    pub fn is_to_be_cut(&self) -> bool {
        let state = self.shared.state();
        state.cut_at.is_some() || state.cut_asking_at.is_some()
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        self.shared.state().cut();
    }

    /// Holds all bytes back, while all connections stay open.
    pub fn freeze(&self) {
        let mut state = self.shared.state();
        state.is_frozen = true;
        state.asked = state.open.iter().map(|number| (*number, 0)).collect();
    }

    /// Returns how often the quietest client that was connected when the wire was frozen, and still is, has sent
    /// something since; none of it arrived. An ssh does so as often as its keep-alives require. A client that waits for
    /// an answer may give up its connection, and make another one. `None` if none of those clients is left.
    pub fn asked_in_vain(&self) -> Option<usize> {
        self.shared.state().asked.values().copied().min()
    }

    /// Lets all bytes through again.
    pub fn thaw(&self) {
        self.shared.state().is_frozen = false;
        self.shared.changed.notify_all();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.is_over = true;
            state.cut();
        }
        self.shared.changed.notify_all();
        // The listener waits for a connection, and only then checks whether to stop. The connection of another client
        // may have stopped it already.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let ended = self.listener.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(ended, Some(Ok(()))), "the wire broke");
    }
}

impl State {
    fn cut(&mut self) {
        (self.cut_at, self.cut_asking_at) = (None, None);
        for stream in self.streams.drain(..) {
            // The stream may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until bytes that were sent at this time arrive.
    fn arrive(&self, sent: Instant) -> MutexGuard<'_, State> {
        let mut state = self.state();
        loop {
            let left = (sent + state.delay).saturating_duration_since(Instant::now());
            if state.is_over || (!state.is_frozen && left.is_zero()) {
                return state;
            }
            state = if state.is_frozen {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }
}

/// Serves one connection to its end.
fn serve(client: TcpStream, program: &PathBuf, shared: &Arc<Shared>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let client = UnixStream::from(OwnedFd::from(client));
    let (server, theirs) = UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs);
    let mut command = Command::new(program);
    let mut child = command.stdin(theirs.try_clone()?).stdout(theirs).spawn()?;
    // The command's copies of the socket would keep it open.
    drop(command);
    let number = {
        let mut state = shared.state();
        state.streams.extend([client.try_clone()?, server.try_clone()?]);
        state.connections += 1;
        let number = state.connections;
        state.open.insert(number);
        number
    };
    let there = pump(client.try_clone()?, server.try_clone()?, shared, Some(number));
    let back = pump(server, client, shared, None);
    for thread in [there, back].into_iter().flatten() {
        let _ = thread.join();
    }
    child.wait().map(drop)
}

/// Forwards bytes one way until either end closes, and then closes both. `client` is the number of the connection if
/// they come from its client.
fn pump(
    mut from: UnixStream,
    mut to: UnixStream,
    shared: &Arc<Shared>,
    client: Option<usize>,
) -> [JoinHandle<()>; 2] {
    let (sender, sent) = mpsc::channel();
    let counting = Arc::clone(shared);
    let reads = thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if let Some(number) = client {
                counting.state().asked.entry(number).and_modify(|count| *count += 1);
            }
            if sender.send((Instant::now(), buffer[..count].to_vec())).is_err() {
                break;
            }
        }
        if let Some(number) = client {
            let mut state = counting.state();
            state.asked.remove(&number);
            state.open.remove(&number);
        }
    });
    let shared = Arc::clone(shared);
    let writes = thread::spawn(move || {
        while let Ok((when, bytes)) = sent.recv() {
            let mut state = shared.arrive(when);
            let all = state.cut_at.map(|at| at - state.carried);
            let asked = state.cut_asking_at.map(|at| at - state.asked_bytes).filter(|_| client.is_some());
            let last = all.into_iter().chain(asked).min().filter(|left| bytes.len() >= *left);
            let count = last.unwrap_or(bytes.len());
            state.carried += count;
            if client.is_some() {
                state.asked_bytes += count;
            }
            // Do not wait under the lock for a slow reader.
            if last.is_none() {
                drop(state);
                if to.write_all(&bytes).is_err() {
                    break;
                }
            } else {
                let _ = to.write_all(&bytes[..count]);
                state.cut();
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    [reads, writes]
}
