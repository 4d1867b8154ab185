//! The process: start-up, serving, draining and exit.
//!
//! One control thread accepts connections, serves HTTP, sweeps the stores and receives signals.
//! Limit files are read on a thread of their own, and long work (a scrape, a large JSON body) runs
//! on blocking threads. The workers answer gRPC requests.
//!
//! After SIGTERM the process serves for `DRAIN_DELAY` (5 s) while it reports itself unhealthy:
//! clients find another replica before connections end.

#![expect(
    clippy::disallowed_methods,
    reason = "tasks of the control thread, all of which end with `run`"
)]

mod health;
mod limits;
mod redis;
mod stores;

use std::fmt::Display;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tonic_health::ServingStatus;

use crate::admin::api::{self, Access};
use crate::admin::debug;
use crate::limiter::{Limiter, outages};
use crate::limits::rules::compile::Problem;
use crate::live::Live;
use crate::live::overrides::Registry;
use crate::net::bounds::{MemoryBudget, connections_after_raise};
use crate::net::http;
use crate::net::{background, dial, heap};
use crate::observe::exporters::{prometheus, statsd};
use crate::observe::health::{Health, Status};
use crate::observe::metrics::{Core, Metrics, families};
use crate::observe::subjects::Subjects;
use crate::observe::telemetry;
use crate::observe::traces::{self, TraceSpan, Traces};
use crate::process::settings::Settings;
use crate::service::pages::{self, Pages};
use crate::service::rls::respond::Framed;
use crate::service::rls::{self, DecisionFilter, RefusalLog, Rls};
use crate::service::server::{
    self, Acceptor, ClientBounds, GrpcHealth, Handshakes, Listener, Services, Workers,
};
use health::Conditions;
use stores::Stores;

/// Grace period for requests in flight when the process ends.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// Time for the last flush to a StatsD server that may hang.
const LAST_FLUSH: Duration = Duration::from_secs(3);

