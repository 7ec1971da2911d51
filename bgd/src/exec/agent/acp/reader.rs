//! What an agent says, in its order: news go to their sessions, questions are asked, answers go to the crate.
//!
//! News don't pass through the crate, because its queue has no bound. They are put into their session's
//! channel before the next line is read. So a session whose channel is full makes the agent wait, with all of
//! its sessions, until somebody reads from the channel or drops it; and when the answer to a prompt is passed
//! on, everything that was said before it is in the channel.

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

/// A request of the agent, and what answers it.
pub type Request = (UntypedMessage, Responder);

/// Reads an agent's output.
#[derive(Debug)]
pub struct Reader {
    /// Its output.
    pub lines: Lines<pipe::Receiver>,
    /// Why its input can't be written any more, once that is so.
    pub deaf: watch::Receiver<Option<Box<str>>>,
    /// Requests come back from the crate with what answers them.
    pub requests: mpsc::UnboundedReceiver<Request>,
    /// One for each request that may be unanswered at a time.
    pub permits: Arc<Semaphore>,
    /// Answers questions without holding up the reading.
    pub connection: ConnectionTo<Agent>,
    /// Where news go.
    pub routes: Arc<Routes>,
    /// What is no message.
    pub noise: Arc<Noise>,
}

impl Reader {
    /// Reads until the end, and says why it came. `pass_on` gives a message to the crate.
    pub async fn run(mut self, pass_on: impl Fn(RawJsonRpcMessage)) -> Box<str> {
        loop {
            let line = tokio::select! {
                biased;
                line = self.lines.next() => line,
                why = silence(&mut self.deaf) => return why,
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
                // A replay is told of its own words, too.
                let (Some(updates), Some(update)) = (self.routes.updates(&session), update) else { return };
                // It fails if nobody wants it any more.
                if matches!(update, Update::Text(_)) && self.routes.is_another_message(&session, message) {
                    let _ = updates.send(Update::Message).await;
                }
                let _ = updates.send(update).await;
            }
            Some(request @ RawJsonRpcMessage::Request(_)) => {
                // Given back when the answer is written. Closed: nothing is written any more.
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
                // The crate takes it before the next one is read, so that its queue stays short.
                tokio::task::yield_now().await;
            }
            None => self.noise.add(line),
        }
    }

    /// Answers a request, or asks what the answer is. An answer fails only if the connection is over.
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
        // It fails if nobody wants it any more, and then drops the answer, which denies.
        let _ = updates
            .send(Update::Ask(Ask { question: question.text, options: question.options, answer }))
            .await;
    }
}

/// Waits for the decision on a question, and gives it.
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
    // An error here would end the connection; it only says that the connection is over.
    let _ = responder.respond(answer);
    Ok(())
}

/// Resolves when the agent's input is gone and the runtime has looked once more whether there is something to
/// read: what an agent says before it dies is heard, even if the daemon saw first that it does not listen.
async fn silence(deaf: &mut watch::Receiver<Option<Box<str>>>) -> Box<str> {
    let Ok(why) = deaf.wait_for(Option::is_some).await.map(|why| why.clone()) else {
        // The writer has ended without an error, which it does only together with the connection.
        return std::future::pending().await;
    };
    tokio::task::yield_now().await;
    why.unwrap_or_default()
}
