//! The result of a load, as text and as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use indexmap::IndexMap;
use jiff::Timestamp;
use serde::Serialize;

use super::super::print;
use super::RAMP_STEPS;
use super::client::{Counts, Tally, Until};
use super::cpu::MeasuredProcess;
use super::exact::{ExactnessReport, window};
use crate::core::time::people::{self, grouped};
use crate::limits::rules::compile::OneLine;

/// CPU time that is measured, in µs: ten ticks of the kernel.
const LEAST_CPU_MICROS: f64 = 100_000.0;

/// With more requests without an answer, the 99th percentile is the time of one of them.
const LARGEST_SHARE_MISSING: f64 = 0.01;

/// The latencies that a result has.
const QUANTILES: [(&str, f64); 5] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("max", 1.0),
];

/// The result. Times are in the units of their names.
#[derive(Debug, Serialize)]
pub(super) struct LoadReport {
    seconds: f64,
    #[serde(flatten)]
    counts: Counts,
    answered: u64,
    per_second: f64,
    errors: BTreeMap<String, FailureCount>,
    latency_ms: IndexMap<&'static str, f64>,
    /// `None` for a process that has ended, or has used too little to be measured.
    cpu_micros_per_request: BTreeMap<String, Option<f64>>,
    expected_ok: Option<u64>,
    /// Result of the only expectation.
    #[serde(rename = "threshold")]
    expectation: Option<ExactnessReport>,
    /// Results of several ones.
    #[serde(rename = "thresholds", skip_serializing_if = "Vec::is_empty")]
    expectations: Vec<ExactnessReport>,
    exact: Option<bool>,
    /// The maxima that were exceeded.
    exceeded: Vec<String>,
    /// The steps of a ramp; else one without a rate, which is all.
    #[serde(skip_serializing_if = "is_whole")]
    steps: Vec<LoadStep>,
}

/// A step of a ramp: the requests per second that were asked for and that were sent, the answers,
/// and the latencies in ms. The names are fields of JSON and the columns of the text.
pub(super) type LoadStep = IndexMap<&'static str, f64>;

fn is_whole(steps: &[LoadStep]) -> bool {
    steps.iter().all(|step| step["rate"] <= 0.0)
}

/// The step of this rate between two states of a run.
pub(super) fn step(rate: Option<f64>, before: &Tally, after: &Tally) -> LoadStep {
    let mut latency = after.latency.clone();
    // A later state of a histogram has each value at least as often.
    let _ = latency.subtract(&before.latency);
    let of = |count: fn(&Tally) -> u64| (count(after) - count(before)) as f64;
    let sent = of(|tally| tally.counts.sent);
    let seconds = (after.elapsed - before.elapsed).as_secs_f64();
    IndexMap::from([
        ("rate", rate.unwrap_or_default()),
        ("per_second", sent / seconds.max(1e-9)),
        ("ok", of(|tally| tally.counts.ok)),
        ("over_limit", of(|tally| tally.counts.over_limit)),
        ("errors", sent - of(Tally::answered)),
        ("p50_ms", quantile(&latency, 0.5)),
        ("p99_ms", quantile(&latency, 0.99)),
        ("not_sent", of(|tally| tally.counts.not_sent)),
    ])
}

#[derive(Debug, Serialize)]
struct FailureCount {
    count: u64,
    /// Of the first one.
    message: String,
}

/// A latency in ms.
fn quantile(latency: &Histogram<u64>, quantile: f64) -> f64 {
    latency.value_at_quantile(quantile) as f64 / 1e3
}

impl LoadReport {
    pub(super) fn new(
        tally: &Tally,
        processes: &[MeasuredProcess],
        expected_ok: Option<u64>,
        mut expectations: Vec<ExactnessReport>,
        steps: Vec<LoadStep>,
    ) -> Self {
        let (seconds, sent) = (tally.elapsed.as_secs_f64(), tally.counts.sent);
        let errors = tally.failures.iter().map(|(kind, (count, message))| {
            let (count, message) = (*count, message.clone());
            (kind.to_string(), FailureCount { count, message })
        });
        let latencies = QUANTILES.map(|(name, share)| (name, quantile(&tally.latency, share)));
        let cpu = processes.iter().map(|process| {
            let used = process.used_micros();
            let used = used.filter(|micros| *micros >= LEAST_CPU_MICROS);
            let each = used.map(|micros| micros / sent.max(1) as f64);
            (process.name.clone(), each)
        });
        let is_checked = expected_ok.is_some() || !expectations.is_empty();
        let exact = tally.answered() == sent
            && tally.counts.with_limit > 0
            && expected_ok.is_none_or(|expected| {
                expected == tally.counts.ok && tally.counts.without_limit == 0
            })
            && expectations.iter().all(ExactnessReport::is_exact);
        let is_of_all = |one: &mut ExactnessReport| one.descriptor.is_none();
        let expectation = expectations.pop_if(is_of_all);
        Self {
            seconds,
            counts: tally.counts.clone(),
            answered: tally.answered(),
            per_second: sent as f64 / seconds.max(1e-9),
            errors: errors.collect(),
            latency_ms: latencies.into(),
            cpu_micros_per_request: cpu.collect(),
            expected_ok,
            expectation,
            expectations,
            exact: is_checked.then_some(exact),
            exceeded: Vec::new(),
            steps,
        }
    }

