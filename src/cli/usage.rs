//! `weir usage` and `weir count`: the hits of a subject, or of the subjects of a limit with
//! `track_usage`, in total or in a recent interval.

use std::collections::HashSet;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::admin::{AdminQuery, with_query};
use super::entries::{self, read_exact};
use super::replicas::Merged;
use super::{UsageError, amount, print};
use crate::admin::api::query::{MAX_COUNT, next};
use crate::admin::api::status::{Status, now};
use crate::admin::api::usage::{Count, CurrentUse, Series, Top, Usage, UsageSubject};
use crate::core::request;
use crate::core::time::people::{ahead, counted, grouped, instant, span};
use crate::core::time::{Span, Zone};
use crate::core::usage::Page;
use crate::limits::plan::key::Subject;
use crate::limits::rules::compile::OneLine;
use anyhow::bail;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use indicatif::ProgressBar;
use serde_json::{Value, json};

/// Maximum number of columns of a plot. In a longer series, several buckets share a column.
const PLOT_COLUMNS: usize = 60;

/// The bars of a plot, from the smallest number above none to the largest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The time without a progress line.
const QUIET: Duration = Duration::from_secs(1);

/// Number of subjects in a list without `--top`.
const USUAL_COUNT: u64 = 20;

/// Largest number of subjects of a list.
const MOST_COUNT: u64 = 100_000;

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
#[command(mut_arg("entries", |entries| entries.required_unless_present_any(["top", "by", "period"])))]
#[command(mut_arg("domain", |domain| domain.required_unless_present_any(["top", "by", "period"])))]
#[command(mut_arg("format", |format| format.value_name("text|json|csv").value_parser(formats())))]
#[command(mut_arg("subject", |subject| subject.conflicts_with_all(["top", "by"])))]
#[command(
    after_help = "Examples:\n  weir usage --domain shop user=42 --since 1h\n  weir usage --domain \
        shop --top 20 --by refused\n  weir usage --domain shop --by share --above 80%\n  weir \
        usage --domain shop --period last --format csv > bill.csv"
)]
pub(super) struct UsageCommand {
    #[command(flatten)]
    of: SubjectArgs,
    /// Begin the series this long ago, such as 1h [default: all that is stored]
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    #[arg(conflicts_with_all = ["top", "by"])]
    since: Option<Duration>,
    /// Show the hits of this period of the limit, such as its month; last is the last closed one
    /// and, without a subject, lists the subjects of a limit
    #[arg(long, value_name = "current|last", value_parser = ["current", "last"])]
    period: Option<String>,
    /// List the COUNT largest subjects of a limit instead of one subject [default with --by or
    /// --period: 20; with --format csv: all]
    #[arg(long, value_name = "COUNT", conflicts_with = "entries")]
    #[arg(value_parser = amount::between(1, MOST_COUNT))]
    top: Option<u64>,
    /// Sort the subjects of a limit by this column [default: hits]; refused leaves out subjects
    /// without refused hits
    ///
    /// share is the used part of the period, of the current one by the counters, and leaves out
    /// subjects that have used nothing. The last period has no other order. It costs one read of the
    /// store per subject of the limit, at most `usage_subjects`, and again for each 1000 subjects of
    /// the list.
    #[arg(long, value_name = "hits|refused|last-seen|first-seen|share")]
    #[arg(conflicts_with = "entries")]
    #[arg(value_parser = ["hits", "refused", "last-seen", "first-seen", "share"])]
    by: Option<String>,
    /// List only subjects that have used more than this share, such as 80%, with --by share
    #[arg(long, value_name = "SHARE", requires = "by")]
    above: Option<String>,
    /// Select the limit by its full key; in lists also by its key in the domain or its name
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
    if command.above.is_some() && command.by.as_deref() != Some("share") {
        let what = "--above is a part of a period; write --by share";
        return Err(UsageError(what.to_owned()).into());
    }
    let is_csv = command.admin.format == print::Format::Csv;
    if command.by.is_some() || command.top.is_some() || command.of.is_empty() {
        let usual = if is_csv { MOST_COUNT } else { USUAL_COUNT };
        let count = command.top.unwrap_or(usual) as usize;
        let top = print::block_on(top(command, count))?;
        if !is_csv {
            return top.print(command.admin.format, |top| list(&top.answer));
        }
        let is_whole = top.failures().is_empty() && top.answer.complete != Some(false);
        let text = csv(command, &top.answer)?;
        top.print(print::Format::Text, |_| text)?;
        anyhow::ensure!(is_whole, "the list may not have all subjects");
        return Ok(ExitCode::SUCCESS);
    }
    if is_csv {
        let what = "--format csv is for lists; leave the subject out, and write --by or --period";
        return Err(UsageError(what.to_owned()).into());
    }
    let mut query = command.of.query(command.limit.as_ref())?;
    let since = command.since.map(|time| Span::from(time).to_string());
    let trial = command.trial.then(|| "true".to_owned());
    let period = command.period.clone();
    query.extend([("trial", trial), ("since", since), ("period", period)]);
    let services = command.admin.service.services()?;
    let usage: Usage = print::block_on(services.get(&with_query("usage", &query)))?;
    if command.is_of_last_period() && usage.last_period.is_none() {
        bail!("the last period is not known; of a newer record or unit it is after the next one");
    }
    command.admin.format.print(&usage, report)?;
    Ok(ExitCode::SUCCESS)
}

