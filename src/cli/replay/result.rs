//! The result of a replay: for programs as it is, and in parts for a terminal and for a page.

use serde::Serialize;

use super::Run;
use super::engine::Engine;
use super::tally::{
    ChangedRequests, Compare, LargestSubjects, LimitTally, ListedSubject, MAX_LISTED, ReplayTally,
    TimeSeries, UnmatchedKind,
};
use super::trace::BadRows;
use crate::cli::print;
use crate::core::time::people::{self, counted, grouped};
use crate::limits::plan::key::{EntryText, Subject};
use crate::limits::rules::Rules;
use crate::limits::rules::compile::OneLine;
use crate::limits::rules::diff::name_of;
use crate::limits::rules::limit::{Limit, LimitId};
use crate::observe::subjects::REQUEST_LIMIT;

/// Maximum number of limits that no row asked and that are named.
const MAX_UNUSED: usize = 100;

/// The report.
#[derive(Serialize)]
pub(super) struct ReplayReport {
    pub(super) rows: u64,
    /// Times of the first and the last row.
    pub(super) from: Option<String>,
    pub(super) until: Option<String>,
    pub(super) seconds: f64,
    /// Likely mistakes, although rows were read.
    pub(super) warnings: Vec<String>,
    /// Lines of the trace without a request.
    pub(super) passed_over: u64,
    pub(super) bad_rows: BadRows,
    /// The limit of which each configuration has another algorithm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) algorithms_of: Option<String>,
    pub(super) configurations: Vec<ConfigurationResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) difference: Option<ReplayDifference>,
    /// Rows over time.
    #[serde(skip)]
    pub(super) offered: TimeSeries,
}

/// Result of one configuration.
#[derive(Serialize)]
pub(super) struct ConfigurationResult {
    pub(super) config: String,
    ok: u64,
    over_limit: u64,
    /// Those with refusals first.
    pub(super) limits: Vec<LimitOutcome>,
    /// Limits that no row asked.
    unused_limits: usize,
    /// The first of them, by their names.
    unused_limit_names: Vec<String>,
    pub(super) most_refused: Vec<SubjectCount>,
    unmatched: u64,
    unmatched_kinds: Vec<UnmatchedKind>,
    blocked_by_overrides: u64,
    exempt_by_overrides: u64,
    notes: Vec<String>,
    /// Requests admitted over time.
    #[serde(skip)]
    pub(super) admitted: TimeSeries,
}

#[derive(Serialize)]
pub(super) struct LimitOutcome {
    pub(super) limit: String,
    amount: String,
    algorithm: &'static str,
    shadow_mode: bool,
    #[serde(flatten)]
    pub(super) tally: LimitTally,
}

#[derive(Serialize)]
pub(super) struct SubjectCount {
    /// Its exact name, as commands take it.
    subject: String,
    domain: String,
    pub(super) entries: Vec<EntryText>,
    pub(super) count: u64,
}