/// The reason why the process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listener cannot be opened.
    #[error("cannot listen on {address} for {listener}: {error}; {}", remedy(.error))]
    Listen {
        /// The name of the listener: grpc, http, prometheus or debug.
        listener: &'static str,
        address: String,
        /// The operating system's reason.
        error: io::Error,
    },
    /// The limit files, or the overlay file, cannot be used. Without limits, Weir would allow every
    /// request.
    #[error("the limit files cannot be used")]
    Limits(Vec<Problem>),
    /// The log cannot be started.
    #[error("LOG_LEVEL")]
    Logs(#[from] telemetry::Error),
    /// The export of traces cannot be started.
    #[error(transparent)]
    Traces(#[from] traces::Error),
    /// The operating system gives no thread or no event queue.
    #[error("the operating system gives no thread or event queue")]
    System(#[from] io::Error),
}

/// Serves until a signal ends the process.
///
/// # Errors
/// [`StartError`]; once Weir serves, only a signal ends it.
pub fn serve(settings: Settings) -> Result<(), StartError> {
    heap::prepare();
    // Held to the end, to write the last log lines.
    let logs = telemetry::init(&settings.log_level, settings.log_format)?;
    let traces = settings.traces.clone().map(traces::start).transpose()?;
    // Its blocking threads serve scrapes and read JSON bodies, at a lower priority than the
    // workers.
    let runtime = Builder::new_current_thread()
        .enable_all()
        .on_thread_start(background::lower_priority)
        .build()?;
    let ended = runtime.block_on(run(settings, &logs, traces.as_ref()));
    // Does not wait for blocking threads: the readers of their answers are gone.
    runtime.shutdown_background();
    ended
}

async fn run(
    settings: Settings,
    logs: &telemetry::Logs,
    traces: Option<&Traces>,
) -> Result<(), StartError> {
    // From here on: before, a signal ends the process at once.
    let mut signals = shutdown_signals();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        workers = settings.workers,
        "weir starts"
    );
    log_memory(&settings);
    let options = connections(settings.server);
    log_warnings(&settings);
    let (shared, limits) = Shared::load(&settings, logs, traces)?;
    let conditions = shared.conditions(&settings);
    let (health, metrics) = (&shared.parts.health, &shared.parts.metrics);
    health.report(conditions.status());
    let listeners = Listeners::open(&settings)?;
    let grpc_health = GrpcHealth::new();
    let rls = rls::Options {
        tracer: traces.map(|traces| traces.tracer.clone()),
        ..settings.rls.clone()
    };
    let bounds = ClientBounds::new(settings.memory.0.unfinished);
    let unfinished = || bounds.unfinished.clone();
    let services = shared.services(rls.clone(), grpc_health.clone(), bounds.clone());
    let workers = Arc::new(Workers::start(settings.workers, options, services)?);
    let debug = open_debug(&settings);

    let (stop, stopping) = watch::channel(false);
    let rls = shared.rls(Core(settings.workers), shared.parts.limiter.clone(), &rls);
    let rls = settings.http_json.then(|| Arc::new(rls));
    let pages = shared.pages(unfinished(), rls);
    let acceptor = acceptor(&settings, &workers, &bounds, metrics)?;
    shared.start_overrides().await;
    let (counted, stopped) = (Arc::clone(metrics), stopping.clone());
    let accepting = server::accept(listeners.grpc, acceptor, options, counted, stopped);
    let accepting = tokio::spawn(accepting);
    let start_statsd = |options| statsd::Exporter::start(Arc::clone(metrics), options);
    let statsd = settings.statsd.clone().map(start_statsd).transpose()?;
    if let Some((at, options)) = listeners.prometheus {
        let pages = prometheus::Pages::new(Arc::clone(metrics), options);
        tokio::spawn(http::serve(at, pages, unfinished(), stopping.clone()));
    }
    if let Some(at) = debug {
        let pages = debug::Pages::new(Arc::clone(&shared.parts));
        tokio::spawn(http::serve(at, pages, unfinished(), stopping.clone()));
    }
    shared.start_background(limits, conditions);
    let publishing = tokio::spawn(publish_health(health.clone(), grpc_health.clone()));
    let pages = http::serve(listeners.http, pages, unfinished(), stopping.clone());
    let pages = tokio::spawn(pages);

    drain_on_signal(&settings, health, &mut signals).await;
    stop.send_replace(true);
    // Ends first: a later change of the health would set the services that are cleared below.
    publishing.abort();
    let drained = async {
        // Also removes a unix socket.
        let _ = accepting.await;
        end_health_watches(grpc_health).await;
        let workers = tokio::task::spawn_blocking(move || workers.drain(SHUTDOWN_GRACE));
        let _ = tokio::join!(workers, tokio::time::timeout(SHUTDOWN_GRACE, pages));
        // No worker adds to it now.
        shared.stores.write_usage().await;
        // The requests in flight are counted too.
        if let Some(statsd) = statsd {
            let flushed = tokio::task::spawn_blocking(|| statsd.stop());
            let _ = tokio::time::timeout(LAST_FLUSH, flushed).await;
        }
    };
    tokio::select! {
        () = drained => tracing::info!("weir stopped"),
        _ = next_signal(&mut signals) => tracing::warn!("second signal received: aborting requests in \
            flight"),
    }
    Ok(())
}

/// The listeners without which a process does not start.
struct Listeners {
    grpc: Listener,
    http: TcpListener,
    prometheus: Option<(TcpListener, prometheus::Options)>,
}

impl Listeners {
    fn open(settings: &Settings) -> Result<Self, StartError> {
        let grpc = Listener::open(&settings.grpc);
        let prometheus = settings
            .prometheus
            .clone()
            .map(|port| open("prometheus", port.address).map(|listener| (listener, port.options)));
        Ok(Self {
            grpc: opened("grpc", &settings.grpc, grpc, ToString::to_string)?,
            http: open("http", settings.http)?,
            prometheus: prometheus.transpose()?,
        })
    }
}

/// A process whose debug port is in use serves all the same, as envoyproxy/ratelimit does.
fn open_debug(settings: &Settings) -> Option<TcpListener> {
    open("debug", settings.debug?)
        .inspect_err(|error| tracing::error!("{error}, or set DEBUG_PORT"))
        .ok()
}

fn open(name: &'static str, at: server::TcpAddress) -> Result<TcpListener, StartError> {
    opened(name, &at, server::listen(at), |listener| {
        listener
            .local_addr()
            .map_or_else(|error| error.to_string(), |address| address.to_string())
    })
}

/// The parts that the listeners share.
#[derive(Clone)]
struct Shared {
    parts: Arc<api::Parts>,
    stores: Stores,
}

impl Shared {
    /// Loads the limits, and makes the parts that decide by them. Changes of the limits have to be
    /// followed by the returned future.
    fn load(
        settings: &Settings,
        logs: &telemetry::Logs,
        traces: Option<&Traces>,
    ) -> Result<(Self, impl Future<Output = ()> + Send + use<>), StartError> {
        let started_at = api::status::now();
        // Counters for each worker, and for the control thread, which decides `/json`.
        let metrics = Metrics::with_options(settings.workers + 1, settings.metrics);
        let live = Arc::new(Live::new(Arc::clone(&metrics)));
        let limits = limits::load(settings, &live, &metrics)?;
        let stores = Stores::new(settings, &metrics);
        let overrides = overrides(settings, &live, &stores, &metrics);
        let dropped = logs.dropped();
        metrics.register(move || [families::LOG_LINES_DROPPED.count(&[], dropped())]);
        metrics.register(|| [families::DNS_FALLBACKS.count(&[], dial::unresolved())]);
        if let Some(traces) = traces {
            metrics.register(traces.counts());
        }
        let debug = match settings.debug {
            Some(server::TcpAddress::One(address)) => address.ip(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        let parts = api::Parts {
            live,
            metrics,
            subjects: Subjects::new(settings.workers + 1),
            health: Health::default(),
            limiter: stores.limiter(),
            plan: settings.rls.plan.clone(),
            deployments: stores.deployments(),
            usage: stores.usage.clone(),
            overrides,
            history: Arc::default(),
            outage: outages::UnderWay::default(),
            started_at,
            access: Access::new(debug, settings.admin_tokens.clone()),
        };
        let parts = Arc::new(parts);
        Ok((Self { parts, stores }, limits))
    }

    fn conditions(&self, settings: &Settings) -> Conditions {
        let mut deployments = self.stores.deployments();
        deployments.retain(|_| settings.redis_health);
        Conditions {
            live: Arc::clone(&self.parts.live),
            // A process that waits for its first limits is not ready; one that may start without
            // them is.
            needs_limits: !settings.start_without_limits,
            needs_a_domain: settings.needs_a_domain,
            deployments,
        }
    }

    /// Maintains the stores, and reads the overrides before anything is decided.
    async fn start_overrides(&self) {
        // It finds the servers of Redis, which the first reading of the overrides needs.
        tokio::spawn(self.stores.clone().maintain(self.parts.health.clone()));
        self.parts.overrides.start().await;
        tokio::spawn(Arc::clone(&self.parts.overrides).follow());
    }

    /// Starts the tasks that run next to the listeners.
    fn start_background(
        &self,
        limits: impl Future<Output = ()> + Send + 'static,
        conditions: Conditions,
    ) {
        let parts = &self.parts;
        tokio::spawn(Arc::clone(&parts.history).follow(Arc::clone(&parts.metrics)));
        tokio::spawn(heap::trim_after_peaks());
        tokio::spawn(reload_on_signal(Arc::clone(&parts.live)));
        tokio::spawn(server::log_resets(Arc::clone(&parts.metrics)));
        tokio::spawn(limits);
        tokio::spawn(log_outages(Arc::clone(parts)));
        tokio::spawn(conditions.report(parts.health.clone()));
        tokio::spawn(Arc::clone(&parts.subjects).maintain());
    }

    /// Makes the request path of a thread.
    fn rls(&self, core: Core, limiter: Limiter, options: &rls::Options) -> Rls {
        let parts = &self.parts;
        Rls::builder(Arc::clone(&parts.live))
            .limiter(limiter)
            .worker(core, Arc::clone(&parts.subjects))
            .options(options.clone())
            .build()
    }

    /// Makes the services of a worker.
    fn services(
        &self,
        options: rls::Options,
        grpc_health: GrpcHealth,
        bounds: ClientBounds,
    ) -> impl Fn(usize) -> Services<Rls> + Clone + use<> {
        let shared = self.clone();
        move |worker| {
            let rls = shared.rls(Core(worker), shared.stores.limiter(), &options);
            let metrics = Arc::clone(&shared.parts.metrics);
            Services::new(rls, grpc_health.clone(), bounds.clone(), metrics)
        }
    }

    /// The pages of the HTTP port, whose `/json` takes the request path of `rls`, if it is on.
    fn pages(&self, unfinished: MemoryBudget, rls: Option<Arc<Rls>>) -> Pages {
        let decide = rls.map(|rls| -> pages::Decide {
            Box::new(move |frame| {
                let rls = Arc::clone(&rls);
                Box::pin(async move {
                    let answer = rls.answer(&frame, None, &TraceSpan::default()).await;
                    answer.map(Framed::message)
                })
            })
        });
        let (metrics, health) = (&self.parts.metrics, &self.parts.health);
        Pages::new(Arc::clone(metrics), health.clone(), unfinished, decide)
    }
}

/// Handles accepted connections: passes them to the workers at once, or through their handshakes.
fn acceptor(
    settings: &Settings,
    workers: &Arc<Workers>,
    bounds: &ClientBounds,
    metrics: &Arc<Metrics>,
) -> Result<Acceptor, StartError> {
    let Some(certificates) = &settings.certificates else {
        return Ok(Acceptor::Plaintext(Arc::clone(workers)));
    };
    certificates.register(metrics);
    tokio::spawn(Arc::clone(certificates).watch());
    let (certificates, workers) = (Arc::clone(certificates), Arc::clone(workers));
    let unfinished = bounds.unfinished.clone();
    let handshakes = Handshakes::start(certificates, workers, unfinished, metrics)?;
    Ok(Acceptor::Tls(handshakes))
}

/// The overrides of operators, with their metrics.
fn overrides(
    settings: &Settings,
    live: &Arc<Live>,
    stores: &Stores,
    metrics: &Metrics,
) -> Arc<Registry> {
    let (store, on_reset) = (stores.of_overrides(settings), stores.on_reset());
    let values = settings.rls.logged_values.clone();
    let overrides = Arc::new(Registry::new(Arc::clone(live), store, values, on_reset));
    let scraped = Arc::clone(&overrides);
    metrics.register(move || scraped.samples());
    overrides
}

/// The options of the gRPC listener, with no more connections than there are file descriptors for.
fn connections(mut options: server::Options) -> server::Options {
    let max_connections = connections_after_raise() as usize;
    if max_connections < options.max_connections {
        options.max_connections = max_connections;
        tracing::warn!(
            max_connections,
            "too few file descriptors, connections are limited: raise the hard limit (ulimit -Hn, \
             LimitNOFILE)"
        );
    }
    options
}

/// Logs the memory of the process and its shares.
fn log_memory(settings: &Settings) {
    let (shares, source) = settings.memory;
    let from = settings.sources.name(source);
    let mib = |bytes: u64| bytes >> 20;
    tracing::info!(
        limit_mib = mib(shares.limit),
        from = %from,
        connections_mib = mib(shares.connections),
        unfinished_mib = mib(shares.unfinished),
        store_mib = mib(shares.store),
        limits_mib = mib(shares.resources),
        "memory budget"
    );
}

/// Logs the settings without effect, also those that depend on the level of the log.
fn log_warnings(settings: &Settings) {
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    // No warning, because Envoy Gateway sets it.
    let prometheus = settings.prometheus.as_ref();
    if prometheus.is_some_and(|port| port.has_mapper) {
        tracing::info!(
            "PROMETHEUS_MAPPER_YAML has no effect: the names and labels of metrics are fixed; let \
             Prometheus relabel them"
        );
    }
    let warn = |warning| tracing::warn!("{}", settings.sources.name(warning));
    if settings.rls.logged.is_some() && !DecisionFilter::is_logged() {
        warn("LOG_DECISIONS has no effect: it needs LOG_LEVEL=debug");
    }
    if settings.rls.refusals.is_some() && !RefusalLog::is_logged() {
        warn("LOG_REFUSALS has no effect: it needs LOG_LEVEL=info");
    }
}

/// Logs the failures of Redis, if there is one; never ends then.
async fn log_outages(parts: Arc<api::Parts>) {
    let deployments = parts.deployments.iter();
    let deployments: Vec<_> = deployments.map(|(_, one)| Arc::clone(one)).collect();
    if !deployments.is_empty() {
        let answers = || parts.metrics.process.policy_answers();
        outages::watch(deployments, answers, parts.outage.clone()).await;
    }
}

/// A listener that was opened, and logged.
fn opened<L>(
    listener: &'static str,
    address: &impl Display,
    opened: io::Result<L>,
    describe: impl Fn(&L) -> String,
) -> Result<L, StartError> {
    let address = address.to_string();
    opened
        .inspect(|opened| tracing::info!(listener, address = %describe(opened), "listening"))
        .map_err(|error| StartError::Listen {
            listener,
            address,
            error,
        })
}

/// The remedy of a listener that cannot be opened.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop what uses the port or the socket, or choose another",
        io::ErrorKind::PermissionDenied => {
            "choose a port above 1023, or a folder that Weir may write to"
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound => {
            "choose another path for the socket"
        }
        _ => "choose an address of this machine",
    }
}

/// The services of `grpc.health.v1`; both have the status of the process.
const HEALTH_SERVICES: [&str; 2] = ["", "ratelimit"];

/// Publishes the health as `grpc.health.v1`; never ends.
async fn publish_health(health: Health, grpc_health: GrpcHealth) {
    let mut changes = health.subscribe();
    loop {
        let status = match *changes.borrow_and_update() {
            Status::Ready => ServingStatus::Serving,
            _ => ServingStatus::NotServing,
        };
        for service in HEALTH_SERVICES {
            grpc_health.set_service_status(service, status).await;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Sends NOT_SERVING to every health watch and ends its stream, which does not end by itself: it
/// ends when its service is cleared.
async fn end_health_watches(mut grpc_health: GrpcHealth) {
    for service in HEALTH_SERVICES {
        grpc_health
            .set_service_status(service, ServingStatus::NotServing)
            .await;
        grpc_health.clear_service_status(service).await;
    }
}

/// Reads the limit files again at each SIGHUP.
async fn reload_on_signal(live: Arc<Live>) {
    let Ok(mut hang_up) = signal(SignalKind::hangup()) else {
        return tracing::error!("cannot receive SIGHUP; it ends this process");
    };
    while hang_up.recv().await.is_some() {
        tracing::info!("SIGHUP received: reloading the limit files");
        live.ask_for_reload();
    }
}

/// Waits for a signal, and after SIGTERM also for `DRAIN_DELAY`, in which clients find other
/// replicas. SIGINT, which a person sends from a terminal, and a second signal skip that time.
async fn drain_on_signal(settings: &Settings, health: &Health, signals: &mut Signals) {
    let signal = next_signal(signals).await;
    health.report(Status::Draining);
    if signal != SignalKind::interrupt() && !settings.drain_delay.is_zero() {
        tracing::info!(
            delay_secs = settings.drain_delay.as_secs_f64(),
            "signal received: reporting unhealthy, still serving"
        );
        tokio::select! {
            () = tokio::time::sleep(settings.drain_delay) => {}
            _ = next_signal(signals) => {}
        }
    }
    tracing::info!("draining");
}

/// The signals that end the process, SIGTERM and SIGINT; `None` if they cannot be received.
type Signals = Option<(Signal, Signal)>;

fn shutdown_signals() -> Signals {
    let terminate = signal(SignalKind::terminate()).ok();
    let both = terminate.zip(signal(SignalKind::interrupt()).ok());
    if both.is_none() {
        tracing::error!("cannot receive signals; only SIGKILL ends this process");
    }
    both
}

/// Waits for the next of the signals.
async fn next_signal(signals: &mut Signals) -> SignalKind {
    let Some((terminate, interrupt)) = signals else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => SignalKind::terminate(),
        _ = interrupt.recv() => SignalKind::interrupt(),
    }
}
