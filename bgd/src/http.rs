//! Common parts of all HTTP clients: creating a client, reading a response up to a limit, and describing errors. This
//! module sends no requests. It never shows a URL, which may contain a secret.

#[cfg_attr(not(feature = "chats"), path = "http/absent.rs")]
mod tls;

use std::error::Error as _;

use reqwest::{Client, ClientBuilder, Response, redirect};

/// Returns a client builder. The client does not follow redirects; that is up to the caller.
pub fn client() -> ClientBuilder {
    tls::provide();
    Client::builder().redirect(redirect::Policy::none())
}

/// Returns a builder for plain HTTP directly to the named server, ignoring proxies from the environment.
pub fn plain_client() -> ClientBuilder {
    tls::without_root_certs(client().no_proxy())
}

/// Appends a response body to `body`, up to `limit` bytes in total. Returns whether the body is complete; does not wait
/// for the rest if it exceeds the limit.
///
/// # Errors
/// The response breaks off. `body` keeps the data received so far, also if the future is dropped.
pub async fn read(response: &mut Response, limit: usize, body: &mut Vec<u8>) -> Result<bool, reqwest::Error> {
    while let Some(chunk) = response.chunk().await? {
        let room = limit.saturating_sub(body.len());
        if chunk.len() > room {
            body.extend_from_slice(&chunk[..room]);
            return Ok(false);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(true)
}

/// Returns the innermost error; the outer ones only state that there is one.
pub fn root_cause(error: &reqwest::Error) -> String {
    let Some(mut cause) = error.source() else { return "the request can't be made".to_owned() };
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
