//! A proxy between the daemon and opencode's server that loses data on request. It relies on each connection carrying
//! one request, and on events being the chunks of an answer that does not end.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use serde_json::Value;

use crate::wait::PATIENCE;

/// Fate of a stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The stream is forwarded.
    Pass,
    /// The stream begins, but nothing more arrives, although the connection stays open.
    Swallow,
    /// The connection ends before anything arrives.
    Refuse,
}

/// An accident that happens, once, to a request with some text in its first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accident {
    /// The server receives the request, and its answer is lost.
    NoAnswer,
    /// When the server has answered the request, all streams of events end; then the answer is forwarded.
    EventsEnd,
}

/// The proxy's actions so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The first lines of all requests.
    pub requests: Vec<String>,
    /// Number of event streams that have begun.
    pub begun: usize,
    /// Number of event streams that the proxy has ended.
    pub ended: usize,
}

/// A proxy that lives as long as this handle.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

/// Matches an event by its text.
struct Wanted(Box<dyn Fn(&str) -> bool + Send>);

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wanted")
    }
}

#[derive(Debug, Default)]
struct State {
    log: Log,
    /// The fates of the next streams. The last one applies to all that follow.
    fates: VecDeque<Fate>,
    accident: Option<(&'static str, Accident)>,
    cut_before: Option<Wanted>,
    /// The event streams that are being forwarded.
    streams: Vec<TcpStream>,
    /// Both sides of every connection, to end them.
    open: Vec<TcpStream>,
    stopping: bool,
}

impl Proxy {
    /// Starts a proxy in front of a server.
    #[track_caller]
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of loopback");
        let address = listener.local_addr().expect("the address of a listener");
        let shared = Arc::new(Shared { target, state: Mutex::default(), changed: Condvar::new() });
        let for_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("proxy".to_owned()).spawn(move || {
            for client in listener.incoming() {
                let shared = Arc::clone(&for_thread);
                if shared.lock().stopping {
                    return;
                }
                // Each thread ends with its connection, and an error ends the connection.
                thread::spawn(move || client.and_then(|client| shared.serve(&client)));
            }
        });
        Self { address, shared, thread: Some(thread.expect("a thread")) }
    }

    /// Returns the URL to be used in place of the server's.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets the fates of the next event streams; the last one applies to all that follow.
    pub fn streams(&self, fates: &[Fate]) {
        self.shared.lock().fates = fates.iter().copied().collect();
    }

    /// Makes an accident happen to the next request with this text in its first line.
    pub fn next_request(&self, text: &'static str, accident: Accident) {
        self.shared.lock().accident = Some((text, accident));
    }

    /// Ends the event streams at the next event for which `is_meant` holds; that event is lost.
    pub fn cut_before(&self, is_meant: impl Fn(&str) -> bool + Send + 'static) {
        self.shared.lock().cut_before = Some(Wanted(Box::new(is_meant)));
    }

    /// Adds an event to the streams that are being forwarded.
    #[track_caller]
    pub fn inject(&self, event: &Value) {
        let text = format!("data: {event}\n\n");
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        let state = self.shared.lock();
        assert!(!state.streams.is_empty(), "nobody listens to events");
        for mut stream in &state.streams {
            stream.write_all(chunk.as_bytes()).expect("somebody listens to events");
        }
    }

    /// Waits until `is_so` holds for the log.
    #[track_caller]
    pub fn wait_for(&self, is_so: impl Fn(&Log) -> bool) {
        let end = Instant::now() + PATIENCE;
        let mut state = self.shared.lock();
        while !is_so(&state.log) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "what was waited for does not happen; so far: {:#?}", state.log);
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub fn log(&self) -> Log {
        self.shared.lock().log.clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.stopping = true;
            for stream in state.open.drain(..) {
                // The connection may have ended by itself.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        // The listener waits for a connection, and checks only then.
        let woken = TcpStream::connect(self.address);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || (woken.is_ok() && matches!(ended, Some(Ok(())))), "the proxy broke");
    }
}

