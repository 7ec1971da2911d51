//! Standard input and output as an MCP transport. Reports incoming requests, cancellations, written answers and the end
//! of the input, and does not interpret messages beyond that. A line that is not a message is answered with an error
//! for every id found in it, or with one error without an id, so that no request stays unanswered. Terse errors of
//! rmcp, which name just a method or internal terms, are reworded.

use std::io;
use std::sync::Arc;

use rmcp::model::{
    ClientNotification, ClientRequest, ErrorCode, ErrorData, GetMeta as _, JsonRpcMessage, ProtocolVersion,
    RequestId,
};
use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::io::StdioReader;
use tokio::io::BufReader;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::ledger::Ledger;
use super::lines::{InvalidLine, Line, Lines};
use super::output::Output;

/// Maximum number of refusals waiting to be written. A client that does not read them gets no more.
const REFUSALS: usize = 10_000;

pub struct Wire {
    input: Lines<BufReader<StdioReader>>,
    output: Output,
    /// Refusals that are being written.
    refusals: JoinSet<io::Result<()>>,
    ledger: Arc<Ledger>,
    /// Signals each written answer.
    written: mpsc::UnboundedSender<()>,
    /// Set at the end of the input.
    ended: watch::Sender<bool>,
    /// Whether a client has introduced itself.
    is_begun: bool,
}

impl Wire {
    /// Uses the standard streams of this process.
    pub fn stdio(
        ledger: Arc<Ledger>,
        written: mpsc::UnboundedSender<()>,
        ended: watch::Sender<bool>,
    ) -> Self {
        let (input, output) = rmcp::transport::stdio_pipes();
        Self {
            input: Lines::new(BufReader::new(input)),
            output: Output::new(output),
            refusals: JoinSet::new(),
            ledger,
            written,
            ended,
            is_begun: false,
        }
    }

    /// Answers an unreadable line with errors.
    fn refuse(&mut self, unread: InvalidLine) {
        while self.refusals.try_join_next().is_some() {}
        let ids = if unread.ids.is_empty() { vec![None] } else { unread.ids };
        for id in ids.into_iter().take(REFUSALS.saturating_sub(self.refusals.len())) {
            let error = ErrorData::new(unread.code, unread.why.clone(), None);
            // Waiting here would hold up the input. A client that is gone is noticed at the end of its input.
            self.refusals.spawn(self.output.send(TxJsonRpcMessage::<RoleServer>::error(error, id)));
        }
    }

    /// Tracks an incoming message.
    fn comes(&mut self, message: &RxJsonRpcMessage<RoleServer>) {
        match message {
            JsonRpcMessage::Request(request) => {
                self.is_begun |= begins(&request.request);
                if answers_with_news(&request.request) {
                    self.ledger.begins(&request.id);
                }
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    self.ledger.cancelled(id);
                }
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
        }
    }
}

/// Reports whether a request introduces the client. Before such a request, rmcp fails on any message but a request.
fn begins(request: &ClientRequest) -> bool {
    match request {
        ClientRequest::InitializeRequest(_) => true,
        ClientRequest::PingRequest(_) | ClientRequest::DiscoverRequest(_) => false,
        other => {
            let meta = other.get_meta();
            meta.protocol_version().is_some()
                && meta.missing_required_keys(&ProtocolVersion::V_2026_07_28).is_empty()
        }
    }
}

fn answers_with_news(request: &ClientRequest) -> bool {
    matches!(
        request,
        ClientRequest::CallToolRequest(_)
            | ClientRequest::GetTaskRequest(_)
            | ClientRequest::CustomRequest(_)
    )
}

/// Rewords an error so that it tells a client what to do. `is_begun`: a client has introduced itself.
fn reword(error: &mut ErrorData, is_begun: bool) {
    if error.code == ErrorCode::METHOD_NOT_FOUND && !error.message.contains(' ') {
        error.message = format!("this server has no method {:?}", error.message).into();
    } else if error.code == ErrorCode::INVALID_PARAMS && !is_begun && error.message.contains("_meta") {
        error.message = format!(
            "send \"initialize\" before any other request, or give each request the \"_meta\" of revision {} ({})",
            ProtocolVersion::V_2026_07_28.as_str(),
            error.message
        )
        .into();
    }
}

/// Returns the id of the request that a message answers.
fn answered(message: &TxJsonRpcMessage<RoleServer>) -> Option<RequestId> {
    match message {
        JsonRpcMessage::Response(response) => Some(response.id.clone()),
        JsonRpcMessage::Error(error) => error.id.clone(),
        JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
    }
}

impl Transport<RoleServer> for Wire {
    type Error = io::Error;

    fn send(
        &mut self,
        mut message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        if let JsonRpcMessage::Error(error) = &mut message {
            reword(&mut error.error, self.is_begun);
        }
        let request = answered(&message);
        // Before the first await: a cancellation that arrives later is too late.
        if let Some(request) = &request {
            self.ledger.sends(request);
        }
        let (ledger, written) = (Arc::clone(&self.ledger), self.written.clone());
        let sending = self.output.send(message);
        async move {
            let outcome = sending.await;
            if let Some(request) = request {
                ledger.sent(&request, outcome.is_ok());
                // The receiver is gone when the server is shutting down; the items are then reported again.
                let _ = written.send(());
            }
            outcome
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let message = match self.input.next().await {
                Line::Message(message) => *message,
                Line::InvalidLine(unread) => {
                    self.refuse(unread);
                    continue;
                }
                Line::End => {
                    self.ended.send_replace(true);
                    // The server waits a moment for answers in flight.
                    while self.refusals.join_next().await.is_some() {}
                    return None;
                }
            };
            self.comes(&message);
            if self.is_begun || matches!(message, JsonRpcMessage::Request(_)) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.output.close().await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_errors_are_reworded_with_advice() {
        let reworded = |code, message: &'static str, is_begun| {
            let mut error = ErrorData::new(code, message, None);
            reword(&mut error, is_begun);
            error.message.into_owned()
        };
        assert_eq!(reworded(ErrorCode::METHOD_NOT_FOUND, "nope", true), "this server has no method \"nope\"");
        let missing = "request _meta is missing or has malformed required fields: x";
        let early = reworded(ErrorCode::INVALID_PARAMS, missing, false);
        assert!(early.starts_with("send \"initialize\" before any other request"), "{early}");
        assert!(early.ends_with("fields: x)"), "{early}");
        assert_eq!(reworded(ErrorCode::INVALID_PARAMS, missing, true), missing);
    }
}
