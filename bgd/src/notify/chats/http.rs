//! Common parts of the channels that use HTTP: a single POST with its limits, and the classification of its failures.
//!
//! A response is awaited for the channel's timeout and read up to [`BODY_BYTES`]. Messages may show only scheme, host
//! and port of a URL: the rest may be secret, as are headers and tokens.

use std::cell::OnceCell;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use percent_encoding::percent_decode_str;
use reqwest::header::{HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};
use tokio::time::{Instant, timeout_at};

use crate::http::{self, root_cause};
use crate::notice::one_line;
use crate::notify::secrets::Secrets;

/// How long to read a body that does not matter.
const DRAIN: Duration = Duration::from_millis(500);

/// How much of a response is read; the connection of a longer one is closed.
const BODY_BYTES: usize = 64 * 1024;

/// Maximum number of redirects followed per request.
const REDIRECTS: usize = 3;

/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(20);

/// The default user agent.
pub const USER_AGENT: &str = concat!("bgd/", env!("CARGO_PKG_VERSION"));

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryError {
    /// The reason, for users; free of secrets once [`Post::hide`] has processed it.
    pub why: String,
    /// Whether a retry of the same request may succeed.
    pub is_transient: bool,
    /// How long the server asked to wait.
    pub wait: Option<Duration>,
    /// Whether the wait applies to all requests rather than only to the same route.
    pub is_for_all: bool,
}

impl DeliveryError {
    pub fn lasting(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_transient: false, wait: None, is_for_all: false }
    }

    pub fn passing(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_transient: true, wait: None, is_for_all: false }
    }
}

/// A request that can be sent repeatedly.
pub struct Post {
    url: Url,
    headers: HeaderMap,
    body: Vec<u8>,
    timeout: Duration,
    secrets: Secrets,
    /// Whether the body of the response matters.
    reads_body: bool,
}

impl Post {
    /// Creates a JSON POST that takes at most `timeout`, redirects included. All messages about it hide `secrets` and
    /// every part of the URL except the server.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn new(
        url: &str,
        headers: HeaderMap,
        body: Vec<u8>,
        timeout: Duration,
        mut secrets: Vec<String>,
    ) -> Result<Self, DeliveryError> {
        let url = Url::parse(url).map_err(|error| {
            DeliveryError::lasting(format!("its address in the configuration can't be used: {error}"))
        })?;
        let parts = [url.username(), url.password().unwrap_or_default(), url.path().trim_matches('/')];
        let parts = parts.into_iter().chain(url.query()).chain(url.fragment());
        secrets.extend(parts.flat_map(|part| [part.to_owned(), decoded(part)]));
        if url.password().is_some() || !url.username().is_empty() {
            // As sent in the `Authorization` header.
            let (user, password) = (decoded(url.username()), decoded(url.password().unwrap_or_default()));
            secrets.push(BASE64.encode(format!("{user}:{password}")));
        }
        let secrets = Secrets::new(secrets);
        Ok(Self { url, headers, body, timeout, secrets, reads_body: true })
    }

    /// Judges the response by its status: a body that does not end holds up nothing.
    pub fn without_body(self) -> Self {
        Self { reads_body: false, ..self }
    }

    /// Puts third-party text on one line and hides secrets in it.
    fn hide(&self, text: &str) -> String {
        one_line(&self.secrets.hide(text))
    }
}

/// Percent-decodes a part of a URL.
fn decoded(part: &str) -> String {
    percent_decode_str(part).decode_utf8_lossy().into_owned()
}

#[derive(Debug)]
pub struct ChatResponse {
    pub status: StatusCode,
    /// The server it came from, for users.
    pub place: String,
    /// How long the server asked to wait, according to the headers.
    pub wait: Option<Duration>,
    /// Whether the headers declare, as Discord's do, that the rate limit applies to all requests.
    pub is_for_all: bool,
    /// The body, or the part that arrived in time; at most [`BODY_BYTES`].
    pub body: Vec<u8>,
}

impl ChatResponse {
    /// Builds the failure for this response; `output_suffix` is the server's own error message.
    pub fn refused(&self, post: &Post, said: Option<&str>) -> DeliveryError {
        let said = said.map(|said| post.hide(said)).filter(|said| !said.is_empty());
        let (place, code) = (&self.place, self.status.as_u16());
        let reason = self.status.canonical_reason().unwrap_or_default();
        let why = match said {
            None => format!("{place} answers with {}", self.status),
            Some(said) if self.status.is_success() => format!("{place} rejected it: {said}"),
            Some(said) if said.starts_with(reason) => format!("{place} answers with {code}: {said}"),
            Some(said) => format!("{place} answers with {}: {said}", self.status),
        };
        let is_transient = matches!(self.status.as_u16(), 408 | 425 | 429 | 500..=599);
        let wait = self.wait.filter(|_| matches!(self.status.as_u16(), 429 | 503));
        DeliveryError { why, is_transient, wait, is_for_all: false }
    }

    /// Builds the failure for a response that is not in the API's format.
    pub fn unintelligible(&self, post: &Post) -> DeliveryError {
        if self.status.is_success() {
            return DeliveryError::passing(format!("{} did not answer with the JSON of its API", self.place));
        }
        self.refused(post, None)
    }
}

/// The HTTP client of all channels, created on the first request because loading the system's
/// certificates takes memory.
#[derive(Debug, Default)]
pub struct Http {
    client: OnceCell<Client>,
}

