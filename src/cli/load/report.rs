//! The result of a load, as text and as JSON.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use jiff::Timestamp;
use serde::Serialize;

use super::super::print;
use super::super::size::amount::grouped;
use super::client::Tally;
use super::cpu::Process;
use super::exact::{ExactnessReport, Offender, Threshold};
use crate::core::time::people;

/// What a result is made of.
pub(super) struct Context<'a> {
    pub(super) tally: &'a Tally,
    pub(super) rate: Option<f64>,
    pub(super) concurrency: u32,
    pub(super) connections: u32,
    pub(super) processes: &'a [Process],
    pub(super) expected_ok: Option<u64>,
    pub(super) exactness: Option<(Threshold, ExactnessReport)>,
}

/// The result. Times are in the units of their names.
#[derive(Debug, Serialize)]
pub(super) struct LoadReport {
    seconds: f64,
    concurrency: u32,
    connections: u32,
    sent: u64,
    answered: u64,
    ok: u64,
    over_limit: u64,
    per_second: f64,
    errors: BTreeMap<String, Failures>,
    /// Under way when the load was stopped.
    unfinished: u64,
    reconnections: u64,
    rate: Option<f64>,
    sent_late: u64,
    not_sent: u64,
    latency_ms: Latency,
    /// `None` for a process that has ended.
    cpu_micros_per_request: BTreeMap<String, Option<f64>>,
    expected_ok: Option<ExpectedOk>,
    threshold: Option<ThresholdReport>,
    exact: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Failures {
    count: u64,
    /// Of the first one.
    message: String,
}

#[derive(Debug, Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    p99_9: f64,
    max: f64,
}

#[derive(Debug, Serialize)]
struct ExpectedOk {
    expected: u64,
    exact: bool,
}

#[derive(Debug, Serialize)]
struct ThresholdReport {
    hits: u64,
    unit: &'static str,
    #[serde(flatten)]
    report: ExactnessReport,
}

fn quantile_ms(latency: &Histogram<u64>, quantile: f64) -> f64 {
    latency.value_at_quantile(quantile) as f64 / 1e3
}

impl LoadReport {
    pub(super) fn new(context: Context<'_>) -> Self {
        let tally = context.tally;
        let seconds = tally.elapsed.as_secs_f64();
        let failures = tally.failures.iter().map(|(kind, (count, message))| {
            let (count, message) = (*count, message.clone());
            (kind.to_string(), Failures { count, message })
        });
        let cpu = context.processes.iter().map(|process| {
            let used = process.used_micros();
            (
                process.name.clone(),
                used.map(|micros| micros / tally.sent.max(1) as f64),
            )
        });
        let expected_ok = context.expected_ok.map(|expected| {
            let expected = expected.min(tally.sent);
            ExpectedOk {
                expected,
                exact: tally.ok == expected,
            }
        });
        let threshold = context
            .exactness
            .map(|(threshold, report)| ThresholdReport {
                hits: threshold.hits,
                unit: threshold.unit.name(),
                report,
            });
        let is_checked = expected_ok.is_some() || threshold.is_some();
        let are_all_answered = tally.answered() == tally.sent;
        let exact = are_all_answered
            && expected_ok.as_ref().is_none_or(|expected| expected.exact)
            && threshold
                .as_ref()
                .is_none_or(|threshold| threshold.report.wrong == 0);
        Self {
            seconds,
            concurrency: context.concurrency,
            connections: context.connections,
            sent: tally.sent,
            answered: tally.answered(),
            ok: tally.ok,
            over_limit: tally.over_limit,
            per_second: tally.sent as f64 / seconds.max(1e-9),
            errors: failures.collect(),
            unfinished: tally.unfinished,
            reconnections: tally.reconnections,
            rate: context.rate,
            sent_late: tally.late,
            not_sent: tally.not_sent,
            latency_ms: Latency {
                p50: quantile_ms(&tally.latency, 0.5),
                p90: quantile_ms(&tally.latency, 0.9),
                p99: quantile_ms(&tally.latency, 0.99),
                p99_9: quantile_ms(&tally.latency, 0.999),
                max: tally.latency.max() as f64 / 1e3,
            },
            cpu_micros_per_request: cpu.collect(),
            expected_ok,
            threshold,
            exact: is_checked.then_some(exact),
        }
    }

    /// Whether there were answers, and these are exact if that was asked for.
    pub(super) fn is_success(&self) -> bool {
        self.answered > 0 && self.exact != Some(false)
    }