/// The formats of a list.
fn formats() -> impl TypedValueParser {
    PossibleValuesParser::new(["text", "json", "csv"]).map(|text| match &*text {
        "csv" => print::Format::Csv,
        "json" => print::Format::Json,
        _ => print::Format::Text,
    })
}

/// A list as CSV, with the fields of JSON.
fn csv(command: &UsageCommand, top: &Top) -> anyhow::Result<String> {
    let columns = match command.is_of_last_period() {
        true => "begin end used limit used_units limit_units share_percent hits refused given_back",
        false => {
            "used used_hits amount amount_hits share_percent left left_hits held held_hits \
             resets_in_seconds hits refused first_seen last_seen"
        }
    };
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(["subject", "entries"].into_iter().chain(columns.split(' ')))?;
    for one in &top.subjects {
        let fields = json!(one);
        let fields = fields.get("last_period").unwrap_or(&fields);
        let numbers = columns.split(' ').map(|name| match &fields[name] {
            Value::Null => String::new(),
            value => print::plain(value),
        });
        let names = [one.subject.clone(), print::words(&one.entries)];
        out.write_record(names.into_iter().chain(numbers))?;
    }
    Ok(String::from_utf8(out.into_inner()?)?)
}

impl UsageCommand {
    fn is_of_last_period(&self) -> bool {
        self.period.as_deref() == Some("last")
    }
}

/// Parameters of a call that may have a value.
type Parameters = Vec<(&'static str, Option<String>)>;

impl SubjectArgs {
    /// Whether no subject is named.
    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.subject.is_none()
    }

    /// The parameters of a call about it, or about what this limit counts of it.
    fn query(&self, limit: Option<&String>) -> Result<Parameters, UsageError> {
        let name = self.subject.clone().map_or_else(|| self.name(), Ok)?;
        Ok(vec![("subject", Some(name)), ("limit", limit.cloned())])
    }

    /// The name of the subject with these entries.
    fn name(&self) -> Result<String, UsageError> {
        let descriptors = entries::descriptors(&self.entries, read_exact)?;
        let [descriptor] = &descriptors[..] else {
            let what = "usage is that of one descriptor; write its entries without `,`";
            return Err(UsageError(what.to_owned()));
        };
        let domain = self.domain.as_deref().unwrap_or_default();
        let entries = descriptor.entries.iter().map(|entry| request::Entry {
            key: &entry.key,
            value: &entry.value,
        });
        Ok(Subject::new(domain.as_bytes(), entries).to_string())
    }
}