impl Http {
    fn client(&self) -> Result<&Client, DeliveryError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let client = http::client()
            .user_agent(USER_AGENT)
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(1)
            .build()
            .map_err(|error| {
                DeliveryError::lasting(format!(
                    "can't create a request: {}",
                    root_cause(&error.without_url())
                ))
            })?;
        Ok(self.client.get_or_init(|| client))
    }

    /// Sends a request and waits for the response.
    ///
    /// # Errors
    /// There was no response, or a redirect is not allowed.
    pub async fn post(&self, post: &Post) -> Result<ChatResponse, DeliveryError> {
        let deadline = Instant::now().checked_add(post.timeout).unwrap_or_else(Instant::now);
        let mut url = post.url.clone();
        let mut followed = 0;
        loop {
            let response = self.send(post, url.clone(), deadline).await?;
            // Redirects are followed here so that a POST stays a POST and secrets stay with their server.
            if !response.status().is_redirection() {
                let until = if post.reads_body { deadline } else { deadline.min(Instant::now() + DRAIN) };
                return Ok(answer(response, place(&url), until).await);
            }
            url = redirected(post, &url, &response, followed)?;
            followed += 1;
        }
    }

    async fn send(&self, post: &Post, url: Url, deadline: Instant) -> Result<Response, DeliveryError> {
        let place = place(&url);
        let request = self.client()?.post(url).headers(post.headers.clone()).body(post.body.clone());
        match timeout_at(deadline, request.send()).await {
            Err(_) => {
                Err(DeliveryError::passing(format!("{place} has not answered within {:?}", post.timeout)))
            }
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                let error = error.without_url();
                let cause = post.hide(&root_cause(&error));
                Err(match () {
                    () if error.is_connect() => {
                        DeliveryError::passing(format!("cannot connect to {place}: {cause}"))
                    }
                    () if error.is_builder() => {
                        DeliveryError::lasting(format!("can't create a request to {place}: {cause}"))
                    }
                    () => DeliveryError::passing(format!("{place} did not answer: {cause}")),
                })
            }
        }
    }
}

/// Reads the body of a response, also so that the connection can be used again. Stops if the body breaks off or does
/// not end in time.
async fn answer(mut response: Response, place: String, deadline: Instant) -> ChatResponse {
    let wait = response.headers().get(RETRY_AFTER).and_then(|value| seconds(value.to_str().ok()?));
    let is_for_all = response.headers().get("x-ratelimit-scope").is_some_and(|scope| scope == "global");
    let mut body = Vec::new();
    let _ = timeout_at(deadline, http::read(&mut response, BODY_BYTES, &mut body)).await;
    ChatResponse { status: response.status(), place, wait, is_for_all, body }
}

/// Returns the target of a redirect if it may be followed.
fn redirected(post: &Post, from: &Url, response: &Response, followed: usize) -> Result<Url, DeliveryError> {
    let status = response.status();
    let refused = |what: &str| {
        let what = format!("{} redirects ({status}), {what}: set the final address", place(from));
        Err(DeliveryError::lasting(what))
    };
    if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
        return refused("which can change the method of the request");
    }
    if followed == REDIRECTS {
        return refused("after three redirects already");
    }
    let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
    let Some(mut to) = location.and_then(|location| from.join(location).ok()) else {
        return refused("but not to a valid address");
    };
    let of = Url::port_or_known_default;
    let is_same_port = of(&to) == of(from);
    // A different port means a different server, except for the default ports of http and https.
    let is_upgrade = from.scheme() == "http"
        && to.scheme() == "https"
        && (is_same_port || (of(from), of(&to)) == (Some(80), Some(443)));
    let is_same = to.scheme() == from.scheme() && is_same_port;
    if to.host_str() != from.host_str() || !(is_same || is_upgrade) {
        // The target is text from the server, which may repeat secrets sent to it.
        let there = post.hide(&place(&to));
        return refused(&format!("to {there}, which must not receive the request"));
    }
    // Still the same server, which already knows the credentials.
    let _ = to.set_username(from.username());
    let _ = to.set_password(from.password());
    Ok(to)
}

/// Returns the scheme, host and port of a URL; the rest may contain secrets.
pub fn place(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme(), url.host_str().unwrap_or("?"))
}

/// Parses `Retry-After`: seconds or an HTTP date.
fn seconds(value: &str) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    // Discord sends fractions.
    if let Ok(seconds) = value.parse() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(url: &str, secret: &str) -> Post {
        let timeout = Duration::from_secs(1);
        Post::new(url, HeaderMap::new(), Vec::new(), timeout, vec![secret.to_owned()]).unwrap()
    }

    #[test]
    fn retry_after_accepts_seconds_or_a_date() {
        assert_eq!(seconds(" 12 "), Some(Duration::from_secs(12)));
        assert_eq!(seconds("0.25"), Some(Duration::from_millis(250)));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let later = SystemTime::now() + Duration::from_hours(1);
        assert!(seconds(&httpdate::fmt_http_date(later)).unwrap() > Duration::from_mins(59));
        for bad in ["", "soon", "-1", "NaN", "1e400"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn request_errors_hide_secrets() {
        let post = post("https://user:p%40ssw0rd@example.org:8443/hooks/T0KEN?key=qu3ry1", "s3cr3t");
        assert_eq!(place(&post.url), "https://example.org:8443");
        let basic = BASE64.encode("user:p@ssw0rd");
        let said = "s3cr3t p%40ssw0rd p@ssw0rd\nhooks/T0KEN key=qu3ry1 https://example.org Basic ";
        let hidden = post.hide(&format!("{said}{basic}"));
        let expected = "(secret) (secret) (secret) (secret) (secret) https://example.org Basic (secret)";
        assert_eq!(hidden, expected);
    }

    #[test]
    fn invalid_address_is_not_shown() {
        let error = Post::new("https://s3cr3t:x", HeaderMap::new(), vec![], IDLE, vec![]).err().unwrap();
        assert!(!error.is_transient && !error.why.contains("s3cr3t"), "{error:?}");
    }
}