/// Differences between the first configuration and the second one.
#[derive(Serialize)]
pub(super) struct ReplayDifference {
    pub(super) newly_refused: ChangeReport,
    pub(super) newly_admitted: ChangeReport,
    /// Reasons for which this shows nothing of a limit that differs.
    pub(super) inconclusive: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct ChangeReport {
    pub(super) requests: u64,
    subjects: usize,
    most: Vec<SubjectCount>,
    #[serde(skip)]
    pub(super) over_time: TimeSeries,
}

/// A part of what people read.
pub(super) enum ReportPart {
    /// Title of the next parts.
    Title(String),
    Line(String),
    Table(Table),
}

/// A table, whose first columns are numbers. It is left out without rows.
#[derive(Default)]
pub(super) struct Table {
    pub(super) title: String,
    /// Names of columns; none where they are plain.
    pub(super) heads: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
    pub(super) numbers: usize,
}

impl ConfigurationResult {
    pub(super) fn new(run: &Run) -> Self {
        let (engine, tally) = (&run.engine, &run.tally);
        let rules = engine.rules();
        let limit = |(&id, tally): (_, &LimitTally)| LimitOutcome::new(rules, id, tally.clone());
        let mut limits: Vec<_> = tally.limits.iter().map(limit).collect();
        limits.sort_by(|one, other| {
            let order = |limit: &LimitOutcome| (limit.tally.refused, limit.tally.asked);
            let by_counts = order(other).cmp(&order(one));
            by_counts.then_with(|| one.limit.cmp(&other.limit))
        });
        let mut unmatched_kinds: Vec<_> = tally.unmatched.kinds.values().cloned().collect();
        unmatched_kinds.sort_by(|one, other| other.cmp(one));
        unmatched_kinds.truncate(MAX_LISTED);
        let is_asked = |limit: &&Limit| tally.limits.contains_key(&Some(limit.id));
        let unused = rules.limits().filter(|limit| !is_asked(limit));
        let mut unused_limit_names: Vec<_> = unused.map(name_of).collect();
        let unused_limits = unused_limit_names.len();
        unused_limit_names.sort();
        unused_limit_names.truncate(MAX_UNUSED);
        Self {
            config: run.name.clone(),
            ok: tally.ok,
            over_limit: tally.over_limit,
            limits,
            unused_limits,
            unused_limit_names,
            most_refused: listed(&tally.most_refused),
            unmatched: tally.unmatched.count,
            unmatched_kinds,
            blocked_by_overrides: tally.blocked,
            exempt_by_overrides: tally.exempt,
            notes: notes(engine, tally),
            admitted: tally.admitted.clone(),
        }
    }
}

/// Limitations of the counts.
fn notes(engine: &Engine, tally: &ReplayTally) -> Vec<String> {
    const NOTES: [&str; 4] = [
        "descriptors of limits of requests in flight that are left out, because their durations \
         are unknown (write --duration)",
        "requests in flight that were not released before max_duration, because too many were in \
         flight",
        "keys that left the memory store because it was full, as in a service with default \
         settings",
        "decisions on subjects beyond the first million, which are not counted as subjects",
    ];
    let (left_out, evicted) = (engine.left_out.values().sum(), engine.evicted());
    let counts = [left_out, engine.not_released, evicted, tally.uncounted];
    counted_lines(counts.into_iter().zip(NOTES)).collect()
}

/// A line for each count that is not 0.
fn counted_lines<'t>(
    counts: impl IntoIterator<Item = (u64, &'t str)>,
) -> impl Iterator<Item = String> {
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, what)| format!("{what}: {}", grouped(count)))
}

impl LimitOutcome {
    fn new(rules: &Rules, id: Option<LimitId>, tally: LimitTally) -> Self {
        let limit = id.map(|id| rules.limit(id));
        let amount = limit.and_then(|limit| limit.amounts().next());
        let path = |limit: &Limit| match &limit.plan {
            Some(plan) => format!("{} (plan {plan})", limit.path()),
            None => limit.path(),
        };
        Self {
            limit: limit.map_or_else(|| REQUEST_LIMIT.to_owned(), path),
            amount: match (limit, amount) {
                (Some(limit), _) if limit.is_by_rows => "by rows".to_owned(),
                (_, Some(amount)) => amount.rate.to_string(),
                _ => "of the request".to_owned(),
            },
            algorithm: amount.map_or("", |amount| amount.algorithm.spec().name),
            shadow_mode: limit.is_some_and(|limit| limit.shadow_mode),
            tally,
        }
    }
}

fn listed(top: &LargestSubjects) -> Vec<SubjectCount> {
    let subject = |listed: &ListedSubject| {
        let subject = Subject::of_key(&listed.key);
        SubjectCount {
            subject: subject.to_string(),
            domain: subject.domain.to_string(),
            entries: subject.texts(),
            count: listed.count,
        }
    };
    top.0.iter().map(subject).collect()
}

impl ReplayDifference {
    pub(super) fn new(compare: &Compare, inconclusive: Vec<String>) -> Self {
        let change = |changed: &ChangedRequests| ChangeReport {
            requests: changed.requests,
            subjects: changed.subjects.len(),
            most: listed(&changed.subjects.top),
            over_time: changed.over_time.clone(),
        };
        Self {
            newly_refused: change(&compare.newly_refused),
            newly_admitted: change(&compare.newly_admitted),
            inconclusive,
        }
    }