impl State {
    fn cut(&mut self) {
        for stream in self.streams.drain(..) {
            self.log.ended += 1;
            // The connection may just have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn fate(&mut self) -> Fate {
        match self.fates.len() {
            0 | 1 => self.fates.front().copied().unwrap_or(Fate::Pass),
            _ => self.fates.pop_front().unwrap_or(Fate::Pass),
        }
    }

    /// Removes and returns the accident that happens to a request.
    fn accident(&mut self, request: &str) -> Option<Accident> {
        let happens = self.accident.is_some_and(|(text, _)| request.contains(text));
        if happens { self.accident.take().map(|(_, accident)| accident) } else { None }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A check of a test may panic while holding the lock; the proxy must survive that.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one connection to its end.
    fn serve(&self, client: &TcpStream) -> io::Result<()> {
        let mut from_client = BufReader::new(client.try_clone()?);
        let head = head(&mut from_client)?;
        let request = head.lines().next().unwrap_or_default().to_owned();
        let is_stream = request.starts_with("GET") && request.contains("/event");
        let (fate, accident) = {
            let mut state = self.lock();
            state.log.requests.push(request.clone());
            (is_stream.then(|| state.fate()), state.accident(&request))
        };
        self.changed.notify_all();
        if fate == Some(Fate::Refuse) {
            return Ok(());
        }
        // To the client, an absent server looks like one that ends the connection.
        let server = TcpStream::connect(self.target)?;
        self.lock().open.extend([client.try_clone()?, server.try_clone()?]);
        (&server).write_all(head.as_bytes())?;
        let mut to_server = server.try_clone()?;
        thread::spawn(move || {
            // The end of either side ends both.
            let _ = io::copy(&mut from_client, &mut to_server);
            let _ = to_server.shutdown(Shutdown::Write);
        });
        let mut from_server = BufReader::new(server.try_clone()?);
        let passed = match fate {
            Some(fate) => self.pass_events(&mut from_server, client, fate),
            None => self.pass_answer(&mut from_server, client, accident),
        };
        // An error on either side ends both.
        let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
        passed
    }

    fn pass_answer(
        &self,
        from: &mut BufReader<TcpStream>,
        mut to: &TcpStream,
        accident: Option<Accident>,
    ) -> io::Result<()> {
        let head = head(from)?;
        match accident {
            Some(Accident::NoAnswer) => return Ok(()),
            Some(Accident::EventsEnd) => {
                self.lock().cut();
                self.changed.notify_all();
            }
            None => {}
        }
        to.write_all(head.as_bytes())?;
        io::copy(from, &mut to).map(drop)
    }

    fn pass_events(&self, from: &mut BufReader<TcpStream>, mut to: &TcpStream, fate: Fate) -> io::Result<()> {
        to.write_all(head(from)?.as_bytes())?;
        let mut is_first = true;
        while let Some(chunk) = chunk(from)? {
            let text = String::from_utf8_lossy(&chunk).into_owned();
            let mut state = self.lock();
            if state.cut_before.as_ref().is_some_and(|Wanted(is_meant)| is_meant(&text)) {
                state.cut_before = None;
                state.cut();
                self.changed.notify_all();
                return Ok(());
            }
            if fate != Fate::Swallow || is_first {
                to.write_all(&chunk)?;
            }
            if std::mem::take(&mut is_first) {
                // The greeting marks the beginning of the stream.
                state.log.begun += 1;
                state.streams.push(to.try_clone()?);
                self.changed.notify_all();
            }
        }
        Ok(())
    }
}

/// Reads the head of a message, including the empty line at its end.
fn head(from: &mut impl BufRead) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if from.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

/// Reads the next chunk verbatim, with its size and its end; `None` if the connection has ended.
fn chunk(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut chunk = Vec::new();
    if from.read_until(b'\n', &mut chunk)? == 0 {
        return Ok(None);
    }
    let size = usize::from_str_radix(String::from_utf8_lossy(&chunk).trim(), 16);
    from.take(size.map_err(io::Error::other)? as u64 + 2).read_to_end(&mut chunk)?;
    Ok(Some(chunk))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Http;
    use serde_json::json;

    /// Returns a server that answers everything with two events, and counts the requests.
    fn server() -> (SocketAddr, JoinHandle<usize>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let thread = thread::spawn(move || {
            let mut count = 0;
            for client in listener.incoming() {
                let mut client = BufReader::new(client.unwrap());
                if head(&mut client).unwrap().contains("/end") {
                    break;
                }
                count += 1;
                // The proxy may have ended the connection before everything is written: that is its purpose.
                let _ = answer(client.get_mut());
            }
            count
        });
        (address, thread)
    }

    fn answer(client: &mut TcpStream) -> io::Result<()> {
        client.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
        for text in ["data: {\"n\":1}\n\n", "data: {\"n\":2}\n\n"] {
            write!(client, "{:x}\r\n{text}\r\n", text.len())?;
        }
        client.write_all(b"0\r\n\r\n")
    }

    #[test]
    fn proxy_passes_on_what_it_does_not_drop() {
        let (address, thread) = server();
        let proxy = Proxy::start(address);
        let http = Http::new(&proxy.url());
        let all = |path: &str| {
            let mut events = http.events(path, None);
            std::iter::from_fn(|| events.next_event()).collect::<Vec<_>>()
        };
        assert_eq!(all("/other"), [json!({"n": 1}), json!({"n": 2})]);
        assert_eq!(all("/event"), [json!({"n": 1}), json!({"n": 2})]);
        proxy.streams(&[Fate::Swallow, Fate::Refuse]);
        let mut events = http.events("/event", None);
        assert_eq!(events.next_event(), Some(json!({"n": 1})));
        assert!(http.open("GET", "/event", None).is_err());
        assert!(http.open("GET", "/event", None).is_err());
        proxy.next_request("/other", Accident::NoAnswer);
        assert!(http.open("GET", "/other", None).is_err());
        assert_eq!(all("/other").len(), 2);
        assert_eq!((proxy.log().begun, proxy.log().requests.len()), (2, 7));
        drop(http.start("GET", "/end", None).unwrap());
        assert_eq!(thread.join().unwrap(), 5, "a request without an answer has arrived all the same");
    }
}
