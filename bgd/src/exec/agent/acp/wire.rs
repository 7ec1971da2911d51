//! The crate's connection over two pipes: requests and their answers. The process behind the pipes is not known here.
//!
//! The crate does ids, the matching of answers, cancellation and the types. Two parts of it are not used: its
//! framing (see [`super::lines`]), and its check of the protocol version. That check belongs to a mode that
//! answers an agent's early requests by itself, so that [`Reader`] would wait for them for ever;
//! [`super::hello`] does the check instead.

use std::io;
use std::sync::Arc;

use agent_client_protocol::{
    Agent, Builder, Channel, Client, ConnectionTo, Error, RawJsonRpcMessage, Responder, TransportFrame,
    UntypedMessage, on_receive_request,
};
use serde::Serialize;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::lines::{Lines, Noise};
use super::reader::{Reader, Request};
use super::routes::Routes;
use super::trouble::{self, Trouble};

/// How many requests of an agent may be unanswered at a time, questions included. At the limit, the agent's
/// output is not read any further, so that what waits to be written to the agent is bounded.
const REQUESTS: usize = 256;

/// An established connection. Dropping it ends it.
#[derive(Debug)]
pub struct Wire {
    connection: ConnectionTo<Agent>,
    /// Why the connection is over; `None` while it is open.
    ended: watch::Receiver<Option<Box<str>>>,
    /// What the agent wrote besides the protocol.
    pub noise: Arc<Noise>,
    /// Aborted on drop.
    _tasks: JoinSet<()>,
}

impl Wire {
    /// Starts reading and writing.
    pub async fn start(
        stdin: pipe::Sender,
        stdout: pipe::Receiver,
        routes: Arc<Routes>,
    ) -> Result<Self, Trouble> {
        let mut tasks = JoinSet::new();
        let (end, ended) = watch::channel(None);
        let (channel, theirs) = Channel::duplex();
        let (connection, requests) = drive(&mut tasks, theirs, end.clone());
        let connection =
            connection.await.map_err(|_| Trouble::Gone("the connection has not begun".into()))?;

        let permits = Arc::new(Semaphore::new(REQUESTS));
        let (deafness, input_closed) = watch::channel(None);
        let (mut frames, sink) = channel.into_parts();
        let answered = Arc::clone(&permits);
        tasks.spawn(async move {
            let mut stdin = stdin;
            // After an error, keep taking the crate's messages: the agent's output may still contain answers.
            while let Ok(frame) = frames.recv().await {
                if answered.is_closed() {
                    continue;
                }
                match write(&mut stdin, &frame).await {
                    Ok(true) => answered.add_permits(1),
                    Ok(false) => {}
                    Err(error) => {
                        answered.close();
                        let why = format!("the agent does not read its input: {error}");
                        deafness.send_replace(Some(why.into()));
                    }
                }
            }
        });

        let noise = Arc::new(Noise::default());
        let reader = Reader {
            lines: Lines::new(stdout),
            input_closed,
            requests,
            permits,
            connection: connection.clone(),
            routes,
            noise: Arc::clone(&noise),
        };
        tasks.spawn(async move {
            let why = reader.run(|message| {
                // Fails if the crate's side has ended; then nobody waits for the message.
                let _ = sink.unbounded_send(TransportFrame::Single(message));
            });
            set(&end, why.await);
            // Makes the crate fail the requests without an answer. Only now, so that they can report the reason.
            drop(sink);
        });
        Ok(Self { connection, ended, noise, _tasks: tasks })
    }

    /// Sends a request and waits for its answer. `held` is dropped when the answer comes, even if nobody
    /// waits for the answer any more; the agent does not learn that.
    pub async fn call(
        &self,
        method: &str,
        params: impl Serialize,
        held: impl Send + 'static,
    ) -> Result<Value, Trouble> {
        let request = UntypedMessage::new(method, params).map_err(Trouble::Refused)?;
        let (answer, answered) = oneshot::channel();
        // Fails if the connection is over; that drops the answer's channel.
        let _ = self.connection.send_request(request).on_receiving_result(async move |result| {
            drop(held);
            // Fails if nobody waits any more. Returning an error would end the connection.
            let _ = answer.send(result);
            Ok(())
        });
        match answered.await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) if trouble::is_gone(&error) => Err(Trouble::Gone(self.ended().await)),
            Ok(Err(error)) => Err(Trouble::Refused(error)),
            Err(_) => Err(Trouble::Gone(self.ended().await)),
        }
    }

    /// Sends a request whose answer does not matter.
    pub fn send(&self, method: &str, params: impl Serialize) {
        match UntypedMessage::new(method, params) {
            Ok(request) => self.connection.send_request(request).detach(),
            Err(error) => tracing::debug!(method, %error, "a request could not be sent to an agent"),
        }
    }

    /// Sends a notification, in order with the requests. Nobody learns whether it arrived.
    pub fn tell(&self, method: &str, params: impl Serialize) {
        let sent = UntypedMessage::new(method, params)
            .and_then(|notification| self.connection.send_notification(notification));
        if let Err(error) = sent {
            tracing::debug!(method, %error, "a notification could not be sent to an agent");
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
}

/// Lets the crate run its end of a channel. Returns receivers for the connection, which comes as soon as it
/// is up, and for the agent's requests as they are passed to the crate.
fn drive(
    tasks: &mut JoinSet<()>,
    channel: Channel,
    end: watch::Sender<Option<Box<str>>>,
) -> (oneshot::Receiver<ConnectionTo<Agent>>, mpsc::UnboundedReceiver<Request>) {
    let (begun, connection) = oneshot::channel();
    // Holds one request at most: the reader waits for each before it reads on.
    let (request, requests) = mpsc::unbounded_channel::<Request>();
    let driver = Builder::new(Client)
        .on_receive_request(
            async move |message: UntypedMessage, responder: Responder, _| {
                // Fails if the reader is gone; then the responder answers by being dropped.
                let _ = request.send((message, responder));
                Ok(())
            },
            on_receive_request!(),
        )
        .connect_with(channel, async move |connection: ConnectionTo<Agent>| {
            let _ = begun.send(connection);
            std::future::pending::<Result<(), Error>>().await
        });
    tasks.spawn(async move {
        // Returns only because of an internal fault.
        let fault = driver.await.err().map(|error| error.to_string()).unwrap_or_default();
        set(&end, format!("the connection to the agent broke: {fault}").into());
    });
    (connection, requests)
}

/// Sets the reason, unless there is one already.
fn set(end: &watch::Sender<Option<Box<str>>>, why: Box<str>) {
    end.send_if_modified(|end| {
        let is_first = end.is_none();
        end.get_or_insert(why);
        is_first
    });
}

/// Writes a message. Returns whether it was an answer.
async fn write(stdin: &mut pipe::Sender, frame: &TransportFrame) -> io::Result<bool> {
    let mut line = frame.to_json().map_err(io::Error::other)?;
    line.push('\n');
    stdin.write_all(line.as_bytes()).await?;
    Ok(matches!(frame, TransportFrame::Single(RawJsonRpcMessage::Response(_))))
}
