//! Reads what an agent says, in order: routes session updates, asks questions, and passes answers to the crate.
//!
//! Updates bypass the crate, because its queue is unbounded. Each goes into its session's channel before the
//! next line is read. So a session whose channel is full makes the agent wait, with all of its sessions,
//! until somebody reads from the channel or drops it. And when the answer to a prompt is passed on,
//! everything that was said before it is in the channel.

use std::sync::Arc;

use agent_client_protocol::{
    Agent, ConnectionTo, Error, RawJsonRpcMessage, RequestCancellation, Responder, UntypedMessage,
};
use bgd_shared::agent::InputOption;
use tokio::net::unix::pipe;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::asks::{self, Question};
use super::lines::{self, Lines, Noise};
use super::routes::Routes;
use super::updates::{self, News};
use crate::exec::agent::connection::{Ask, Update};

/// A request of the agent, with the responder for its answer.
pub type Request = (UntypedMessage, Responder);

/// Reads an agent's output.
#[derive(Debug)]
pub struct Reader {
    /// The agent's output.
    pub lines: Lines<pipe::Receiver>,
    /// Why the agent's input can't be written any more; `None` while it can.
    pub input_closed: watch::Receiver<Option<Box<str>>>,
    /// Requests as they come back from the crate, with their responders.
    pub requests: mpsc::UnboundedReceiver<Request>,
    /// One permit for each request that may be unanswered at a time.
    pub permits: Arc<Semaphore>,
    /// Runs the tasks that answer questions, so that reading is not held up.
    pub connection: ConnectionTo<Agent>,
    /// Where updates go.
    pub routes: Arc<Routes>,
    /// Lines that are no messages.
    pub noise: Arc<Noise>,
}

impl Reader {
    /// Reads to the end, and returns the reason for it. `pass_on` hands a message to the crate.
    pub async fn run(mut self, pass_on: impl Fn(RawJsonRpcMessage)) -> Box<str> {
        loop {
            let line = tokio::select! {
                biased;
                line = self.lines.next() => line,
                why = silence(&mut self.input_closed) => return why,
            };
            match line {
                Ok(line) => self.take(&line, &pass_on).await,
                Err(broken) => return broken.to_string().into(),
            }
        }
    }

    async fn take(&mut self, line: &[u8], pass_on: &impl Fn(RawJsonRpcMessage)) {
        match lines::message(line) {
            Some(RawJsonRpcMessage::Notification(news)) if &*news.method == "session/update" => {
                let Some(News { session, update, message }) = updates::read(news.params) else { return };
                // Look up the route even without an update: a replay includes the user's own messages, which
                // count as signs of it.
                let (Some(updates), Some(update)) = (self.routes.updates(&session), update) else { return };
                // Fails if nobody wants the updates any more.
                if matches!(update, Update::Text(_)) && self.routes.is_another_message(&session, message) {
                    let _ = updates.send(Update::Message).await;
                }
                let _ = updates.send(update).await;
            }
            Some(request @ RawJsonRpcMessage::Request(_)) => {
                // The permit comes back when the answer is written. If the semaphore is closed, nothing is
                // written any more.
                if let Ok(permit) = self.permits.acquire().await {
                    permit.forget();
                }
                pass_on(request);
                if let Some((request, responder)) = self.requests.recv().await {
                    self.answer(&request, responder).await;
                }
            }
            Some(message) => {
                pass_on(message);
                // Let the crate take it before the next message is read, so that its queue stays short.
                tokio::task::yield_now().await;
            }
            None => self.noise.add(line),
        }
    }

    /// Answers a request, or asks for the decision. Responding fails only if the connection is over.
    async fn answer(&self, request: &UntypedMessage, responder: Responder) {
        if request.method() != asks::METHOD {
            let _ = responder.respond_with_error(Error::method_not_found().data(request.method()));
            return;
        }
        let Some(question) = Question::read(request) else {
            let _ = responder.respond_with_error(Error::invalid_params());
            return;
        };
        let Some((updates, called_off)) = self.routes.ask(&question.session) else {
            let _ = responder.respond(Question::called_off());
            return;
        };
        let (answer, chosen) = oneshot::channel();
        let options = question.options.clone();
        let _ = self.connection.spawn(decide(responder, options, called_off, chosen));
        // Fails if nobody wants it any more; that drops the answer's channel, which denies.
        let _ = updates
            .send(Update::Ask(Ask { question: question.text, options: question.options, answer }))
            .await;
    }
}

/// Waits for the decision on a question, and sends it to the agent.
async fn decide(
    responder: Responder,
    options: Vec<InputOption>,
    called_off: oneshot::Receiver<()>,
    chosen: oneshot::Receiver<Option<String>>,
) -> Result<(), Error> {
    let withdrawn: RequestCancellation = responder.cancellation();
    let answer = tokio::select! {
        biased;
        _ = called_off => Question::called_off(),
        () = withdrawn.cancelled() => Question::called_off(),
        chosen = chosen => Question::answer(&options, chosen.ok().flatten().as_deref()),
    };
    // Returning an error would end the connection, but this one only says that the connection is over.
    let _ = responder.respond(answer);
    Ok(())
}

/// Resolves when the agent's input is gone and the runtime has checked once more for something to read. So
/// what an agent says before it dies is read, even if the daemon notices first that its input is closed.
async fn silence(input_closed: &mut watch::Receiver<Option<Box<str>>>) -> Box<str> {
    let Ok(why) = input_closed.wait_for(Option::is_some).await.map(|why| why.clone()) else {
        // The writer ends without an error only together with the connection.
        return std::future::pending().await;
    };
    tokio::task::yield_now().await;
    why.unwrap_or_default()
}
