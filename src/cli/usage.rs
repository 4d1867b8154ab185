//! `weir usage`: what a subject, or the subjects of a limit, have asked of a limit with
//! `track_usage`.

use std::ffi::OsString;
use std::fmt::Write;
use std::process::ExitCode;

use super::admin::{self, Asked, Services};
use super::{UsageError, entries, print};
use crate::core::ask::Entry;
use crate::core::time::people::{instant, span};
use crate::desk::admin::usage::{Series, Top, Usage};
use crate::limits::plan::key;
use crate::limits::rules::compile::OneLine;
use clap::Args;
use clap::builder::PossibleValue;

/// The columns of a plot at most. Of a longer series, several buckets share one.
const PLOT_COLUMNS: usize = 60;

/// The bars of a plot, from the smallest number above none to the largest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Subjects that one call asks for; further ones take further calls.
const MOST_PER_CALL: usize = 1_000;

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  weir usage --domain shop user=42 --since 1h\n  weir usage --domain \
        shop --top 20 --by refused"
)]
pub(super) struct UsageCommand {
    /// Entries of the subject, in their order
    #[arg(required_unless_present_any = ["top", "subject"], value_name = "KEY=VALUE")]
    entries: Vec<OsString>,
    /// Domain of the limit
    #[arg(long, short, required_unless_present_any = ["top", "subject"])]
    domain: Option<String>,
    /// Exact name of the subject, in place of a domain and entries: the `subject` of an answer
    #[arg(long, value_name = "NAME", conflicts_with_all = ["entries", "domain", "top"])]
    subject: Option<String>,
    /// How far the series goes back, such as 1h [default: as far as there are buckets]
    #[arg(long, value_name = "DURATION", conflicts_with = "top")]
    since: Option<String>,
    /// Print so many subjects of a limit, the largest first, in place of one subject
    #[arg(long, value_name = "COUNT", conflicts_with = "entries", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    top: Option<u32>,
    /// What the subjects are sorted by; refused leaves out subjects without refused hits
    #[arg(
        long,
        value_name = "hits|refused|last-seen|first-seen",
        requires = "top",
        default_value = "hits"
    )]
    #[arg(value_parser = [PossibleValue::new("hits").alias("total"), "refused".into(), "last-seen".into(), "first-seen".into()])]
    by: String,
    /// Limit of the subjects, or of a subject that several may count: its full key, with --top also
    /// its key in the domain or its name [default: the only one with track_usage]
    #[arg(long, conflicts_with = "entries")]
    limit: Option<String>,
    /// Usage of the trial of the limit: what it would have refused
    #[arg(long)]
    trial: bool,
    #[command(flatten)]
    asked: Asked,
}

pub(super) fn run(command: &UsageCommand) -> anyhow::Result<ExitCode> {
    let services = command.asked.services()?;
    if let Some(count) = command.top {
        let top = admin::block_on(top(command, &services, count as usize))?;
        return command.asked.print(&top, table);
    }
    let mut query = subject(&Named {
        domain: command.domain.as_deref(),
        entries: &command.entries,
        subject: command.subject.as_deref(),
        limit: command.limit.as_deref(),
    })?;
    query.extend(command.trial.then(|| ("trial", "true".to_owned())));
    query.extend(command.since.as_ref().map(|since| ("since", since.clone())));
    let usage: Usage = admin::block_on(services.get("usage", &borrowed(&query)))?;
    command.asked.print(&usage, report)
}

/// The subject that the arguments name: domain and entries, or the name of a subject and perhaps
/// its limit.
pub(super) struct Named<'a> {
    pub(super) domain: Option<&'a str>,
    pub(super) entries: &'a [OsString],
    pub(super) subject: Option<&'a str>,
    pub(super) limit: Option<&'a str>,
}

/// The parameters of a call about it.
pub(super) fn subject(named: &Named<'_>) -> Result<Vec<(&'static str, String)>, UsageError> {
    let domain = named.domain.unwrap_or_default();
    if let Some(name) = named.subject {
        let named = [
            Some(("subject", name.to_owned())),
            named.limit.map(|limit| ("limit", limit.to_owned())),
        ];
        return Ok(named.into_iter().flatten().collect());
    }
    let descriptors = entries::written_descriptors(named.entries)?;
    let [descriptor] = &descriptors[..] else {
        return Err(UsageError(
            "usage is that of one descriptor; write its entries without `,`".to_owned(),
        ));
    };
    let mut query = vec![("domain", domain.to_owned())];
    for entry in &descriptor.entries {
        if entry.key.contains(&b'=') || str::from_utf8(&entry.value).is_err() {
            // Only a name can say it.
            let entries = descriptor.entries.iter().map(|entry| Entry {
                key: &entry.key,
                value: &entry.value,
            });
            return Ok(vec![("subject", key::name_of(domain.as_bytes(), entries))]);
        }
        query.push((
            "entry",
            String::from_utf8_lossy(&[&entry.key[..], b"=", &entry.value].concat()).into_owned(),
        ));
    }
    Ok(query)
}