    fn parts(&self, configs: &str, rows: u64) -> Vec<ReportPart> {
        let count = |change: &ChangeReport| {
            let (count, share) = (grouped(change.requests), percent(change.requests, rows));
            let subjects = counted(change.subjects as u64, "subject");
            format!("{count} ({share}) of {subjects}")
        };
        let [refused, admitted] = [&self.newly_refused, &self.newly_admitted].map(count);
        let title = format!("{configs}: newly refused {refused}, newly admitted {admitted}");
        let mut parts = vec![
            ReportPart::Title(title),
            subjects("most newly refused subjects", &self.newly_refused.most),
            subjects("most newly admitted subjects", &self.newly_admitted.most),
        ];
        let line = |reason: &String| ReportPart::Line(format!("inconclusive: {reason}"));
        parts.extend(self.inconclusive.iter().map(line));
        parts
    }
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2} %", 100.0 * part as f64 / whole.max(1) as f64)
}

impl ReplayReport {
    /// For people.
    pub(super) fn text(&self) -> String {
        self.parts().iter().map(ReportPart::text).collect()
    }

    /// The human-readable report, the rows first.
    pub(super) fn parts(&self) -> Vec<ReportPart> {
        let mut rows = counted(self.rows, "row");
        if let (Some(from), Some(until)) = (&self.from, &self.until) {
            rows += &format!(" from {from} to {until} ({})", people::span(self.seconds));
        }
        let mut parts = vec![ReportPart::Line(rows)];
        let warnings = self.warnings.iter();
        parts.extend(warnings.map(|warning| ReportPart::Line(format!("warning: {warning}"))));
        if self.passed_over > 0 {
            let lines = counted(self.passed_over, "line");
            parts.push(ReportPart::Line(format!("{lines} without a request")));
        }
        let bad = counted(self.bad_rows.count, "row");
        parts.push(ReportPart::Table(Table {
            title: format!("{bad} cannot be read, such as"),
            rows: self.bad_rows.named(),
            ..Table::default()
        }));
        match &self.algorithms_of {
            Some(limit) => self.by_algorithm(limit, &mut parts),
            None => (self.configurations.iter()).for_each(|one| one.write(&mut parts)),
        }
        if let Some(difference) = &self.difference {
            let configs = self.configurations.iter();
            let configs = configs.map(|one| OneLine(&one.config).to_string());
            let configs = configs.collect::<Vec<_>>().join(" -> ");
            parts.extend(difference.parts(&configs, self.rows));
        }
        parts
    }

    /// One limit by each algorithm.
    fn by_algorithm(&self, limit: &str, parts: &mut Vec<ReportPart>) {
        let mut heads = LimitOutcome::HEADS.to_vec();
        heads.splice(7.., ["longest delay", "algorithm"]);
        let row = |outcome: &ConfigurationResult| {
            let limit = outcome.limits.first()?;
            let delay = people::span(limit.tally.longest_delay_seconds);
            let mut cells = limit.cells();
            cells.splice(7.., [delay, outcome.config.clone()]);
            Some(cells)
        };
        let limit = OneLine(limit);
        parts.push(ReportPart::Title(format!("{limit} by each algorithm")));
        let rows: Vec<_> = self.configurations.iter().filter_map(row).collect();
        if rows.is_empty() {
            parts.push(ReportPart::Line("no row asks this limit".to_owned()));
        }
        parts.push(LimitOutcome::table(heads, rows));
        let notes = self.configurations.iter().flat_map(|one| &one.notes);
        parts.extend(notes.cloned().map(ReportPart::Line));
    }
}