    /// Compares the result with the maxima of the command: the latency of each step of a ramp.
    pub(super) fn compare(&mut self, max_p99: Option<Duration>, max_errors: Option<u64>) {
        let most = max_p99.map_or(f64::INFINITY, |most| most.as_secs_f64() * 1e3);
        let is_ramp = !is_whole(&self.steps);
        for step in self.steps.iter().filter(|_| max_p99.is_some()) {
            let (p99, rate) = (step["p99_ms"], step["rate"]);
            let rate = is_ramp.then(|| format!(" at {rate:.0} a second"));
            let rate = rate.unwrap_or_default();
            let missing = step["errors"] + step["not_sent"];
            let all = step["ok"] + step["over_limit"] + missing;
            if p99 > most {
                let line = format!("p99{rate} is {p99:.2} ms, at most {most} ms are asked for");
                self.exceeded.push(line);
            } else if missing > all * LARGEST_SHARE_MISSING {
                let line = format!("p99{rate} is unknown: {missing} of {all} have no answer");
                self.exceeded.push(line);
            }
        }
        let is_gate = max_p99.is_some() || max_errors.is_some();
        if is_gate && self.answered > 0 && self.counts.with_limit == 0 {
            self.exceeded.push("no answer named a limit".to_owned());
        }
        let has_sent = |step: &&LoadStep| step["per_second"] > 0.0;
        let steps = self.steps.iter().filter(has_sent).count();
        if is_ramp && steps < RAMP_STEPS && (is_gate || self.exact.is_some()) {
            let line = format!("only {steps} of {RAMP_STEPS} steps have sent requests");
            self.exceeded.push(line);
        }
        let errors = self.counts.sent - self.answered;
        if let Some(most) = max_errors.filter(|most| errors > *most) {
            let [errors, most] = [errors, most].map(grouped);
            let line = format!("{errors} requests have no answer, at most {most} are asked for");
            self.exceeded.push(line);
        }
    }

    /// Whether there were answers, and these are as the command asks for.
    pub(super) fn is_success(&self) -> bool {
        self.answered > 0 && self.exact != Some(false) && self.exceeded.is_empty()
    }

    /// The result for people.
    pub(super) fn text(&self) -> String {
        let mut rows = Vec::new();
        let mut row = |name: &str, text: String| rows.push(vec![name.to_owned(), text]);
        let counts = &self.counts;
        let (sent, time) = (grouped(counts.sent), people::span(self.seconds));
        let rate = grouped(self.per_second.round() as u64);
        row("sent", format!("{sent} in {time}, {rate} a second"));
        let [answered, ok, over] = [self.answered, counts.ok, counts.over_limit].map(grouped);
        let answers = format!("{answered}: OK {ok}, OVER_LIMIT {over}");
        row("answered", answers);
        if counts.without_limit > 0 {
            let (count, why) = (grouped(counts.without_limit), "`weir explain` shows why");
            let text = format!("{count} answers have a descriptor without a limit; {why}");
            row("no limit", text);
        }
        for (kind, failures) in &self.errors {
            let (count, message) = (grouped(failures.count), OneLine(&failures.message));
            row("error", format!("{kind} {count}: {message}"));
        }
        if counts.unfinished > 0 {
            row("unfinished", grouped(counts.unfinished));
        }
        if counts.reconnections > 0 {
            row("reconnected", grouped(counts.reconnections));
        }
        let [late, not_sent] = [counts.sent_late, counts.not_sent].map(grouped);
        if counts.sent_late + counts.not_sent > 0 {
            let what = "the rate was not reached";
            let text =
                format!("{what}: {late} were sent more than 10 ms late, {not_sent} not at all");
            row("behind", text);
        }
        let latency = self.latency_ms.iter();
        let latency = latency.map(|(name, ms)| format!("{name} {ms:.2} ms"));
        row("latency", latency.collect::<Vec<_>>().join(", "));
        let each = |(name, micros): (&String, &Option<f64>)| {
            micros.map(|micros| format!("{name} {micros:.1} µs a request"))
        };
        let cpu = self.cpu_micros_per_request.iter();
        let cpu: Vec<String> = cpu.filter_map(each).collect();
        if !cpu.is_empty() {
            row("CPU", cpu.join(", "));
        }
        if let Some(exact) = self.exact {
            let exact = if exact { "yes" } else { "no" };
            row("exact", exact.to_owned() + &self.findings());
        }
        for line in &self.exceeded {
            row("exceeded", line.clone());
        }
        print::table(&[], rows, 0) + &self.ramp()
    }

