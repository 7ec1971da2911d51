//! A server that sends scripted messages, for the tests of the whole back end.

#[cfg(test)]
pub mod server {
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::{mpsc, watch};

    /// The server's answers, and the requests that it got.
    #[derive(Debug, Default)]
    pub struct State {
        pub messages: Vec<Value>,
        pub busy: Vec<String>,
        pub permissions: Vec<Value>,
        pub requests: Vec<(String, Value)>,
        pub deleted: bool,
        /// Whether requests for the status are not answered.
        pub is_mute: bool,
        listeners: Vec<mpsc::UnboundedSender<String>>,
    }

    /// The scripted server.
    #[derive(Debug)]
    pub struct Server {
        pub state: Mutex<State>,
        pub url: String,
        changes: watch::Sender<usize>,
        accepting: Mutex<Option<tokio::task::AbortHandle>>,
    }

    impl Server {
        pub async fn start() -> Arc<Self> {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let server = Arc::new(Self {
                state: Mutex::default(),
                url: format!("http://{}", listener.local_addr().unwrap()),
                changes: watch::channel(0).0,
                accepting: Mutex::default(),
            });
            let accepted = Arc::clone(&server);
            let accepting = tokio::spawn(async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(Arc::clone(&accepted).serve(stream));
                }
            });
            *server.accepting.lock().unwrap() = Some(accepting.abort_handle());
            server
        }

        /// Stops listening, and ends the streams of events.
        pub fn die(&self) {
            self.accepting.lock().unwrap().take().unwrap().abort();
            self.cut();
        }

        /// Ends the streams of events.
        pub fn cut(&self) {
            self.state.lock().unwrap().listeners.clear();
        }

        /// Sends an event to all listeners.
        pub fn tell(&self, kind: &str, properties: &Value) {
            let event = json!({ "directory": "/d", "payload": { "type": kind, "properties": properties } });
            self.state.lock().unwrap().listeners.retain(|listener| listener.send(event.to_string()).is_ok());
        }

        /// Waits until `test` returns a value, and returns that value.
        pub async fn until<T>(&self, test: impl Fn(&State) -> Option<T>) -> T {
            let mut changes = self.changes.subscribe();
            loop {
                if let Some(found) = test(&self.state.lock().unwrap()) {
                    return found;
                }
                changes.changed().await.unwrap();
            }
        }

        /// Waits until a listener has requested the events.
        pub async fn heard(&self) {
            self.until(|state| (!state.listeners.is_empty()).then_some(())).await;
        }

        /// Waits for the request of this kind with number `count`, and returns its content.
        pub async fn asked(&self, what: &str, count: usize) -> Value {
            self.until(|state| {
                let mut asked = state.requests.iter().filter(|(line, _)| line.starts_with(what));
                asked.nth(count - 1).map(|(_, content)| content.clone())
            })
            .await
        }

        async fn serve(self: Arc<Self>, mut stream: TcpStream) {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let mut content = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            stream.read_exact(&mut content).await.unwrap();
            let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
            let content = serde_json::from_slice(&content).unwrap_or_default();
            let (verb_and_path, _) = line.split_once('?').unwrap_or((&line, ""));
            if verb_and_path == "GET /global/event" {
                return self.tell_on(stream).await;
            }
            let (status, answer) = self.answer(verb_and_path);
            let is_mute = self.state.lock().unwrap().is_mute && verb_and_path == "GET /session/status";
            self.state.lock().unwrap().requests.push((line.clone(), content));
            self.changes.send_modify(|changes| *changes += 1);
            if is_mute {
                return std::future::pending().await;
            }
            let answer = answer.to_string();
            let length = answer.len();
            let head =
                format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            let _ = stream.write_all((head + &answer).as_bytes()).await;
        }

        async fn tell_on(&self, mut stream: TcpStream) {
            let (listener, mut events) = mpsc::unbounded_channel();
            let hello =
                "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ndata: {\"payload\":{\"type\":\"hello\"}}\n\n";
            stream.write_all(hello.as_bytes()).await.unwrap();
            self.state.lock().unwrap().listeners.push(listener);
            self.changes.send_modify(|changes| *changes += 1);
            while let Some(event) = events.recv().await {
                if stream.write_all(format!("data: {event}\n\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        }

        fn answer(&self, what: &str) -> (u16, Value) {
            let state = self.state.lock().unwrap();
            let busy = state.busy.iter().map(|id| (id.clone(), json!({ "type": "busy" }))).collect();
            let session = json!({ "id": "ses_1", "directory": "/d" });
            match what {
                "GET /global/health" => (200, json!({ "healthy": true, "version": "1.2.3" })),
                _ if state.deleted => {
                    (404, json!({ "name": "NotFoundError", "data": { "message": "gone" } }))
                }
                "POST /session" | "GET /session/ses_1" => (200, session),
                "GET /session/ses_child" => (200, json!({ "id": "ses_child", "parentID": "ses_1" })),
                "POST /session/ses_1/prompt_async" => (200, Value::Null),
                "GET /session/status" => (200, Value::Object(busy)),
                "GET /session/ses_1/message" => (200, json!(state.messages)),
                "GET /permission" => (200, json!(state.permissions)),
                "GET /question" => (200, json!([])),
                _ if what.starts_with("POST ") => (200, json!(true)),
                _ => (404, json!({ "name": "NotFoundError", "data": { "message": "no such thing" } })),
            }
        }
    }
}
