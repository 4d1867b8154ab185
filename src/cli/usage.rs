//! `weir usage` and `weir count`: the hits of a subject, or of the subjects of a limit with
//! `track_usage`, in total or in a recent interval.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use super::admin::{AdminQuery, with_query};
use super::entries::{self, read_exact};
use super::{UsageError, amount, print};
use crate::admin::api::usage::{Count, Series, Top, Usage};
use crate::core::proto::rate_limit_descriptor::Entry;
use crate::core::request;
use crate::core::time::Span;
use crate::core::time::people::{grouped, instant, span};
use crate::limits::plan::key::{EntryText, Subject};
use crate::limits::rules::compile::OneLine;
use clap::Args;

/// Maximum number of columns of a plot. In a longer series, several buckets share a column.
const PLOT_COLUMNS: usize = 60;

/// The bars of a plot, from the smallest number above none to the largest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Subjects that one call asks for; further ones take further calls.
const MOST_PER_CALL: usize = 1_000;

/// The subject of a command, by its domain and entries or by its name.
#[derive(Args, Debug)]
pub(super) struct SubjectArgs {
    /// Select the subject by these entries, in order
    #[arg(required_unless_present = "subject", value_name = "KEY=VALUE")]
    entries: Vec<OsString>,
    /// Query a limit of this domain
    #[arg(long, short, required_unless_present = "subject")]
    domain: Option<String>,
    /// Select the subject by its name, `subject` in JSON output, instead of domain and entries
    #[arg(long, value_name = "NAME", conflicts_with_all = ["entries", "domain"])]
    subject: Option<String>,
}

#[derive(Args, Debug)]
#[command(mut_arg("entries", |entries| entries.required_unless_present("top")))]
#[command(mut_arg("domain", |domain| domain.required_unless_present("top")))]
#[command(mut_arg("subject", |subject| subject.conflicts_with("top")))]
#[command(
    after_help = "Examples:\n  weir usage --domain shop user=42 --since 1h\n  weir usage --domain \
        shop --top 20 --by refused"
)]
pub(super) struct UsageCommand {
    #[command(flatten)]
    of: SubjectArgs,
    /// Begin the series this long ago, such as 1h [default: all that is stored]
    #[arg(long, value_name = "DURATION", conflicts_with = "top", value_parser = super::duration)]
    since: Option<Duration>,
    /// List the COUNT largest subjects of a limit instead of one subject
    #[arg(
        long,
        value_name = "COUNT",
        conflicts_with = "entries",
        value_parser = amount::between(1, 100_000)
    )]
    top: Option<u64>,
    /// Sort by this column; refused leaves out subjects without refused hits
    #[arg(
        long,
        value_name = "hits|refused|last-seen|first-seen",
        requires = "top",
        default_value = "hits"
    )]
    #[arg(value_parser = ["hits", "refused", "last-seen", "first-seen"])]
    by: String,
    /// Select the limit by its full key; with --top also by its key in the domain or its name
    /// [default: the only limit with track_usage]
    #[arg(long, conflicts_with = "entries")]
    limit: Option<String>,
    /// Show the usage of the limit's trial
    #[arg(long)]
    trial: bool,
    #[command(flatten)]
    admin: AdminQuery,
}

