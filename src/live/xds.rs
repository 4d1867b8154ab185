//! Limits from a control plane: a client of xDS, state of the world over ADS. Envoy Gateway and
//! Envoy AI Gateway serve it, and no delta.
//!
//! `protocol` says what to send and when, `connect` and `session` are the connection, and `applier`
//! puts configurations in force with `configuration`, each on a thread of its own. A control plane
//! that is away changes nothing: the last good configuration stays in force, and `cache` keeps it
//! in a file for a process that starts meanwhile. `live` decides nothing differently for it: rules
//! are rules.
//!
//! Resources do not expire. A control plane may set a time to live, which Weir ignores, because
//! limits that vanish with their control plane let everything pass.

mod applier;
mod backoff;
mod cache;
pub(crate) mod configuration;
pub(crate) mod connect;
mod inbox;
mod overlay;
mod protocol;
mod report;
mod resources;
mod session;
mod status;
pub(crate) mod weight;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::Live;
use crate::core::proto::xds::Node;
use crate::limits::rules::compile::Problem;
use crate::limits::rules::domains::XdsOptions;
use crate::net::background;
use crate::net::throttle::Throttle;
use crate::observe::metrics::Metrics;
use applier::{Answer, Applier};
use backoff::{Backoff, Ended};
use cache::Cache;
use configuration::{Bounds, Configuration};
use inbox::Inbox;
use overlay::OverlayFile;
use protocol::RefusalPace;
use session::{Context, End};
use status::Count;

pub use backoff::Options as BackoffOptions;
pub use connect::Server;
pub use session::Header;
pub use status::{State, Status};

/// The largest response, unless the settings say otherwise: some 400,000 limits of Envoy Gateway.
/// gRPC's own 4 MiB is too little for large installations, and without a bound a broken control
/// plane could take all memory.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The shortest time from the end of one compilation to the next: a control plane that pushes
/// without a pause costs little CPU, and its latest configuration is in force a second later.
pub(crate) const MIN_COMPILE_INTERVAL: Duration = Duration::from_secs(1);

/// Silence of a new stream that is worth a line. It is no error: a server has nothing to say while
/// it has no configuration for the node.
const SILENCE: Duration = Duration::from_secs(10);

/// Threads that resolve names. One may hang for longer than a connection waits for it.
const MAX_RESOLVERS: usize = 4;

/// Different failures that are logged in this time.
const MAX_FAILURES: usize = 5;

/// Answers on their way to the connection. There is one a second at most.
const MAX_ANSWERS: usize = 64;

/// How to get limits from a control plane.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it is.
    pub server: Server,
    /// Who Weir is. The control plane chooses the configuration by it.
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
    /// Where the last good configuration is kept.
    pub cache_file: Option<PathBuf>,
    /// How the limits are compiled, without the overlay.
    pub rules: XdsOptions,
    /// The file with what the messages have no field for.
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
    /// the problems of the overlay file too; without the client being dropped, it goes on without
    /// an overlay until the file can be used.
    #[must_use]
    pub fn new(live: Arc<Live>, options: Options, metrics: Arc<Metrics>) -> (Self, Vec<Problem>) {
        let status = Status::default();
        let (overlay, problems) =
            OverlayFile::open(options.overlay_file.clone(), options.rules.clone());
        let bounds = Bounds {
            max_bytes: options.max_message_bytes,
            max_memory: options.max_memory,
        };
        let configuration = Configuration::new(overlay.options().clone(), bounds);
        let cache = options
            .cache_file
            .clone()
            .map(|path| Cache::new(path, options.node.id.clone(), options.max_message_bytes));
        let mut applier = Applier::new(
            live,
            Arc::clone(&metrics),
            status.clone(),
            (configuration, overlay),
            cache,
        );
        applier.restore();
        let shown = status.clone();
        metrics.register(Box::new(move || shown.samples()));
        (
            Self {
                options,
                metrics,
                status,
                applier,
            },
            problems,
        )
    }

    /// Follows the control plane until the future is dropped.
    pub async fn follow(self) {
        let Self {
            options,
            metrics,
            status,
            applier,
        } = self;
        let inbox = Arc::new(Inbox::default());
        let (answers, received) = mpsc::channel(MAX_ANSWERS);
        let (_alive, ended) = oneshot::channel::<()>();
        let _ending = Ending(Arc::clone(&inbox));
        let applied = {
            let inbox = Arc::clone(&inbox);
            spawn("weir-limits", move || applier.run(&inbox, &answers))
        };
        let connected = spawn("weir-xds", move || {
            background::lower_priority();
            // It has no work but the connection.
            let runtime = match tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(MAX_RESOLVERS)
                .build()
            {
                Ok(runtime) => runtime,
                Err(error) => {
                    return tracing::error!(%error, "the client of the control plane cannot start; \
                        restart weir");
                }
            };
            let connection = Connection {
                options,
                status,
                inbox,
                answers: received,
            };
            runtime.block_on(async {
                tokio::select! {
                    () = connection.run() => {}
                    _ = ended => {}
                }
            });
            // A name that is being resolved may take long.
            runtime.shutdown_background();
        });
        if let Err(error) = applied.and(connected) {
            metrics.panicked();
            tracing::error!(%error, "the threads of the control plane's client cannot start; \
                restart weir");
        }
        std::future::pending::<()>().await;
    }
}

