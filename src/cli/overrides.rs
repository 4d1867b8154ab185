//! `weir block`, `exempt`, `raise`, `overrides` and `reset`: what operators change in a running service.

mod arguments;
mod output;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use http::Method;

use self::arguments::{entries, exact_entries, rate, until};
use super::admin::{self, AdminFlags, Service};
use super::print;
use crate::admin::overrides as api;
use crate::admin::status::now;
use crate::overrides::RateRecord;

/// How a descriptor is written, and when an override ends.
const HOW: &str = "An entry is KEY=VALUE, in which each * stands for any text, or KEY alone for any value. \\* is a star and \\\\ a backslash: quote them for \
    the shell, as `weir top` prints them. The entries are all entries of the descriptor, in its order: `user=42` does not match `user=42 path=/x`.\n\n\
    --until takes a duration from now (2h, 3d, 1h30m), an instant (2030-01-31T18:00:00Z), or a date or time in the zone of this terminal \
    (2030-01-31 is its midnight, 2030-01-31T18:00). Every instant is shown in UTC.\n\n\
    The service needs ADMIN_TOKEN_FILE; the name of the token is logged as who did it. Of several overrides that match, a block or an exemption \
    comes before a raise, and the more specific one before the other.";

/// The descriptors of an override.
#[derive(Args, Debug)]
struct Which {
    /// Entries of the descriptors, in their order
    #[arg(required_unless_present = "subject", value_name = "KEY[=VALUE]")]
    entries: Vec<String>,
    /// Domain of the descriptors
    #[arg(long, short, required_unless_present = "subject")]
    domain: Option<String>,
    /// Exact name of the subject, in place of a domain and entries: the `subject` of an answer
    #[arg(long, value_name = "NAME", conflicts_with_all = ["entries", "domain"])]
    subject: Option<String>,
    /// When it ends by itself [default: when it is removed]
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Why, for those who list or log it
    #[arg(long, default_value = "", value_name = "TEXT", hide_default_value = true)]
    reason: String,
    /// Set it also if no limit in force has its domain or its keys
    #[arg(long)]
    force: bool,
    /// Format of the output: text for people, json for programs
    #[arg(long, default_value = "text", value_name = "text|json")]
    format: print::Format,
    #[command(flatten)]
    admin: AdminFlags,
}

#[derive(Args, Debug)]
#[command(after_help = format!("{HOW}\n\nExample: weir block --domain demo remote_address=10.0.0.1 --until 2h --reason \"scans our catalogue\""))]
pub(super) struct Block {
    #[command(flatten)]
    which: Which,
}

#[derive(Args, Debug)]
#[command(after_help = format!("{HOW}\n\nExample: weir exempt --domain demo remote_address=10.0.0.1 --reason \"our own monitoring\""))]
pub(super) struct Exempt {
    #[command(flatten)]
    which: Which,
}

#[derive(Args, Debug)]
#[command(after_help = format!("The count is kept. A limit can be raised in its own unit only.\n\n{HOW}\n\n\
    Example: weir raise --domain demo remote_address=10.0.0.1 --to 500/minute --until 3d --reason \"ticket 4711\""))]
pub(super) struct Raise {
    /// The amount of the limit: HITS/UNIT, or HITS/MULTIPLIER UNITs, such as 500/minute or \"20/30 seconds\"
    #[arg(long, value_name = "RATE", value_parser = rate)]
    to: RateRecord,
    #[command(flatten)]
    which: Which,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = "Example: weir overrides remove 0a1b2c3d4e5f")]
pub(super) struct Overrides {
    #[command(subcommand)]
    change: Option<OverridesCommand>,
    #[command(flatten)]
    list: List,
}

#[derive(Args, Debug)]
struct List {
    /// Nothing but this domain
    #[arg(long, short)]
    domain: Option<String>,
    /// Format of the output: text for people, json for programs
    #[arg(long, default_value = "text", value_name = "text|json")]
    format: print::Format,
    #[command(flatten)]
    admin: AdminFlags,
}

#[derive(Debug, Subcommand)]
enum OverridesCommand {
    /// End overrides: the limits of the files are in force again
    Remove(Remove),
}

#[derive(Args, Debug)]
struct Remove {
    /// Ids of the overrides, as `weir overrides` lists them
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Format of the output: text for people, json for programs, one object per override
    #[arg(long, default_value = "text", value_name = "text|json")]
    format: print::Format,
    #[command(flatten)]
    admin: AdminFlags,
}

