//! TLS to Redis: the files that the settings name, and the configuration that is made of them.
//!
//! Weir reads the files again after a failed connection: rotated certificates need no restart. A
//! server's certificate always has to be trusted. Only the check of the host name can be switched
//! off.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::time::{Duration, Instant};
use tokio_rustls::rustls::ClientConfig;

use crate::core::lock;
use crate::net::tls::{self, ClientOptions};
pub use crate::net::tls::{NameCheck, TlsError};

/// The shortest time between two reads of the files.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

// The settings that name the files. The main Redis and the one of per-second limits share them.
const CA_CERT: &str = "REDIS_TLS_CACERT";
const CLIENT_CERT: &str = "REDIS_TLS_CLIENT_CERT";
const CLIENT_KEY: &str = "REDIS_TLS_CLIENT_KEY";

/// Redis in the messages of errors.
pub(crate) const REDIS: tls::Peer = tls::Peer {
    name: "Redis",
    address: "REDIS_URL",
    authorities: CA_CERT,
    other_name: Some("set REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true"),
    identity: "REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY",
    without_tls: "write a port that does, or switch TLS off (REDIS_TLS, rediss:// in REDIS_URL)",
};

/// The files of certificates and keys, and what Weir verifies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the trusted authorities, in PEM; `None`: the system's certificates, or
    /// Mozilla's if the system has no certificates.
    pub ca_cert: Option<PathBuf>,
    /// The client certificate, followed by the intermediate certificates, in PEM. Needs
    /// `client_key`.
    pub client_cert: Option<PathBuf>,
    /// The private key of the client certificate, in PEM and not encrypted.
    pub client_key: Option<PathBuf>,
    /// Whether the host name is verified.
    pub name_check: NameCheck,
}

/// The TLS configuration for connections to Redis. Clones share it.
#[derive(Clone)]
pub struct Tls(Arc<TlsState>);

struct TlsState {
    options: ClientOptions,
    config: Mutex<Arc<ClientConfig>>,
    read_at: Mutex<Instant>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Tls").field(&self.0.options).finish()
    }
}

impl Tls {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn read(files: TlsFiles) -> Result<Self, TlsError> {
        let named = [
            (CA_CERT, files.ca_cert.as_deref()),
            (CLIENT_CERT, files.client_cert.as_deref()),
            (CLIENT_KEY, files.client_key.as_deref()),
        ];
        let options = ClientOptions::try_new(named, files.name_check)?;
        let config = Mutex::new(Arc::new(tls::client_config(&options)?));
        Ok(Self(Arc::new(TlsState {
            options,
            config,
            read_at: Mutex::new(Instant::now()),
        })))
    }

    /// The current configuration, for a new connection.
    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&lock(&self.0.config))
    }

    /// Reads the files again on Tokio's pool of blocking threads, at most once in two seconds.
    /// Files that cannot be used change nothing: the certificate may have been replaced before the
    /// key.
    pub(crate) fn reload(&self) {
        let state = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || state.reload());
    }
}

impl TlsState {
    fn reload(&self) {
        // Another thread that holds the lock is reading the files.
        let Ok(mut read_at) = self.read_at.try_lock() else {
            return;
        };
        if read_at.elapsed() < RELOAD_INTERVAL {
            return;
        }
        match tls::client_config(&self.options) {
            Ok(config) => {
                *lock(&self.config) = Arc::new(config);
            }
            Err(error) => {
                tracing::warn!("keeping the current certificates for TLS to Redis: {error}");
            }
        }
        *read_at = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The module `tls` tests what errors say of files.
    #[test]
    fn errors_name_the_settings_of_redis() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = Some(folder.path().join("missing.pem"));
        let table = [
            (
                TlsFiles {
                    ca_cert: missing.clone(),
                    ..TlsFiles::default()
                },
                ["REDIS_TLS_CACERT: ", "missing.pem"],
            ),
            (
                TlsFiles {
                    client_cert: missing.clone(),
                    ..TlsFiles::default()
                },
                ["REDIS_TLS_CLIENT_CERT needs ", "REDIS_TLS_CLIENT_KEY"],
            ),
            (
                TlsFiles {
                    client_key: missing.clone(),
                    ..TlsFiles::default()
                },
                ["REDIS_TLS_CLIENT_KEY needs ", "REDIS_TLS_CLIENT_CERT"],
            ),
            (
                TlsFiles {
                    client_cert: missing.clone(),
                    client_key: missing,
                    ..TlsFiles::default()
                },
                ["REDIS_TLS_CLIENT_CERT: ", "missing.pem"],
            ),
        ];
        for (files, parts) in table {
            let error = Tls::read(files).expect_err("unusable files").to_string();
            for part in parts {
                assert!(error.contains(part), "{part} is not in: {error}");
            }
        }
        assert!(
            Tls::read(TlsFiles {
                name_check: NameCheck::Skipped,
                ..TlsFiles::default()
            })
            .is_ok()
        );
    }
}
