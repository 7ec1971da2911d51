//! The queue of messages for an agent's standard input, with the write position. Independent of the protocol's methods.

use std::collections::VecDeque;
use std::io;

use agent_client_protocol::RawJsonRpcMessage;
use bgd_shared::mutex::Mutex;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, Semaphore};

/// How many requests of an agent may be unanswered at a time, questions included. At the limit, the agent's output is
/// not read any further, so that the queue is bounded.
const REQUESTS: usize = 256;

/// Messages for an agent.
#[derive(Debug)]
pub struct Outbox {
    queue: Mutex<Queue>,
    more: Notify,
    /// One permit for each further request of the agent that may be unanswered.
    permits: Semaphore,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Message>,
    /// How many bytes of the first message are written.
    written: usize,
    /// Whether nothing can be written any more.
    is_closed: bool,
}

#[derive(Debug)]
struct Message {
    line: Vec<u8>,
    is_answer: bool,
}

impl Outbox {
    /// Creates an outbox with the unwritten bytes from before an upgrade, which may begin with the end of a line.
    pub fn new(rest: Vec<u8>) -> Self {
        let rest = (!rest.is_empty()).then_some(Message { line: rest, is_answer: false });
        let queue = Queue { messages: rest.into_iter().collect(), ..Queue::default() };
        Self { queue: Mutex::new(queue), more: Notify::new(), permits: Semaphore::new(REQUESTS) }
    }

    /// Queues a message. Delivery is not confirmed.
    pub fn send(&self, message: &RawJsonRpcMessage) {
        let is_answer = matches!(message, RawJsonRpcMessage::Response(_));
        let mut line = match serde_json::to_vec(message) {
            Ok(line) => line,
            Err(error) => return tracing::error!(%error, "a message for an agent can't be written"),
        };
        line.push(b'\n');
        let mut queue = self.queue.lock();
        if !queue.is_closed {
            queue.messages.push_back(Message { line, is_answer });
            self.more.notify_one();
        }
    }

    /// Waits until another request of the agent may be accepted. The answer, passed to [`Self::send`], makes room for
    /// the next request once it is written.
    pub async fn admit(&self) {
        // If the semaphore is closed, nothing is written any more.
        if let Ok(permit) = self.permits.acquire().await {
            permit.forget();
        }
    }

    /// Writes messages as they come, until writing fails. Then drops the pipe and all further messages.
    pub async fn write_to(&self, pipe: pipe::Sender) -> io::Error {
        let error = loop {
            if self.queue.lock().messages.is_empty() {
                self.more.notified().await;
                continue;
            }
            if let Err(error) = pipe.writable().await {
                break error;
            }
            match self.write_some(&pipe) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => break error,
                Ok(()) => {}
            }
        };
        let mut queue = self.queue.lock();
        (queue.is_closed, queue.messages, queue.written) = (true, VecDeque::new(), 0);
        self.permits.close();
        error
    }

    fn write_some(&self, pipe: &pipe::Sender) -> io::Result<()> {
        let mut queue = self.queue.lock();
        let from = queue.written;
        let Some(message) = queue.messages.front() else { return Ok(()) };
        let count = pipe.try_write(&message.line[from..])?;
        if from + count < message.line.len() {
            queue.written += count;
            return Ok(());
        }
        let is_answer = message.is_answer;
        queue.messages.pop_front();
        queue.written = 0;
        self.permits.add_permits(usize::from(is_answer));
        Ok(())
    }

    /// Returns the unwritten bytes; `None` if nothing can be written any more.
    pub fn rest(&self) -> Option<Vec<u8>> {
        let queue = self.queue.lock();
        let all = queue.messages.iter().flat_map(|message| &message.line).skip(queue.written);
        (!queue.is_closed).then(|| all.copied().collect())
    }
}
