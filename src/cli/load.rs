//! `weir load`: traffic for any server of `envoy.service.ratelimit.v3`, how fast it answers, and
//! whether its limits are exact.

pub mod client;
mod connection;
pub mod cpu;
pub(super) mod exact;
mod report;

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue};
use indicatif::{ProgressBar, ProgressStyle};

use super::amount;
use super::connect::{self, ClientTlsFlags, address, usual_address};
use super::workload::{ArrivalKind, Fields, Hits, Requests, Templates};
use super::{UsageError, print, success_if};
use crate::net::dial::Address;
use client::{Answered, Client, EncodedRequest, Failure, Load, Options, Pace, Tally, Until};
use cpu::MeasuredProcess;
use exact::{Exactness, ExpectedHits};
use report::{LoadReport, LoadStep, step};

/// The most descriptors of a request.
const MAX_DESCRIPTORS: usize = 64;

/// Steps of a ramp.
const RAMP_STEPS: usize = 10;

/// The time of a load that has no end of its own.
const DEFAULT_TIME: Duration = Duration::from_secs(10);

/// Headers that the client sends itself, or that HTTP/2 does not have.
const OWN_HEADERS: &str =
    "connection content-length content-type grpc-timeout host te transfer-encoding upgrade";

#[derive(Args, Debug)]
#[command(
    after_help = "Values: {uniform:A..B}, {zipf:A..B:EXPONENT}, {sequence}, {uuid}, {file:PATH}; a \
        backslash takes the next character as it is.\n\n\
    Exit codes: 0 done, 1 not exact, above a maximum, or no answers, 2 invalid arguments. Ctrl-C \
        ends with the result so far.\n\n\
    Example: weir load localhost:8081 --domain demo --descriptor \
        'remote_address=10.0.{uniform:0..255}.{uniform:1..254}' --rate 20k --for 30s"
)]
pub(super) struct LoadCommand {
    /// Connect to the gRPC listener at this address: HOST:PORT, or unix:PATH [default:
    /// 127.0.0.1:8081]
    #[arg(value_name = "HOST:PORT", value_parser = address)]
    service: Option<Address>,
    /// Connect to the gRPC listener at this address, as the first argument does
    #[arg(long, value_name = "HOST:PORT", value_parser = address, conflicts_with = "service")]
    address: Option<Address>,
    /// Send requests for this domain
    #[arg(long, short)]
    domain: String,
    /// Send this descriptor in each request: entries separated by spaces or commas, with generated
    /// values; ` , ` begins the next descriptor. Repeatable, at most 64 descriptors
    #[arg(long, required = true, value_name = "KEY=VALUE ...", value_parser = templates)]
    descriptor: Vec<Templates>,
    /// Send this many hits in each descriptor: a number, or {uniform:A..B} [default: 1]
    #[arg(long, value_name = "HITS", value_parser = Hits::parse)]
    hits: Option<Hits>,
    /// Send this many requests per second; 1 to 1G [default: each when an earlier one is answered]
    #[arg(long, value_name = "AMOUNT", value_parser = amount::rate, allow_hyphen_values = true)]
    #[arg(group = "pace")]
    rate: Option<f64>,
    /// Send at rates from A to B requests per second, such as 1k..20k: in 10 equal steps, each for a
    /// tenth of the time, and report each
    #[arg(long, value_name = "A..B", value_parser = ramp, conflicts_with = "iterations")]
    #[arg(group = "pace")]
    ramp: Option<[f64; 2]>,
    /// Use constant inter-arrival times with --rate or --ramp, or random ones as in a Poisson process
    #[arg(long, value_name = "constant|poisson", default_value = "constant")]
    #[arg(requires = "pace")]
    arrivals: ArrivalKind,
    /// Keep at most this many requests in flight; 1 to 100000
    #[arg(long = "concurrency", value_name = "COUNT", default_value = "64")]
    #[arg(value_parser = amount::between(1, 100_000))]
    max_in_flight: u64,
    /// Open this many connections, used in turn; 1 to 1000
    #[arg(long, value_name = "COUNT", default_value = "4")]
    #[arg(value_parser = amount::between(1, 1_000))]
    connections: u64,
    /// Stop after this many requests; 1 or more
    #[arg(long, value_name = "COUNT", value_parser = amount::between(1, u64::MAX))]
    iterations: Option<u64>,
    /// Stop after this time, such as 30s or 5m [default: 10s, without --iterations]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    time: Option<Duration>,
    /// Abort a request after this time, which is also its deadline for the server; 1ms to 1h
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = timeout)]
    timeout: Duration,
    /// Seed random values and inter-arrival times; the same seed repeats the load
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    tls: ClientTlsFlags,
    /// Add a header to each request, such as credentials; repeatable
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// Expect this many OK answers
    #[arg(long, value_name = "COUNT", value_parser = amount::whole)]
    expect_ok: Option<u64>,
    /// Expect that each distinct descriptor is granted this many hits per clock-aligned second,
    /// minute, hour or day, or a multiple such as 20/30 seconds, if it sends more. A number selects
    /// one descriptor of the requests, as in 2=5/minute; repeatable, for another one
    #[arg(long = "threshold", value_name = "[NUMBER=]HITS/UNIT")]
    #[arg(value_parser = ExpectedHits::parse)]
    expected: Vec<ExpectedHits>,
    /// Fail if the 99th percentile of the latency, of each step with --ramp, is longer, such as 5ms
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    max_p99: Option<Duration>,
    /// Fail if more requests than this get no answer
    #[arg(long, value_name = "COUNT", value_parser = amount::whole)]
    max_errors: Option<u64>,
    /// Measure the CPU time of this process on this machine, shown as NAME; repeatable
    #[arg(long, value_name = "NAME=PID", value_parser = MeasuredProcess::parse)]
    pid: Vec<MeasuredProcess>,
    /// Print the result in this format
    #[arg(long, default_value = "text", value_name = "text|json")]
    format: print::Format,
}

