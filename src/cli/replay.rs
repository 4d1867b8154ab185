//! `weir replay`: what limit files would do to a trace of requests, with the time of the trace in
//! the place of the clock.
//!
//! `trace` reads rows in the order of time, `engine` decides them by the service's own functions,
//! `tally` counts, and `result` and `report` make what the reader sees.

mod engine;
mod gate;
mod report;
mod result;
mod tally;
#[cfg(test)]
mod tests;
pub(crate) mod trace;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::workload::{Fields, Hits, Requests, Templates};
use super::{UnusableFiles, UsageError, check, print};
use crate::admin::api::explain;
use crate::core::algorithm::AlgorithmKind;
use crate::core::request::DecodedRequest;
use crate::core::time::{Micros, Span, people};
use crate::limiter::less_margin;
use crate::limits::overrides::{Overrides, instant};
use crate::limits::plan::{self, Plan};
use crate::limits::rules::compile::OneLine;
use crate::limits::rules::limit::Limit;
use crate::limits::rules::{Rules, compile};
use crate::live::overrides::read_overrides;
use crate::process::settings::ReadFlags;
use crate::service::rls::decode::{decode, decode_into};
use engine::{Decided, Engine, Setup, Variant};
use gate::Evidence;
use result::{ConfigurationResult, ReplayDifference, ReplayReport};
use tally::{Compare, ReplayTally, TimeSeries};
use trace::{BadRows, Trace, TraceRow};

/// The exit code where more is newly refused than may be.
const TOO_MANY_REFUSED: u8 = 3;

/// Rows between two looks at the progress.
const ROWS_PER_LOOK: u64 = 16_384;

/// Limits that are named where one is not found.
const MAX_NAMED: usize = 10;

#[derive(Args, Debug)]
#[command(
    after_help = "Example: weir replay trace.jsonl --config config --config next\n\n\
    A line of a trace is a request as POST /json takes it, with its `time`:\n  \
    {\"time\": \"2026-11-23T10:00:00.5Z\", \"domain\": \"demo\", \"descriptors\": [{\"entries\": \
    [{\"key\": \"user\", \"value\": \"ann\"}]}]}"
)]
pub(super) struct Replay {
    /// Read requests from this file: JSON lines, CSV, or an access log of Envoy, optionally
    /// gzipped; `-` is stdin
    trace: PathBuf,
    /// Apply the limits in this folder or file; given twice, compare the second with the first
    #[arg(long, required = true, value_name = "PATH")]
    config: Vec<PathBuf>,
    /// Apply the overrides in this file (the format of OVERRIDES_FILE), which expire in the time of
    /// the trace
    #[arg(long, value_name = "FILE")]
    overrides: Option<PathBuf>,
    /// Make a descriptor of each record of CSV or an access log, such as 'path={path},user={user}',
    /// with {name} for a column or field; records without one of these fields do not have it.
    /// `TEMPLATE if {name}=PATTERN` applies to records that match, with * for any text. Repeatable
    #[arg(long, value_name = "TEMPLATE", value_parser = templates)]
    descriptor: Vec<Templates>,
    /// Use this domain for records without a field `domain`
    #[arg(long, short, requires = "descriptor")]
    domain: Option<String>,
    /// Use this many hits for records without a field `hits`, such as {uniform:1..500}
    #[arg(long, value_name = "HITS", value_parser = Hits::parse, requires = "descriptor")]
    hits: Option<Hits>,
    /// Skip this many addresses at the end of a list such as {x_forwarded_for}: the trusted proxies
    /// in front of Envoy (its xff_num_trusted_hops) [default: 0]
    #[arg(long, value_name = "COUNT", requires = "descriptor")]
    xff_num_trusted_hops: Option<usize>,
    /// Sort all rows by time in memory (at most 4 GiB); without it, rows may be up to a minute out
    /// of order
    #[arg(long)]
    sort: bool,
    /// Use this duration for requests without one, such as 250ms, in limits of requests in flight
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    duration: Option<Span>,
    /// Delay no request longer than this timeout of Envoy's rate-limit filter [default: none]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Span>,
    /// Exit with code 3 if the second configuration newly refuses more than this share of the rows,
    /// such as 0.1%, and with code 1 if no row asks a limit that differs
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    fail_if_newly_refused: Option<f64>,
    /// Compare all algorithms for one limit, given by its path such as demo.remote_address, or its
    /// name
    #[arg(long, value_name = "LIMIT", conflicts_with = "fail_if_newly_refused")]
    algorithms: Option<String>,
    /// Also write the report with charts to this HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the output in this format
    #[arg(long, default_value = "text", value_name = "text|json")]
    format: print::Format,
    #[command(flatten)]
    read: ReadFlags,
}

