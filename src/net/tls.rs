//! TLS as all of Weir uses it: the gRPC listener, and the clients of Redis and of a control plane.
//!
//! `pem` reads certificates and keys, `verify` verifies the certificates of peers, and `client` makes
//! the configuration of a client of both, with the authorities that are trusted. Functions here block while they read files, and know no sockets. ring is the only provider
//! of cryptography.

mod client;
mod hints;
pub(crate) mod pem;
mod verify;

use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

pub use client::{ClientOptions, authorities, client_config, http2_client_config};
pub use hints::{Hint, Peer, hint, is_about_certificates};
pub use pem::{FileSetting, Identity, PemFile, TlsError};
pub use verify::{ClientVerifier, NameCheck, SubjectName, UntrustedAuthority, expiry};

/// The algorithms of ring.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

#[cfg(test)]
mod tests;
