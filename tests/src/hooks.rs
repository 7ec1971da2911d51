//! A server on loopback that receives notices. It records every request, answers as requested, and can misbehave in all
//! the ways a bad server does. Nothing in it waits for a time.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with};
use serde_json::{Value, json};

use crate::wait::PATIENCE;

/// A loopback port that is reserved for the test and refuses every connection.
#[derive(Debug)]
pub struct ClosedPort(OwnedFd);

impl ClosedPort {
    /// Reserves a port that no other program can get while this lives.
    #[track_caller]
    pub fn new() -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).expect("a socket");
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port of loopback");
        Self(socket)
    }

    #[track_caller]
    pub fn address(&self) -> SocketAddr {
        let address = getsockname(&self.0).expect("the address of a socket");
        SocketAddr::try_from(address).expect("an address of IP")
    }

    #[track_caller]
    pub fn listen(self) -> TcpListener {
        listen(&self.0, 16).expect("a port to listen at");
        self.0.into()
    }
}

impl Default for ClosedPort {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// Path with the query.
    pub path: String,
    /// Headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    /// Returns the value of a header that occurs at most once.
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(other, _)| other == name);
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} is there twice: {:?}", self.headers);
        value
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Reaction of the server to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Answer {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: String,
    },
    /// Sends this reply once [`HookServer::release`] releases it.
    Held(Box<Reply>),
    /// Never answers.
    Silence,
    /// Closes the connection without an answer.
    Close,
    /// Sends a head with this status and an endless body.
    Endless(u16),
    /// Sends a head with this status, and then no body.
    Stuck(u16),
}

impl Reply {
    /// Creates an answer with a status and JSON.
    pub fn json(status: u16, body: &Value) -> Self {
        let headers = vec![("content-type", "application/json".to_owned())];
        Self::Answer { status, headers, body: body.to_string() }
    }

    /// Creates an answer with a status and an empty object.
    pub fn status(status: u16) -> Self {
        Self::json(status, &json!({}))
    }

    /// Creates an answer with a status and a `Retry-After`.
    pub fn later(status: u16, retry_after: &str) -> Self {
        Self::Answer { status, headers: vec![("retry-after", retry_after.to_owned())], body: String::new() }
    }

    /// Creates a redirect.
    pub fn redirect(status: u16, location: &str) -> Self {
        Self::Answer { status, headers: vec![("location", location.to_owned())], body: String::new() }
    }

    /// Returns the same reply, to be sent once it is released.
    #[must_use]
    pub fn held(self) -> Self {
        Self::Held(Box::new(self))
    }
}

/// The reply to a request without an order.
type Usual = dyn Fn(&Request) -> Reply + Send + Sync;

/// Decides whether orders apply to a request.
type IsOrdered = dyn Fn(&Request) -> bool + Send + Sync;

