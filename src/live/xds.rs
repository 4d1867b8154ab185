//! Limits from a control plane: a client of xDS, state of the world over ADS. Envoy Gateway and
//! Envoy AI Gateway serve it, and no delta.
//!
//! `protocol` decides which request to send and when, `connect` and `session` are the connection,
//! and `applier` puts configurations in force with `configuration`, each on a thread of its own. A
//! control plane that is away changes nothing: the last good configuration stays in force, and
//! `cache` keeps it in a file for a process that starts meanwhile. `live` decides nothing
//! differently for it: rules are rules.
//!
//! Resources do not expire. A control plane may set a time to live, which Weir ignores, because
//! limits that vanish with their control plane let everything pass.

mod applier;
mod cache;
pub(crate) mod configuration;
pub(crate) mod connect;
mod protocol;
mod report;
mod resources;
mod session;
mod status;
pub(crate) mod weight;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::Live;
use crate::core::proto::xds::Node;
use crate::limits::rules::compile::Problem;
use crate::limits::rules::domains::XdsOptions;
use crate::net::background;
use crate::observe::metrics::Metrics;
use applier::{Applier, Inbox};
use protocol::RefusalPace;
use session::Connection;
use status::Status;

pub use connect::Server;
pub use session::{BackoffOptions, Header};

/// The largest response by default: some 400,000 limits of Envoy Gateway. gRPC's own 4 MiB is too
/// little for large installations, and without a bound a broken control plane could take all
/// memory.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The shortest time from the end of one compilation to the next: a control plane that pushes
/// without a pause costs little CPU, and its latest configuration is in force a second later.
pub(crate) const MIN_COMPILE_INTERVAL: Duration = Duration::from_secs(1);

/// Threads that resolve names. One may hang for longer than a connection waits for it.
const MAX_RESOLVERS: usize = 4;

/// Answers on their way to the connection. There is at most one a second.
const MAX_ANSWERS: usize = 64;

/// Options of the connection to a control plane.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its address, and how to speak to it.
    pub server: Server,
    /// Weir's identity. The control plane chooses the configuration by it.
    pub node: Node,
    /// Headers of each stream.
    pub headers: Vec<Header>,
    /// The largest response, and the most bytes of all resources together.
    pub max_message_bytes: usize,
    /// The most memory of all resources together.
    pub max_memory: u64,
    /// The waits between attempts to connect.
    pub backoff: BackoffOptions,
    /// The time between two PINGs of HTTP/2 on a connection.
    pub ping: Duration,
    /// The file of the last good configuration.
    pub cache_file: Option<PathBuf>,
    /// How the limits are compiled, without the overlay.
    pub rules: XdsOptions,
    /// The file of settings for which the messages of a control plane have no field.
    pub overlay_file: Option<PathBuf>,
}

/// A client that has not connected yet.
pub struct Client {
    options: Options,
    metrics: Arc<Metrics>,
    status: Status,
    applier: Applier,
}

impl Client {
    /// Reads the overlay file, and puts the saved configuration in force, if there is one. Returns
    /// the problems of the overlay file too. If the caller keeps the client, it continues without
    /// an overlay until the file can be used.
    pub fn new(live: Arc<Live>, options: Options, metrics: Arc<Metrics>) -> (Self, Vec<Problem>) {
        let (status, shared) = (Status::default(), Arc::clone(&metrics));
        let (applier, problems) = Applier::open(live, shared, status.clone(), &options);
        let shown = status.clone();
        metrics.register(move || shown.samples());
        let client = Self {
            options,
            metrics,
            status,
            applier,
        };
        (client, problems)
    }

    /// Follows the control plane until the future is dropped.
    pub async fn follow(self) {
        let inbox = Arc::<Inbox>::default();
        let (answers, received) = mpsc::channel(MAX_ANSWERS);
        // Dropping this future drops `_alive`, which ends both threads.
        let (_alive, ended) = watch::channel(());
        let connection = Connection {
            options: self.options,
            status: self.status,
            inbox: Arc::clone(&inbox),
            answers: received,
            pace: RefusalPace::default(),
        };
        let work = self.applier.run(inbox, answers);
        let applied = spawn("weir-limits", ended.clone(), work);
        let connected = spawn("weir-xds", ended, async {
            // A control plane may send without a pause.
            background::lower_priority();
            connection.run().await;
        });
        if let Err(error) = applied.and(connected) {
            self.metrics.panicked();
            tracing::error!(%error, "cannot start the threads of the control plane client; restart \
                Weir");
        }
        std::future::pending::<()>().await;
    }
}

/// Runs `work` on a thread of its own until the sender of `ended` is dropped.
fn spawn(
    name: &str,
    mut ended: watch::Receiver<()>,
    work: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let run = move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().max_blocking_threads(MAX_RESOLVERS);
        let runtime = match builder.build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let what = "cannot start the control plane client";
                return tracing::error!(%error, "{what}; restart Weir");
            }
        };
        runtime.block_on(async {
            tokio::select! {
                () = work => {}
                _ = ended.changed() => {}
            }
        });
        // A name that is being resolved may take long.
        runtime.shutdown_background();
    };
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(run).map(drop)
}
