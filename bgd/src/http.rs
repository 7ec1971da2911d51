//! What all that asks over HTTP has in common: how a client is made, how much of an answer is read, and what an error
//! says. It asks for nothing itself, and shows no address: there may be a secret in it.

#[cfg_attr(not(feature = "chats"), path = "http/absent.rs")]
mod tls;

use std::error::Error as _;

use reqwest::{Client, ClientBuilder, Response, redirect};

/// The beginnings of a client, which follows no redirect: that is for whoever asks.
pub fn client() -> ClientBuilder {
    tls::provide();
    Client::builder().redirect(redirect::Policy::none())
}

/// The beginnings of a client for plain HTTP to the server that is named, whatever proxy the environment names.
pub fn plain_client() -> ClientBuilder {
    tls::trust_nobody(client().no_proxy())
}

/// Reads an answer into `body`, up to `limit` bytes in all. Whether that was all of it; the rest is not waited for.
///
/// # Errors
/// It breaks off. What came before that is in `body`, as it is if this is dropped.
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

/// The innermost error: those around it say only that there is one.
pub fn root_cause(error: &reqwest::Error) -> String {
    let Some(mut cause) = error.source() else { return "the request can't be made".to_owned() };
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