/// State shared by the server's threads and the test.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    usual: Box<Usual>,
    is_ordered: Box<IsOrdered>,
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    ordered: VecDeque<Reply>,
    released: usize,
    streams: Vec<TcpStream>,
    is_over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A check of a test may panic while holding the lock; the server must survive that.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `is_there` holds; `false` if the server ends first.
    fn wait_until(&self, mut is_there: impl FnMut(&mut State) -> bool) -> bool {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return false;
            }
            if is_there(&mut state) {
                return true;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A server that lives as long as this handle.
pub struct HookServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl HookServer {
    /// Starts a server that answers 200 unless ordered otherwise.
    #[track_caller]
    pub fn start() -> Self {
        Self::with(|_| true, |_| Reply::status(200))
    }

    /// Starts a server with this default reply. Orders apply only to requests for which `is_ordered` holds.
    #[track_caller]
    pub fn with(
        is_ordered: impl Fn(&Request) -> bool + Send + Sync + 'static,
        usual: impl Fn(&Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of loopback");
        let address = listener.local_addr().expect("the address of a listener");
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            usual: Box::new(usual),
            is_ordered: Box::new(is_ordered),
        });
        let serving = Arc::clone(&shared);
        let thread = thread::spawn(move || accept(&listener, &serving));
        Self { address, shared, thread: Some(thread) }
    }

    /// Returns a URL of the server; `path` begins with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Queues a reply for the next request that has no order yet.
    pub fn order(&self, reply: Reply) {
        self.shared.lock().ordered.push_back(reply);
    }

    /// Releases `count` held replies, now or when they come.
    pub fn release(&self, count: usize) {
        self.shared.lock().released += count;
        self.shared.changed.notify_all();
    }

    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    /// Calls `check` now and after every request, until it returns a value.
    #[track_caller]
    pub fn wait_for<T>(&self, mut check: impl FnMut(&[Request]) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        let mut state = self.shared.lock();
        loop {
            if let Some(found) = check(&state.requests) {
                return found;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "what was waited for does not come: {:#?}", state.requests);
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until there are at least `count` requests.
    #[track_caller]
    pub fn wait_count(&self, count: usize) -> Vec<Request> {
        self.wait_for(|requests| (requests.len() >= count).then(|| requests.to_vec()))
    }
}

impl Drop for HookServer {
    fn drop(&mut self) {
        let streams = {
            let mut state = self.shared.lock();
            state.is_over = true;
            std::mem::take(&mut state.streams)
        };
        self.shared.changed.notify_all();
        for stream in streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // The thread waits for a connection, and then sees that it has to end.
        drop(TcpStream::connect(self.address));
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(ended, Some(Ok(()))), "the server has panicked");
    }
}

impl fmt::Debug for HookServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookServer").field("address", &self.address).finish_non_exhaustive()
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    thread::scope(|scope| {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            let mut state = shared.lock();
            if state.is_over {
                return;
            }
            state.streams.extend(stream.try_clone());
            drop(state);
            // An error ends this connection; the client notices.
            scope.spawn(|| serve(stream, shared).unwrap_or_default());
        }
    });
}

/// Serves a connection until it is closed.
fn serve(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader)? {
        let mut reply = {
            let mut state = shared.lock();
            state.requests.push(request.clone());
            let is_ordered = (shared.is_ordered)(&request);
            state.ordered.pop_front_if(|_| is_ordered)
        }
        .unwrap_or_else(|| (shared.usual)(&request));
        shared.changed.notify_all();
        while let Reply::Held(then) = reply {
            let is_released = shared.wait_until(|state| {
                let is_released = state.released > 0;
                state.released -= usize::from(is_released);
                is_released
            });
            if !is_released {
                return Ok(());
            }
            reply = *then;
        }
        if !act(&reply, reader.get_mut(), shared)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Carries out a reply. Reports whether to keep the connection.
fn act(reply: &Reply, stream: &mut TcpStream, shared: &Shared) -> io::Result<bool> {
    match reply {
        Reply::Answer { status, headers, body } => {
            let headers: String =
                headers.iter().flat_map(|(name, value)| [name, ": ", value, "\r\n"]).collect();
            let head = format!("HTTP/1.1 {status} Said\r\n{headers}content-length: {}\r\n\r\n", body.len());
            stream.write_all((head + body).as_bytes())?;
            Ok(true)
        }
        Reply::Endless(status) => {
            stream.write_all(format!("HTTP/1.1 {status} Said\r\n\r\n").as_bytes())?;
            loop {
                stream.write_all(&[b'x'; 16 * 1024])?;
            }
        }
        Reply::Stuck(status) => {
            stream.write_all(format!("HTTP/1.1 {status} Said\r\ncontent-length: 9\r\n\r\n").as_bytes())?;
            shared.wait_until(|_| false);
            Ok(false)
        }
        Reply::Silence => {
            shared.wait_until(|_| false);
            Ok(false)
        }
        Reply::Close | Reply::Held(_) => {
            stream.shutdown(Shutdown::Both)?;
            Ok(false)
        }
    }
}

/// Reads the next request; `None` if the client has closed the connection.
fn read_request(reader: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let Some(first) = line(reader)? else { return Ok(None) };
    let mut words = first.split(' ').map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else {
        return Err(io::Error::other("no request"));
    };
    let mut headers = Vec::new();
    while let Some(line) = line(reader)?.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or_else(|| io::Error::other("no header"))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length").map(|(_, value)| value.parse());
    let mut body = vec![0; length.transpose().map_err(io::Error::other)?.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    Ok(Some(Request { method, path, headers, body }))
}

fn line(reader: &mut BufReader<TcpStream>) -> io::Result<Option<String>> {
    let mut line = String::new();
    let count = reader.by_ref().take(64 * 1024).read_line(&mut line)?;
    Ok((count > 0).then(|| line.trim_end().to_owned()))
}
