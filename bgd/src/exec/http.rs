//! Requests to one HTTP server. It knows nothing of opencode, keeps no connection open between two
//! requests, and reads no more of an answer than it is told to.
//!
//! Each request has a connection of its own: on loopback that costs next to nothing, and no request can be
//! lost to a kept connection that the server was about to close. TLS is left out on purpose, because the
//! server itself does not speak it.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::job::Job;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// The user of the basic authentication, as the server expects it.
const USER: &str = "opencode";

/// Why there is no answer.
#[derive(Debug)]
pub enum HttpError {
    /// No connection could be made, so nothing was sent.
    Unreachable(String),
    /// The connection broke: whether the request arrived is not known.
    Broken(String),
    /// The answer is longer than the limit, in bytes.
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

/// An answer that was read to its end.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its content.
    pub body: Bytes,
    /// Where the next page begins, if the server has one.
    pub next: Option<String>,
}

/// An answer whose content comes bit by bit. The connection ends with it.
#[derive(Debug)]
pub struct Streamed {
    /// Its status.
    pub status: StatusCode,
    /// Its content.
    pub body: Incoming,
    /// What keeps the connection going.
    pub connection: Job,
}

/// A server.
#[derive(Debug)]
pub struct Http {
    host: String,
    port: u16,
    /// `host:port` as the request names it.
    authority: HeaderValue,
    /// What comes before every path, without a slash at its end.
    prefix: String,
    authorization: Option<HeaderValue>,
}

impl Http {
    /// The server of this address. Says what is wrong with the address otherwise.
    pub fn new(url: &str, password: Option<&str>) -> Result<Self, String> {
        let uri: Uri = url.trim().parse().map_err(|error| format!("{url:?} is no address: {error}"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(format!("{url:?}: https is not supported")),
            _ => return Err(format!("{url:?} does not begin with http://")),
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(format!("{url:?} has no host"))?;
        let port = uri.port_u16().unwrap_or(80);
        let authority = HeaderValue::from_str(&format!("{host}:{port}"))
            .map_err(|error| format!("{url:?} is no address: {error}"))?;
        let authorization = password.map(authorization).transpose()?;
        Ok(Self {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port,
            authority,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authorization,
        })
    }

    /// Sends a request, and reads an answer of at most `limit` bytes.
    pub async fn ask(
        &self,
        method: Method,
        target: &str,
        content: Option<String>,
        limit: usize,
    ) -> Result<Answer, HttpError> {
        let (response, _connection) = self.send(method, target, content).await?;
        let (head, body) = response.into_parts();
        let next = head.headers.get("x-next-cursor").and_then(|next| next.to_str().ok()).map(str::to_owned);
        match Limited::new(body, limit).collect().await {
            Ok(body) => Ok(Answer { status: head.status, body: body.to_bytes(), next }),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(HttpError::TooLarge(limit)),
            Err(error) => Err(HttpError::Broken(error.to_string())),
        }
    }

    /// Asks for something that comes bit by bit.
    pub async fn stream(&self, target: &str) -> Result<Streamed, HttpError> {
        let (response, connection) = self.send(Method::GET, target, None).await?;
        Ok(Streamed { status: response.status(), body: response.into_body(), connection })
    }

    async fn send(
        &self,
        method: Method,
        target: &str,
        content: Option<String>,
    ) -> Result<(Response<Incoming>, Job), HttpError> {
        let request = self.request(method, target, content)?;
        let connecting = TcpStream::connect((self.host.as_str(), self.port));
        let stream = match tokio::time::timeout(CONNECT, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(HttpError::Unreachable(error.to_string())),
            Err(_) => return Err(HttpError::Unreachable(format!("no answer within {CONNECT:?}"))),
        };
        // Small requests should not wait for each other; where that can't be set, they are only slower.
        let _ = stream.set_nodelay(true);
        let broken = |error: hyper::Error| HttpError::Broken(error.to_string());
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let connection = Job::start(async move {
            // What goes wrong here is told to whoever waits for the answer.
            let _ = connection.await;
        });
        let response = sender.send_request(request).await.map_err(broken)?;
        Ok((response, connection))
    }

    fn request(
        &self,
        method: Method,
        target: &str,
        content: Option<String>,
    ) -> Result<Request<Full<Bytes>>, HttpError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{target}", self.prefix))
            .header(HOST, self.authority.clone())
            .header(ACCEPT, "*/*");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        if content.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let content = Full::new(Bytes::from(content.unwrap_or_default()));
        request.body(content).map_err(|error| HttpError::Unreachable(error.to_string()))
    }
}

fn authorization(password: &str) -> Result<HeaderValue, String> {
    let words = STANDARD.encode(format!("{USER}:{password}"));
    let mut value = HeaderValue::from_str(&format!("Basic {words}")).map_err(|error| error.to_string())?;
    // So it appears in no log.
    value.set_sensitive(true);
    Ok(value)
}

/// A word of an address, with everything escaped that could mean something there.
pub fn escaped(word: &str) -> String {
    let mut escaped = String::with_capacity(word.len());
    for byte in word.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            escaped.push(char::from(byte));
        } else {
            escaped.push('%');
            for half in [byte >> 4, byte & 0xf] {
                escaped.push(char::from_digit(u32::from(half), 16).unwrap_or('0').to_ascii_uppercase());
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart() {
        let http = Http::new("http://127.0.0.1:4096/", Some("secret")).unwrap();
        assert_eq!((http.host.as_str(), http.port, http.prefix.as_str()), ("127.0.0.1", 4096, ""));
        assert!(!format!("{http:?}").contains("b3BlbmNvZGU"), "{http:?}");
        let http = Http::new("http://[::1]:80/below/it", None).unwrap();
        assert_eq!((http.host.as_str(), http.prefix.as_str()), ("::1", "/below/it"));
        for wrong in ["https://host", "127.0.0.1:4096", "", "http://", "ftp://host/"] {
            assert!(Http::new(wrong, None).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_byte_of_a_folder_arrives() {
        assert_eq!(escaped("/a b/ü&x=1"), "%2Fa%20b%2F%C3%BC%26x%3D1");
    }
}
