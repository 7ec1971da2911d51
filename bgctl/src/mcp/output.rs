//! Writes MCP messages to standard output, one per line. rmcp's own writer omits the id of an error that answers no
//! request; JSON-RPC requires it to be null.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use rmcp::model::{JsonRpcMessage, JsonRpcVersion2_0};
use rmcp::service::{RoleServer, TxJsonRpcMessage};
use rmcp::transport::io::StdioWriter;
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Mutex;

/// The output. Clones share it and write one message at a time.
#[derive(Clone)]
pub struct Output(Arc<Mutex<State>>);

struct State {
    /// `None` once closed.
    writer: Option<StdioWriter>,
    /// Bytes not written yet: if a write is cancelled, the next one writes the rest of its line first.
    pending: VecDeque<u8>,
}

/// An error that answers no request.
#[derive(Serialize)]
struct Unasked<'a> {
    jsonrpc: JsonRpcVersion2_0,
    id: (),
    error: &'a rmcp::model::ErrorData,
}

impl Output {
    pub fn new(writer: StdioWriter) -> Self {
        Self(Arc::new(Mutex::new(State { writer: Some(writer), pending: VecDeque::new() })))
    }

    /// Writes a message.
    ///
    /// # Errors
    /// The output is closed or a write failed.
    pub fn send(
        &self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + use<> {
        let state = Arc::clone(&self.0);
        async move {
            let line = line(&message)?;
            let mut state = state.lock().await;
            let State { writer, pending } = &mut *state;
            let Some(writer) = writer else { return Err(io::ErrorKind::NotConnected.into()) };
            pending.extend(line);
            writer.write_all_buf(pending).await?;
            writer.flush().await
        }
    }

    pub async fn close(&self) {
        drop(self.0.lock().await.writer.take());
    }
}

/// Serialises a message as one line.
fn line(message: &TxJsonRpcMessage<RoleServer>) -> io::Result<Vec<u8>> {
    let mut line = match message {
        JsonRpcMessage::Error(error) if error.id.is_none() => {
            serde_json::to_vec(&Unasked { jsonrpc: JsonRpcVersion2_0, id: (), error: &error.error })
        }
        other => serde_json::to_vec(other),
    }?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use rmcp::model::{ErrorData, RequestId};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn error_without_request_has_null_id() {
        let of = |id| {
            let error = ErrorData::parse_error("no JSON", None);
            let line = line(&TxJsonRpcMessage::<RoleServer>::error(error, id)).unwrap();
            assert_eq!(line.split(|byte| *byte == b'\n').count(), 2);
            serde_json::from_slice::<Value>(&line).unwrap()
        };
        let error = json!({"code": -32700, "message": "no JSON"});
        assert_eq!(of(None), json!({"jsonrpc": "2.0", "id": null, "error": error}));
        assert_eq!(of(Some(RequestId::Number(7))), json!({"jsonrpc": "2.0", "id": 7, "error": error}));
    }
}
