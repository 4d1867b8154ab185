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

use super::connect::{connect, http_client};
use super::print;
use crate::net::dial::Address;
use crate::net::http::client::CallError;
use crate::net::tls::ClientOptions;
use crate::process::settings::{ListenerFlags, LocalGrpc};

/// The largest answer in bytes: the reasons fit.
const MAX_ANSWER_BYTES: usize = 1_024;

#[derive(Args, Debug)]
#[command(
    after_help = "Exit codes: 0 healthy, 2 invalid arguments, 1 unhealthy or no answer.\n\n\
    The address is that of `weir serve` with the same flags and variables; an address for all \
        interfaces, such as 0.0.0.0, means loopback. With TLS weir trusts, and presents, the \
        certificate of the gRPC port."
)]
pub(super) struct Health {
    /// Ask with gRPC (grpc.health.v1) on the gRPC listener, not with HTTP (/healthcheck) on the
    /// HTTP listener
    #[arg(long)]
    grpc: bool,
    /// Longest wait for the answer, in milliseconds; 1 to 3600000
    #[arg(long, default_value_t = 1_000, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    timeout_ms: u64,
    #[command(flatten)]
    listeners: ListenerFlags,
}

pub(super) fn run(health: &Health) -> anyhow::Result<ExitCode> {
    let timeout = Duration::from_millis(health.timeout_ms);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = if health.grpc {
        let LocalGrpc { address, tls } = health.listeners.grpc_on_this_machine()?;
        let ask = ask_grpc(&address, tls.as_ref());
        let answer = runtime.block_on(async { tokio::time::timeout(timeout, ask).await });
        answer.with_context(|| {
            format!("no answer from {address} within {} ms", health.timeout_ms)
        })??
    } else {
        let address = health.listeners.http_on_this_machine()?;
        let answer = runtime
            .block_on(async { tokio::time::timeout(timeout, ask_http(address, timeout)).await });
        answer.with_context(|| {
            format!("no answer from {address} within {} ms", health.timeout_ms)
        })??
    };
    match answer {
        Answer::Healthy => {
            print::out("healthy\n")?;
            Ok(ExitCode::SUCCESS)
        }
        Answer::Unhealthy(reasons) => {
            let lines: String = reasons
                .lines()
                .map(|reason| format!("unhealthy: {reason}\n"))
                .collect();
            print::out(if lines.is_empty() {
                "unhealthy\n"
            } else {
                &lines
            })?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// What the service says of its health.
enum Answer {
    Healthy,
    /// With the reasons, one per line, if the answer has them.
    Unhealthy(String),
}

async fn ask_http(address: SocketAddr, timeout: Duration) -> anyhow::Result<Answer> {
    let uri: Uri = format!("http://{address}/healthcheck").parse()?;
    let client = http_client(&uri, timeout, MAX_ANSWER_BYTES)?;
    let request = Request::get(uri).body(Bytes::new())?;
    let (status, reasons) = match client.call(request).await {
        Ok(answer) => answer,
        Err(CallError::Body { status, .. }) => (status, Bytes::new()),
        Err(CallError::NotHttp(_)) => (StatusCode::NOT_FOUND, Bytes::new()),
        Err(error) => {
            return Err(error)
                .with_context(|| format!("no service at {address}; is `weir serve` running?"));
        }
    };
    match status {
        StatusCode::OK => Ok(Answer::Healthy),
        StatusCode::INTERNAL_SERVER_ERROR => Ok(Answer::Unhealthy(
            String::from_utf8_lossy(&reasons)
                .chars()
                .filter(|&c| c == '\n' || !c.is_control())
                .collect(),
        )),
        _ => anyhow::bail!(
            "what listens at {address} is not the HTTP listener of Weir; use the port of PORT, \
             which is 8080 unless it is set"
        ),
    }
}

async fn ask_grpc(address: &Address, tls: Option<&ClientOptions>) -> anyhow::Result<Answer> {
    let channel = connect(address, tls, None).await?;
    let answer = HealthClient::new(channel)
        .check(HealthCheckRequest::default())
        .await;
    let answer = answer.map_err(|status| super::hit::request_error(address, &status))?;
    let is_healthy = answer.into_inner().status() == ServingStatus::Serving;
    Ok(if is_healthy {
        Answer::Healthy
    } else {
        Answer::Unhealthy(String::new())
    })
}