fn templates(text: &str) -> Result<Templates, String> {
    Templates::parse(text, Fields::Allowed)
}

fn duration(text: &str) -> Result<Span, String> {
    super::duration(text).map(Span::from)
}

/// A share, from `0%` to `100%`.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').map(str::parse);
    let share = number.and_then(Result::ok);
    let share = share.filter(|share| (0.0..=100.0).contains(share));
    share.ok_or_else(|| "write a share such as 0.1%, from 0% to 100%".to_owned())
}

pub(super) fn run(replay: &Replay) -> anyhow::Result<ExitCode> {
    let configs = replay.config.len();
    let wrong = match configs {
        3.. => "--config can be given at most twice",
        2 if replay.algorithms.is_some() => "--algorithms is of one --config",
        0..2 if replay.fail_if_newly_refused.is_some() => {
            "--fail-if-newly-refused compares two configurations: write --config twice"
        }
        _ => "",
    };
    if !wrong.is_empty() {
        return Err(UsageError(wrong.to_owned()).into());
    }
    if let Some(path) = &replay.html {
        check_output(path, replay)?;
    }
    let mut pass = Pass::new(replay)?;
    let (mut trace, progress) = open(replay)?;
    while let Some(row) = trace.next()? {
        pass.row(&row);
        if pass.rows.is_multiple_of(ROWS_PER_LOOK) {
            let at = people::instant(people::timestamp(row.at));
            progress.set_message(format!("{}, {at}", people::counted(pass.rows, "row")));
        }
    }
    progress.finish_and_clear();
    let report = pass.report(replay, trace)?;
    if let Some(path) = &replay.html {
        let written = std::fs::write(path, report::page(&report));
        written.with_context(|| format!("{} cannot be written", path.display()))?;
    }
    replay.format.print(&report, ReplayReport::text)?;
    let gate = replay.fail_if_newly_refused;
    Ok(gate.map_or(ExitCode::SUCCESS, |most| pass_gate(&report, most)))
}

/// The exit code of a comparison of which at most this share in per cent may be newly refused. The
/// reasons for which it fails are printed.
fn pass_gate(report: &ReplayReport, most: f64) -> ExitCode {
    let Some(difference) = &report.difference else {
        return ExitCode::SUCCESS;
    };
    let share = 100.0 * difference.newly_refused.requests as f64 / report.rows.max(1) as f64;
    if share > most {
        print::error(format_args!(
            "weir: {share:.2} % of the requests are newly refused, more than {most} %"
        ));
        return ExitCode::from(TOO_MANY_REFUSED);
    }
    for reason in &difference.inconclusive {
        let what = "weir: the comparison is inconclusive";
        print::error(format_args!("{what}: {reason}"));
    }
    super::success_if(difference.inconclusive.is_empty())
}

/// Checks that the report can be written to this file, which is none that is read.
fn check_output(path: &Path, replay: &Replay) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    let trace = Some(&*replay.trace).filter(|trace| *trace != Path::new("-"));
    let trace = trace.unwrap_or(Path::new("/dev/stdin"));
    let read = replay.config.iter().chain(&replay.overrides);
    let mut read = read.map(PathBuf::as_path).chain([trace]);
    let id = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
    let is_inside = |own: &Path, read: &Path| {
        let read = read.canonicalize();
        read.is_ok_and(|read| own.starts_with(read))
    };
    let is_read = |own: PathBuf| {
        own.is_file() && read.any(|read| id(read) == id(&own) || is_inside(&own, read))
    };
    let (what, why) = if path.is_dir() {
        (path, "is a folder")
    } else if !folder.is_dir() {
        (folder, "is no folder")
    } else if path.canonicalize().is_ok_and(is_read) {
        (path, "is read; write another file")
    } else {
        return Ok(());
    };
    bail!(UsageError(format!("--html: {} {why}", what.display())))
}

