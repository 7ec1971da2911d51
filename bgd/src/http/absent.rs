//! What stands for `tls` in a build without channels that speak HTTPS: its clients speak plain HTTP only.

use reqwest::ClientBuilder;

/// Provides nothing.
pub fn provide() {}

/// A client that knows of no certificates trusts none.
pub fn trust_nobody(client: ClientBuilder) -> ClientBuilder {
    client
}
