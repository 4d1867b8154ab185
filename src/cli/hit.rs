//! `weir hit`: sends requests to a running service, and prints its answers.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tonic::Status;

use super::admin::AdminFlags;
use super::connect::{TlsFlags, address, connect};
use super::explain::{Explained, explained};
use super::load::client::is_without_limit;
use super::{amount, entries, print};
use crate::core::ask::written::entry as entry_text;
use crate::core::proto::rate_limit_response::{Code, DescriptorStatus};
use crate::core::proto::{
    RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitServiceClient,
    rate_limit_descriptor,
};
use crate::core::time::Unit;
use crate::core::time::people::{self, grouped};
use crate::desk::admin::status::now;
use crate::limits::plan::key::EntryText;
use crate::limits::rules::compile::OneLine;
use crate::net::dial::Address;

/// The address of a service with default settings on this machine.
const USUAL_ADDRESS: &str = "127.0.0.1:8081";

/// The exit code of OVER_LIMIT, so that scripts can tell it from a failure.
const OVER_LIMIT: u8 = 3;

#[derive(Args, Debug)]
#[command(
    after_help = "Exit codes: 0 allowed, 3 over the limit, 2 invalid arguments, 1 any other \
        error.\n\n\
    Example: weir hit --domain demo path=/login remote_address=10.0.0.1 , remote_address=10.0.0.1"
)]
pub(super) struct Hit {
    /// Entries of the descriptor, in their order; a `,` between two entries begins the next
    /// descriptor
    #[arg(required = true, value_name = "KEY=VALUE")]
    entries: Vec<OsString>,
    /// Domain of the request
    #[arg(long, short)]
    domain: String,
    /// Address of the service's gRPC listener, or `unix:` and the path of its socket
    #[arg(long, default_value = USUAL_ADDRESS, value_name = "HOST:PORT", value_parser = address)]
    address: Address,
    #[command(flatten)]
    tls: TlsFlags,
    #[command(flatten)]
    admin: AdminFlags,
    /// Number of requests, sent one after the other; 1 or more
    #[arg(long, short = 'n', default_value = "1", value_parser = amount::between(1, u32::MAX.into()))]
    count: u64,
    /// Hits of each descriptor: 0 looks without counting, -3 gives three hits back [default: 1]
    #[arg(long, allow_hyphen_values = true, value_parser = amount::signed)]
    hits: Option<i64>,
    /// Longest wait for each answer, in milliseconds; 1 to 3600000
    #[arg(long, default_value_t = 1_000, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    timeout_ms: u64,
    /// Format of the output: text for people, json for programs, one object per request
    #[arg(long, default_value = "text", value_name = "text|json")]
    format: print::Format,
}

pub(super) fn run(hit: Hit) -> anyhow::Result<ExitCode> {
    print::block_on(ask(hit))
}

async fn ask(hit: Hit) -> anyhow::Result<ExitCode> {
    let request = request(&hit)?;
    let timeout = Duration::from_millis(hit.timeout_ms);
    let channel = connect(&hit.address, hit.tls.options()?.as_ref(), Some(timeout)).await?;
    let mut client = RateLimitServiceClient::new(channel);
    let (mut over, mut asked, mut known) = (false, Vec::new(), Vec::new());
    for _ in 0..hit.count {
        let answer = client.should_rate_limit(request.clone()).await;
        let response = answer
            .map_err(|status| request_error(&hit.address, &status))?
            .into_inner();
        over = response.overall_code() == Code::OverLimit;
        // An outage that begins or ends changes the answers, and others are not asked about again.
        let statuses = response.statuses.iter();
        let kinds: Vec<_> = statuses
            .map(|status| (status.code, is_without_limit(status)))
            .collect();
        if asked != kinds {
            (asked, known) = (kinds, hit.explained(&request).await);
        }
        let answer = HitAnswer::new(&request, &response, &known);
        if !hit
            .format
            .print(&answer, |_| describe(&request, &response, &known))?
        {
            break;
        }
    }
    Ok(ExitCode::from(if over { OVER_LIMIT } else { 0 }))
}

