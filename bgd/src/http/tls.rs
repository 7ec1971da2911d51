//! TLS settings of clients: the crypto provider, and the trusted certificates.

use reqwest::ClientBuilder;

/// Installs the crypto provider that all clients use from now on.
pub fn provide() {
    // Fails only if a provider is installed already, which is the same one.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Makes a client trust no certificates, so that it does not load the system's, which costs milliseconds and memory.
pub fn without_root_certs(client: ClientBuilder) -> ClientBuilder {
    client.tls_certs_only([])
}