fn templates(text: &str) -> Result<Templates, String> {
    Templates::parse(text, Fields::None)
}

fn duration(text: &str) -> Result<Duration, String> {
    let time = Some(super::duration(text)?).filter(|time| !time.is_zero());
    time.ok_or_else(|| "write more than 0".to_owned())
}

fn ramp(text: &str) -> Result<[f64; 2], String> {
    let (first, last) = text.split_once("..").ok_or("write A..B, such as 1k..20k")?;
    Ok([amount::rate(first)?, amount::rate(last)?])
}

fn timeout(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(1)..=Duration::from_secs(3_600);
    let time = Some(duration(text)?).filter(|time| range.contains(time));
    time.ok_or_else(|| "write 1ms to 1h".to_owned())
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write NAME: VALUE")?;
    let name = HeaderName::try_from(name).map_err(|_| "the name is not a header name")?;
    let value = HeaderValue::try_from(value.trim());
    let mut value = value.map_err(|_| "the value is not a header value")?;
    value.set_sensitive(true);
    if OWN_HEADERS.split(' ').any(|own| own == name.as_str()) {
        let why = "the client sends its own, or HTTP/2 has none";
        return Err(format!("{name} cannot be set; {why}"));
    }
    Ok((name, value))
}

pub(super) fn run(command: LoadCommand) -> anyhow::Result<ExitCode> {
    check_usage(&command)?;
    print::block_on(load(command))
}

fn check_usage(command: &LoadCommand) -> Result<(), UsageError> {
    let descriptors = command.descriptor.iter().map(|all| all.0.len());
    let descriptors: usize = descriptors.sum();
    let (expected, all) = (&command.expected, 1..=descriptors);
    let numbers = expected.iter().map(|one| one.descriptor.unwrap_or(0));
    let numbers: HashSet<_> = numbers.collect();
    let is_one = expected.len() == 1 && numbers.contains(&0);
    let are_distinct = numbers.len() == expected.len();
    let are_right = are_distinct && numbers.iter().all(|one| all.contains(one));
    let time = command.time.unwrap_or(DEFAULT_TIME);
    let slowest = command.ramp.map(|[first, last]| first.min(last));
    let least = slowest.map(|slowest| (RAMP_STEPS as f64 / slowest).ceil());
    let mut names = HashSet::from([cpu::OWN]);
    let mut processes = command.pid.iter().map(|process| &*process.name);
    let what = if descriptors > MAX_DESCRIPTORS {
        format!("a request has at most {MAX_DESCRIPTORS} descriptors")
    } else if !is_one && !are_right {
        format!(
            "--threshold: write one for all descriptors, or each with another number from 1 to \
             {descriptors}, such as 1=5/minute"
        )
    } else if let Some(least) = least.filter(|least| time.as_secs_f64() < *least) {
        format!("--ramp: a step is too short for one request; write --for {least}s or more")
    } else if command.expect_ok.is_some() && command.hits.as_ref().is_some_and(Hits::are_none) {
        "--expect-ok: requests of 0 hits count nothing; write --hits 1 or more".to_owned()
    } else if let Some(name) = processes.find(|name| !names.insert(name)) {
        let own = cpu::OWN;
        format!("--pid: `{name}` names another process as well; `{own}` is this one")
    } else {
        return Ok(());
    };
    Err(UsageError(what))
}

