//! A pending response to a client's request: its destination, and the queue space reserved for it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::limits::ANSWER_BYTES;
use bgd_shared::message::{RequestId, error_line, result_line};
use serde::{Deserialize, Serialize};

use crate::client::Client;

#[derive(Debug)]
pub struct Answer {
    client: Arc<Client>,
    /// `None` for a notification, which gets no response.
    id: Option<RequestId>,
    reserved: usize,
}

/// A pending response, for an upgrade in place.
#[derive(Debug, Serialize, Deserialize)]
pub struct AnswerState {
    client: u64,
    id: Option<RequestId>,
    reserved: usize,
}

impl AnswerState {
    /// Restores the pending response; `None` if its client is gone.
    pub fn resume(self, clients: &HashMap<u64, Arc<Client>>) -> Option<Answer> {
        let Self { client, id, reserved } = self;
        clients.get(&client).map(|client| Answer::new(Arc::clone(client), id, reserved))
    }
}

impl Answer {
    pub fn state(&self) -> AnswerState {
        let Self { client, id, reserved } = self;
        AnswerState { client: client.id, id: id.clone(), reserved: *reserved }
    }

    /// Creates the pending response; `reserved` is the number of bytes reserved for it in the client's queue.
    pub fn new(client: Arc<Client>, id: Option<RequestId>, reserved: usize) -> Self {
        Self { client, id, reserved }
    }

    /// Returns the client that waits for the response.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Releases the space reserved for the response, as the response may take long: further requests are read
    /// meanwhile.
    pub fn release_room(&mut self) {
        self.client.release(std::mem::take(&mut self.reserved));
    }

    pub fn give<R: Serialize>(&self, result: &R) {
        self.give_within(ANSWER_BYTES, result);
    }

    /// Refuses a longer answer than `most` bytes: the client would close the connection without knowing why.
    fn give_within<R: Serialize>(&self, most: usize, result: &R) {
        let line = self.id.as_ref().map(|id| result_line(id, result)).unwrap_or_default();
        if line.len() > most {
            return self.refuse(&too_large(line.len(), most));
        }
        self.client.answer(&line, self.reserved);
    }

    pub fn refuse(&self, error: &RpcError) {
        let line = self.id.as_ref().map(|id| error_line(Some(id), error)).unwrap_or_default();
        self.client.answer(&line, self.reserved);
    }

    /// Ends the request without a response. Only for connections that are about to end.
    pub fn abandon(&self) {
        self.client.answer(&[], self.reserved);
    }
}

/// Returns the error for an answer that is longer than clients accept.
fn too_large(bytes: usize, most: usize) -> RpcError {
    let message =
        format!("the call was carried out, but its answer has {bytes} bytes, and clients accept {most}");
    RpcError::new(ErrorKind::AnswerTooLarge, message)
        .hint("select fewer tasks per call, such as those of a batch or group; lists come in pages")
}

/// Returns the error for a failed write to a task's standard input.
pub fn write_error(id: TaskId, error: &io::Error) -> RpcError {
    match error.kind() {
        io::ErrorKind::WouldBlock => RpcError::new(
            ErrorKind::TooManyRequests,
            format!("too many writes are waiting for task {id} to read its standard input"),
        )
        .hint("wait for the answers of earlier writes"),
        _ => RpcError::new(ErrorKind::NotRunning, format!("the standard input of task {id} is closed"))
            .hint("it was closed by `eof`, by the task, or by its end"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::client::ClientLimits;

    #[tokio::test]
    async fn answer_that_no_client_accepts_is_an_error_that_says_what_to_do() {
        let client = Arc::new(Client::new(1, ClientLimits { requests: 2, write_queue_bytes: 10 }));
        let id = |id: u64| -> RequestId { serde_json::from_str(&id.to_string()).unwrap() };
        let answer = |number| Answer::new(Arc::clone(&client), Some(id(number)), 0);
        let most = result_line(&id(1), &"123").len();
        answer(1).give_within(most, &"123");
        answer(2).give_within(most, &"1234");
        let lines = client.next_bytes(|| false).await.unwrap();
        let lines: Vec<Value> =
            serde_json::Deserializer::from_slice(&lines).into_iter().collect::<Result<_, _>>().unwrap();
        assert_eq!((lines.len(), &lines[0]["result"], &lines[1]["id"]), (2, &"123".into(), &2.into()));
        let error = &lines[1]["error"];
        assert_eq!(error["data"]["kind"], "answer_too_large");
        assert!(error["message"].as_str().unwrap().contains("was carried out"), "{error}");
        assert!(error["data"]["hint"].as_str().unwrap().contains("fewer tasks"), "{error}");
    }
}
