//! What the channels that speak HTTP share: one POST with its limits, and what its failure means.
//!
//! An answer is waited for as long as its channel says, and read up to [`BODY_BYTES`]. Nothing here may
//! show more of an address than where it is: the rest of it may be a secret, as headers and tokens are.

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

/// How much of an answer is read. The rest is not waited for; the connection is closed then.
const BODY_BYTES: usize = 64 * 1024;

/// How many redirects of one request are followed.
const REDIRECTS: usize = 3;

/// How long a connection is kept for the next request.
const IDLE: Duration = Duration::from_secs(20);

/// Who asks.
pub const USER_AGENT: &str = concat!("bgd/", env!("CARGO_PKG_VERSION"));

/// Why a request did no good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// For people; without a secret once [`Post::hide`] has seen it.
    pub why: String,
    /// Whether the same request may do good later.
    pub may_pass: bool,
    /// How long the server wants to be left alone.
    pub wait: Option<Duration>,
    /// Whether it wants that of every request, and not only of those like this one.
    pub is_for_all: bool,
}

impl Trouble {
    /// One that the same request would meet again.
    pub fn lasting(why: impl Into<String>) -> Self {
        Self { why: why.into(), may_pass: false, wait: None, is_for_all: false }
    }

    /// One that may be over soon.
    pub fn passing(why: impl Into<String>) -> Self {
        Self { why: why.into(), may_pass: true, wait: None, is_for_all: false }
    }
}

/// A request that can be sent any number of times.
pub struct Post {
    url: Url,
    headers: HeaderMap,
    body: Vec<u8>,
    timeout: Duration,
    secrets: Secrets,
}

impl Post {
    /// A POST of JSON that takes at most this long, redirects and all. Whatever is a secret is left out of
    /// every word about it; all of the address but its server is one.
    ///
    /// # Errors
    /// The address is none.
    pub fn new(
        url: &str,
        headers: HeaderMap,
        body: Vec<u8>,
        timeout: Duration,
        mut secrets: Vec<String>,
    ) -> Result<Self, Trouble> {
        let url = Url::parse(url).map_err(|error| {
            Trouble::lasting(format!("its address in the configuration can't be used: {error}"))
        })?;
        let parts = [url.username(), url.password().unwrap_or_default(), url.path().trim_matches('/')];
        let parts = parts.into_iter().chain(url.query()).chain(url.fragment());
        secrets.extend(parts.flat_map(|part| [part.to_owned(), decoded(part)]));
        if url.password().is_some() || !url.username().is_empty() {
            // As the header has it.
            let (user, password) = (decoded(url.username()), decoded(url.password().unwrap_or_default()));
            secrets.push(BASE64.encode(format!("{user}:{password}")));
        }
        let secrets = Secrets::new(secrets);
        Ok(Self { url, headers, body, timeout, secrets })
    }

    /// A text of others in one line, without secrets.
    fn hide(&self, text: &str) -> String {
        one_line(&self.secrets.hide(text))
    }
}

/// A part of an address without its escapes.
fn decoded(part: &str) -> String {
    percent_decode_str(part).decode_utf8_lossy().into_owned()
}

/// What a server answered.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Where it came from, for people.
    pub place: String,
    /// How long the server wants to be left alone, if its headers say so.
    pub wait: Option<Duration>,
    /// Whether its headers say, as Discord's do, that this is about every request.
    pub is_for_all: bool,
    /// The body, or what came of it in time, [`BODY_BYTES`] at most.
    pub body: Vec<u8>,
}

impl Answer {
    /// That it is no success; `said` is what the server itself says about it.
    pub fn refused(&self, post: &Post, said: Option<&str>) -> Trouble {
        let said = said.map(|said| post.hide(said)).filter(|said| !said.is_empty());
        let (place, code) = (&self.place, self.status.as_u16());
        let reason = self.status.canonical_reason().unwrap_or_default();
        let why = match said {
            None => format!("{place} answers with {}", self.status),
            Some(said) if self.status.is_success() => format!("{place} rejected it: {said}"),
            Some(said) if said.starts_with(reason) => format!("{place} answers with {code}: {said}"),
            Some(said) => format!("{place} answers with {}: {said}", self.status),
        };
        let may_pass = matches!(self.status.as_u16(), 408 | 425 | 429 | 500..=599);
        let wait = self.wait.filter(|_| matches!(self.status.as_u16(), 429 | 503));
        Trouble { why, may_pass, wait, is_for_all: false }
    }

    /// That it is not what the API answers.
    pub fn unintelligible(&self, post: &Post) -> Trouble {
        if self.status.is_success() {
            return Trouble::passing(format!("{} did not answer with JSON of its API", self.place));
        }
        self.refused(post, None)
    }
}