    /// The steps of a ramp as a table.
    fn ramp(&self) -> String {
        let Some(step) = self.steps.first().filter(|_| !is_whole(&self.steps)) else {
            return String::new();
        };
        let heads: Vec<_> = step.keys().copied().collect();
        let cell = |(name, &value): (&&str, &f64)| match name.ends_with("_ms") {
            true => format!("{value:.2}"),
            false => grouped(value.round() as u64),
        };
        let rows = self.steps.iter();
        let rows = rows.map(|step| step.iter().map(cell).collect());
        "\n".to_owned() + &print::table(&heads, rows, heads.len())
    }

    /// Findings of the check of exactness, as the end of a sentence.
    fn findings(&self) -> String {
        let mut text = String::new();
        let (sent, ok) = (self.counts.sent, self.counts.ok);
        if self.answered < sent {
            let count = grouped(sent - self.answered);
            text += &format!("; {count} requests have no answer");
        }
        if self.answered > 0 && self.counts.with_limit == 0 {
            text += "; no answer named a limit";
        }
        if let Some(expected) = self.expected_ok.filter(|expected| *expected != ok) {
            let [ok, expected] = [ok, expected].map(grouped);
            text += &format!("; {ok} were answered OK instead of {expected}");
        }
        if self.expected_ok.is_some() && self.counts.without_limit > 0 {
            text += "; descriptors without a limit show nothing";
        }
        let expectations = self.expectation.iter().chain(&self.expectations);
        expectations.fold(text, |text, report| text + &report.findings())
    }
}

impl ExactnessReport {
    /// Findings of one expectation.
    fn findings(&self) -> String {
        let (report, worst) = (self, &self.worst);
        let unit = window(self.unit_multiplier, self.unit);
        let what = match self.descriptor {
            Some(number) => format!("values of descriptor {number}"),
            None => "descriptors".to_owned(),
        };
        let article = if self.unit_multiplier == 1 { "a " } else { "" };
        let [checked, wrong] = [report.checked, report.wrong].map(grouped);
        let [edges, missed] = [report.at_edges, report.unchecked].map(grouped);
        let mut text =
            format!("; {checked} {what} in {article}{unit} were compared, {wrong} are wrong");
        if report.exceeding == 0 {
            text += ", and none requested more than the threshold: nothing was tested";
        }
        if let Some(other) = &report.other_limit {
            text += &format!("; an answer named a limit of another window: {other}");
        }
        if report.without_limit {
            text += "; an answer named no limit for one of them";
        }
        if report.at_edges > 0 {
            text += &format!("; {edges} were under way where {article}{unit} ended, ");
            text += "and may belong to both sides";
        }
        if report.unchecked > 0 {
            text += &format!("; {missed} were not compared, because too many are distinct");
        }
        if let Some(worst) = worst {
            let (granted, expected) = (worst.granted, worst.expected);
            let began = Timestamp::from_second(worst.window as i64).unwrap_or_default();
            let began = people::instant(began);
            text += &format!("; the worst: {} was granted {granted}", worst.descriptor);
            if worst.possible > 0 {
                text += &format!(" and perhaps {} more", worst.possible);
            }
            text += &format!(" instead of {expected} in the {unit} of {began}");
            if worst.began_before && granted < expected {
                text += ", in which hits from before the load count as well";
            }
        }
        text
    }
}

/// The progress line.
pub(super) fn progress(tally: &Tally, per_second: f64, until: Until) -> String {
    let elapsed = tally.elapsed.as_secs_f64();
    let by_time = until.time.map(|time| time.as_secs_f64() - elapsed);
    let done = (tally.answered() + tally.failed()) as f64;
    let by_count = |most: u64| (most as f64 - done) * elapsed / done.max(1.0);
    let left = by_time.into_iter().chain(until.iterations.map(by_count));
    let left = left.fold(f64::INFINITY, f64::min);
    let [elapsed, left] = [elapsed, left].map(|seconds| people::span(seconds.max(0.0).round()));
    let counts = [tally.counts.ok, tally.counts.over_limit, tally.failed()];
    let [ok, over, errors] = counts.map(grouped);
    let [p50, p99] = [0.5, 0.99].map(|share| quantile(&tally.latency, share));
    let rate = grouped(per_second.round() as u64);
    format!(
        "{elapsed}, {left} left, {rate} a second, OK {ok}, OVER_LIMIT {over}, errors {errors}, p50 \
         {p50:.2} ms, p99 {p99:.2} ms"
    )
}
