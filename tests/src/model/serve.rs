//! The HTTP side of the model server. It runs in a thread of its own, and everything that waits in it ends with its
//! connection.

use std::convert::Infallible;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::order::{Answer, Order};
use super::record::{Record, Ticket};
use super::request::{Api, Request};
use super::{chat, responses};

/// Serves until the other end of `stopped` is dropped.
pub(super) fn run(listener: TcpListener, record: &Arc<Record>, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        tokio::select! {
            _ = stopped => {}
            () = accept(&listener, record) => {}
        }
    });
}

async fn accept(listener: &tokio::net::TcpListener, record: &Arc<Record>) {
    while let Ok((stream, _)) = listener.accept().await {
        let record = Arc::clone(record);
        let service = service_fn(move |request| answer(Arc::clone(&record), request));
        let connection =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        // An error ends this connection, and its requests then record that their client has left.
        tokio::spawn(async { connection.await.unwrap_or_default() });
    }
}

async fn answer(
    record: Arc<Record>,
    request: hyper::Request<Incoming>,
) -> Result<Response<Pipe>, Infallible> {
    let api = match (request.method(), request.uri().path()) {
        (&Method::POST, "/v1/chat/completions") => Api::Chat,
        (&Method::POST, "/v1/responses") => Api::Responses,
        _ => return Ok(error(StatusCode::NOT_FOUND)),
    };
    let session = session(request.headers());
    let body = match request.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return Ok(error(StatusCode::BAD_REQUEST)),
    };
    let parsed = serde_json::from_slice(&body).ok();
    let Some(request) = parsed.and_then(|body| Request::parse(api, session, &body)) else {
        return Ok(error(StatusCode::BAD_REQUEST));
    };
    let order = Order::of(&request);
    let ticket = record.add(request.clone());
    if let Some(gate) = order.hold {
        pass(&record, &gate).await;
    }
    if let Answer::Error(status) = order.answer {
        ticket.answered();
        return Ok(error(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST)));
    }
    let (pieces, body) = mpsc::channel(1);
    let kind = if request.stream { "text/event-stream" } else { "application/json" };
    let speech = Speech { record, request, pieces: pieces.clone() };
    tokio::spawn(async move {
        tokio::select! {
            // This drops the ticket with the speech, which records that the client has left.
            () = pieces.closed() => {}
            _ = speech.give(order.answer, ticket) => {}
        }
    });
    Ok(response(StatusCode::OK, kind, body))
}

/// Waits for a release of a gate.
async fn pass(record: &Record, gate: &str) {
    record.gate(gate).acquire().await.expect("a gate is never closed").forget();
}

/// Returns the agent's id of the session, which each agent sends in a header of its own.
fn session(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("x-session-id").or_else(|| headers.get("session-id"))?;
    id.to_str().ok().map(str::to_owned)
}

fn error(status: StatusCode) -> Response<Pipe> {
    let message = format!("the model answers with {}", status.as_u16());
    let body = json!({"error": {"message": message, "type": "fake", "code": "fake"}});
    let (pieces, receiver) = mpsc::channel(1);
    pieces.try_send(body.to_string().into()).expect("there is room for one piece");
    response(status, "application/json", receiver)
}

fn response(status: StatusCode, kind: &'static str, body: mpsc::Receiver<Bytes>) -> Response<Pipe> {
    let response = Response::builder().status(status).header(CONTENT_TYPE, kind);
    response.body(Pipe(body)).expect("a status and a header make a response")
}

/// The answer to one request. It stops when the client no longer reads.
struct Speech {
    record: Arc<Record>,
    request: Request,
    pieces: mpsc::Sender<Bytes>,
}

impl Speech {
    /// Sends the whole answer.
    async fn give(self, answer: Answer, ticket: Ticket) -> Option<()> {
        match answer {
            Answer::Say(text) => self.text(None, &[text], false).await?,
            Answer::Cut(text) => self.text(None, &[text], true).await?,
            Answer::Slow { gate, chunks } => {
                let chunks: Vec<_> = (1..=chunks).map(|number| format!("chunk {number} ")).collect();
                self.text(Some(&gate), &chunks, false).await?;
            }
            Answer::Tool { name, arguments } => {
                let id = format!("call_{}", ticket.number());
                let call = match self.request.api {
                    Api::Chat => chat::call(&self.request.model, &id, &name, &arguments),
                    Api::Responses => responses::call(&id, &name, &arguments),
                };
                self.send(call).await?;
            }
            Answer::Error(_) => {}
        }
        ticket.answered();
        Some(())
    }

    async fn text(&self, gate: Option<&str>, chunks: &[String], cut: bool) -> Option<()> {
        let (api, model) = (self.request.api, &self.request.model);
        let stream = self.request.stream;
        if stream {
            let begin = match api {
                Api::Chat => chat::begin(model),
                Api::Responses => responses::begin(),
            };
            self.send(begin).await?;
        }
        for chunk in chunks {
            if let Some(gate) = gate {
                pass(&self.record, gate).await;
            }
            if stream {
                let delta = match api {
                    Api::Chat => chat::delta(model, chunk),
                    Api::Responses => responses::delta(chunk),
                };
                self.send(delta).await?;
            }
        }
        let text = chunks.concat();
        let end = match (api, stream) {
            (Api::Chat, true) => chat::end(model, cut),
            (Api::Chat, false) => chat::whole(model, &text, cut).to_string(),
            (Api::Responses, true) => responses::end(&text, cut),
            (Api::Responses, false) => responses::whole(&text, cut).to_string(),
        };
        self.send(end).await
    }

    async fn send(&self, piece: String) -> Option<()> {
        self.pieces.send(piece.into()).await.ok()
    }
}

/// A body that arrives piece by piece.
struct Pipe(mpsc::Receiver<Bytes>);

impl Body for Pipe {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
