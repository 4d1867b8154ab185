//! TLS handshakes, on threads of their own.
//!
//! Unfinished handshakes are bounded in time and in memory. When the memory is used up, the oldest
//! handshake ends, as with all unfinished work of clients. A well-behaved client needs a round trip
//! or two, and is hardly ever the oldest. While clients begin more handshakes than the threads can
//! sign, no more connections are accepted. New ones wait in the kernel, because closing them would
//! hit good clients as hard as attackers.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, yield_now};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{AlertDescription, Error, InvalidMessage, PeerIncompatible};
use tokio_util::either::Either;

use super::Session;
use super::certificates::Certificates;
use crate::net::background;
use crate::net::bounds::{Cut, MemoryBudget};
use crate::net::tls::is_about_certificates;
use crate::observe::metrics::{Metrics, families};
use crate::service::server::client_errors::{self, ClientErrorLog};
use crate::service::server::connection::{NewConnection, refuse_protocol};
use crate::service::server::open_connections::OpenConnection;
use crate::service::server::socket::{Stream, attach, client, detach};
use crate::service::server::worker::Workers;

/// Number of workers for each handshake thread. A thread makes about a thousand handshakes a second
/// with an RSA key of 2048 bits.
const WORKERS_PER_THREAD: usize = 4;

/// Maximum number of accepted connections that wait for such a thread: as many as it takes at a
/// time.
pub(crate) const MAX_WAITING: usize = 128;

/// The time from the first byte to the end of a handshake. A client on another continent needs less
/// than one second.
pub(crate) const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);

/// Bytes that each unfinished handshake is charged: rustls keeps at most 64 KiB of a handshake
/// message, and its own state.
pub(crate) const HANDSHAKE_BYTES: usize = 80 << 10;

/// The first byte of TLS: a record with a message of a handshake (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 0x16;

/// Counts of handshakes by outcome, for the metrics.
#[derive(Debug, Default)]
struct HandshakeOutcomes {
    completed: AtomicU64,
    failed: AtomicU64,
    late: AtomicU64,
    displaced: AtomicU64,
    /// A clone for each that is unfinished.
    open: Arc<()>,
}

/// State that the handshakes of all threads share.
#[derive(Debug)]
struct SharedHandshakes {
    certificates: Arc<Certificates>,
    workers: Arc<Workers>,
    unfinished: MemoryBudget,
    outcomes: HandshakeOutcomes,
    error_log: ClientErrorLog,
    metrics: Arc<Metrics>,
}

/// The threads of the handshakes, and their queues of new connections.
#[derive(Debug)]
pub struct Handshakes {
    queues: Vec<mpsc::Sender<NewConnection>>,
    next: AtomicUsize,
}

impl Handshakes {
    /// Starts the threads for this number of workers. They end when this is dropped.
    ///
    /// # Errors
    /// The operating system's, when it gives no thread or no event queue.
    pub fn start(
        certificates: Arc<Certificates>,
        workers: Arc<Workers>,
        unfinished: MemoryBudget,
        metrics: &Arc<Metrics>,
    ) -> io::Result<Self> {
        let threads = workers.count().div_ceil(WORKERS_PER_THREAD).max(1);
        let shared = Arc::new(SharedHandshakes {
            certificates,
            workers,
            unfinished,
            outcomes: HandshakeOutcomes::default(),
            error_log: ClientErrorLog::default(),
            metrics: Arc::clone(metrics),
        });
        let shown = Arc::downgrade(&shared);
        metrics.register(move || {
            shown
                .upgrade()
                .map_or_else(Vec::new, |shared| shared.outcomes.samples())
        });
        let mut queues = Vec::with_capacity(threads);
        for index in 0..threads {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (queue, incoming) = mpsc::channel(MAX_WAITING);
            let shared = Arc::clone(&shared);
            let run = move || runtime.block_on(serve(incoming, shared));
            background::spawn(format!("weir-tls-{index}"), run)?;
            queues.push(queue);
        }
        Ok(Self {
            queues,
            next: AtomicUsize::new(0),
        })
    }

    /// Waits until the queue of the next thread has space.
    pub(in crate::service::server) async fn ready(&self) {
        let next = self.next.load(Ordering::Relaxed) % self.queues.len();
        // Fails when the thread has ended; then `begin` does too.
        drop(self.queues[next].reserve().await);
    }

    /// Hands a connection to the next thread in turn. False: its queue is full, and the connection
    /// is closed.
    pub(in crate::service::server) fn begin(&self, connection: NewConnection) -> bool {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.queues.len();
        self.queues[next].try_send(connection).is_ok()
    }
}

