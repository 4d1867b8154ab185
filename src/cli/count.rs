//! `weir count`: the hits of a subject in a recent interval.

use std::process::ExitCode;

use clap::Args;

use super::admin::{Asked, with_query};
use super::print;
use super::usage::SubjectArgs;
use crate::core::time::people::{grouped, instant};
use crate::desk::admin::usage::Count;
use crate::limits::rules::compile::OneLine;

#[derive(Args, Debug)]
#[command(
    after_help = "Example: weir count --domain shop user=42 --since 90s\n\n\
    The limit needs track_usage, or the algorithm sliding_window_buckets. Hits are counted in \
        whole buckets: the answer says whether they are exactly\n\
    those of the interval."
)]
pub(super) struct CountCommand {
    #[command(flatten)]
    of: SubjectArgs,
    /// Full key of the limit, where several may count a subject
    #[arg(long, requires = "subject")]
    limit: Option<String>,
    /// The interval, such as 90s or 1h30m; it ends now
    #[arg(long, value_name = "DURATION")]
    since: String,
    #[command(flatten)]
    asked: Asked,
}

pub(super) fn run(command: &CountCommand) -> anyhow::Result<ExitCode> {
    let mut query = command.of.query(command.limit.as_deref())?;
    query.push(("since", Some(command.since.clone())));
    command.asked.show(&with_query("count", &query), report)
}

fn report(count: &Count) -> String {
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
