//! The process: start-up, serving, draining and exit.
//!
//! One control thread accepts connections, serves HTTP, sweeps the stores and receives signals.
//! Limit files are read on a thread of their own, and long work (a scrape, a large JSON body) runs
//! on blocking threads. The workers answer gRPC requests.
//!
//! After SIGTERM the process serves for `DRAIN_DELAY` (5 s) while it reports itself unhealthy, so
//! that clients find another replica before connections end.

mod exporters;
mod health;
mod limits;
mod redis;
mod stores;

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tonic_health::ServingStatus;

use crate::desk::admin::{self, Access, Api};
use crate::desk::debug;
use crate::limiter::outages;
use crate::limits::rules::compile::Problem;
use crate::live::Live;
use crate::live::overrides::Registry;
use crate::net::background;
use crate::net::bounds::{Unfinished, connections_after_raise};
use crate::net::http;
use crate::net::http::guard::Guard;
use crate::observe::health::{Health, Status};
use crate::observe::metrics::{Core, Metrics, families};
use crate::observe::subjects::Subjects;
use crate::observe::telemetry;
use crate::observe::traces::{self, TraceSpan, Traces};
use crate::process::settings::{PrometheusPort, Settings};
use crate::service::pages::Pages;
use crate::service::rls::respond::Framed;
use crate::service::rls::{self, DecisionFilter, RefusalLog, Rls};
use crate::service::server::{
    self, Budget, Entrance, GrpcHealth, Handshakes, Listener, Services, Workers,
};
use health::Conditions;
use stores::Stores;

