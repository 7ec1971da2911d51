//! Requests to one HTTP server. This module is independent of opencode, keeps no connection open between two requests,
//! and reads no more of a response than requested.
//!
//! Each request uses its own connection: on loopback that costs next to nothing, and no request can be lost to a
//! kept-alive connection that the server was about to close. TLS is left out on purpose, because the server itself does
//! not support it.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{Stream, stream};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, Method, Response, StatusCode, Url};

use crate::http::{self, root_cause};

/// The timeout for connecting.
const CONNECT: Duration = Duration::from_secs(5);

/// Why there is no response.
#[derive(Debug)]
pub enum HttpError {
    /// No connection could be made, so nothing was sent.
    Unreachable(String),
    /// The connection broke; it is unknown whether the request arrived.
    Broken(String),
    /// The response is longer than the limit, in bytes.
    TooLarge(usize),
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => write!(f, "cannot connect: {why}"),
            Self::Broken(why) => write!(f, "the connection broke: {why}"),
            Self::TooLarge(limit) => write!(f, "an answer is longer than {limit} bytes"),
        }
    }
}

impl std::error::Error for HttpError {}

impl From<reqwest::Error> for HttpError {
    fn from(error: reqwest::Error) -> Self {
        match () {
            () if error.is_connect() && error.is_timeout() => {
                Self::Unreachable(format!("no answer within {CONNECT:?}"))
            }
            () if error.is_connect() || error.is_builder() => Self::Unreachable(root_cause(&error)),
            () => Self::Broken(root_cause(&error)),
        }
    }
}

/// A response that was read completely.
#[derive(Debug)]
pub struct FullResponse {
    pub status: StatusCode,
    pub body: Vec<u8>,
    /// The cursor of the next page, if there is one.
    pub next: Option<String>,
}

/// A response whose body is streamed. Dropping it closes the connection.
#[derive(Debug)]
pub struct Streamed(Response);

impl Streamed {
    pub fn status(&self) -> StatusCode {
        self.0.status()
    }

    /// Streams the body as it arrives.
    pub fn content(self) -> impl Stream<Item = Result<Bytes, HttpError>> {
        stream::try_unfold(self.0, async |mut response| {
            let piece = response.chunk().await?;
            Ok(piece.map(|piece| (piece, response)))
        })
    }
}

/// A client of one server.
#[derive(Debug)]
pub struct Http {
    client: Client,
    /// The prefix of every request's target, without a trailing slash.
    base: String,
    authorization: Option<HeaderValue>,
}

impl Http {
    /// Creates a client of the server at this address. `login` is the user name and the password, if the server expects
    /// them.
    ///
    /// # Errors
    /// Explains what is wrong with the address.
    pub fn new(url: &str, login: Option<(&str, &str)>) -> Result<Self, String> {
        let base = base(url)?;
        let authorization = login.map(|(user, password)| authorization(user, password)).transpose()?;
        let client = http::plain_client().connect_timeout(CONNECT).pool_max_idle_per_host(0).build();
        let client = client.map_err(|error| root_cause(&error))?;
        Ok(Self { client, base, authorization })
    }

    /// Sends a request and reads a response of at most `limit` bytes.
    pub async fn ask(
        &self,
        method: Method,
        target: &str,
        content: Option<String>,
        limit: usize,
    ) -> Result<FullResponse, HttpError> {
        let mut response = self.send(method, target, content).await?;
        let next = response.headers().get("x-next-cursor");
        let next = next.and_then(|next| next.to_str().ok()).map(str::to_owned);
        let mut body = Vec::new();
        if !http::read(&mut response, limit, &mut body).await? {
            return Err(HttpError::TooLarge(limit));
        }
        Ok(FullResponse { status: response.status(), body, next })
    }

    /// Sends a GET request whose response is streamed.
    pub async fn stream(&self, target: &str) -> Result<Streamed, HttpError> {
        self.send(Method::GET, target, None).await.map(Streamed)
    }

    async fn send(
        &self,
        method: Method,
        target: &str,
        content: Option<String>,
    ) -> Result<Response, HttpError> {
        let mut request = self.client.request(method, format!("{}{target}", self.base));
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        if let Some(content) = content {
            request = request.header(CONTENT_TYPE, "application/json").body(content);
        }
        Ok(request.send().await?)
    }
}

/// Returns the prefix of every request's target at this address.
///
/// # Errors
/// Explains what is wrong with the address.
pub fn base(url: &str) -> Result<String, String> {
    let url = url.trim();
    let has = |scheme: &str| url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    if has("https://") {
        return Err(format!("{url:?}: https is not supported"));
    }
    if !has("http://") {
        return Err(format!("{url:?} does not begin with http://"));
    }
    let parsed = Url::parse(url).map_err(|error| format!("{url:?} is not a URL: {error}"))?;
    Ok(format!("{}{}", parsed.origin().ascii_serialization(), parsed.path().trim_end_matches('/')))
}

fn authorization(user: &str, password: &str) -> Result<HeaderValue, String> {
    let words = STANDARD.encode(format!("{user}:{password}"));
    let mut value = HeaderValue::from_str(&format!("Basic {words}")).map_err(|error| error.to_string())?;
    // Keeps the value out of logs.
    value.set_sensitive(true);
    Ok(value)
}

