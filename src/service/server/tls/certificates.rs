//! The certificate that Weir shows to its clients, and the authorities of its clients'
//! certificates: from files, which may be replaced at any time.
//!
//! The files are polled, as files of limits are: that works for files that are rewritten and for
//! the swap of `..data` in a Kubernetes volume. New files are used for new connections, after two
//! polls found the same content; open connections are kept. Files that cannot be used change
//! nothing.
//!
//! Sessions are not resumed: connections live for minutes, and without resumption each connection
//! verifies its client anew, with the current authorities.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio_rustls::rustls::server::NoServerSessionStorage;
use tokio_rustls::rustls::sign::SingleCertAndKey;
use tokio_rustls::rustls::{Error, ServerConfig};

use crate::live::files::Debounce;
use crate::net::tls::{self, ClientVerifier, Identity, PemFile, SubjectName, TlsError};
use crate::net::{background, clock};
use crate::observe::metrics::{Metrics, families};

/// The time between two polls. New files are used after at most two polls, and two more while they
/// are being written.
const POLL: Duration = Duration::from_millis(500);

/// The age at which a change is used although a file goes on changing.
const MOST: Duration = Duration::from_secs(5);

/// The protocol that Weir offers (RFC 9113, section 3.2). A client that offers none is accepted,
/// and speaks HTTP/2 too: Envoy Gateway's Envoys offer none.
const HTTP2: &[u8] = b"h2";

/// Weir's certificate, and the requirements for certificates of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The certificate and its key.
    pub identity: Identity,
    /// The authorities of the certificates that clients have to present; `None`: they need none.
    pub client_authorities: Option<PemFile>,
    /// The name for which the certificates of clients have to be valid. Needs `client_authorities`.
    pub client_name: Option<SubjectName>,
}

/// The certificates in use.
#[derive(Debug)]
pub struct Certificates {
    options: Options,
    current: ArcSwap<Current>,
    reloaded: AtomicU64,
    refused: AtomicU64,
    is_last_refused: AtomicBool,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    /// Expiry of the chain's first certificate, in seconds since 1970.
    expiry: Option<u64>,
}

/// Digest of the files' contents. The content of a file that cannot be read is its error.
impl Certificates {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn read(options: Options) -> Result<Arc<Self>, TlsError> {
        let current = Current::read(&options)?;
        Ok(Arc::new(Self {
            options,
            current: ArcSwap::from_pointee(current),
            reloaded: AtomicU64::default(),
            refused: AtomicU64::default(),
            is_last_refused: AtomicBool::default(),
        }))
    }

    /// The configuration for a new connection.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.load().config)
    }

    /// Shows the certificates in the metrics.
    pub fn register(self: &Arc<Self>, metrics: &Metrics) {
        let certificates = Arc::clone(self);
        metrics.register(move || {
            let count = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
            let is_good = !certificates.is_last_refused.load(Ordering::Relaxed);
            let mut samples = vec![
                families::CERTIFICATE_RELOADS.count(&["loaded"], count(&certificates.reloaded)),
                families::CERTIFICATE_RELOADS.count(&["refused"], count(&certificates.refused)),
                families::CERTIFICATE_LAST_RELOAD_SUCCESSFUL.count(&[], u64::from(is_good)),
            ];
            let expiry = certificates.current.load().expiry;
            samples.extend(expiry.map(|at| families::CERTIFICATE_EXPIRY.count(&[], at)));
            samples
        });
    }

    /// Logs the certificate, polls the files and uses changed ones, until the future is dropped.
    pub async fn watch(self: Arc<Self>) {
        self.current
            .load()
            .log("certificate of the gRPC port loaded");
        let mut debounce = Debounce::new(self.fingerprint());
        let poll = move || {
            let (found, now) = (self.fingerprint(), Instant::now());
            debounce.observe(found, now);
            if debounce.is_due(now, POLL, MOST) {
                self.reload();
                debounce.tried(found);
            }
            POLL
        };
        let error = background::repeat("weir-certificates", true, POLL, poll).await;
        tracing::error!(%error, "cannot start the thread that watches certificates; changes need a \
            restart");
    }

    fn reload(&self) {
        match Current::read(&self.options) {
            Ok(current) => {
                let current = Arc::new(current);
                self.current.store(Arc::clone(&current));
                current.log(
                    "certificate of the gRPC port replaced; open connections keep the previous one",
                );
                self.reloaded.fetch_add(1, Ordering::Relaxed);
                self.is_last_refused.store(false, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::error!("keeping the current certificate of the gRPC port: {error}");
                self.refused.fetch_add(1, Ordering::Relaxed);
                self.is_last_refused.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Digest of the files; the content of a file that cannot be read is its error.
    fn fingerprint(&self) -> u64 {
        let identity = &self.options.identity;
        let files = [&identity.certificate, &identity.key].into_iter();
        let mut hasher = DefaultHasher::new();
        for file in files.chain(&self.options.client_authorities) {
            match file.bytes() {
                Ok(bytes) => bytes.hash(&mut hasher),
                Err(error) => error.to_string().hash(&mut hasher),
            }
        }
        hasher.finish()
    }
}

impl Current {
    fn read(options: &Options) -> Result<Self, TlsError> {
        let provider = tls::provider();
        let key = options.identity.read()?;
        let expiry = tls::expiry(&key.cert);
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("ring has the ciphers of TLS 1.2 and 1.3");
        let builder = match &options.client_authorities {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let remedy =
                    "write the certificates of the authorities that signed those of the clients";
                let (roots, name) = (tls::authorities(Some(file))?, options.client_name.clone());
                let verifier = ClientVerifier::try_new(roots, name, provider);
                let verifier = verifier
                    .map_err(|error| file.unusable(&Error::General(error.to_string()), remedy))?;
                builder.with_client_cert_verifier(Arc::new(verifier))
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        config.alpn_protocols = vec![HTTP2.to_vec()];
        // Connections live for minutes: resuming sessions would save little. Without it, each
        // connection verifies its client anew.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
            expiry,
        })
    }

    fn log(&self, message: &str) {
        let now = clock::now().0 / 1_000_000;
        let Some(expiry) = self.expiry else {
            return tracing::info!("{message}");
        };
        let hours_left = expiry.saturating_sub(now) / 3_600;
        if expiry <= now {
            tracing::error!(
                "{message}; it has expired, and clients that verify it reject it: renew it"
            );
        } else {
            tracing::info!(hours_left, "{message}");
        }
    }
}