impl Hit {
    /// What the debug listener says of the descriptors: that of an `--admin`, or of a service whose
    /// addresses are the usual ones. Empty if it cannot be asked.
    async fn explained(&self, request: &RateLimitRequest) -> Vec<Explained> {
        let is_usual = self.address.to_string() == USUAL_ADDRESS;
        if !is_usual && self.admin.is_unset() {
            return Vec::new();
        }
        explained(&self.admin, request).await.unwrap_or_default()
    }
}

/// The error of the service; or, for a failure of the transport, its likely cause.
pub(super) fn request_error(address: &Address, status: &Status) -> anyhow::Error {
    let (code, message) = (status.code(), OneLine(status.message()));
    // Only a failure of the transport has a source: an answer is a code and a message.
    if std::error::Error::source(status).is_some()
        && code != tonic::Code::Cancelled
        && code != tonic::Code::DeadlineExceeded
    {
        return anyhow::anyhow!(
            "what listens at {address} does not speak gRPC ({message}); use the gRPC port, which \
             is 8081 unless GRPC_PORT is set, and TLS if GRPC_SERVER_USE_TLS is"
        );
    }
    anyhow::anyhow!("{code:?}: {message}")
}

fn request(hit: &Hit) -> anyhow::Result<RateLimitRequest> {
    let mut descriptors = entries::descriptors(&hit.entries)?;
    for descriptor in &mut descriptors {
        descriptor.hits_addend = hit.hits.map(i64::unsigned_abs);
        descriptor.is_negative_hits = hit.hits.is_some_and(i64::is_negative);
    }
    Ok(RateLimitRequest {
        domain: hit.domain.clone(),
        descriptors,
        hits_addend: 0,
    })
}

/// One line per descriptor. The overall code stands before a single descriptor, and on a line of
/// its own before several.
fn describe(
    request: &RateLimitRequest,
    response: &RateLimitResponse,
    known: &[Explained],
) -> String {
    let overall = code_name(response.overall_code());
    let lines: Vec<_> = request
        .descriptors
        .iter()
        .zip(&response.statuses)
        .enumerate()
        .map(|(index, (descriptor, status))| line(descriptor, status, known.get(index)))
        .collect();
    if let [(_, only)] = &lines[..] {
        return format!("{overall:<10}  {only}\n");
    }
    let mut text = format!("{overall}\n");
    for (code, line) in lines {
        text += &format!("  {code:<10}  {line}\n");
    }
    text
}

fn line(
    descriptor: &RateLimitDescriptor,
    status: &DescriptorStatus,
    known: Option<&Explained>,
) -> (&'static str, String) {
    let entry = |entry: &rate_limit_descriptor::Entry| entry_text(&entry.key, &entry.value);
    let entries: Vec<_> = descriptor.entries.iter().map(entry).collect();
    let entries = entries.join(" ");
    let mut limit = match &status.current_limit {
        None if status.limit_remaining == u32::MAX => "unlimited".to_owned(),
        // A limit that refuses is shown, also where a failure policy refuses.
        None if status.code() == Code::OverLimit => {
            "blocked by an override, without an end (weir explain says by which)".to_owned()
        }
        None => known
            .map_or(UNKNOWN_REASON, |known| &known.reason)
            .to_owned(),
        Some(limit) => {
            let unit = unit_name(limit.unit).unwrap_or("unknown unit");
            let per = match limit.unit_multiplier {
                Some(multiplier) => format!("{multiplier} {unit}s"),
                None => unit.to_owned(),
            };
            let name = match &*limit.name {
                "" => String::new(),
                name => format!(" ({name})"),
            };
            let reset = status
                .duration_until_reset
                .as_ref()
                .map(|duration| duration.seconds);
            let zone = known.and_then(|known| known.zone);
            let ahead = |seconds: i64| people::ahead(seconds as f64, now(), zone);
            let left = format!(
                "{} of {}",
                grouped(status.limit_remaining.into()),
                grouped(limit.requests_per_unit.into())
            );
            // A limit of requests in flight has no unit, and no time until a reset.
            match (limit.unit, reset) {
                (0, None) => format!("{left} in flight left{name}"),
                (0, Some(retry)) => {
                    format!("{left} in flight left{name}, retry in {}", ahead(retry))
                }
                (_, reset) => format!(
                    "{left} per {per} left{name}, resets in {}",
                    ahead(reset.unwrap_or(0))
                ),
            }
        }
    };
    if let (Some(_), Some(policy)) = (
        &status.current_limit,
        known.and_then(|known| known.policy.as_ref()),
    ) {
        limit += &format!("; {policy} answered");
    }
    (code_name(status.code()), format!("{entries}: {limit}"))
}

