//! Rows that are made up in place of a trace: templates of descriptors at a rate, with a daily
//! curve, a burst, or one subject that sends too much. A seed repeats them.

use std::f64::consts::TAU;

use clap::Args;
use prost::Message;

use super::trace::{Requests, Row};
use crate::cli::UsageError;
use crate::cli::workload::{ArrivalKind, Arrivals, Template};
use crate::core::proto::RateLimitRequest;
use crate::core::time::{Micros, Span};

/// When workloads begin: 2026-01-01 at midnight UTC, so that a run can be repeated.
pub(super) const BEGIN: Micros = Micros(1_767_225_600_000_000);

/// How far a daily curve goes above and below the mean, which it has in the morning and in the
/// evening; it is lowest at 04:00 UTC.
const DAILY: f64 = 0.8;
const LOWEST_HOUR: f64 = 4.0;

/// The rows of a workload.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Workload")]
pub(super) struct WorkloadFlags {
    /// Make rows of --descriptor and --domain up, in place of a trace: from 2026-01-01 UTC on
    #[arg(long, conflicts_with_all = ["trace", "sort"], requires_all = ["rate", "for_", "descriptor", "domain"])]
    workload: bool,
    /// Requests a second of a workload
    #[arg(long, value_name = "NUMBER", value_parser = rate, requires = "workload")]
    rate: Option<f64>,
    /// Duration of a workload, such as 24h
    #[arg(long = "for", id = "for_", value_name = "DURATION", value_parser = super::duration, requires = "workload")]
    lasts: Option<Span>,
    /// How requests of a workload are spread
    #[arg(long, value_name = "constant|poisson", default_value = "poisson")]
    arrivals: ArrivalKind,
    /// Follow a daily curve around --rate: a fifth of it at 04:00 UTC, 1.8 times at 16:00
    #[arg(long, requires = "workload")]
    day: bool,
    /// A burst in the middle of a workload, such as 10x/30s: ten times the rate for 30 s
    #[arg(long, value_name = "FACTORx/DURATION", value_parser = burst, requires = "workload")]
    burst: Option<(f64, Span)>,
    /// One subject, the first that is made up, sends this share of all requests, such as 50%
    #[arg(long, value_name = "PERCENT", value_parser = super::percent, requires = "workload")]
    attack: Option<f64>,
    /// Seed of all that is drawn
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(super) seed: u64,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (1e-6..=1e9).contains(rate));
    rate.ok_or_else(|| "write requests a second, from 0.000001 to 1000000000".to_owned())
}

fn burst(text: &str) -> Result<(f64, Span), String> {
    let parts = text.split_once("x/");
    let burst =
        parts.and_then(|(factor, span)| Some((factor.parse().ok()?, super::duration(span).ok()?)));
    let burst = burst.filter(|(factor, _)| (1.0..=1e6).contains(factor));
    burst.ok_or_else(|| "write a factor and a duration, such as 10x/30s".to_owned())
}

/// Makes rows up.
pub(super) struct Workload {
    requests: Requests,
    arrivals: Arrivals,
    random: fastrand::Rng,
    /// The highest rate; lower ones are a part of it.
    peak: f64,
    flags: WorkloadFlags,
    lasts: Span,
    /// The request of the subject that sends too much.
    attack: Option<RateLimitRequest>,
    line: u64,
}

impl Workload {
    /// The workload of these flags; `None` if there is to be a trace. `requests` are its requests.
    ///
    /// # Errors
    /// A template names fields, which a workload does not have.
    pub(super) fn new(
        flags: &WorkloadFlags,
        mut requests: Requests,
    ) -> Result<Option<Self>, UsageError> {
        let (true, Some(rate), Some(lasts)) = (flags.workload, flags.rate, flags.lasts) else {
            return Ok(None);
        };
        let mut fields = requests.templates.iter().flat_map(Template::fields);
        if let Some(field) = fields.next() {
            let what =
                format!("--descriptor: {{{field}}} is a field of a trace, and --workload has none");
            return Err(UsageError(what));
        }
        let day = if flags.day { 1.0 + DAILY } else { 1.0 };
        let burst = flags.burst.map_or(1.0, |(factor, _)| factor);
        let share = flags.attack.unwrap_or(0.0) / 100.0;
        let peak = rate * day * burst / (1.0 - share).max(1e-3);
        Ok(Some(Self {
            arrivals: Arrivals::new(flags.arrivals, peak),
            random: fastrand::Rng::with_seed(flags.seed),
            peak,
            attack: flags.attack.map(|_| requests.made_up()),
            flags: flags.clone(),
            lasts,
            requests,
            line: 0,
        }))
    }

    /// The instant at which it ends.
    pub(super) fn end(&self) -> Micros {
        BEGIN + self.lasts
    }

    /// The next row, in the order of time; `None` after the last one.
    pub(super) fn next(&mut self) -> Option<Row> {
        loop {
            let after = Span::from(self.arrivals.next(&mut self.random));
            if after >= self.lasts {
                return None;
            }
            let is_attack = self.random.f64() < self.flags.attack.unwrap_or(0.0) / 100.0;
            let request = match &self.attack {
                Some(request) if is_attack => request.clone(),
                _ if self.random.f64() * self.peak_of_others() < self.rate_at(after) => {
                    self.requests.made_up()
                }
                _ => continue,
            };
            self.line += 1;
            return Some(Row {
                at: BEGIN + after,
                line: self.line,
                duration: None,
                message: request.encode_to_vec(),
            });
        }
    }

    fn peak_of_others(&self) -> f64 {
        self.peak * (1.0 - self.flags.attack.unwrap_or(0.0) / 100.0)
    }

    /// The rate of all but the attack, so long after the begin.
    fn rate_at(&self, after: Span) -> f64 {
        let seconds = |span: Span| span.micros() as f64 / 1e6;
        let mut rate = self.flags.rate.unwrap_or(0.0);
        if self.flags.day {
            let hour = seconds(after) / 3_600.0;
            rate *= 1.0 - DAILY * (TAU * (hour - LOWEST_HOUR) / 24.0).cos();
        }
        if let Some((factor, length)) = self.flags.burst {
            let from_middle = (seconds(after) - seconds(self.lasts) / 2.0).abs();
            rate *= if from_middle * 2.0 < seconds(length) {
                factor
            } else {
                1.0
            };
        }
        rate
    }
}
