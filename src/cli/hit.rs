//! `weir hit`: sends requests to a running service, and prints its answers.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tonic::Status;

use super::admin::AdminFlags;
use super::connect::{ClientTlsFlags, address, connect, until_connected, usual_address};
use super::explain::{Explained, explained};
use super::load::client::is_without_limit;
use super::load::exact::{unit_of, window};
use super::{UsageError, amount, entries, print};
use crate::admin::api::status::now;
use crate::core::proto::rate_limit_response::{Code, DescriptorStatus};
use crate::core::proto::{
    RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitServiceClient,
};
use crate::core::time::people::{self, grouped};
use crate::core::time::{Unit, Zone};
use crate::limits::plan::key::EntryText;
use crate::limits::rules::compile::OneLine;
use crate::net::dial::Address;

/// Exit code of OVER_LIMIT, which is not the exit code of a failure.
const OVER_LIMIT: u8 = 3;

#[derive(Args, Debug)]
#[command(
    after_help = "Exit codes: 0 allowed, 3 over the limit, 2 invalid arguments, 1 any other \
        error.\n\n\
    Example: weir hit --domain demo path=/login remote_address=10.0.0.1 , remote_address=10.0.0.1"
)]
pub(super) struct Hit {
    /// Send a descriptor with these entries, in order; a separate `,` begins the next one. The
    /// first argument can be the address instead of --address
    #[arg(required = true, value_name = "KEY=VALUE")]
    entries: Vec<OsString>,
    /// Send requests for this domain
    #[arg(long, short)]
    domain: String,
    /// Connect to the gRPC listener at this address: HOST:PORT, or unix:PATH [default:
    /// 127.0.0.1:8081]
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    address: Option<Address>,
    #[command(flatten)]
    tls: ClientTlsFlags,
    /// Send this many requests, one after the other; 1 or more
    #[arg(long, short = 'n', default_value = "1", value_parser = amount::between(1, u32::MAX.into()))]
    count: u64,
    /// Send this many hits in each descriptor; 0 peeks without counting, a negative number refunds
    /// hits [default: 1]
    #[arg(long, allow_hyphen_values = true, value_parser = amount::signed)]
    hits: Option<i64>,
    /// Abort a request after this many milliseconds, and connect again for as long while nothing
    /// listens; 1 to 3600000
    #[arg(long, default_value_t = 1_000, value_name = "MILLISECONDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    timeout_ms: u64,
    /// Print answers in this format; json prints one object per request
    #[arg(long, default_value = "text", value_name = "text|json")]
    format: print::Format,
    #[command(flatten)]
    admin: AdminFlags,
}

pub(super) fn run(hit: Hit) -> anyhow::Result<ExitCode> {
    print::block_on(send(hit))
}

async fn send(mut hit: Hit) -> anyhow::Result<ExitCode> {
    let address = hit.take_address()?;
    let request = request(&hit)?;
    let timeout = Duration::from_millis(hit.timeout_ms);
    let tls = hit.tls.options()?;
    let dial = || connect(&address, tls.as_ref(), Some(timeout));
    let channel = until_connected(timeout, dial).await?;
    let mut client = RateLimitServiceClient::new(channel);
    let (mut over, mut asked, mut known) = (false, Vec::new(), Vec::new());
    for _ in 0..hit.count {
        let answer = client.should_rate_limit(request.clone()).await;
        let answer = answer.map_err(|status| request_error(&address, &status))?;
        let response = answer.into_inner();
        over = response.overall_code() == Code::OverLimit;
        // Explanations are fetched again only if the kinds of answers change, as when an outage
        // begins or ends.
        let kind = |status: &DescriptorStatus| (status.code, is_without_limit(status));
        let kinds: Vec<_> = response.statuses.iter().map(kind).collect();
        if asked != kinds {
            (asked, known) = (kinds, hit.explained(&address, &request).await);
        }
        let answer = HitAnswer::new(&request, &response, &known);
        if !hit.format.print(&answer, HitAnswer::text)? {
            break;
        }
    }
    Ok(ExitCode::from(if over { OVER_LIMIT } else { 0 }))
}

impl Hit {
    /// The address: `--address`, or the first argument, which is no entry.
    fn take_address(&mut self) -> Result<Address, UsageError> {
        let first = self.entries.first().and_then(|first| first.to_str());
        let first = first.filter(|first| !first.contains('='));
        let first = first.and_then(|first| address(first).ok());
        if first.is_some() {
            self.entries.remove(0);
        }
        match (first, self.address.take()) {
            (Some(first), Some(flag)) => Err(UsageError(format!(
                "two addresses are given, {first} and --address {flag}; leave out one"
            ))),
            (first, flag) => Ok(first.or(flag).unwrap_or_else(usual_address)),
        }
    }

    /// Explanations of the descriptors by the debug listener of `--admin`, or by the usual one if
    /// the service has its usual address. Empty if there is no answer.
    async fn explained(&self, address: &Address, request: &RateLimitRequest) -> Vec<Explained> {
        if *address != usual_address() && self.admin.is_unset() {
            return Vec::new();
        }
        explained(&self.admin, request).await.unwrap_or_default()
    }
}

/// The error of the service; or, for a failure of the transport, its likely cause.
pub(super) fn request_error(address: &Address, status: &Status) -> anyhow::Error {
    let (code, message) = (status.code(), OneLine(status.message()));
    // Only a failure of the transport has a source: an answer is a code and a message.
    let is_late = matches!(code, tonic::Code::Cancelled | tonic::Code::DeadlineExceeded);
    if std::error::Error::source(status).is_some() && !is_late {
        return anyhow::anyhow!(
            "what listens at {address} does not speak gRPC ({message}); use the gRPC port, which \
             is 8081 unless GRPC_PORT is set, and TLS if GRPC_SERVER_USE_TLS is"
        );
    }
    anyhow::anyhow!("{code:?}: {message}")
}