/// Ends the thread that compiles when the client is dropped.
struct Ending(Arc<Inbox>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map(drop)
}

/// The connection to the control plane.
struct Connection {
    options: Options,
    status: Status,
    inbox: Arc<Inbox>,
    answers: mpsc::Receiver<Answer>,
}

impl Connection {
    /// Connects, follows the stream to its end, waits, and connects again.
    async fn run(mut self) {
        let (mut backoff, mut pace, mut failures) = (
            Backoff::new(self.options.backoff.clone()),
            RefusalPace::default(),
            Failures::default(),
        );
        let mut is_reported = false;
        for number in 0.. {
            self.status.set(State::Connecting);
            let End { ended, reason } = match connect::connect(&self.options).await {
                Ok(channel) => {
                    self.status.count(Count::Connected);
                    if !std::mem::replace(&mut is_reported, true) {
                        let (server, node) = (&self.options.server, &self.options.node.id);
                        tracing::info!(%server, node, "connected to the control plane");
                    }
                    let context = Context {
                        options: &self.options,
                        status: &self.status,
                        inbox: &self.inbox,
                        answers: &mut self.answers,
                        pace: &mut pace,
                        number,
                    };
                    session::follow(channel, context).await
                }
                Err(reason) => {
                    self.status.count(Count::ConnectFailed);
                    End {
                        ended: Ended::NotConnected,
                        reason,
                    }
                }
            };
            self.status.set(State::Connecting);
            if failures.is_new(&reason, Instant::now()) {
                is_reported = false;
                let server = &self.options.server;
                tracing::warn!(%server, "no connection to the control plane: {reason}; the limits \
                    in force stay, and Weir connects again");
            }
            tokio::time::sleep(backoff.next(ended, fastrand::f64())).await;
        }
    }
}

/// Failures that were logged lately, each with its lines.
#[derive(Debug, Default)]
struct Failures(Vec<(String, Throttle)>);

impl Failures {
    /// Whether a failure deserves a line: the same one does once a minute, and so do only a few
    /// different ones.
    fn is_new(&mut self, reason: &str, now: Instant) -> bool {
        self.0.retain(|(_, lines)| !lines.is_due(now));
        let is_new = self.0.len() < MAX_FAILURES && self.0.iter().all(|(known, _)| known != reason);
        if is_new {
            let mut lines = Throttle::default();
            lines.admit(now);
            self.0.push((reason.to_owned(), lines));
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_logged_once_a_minute_and_few_different_ones_are() {
        const MINUTE: Duration = Duration::from_secs(60);
        let (begin, mut failures) = (Instant::now(), Failures::default());
        assert!(failures.is_new("refused", begin));
        assert!(!failures.is_new("refused", begin + MINUTE / 2));
        assert!(failures.is_new("timeout", begin + MINUTE / 2));
        assert!(failures.is_new("refused", begin + MINUTE));
        let later = begin + MINUTE * 10;
        let logged = (0..1_000)
            .filter(|number| failures.is_new(&number.to_string(), later))
            .count();
        assert_eq!(logged, MAX_FAILURES);
    }
}