#[derive(Args, Debug)]
#[command(
    after_help = "It takes one exact descriptor, without wildcards; \\* is a star and \\\\ a backslash. In all replicas the next hit counts from zero, within a \
    second at most.\n\n\
    Example: weir reset --domain demo remote_address=10.0.0.1"
)]
pub(super) struct Reset {
    /// All entries of the descriptor, in their order
    #[arg(required_unless_present = "subject", value_name = "KEY=VALUE")]
    entries: Vec<String>,
    /// Domain of the descriptor
    #[arg(long, short, required_unless_present = "subject")]
    domain: Option<String>,
    /// Exact name of the subject, in place of a domain and entries: the `subject` of an answer
    #[arg(long, value_name = "NAME", conflicts_with_all = ["entries", "domain"])]
    subject: Option<String>,
    /// Full key of the limit, where several may count a subject
    #[arg(long, requires = "subject")]
    limit: Option<String>,
    /// Format of the output: text for people, json for programs
    #[arg(long, default_value = "text", value_name = "text|json")]
    format: print::Format,
    #[command(flatten)]
    admin: AdminFlags,
}

pub(super) fn block(Block { which }: &Block) -> anyhow::Result<ExitCode> {
    order(which, "block", None)
}

pub(super) fn exempt(Exempt { which }: &Exempt) -> anyhow::Result<ExitCode> {
    order(which, "exempt", None)
}

pub(super) fn raise(Raise { to, which }: &Raise) -> anyhow::Result<ExitCode> {
    order(which, "raise", Some(to.clone()))
}

fn order(which: &Which, kind: &str, to: Option<RateRecord>) -> anyhow::Result<ExitCode> {
    let order = api::Order {
        kind: kind.to_owned(),
        domain: which.domain.clone().unwrap_or_default(),
        entries: entries(&which.entries)?,
        subject: which.subject.clone(),
        to,
        until: which.until.as_deref().map(|text| until(text, now(), &jiff::tz::TimeZone::system())).transpose()?,
        reason: which.reason.clone(),
        force: which.force,
    };
    let service = which.admin.service()?;
    let ordered: api::Ordered = admin::block_on(service.send_json(Method::POST, "overrides", &order))?;
    show(which.format, &ordered, output::ordered)
}

pub(super) fn overrides(overrides: &Overrides) -> anyhow::Result<ExitCode> {
    match &overrides.change {
        Some(OverridesCommand::Remove(remove)) => {
            let service = remove.admin.service()?;
            for id in &remove.ids {
                let call = format!("overrides/{}", form_urlencoded::byte_serialize(id.as_bytes()).collect::<String>());
                let removed: api::Removed = admin::block_on(service.send(Method::DELETE, &call, bytes::Bytes::new()))?;
                show(remove.format, &removed, output::removed)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        None => {
            let list = &overrides.list;
            let all = admin::block_on(all(&list.admin.service()?, list.domain.as_deref()))?;
            show(list.format, &all, output::listed)
        }
    }
}

/// All overrides, page by page.
async fn all(service: &Service, domain: Option<&str>) -> anyhow::Result<api::Overrides> {
    let mut all = api::Overrides { overrides: Vec::new(), next: None };
    loop {
        let cursor = all.next.take().unwrap_or_default();
        let page: api::Overrides =
            service.get("overrides", &[("count", "1000"), ("cursor", &cursor), ("domain", domain.unwrap_or_default())]).await?;
        all.overrides.extend(page.overrides);
        all.next = page.next;
        if all.next.is_none() || all.overrides.len() > crate::overrides::MAX_OVERRIDES {
            all.next = None;
            return Ok(all);
        }
    }
}

pub(super) fn reset(reset: &Reset) -> anyhow::Result<ExitCode> {
    let order = api::ResetOrder {
        domain: reset.domain.clone().unwrap_or_default(),
        entries: exact_entries(&reset.entries)?,
        subject: reset.subject.clone(),
        limit: reset.limit.clone(),
    };
    let service = reset.admin.service()?;
    let done: api::Reset = admin::block_on(service.send_json(Method::POST, "reset", &order))?;
    show(reset.format, &done, output::reset)
}

fn show<T: serde::Serialize>(format: print::Format, answer: &T, text: impl FnOnce(&T) -> String) -> anyhow::Result<ExitCode> {
    print::out(match format {
        print::Format::Text => text(answer),
        print::Format::Json => print::json(answer)?,
    })?;
    Ok(ExitCode::SUCCESS)
}