    /// The result for people.
    pub(super) fn text(&self) -> String {
        let count = |number: u64| grouped(number as f64);
        let mut rows = Vec::new();
        let mut row = |name: &str, text: String| rows.push(vec![name.to_owned(), text]);
        row(
            "sent",
            format!(
                "{} in {:.1} s, {} a second; at most {} in flight, {} connections",
                count(self.sent),
                self.seconds,
                grouped(self.per_second),
                self.concurrency,
                self.connections
            ),
        );
        row(
            "answered",
            format!(
                "{}: OK {}, OVER_LIMIT {}",
                count(self.answered),
                count(self.ok),
                count(self.over_limit)
            ),
        );
        for (
            kind,
            Failures {
                count: failures,
                message,
            },
        ) in &self.errors
        {
            row(
                "error",
                format!("{kind} {}: {}", count(*failures), message.escape_debug()),
            );
        }
        if self.unfinished > 0 {
            row(
                "unfinished",
                format!("{} were under way at the end", count(self.unfinished)),
            );
        }
        if self.reconnections > 0 {
            row("reconnected", count(self.reconnections));
        }
        if self.sent_late + self.not_sent > 0 {
            let rate = grouped(self.rate.unwrap_or_default());
            row(
                "behind",
                format!(
                    "{rate} a second were not reached: {} were sent more than 10 ms late, {} were \
                     due and not sent",
                    count(self.sent_late),
                    count(self.not_sent)
                ),
            );
        }
        let Latency {
            p50,
            p90,
            p99,
            p99_9,
            max,
        } = self.latency_ms;
        row(
            "latency",
            format!(
                "p50 {p50:.2} ms, p90 {p90:.2} ms, p99 {p99:.2} ms, p99.9 {p99_9:.2} ms, max {max:.2} ms"
            ),
        );
        let cpu = self
            .cpu_micros_per_request
            .iter()
            .map(|(name, micros)| match micros {
                Some(micros) => format!("{name} {micros:.1} µs a request"),
                None => format!("{name} has ended"),
            });
        let cpu: Vec<_> = cpu.collect();
        if !cpu.is_empty() {
            row("CPU", cpu.join(", "));
        }
        if let Some(exact) = self.exact {
            row(
                "exact",
                format!("{}{}", if exact { "yes" } else { "no" }, self.findings()),
            );
        }
        print::table(&rows, 0)
    }

    /// What the check of exactness found, as the end of a sentence.
    fn findings(&self) -> String {
        let mut text = String::new();
        let missing = self.sent - self.answered;
        if missing > 0 {
            text += &format!("; {} requests have no answer", grouped(missing as f64));
        }
        if let Some(ExpectedOk {
            expected,
            exact: false,
        }) = self.expected_ok
        {
            text += &format!(
                "; {} were answered OK in place of {}",
                grouped(self.ok as f64),
                grouped(expected as f64)
            );
        }
        if let Some(ThresholdReport { unit, report, .. }) = &self.threshold {
            let ExactnessReport {
                checked,
                wrong,
                worst,
                at_edges,
                unchecked,
            } = report;
            text +=
                &format!("; {checked} descriptors in a {unit} were compared, {wrong} are wrong");
            if *at_edges > 0 {
                text += &format!(
                    "; {at_edges} were under way where a {unit} ended, and may belong to both sides"
                );
            }
            if *unchecked > 0 {
                text += &format!("; {unchecked} were not compared, because too many are distinct");
            }
            if let Some(Offender {
                descriptor,
                window,
                granted,
                possible,
                threshold,
            }) = worst
            {
                let began = Timestamp::from_second(*window as i64).unwrap_or_default();
                text += &format!("; the worst: {descriptor} was granted {granted}");
                if *possible > 0 {
                    text += &format!(" and perhaps {possible} more");
                }
                text += &format!(
                    " in place of {threshold} in the {unit} of {}",
                    people::instant(began)
                );
            }
        }
        text
    }
}

/// The progress line.
pub(super) fn progress(tally: &Tally, per_second: f64) -> String {
    let [p50, p99] = [0.5, 0.99].map(|quantile| quantile_ms(&tally.latency, quantile));
    format!(
        "{} a second, OK {}, OVER_LIMIT {}, errors {}, p50 {p50:.2} ms, p99 {p99:.2} ms",
        grouped(per_second),
        grouped(tally.ok as f64),
        grouped(tally.over_limit as f64),
        grouped(tally.failed() as f64)
    )
}
