//! The channel `webhook`: a POST of each notice as JSON.
//!
//! Any 2xx status means delivered; the response body is ignored. `Idempotency-Key` is the notice's key, as a try may
//! have arrived even though its response was lost.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{FutureExt as _, LocalBoxFuture};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::value::RawValue;

use super::http::{DeliveryError, Http, Post};
use super::retry::{self, RateLimits};
use crate::channels::Secret;
use crate::notify::adapter::{Adapter, Notification};
use crate::notify::undelivered::Undelivered;

pub struct Webhook {
    http: Rc<Http>,
    url: Secret,
    headers: BTreeMap<String, Secret>,
    timeout: Duration,
    rate_limits: RateLimits,
}

impl Webhook {
    /// Creates an adapter that posts to this URL with these headers; `timeout` applies to each request.
    pub fn new(
        http: Rc<Http>,
        (url, headers): (&Secret, &BTreeMap<String, Secret>),
        timeout: Duration,
    ) -> Self {
        Self { http, url: url.clone(), headers: headers.clone(), timeout, rate_limits: RateLimits::default() }
    }

    fn post(&self, notification: &Notification) -> Result<Post, DeliveryError> {
        let body = serde_json::to_vec(&notification.notice)
            .map_err(|error| DeliveryError::lasting(format!("it can't be written as JSON: {error}")))?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Ok(key) = HeaderValue::from_str(&notification.notice.key) {
            headers.insert("idempotency-key", key);
        }
        for (name, Secret(value)) in &self.headers {
            let (name, value) = (HeaderName::try_from(name), HeaderValue::try_from(value));
            let (Ok(name), Ok(mut value)) = (name, value) else {
                return Err(DeliveryError::lasting("a header in the configuration can't be sent"));
            };
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        // In `Bearer TOKEN`, the token by itself is also a secret.
        let words = self.headers.values().flat_map(|Secret(value)| value.split_whitespace());
        let whole = self.headers.values().map(|Secret(value)| value.as_str());
        let secrets = whole.chain(words).map(str::to_owned).collect();
        Post::new(&self.url.0, headers, body, self.timeout, secrets).map(Post::without_body)
    }
}

impl Adapter for Webhook {
    fn notify<'a>(&'a self, notification: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>> {
        async {
            let post = self.post(notification).map_err(|trouble| Undelivered(trouble.why))?;
            retry::deliver(&self.rate_limits, "", &notification.progress, async || {
                let answer = self.http.post(&post).await?;
                // The response body is not shown, as it may repeat secrets of the request.
                if answer.status.is_success() { Ok(()) } else { Err(answer.refused(&post, None)) }
            })
            .await
        }
        .boxed_local()
    }

    fn state(&self) -> Option<Box<RawValue>> {
        let Self { http: _, url: _, headers: _, timeout: _, rate_limits } = self;
        rate_limits.state()
    }

    fn resume(&self, state: &RawValue) {
        self.rate_limits.resume(state);
    }
}
