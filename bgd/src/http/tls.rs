//! TLS, as clients have it: who encrypts, and which certificates are trusted.

use reqwest::ClientBuilder;

/// Has the same provider encrypt for all clients from now on.
pub fn provide() {
    // Whoever has set one first has set the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Makes a client trust no certificate, so that it need not load those of the system: that would take milliseconds
/// and memory.
pub fn trust_nobody(client: ClientBuilder) -> ClientBuilder {
    client.tls_certs_only([])
}
