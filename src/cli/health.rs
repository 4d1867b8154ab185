//! `weir health`: asks a running service on this machine whether it is healthy, for the health
//! checks of containers.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use http::{Request, StatusCode, Uri};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::connect::{connect, http_client, no_service, until_connected};
use super::print;
use crate::net::dial::Address;
use crate::net::http::CallError;
use crate::net::tls::ClientOptions;
use crate::observe::metrics::families;
use crate::process::settings::{ListenerFlags, LocalGrpc};

/// The largest metrics in bytes.
const MAX_METRICS_BYTES: usize = 64 << 20;

/// The largest answer in bytes: the reasons fit.
const MAX_ANSWER_BYTES: usize = 1_024;

#[derive(Args, Debug)]
#[command(
    after_help = "Exit codes: 0 healthy, 2 invalid arguments, 1 unhealthy or no answer.\n\n\
    `weir health` connects to the address of `weir serve` with the same flags and variables, or \
        to loopback instead of all addresses, such as 0.0.0.0. With TLS it trusts and presents \
        the certificate of the gRPC port."
)]
pub(super) struct HealthArgs {
    /// Check with grpc.health.v1 on the gRPC listener instead of /healthcheck on the HTTP listener
    #[arg(long)]
    grpc: bool,
    /// Require that every Redis answers too (weir_redis_up), by the HTTP listener
    #[arg(long, conflicts_with = "grpc")]
    redis: bool,
    /// Wait at most this many milliseconds for an answer, and connect again while nothing listens;
    /// 1 to 3600000
    #[arg(long, default_value_t = 1_000, value_name = "MILLISECONDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    timeout_ms: u64,
    #[command(flatten)]
    listeners: ListenerFlags,
}

pub(super) fn run(health: &HealthArgs) -> anyhow::Result<ExitCode> {
    let timeout = Duration::from_millis(health.timeout_ms);
    let answer = print::block_on(async {
        if health.grpc {
            let LocalGrpc { address, tls } = health.listeners.grpc_on_this_machine()?;
            answered(&address, timeout, || ask_grpc(&address, tls.as_ref())).await
        } else {
            let address = health.listeners.http_on_this_machine()?;
            let ask = || ask_http(address, timeout, health.redis);
            answered(&address.into(), timeout, ask).await
        }
    })?;
    let Some(reasons) = answer else {
        print::out("healthy\n")?;
        return Ok(ExitCode::SUCCESS);
    };
    let line = |reason| format!("unhealthy: {reason}\n");
    let lines: String = reasons.lines().map(line).collect();
    let lines = Some(&*lines).filter(|lines| !lines.is_empty());
    print::out(lines.unwrap_or("unhealthy\n"))?;
    Ok(ExitCode::FAILURE)
}

/// The answer of a service, within this time.
async fn answered<F: Future<Output = anyhow::Result<Unhealthy>>>(
    address: &Address,
    timeout: Duration,
    ask: impl Fn() -> F,
) -> anyhow::Result<Unhealthy> {
    let answer = tokio::time::timeout(timeout, until_connected(timeout, ask)).await;
    answer.with_context(|| format!("no answer from {address} within {} ms", timeout.as_millis()))?
}

/// Why the service is unhealthy, one reason per line, if the answer has them; `None`: it is
/// healthy.
type Unhealthy = Option<String>;

/// Gets a page of the HTTP listener. A longer answer than `most` bytes is empty.
async fn page(
    address: SocketAddr,
    path: &str,
    timeout: Duration,
    most: usize,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let uri: Uri = format!("http://{address}{path}").parse()?;
    let client = http_client(&uri, timeout, most)?;
    let request = Request::get(uri).body(Bytes::new())?;
    match client.call(request).await {
        Ok(answer) => Ok(answer),
        Err(CallError::Body { status, .. }) => Ok((status, Bytes::new())),
        Err(CallError::NotHttp(_)) => Ok((StatusCode::NOT_FOUND, Bytes::new())),
        Err(error) => Err(no_service(&address, &error.into())),
    }
}

/// The servers of Redis that do not answer, from the metrics of the process.
async fn redis_down(address: SocketAddr, timeout: Duration) -> anyhow::Result<Unhealthy> {
    let (_, metrics) = page(address, "/metrics", timeout, MAX_METRICS_BYTES).await?;
    let metrics = String::from_utf8_lossy(&metrics);
    let up = |line: &&str| line.starts_with(families::REDIS_UP.name);
    let mut servers = metrics.lines().filter(up).peekable();
    if servers.peek().is_none() {
        let what = "the service counts in memory, without Redis";
        return Ok(Some(what.to_owned()));
    }
    let reason = |line| format!("Redis does not answer: {line}");
    let down = servers.filter(|line| !line.ends_with(" 1"));
    let reasons: Vec<_> = down.map(reason).collect();
    Ok((!reasons.is_empty()).then(|| reasons.join("\n")))
}

async fn ask_http(
    address: SocketAddr,
    timeout: Duration,
    with_redis: bool,
) -> anyhow::Result<Unhealthy> {
    let (status, reasons) = page(address, "/healthcheck", timeout, MAX_ANSWER_BYTES).await?;
    let is_shown = |c: &char| *c == '\n' || !c.is_control();
    match status {
        StatusCode::OK if with_redis => redis_down(address, timeout).await,
        StatusCode::OK => Ok(None),
        StatusCode::INTERNAL_SERVER_ERROR => {
            let reasons = String::from_utf8_lossy(&reasons);
            Ok(Some(reasons.chars().filter(is_shown).collect()))
        }
        _ => anyhow::bail!(
            "what listens at {address} is not the HTTP listener of Weir; use the port of PORT, \
             which is 8080 unless it is set"
        ),
    }
}

async fn ask_grpc(address: &Address, tls: Option<&ClientOptions>) -> anyhow::Result<Unhealthy> {
    let mut client = HealthClient::new(connect(address, tls, None).await?);
    let answer = client.check(HealthCheckRequest::default()).await;
    let answer = answer.map_err(|status| super::hit::request_error(address, &status))?;
    let is_healthy = answer.into_inner().status() == ServingStatus::Serving;
    Ok((!is_healthy).then(String::new))
}