/// The client of all channels, made with the first request: the certificates of the system take memory.
#[derive(Debug, Default)]
pub struct Http {
    client: OnceCell<Client>,
}

impl Http {
    fn client(&self) -> Result<&Client, Trouble> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let client = http::client()
            .user_agent(USER_AGENT)
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(1)
            .build()
            .map_err(|error| {
                Trouble::lasting(format!("can't create a request: {}", root_cause(&error.without_url())))
            })?;
        Ok(self.client.get_or_init(|| client))
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// There is none, or it is a redirect that is not followed.
    pub async fn post(&self, post: &Post) -> Result<Answer, Trouble> {
        let deadline = Instant::now().checked_add(post.timeout).unwrap_or_else(Instant::now);
        let mut url = post.url.clone();
        let mut followed = 0;
        loop {
            let response = self.send(post, url.clone(), deadline).await?;
            // Redirects are followed here, where a POST stays one and a secret stays with its server.
            if !response.status().is_redirection() {
                return Ok(answer(response, place(&url), deadline).await);
            }
            url = redirected(post, &url, &response, followed)?;
            followed += 1;
        }
    }

    async fn send(&self, post: &Post, url: Url, deadline: Instant) -> Result<Response, Trouble> {
        let place = place(&url);
        let request = self.client()?.post(url).headers(post.headers.clone()).body(post.body.clone());
        match timeout_at(deadline, request.send()).await {
            Err(_) => Err(Trouble::passing(format!("{place} has not answered within {:?}", post.timeout))),
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                let error = error.without_url();
                let cause = post.hide(&root_cause(&error));
                Err(match () {
                    () if error.is_connect() => {
                        Trouble::passing(format!("cannot connect to {place}: {cause}"))
                    }
                    () if error.is_builder() => {
                        Trouble::lasting(format!("can't create a request to {place}: {cause}"))
                    }
                    () => Trouble::passing(format!("{place} did not answer: {cause}")),
                })
            }
        }
    }
}

/// The rest of an answer. A body that breaks off or does not end in time is not waited for.
async fn answer(mut response: Response, place: String, deadline: Instant) -> Answer {
    let wait = response.headers().get(RETRY_AFTER).and_then(|value| seconds(value.to_str().ok()?));
    let is_for_all = response.headers().get("x-ratelimit-scope").is_some_and(|scope| scope == "global");
    let mut body = Vec::new();
    let _ = timeout_at(deadline, http::read(&mut response, BODY_BYTES, &mut body)).await;
    Answer { status: response.status(), place, wait, is_for_all, body }
}

/// Where a redirect leads, if it may be followed.
fn redirected(post: &Post, from: &Url, response: &Response, followed: usize) -> Result<Url, Trouble> {
    let status = response.status();
    let refused = |what: &str| {
        let what = format!("{} redirects ({status}), {what}: set the final address", place(from));
        Err(Trouble::lasting(what))
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
    let is_upgrade = from.scheme() == "http" && to.scheme() == "https";
    let is_same = to.scheme() == from.scheme() && to.port_or_known_default() == from.port_or_known_default();
    if to.host_str() != from.host_str() || !(is_same || is_upgrade) {
        // Where it is is the server's word, which may be made of what it was sent.
        let there = post.hide(&place(&to));
        return refused(&format!("to {there}, which must not receive the request"));
    }
    // It is the same server, and knows them already.
    let _ = to.set_username(from.username());
    let _ = to.set_password(from.password());
    Ok(to)
}

/// Where an address is, without what may be a secret in it.
pub fn place(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme(), url.host_str().unwrap_or("?"))
}

/// The value of `Retry-After`: seconds, or the date of HTTP.
fn seconds(value: &str) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    // Discord's may have a fraction.
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
    fn retry_after_is_seconds_or_a_date() {
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
    fn words_about_a_request_have_no_secret_in_them() {
        let post = post("https://user:p%40ssw0rd@example.org:8443/hooks/T0KEN?key=qu3ry1", "s3cr3t");
        assert_eq!(place(&post.url), "https://example.org:8443");
        let basic = BASE64.encode("user:p@ssw0rd");
        let said = "s3cr3t p%40ssw0rd p@ssw0rd\nhooks/T0KEN key=qu3ry1 https://example.org Basic ";
        let hidden = post.hide(&format!("{said}{basic}"));
        let expected = "(secret) (secret) (secret) (secret) (secret) https://example.org Basic (secret)";
        assert_eq!(hidden, expected);
    }

    #[test]
    fn an_address_that_is_none_is_not_shown() {
        let error = Post::new("https://s3cr3t:x", HeaderMap::new(), vec![], IDLE, vec![]).err().unwrap();
        assert!(!error.may_pass && !error.why.contains("s3cr3t"), "{error:?}");
    }
}