fn request(hit: &Hit) -> anyhow::Result<RateLimitRequest> {
    let mut descriptors = entries::descriptors(&hit.entries, <[u8]>::to_vec)?;
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

/// Possible reasons for a descriptor without a limit, if the debug listener does not answer.
const UNKNOWN_REASON: &str = "no limit: no file has the domain, no limit matches, or \
    on_store_failure: allow let it pass; with --admin the debug listener says which";

const BLOCKED: &str = "blocked by an override, without an end (weir explain says by which)";

/// An answer, as JSON shows it.
#[derive(Serialize)]
struct HitAnswer<'a> {
    code: &'static str,
    descriptors: Vec<DescriptorAnswer<'a>>,
}

#[derive(Serialize)]
struct DescriptorAnswer<'a> {
    entries: Vec<EntryText>,
    code: &'static str,
    /// A limit matches, and it is `unlimited: true`.
    unlimited: bool,
    /// `None` if no limit applies; then `left` is missing too.
    limit: Option<AnsweredLimit<'a>>,
    /// The reason why there is no limit.
    reason: Option<&'a str>,
    /// The failure policy that answered instead of the store.
    policy: Option<&'a str>,
    /// The time zone of the limit's calendar.
    #[serde(skip)]
    zone: Option<Zone>,
    left: Option<u32>,
    resets_in_seconds: Option<i64>,
}

#[derive(Serialize)]
struct AnsweredLimit<'a> {
    name: &'a str,
    requests_per_unit: u32,
    /// `None` for a limit of requests in flight.
    unit: Option<&'static str>,
    unit_multiplier: u32,
}

impl<'a> HitAnswer<'a> {
    fn new(
        request: &RateLimitRequest,
        response: &'a RateLimitResponse,
        known: &'a [Explained],
    ) -> Self {
        let all = request.descriptors.iter().zip(&response.statuses);
        let known = known.iter().map(Some).chain(std::iter::repeat(None));
        let all = all.zip(known);
        let descriptors =
            all.map(|((own, status), known)| DescriptorAnswer::new(own, status, known));
        Self {
            code: response.overall_code().as_str_name(),
            descriptors: descriptors.collect(),
        }
    }

    /// One line per descriptor. The overall code begins the line of a single descriptor, and has a
    /// line of its own before several.
    fn text(&self) -> String {
        let overall = self.code;
        if let [only] = &self.descriptors[..] {
            return format!("{overall:<10}  {}\n", only.text());
        }
        let line = |one: &DescriptorAnswer<'_>| format!("  {:<10}  {}\n", one.code, one.text());
        let lines: String = self.descriptors.iter().map(line).collect();
        format!("{overall}\n{lines}")
    }
}

impl<'a> DescriptorAnswer<'a> {
    fn new(
        descriptor: &RateLimitDescriptor,
        status: &'a DescriptorStatus,
        known: Option<&'a Explained>,
    ) -> Self {
        let limit = status.current_limit.as_ref().map(|limit| AnsweredLimit {
            name: &limit.name,
            requests_per_unit: limit.requests_per_unit,
            unit: unit_of(limit).map(Unit::name),
            unit_multiplier: limit.unit_multiplier.unwrap_or(1),
        });
        let reset = status.duration_until_reset.as_ref();
        let without = known.filter(|_| is_without_limit(status));
        Self {
            entries: descriptor.entries.iter().map(entries::text).collect(),
            code: status.code().as_str_name(),
            unlimited: limit.is_none() && status.limit_remaining == u32::MAX,
            left: limit.as_ref().map(|_| status.limit_remaining),
            resets_in_seconds: reset.map(|duration| duration.seconds),
            reason: without.map(|known| &*known.reason),
            policy: known.and_then(|known| known.policy.as_deref()),
            zone: known.and_then(|known| known.zone),
            limit,
        }
    }

    fn text(&self) -> String {
        let entries: Vec<_> = self.entries.iter().map(EntryText::to_string).collect();
        let entries = entries.join(" ");
        let Some(limit) = &self.limit else {
            let why = match self.code {
                _ if self.unlimited => "unlimited",
                // Only an override refuses without a limit: the answer has the limit that refuses,
                // also if its failure policy does.
                "OVER_LIMIT" => BLOCKED,
                _ => self.reason.unwrap_or(UNKNOWN_REASON),
            };
            return format!("{entries}: {why}");
        };
        let amounts = [self.left.unwrap_or_default(), limit.requests_per_unit];
        let [left, amount] = amounts.map(|amount| grouped(amount.into()));
        let (per, word) = match limit.unit {
            None => ("in flight".to_owned(), "retry"),
            Some(unit) => {
                let unit = window(limit.unit_multiplier.into(), unit);
                (format!("per {unit}"), "resets")
            }
        };
        let mut text = format!("{entries}: {left} of {amount} {per} left");
        if !limit.name.is_empty() {
            text += &format!(" ({})", limit.name);
        }
        if let Some(seconds) = self.resets_in_seconds.or(limit.unit.map(|_| 0)) {
            let ahead = people::ahead(seconds as f64, now(), self.zone);
            text += &format!(", {word} in {ahead}");
        }
        if let Some(policy) = self.policy {
            text += &format!("; {policy} answered");
        }
        text
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
            DescriptorAnswer::new(&RateLimitDescriptor::default(), &status, None).text()
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
