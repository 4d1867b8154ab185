//! TLS as all of Weir uses it: the gRPC listener, and the clients of Redis and of a control plane.
//!
//! `pem` reads certificates and keys, `authorities` says which authorities are trusted, `verify`
//! verifies the certificates of peers, and `client` makes the configuration of a client of all of
//! them. Functions here block while they read files, and know no sockets. ring is the only provider
//! of cryptography.

mod authorities;
mod client;
mod hints;
pub(crate) mod pem;
mod validity;
mod verify;

use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

pub use authorities::authorities;
pub use client::{ClientOptions, client_config, http2_client_config};
pub use hints::{Hint, Peer, hint, is_about_certificates};
pub use pem::{FileSetting, Identity, PemFile, TlsError};
pub use validity::expiry;
pub use verify::{ClientVerifier, NameCheck, SubjectName, UntrustedAuthority};

/// The algorithms of ring.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

#[cfg(test)]
mod tests;