/// The trace, and the progress, which is shown on a terminal.
fn open(replay: &Replay) -> anyhow::Result<(Trace, ProgressBar)> {
    let (domain, hits) = (replay.domain.clone(), replay.hits.clone());
    let requests = Requests::new(domain, &replay.descriptor, hits, 0);
    let path = &replay.trace;
    let (stream, bytes): (Box<dyn Read>, _) = if path == Path::new("-") {
        (Box::new(std::io::stdin()), None)
    } else {
        let unreadable = || format!("{} cannot be read", path.display());
        let file = File::open(path).with_context(unreadable)?;
        let bytes = file.metadata().with_context(unreadable)?.len();
        (Box::new(file), Some(bytes))
    };
    let progress = bar(bytes)?;
    let stream = progress.wrap_read(stream);
    let trace = Trace::new(stream, requests, replay.sort, replay.xff_num_trusted_hops)?;
    Ok((trace, progress))
}

/// A bar of so much work, where that is known.
fn bar(length: Option<u64>) -> anyhow::Result<ProgressBar> {
    let template = match length {
        Some(_) => "{bar:30} {percent} %, {eta} left, {msg}",
        None => "{spinner} {msg}",
    };
    let bar = length.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    Ok(bar.with_style(ProgressStyle::with_template(template)?))
}

/// One pass over all rows, through all configurations at once.
#[derive(Default)]
struct Pass {
    runs: Vec<Run>,
    duration: Option<Span>,
    rows: u64,
    /// The times of the first and the last row.
    times: Option<(Micros, Micros)>,
    offered: TimeSeries,
    compare: Option<Compare>,
    evidence: Evidence,
    bad: BadRows,
    /// The first request, which is explained where no limit is found.
    first: Option<Vec<u8>>,
}

/// One configuration.
struct Run {
    name: String,
    engine: Engine,
    tally: ReplayTally,
}

impl Run {
    fn new(name: String, setup: Setup) -> Self {
        let (engine, tally) = (Engine::new(setup), ReplayTally::default());
        Self {
            name,
            engine,
            tally,
        }
    }
}

impl Pass {
    fn new(replay: &Replay) -> anyhow::Result<Self> {
        let overrides = replay.overrides.as_deref().map(read_overrides).transpose();
        let overrides = overrides.map_err(anyhow::Error::msg)?;
        let overrides = overrides.map(|read| Arc::new(Overrides::new(read)));
        let max_wait = replay.timeout.map(|timeout| less_margin(timeout.into()));
        let max_wait = max_wait.map_or(Span::MAX, Span::from);
        let mut runs = Vec::new();
        for config in &replay.config {
            let options = replay.read.options(config.clone());
            let read = check::read(&options);
            let compiled = read.and_then(|read| compile::compile(&read.texts, &options.compile));
            let rules = Arc::new(compiled.map_err(UnusableFiles::Limits)?.rules);
            let setup = |variant| Setup {
                rules: Arc::clone(&rules),
                plan: plan::Options {
                    calendar_months: options.compile.process.calendar_months,
                    ..plan::Options::default()
                },
                overrides: overrides.clone(),
                max_wait,
                variant,
            };
            match &replay.algorithms {
                Some(limit) => runs.extend(variants(limit_of(&rules, limit)?, setup)?),
                None => runs.push(Run::new(config.display().to_string(), setup(None))),
            }
        }
        Ok(Self {
            compare: (replay.config.len() == 2).then(Compare::default),
            runs,
            duration: replay.duration,
            ..Self::default()
        })
    }

    /// Decides a row, which is not before the last one.
    fn row(&mut self, row: &TraceRow) {
        let mut request = DecodedRequest::default();
        if let Err(error) = decode_into(&mut request, &row.message) {
            self.bad.add(row.line, &error);
            return;
        }
        self.rows += 1;
        if self.rows == 1 {
            self.first = Some(row.message.clone());
        }
        self.offered.add(row.at);
        let first = self.times.map_or(row.at, |(first, _)| first);
        self.times = Some((first, row.at));
        let duration = row.duration.or(self.duration);
        let decide = |run: &mut Run| run.engine.decide(row.at, duration, &request);
        let decided: Vec<_> = self.runs.iter_mut().map(decide).collect();
        let outcomes: Vec<_> = decided.iter().map(Decided::outcomes).collect();
        for ((run, decided), outcomes) in self.runs.iter_mut().zip(&decided).zip(&outcomes) {
            let is_refused = outcomes.is_over_limit;
            run.engine.end_later(row.at, duration, decided, is_refused);
            run.tally.observe(row.at, &request, decided, outcomes);
        }
        if let (Some(compare), [before, after]) = (&mut self.compare, &outcomes[..]) {
            compare.observe(row.at, before, after);
            self.evidence.observe([before, after]);
        }
    }