/// So many subjects, call by call.
async fn top(command: &UsageCommand, count: usize) -> anyhow::Result<Merged<Top>> {
    let service = &command.admin.service;
    let services = service.services()?;
    let is_share = command.by.as_deref() == Some("share") && !command.is_of_last_period();
    let asks_all = is_share && services.get::<Status>("status").await?.store == "memory";
    // Hidden if stderr is no terminal.
    let (bar, began) = (ProgressBar::new_spinner(), Instant::now());
    let (mut all, mut asked, mut cursor) = (None::<Top>, 0, None);
    loop {
        let known = all.as_ref().map_or(0, |all| all.subjects.len());
        // Any subject of a replica may be among the first of all.
        let most = if asks_all { MAX_COUNT } else { count - known };
        let part = most.min(MAX_COUNT);
        let query = [
            ("by", command.by.as_deref()),
            ("period", command.period.as_deref()),
            ("above", command.above.as_deref()),
            ("count", Some(&*part.to_string())),
            ("trial", command.trial.then_some("true")),
            ("domain", command.of.domain.as_deref()),
            ("limit", command.limit.as_deref()),
            ("cursor", cursor.as_deref()),
        ];
        let call = with_query("usage/top", &query);
        let mut answered = Merged::default();
        match asks_all {
            true => answered = service.query_all(&call).await?,
            false => answered.answer.push(services.get(&call).await?),
        }
        answered.check_any()?;
        asked += part;
        let mut tops = answered.answer.iter();
        cursor = tops.find_map(|top: &Top| top.next.clone());
        let tops = std::mem::take(&mut answered.answer).into_iter();
        all = tops.fold(all, |all, top| Some(join(all, top)));
        let is_whole = |all: &Top| asked >= count && (asks_all || all.subjects.len() >= count);
        if let Some(mut all) = all.take_if(|all| cursor.is_none() || is_whole(all)) {
            bar.finish_and_clear();
            all.subjects.truncate(count);
            all.next = next(Page { offset: 0, count }, all.total);
            return Ok(answered.map(|_| all));
        }
        if began.elapsed() > QUIET {
            bar.set_message(counted(asked as u64, "subject"));
        }
    }
}

/// A list and a further one, of the next subjects or of another replica. By share, a subject of both
/// has its larger share: where replicas count by themselves, that replica refuses it first.
fn join(all: Option<Top>, top: Top) -> Top {
    let Some(mut all) = all else {
        return top;
    };
    all.examined = all.examined.max(top.examined);
    all.complete = all.complete.min(top.complete);
    all.subjects.extend(top.subjects);
    if all.examined.is_some() {
        all.subjects.sort_by(UsageSubject::largest_first);
        let mut seen = HashSet::new();
        all.subjects.retain(|one| seen.insert(one.subject.clone()));
    }
    all.total = all.total.max(top.total).max(all.subjects.len());
    all
}

fn list(top: &Top) -> String {
    let of = if top.trial { "the trial of " } else { "" };
    let is_last = top.subjects.iter().any(|one| one.last_period.is_some());
    let time = match (is_last, top.examined) {
        (true, _) => " in the last period",
        (false, Some(_)) => "",
        (false, None) => " since first seen",
    };
    let [count, total] = [top.subjects.len(), top.total].map(|count| grouped(count as u64));
    let (limit, by) = (OneLine(&top.limit), &top.by);
    let head = format!("{count} of {total} subjects of {of}{limit}{time}, by {by}\n");
    let shares = if is_last { last_period } else { shares };
    match (top.complete, top.examined) {
        (None, _) | (_, None) => head + &totals(top),
        (Some(true), _) => head + &shares(top),
        (Some(false), Some(examined)) => {
            let examined = grouped(examined as u64);
            let last = format!("of the {examined} subjects with the most hits; there may be more");
            head + &shares(top) + &last + "\n"
        }
    }
}

