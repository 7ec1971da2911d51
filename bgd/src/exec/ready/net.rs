//! Waits until a port is listened on, or an HTTP request is answered. No event reports that, so it is polled.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bgd_shared::ready::HttpUrl;
use tokio::net::TcpStream;

use super::looks::Looks;
use super::pauses::Pauses;
use crate::exec::http::Http;

/// The timeout of one attempt.
const TRY: Duration = Duration::from_secs(5);

/// Waits until this port accepts a connection; on this machine if there is no host. Reports to `looks` when it does not.
pub async fn until_connected(host: Option<&str>, port: u16, looks: &Looks) {
    let mut pauses = Pauses::new();
    while !matches!(tokio::time::timeout(TRY, connects(host, port)).await, Ok(true)) {
        looks.note_vain(looks.begin());
        pauses.pause().await;
    }
}

async fn connects(host: Option<&str>, port: u16) -> bool {
    match host {
        None => {
            is_of_another(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await)
                || is_of_another(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await)
        }
        Some(host) => is_of_another(TcpStream::connect((host, port)).await),
    }
}

/// Reports whether a connection goes to another socket: if nothing listens, the system may connect a socket to itself.
fn is_of_another(connected: io::Result<TcpStream>) -> bool {
    connected.is_ok_and(|stream| match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) => local != peer,
        _ => false,
    })
}

/// Waits until a GET of this URL is answered with a status from 200 to 399. Reports to `looks` when it is not.
pub async fn until_answered(url: &HttpUrl, looks: &Looks) {
    let http = match Http::new(&url.origin, None) {
        Ok(http) => http,
        // The URL was validated when it was submitted.
        Err(why) => {
            tracing::error!(%why, "no task can become ready that way");
            return std::future::pending().await;
        }
    };
    let mut pauses = Pauses::new();
    loop {
        // The status suffices, so the body is not read.
        if let Ok(Ok(answer)) = tokio::time::timeout(TRY, http.stream(&url.target)).await
            && (answer.status().is_success() || answer.status().is_redirection())
        {
            return;
        }
        looks.note_vain(looks.begin());
        pauses.pause().await;
    }
}
