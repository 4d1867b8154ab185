//! `weir count`: the hits of a subject in a recent interval.

use std::ffi::OsString;
use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;

use super::admin::{self, Asked};
use super::print;
use super::usage::{Named, borrowed, subject};
use crate::core::time::people::instant;
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
    /// Entries of the subject, in their order
    #[arg(required_unless_present = "subject", value_name = "KEY=VALUE")]
    entries: Vec<OsString>,
    /// Domain of the limit
    #[arg(long, short, required_unless_present = "subject")]
    domain: Option<String>,
    /// Exact name of the subject, in place of a domain and entries: the `subject` of an answer
    #[arg(long, value_name = "NAME", conflicts_with_all = ["entries", "domain"])]
    subject: Option<String>,
    /// Full key of the limit, where several may count a subject
    #[arg(long, requires = "subject")]
    limit: Option<String>,
    /// The interval, such as 90s or 1h30m; it ends now
    #[arg(long, alias = "over", value_name = "DURATION")]
    since: String,
    #[command(flatten)]
    asked: Asked,
}

pub(super) fn run(command: &CountCommand) -> anyhow::Result<ExitCode> {
    let mut query = subject(&Named {
        domain: command.domain.as_deref(),
        entries: &command.entries,
        subject: command.subject.as_deref(),
        limit: command.limit.as_deref(),
    })?;
    query.push(("since", command.since.clone()));
    let services = command.asked.services()?;
    let count: Count = admin::block_on(services.get("count", &borrowed(&query)))?;
    command.asked.print(&count, report)
}

fn report(count: &Count) -> String {
    let mut text = format!(
        "{} of {}\n  hits     {}",
        print::row(&count.entries, Some(&count.subject)),
        OneLine(&count.limit),
        count.hits
    );
    // Writing to a string does not fail.
    if let Some(refused) = count.refused {
        let _ = write!(text, ", refused {refused}");
    }
    let _ = writeln!(
        text,
        "\n  from     {}\n  to       {}",
        instant(count.from),
        instant(count.to)
    );
    let exact = if count.exact {
        "yes".to_owned()
    } else if count.at_least == count.hits {
        "no: a bucket counts up to 281474976710655 hits (2^48-1), and there may have been more"
            .to_owned()
    } else {
        format!(
            "no: at least {} in the interval; the oldest bucket begins before it and counts whole",
            count.at_least
        )
    };
    let counted = if count.source == "buckets" {
        "; hits are those that count against the limit"
    } else {
        ""
    };
    let _ = writeln!(text, "  exact    {exact}{counted}");
    text
}