fn last_period(top: &Top) -> String {
    let head = ["used", "amount", "share", "hits", "begin", "subject"];
    let rows = top.subjects.iter().filter_map(|subject| {
        let last = subject.last_period.as_ref()?;
        Some(vec![
            last.used_units.to_string(),
            last.limit_units.to_string(),
            percent(last.share_percent),
            grouped(last.hits),
            instant(last.begin),
            print::row(&subject.entries, Some(&subject.subject)),
        ])
    });
    print::table(&head, rows, 4)
}

fn totals(top: &Top) -> String {
    let head = [
        "hits",
        "over the limit",
        "first seen",
        "last seen",
        "subject",
    ];
    let rows = top.subjects.iter().filter_map(|subject| {
        let totals = subject.totals.as_ref()?;
        Some(vec![
            grouped(totals.hits),
            grouped(totals.refused),
            instant(totals.first_seen),
            instant(totals.last_seen),
            print::row(&subject.entries, Some(&subject.subject)),
        ])
    });
    print::table(&head, rows, 2)
}

fn shares(top: &Top) -> String {
    let held = |subject: &UsageSubject| subject.current.as_ref()?.held;
    let head = ["used", "amount", "share", "left"].into_iter();
    let has_holds = top.subjects.iter().any(|subject| held(subject).is_some());
    let numbers: Vec<_> = head.chain(has_holds.then_some("held")).collect();
    let rows = top.subjects.iter().filter_map(|subject| {
        let current = subject.current.as_ref()?;
        let mut row = vec![
            current.used?.to_string(),
            current.amount.to_string(),
            share(current),
            current.left?.to_string(),
        ];
        if has_holds {
            row.push(held(subject).map_or_else(String::new, |held| held.to_string()));
        }
        let resets = resets_in(current).map(|time| format!("in {time}"));
        row.push(resets.unwrap_or_else(|| "never".to_owned()));
        row.push(print::row(&subject.entries, Some(&subject.subject)));
        Some(row)
    });
    let head = [&numbers[..], &["resets", "subject"]].concat();
    print::table(&head, rows, numbers.len())
}

fn report(usage: &Usage) -> String {
    let subject = &usage.of;
    let row = print::row(&subject.entries, Some(&subject.subject));
    let of = if subject.trial { "the trial of " } else { "" };
    let mut text = format!("{row} of {of}{}\n", OneLine(&subject.limit));
    text += &current(&usage.current);
    if let Some(last) = &usage.last_period {
        let share = percent(last.share_percent);
        let [begin, end] = [last.begin, last.end].map(instant);
        let (used, amount) = (last.used_units, last.limit_units);
        text += &format!("  last        {used} of {amount} used ({share}), {begin} to {end}\n");
    }
    let (Some(first), Some(last)) = (usage.first_seen, usage.last_seen) else {
        return text + "  not seen, or not since its record expired\n";
    };
    let [hits, over, given_back] = [usage.hits, usage.refused, usage.given_back].map(grouped);
    text += &format!("  hits        {hits}, over the limit {over}, refunded {given_back}\n");
    let (first, last) = (instant(first), instant(last));
    text += &format!("  first seen  {first}\n  last seen   {last}\n");
    text += &plot(&usage.series);
    text
}

/// The line of the current period; none if no store answered.
fn current(current: &CurrentUse) -> String {
    let (Some(used), Some(left)) = (current.used, current.left) else {
        return String::new();
    };
    let amount = current.amount;
    let resets = resets_in(current).map_or_else(String::new, |time| format!(", resets in {time}"));
    let held = current.held.filter(|held| held.0 > 0.0);
    let held = held.map_or_else(String::new, |held| format!(", {held} held by reservations"));
    let share = share(current);
    format!("  now         {used} of {amount} used ({share}), {left} left{held}{resets}\n")
}

/// The used share.
fn share(current: &CurrentUse) -> String {
    percent(current.share_percent.unwrap_or_default())
}

/// A share, rounded down to a tenth.
fn percent(share: f64) -> String {
    format!("{} %", (share * 10.0).floor() / 10.0)
}