pub(super) fn run(command: &UsageCommand) -> anyhow::Result<ExitCode> {
    if let Some(count) = command.top {
        let top = print::block_on(top(command, count as usize))?;
        command.admin.format.print(&top, table)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut query = command.of.query(command.limit.as_deref())?;
    let since = command.since.map(|time| Span::from(time).to_string());
    let trial = command.trial.then(|| "true".to_owned());
    query.extend([("trial", trial), ("since", since)]);
    command.admin.show(&with_query("usage", &query), report)
}

impl SubjectArgs {
    /// The parameters of a call about it, or about what this limit counts of it.
    pub(super) fn query(
        &self,
        limit: Option<&str>,
    ) -> Result<Vec<(&'static str, Option<String>)>, UsageError> {
        if let Some(name) = &self.subject {
            let limit = limit.map(str::to_owned);
            return Ok(vec![("subject", Some(name.clone())), ("limit", limit)]);
        }
        let descriptors = entries::descriptors(&self.entries, read_exact)?;
        let [descriptor] = &descriptors[..] else {
            let what = "usage is that of one descriptor; write its entries without `,`";
            return Err(UsageError(what.to_owned()));
        };
        let domain = self.domain.as_deref().unwrap_or_default();
        let is_text = |entry: &Entry| {
            let is_text = |text| str::from_utf8(text).is_ok();
            is_text(&entry.key) && is_text(&entry.value) && !entry.key.contains(&b'=')
        };
        if !descriptor.entries.iter().all(is_text) {
            // Only a name can represent it.
            let entries = descriptor.entries.iter();
            let entries = entries.map(|entry| request::Entry {
                key: &entry.key,
                value: &entry.value,
            });
            let name = Subject::new(domain.as_bytes(), entries).to_string();
            return Ok(vec![("subject", Some(name))]);
        }
        let entry = |entry| {
            let EntryText { key, value } = entries::text(entry);
            ("entry", Some(format!("{key}={value}")))
        };
        let mut query = vec![("domain", Some(domain.to_owned()))];
        query.extend(descriptor.entries.iter().map(entry));
        Ok(query)
    }
}

/// So many subjects of a limit, call by call.
async fn top(command: &UsageCommand, count: usize) -> anyhow::Result<Top> {
    let services = command.admin.service.services()?;
    let mut subjects = Vec::new();
    let mut cursor = None;
    loop {
        let left = (count - subjects.len()).min(MOST_PER_CALL).to_string();
        let query = [
            ("by", Some(&*command.by)),
            ("count", Some(&*left)),
            ("trial", command.trial.then_some("true")),
            ("domain", command.of.domain.as_deref()),
            ("limit", command.limit.as_deref()),
            ("cursor", cursor.as_deref()),
        ];
        let mut part: Top = services.get(&with_query("usage/top", &query)).await?;
        subjects.append(&mut part.subjects);
        if part.next.is_none() || subjects.len() >= count {
            return Ok(Top { subjects, ..part });
        }
        cursor = part.next;
    }
}

fn report(usage: &Usage) -> String {
    let subject = &usage.of;
    let row = print::row(&subject.entries, Some(&subject.subject));
    let of = if subject.trial { "the trial of " } else { "" };
    let mut text = format!("{row} of {of}{}\n", OneLine(&subject.limit));
    let (Some(first), Some(last)) = (usage.first_seen, usage.last_seen) else {
        return text + "  not seen, or not since its record expired\n";
    };
    let [hits, over, given_back] = [usage.hits, usage.refused, usage.given_back].map(grouped);
    text += &format!("  hits        {hits}, over the limit {over}, given back {given_back}\n");
    if let (Some(used), Some(left)) = (usage.used, usage.left) {
        let [used, left] = [used, left].map(grouped);
        text += &format!("  now         {used} used, {left} left\n");
    }
    let (first, last) = (instant(first), instant(last));
    text += &format!("  first seen  {first}\n  last seen   {last}\n");
    text += &plot(&usage.series);
    text
}

/// A series as bars, one line for all hits and one for the refused ones, both to the same scale.
fn plot(series: &Series) -> String {
    let share = series.hits.len().div_ceil(PLOT_COLUMNS).max(1);
    // The last column ends now, and the first one may have fewer buckets.
    let columns = |values: &[u64]| {
        let parts = values.rchunks(share).rev();
        parts.map(|part| part.iter().sum()).collect::<Vec<u64>>()
    };
    let (hits, refused) = (columns(&series.hits), columns(&series.refused));
    let most = hits.iter().chain(&refused).max().copied().unwrap_or(0);
    let mut text = format!(
        "  since       {}, each bar {}, the highest {}\n",
        instant(series.begin),
        span(series.interval_seconds * share as f64),
        grouped(most)
    );
    for (name, values) in [("hits", &hits), ("over limit", &refused)] {
        let bars: String = values.iter().map(|&value| bar(value, most)).collect();
        text += &format!("  {name:<10}  {bars}\n");
    }
    text
}

fn bar(value: u64, most: u64) -> char {
    if value == 0 || most == 0 {
        return '·';
    }
    let height = (u128::from(value) * BARS.len() as u128).div_ceil(u128::from(most));
    BARS[(height as usize).clamp(1, BARS.len()) - 1]
}

fn table(top: &Top) -> String {
    let of = if top.trial { "the trial of " } else { "" };
    let mut text = format!(
        "{} of {} subjects of {of}{}, by {}\n{:>14}  {:>14}  {:<23}  {:<23}  subject\n",
        grouped(top.subjects.len() as u64),
        grouped(top.total as u64),
        OneLine(&top.limit),
        top.by,
        "hits",
        "over the limit",
        "first seen",
        "last seen"
    );
    for subject in &top.subjects {
        let (first, last) = (instant(subject.first_seen), instant(subject.last_seen));
        text += &format!(
            "{:>14}  {:>14}  {first:<23}  {last:<23}  {}\n",
            grouped(subject.hits),
            grouped(subject.refused),
            print::row(&subject.entries, Some(&subject.subject))
        );
    }
    text
}

#[derive(Args, Debug)]
#[command(
    after_help = "Example: weir count --domain shop user=42 --since 90s\n\n\
    The limit needs track_usage, or the algorithm sliding_window_buckets. Hits are counted in \
        whole buckets; the output shows whether the count is exact."
)]
pub(super) struct CountCommand {
    #[command(flatten)]
    of: SubjectArgs,
    /// Select the limit by its full key, if several limits count the subject
    #[arg(long, requires = "subject")]
    limit: Option<String>,
    /// Count this long back from now, such as 90s or 1h30m
    #[arg(long, value_name = "DURATION")]
    since: String,
    #[command(flatten)]
    admin: AdminQuery,
}

