//! Rows that are made up in place of a trace: templates of descriptors at a rate, with a daily
//! curve, a burst, or one subject that sends too much. A seed repeats them.

use std::f64::consts::TAU;

use clap::Args;
use prost::Message;

use super::trace::Row;
use crate::cli::UsageError;
use crate::cli::workload::{ArrivalKind, Arrivals, Requests, Template};
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
    #[arg(long, value_name = "PERCENT", value_parser = attack, requires = "workload")]
    attack: Option<f64>,
    /// Seed of all that is drawn
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(super) seed: u64,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (1e-6..=1e9).contains(rate));
    rate.ok_or_else(|| "write requests a second, from 0.000001 to 1000000000".to_owned())
}

/// A share that leaves something to others.
fn attack(text: &str) -> Result<f64, String> {
    let share = super::percent(text).ok().filter(|share| *share <= 99.0);
    share.ok_or_else(|| "write a share such as 50%, from 0% to 99%".to_owned())
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
    /// The highest rate of all but the attack; lower ones are a part of it.
    peak: f64,
    /// The part of the requests that the attack is.
    share: f64,
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
        let peak = rate * day * burst;
        Ok(Some(Self {
            arrivals: Arrivals::new(flags.arrivals, peak / (1.0 - share)),
            random: fastrand::Rng::with_seed(flags.seed),
            peak,
            share,
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
            if self.random.f64() * self.peak >= self.rate_at(after) {
                continue;
            }
            let is_attack = self.random.f64() < self.share;
            let request = match &self.attack {
                Some(request) if is_attack => request.clone(),
                _ => self.requests.made_up(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::workload::Fields;

    fn rows(flags: &WorkloadFlags) -> Vec<Row> {
        let template = Template::parse("user={uniform:1..1000000}", Fields::Allowed);
        let requests = Requests {
            domain: Some("d".to_owned()),
            templates: vec![template.expect("a template")],
            ..Requests::default()
        };
        let workload = Workload::new(flags, requests).expect("no fields");
        let mut workload = workload.expect("a workload");
        std::iter::from_fn(|| workload.next()).collect()
    }

    /// Two a second for a day, and as many of the attack if it has half of all.
    fn flags(attack: f64, burst: Option<(f64, Span)>, day: bool) -> WorkloadFlags {
        WorkloadFlags {
            workload: true,
            rate: Some(2.0),
            lasts: Some(Span::from_secs(86_400)),
            arrivals: ArrivalKind::Poisson,
            day,
            burst,
            attack: Some(attack),
            seed: 3,
        }
    }

    #[test]
    fn an_attack_has_its_share_whatever_the_shape_is() {
        let burst = Some((10.0, Span::from_secs(3_600)));
        for (day, burst, expected) in [
            (false, None, 345_600.0),
            (true, None, 345_600.0),
            (false, burst, 345_600.0 * 33.0 / 24.0),
        ] {
            let rows = rows(&flags(50.0, burst, day));
            let first = &rows.iter().find(|row| {
                let same = rows
                    .iter()
                    .take(50)
                    .filter(|other| other.message == row.message);
                same.count() > 5
            });
            let attack = &first.expect("one that sends too much").message;
            let count = rows.iter().filter(|row| row.message == *attack).count() as f64;
            let share = count / rows.len() as f64;
            assert!((0.48..0.52).contains(&share), "{share} {day} {burst:?}");
            let all = rows.len() as f64 / expected;
            assert!((0.97..1.03).contains(&all), "{all} {day} {burst:?}");
        }
        assert!(attack("99%").is_ok() && attack("99.5%").is_err());
    }
}