/// Grace period for requests in flight when the process ends.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// Why the process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listener cannot be opened.
    #[error("cannot listen on {address} for {listener}: {error}; {remedy}")]
    Listen {
        /// The name of the listener: grpc, http, prometheus or debug.
        listener: &'static str,
        /// Its address.
        address: String,
        /// The operating system's reason.
        error: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// The limit files, or the overlay file, cannot be used. Without limits, Weir would allow every
    /// request.
    #[error("{}", lines(.0))]
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

fn lines(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Serves until a signal ends the process.
///
/// # Errors
/// [`StartError`]; once Weir serves, only a signal ends it.
pub fn serve(settings: Settings) -> Result<(), StartError> {
    // Held to the end, so that the last log lines are written.
    let logs = telemetry::init(&settings.log_level, settings.log_format)?;
    let traces = settings.traces.clone().map(traces::start).transpose()?;
    // Its blocking threads serve scrapes and read JSON bodies, at a lower priority than the
    // workers.
    let runtime = Builder::new_current_thread()
        .enable_all()
        .on_thread_start(background::lower_priority)
        .build()?;
    let ended = runtime.block_on(run(settings, &logs, traces.as_ref()));
    // Does not wait for blocking threads.
    runtime.shutdown_background();
    ended
}

#[expect(
    clippy::disallowed_methods,
    reason = "tasks of the control thread, all of which end below"
)]
async fn run(
    settings: Settings,
    logs: &telemetry::Logs,
    traces: Option<&Traces>,
) -> Result<(), StartError> {
    let started_at = admin::status::now();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        workers = settings.workers,
        "weir starts"
    );
    log_memory(&settings);
    let options = connections(settings.server);
    log_warnings(&settings);
    let control = Core(settings.workers);
    let metrics = Metrics::with_options(settings.workers + 1, settings.metrics);
    let live = Arc::new(Live::new(Arc::clone(&metrics)));
    let subjects = Subjects::new(settings.workers + 1);
    let limits = limits::Source::load(&settings, &live, &metrics)?;
    let stores = Stores::new(&settings, &metrics);
    let overrides = overrides(&settings, &live, &stores, &metrics);
    let conditions = conditions(&settings, &live, &stores);
    let health = Health::default();
    health.report(conditions.status());
    let dropped = logs.dropped();
    metrics.register(Box::new(move || {
        vec![families::LOG_LINES_DROPPED.count(&[], dropped())]
    }));
    if let Some(traces) = traces {
        metrics.register(Box::new(traces.counts()));
    }

    let grpc = opened(
        "grpc",
        &settings.grpc,
        Listener::open(&settings.grpc),
        ToString::to_string,
    )?;
    let address = |listener: &TcpListener| {
        listener
            .local_addr()
            .map_or_else(|error| error.to_string(), |address| address.to_string())
    };
    let http = opened(
        "http",
        &settings.http,
        server::listen(settings.http),
        address,
    )?;
    let prometheus = |PrometheusPort {
                          address: at,
                          options,
                      }| {
        Ok::<_, StartError>((
            opened("prometheus", &at, server::listen(at), address)?,
            options,
        ))
    };
    let prometheus = settings.prometheus.clone().map(prometheus).transpose()?;
    let grpc_health = GrpcHealth::new();
    let new_rls = {
        let (live, metrics, subjects, stores) = (
            Arc::clone(&live),
            Arc::clone(&metrics),
            Arc::clone(&subjects),
            stores.clone(),
        );
        let options = rls::Options {
            tracer: traces.map(Traces::tracer),
            ..settings.rls.clone()
        };
        move |core| {
            Rls::new(
                Arc::clone(&live),
                stores.limiter(),
                Arc::clone(&metrics),
                Arc::clone(&subjects),
                core,
                options.clone(),
            )
        }
    };
    let budget = Budget::new(settings.memory.0.unfinished);
    let services = {
        let (new_rls, grpc_health, budget, metrics) = (
            new_rls.clone(),
            grpc_health.clone(),
            budget.clone(),
            Arc::clone(&metrics),
        );
        move |worker| {
            Services::new(
                new_rls(Core(worker)),
                grpc_health.clone(),
                budget.clone(),
                Arc::clone(&metrics),
            )
        }
    };
    let workers = Arc::new(Workers::start(settings.workers, options, services)?);

    // A process whose debug port is in use serves all the same, as envoyproxy/ratelimit does.
    let debug = settings.debug.and_then(|at| {
        opened("debug", &at, server::listen(at), address)
            .inspect_err(|error| tracing::error!("{error}, or set DEBUG_PORT"))
            .ok()
    });

    let (stop, stopping) = watch::channel(false);
    let rls = Arc::new(new_rls(control));
    let pages = pages(
        &metrics,
        &health,
        budget.unfinished.clone(),
        Arc::clone(&rls),
    );
    let entrance = entrance(&settings, &workers, &budget, &metrics)?;
    // It finds the servers of Redis, which the first reading of the overrides needs.
    tokio::spawn(stores.clone().maintain());
    overrides.start().await;
    tokio::spawn(Arc::clone(&overrides).follow());
    let accepting = tokio::spawn(server::accept(
        grpc,
        entrance,
        options,
        Arc::clone(&metrics),
        stopping.clone(),
    ));
    tokio::spawn(server::log_resets(Arc::clone(&metrics)));
    tokio::spawn(limits.follow(Arc::clone(&live), Arc::clone(&metrics)));
    let statsd = settings
        .statsd
        .clone()
        .map(|options| exporters::start_statsd(options, Arc::clone(&metrics)))
        .transpose()?;
    if let Some((listener, options)) = prometheus {
        tokio::spawn(exporters::serve_prometheus(
            listener,
            options,
            Arc::clone(&metrics),
            stopping.clone(),
        ));
    }
    if let Some(listener) = debug {
        let parts = admin::Parts {
            live: Arc::clone(&live),
            metrics: Arc::clone(&metrics),
            subjects: Arc::clone(&subjects),
            health: health.clone(),
            rls: Arc::clone(&rls),
            usage: stores.usage(),
            overrides: Arc::clone(&overrides),
            deployments: stores
                .deployments()
                .into_iter()
                .map(|(name, deployment)| (name.label(), deployment))
                .collect(),
            started_at,
        };
        let ip = ip_of(&listener);
        let api = Api::new(parts, Access::new(ip, settings.admin_tokens.clone()));
        let pages = debug::Pages::new(Guard::new(ip), Arc::clone(&live), Arc::clone(&metrics))
            .with_api(api);
        tokio::spawn(http::serve(listener, pages, stopping.clone()));
    }
    tokio::spawn(log_outages(stores.clone(), Arc::clone(&metrics)));
    if conditions.may_change() {
        tokio::spawn(conditions.report(health.clone()));
    }
    tokio::spawn(Arc::clone(&subjects).maintain());
    let publishing = tokio::spawn(publish_health(health.clone(), grpc_health.clone()));
    let pages = tokio::spawn(http::serve(http, pages, stopping.clone()));

    drain_on_signal(&settings, &health).await;
    stop.send_replace(true);
    publishing.abort();
    let drained = async {
        // Also removes a unix socket.
        let _ = accepting.await;
        end_health_watches(grpc_health).await;
        let workers = tokio::task::spawn_blocking(move || workers.drain(SHUTDOWN_GRACE));
        let _ = tokio::join!(workers, tokio::time::timeout(SHUTDOWN_GRACE, pages));
        // No worker adds to it now.
        stores.write_usage().await;
        // The requests in flight are counted too.
        exporters::stop_statsd(statsd).await;
    };
    tokio::select! {
        () = drained => tracing::info!("weir stopped"),
        _ = shutdown_signal() => tracing::warn!("second signal: requests in flight are cut off"),
    }
    Ok(())
}

