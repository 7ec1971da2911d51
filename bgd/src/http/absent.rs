//! Stub for `tls` in builds without HTTPS channels: clients speak plain HTTP only.

use reqwest::ClientBuilder;

/// Does nothing.
pub fn provide() {}

/// Returns the builder unchanged: a client without TLS trusts no certificates.
pub fn without_root_certs(client: ClientBuilder) -> ClientBuilder {
    client
}