/// The reasons of a descriptor without a limit, where the debug listener is not asked.
const UNKNOWN_REASON: &str = "no limit: no file has the domain, no limit matches, or \
    on_store_failure: allow let it pass; with --admin the debug listener says which";

/// An answer as JSON.
#[derive(Serialize)]
struct HitAnswer<'a> {
    code: &'static str,
    descriptors: Vec<DescriptorAnswer<'a>>,
}

impl<'a> HitAnswer<'a> {
    fn new(
        request: &'a RateLimitRequest,
        response: &'a RateLimitResponse,
        known: &'a [Explained],
    ) -> Self {
        let descriptors = request.descriptors.iter().zip(&response.statuses);
        Self {
            code: code_name(response.overall_code()),
            descriptors: descriptors
                .enumerate()
                .map(|(index, (descriptor, status))| {
                    let (known, is_without) = (known.get(index), is_without_limit(status));
                    DescriptorAnswer {
                        reason: known.filter(|_| is_without).map(|known| &*known.reason),
                        policy: known.and_then(|known| known.policy.as_deref()),
                        ..DescriptorAnswer::new(descriptor, status)
                    }
                })
                .collect(),
        }
    }
}

#[derive(Serialize)]
struct DescriptorAnswer<'a> {
    entries: Vec<EntryText>,
    code: &'static str,
    /// A limit matches, and it is `unlimited: true`.
    unlimited: bool,
    /// Without a limit there is nothing left to count.
    limit: Option<AnsweredLimit<'a>>,
    /// Why there is none.
    reason: Option<&'a str>,
    /// The failure policy that answered in place of the store.
    policy: Option<&'a str>,
    left: Option<u32>,
    resets_in_seconds: Option<i64>,
}

#[derive(Serialize)]
struct AnsweredLimit<'a> {
    name: &'a str,
    requests_per_unit: u32,
    unit: Option<&'static str>,
    unit_multiplier: u32,
}

impl<'a> DescriptorAnswer<'a> {
    fn new(descriptor: &'a RateLimitDescriptor, status: &'a DescriptorStatus) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let entries = descriptor.entries.iter();
        let entries = entries.map(|entry| EntryText {
            key: text(&entry.key),
            value: text(&entry.value),
        });
        let limit = status.current_limit.as_ref().map(|limit| AnsweredLimit {
            name: &limit.name,
            requests_per_unit: limit.requests_per_unit,
            unit: unit_name(limit.unit),
            unit_multiplier: limit.unit_multiplier.unwrap_or(1),
        });
        Self {
            entries: entries.collect(),
            code: code_name(status.code()),
            unlimited: limit.is_none() && status.limit_remaining == u32::MAX,
            left: limit.as_ref().map(|_| status.limit_remaining),
            resets_in_seconds: status
                .duration_until_reset
                .as_ref()
                .map(|duration| duration.seconds),
            reason: None,
            policy: None,
            limit,
        }
    }
}

/// The name of a unit of the protocol.
fn unit_name(number: i32) -> Option<&'static str> {
    let unit = Unit::from_number(u64::try_from(number).ok()?)?;
    Some(unit.name())
}

fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
        Code::Unknown => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_without_a_limit_says_why() {
        let of = |code: Code, limit_remaining| {
            let status = DescriptorStatus {
                code: code.into(),
                limit_remaining,
                ..DescriptorStatus::default()
            };
            line(&RateLimitDescriptor::default(), &status, None).1
        };
        for (code, remaining, text) in [
            (Code::Ok, 0, ": no limit: no file has the domain"),
            (Code::Ok, u32::MAX, ": unlimited"),
            (
                Code::OverLimit,
                0,
                ": blocked by an override, without an end",
            ),
        ] {
            assert!(
                of(code, remaining).starts_with(text),
                "{}",
                of(code, remaining)
            );
        }
    }
}
