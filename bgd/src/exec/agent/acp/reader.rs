//! Reads an agent's output, in order: routes session updates, asks questions, and passes on answers.
//!
//! Each update goes into its session's channel before the next line is read. So a session whose channel is full blocks
//! the agent, with all of its sessions, until the channel is read or dropped. And when the answer to a prompt is passed
//! on, all output from before the answer is in the channel.

use std::sync::Arc;

use agent_client_protocol::{
    Error, RawJsonRpcId, RawJsonRpcMessage, RawJsonRpcNotification, RawJsonRpcParams, RawJsonRpcRequest,
    RawJsonRpcResponse,
};
use bgd_shared::mutex::Mutex;
use serde_json::Value;
use tokio::net::unix::pipe;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::asks::{self, Question};
use super::calls::Calls;
use super::lines::{self, Lines, Noise};
use super::outbox::Outbox;
use super::questions::Questions;
use super::routes::Routes;
use super::updates::{self, News};
use crate::exec::agent::connection::{Ask, Update};

/// The notification by which an agent withdraws a request.
const CANCEL: &str = "$/cancel_request";

/// The bytes that a reader on hold has read but not handled; `None` while it reads.
pub type Parked = Arc<Mutex<Option<Vec<u8>>>>;

#[derive(Debug)]
pub struct Reader {
    /// The agent's output.
    pub lines: Lines<pipe::Receiver>,
    /// Why the agent's input can't be written any more; `None` while it can.
    pub input_closed: watch::Receiver<Option<Box<str>>>,
    /// Whether reading is held back.
    pub hold: watch::Receiver<bool>,
    /// Receives the unhandled bytes while reading is held back.
    pub parked: Parked,
    /// The daemon's requests to the agent.
    pub calls: Arc<Calls>,
    /// The messages to the agent.
    pub outbox: Arc<Outbox>,
    pub questions: Arc<Questions>,
    /// The async tasks that wait for the answers to questions, so that reading is not delayed.
    pub deciding: JoinSet<()>,
    pub routes: Arc<Routes>,
    /// Lines that are not messages.
    pub noise: Arc<Noise>,
}

impl Reader {
    /// Reads until no more can be read, and returns the reason. Starts by repeating the questions carried over an
    /// upgrade.
    pub async fn run(mut self, asked: Vec<(RawJsonRpcId, Question)>) -> Box<str> {
        for (id, question) in asked {
            self.outbox.admit().await;
            self.ask(id, question).await;
        }
        loop {
            self.park().await;
            let line = tokio::select! {
                biased;
                () = held(&mut self.hold) => continue,
                line = self.lines.next() => line,
                why = silence(&mut self.input_closed) => return why,
            };
            match line {
                Ok(line) => self.take(&line).await,
                Err(broken) => return broken.to_string().into(),
            }
        }
    }

    /// Waits while reading is held back.
    async fn park(&mut self) {
        let holds = *self.hold.borrow();
        if holds {
            let park = |place| *self.parked.lock() = place;
            park(Some(self.lines.unhandled()));
            // Fails if the connection is dropped, which also ends this.
            let _ = self.hold.wait_for(|holds| !holds).await;
            park(None);
        }
    }

    async fn take(&mut self, line: &[u8]) {
        match lines::message(line) {
            Some(RawJsonRpcMessage::Notification(news)) if &*news.method == updates::METHOD => {
                self.update(news).await;
            }
            Some(RawJsonRpcMessage::Notification(news)) if &*news.method == CANCEL => {
                let params = news.params.map(RawJsonRpcParams::into_value).unwrap_or_default();
                self.questions.withdraw(&params["requestId"].to_string());
            }
            Some(RawJsonRpcMessage::Notification(_)) => {}
            Some(RawJsonRpcMessage::Request(request)) => {
                self.outbox.admit().await;
                self.answer(request).await;
            }
            Some(RawJsonRpcMessage::Response(response)) => {
                match response {
                    RawJsonRpcResponse::Result { id, result } => self.calls.answered(&id, Ok(result)),
                    RawJsonRpcResponse::Error { id, error } => {
                        self.calls.answered(&id, Err(error.into_acp_error()));
                    }
                }
                // Let the receiver of the answer run before the next message is read: output after the end of a turn is
                // late.
                tokio::task::yield_now().await;
            }
            None => self.noise.add(line),
        }
    }