/// The same parameters, as a call takes them.
pub(super) fn borrowed<'q>(query: &'q [(&'static str, String)]) -> Vec<(&'static str, &'q str)> {
    query
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect()
}

async fn top(command: &UsageCommand, services: &Services, count: usize) -> anyhow::Result<Top> {
    let mut all: Option<Top> = None;
    loop {
        let left = count - all.as_ref().map_or(0, |all| all.subjects.len());
        let mut query = vec![
            ("by", command.by.clone()),
            ("count", left.min(MOST_PER_CALL).to_string()),
        ];
        query.extend(command.trial.then(|| ("trial", "true".to_owned())));
        query.extend(
            command
                .domain
                .as_ref()
                .map(|domain| ("domain", domain.clone())),
        );
        query.extend(command.limit.as_ref().map(|limit| ("limit", limit.clone())));
        query.extend(
            all.as_ref()
                .and_then(|all| all.next.clone())
                .map(|next| ("cursor", next)),
        );
        let part: Top = services.get("usage/top", &borrowed(&query)).await?;
        let is_last = part.next.is_none();
        let all = match &mut all {
            Some(all) => {
                all.subjects.extend(part.subjects);
                all.next = part.next;
                all
            }
            None => all.insert(part),
        };
        if is_last || all.subjects.len() >= count {
            break;
        }
    }
    all.ok_or_else(|| anyhow::anyhow!("the service has no answer"))
}

fn report(usage: &Usage) -> String {
    let row = print::row(&usage.entries, Some(&usage.subject));
    let mut text = format!(
        "{row} of {}{}\n",
        if usage.trial { "the trial of " } else { "" },
        OneLine(&usage.limit)
    );
    // Writing to a string does not fail.
    let Usage {
        hits,
        refused,
        given_back,
        ..
    } = usage;
    let (Some(first), Some(last)) = (usage.first_seen, usage.last_seen) else {
        return text + "  not seen, or not since its record expired\n";
    };
    let _ = writeln!(
        text,
        "  hits        {hits}, refused {refused}, given back {given_back}"
    );
    let _ = writeln!(text, "  first seen  {}", instant(first));
    let _ = writeln!(text, "  last seen   {}", instant(last));
    text += &plot(&usage.series);
    text
}

/// A series as bars, one line for all hits and one for the refused ones, both to the same scale.
fn plot(series: &Series) -> String {
    let share = series.hits.len().div_ceil(PLOT_COLUMNS).max(1);
    // The last column ends with the present, so that the first one may have fewer buckets.
    let columns = |values: &[u64]| {
        values
            .rchunks(share)
            .rev()
            .map(|part| part.iter().sum::<u64>())
            .collect::<Vec<_>>()
    };
    let (hits, refused) = (columns(&series.hits), columns(&series.refused));
    let most = hits
        .iter()
        .chain(&refused)
        .copied()
        .max()
        .unwrap_or_default();
    let bars = |values: &[u64]| {
        values
            .iter()
            .map(|&value| bar(value, most))
            .collect::<String>()
    };
    let length = series.interval_seconds * share as f64;
    let mut text = format!(
        "  since       {}, each bar {}, the highest {most}\n",
        instant(series.begin),
        span(length)
    );
    for (name, values) in [("hits", &hits), ("refused", &refused)] {
        let _ = writeln!(text, "  {name:<10}  {}", bars(values));
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
        "{} of {} subjects of {of}{}, by {}\n",
        top.subjects.len(),
        top.total,
        OneLine(&top.limit),
        top.by
    );
    let _ = writeln!(
        text,
        "{:>14}  {:>14}  {:<23}  {:<23}  subject",
        "hits", "refused", "first seen", "last seen"
    );
    for subject in &top.subjects {
        let (first, last) = (instant(subject.first_seen), instant(subject.last_seen));
        let _ = writeln!(
            text,
            "{:>14}  {:>14}  {first:<23}  {last:<23}  {}",
            subject.hits,
            subject.refused,
            print::row(&subject.entries, Some(&subject.subject))
        );
    }
    text
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
             refused     {}\n",
            "·".repeat(40),
            "·".repeat(41)
        );
        assert_eq!(plot(&series), expected);
    }
}