/// The requests, what is counted of their answers, and the progress line.
struct Traffic {
    requests: Requests,
    exactness: Vec<Exactness>,
    bar: ProgressBar,
    until: Until,
    /// The time and the requests of the last progress line.
    last_progress: (Duration, u64),
}

impl Load for Traffic {
    fn next(&mut self) -> EncodedRequest {
        // The templates have no fields.
        EncodedRequest::new(self.requests.of_record(|_, _| None))
    }

    fn answered(&mut self, answered: &Answered) {
        for exactness in &mut self.exactness {
            exactness.take(answered);
        }
    }

    fn progress(&mut self, tally: &Tally) {
        let done = tally.answered() + tally.failed();
        let (time, count) = self.last_progress;
        let seconds = tally.elapsed.saturating_sub(time).as_secs_f64();
        if seconds > 0.0 && !self.bar.is_hidden() {
            let per_second = (done - count) as f64 / seconds;
            (self.bar).set_message(report::progress(tally, per_second, self.until));
            self.last_progress = (tally.elapsed, done);
        }
    }
}

async fn load(command: LoadCommand) -> anyhow::Result<ExitCode> {
    let tls = command.tls.options()?;
    let address = command.service.or(command.address);
    let address = address.unwrap_or_else(usual_address);
    let options = Options {
        dial: connect::dial(&address, tls.as_ref())?,
        connections: command.connections as usize,
        max_in_flight: command.max_in_flight as usize,
        timeout: command.timeout,
        headers: command.header.into_iter().collect::<HeaderMap>(),
        traces: false,
    };
    connect::check_accepted(&options.dial).await?;
    let no_service = |failure: Failure| anyhow!("no service at {address}: {}", failure.message);
    let client = Client::connect(&options).await.map_err(no_service)?;
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{wide_msg}").context("the progress line")?);
    let default_time = command.iterations.is_none().then_some(DEFAULT_TIME);
    let rates = command.ramp.map_or_else(|| vec![command.rate], rates);
    let until = Until {
        iterations: command.iterations,
        time: command.time.or(default_time),
    };
    let (domain, seed) = (Some(command.domain), command.seed);
    let mut traffic = Traffic {
        until,
        requests: Requests::new(domain, &command.descriptor, command.hits, seed),
        exactness: Exactness::all(&command.expected, command.timeout).collect(),
        bar,
        last_progress: (Duration::ZERO, 0),
    };
    let pace = |per_second: f64| Pace::Rate {
        per_second,
        arrivals: command.arrivals,
        seed,
    };
    let own = MeasuredProcess::own();
    let (tally, steps) = run_steps(&client, &mut traffic, &rates, pace).await;
    traffic.bar.finish_and_clear();
    let processes: Vec<_> = command.pid.into_iter().chain(own).collect();
    let exactness = traffic.exactness.into_iter();
    let exactness = exactness.map(Exactness::finish).collect();
    let mut report = LoadReport::new(&tally, &processes, command.expect_ok, exactness, steps);
    report.compare(command.max_p99, command.max_errors);
    command.format.print(&report, LoadReport::text)?;
    Ok(success_if(report.is_success()))
}

/// The rates of a ramp, both ends included.
fn rates([first, last]: [f64; 2]) -> Vec<Option<f64>> {
    let rise = (last - first) / (RAMP_STEPS - 1) as f64;
    let steps = (0..RAMP_STEPS).map(|step| Some(first + rise * step as f64));
    steps.collect()
}

/// Runs one step for each rate, each after the answers of the one before, until Ctrl-C. Returns all
/// of it, and its steps.
async fn run_steps(
    client: &Client,
    traffic: &mut Traffic,
    rates: &[Option<f64>],
    pace: impl Fn(f64) -> Pace,
) -> (Tally, Vec<LoadStep>) {
    let (mut tally, mut steps) = (Tally::default(), Vec::new());
    let (stop, until) = (stopped().boxed_local().shared(), traffic.until);
    let until = Until {
        time: until.time.map(|time| time / rates.len() as u32),
        ..until
    };
    for rate in rates {
        let (before, pace) = (tally.clone(), rate.map_or(Pace::Closed, &pace));
        let run = client.run(&mut tally, traffic, pace, until, stop.clone());
        run.await;
        let rate = rate.filter(|_| rates.len() > 1);
        steps.push(step(rate, &before, &tally));
        if stop.peek().is_some() {
            break;
        }
    }
    (tally, steps)
}

/// Waits for Ctrl-C; for ever where the system does not report it.
async fn stopped() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