/// The characters to escape in an address: all but those that its grammar calls unreserved.
const MEANINGFUL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Escapes all characters that could have a meaning in a component of an address.
pub fn escaped(word: &str) -> PercentEncode<'_> {
    utf8_percent_encode(word, MEANINGFUL)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::StreamExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpSocket, TcpStream};
    use tokio::task::JoinHandle;

    use super::*;

    /// How long a test waits for an event that should happen at once.
    const SOON: Duration = Duration::from_secs(20);

    const LIMIT: usize = 4;

    /// Starts a server for one request, which it answers with these bytes. Resolves to the request's head and the
    /// number of bytes that followed until the client closed the connection; with `closes`, the server closes it
    /// instead.
    async fn server(answer: &'static str, closes: bool) -> (Http, JoinHandle<(String, usize)>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = Http::new(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap();
        let served = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let head = head(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
            if closes {
                return (head, 0);
            }
            let rest = rest(&mut stream).await;
            (head, rest)
        };
        (http, tokio::spawn(served))
    }

    async fn head(stream: &mut TcpStream) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap()
    }

    /// Counts the bytes that arrive until the peer closes the connection.
    async fn rest(stream: &mut TcpStream) -> usize {
        let mut bytes = Vec::new();
        tokio::time::timeout(SOON, stream.read_to_end(&mut bytes))
            .await
            .expect("the connection ends")
            .unwrap()
    }

    async fn asked(answer: &'static str, closes: bool) -> Result<FullResponse, HttpError> {
        let (http, served) = server(answer, closes).await;
        let answer = http.ask(Method::GET, "/it", None, LIMIT).await;
        let (head, rest) = served.await.unwrap();
        assert!(head.starts_with("GET /it HTTP/1.1\r\n") && rest == 0, "{head}");
        answer
    }

    #[test]
    fn base_address_is_normalized_or_refused() {
        assert_eq!(base("http://127.0.0.1:4096/").unwrap(), "http://127.0.0.1:4096");
        assert_eq!(base(" http://[::1]:80/below/it/?x ").unwrap(), "http://[::1]/below/it");
        assert_eq!(base("HTTP://opencode:secret@localhost:4096").unwrap(), "http://localhost:4096");
        for (wrong, why) in [
            ("https://host", "https is not supported"),
            ("127.0.0.1:4096", "does not begin with http://"),
            ("http:host", "does not begin with http://"),
            ("", "does not begin with http://"),
            ("http://", "is not a URL"),
            ("http://:80", "is not a URL"),
            ("ftp://host/", "does not begin with http://"),
        ] {
            let error = Http::new(wrong, None).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn debug_output_hides_the_password() {
        let http = Http::new("http://127.0.0.1:4096/", Some(("opencode", "secret"))).unwrap();
        assert_eq!(http.authorization.as_ref().unwrap(), "Basic b3BlbmNvZGU6c2VjcmV0");
        assert!(!format!("{http:?}").contains("b3BlbmNvZGU"), "{http:?}");
    }

    #[test]
    fn folder_is_percent_encoded() {
        assert_eq!(escaped("/a b/ü&x=1").to_string(), "%2Fa%20b%2F%C3%BC%26x%3D1");
        assert_eq!(escaped("A-z_0.9~").to_string(), "A-z_0.9~");
    }

    #[tokio::test]
    async fn response_body_is_read_up_to_the_limit() {
        let exact = "HTTP/1.1 200 OK\r\nx-next-cursor: 2\r\ncontent-length: 4\r\n\r\nbody";
        let answer = asked(exact, false).await.unwrap();
        assert_eq!((answer.body.as_slice(), answer.next.as_deref()), (&b"body"[..], Some("2")));
        for longer in [
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nlonge",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nlon\r\n3\r\nger\r\n",
        ] {
            let error = asked(longer, false).await.unwrap_err();
            assert!(matches!(error, HttpError::TooLarge(LIMIT)), "{error}");
        }
    }

    #[tokio::test]
    async fn redirects_are_not_followed() {
        let answer = "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(asked(answer, false).await.unwrap().status, StatusCode::FOUND);
    }

    #[tokio::test]
    async fn broken_connection_is_distinguished_from_unreachable_server() {
        for (broken, why) in [
            ("", "connection closed before message completed"),
            ("HTTP/1.1 200 OK\r\ncontent-", "connection closed before message completed"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbo", "end of file before message length reached"),
            ("SSH-2.0-OpenSSH\r\n", "invalid HTTP version parsed"),
        ] {
            let error = asked(broken, true).await.unwrap_err();
            assert!(matches!(&error, HttpError::Broken(said) if said == why), "{broken:?}: {error:?}");
        }
        // It has a port of its own, but does not listen there.
        let deaf = TcpSocket::new_v4().unwrap();
        deaf.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let http = Http::new(&format!("http://{}", deaf.local_addr().unwrap()), None).unwrap();
        let error = http.ask(Method::POST, "/", Some("{}".to_owned()), LIMIT).await.unwrap_err();
        assert!(matches!(error, HttpError::Unreachable(_)), "{error:?}");
        assert_eq!(error.to_string(), "cannot connect: Connection refused (os error 111)");
    }

    #[tokio::test]
    async fn dropping_a_stream_closes_its_connection() {
        let (http, served) =
            server("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n", false).await;
        let streamed = http.stream("/").await.unwrap();
        {
            let mut content = pin!(streamed.content());
            assert_eq!(content.next().await.unwrap().unwrap(), "one");
        }
        assert_eq!(served.await.unwrap().1, 0);
    }

    #[tokio::test]
    async fn dropping_a_request_closes_its_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = Http::new(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap();
        let arrived = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            head(&mut stream).await;
            stream
        };
        let mut stream = tokio::select! {
            answer = http.ask(Method::GET, "/", None, LIMIT) => panic!("{answer:?}"),
            stream = arrived => stream,
        };
        assert_eq!(rest(&mut stream).await, 0);
    }
}
