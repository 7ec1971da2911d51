//! The connection over two pipes: requests and their answers. This module is independent of the process behind the
//! pipes.
//!
//! The protocol's crate only provides the types. Its own connection assigns random ids to requests without exposing
//! them, so requests could not be carried over an upgrade in place.

use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::sync::Arc;

use agent_client_protocol::{Error, RawJsonRpcId, RawJsonRpcMessage};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::unix::pipe;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::asks::Question;
use super::calls::{Calls, CallsState, Outcome};
use super::error::RequestError;
use super::lines::{Lines, Noise};
use super::outbox::Outbox;
use super::questions::Questions;
use super::reader::{Parked, Reader};
use super::routes::Routes;
use crate::carry::bytes;

/// An established connection. Dropping it closes the connection.
#[derive(Debug)]
pub struct Wire {
    calls: Arc<Calls>,
    outbox: Arc<Outbox>,
    pub questions: Arc<Questions>,
    /// Why the connection has ended; `None` while it is open.
    ended: watch::Receiver<Option<Box<str>>>,
    /// The agent's output that does not belong to the protocol.
    pub noise: Arc<Noise>,
    hold: watch::Sender<bool>,
    parked: Parked,
    /// The numbers of the pipes.
    pub pipes: [RawFd; 2],
    /// Aborted on drop.
    _tasks: JoinSet<()>,
}

/// A connection, as carried over an upgrade.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct WireState {
    pub calls: CallsState,
    /// The agent's unanswered questions.
    questions: Vec<(RawJsonRpcId, Question)>,
    #[serde(with = "bytes")]
    read: Vec<u8>,
    #[serde(with = "bytes")]
    to_write: Vec<u8>,
}

impl Wire {
    /// Starts reading and writing, continuing from the state `before`.
    pub fn start(
        stdin: pipe::Sender,
        stdout: pipe::Receiver,
        routes: Arc<Routes>,
        before: WireState,
    ) -> Self {
        let WireState { calls, questions: asked, read, to_write } = before;
        let pipes = [stdin.as_fd().as_raw_fd(), stdout.as_fd().as_raw_fd()];
        let (calls, questions) = (Arc::new(Calls::after(&calls)), Arc::new(Questions::default()));
        let (outbox, noise, parked) =
            (Arc::new(Outbox::new(to_write)), Arc::new(Noise::default()), Parked::default());
        let (deafness, input_closed) = watch::channel(None);
        let mut tasks = JoinSet::new();
        let writer = Arc::clone(&outbox);
        tasks.spawn(async move {
            let error = writer.write_to(stdin).await;
            deafness.send_replace(Some(format!("the agent does not read its input: {error}").into()));
            // Keeps the reason readable.
            deafness.closed().await;
        });
        let (hold, hold_seen) = watch::channel(false);
        let reader = Reader {
            lines: Lines::after(read, stdout),
            input_closed,
            hold: hold_seen,
            parked: Arc::clone(&parked),
            calls: Arc::clone(&calls),
            outbox: Arc::clone(&outbox),
            questions: Arc::clone(&questions),
            deciding: JoinSet::new(),
            routes,
            noise: Arc::clone(&noise),
        };
        let (end, ended) = watch::channel(None);
        let all = Arc::clone(&calls);
        tasks.spawn(async move {
            let why = reader.run(asked).await;
            end.send_replace(Some(why));
            // Fails the unanswered requests. Only now, so that they can report the reason.
            all.end();
        });
        Self { calls, outbox, questions, ended, noise, hold, parked, pipes, _tasks: tasks }
    }

    /// Sends a request and waits for its answer.
    pub async fn call(&self, method: &str, params: impl Serialize) -> Result<Value, RequestError> {
        let (id, answered) = self.calls.begin(None, ());
        self.request(id, method, params)?;
        self.outcome(answered).await
    }

    /// Sends a session a prompt and waits for the answer. `held` is dropped when the answer arrives, even if the caller
    /// has stopped waiting; the agent is not notified of that.
    pub async fn prompt(
        &self,
        session: &Arc<str>,
        method: &str,
        params: impl Serialize,
        held: impl Send + 'static,
    ) -> Result<Value, RequestError> {
        let (id, answered) = self.calls.begin(Some(Arc::clone(session)), held);
        self.request(id, method, params)?;
        self.outcome(answered).await
    }

    /// Prepares to wait for the answer to a prompt that was sent before. `held` as in [`Self::prompt`].
    pub fn prompted(
        &self,
        id: i64,
        session: &Arc<str>,
        held: impl Send + 'static,
    ) -> oneshot::Receiver<Outcome> {
        self.calls.wait(id, Some(Arc::clone(session)), held)
    }

    /// Waits for an answer.
    pub async fn outcome(&self, answered: oneshot::Receiver<Outcome>) -> Result<Value, RequestError> {
        match answered.await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => Err(RequestError::Refused(error)),
            Err(_) => Err(RequestError::Gone(self.ended().await)),
        }
    }

    /// Sends a request whose answer does not matter.
    pub fn send(&self, method: &str, params: impl Serialize) {
        let (id, _) = self.calls.begin(None, ());
        if let Err(trouble) = self.request(id, method, params) {
            tracing::debug!(method, why = trouble.words(), "a request could not be sent to an agent");
        }
    }

    fn request(&self, id: i64, method: &str, params: impl Serialize) -> Result<(), RequestError> {
        let message = serde_json::to_value(params)
            .map_err(|error| Error::internal_error().data(error.to_string()))
            .and_then(|params| {
                RawJsonRpcMessage::request(method.to_owned(), params, RawJsonRpcId::Number(id))
            });
        match message {
            Ok(message) => {
                self.outbox.send(&message);
                Ok(())
            }
            Err(error) => {
                self.calls.answered(&RawJsonRpcId::Number(id), Err(error.clone()));
                Err(RequestError::Refused(error))
            }
        }
    }

    /// Sends a notification, in order with the requests. Delivery is not confirmed.
    pub fn tell(&self, method: &str, params: impl Serialize) {
        let message = serde_json::to_value(params)
            .map_err(|error| Error::internal_error().data(error.to_string()))
            .and_then(|params| RawJsonRpcMessage::notification(method.to_owned(), params));
        match message {
            Ok(message) => self.outbox.send(&message),
            Err(error) => tracing::debug!(method, %error, "a notification could not be sent to an agent"),
        }
    }

    /// Waits until the connection is over, and returns the reason.
    pub async fn ended(&self) -> Box<str> {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "the connection to the agent was closed".into(),
        }
    }

    /// Holds back reading after the line that is being handled, or resumes it.
    pub fn hold(&self, holds: bool) {
        self.hold.send_if_modified(|held| std::mem::replace(held, holds) != holds);
    }

    /// Returns the state, and the numbers of the pipes to and from the agent; `None` unless reading is held back, or if
    /// the connection is about to end.
    pub fn state(&self) -> Option<(WireState, [RawFd; 2])> {
        // Noise is only reported if the agent fails soon after.
        let Self { calls, outbox, questions, ended, parked, pipes, noise: _, hold: _, _tasks } = self;
        let read = parked.lock().clone()?;
        let to_write = outbox.rest()?;
        let (calls, questions) = (calls.state(), questions.all());
        ended.borrow().is_none().then_some((WireState { calls, questions, read, to_write }, *pipes))
    }
}
