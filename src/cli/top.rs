//! `weir top`: the heaviest subjects of one or several replicas, merged. On a terminal the table
//! refreshes until the user quits.

mod by_replica;
mod merge;
mod screen;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::admin::{AdminQuery, with_query};
use super::replicas::Merged;
use super::{amount, print};
use crate::admin::api::query::MAX_COUNT;
use crate::admin::api::top::{self as api, RANKINGS, TopSubject, WINDOWS};
use crate::core::time::people::{counted, grouped};
use crate::limits::rules::compile::OneLine;

/// Subjects that are named in one call. The name of one has less than 800 bytes in a query, and the
/// head of a request at most 64 KiB.
const MAX_NAMED: usize = 40;

/// The time between two answers on a terminal.
const INTERVAL: Duration = Duration::from_secs(2);

#[derive(Args, Debug)]
#[command(
    after_help = "Example: weir top --by refused --since 1h --admin weir-headless:6070\n\n\
    The numbers are estimates: never too high, and too low by at most the number after ±. On a \
        terminal the table refreshes every 2 s; q quits."
)]
pub(super) struct TopCommand {
    /// Sort by hits, or by refused hits; or list replicas instead of subjects, with their limits
    #[arg(long, default_value = "hits", value_name = "hits|refused|replica")]
    by: SortBy,
    /// Count the last 60 to 70 seconds, or the last 60 to 70 minutes
    #[arg(long, default_value = "1m", value_name = "1m|1h")]
    since: TopWindow,
    /// List this many subjects; 1 to 1000
    #[arg(long = "top", default_value = "20", value_name = "COUNT")]
    #[arg(value_parser = amount::between(1, MAX_COUNT as u64))]
    count: u64,
    /// List only subjects of this domain
    #[arg(long, short, value_name = "TEXT")]
    domain: Option<String>,
    /// List only subjects of the limit with this path
    #[arg(long, value_name = "TEXT")]
    limit: Option<String>,
    /// Print once and exit, also on a terminal
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    admin: AdminQuery,
}

/// The first ones in the order of [`RANKINGS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SortBy {
    Hits,
    Refused,
    Replica,
}

/// In the order of [`WINDOWS`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum TopWindow {
    #[value(name = "1m", aliases = ["60s", "minute"])]
    Minute,
    #[value(name = "1h", aliases = ["60m", "hour"])]
    Hour,
}

pub(super) fn run(top: &TopCommand) -> anyhow::Result<ExitCode> {
    if top.by == SortBy::Replica {
        return by_replica::run(top);
    }
    if top.admin.format == print::Format::Text && !top.once && io::stdout().is_terminal() {
        return print::block_on(watch(top));
    }
    let report = print::block_on(top.query())?;
    report.check_any()?;
    report.print(top.admin.format, text)
}

/// Shows the table until a key or a signal ends it.
async fn watch(top: &TopCommand) -> anyhow::Result<ExitCode> {
    // The first query comes before the screen changes: the error of a wrong address or of a missing
    // service stays on the terminal.
    let mut report = top.query().await?;
    report.check_any()?;
    let mut screen = screen::Screen::open()?;
    loop {
        let lines = report.failures().into_iter().map(|line| line + "\n");
        let frame: String = [text(&report)].into_iter().chain(lines).collect();
        screen::show(&frame)?;
        let next = tokio::time::Instant::now() + INTERVAL;
        // A changed size only redraws.
        while let Some(event) = screen.event_before(next).await {
            match event {
                screen::ScreenEvent::Quit => return Ok(ExitCode::SUCCESS),
                screen::ScreenEvent::Resized => screen::show(&frame)?,
            }
        }
        report = tokio::select! {
            report = top.query() => report?,
            () = screen.quit() => return Ok(ExitCode::SUCCESS),
        };
    }
}

impl TopCommand {
    /// The ranking of all replicas. Each is asked again for the subjects of which another did not
    /// have all numbers in its list.
    async fn query(&self) -> anyhow::Result<Merged<api::Top>> {
        // A subject that is light in one replica may be heavy in all: the query is for as many as
        // possible.
        let count = MAX_COUNT.to_string();
        let query = [
            ("window", Some(WINDOWS[self.since as usize].0)),
            ("by", Some(RANKINGS[self.by as usize].0)),
            ("count", Some(&*count)),
            ("domain", self.domain.as_deref()),
            ("limit", self.limit.as_deref()),
        ];
        let (_, by) = RANKINGS[self.by as usize];
        let service = &self.admin.service;
        let all: Merged<Vec<_>> = service.query_all(&with_query("top", &query)).await?;
        let mut all = all.map(|tops| merge::merge(&tops, by, self.count as usize));
        let is_unsure = |one: &&TopSubject| one.ranked.hits_error + one.ranked.refused_error > 0;
        let unsure = all.answer.subjects.iter().filter(is_unsure);
        let unsure: Vec<_> = unsure.map(|one| one.ranked.subject.label()).collect();
        let is_one = all.replicas.len() == 1;
        for labels in unsure.chunks(MAX_NAMED).filter(|_| !is_one) {
            let labels = labels.iter().map(|label| ("subject", Some(&**label)));
            let query: Vec<_> = query[..3].iter().copied().chain(labels).collect();
            let named: Merged<Vec<_>> = service.query_all(&with_query("top", &query)).await?;
            if named.answered() == all.answered() {
                merge::refine(&mut all.answer, &named.answer, by);
            }
        }
        Ok(all)
    }
}

/// The report as a table.
fn text(merged: &Merged<api::Top>) -> String {
    let (replicas, top) = (&merged.replicas, &merged.answer);
    let answered = merged.answered().len();
    let of = match replicas.len() {
        all if all == answered => counted(all as u64, "replica"),
        all => format!("{answered} of {all} replicas"),
    };
    let is_refused = top.by == RANKINGS[1].0;
    let kind = if is_refused { "refused hits" } else { "hits" };
    let (total, seconds) = (grouped(top.total), top.seconds);
    let mut text = format!("{total} {kind} in the last {seconds} s of {of}");
    if top.error_at_most > 0 {
        let most = grouped(top.error_at_most);
        text += &format!("; a subject that is not counted has at most {most}");
    }
    text.push('\n');
    if top.subjects.is_empty() {
        return text;
    }
    let with_error = |number: u64, error: u64| match error {
        0 => grouped(number),
        _ => format!("{} ±{}", grouped(number), grouped(error)),
    };
    let row = |api::TopSubject { ranked, .. }: &api::TopSubject| {
        let subject = &ranked.subject;
        vec![
            with_error(ranked.hits, ranked.hits_error),
            with_error(ranked.refused, ranked.refused_error),
            OneLine(&subject.limit).to_string(),
            print::row(&subject.entries, subject.name.as_deref()),
        ]
    };
    let heads = ["HITS", "REFUSED", "LIMIT", "SUBJECT"];
    text + &print::table(&heads, top.subjects.iter().map(row), 2)
}