impl ConfigurationResult {
    fn write(&self, parts: &mut Vec<ReportPart>) {
        let share = percent(self.over_limit, self.ok + self.over_limit);
        let [ok, over_limit] = [self.ok, self.over_limit].map(grouped);
        let config = OneLine(&self.config);
        let title = format!("{config}: {ok} OK, {over_limit} OVER_LIMIT ({share})");
        let limits = self.limits.iter().map(LimitOutcome::cells).collect();
        let kind = |one: &UnmatchedKind| vec![grouped(one.count), one.example.clone()];
        let unmatched = counted(self.unmatched, "descriptor");
        parts.extend([
            ReportPart::Title(title),
            LimitOutcome::table(LimitOutcome::HEADS.to_vec(), limits),
            subjects("most refused subjects", &self.most_refused),
            ReportPart::Table(Table {
                title: format!("{unmatched} without a limit, such as"),
                rows: self.unmatched_kinds.iter().map(kind).collect(),
                numbers: 1,
                ..Table::default()
            }),
        ]);
        let mut line = |text| parts.push(ReportPart::Line(text));
        for LimitOutcome { limit, tally, .. } in &self.limits {
            let [refused, asked] = [tally.trial_refused, tally.trial_asked];
            if asked > 0 {
                let share = percent(refused, asked);
                let [refused, asked] = [refused, asked].map(grouped);
                let trial = format!("the trial of {limit} would refuse");
                line(format!("{trial} {refused} of {asked} ({share})"));
            }
            if tally.longest_delay_seconds > 0.0 {
                let delay = people::span(tally.longest_delay_seconds);
                line(format!("{limit} delays requests by up to {delay}"));
            }
        }
        let (blocked, exempt) = (self.blocked_by_overrides, self.exempt_by_overrides);
        let counts = [
            (blocked, "descriptors blocked by overrides"),
            (exempt, "descriptors exempt by overrides"),
            (self.unused_limits as u64, "limits that no row asks"),
        ];
        counted_lines(counts).for_each(&mut line);
        self.notes.iter().cloned().for_each(line);
    }
}

impl LimitOutcome {
    const HEADS: [&str; 8] = [
        "asked",
        "admitted",
        "refused",
        "share",
        "subjects",
        "most",
        "first refused",
        "limit",
    ];

    /// A table of limits with these heads, or with others instead of the last one.
    fn table(heads: Vec<&'static str>, rows: Vec<Vec<String>>) -> ReportPart {
        ReportPart::Table(Table {
            heads,
            rows,
            numbers: 4,
            ..Table::default()
        })
    }

    /// One for each of the heads.
    fn cells(&self) -> Vec<String> {
        let Self { tally, amount, .. } = self;
        let most = match self.algorithm {
            "concurrency" => amount.clone(),
            _ => format!("{} of {amount}", grouped(tally.most_in_window)),
        };
        let shadow = Some(" (shadow mode)").filter(|_| self.shadow_mode);
        let [subjects, refused] = [tally.subjects, tally.subjects_refused].map(grouped);
        let first_refused = tally.first_refused.as_deref().unwrap_or("-");
        vec![
            grouped(tally.asked),
            grouped(tally.admitted),
            grouped(tally.refused),
            percent(tally.refused, tally.asked),
            format!("{refused} of {subjects}"),
            most,
            first_refused.to_owned(),
            format!("{}{}", OneLine(&self.limit), shadow.unwrap_or_default()),
        ]
    }
}

/// A list of subjects: counts, domains and entries.
fn subjects(title: &str, subjects: &[SubjectCount]) -> ReportPart {
    let row = |one: &SubjectCount| {
        let domain = OneLine(&one.domain).to_string();
        let entries = print::row(&one.entries, Some(&one.subject));
        vec![grouped(one.count), domain, entries]
    };
    ReportPart::Table(Table {
        title: title.to_owned(),
        rows: subjects.iter().map(row).collect(),
        numbers: 1,
        ..Table::default()
    })
}

impl ReportPart {
    fn text(&self) -> String {
        match self {
            Self::Title(text) => format!("\n{text}\n"),
            Self::Line(text) => format!("{text}\n"),
            Self::Table(Table { rows, .. }) if rows.is_empty() => String::new(),
            Self::Table(all) => {
                let table = print::table(&all.heads, all.rows.iter().cloned(), all.numbers);
                let lines = table.lines().map(|line| format!("  {line}\n"));
                let title = Some(&all.title).filter(|title| !title.is_empty());
                let title = title.map(|title| format!("{title}:\n"));
                title.into_iter().chain(lines).collect()
            }
        }
    }
}