    async fn update(&self, news: RawJsonRpcNotification) {
        let Some(News { session, update, message }) = updates::read(news.params) else { return };
        // Look up the route even without an update: a replay includes the user's own messages, and looking up the route
        // notes that the replay continues.
        let (Some(updates), Some(update)) = (self.routes.updates(&session), update) else { return };
        // Fails if the receiver of the updates was dropped.
        if matches!(update, Update::Text(_)) && self.routes.is_another_message(&session, message) {
            let _ = updates.send(Update::Message).await;
        }
        let _ = updates.send(update).await;
    }

    /// Answers a request, or asks the question in it.
    async fn answer(&mut self, request: RawJsonRpcRequest) {
        let RawJsonRpcRequest { id, method, params } = request;
        if &*method != asks::METHOD {
            let error = Error::method_not_found().data(&*method);
            return self.outbox.send(&RawJsonRpcMessage::response(id, Err(error)));
        }
        let params = params.map(RawJsonRpcParams::into_value).unwrap_or_default();
        match Question::read(&params) {
            Some(question) => self.ask(id, question).await,
            None => self.outbox.send(&RawJsonRpcMessage::response(id, Err(Error::invalid_params()))),
        }
    }

    async fn ask(&mut self, id: RawJsonRpcId, question: Question) {
        let Some((updates, called_off)) = self.routes.ask(&question.session) else {
            return self.outbox.send(&RawJsonRpcMessage::response(id, Ok(Question::called_off())));
        };
        let (answer, chosen) = oneshot::channel();
        let reference = reference(&id);
        let withdrawn = self.questions.open(&reference, &id, &question);
        let (questions, outbox) = (Arc::clone(&self.questions), Arc::clone(&self.outbox));
        let (options, own) = (question.options.clone(), reference.clone());
        // Removes the finished tasks.
        while self.deciding.try_join_next().is_some() {}
        self.deciding.spawn(async move {
            let answer = tokio::select! {
                biased;
                _ = called_off => Question::called_off(),
                _ = withdrawn => Question::called_off(),
                chosen = chosen => Question::answer(&options, chosen.ok().flatten().as_deref()),
            };
            questions.close(&own);
            outbox.send(&RawJsonRpcMessage::response(id, Ok(answer)));
        });
        let Question { text, options, session: _ } = question;
        // Fails if the receiver of the updates was dropped; then the answer's sender is dropped, which denies.
        let ask = Ask { reference: reference.into(), question: text, options, answer };
        let _ = updates.send(Update::Ask(ask)).await;
    }
}

/// Resolves when reading is held back.
async fn held(hold: &mut watch::Receiver<bool>) {
    if hold.wait_for(|holds| *holds).await.is_err() {
        // The connection is being dropped.
        std::future::pending::<()>().await;
    }
}

/// Returns the id of an agent's request as text.
fn reference(id: &RawJsonRpcId) -> String {
    serde_json::to_value(id).as_ref().map(Value::to_string).unwrap_or_default()
}

/// Resolves when the agent's input is closed and the runtime has checked once more for output to read. So the last
/// output of a dying agent is read, even if the daemon notices first that the agent's input is closed.
async fn silence(input_closed: &mut watch::Receiver<Option<Box<str>>>) -> Box<str> {
    let Ok(why) = input_closed.wait_for(Option::is_some).await.map(|why| why.clone()) else {
        // The writer ends without an error only together with the connection.
        return std::future::pending().await;
    };
    tokio::task::yield_now().await;
    why.unwrap_or_default()
}