    /// The result, with what the trace says of its rows.
    ///
    /// # Errors
    /// Too many rows are bad, no row is a request, or none finds a limit.
    fn report(self, replay: &Replay, trace: Trace) -> anyhow::Result<ReplayReport> {
        let (warnings, why_none) = (trace.warnings(), trace.why_none());
        let of_trace = trace.inconclusive();
        let mut bad = trace.bad;
        bad.merge(&self.bad);
        bad.check(self.rows)?;
        ensure!(self.rows > 0, "no row is a request: {why_none}");
        self.check_found()?;
        let difference = match (self.compare, &self.runs[..]) {
            (Some(compare), [before, after]) => {
                let inconclusive = gate::inconclusive([before, after], &self.evidence, of_trace);
                Some(ReplayDifference::new(&compare, inconclusive))
            }
            _ => None,
        };
        let (first, last) = self.times.unwrap_or_default();
        Ok(ReplayReport {
            rows: self.rows,
            from: self.times.map(|_| instant(first)),
            until: self.times.map(|_| instant(last)),
            seconds: last.since(first).micros() as f64 / 1e6,
            warnings,
            passed_over: trace.passed_over,
            bad_rows: bad,
            algorithms_of: replay.algorithms.clone(),
            configurations: self.runs.iter().map(ConfigurationResult::new).collect(),
            difference,
            offered: self.offered,
        })
    }

    /// Checks that limits were asked. The first of two configurations may have none: the second one
    /// adds them.
    fn check_found(&self) -> anyhow::Result<()> {
        let last = self.runs.len().saturating_sub(1);
        let run = match self.compare {
            Some(_) => self.runs.get(last).filter(|run| run.tally.matched == 0),
            None => {
                let found = self.runs.iter().any(|run| run.tally.matched > 0);
                self.runs.first().filter(|_| !found)
            }
        };
        let (Some(run), Some(first)) = (run, &self.first) else {
            return Ok(());
        };
        if let Some(limit) = run.engine.only() {
            bail!("no row asks the limit {}", OneLine(&limit.path()));
        }
        let request = decode(first)?;
        let plan = Plan::new(run.engine.rules(), &request, &plan::Options::default());
        let explained = explain::Report::new(&plan, &request).descriptors;
        let reasons = explained.iter().map(|one| {
            let entries = print::words(&one.entries);
            format!("\n  {entries}: {}", one.reason)
        });
        let (name, reasons) = (&run.name, reasons.take(MAX_NAMED).collect::<String>());
        bail!("no row finds a limit of {name}; the first one:{reasons}")
    }
}

/// The limit of this path, or the only one of this name.
fn limit_of<'r>(rules: &'r Rules, wanted: &str) -> Result<&'r Limit, UsageError> {
    if let Some(limit) = rules.limits().find(|limit| limit.path() == wanted) {
        return Ok(limit);
    }
    let named = |limit: &&Limit| limit.name.as_deref() == Some(wanted);
    let mut all: Vec<_> = rules.limits().filter(named).collect();
    let what = match all[..] {
        [limit] => return Ok(limit),
        [] => "no limit is",
        _ => "several limits are",
    };
    if all.is_empty() {
        all.extend(rules.limits().take(MAX_NAMED));
    }
    let paths: Vec<_> = all.into_iter().map(Limit::path).collect();
    let (wanted, paths) = (wanted.escape_debug(), paths.join(", "));
    let what = format!("--algorithms: {what} `{wanted}`; write a path, such as {paths}");
    Err(UsageError(what))
}

/// A limit by each algorithm that its numbers allow.
fn variants(limit: &Limit, setup: impl Fn(Option<Variant>) -> Setup) -> anyhow::Result<Vec<Run>> {
    if limit.counts_in_flight() || limit.amounts().next().is_none() {
        let what = "--algorithms: the limit has no rate, and so no other algorithm";
        return Err(UsageError(what.to_owned()).into());
    }
    let mut runs = Vec::new();
    for (name, kind) in AlgorithmKind::NAMED {
        if kind == AlgorithmKind::Concurrency {
            continue;
        }
        match Variant::new(limit, kind) {
            Ok(variant) => runs.push(Run::new(name.to_owned(), setup(Some(variant)))),
            Err(error) => print::error(format_args!("weir: {name} is left out: {error}")),
        }
    }
    Ok(runs)
}