pub(super) fn count(command: &CountCommand) -> anyhow::Result<ExitCode> {
    let mut query = command.of.query(command.limit.as_deref())?;
    query.push(("since", Some(command.since.clone())));
    command
        .admin
        .show(&with_query("count", &query), count_report)
}

fn count_report(count: &Count) -> String {
    let refused = count
        .refused
        .map(|refused| format!(", over the limit {}", grouped(refused)));
    let text = format!(
        "{} of {}\n  hits     {}{}\n  from     {}\n  to       {}\n",
        print::row(&count.of.entries, Some(&count.of.subject)),
        OneLine(&count.of.limit),
        grouped(count.hits),
        refused.unwrap_or_default(),
        instant(count.from),
        instant(count.to)
    );
    let exact = if count.exact {
        "yes".to_owned()
    } else if count.at_least == count.hits {
        "no: a bucket counts up to 281,474,976,710,655 hits (2^48-1), and there may have been more"
            .to_owned()
    } else {
        format!(
            "no: at least {} in the interval; the oldest bucket begins before it and counts whole",
            grouped(count.at_least)
        )
    };
    let counted = if count.source == "buckets" {
        "; hits are those that count against the limit"
    } else {
        ""
    };
    text + &format!("  exact    {exact}{counted}\n")
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn bars_are_to_scale_and_none_is_no_bar() {
        assert_eq!(
            [0, 1, 8, 50, 99, 100].map(|value| bar(value, 100)),
            ['·', '▁', '▁', '▄', '█', '█']
        );
        assert_eq!(bar(0, 0), '·');
        assert_eq!(bar(u64::MAX, u64::MAX), '█');
    }

    #[test]
    fn a_long_series_has_columns_of_several_buckets() {
        let series = Series {
            begin: Timestamp::UNIX_EPOCH,
            interval_seconds: 60.0,
            hits: (0..121).map(|number| u64::from(number == 120)).collect(),
            refused: vec![0; 121],
            given_back: vec![0; 121],
        };
        let expected = format!(
            "  since       1970-01-01 00:00 UTC, each bar 3m, the highest 1\n  hits        {}█\n  \
             over limit  {}\n",
            "·".repeat(40),
            "·".repeat(41)
        );
        assert_eq!(plot(&series), expected);
    }
}