/// The time until the reset, first in the zone of the limit.
fn resets_in(current: &CurrentUse) -> Option<String> {
    let zone = current.timezone.as_deref().and_then(Zone::named);
    Some(ahead(current.resets_in_seconds?, now(), zone))
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
    let (since, each) = (series.begin, series.interval_seconds * share as f64);
    let (since, each, highest) = (instant(since), span(each), grouped(most));
    let mut text = format!("  since       {since}, each bar {each}, the highest {highest}\n");
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
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    since: Duration,
    #[command(flatten)]
    admin: AdminQuery,
}

pub(super) fn count(command: &CountCommand) -> anyhow::Result<ExitCode> {
    let mut query = command.of.query(command.limit.as_ref())?;
    query.push(("since", Some(Span::from(command.since).to_string())));
    let services = command.admin.service.services()?;
    let count: Count = print::block_on(services.get(&with_query("count", &query)))?;
    command.admin.format.print(&count, count_report)?;
    Ok(ExitCode::SUCCESS)
}

fn count_report(count: &Count) -> String {
    let row = print::row(&count.of.entries, Some(&count.of.subject));
    let mut text = format!("{row} of {}\n", OneLine(&count.of.limit));
    text += &format!("  hits     {}", grouped(count.hits));
    if let Some(refused) = count.refused {
        text += &format!(", over the limit {}", grouped(refused));
    }
    let [from, to] = [count.from, count.to].map(instant);
    text += &format!("\n  from     {from}\n  to       {to}\n");
    if let Some(held) = count.held.filter(|&held| held > 0) {
        text += &format!("  held     {} by reservations\n", grouped(held));
    }
    text += "  exact    ";
    if count.exact {
        text += "yes";
    } else if count.at_least == count.hits {
        text += "no: a bucket counts up to 281,474,976,710,655 hits (2^48-1), and there may have \
            been more";
    } else {
        let least = grouped(count.at_least);
        text += &format!("no: at least {least} in the interval; ");
        text += "the oldest bucket begins before it and counts whole";
    }
    if count.source == "buckets" {
        text += "; hits are those that count against the limit";
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::limits::plan::key::EntryText;
    use crate::limits::rules::limit::Units;

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

    fn top_of(subjects: &[(&str, u64)], is_complete: bool) -> Top {
        let subject = |&(user, used): &(&str, u64)| UsageSubject {
            entries: vec![EntryText {
                key: "user".to_owned(),
                value: user.to_owned(),
            }],
            subject: format!("shop|user={user}"),
            totals: None,
            current: Some(CurrentUse {
                used: Some(Units(used as f64)),
                amount: Units(2_000.0),
                share_percent: Some(used as f64 / 20.0),
                left: Some(Units(2_000.0 - used as f64)),
                resets_in_seconds: Some(42.0),
                ..CurrentUse::default()
            }),
            last_period: None,
            overridden: None,
        };
        Top {
            limit: "shop.user".to_owned(),
            trial: false,
            domain: "shop".to_owned(),
            by: "share".to_owned(),
            total: subjects.len(),
            examined: Some(10_000),
            complete: Some(is_complete),
            subjects: subjects.iter().map(subject).collect(),
            next: None,
        }
    }

    #[test]
    fn a_subject_of_several_replicas_has_its_largest_share() {
        let one = top_of(&[("ann", 1_900), ("bob", 10)], true);
        let other = top_of(&[("bob", 1_999), ("ann", 1_000), ("cid", 1)], false);
        let joined = join(Some(join(None, one)), other);
        assert_eq!(
            list(&joined),
            "3 of 3 subjects of shop.user, by share\n used  amount   share   left  resets  \
             subject\n1,999   2,000  99.9 %      1  in 42s  user=bob\n1,900   2,000    95 %    \
             100  in 42s  user=ann\n    1   2,000     0 %  1,999  in 42s  user=cid\nof the \
             10,000 subjects with the most hits; there may be more\n"
        );
    }
}