/// Where accepted connections go: to the workers at once, or through their handshakes.
#[expect(clippy::disallowed_methods, reason = "a task of the control thread")]
fn entrance(
    settings: &Settings,
    workers: &Arc<Workers>,
    budget: &Budget,
    metrics: &Arc<Metrics>,
) -> Result<Entrance, StartError> {
    let Some(certificates) = &settings.certificates else {
        return Ok(Entrance::Plaintext(Arc::clone(workers)));
    };
    certificates.register(metrics);
    tokio::spawn(Arc::clone(certificates).watch());
    Ok(Entrance::Tls(Handshakes::start(
        Arc::clone(certificates),
        Arc::clone(workers),
        budget.unfinished.clone(),
        metrics,
    )?))
}

/// The address of a listener; if it is unknown, one that is not loopback.
fn ip_of(listener: &TcpListener) -> IpAddr {
    listener
        .local_addr()
        .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip())
}

/// The overrides of operators, with their metrics.
fn overrides(
    settings: &Settings,
    live: &Arc<Live>,
    stores: &Stores,
    metrics: &Metrics,
) -> Arc<Registry> {
    let overrides = Arc::new(Registry::new(Arc::clone(live), stores.keeping(settings)));
    let scraped = Arc::clone(&overrides);
    metrics.register(Box::new(move || scraped.samples()));
    overrides
}

fn conditions(settings: &Settings, live: &Arc<Live>, stores: &Stores) -> Conditions {
    Conditions {
        live: Arc::clone(live),
        // A process that waits for its first limits is not ready; one that may start without them
        // is.
        needs_limits: !settings.start_without_limits,
        needs_a_domain: settings.needs_a_domain,
        deployments: if settings.redis_health {
            stores.deployments()
        } else {
            Vec::new()
        },
    }
}

/// The pages of the HTTP port, whose `/json` takes the request path of `rls`.
fn pages(metrics: &Arc<Metrics>, health: &Health, unfinished: Unfinished, rls: Arc<Rls>) -> Pages {
    let decide = move |frame: Bytes| {
        let rls = Arc::clone(&rls);
        async move {
            rls.answer(&frame, None, &TraceSpan::default())
                .await
                .map(Framed::message)
        }
    };
    Pages::new(Arc::clone(metrics), health.clone(), unfinished, decide)
}

/// The options of the gRPC listener, with no more connections than there are file descriptors for.
fn connections(options: server::Options) -> server::Options {
    let allowed = connections_after_raise();
    let max_connections = options
        .max_connections
        .min(usize::try_from(allowed).unwrap_or(usize::MAX));
    if max_connections < options.max_connections {
        tracing::warn!(
            max_connections,
            "few file descriptors: raise the hard limit (ulimit -Hn, LimitNOFILE) for more \
             connections"
        );
    }
    server::Options {
        max_connections,
        ..options
    }
}

