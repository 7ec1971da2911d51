//! A model server on loopback, so that real agents can think without a network.
//!
//! It speaks `OpenAI`'s Chat Completions and Responses, and follows the last message of the user: each line of it that
//! begins with one of these words is an order; the answer to any other text is `answer to: ` and the text itself. So
//! one server serves any number of sessions.
//!
//! | order | effect |
//! |---|---|
//! | `SAY text` | answers with the text |
//! | `HOLD gate` | answers nothing, not even a header, before [`ModelServer::release`] of the gate; with several tools, it holds the call that follows it |
//! | `SLOW gate n` | streams `chunk 1 ` to `chunk n `; each of them waits for a release of the gate |
//! | `ERROR 400` | answers with this status and an error |
//! | `CUT text` | answers with the text and reports that the token limit has cut it off |
//! | `RECALL ` | answers `so far I said: ` and the model's previous answers in this conversation |
//! | `TOOL name {json}` | calls the tool, and answers `the tool said: ` and the result when that arrives; several are called one after the other, with `$ID` for the first task id in the results so far |
//! | `Run: line` | calls opencode's tool for a command line |
//!
//! Requests that agents make on their own account, for a title or a summary, are answered without regard to orders.
//!
//! Nothing here depends on an agent beyond the requests it sends, or waits for a fixed time.

mod chat;
mod order;
mod record;
mod request;
mod responses;
mod serve;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;

use self::record::Record;
pub use self::request::{Api, Message, Progress, Purpose, Request, Role};

/// A model server that lives as long as this handle.
pub struct ModelServer {
    address: SocketAddr,
    record: Arc<Record>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ModelServer {
    /// Starts a server on a free port of loopback.
    #[track_caller]
    pub fn start() -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of loopback");
        listener.set_nonblocking(true).expect("a listener that does not block");
        let address = listener.local_addr().expect("the address of a listener");
        let record = Arc::new(Record::default());
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::clone(&record);
        let thread = thread::Builder::new()
            .name("model".to_owned())
            .spawn(move || serve::run(listener, &shared, stopped))
            .expect("a thread");
        Self { address, record, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the base URL, such as `http://127.0.0.1:1234/v1`.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Returns all requests so far, in order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.record.requests()
    }

    /// Returns the requests so far that are steps of a turn, without titles and summaries.
    pub fn turns(&self) -> Vec<Request> {
        self.requests().into_iter().filter(|request| request.purpose == Purpose::Turn).collect()
    }

    /// Returns the steps of the turns of one session, identified by the agent's own id.
    pub fn turns_of(&self, session: &str) -> Vec<Request> {
        self.turns().into_iter().filter(|request| request.session.as_deref() == Some(session)).collect()
    }

    /// Returns the user's messages in a session, according to its latest request: the proof of its history.
    pub fn history(&self, session: &str) -> Vec<String> {
        self.turns_of(session).last().map(Request::user_texts).unwrap_or_default()
    }

    /// Calls `check` now and after every change, until it returns a value.
    #[track_caller]
    pub fn wait_for<T>(&self, check: impl FnMut(&[Request]) -> Option<T>) -> T {
        match self.record.wait_for(check) {
            Ok(found) => found,
            Err(requests) => panic!("what was waited for does not come; the requests were: {requests:#?}"),
        }
    }

    /// Waits for a step of a turn whose last user message contains these words.
    #[track_caller]
    pub fn wait_for_turn(&self, words: &str) -> Request {
        self.wait_for(|requests| {
            let mut turns = requests.iter().filter(|request| request.purpose == Purpose::Turn);
            turns.find(|request| request.last_words().contains(words)).cloned()
        })
    }

    /// Waits until the client of such a request has closed its connection before the answer was complete.
    #[track_caller]
    pub fn wait_for_leaving(&self, words: &str) -> Request {
        self.wait_for(|requests| {
            let mut left = requests.iter().filter(|request| request.progress == Progress::Left);
            left.find(|request| request.last_words().contains(words)).cloned()
        })
    }

    /// Lets one answer or one chunk through a gate: one that waits there, or else the next one.
    pub fn release(&self, gate: &str) {
        self.record.gate(gate).add_permits(1);
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        // Dropping the sender is the signal; the thread drops every connection along with its runtime.
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(ended, Some(Ok(()))), "the model server has panicked");
    }
}

impl fmt::Debug for ModelServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelServer").field("address", &self.address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