async fn serve(mut incoming: mpsc::Receiver<NewConnection>, shared: Arc<SharedHandshakes>) {
    let mut handshakes = JoinSet::new();
    loop {
        tokio::select! {
            received = incoming.recv() => match received {
                Some(connection) => {
                    handshakes.spawn(shake_hands(connection, Arc::clone(&shared)));
                    // Handshakes in progress continue before a further one begins; otherwise all
                    // would time out before one is done.
                    yield_now().await;
                }
                None => return,
            },
            Some(_) = handshakes.join_next() => {}
        }
    }
}

async fn shake_hands(connection: NewConnection, shared: Arc<SharedHandshakes>) {
    let NewConnection { stream, open, .. } = connection;
    let Ok(mut stream) = attach(stream) else {
        return;
    };
    let outcomes = &shared.outcomes;
    let unfinished = Arc::clone(&outcomes.open);
    let charge = shared.unfinished.charge(HANDSHAKE_BYTES);
    let client = client(&stream);
    let handshake = async {
        if is_plaintext(&stream).await? {
            let error_log = &shared.error_log;
            error_log.report(client_errors::PLAINTEXT_TO_TLS, client, "");
            refuse_protocol(&mut stream, "gRPC inside TLS").await?;
            return Err(io::ErrorKind::InvalidData.into());
        }
        let config = shared.certificates.config();
        let acceptor = TlsAcceptor::from(Arc::clone(&config));
        let (stream, connection) = acceptor.accept(stream).await?.into_inner();
        let connection = Box::new(connection);
        Ok((stream, Session { connection, config }))
    };
    let must_end = open.must_end();
    let handshake = async {
        tokio::select! {
            done = handshake => done,
            () = must_end => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    };
    let done = charge.within(HANDSHAKE_WITHIN, handshake).await;
    let outcome = match &done {
        Ok(Ok(_)) => &outcomes.completed,
        Ok(Err(_)) => &outcomes.failed,
        Err(Cut::Late) => &outcomes.late,
        Err(Cut::Oldest) => &outcomes.displaced,
    };
    outcome.fetch_add(1, Ordering::Relaxed);
    match done {
        Ok(Ok((stream, session))) => {
            drop((charge, unfinished));
            hand_over(stream, session, open, &shared);
        }
        Ok(Err(error)) => shared.complain(&error, client),
        Err(_) => {}
    }
}

fn hand_over(stream: Stream, session: Session, open: OpenConnection, shared: &SharedHandshakes) {
    let is_assigned = detach(stream).is_ok_and(|stream| {
        let tls = Some(session);
        let connection = NewConnection { stream, tls, open };
        shared.workers.assign(connection)
    });
    if !is_assigned {
        shared.metrics.connection_refused();
    }
}

/// Whether the client does not begin with TLS. Peeks at the bytes that have arrived.
async fn is_plaintext(stream: &Stream) -> io::Result<bool> {
    let mut first = [0];
    match stream {
        Either::Left(stream) => Ok(stream.peek(&mut first).await? > 0 && first[0] != TLS_HANDSHAKE),
        // tokio has no peek for unix sockets; rustls detects it.
        Either::Right(_) => Ok(false),
    }
}

impl SharedHandshakes {
    /// Reports why a handshake failed. A client that only disconnects, as a probe of the port does,
    /// is not reported.
    fn complain(&self, error: &io::Error, client: Option<IpAddr>) {
        let Some(error) = error
            .get_ref()
            .and_then(|error| error.downcast_ref::<Error>())
        else {
            return;
        };
        let complaint = match error {
            Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
                client_errors::PLAINTEXT_TO_TLS
            }
            Error::NoCertificatesPresented => client_errors::NO_CLIENT_CERTIFICATE,
            Error::InvalidCertificate(_) => client_errors::CLIENT_CERTIFICATE,
            Error::AlertReceived(
                AlertDescription::CloseNotify | AlertDescription::UserCanceled,
            ) => return,
            Error::AlertReceived(alert) if is_about_certificates(*alert) => {
                client_errors::REFUSED_BY_CLIENT
            }
            Error::NoApplicationProtocol => client_errors::NO_HTTP2,
            Error::PeerIncompatible(
                PeerIncompatible::SupportedVersionsExtensionRequired
                | PeerIncompatible::Tls12NotOfferedOrEnabled,
            ) => client_errors::OLD_TLS,
            _ => client_errors::OTHER_HANDSHAKE,
        };
        self.error_log.report(complaint, client, &error.to_string());
    }
}

impl HandshakeOutcomes {
    fn samples(&self) -> Vec<families::Sample> {
        let of = |outcome: &str, cell: &AtomicU64| {
            families::TLS_HANDSHAKES.count(&[outcome], cell.load(Ordering::Relaxed))
        };
        vec![
            of("completed", &self.completed),
            of("failed", &self.failed),
            of("late", &self.late),
            of("displaced", &self.displaced),
            families::TLS_HANDSHAKES_OPEN.count(&[], Arc::strong_count(&self.open) as u64 - 1),
        ]
    }
}