/// Logs how much memory there is, and for what.
fn log_memory(settings: &Settings) {
    let (shares, source) = settings.memory;
    let from = settings.given.name(&source.to_string());
    let [
        limit_mib,
        connections_mib,
        unfinished_mib,
        store_mib,
        resources_mib,
    ] = [
        shares.limit,
        shares.connections,
        shares.unfinished,
        shares.store,
        shares.resources,
    ]
    .map(|bytes| bytes >> 20);
    tracing::info!(limit_mib, from = %from, connections_mib, unfinished_mib, store_mib, resources_mib, "memory");
}

/// Logs the settings without effect, also those that depend on the level of the log.
fn log_warnings(settings: &Settings) {
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    if settings.rls.logged.is_some() && !DecisionFilter::is_logged() {
        tracing::warn!(
            "{}",
            settings
                .given
                .name("LOG_DECISIONS has no effect: it needs LOG_LEVEL=debug")
        );
    }
    if settings.rls.refusals.is_some() && !RefusalLog::is_logged() {
        tracing::warn!(
            "{}",
            settings
                .given
                .name("LOG_REFUSALS has no effect: it needs LOG_LEVEL=info")
        );
    }
}

/// Logs the failures of Redis, if there is one; never ends then.
async fn log_outages(stores: Stores, metrics: Arc<Metrics>) {
    let deployments: Vec<_> = stores
        .deployments()
        .into_iter()
        .map(|(_, deployment)| deployment)
        .collect();
    if !deployments.is_empty() {
        outages::watch(
            deployments,
            || metrics.policy_answers(),
            outages::Options::default(),
            |line| line.log(),
        )
        .await;
    }
}

/// A listener that was opened, and logged.
fn opened<L>(
    listener: &'static str,
    address: &impl Display,
    opened: io::Result<L>,
    describe: impl Fn(&L) -> String,
) -> Result<L, StartError> {
    match opened {
        Ok(opened) => {
            tracing::info!(listener, address = %describe(&opened), "listening");
            Ok(opened)
        }
        Err(error) => {
            let remedy = match error.kind() {
                io::ErrorKind::AddrInUse => {
                    "stop what uses the port or the socket, or choose another"
                }
                io::ErrorKind::PermissionDenied => {
                    "choose a port above 1023, or a folder that Weir may write to"
                }
                io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound => {
                    "choose another path for the socket"
                }
                _ => "choose an address of this machine",
            };
            Err(StartError::Listen {
                listener,
                address: address.to_string(),
                error,
                remedy,
            })
        }
    }
}

/// The services of `grpc.health.v1`; both have the status of the process.
const HEALTH_SERVICES: [&str; 2] = ["", "ratelimit"];

/// Publishes the health as `grpc.health.v1`; never ends.
async fn publish_health(health: Health, grpc_health: GrpcHealth) {
    let mut changes = health.subscribe();
    loop {
        let is_ready = *changes.borrow_and_update() == Status::Ready;
        let status = if is_ready {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
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

/// Waits for a signal, and after SIGTERM or SIGHUP also for `DRAIN_DELAY`, in which clients find
/// other replicas. SIGINT, which a person sends from a terminal, and a second signal skip that
/// time. SIGHUP ends the process as in envoyproxy/ratelimit.
async fn drain_on_signal(settings: &Settings, health: &Health) {
    let signal = shutdown_signal().await;
    health.report(Status::Draining);
    if signal != SignalKind::interrupt() && !settings.drain_delay.is_zero() {
        tracing::info!(
            delay_secs = settings.drain_delay.as_secs_f64(),
            "signal received: unhealthy from now on, still serving"
        );
        tokio::select! {
            () = tokio::time::sleep(settings.drain_delay) => {}
            _ = shutdown_signal() => {}
        }
    }
    tracing::info!("draining");
}

/// Waits for a signal that ends the process.
async fn shutdown_signal() -> SignalKind {
    let signals = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
        signal(SignalKind::hangup()),
    );
    let (Ok(mut terminate), Ok(mut interrupt), Ok(mut hang_up)) = signals else {
        tracing::error!("signals cannot be received; only SIGKILL ends this process");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => SignalKind::terminate(),
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = hang_up.recv() => SignalKind::hangup(),
    }
}
