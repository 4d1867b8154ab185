//! The process: build everything, run, drain, stop.
//!
//! One control thread accepts, serves HTTP, sweeps and hears signals; files have a thread of their own, and what takes long (a scrape, a large
//! JSON) runs beside it. The workers answer.

mod health;
mod redis;
mod stores;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tonic_health::ServingStatus;

use crate::background;
use crate::health::{Health, Status};
use crate::http::{self, Pages};
use crate::live::{Live, files};
use crate::metrics::{Core, Metrics, families};
use crate::rls::Rls;
use crate::rls::respond::Framed;
use crate::rules::compile::Problem;
use crate::server::{self, Budget, GrpcHealth, Services, Workers};
use crate::settings::Settings;
use crate::telemetry;
use health::Conditions;
use stores::Stores;

/// Time for what is in flight when the process ends.
const LAST_REQUESTS: Duration = Duration::from_secs(10);

/// Problems of the first files that are logged.
const MAX_LOGGED: usize = 50;

/// Why the process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listener cannot be opened.
    #[error("cannot listen on {address} for {listener}: {error}; {remedy}")]
    Listen {
        /// What the listener is for.
        listener: &'static str,
        /// Where.
        address: SocketAddr,
        /// The operating system's reason.
        error: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// The limits cannot be used; nothing is served rather than nothing limited.
    #[error("{}", lines(.0))]
    Limits(Vec<Problem>),
    /// Logs cannot be started.
    #[error("LOG_LEVEL")]
    Logs(#[from] telemetry::Error),
    /// No thread or event queue is to be had.
    #[error("the operating system gives no thread or event queue")]
    System(#[from] io::Error),
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Serves until a signal ends the process.
///
/// # Errors
/// [`StartError`]; once it serves, nothing ends it but a signal.
pub fn serve(settings: Settings) -> Result<(), StartError> {
    // Held to the end: what was logged last is still written.
    let logs = telemetry::init(&settings.log_level, settings.log_format)?;
    // Its further threads put metrics together and read files.
    let runtime = Builder::new_current_thread().enable_all().on_thread_start(background::step_back).build()?;
    let ended = runtime.block_on(run(settings, &logs));
    // Nothing is waited for any more, whatever a thread is still at.
    runtime.shutdown_background();
    ended
}

#[expect(clippy::disallowed_methods, reason = "the control thread's own tasks, all of which end below")]
async fn run(settings: Settings, logs: &telemetry::Logs) -> Result<(), StartError> {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), workers = settings.workers, "weir starts");
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let control = Core(settings.workers);
    let metrics = Metrics::new(settings.workers + 1, settings.near_limit_ratio);
    let live = Arc::new(Live::new(Arc::clone(&metrics)));
    let watched = first_load(&settings, &live)?;
    let stores = Stores::new(&settings, &metrics);
    let conditions = Conditions {
        live: Arc::clone(&live),
        needs_a_domain: settings.needs_a_domain,
        deployments: if settings.redis_health { stores.deployments() } else { Vec::new() },
    };
    let health = Health::default();
    health.report(conditions.hold());
    let dropped = logs.dropped();
    metrics.register(Box::new(move || vec![families::LOG_LINES_DROPPED.count(&[], dropped())]));

    let grpc = open("grpc", settings.grpc)?;
    let http = open("http", settings.http)?;
    let grpc_health = GrpcHealth::new();
    let new_rls = {
        let (live, metrics, stores) = (Arc::clone(&live), Arc::clone(&metrics), stores.clone());
        let options = settings.rls.clone();
        move |core| Rls::new(Arc::clone(&live), stores.limiter(), Arc::clone(&metrics), core, options.clone())
    };
    let services = {
        let (new_rls, grpc_health, budget, metrics) = (new_rls.clone(), grpc_health.clone(), Budget::default(), Arc::clone(&metrics));
        move |worker| Services::new(new_rls(Core(worker)), grpc_health.clone(), budget.clone(), Arc::clone(&metrics))
    };
    let workers = Arc::new(Workers::start(settings.workers, settings.server, services)?);

    let (stop, stopping) = watch::channel(false);
    let rls = Arc::new(new_rls(control));
    let decide = move |frame: Bytes| {
        let rls = Arc::clone(&rls);
        async move { rls.answer(&frame, None).await.map(Framed::message) }
    };
    let pages = Pages::new(Arc::clone(&metrics), health.clone(), decide);
    tokio::spawn(server::accept(grpc, Arc::clone(&workers), settings.server, Arc::clone(&metrics), stopping.clone()));
    tokio::spawn(files::watch(Arc::clone(&live), settings.files.clone(), watched, Arc::clone(&metrics)));
    if conditions.may_change() {
        tokio::spawn(conditions.report(health.clone()));
    }
    tokio::spawn(stores.keep());
    let publishing = tokio::spawn(publish_health(health.clone(), grpc_health.clone()));
    let pages = tokio::spawn(http::serve(http, pages, stopping.clone()));

    until_told_to_stop(&settings, &health).await;
    stop.send_replace(true);
    publishing.abort();
    let drained = async {
        end_watches(grpc_health).await;
        let workers = tokio::task::spawn_blocking(move || workers.drain(LAST_REQUESTS));
        let _ = tokio::join!(workers, tokio::time::timeout(LAST_REQUESTS, pages));
    };
    tokio::select! {
        () = drained => tracing::info!("weir stopped"),
        () = told_to_stop() => tracing::warn!("told to stop again: requests in flight are cut off"),
    }
    Ok(())
}

/// Loads the limits; warnings are logged, problems end the start unless the settings say otherwise.
fn first_load(settings: &Settings, live: &Arc<Live>) -> Result<files::Watched, StartError> {
    match files::load_once(live, &settings.files) {
        Ok(watched) => Ok(watched),
        Err((problems, watched)) if settings.start_without_limits => {
            for problem in problems.iter().take(MAX_LOGGED) {
                tracing::error!("{problem}");
            }
            tracing::error!(
                problems = problems.len(),
                "there are no limits yet: every request is answered UNAVAILABLE until the files can be used"
            );
            Ok(watched)
        }
        Err((problems, _)) => Err(StartError::Limits(problems)),
    }
}

fn open(listener: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let opened = server::listen(address).and_then(|socket| Ok((socket.local_addr()?, socket)));
    match opened {
        Ok((address, socket)) => {
            tracing::info!(listener, address = %address, "listening");
            Ok(socket)
        }
        Err(error) => {
            let remedy = match error.kind() {
                io::ErrorKind::AddrInUse => "stop what uses the port, or choose another one",
                io::ErrorKind::PermissionDenied => "choose a port above 1023",
                _ => "choose an address of this machine",
            };
            Err(StartError::Listen { listener, address, error, remedy })
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
        let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in HEALTH_SERVICES {
            grpc_health.set_service_status(service, status).await;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Sends NOT_SERVING to every health watch and ends its stream, which does not end by itself: it ends when its service is cleared.
async fn end_watches(mut grpc_health: GrpcHealth) {
    for service in HEALTH_SERVICES {
        grpc_health.set_service_status(service, ServingStatus::NotServing).await;
        grpc_health.clear_service_status(service).await;
    }
}

/// After SIGTERM (and SIGHUP, as in envoyproxy/ratelimit) clients get time to notice; a person at a terminal (SIGINT) does not want to wait,
/// nor does a second signal.
async fn until_told_to_stop(settings: &Settings, health: &Health) {
    let patient = told_to_stop_patiently().await;
    health.drain();
    if patient && !settings.drain_delay.is_zero() {
        tracing::info!(delay_secs = settings.drain_delay.as_secs_f64(), "told to stop: unhealthy from now on, still serving");
        tokio::select! {
            () = tokio::time::sleep(settings.drain_delay) => {}
            () = told_to_stop() => {}
        }
    }
    tracing::info!("draining");
}

async fn told_to_stop_patiently() -> bool {
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::hangup()));
    let (Ok(mut terminate), Ok(mut interrupt), Ok(mut hang_up)) = signals else {
        tracing::error!("signals cannot be received; only SIGKILL ends this process");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => true,
        _ = hang_up.recv() => true,
        _ = interrupt.recv() => false,
    }
}

async fn told_to_stop() {
    told_to_stop_patiently().await;
}
