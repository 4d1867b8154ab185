//! `weir block`, `exempt`, `raise`, what undoes them, `overrides` and `reset`: what operators
//! change in a running service.

mod arguments;
mod output;

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::arguments::{check_values, entries, exact_entries, rate, until};
pub(super) use self::output::order;
use super::admin::{AdminQuery, Call, with_query};
use super::{UsageError, print};
use crate::admin::api::overrides as api;
use crate::admin::api::status::now;
use crate::admin::api::subject;
use crate::core::request::notation::shell_word;
use crate::limits::overrides::{EntryRecord, Kind, MAX_OVERRIDES, Pattern, RaiseRate, Record};
use crate::limits::rules::compile::OneLine;

/// How a descriptor is written, and when an override ends.
const HOW: &str = "An entry is KEY=VALUE, in which each * matches any text, or KEY alone for any \
    value. \\* is a star and \\\\ a backslash; quote them for the shell, as `weir top` prints \
    them. Write all entries of the descriptor, in its order: `user=42` does not match `user=42 \
    path=/x`.\n\n\
    --until takes a duration from now (2h, 3d, 1h30m), an instant (2030-01-31T18:00:00Z), or a \
    date or a day in the time zone of this terminal (2030-01-31 and friday include that day; \
    \"2030-01-31 18:00\" and \"friday 18:00\" are earlier). The output shows the expiry.\n\n\
    The service needs ADMIN_TOKEN_FILE; it logs the name of the token as the author. If several \
    overrides match, a block or an exemption takes precedence over a raise, and a more specific \
    override over others.";

/// The last lines of the help texts of `weir block` and `weir exempt`.
pub(super) const BLOCK: &str = "Example: weir block --domain demo remote_address=10.0.0.1 --until \
    2h --reason \"scans our catalogue\"";
pub(super) const EXEMPT: &str = "Example: weir exempt --domain demo remote_address=10.0.0.1 \
    --reason \"our own monitoring\"";

/// Text below the flags of an override, with an example.
pub(super) fn help(example: &str) -> String {
    format!("{HOW}\n\n{example}")
}

/// The descriptors of an override.
#[derive(Args, Debug)]
pub(super) struct OverrideTarget {
    /// Match descriptors with exactly these entries, in order
    #[arg(required_unless_present = "subject", value_name = "KEY[=VALUE]")]
    entries: Vec<String>,
    /// Match descriptors of this domain
    #[arg(long, short, required_unless_present = "subject")]
    domain: Option<String>,
    /// Select the subject by its name, `subject` in JSON output, instead of domain and entries
    #[arg(long, value_name = "NAME", conflicts_with_all = ["entries", "domain"])]
    subject: Option<String>,
    /// Expire at this time, such as 2h, tomorrow, friday or 2030-01-31; `reset` is the end of the
    /// limit's current period [default: never]
    #[arg(long, alias = "for", value_name = "TIME")]
    until: Option<String>,
    /// Match all descriptors with these keys, whatever their values
    #[arg(long)]
    all: bool,
    /// Apply even if no current limit has this domain or these keys, or if a value looks like two
    /// entries
    #[arg(long)]
    force: bool,
    /// Record this reason, shown in lists and logs
    #[arg(long, default_value = "", value_name = "TEXT")]
    #[arg(hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    admin: AdminQuery,
}

#[derive(Args, Debug)]
#[command(after_help = format!("The count is kept. A limit can be raised in its own unit \
    only.\n\n{HOW}\n\n\
    Example: weir raise --domain demo remote_address=10.0.0.1 --to 500/minute --until 3d \
    --reason \"ticket 4711\""))]
pub(super) struct Raise {
    /// Raise to this amount: HITS/UNIT or HITS/MULTIPLIER UNITs, such as 500/minute or "20/30
    /// seconds"; HITS alone for requests in flight. A + before HITS adds to the limit's own amount
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(super) to: RaiseRate,
    /// Replace an earlier + of the same entries, instead of adding to it
    #[arg(long)]
    pub(super) replace: bool,
    #[command(flatten)]
    pub(super) target: OverrideTarget,
}

/// The overrides that a command removes.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  weir unblock --domain demo remote_address=10.0.0.1\n  weir unblock \
        0a1b2c3d4e5f"
)]
pub(super) struct RemoveOverride {
    /// Remove the override with these entries; without --domain, the overrides with these ids
    #[arg(required_unless_present = "subject", value_name = "KEY[=VALUE]|ID")]
    entries: Vec<String>,
    /// Remove an override of this domain
    #[arg(long, short)]
    domain: Option<String>,
    /// Select the subject by its name, `subject` in JSON output, instead of domain and entries
    #[arg(long, value_name = "NAME", conflicts_with_all = ["entries", "domain"])]
    subject: Option<String>,
    #[command(flatten)]
    admin: AdminQuery,
}

#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example: weir overrides remove 0a1b2c3d4e5f"
)]
pub(super) struct OverridesArgs {
    #[command(subcommand)]
    change: Option<OverridesCommand>,
    #[command(flatten)]
    list: List,
}

#[derive(Args, Debug)]
struct List {
    /// List only this domain
    #[arg(long, short)]
    domain: Option<String>,
    /// List overrides that ended within the last week, instead of those in force
    #[arg(long)]
    ended: bool,
    #[command(flatten)]
    admin: AdminQuery,
}

#[derive(Debug, Subcommand)]
enum OverridesCommand {
    /// Remove overrides; the limits of the files apply again
    Remove {
        /// Remove the overrides with these ids, from `weir overrides`
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        #[command(flatten)]
        admin: AdminQuery,
    },
}

#[derive(Args, Debug)]
#[command(
    after_help = "Takes one exact descriptor, without wildcards; \\* is a star and \\\\ a \
        backslash. All replicas count from zero within 1 s.\n\n\
    Example: weir reset --domain demo remote_address=10.0.0.1"
)]
pub(super) struct ResetArgs {
    /// Reset the descriptor with exactly these entries, in order
    #[arg(required_unless_present = "subject", value_name = "KEY=VALUE")]
    entries: Vec<String>,
    /// Reset a descriptor of this domain
    #[arg(long, short, required_unless_present = "subject")]
    domain: Option<String>,
    /// Select the subject by its name, `subject` in JSON output, instead of domain and entries
    #[arg(long, value_name = "NAME", conflicts_with_all = ["entries", "domain"])]
    subject: Option<String>,
    /// Select the limit by its full key, if several limits count the subject
    #[arg(long, requires = "subject")]
    limit: Option<String>,
    #[command(flatten)]
    admin: AdminQuery,
}

/// Creates an override of this kind.
pub(super) fn create(
    target: &OverrideTarget,
    kind: Kind,
    replace: bool,
) -> anyhow::Result<ExitCode> {
    let (now, zone) = (now(), jiff::tz::TimeZone::system());
    let until = match target.until.as_deref() {
        Some(text) if text != api::RESET => Some(until(text, now, &zone)?.to_string()),
        text => text.map(str::to_owned),
    };
    let entries = entries(&target.entries)?;
    if !target.all && target.subject.is_none() {
        check_values(&entries, kind.name())?;
    }
    let (to, add) = kind.rates();
    let order = api::Order {
        kind: kind.name().to_owned(),
        domain: target.domain.clone().unwrap_or_default(),
        entries: records(&entries),
        subject: target.subject.clone(),
        to,
        add,
        replace,
        until,
        reason: target.reason.clone(),
        force: target.force,
    };
    let timed = order.until.as_ref().map(|_| (now, &zone));
    let call = Call::post("overrides", &order)?;
    (target.admin).change(&call, |answer| output::ordered(answer, timed))
}

fn records(entries: &[Pattern]) -> Vec<EntryRecord> {
    entries.iter().map(EntryRecord::from).collect()
}

/// Removes overrides of this kind: `unblock`, `unexempt` and `unraise`.
pub(super) fn remove_override(target: &RemoveOverride, kind: &str) -> anyhow::Result<ExitCode> {
    let sought = match (&target.subject, &target.domain) {
        (Some(name), _) => {
            let subject = subject::read(name).and_then(|subject| subject::order_of(&subject));
            Some(subject.map_err(|failure| UsageError(failure.error))?)
        }
        (None, Some(domain)) => Some((domain.clone(), entries(&target.entries)?)),
        (None, None) => None,
    };
    let domain = sought.as_ref().map(|(domain, _)| &**domain);
    let all = print::block_on(all(&target.admin, domain, false))?;
    let overrides = all.overrides.iter();
    let mut known = overrides.filter_map(|value| Record::deserialize(value).ok());
    let Some((domain, entries)) = sought else {
        let is_other = |one: &Record| target.entries.contains(&one.id) && one.kind != kind;
        if let Some(Record { id, kind, .. }) = known.find(is_other) {
            let what = format!("{id} is a {kind}; write `weir un{kind} {id}`");
            bail!(UsageError(what));
        }
        return remove(&target.admin, &target.entries);
    };
    let canonical = |pattern: Pattern| pattern.canonical().by_digest();
    let sought: Vec<_> = entries.iter().cloned().map(canonical).collect();
    // More than one, if a value of more than 128 bytes is stored whole in one and as its digest in
    // another.
    let found = known.filter(|record| {
        let patterns = record.entries.iter().map(EntryRecord::pattern);
        let patterns: Result<Vec<_>, _> = patterns.map(|one| one.map(canonical)).collect();
        record.kind == kind && record.domain == domain && patterns.as_ref() == Ok(&sought)
    });
    let ids: Vec<String> = found.map(|record| record.id).collect();
    if ids.is_empty() {
        let (entries, domain) = (print::words(&entries), OneLine(&domain).to_string());
        let shown = shell_word(&domain);
        bail!(
            "no {kind} of {entries} in {domain} is in force; `weir overrides --domain {shown}` \
             lists what is"
        );
    }
    remove(&target.admin, &ids)
}

fn remove(admin: &AdminQuery, ids: &[String]) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for id in ids {
        let id: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
        let call = Call {
            method: Method::DELETE,
            ..Call::get(&format!("overrides/{id}"))
        };
        let removed = admin.change(&call, output::removed)?;
        if removed != ExitCode::SUCCESS {
            code = removed;
        }
    }
    Ok(code)
}

pub(super) fn overrides(overrides: &OverridesArgs) -> anyhow::Result<ExitCode> {
    if let Some(OverridesCommand::Remove { ids, admin }) = &overrides.change {
        return remove(admin, ids);
    }
    let list = &overrides.list;
    let all = print::block_on(all(&list.admin, list.domain.as_deref(), list.ended))?;
    let text = |all: &_| output::listed(all, list.ended);
    list.admin.format.print(&all, text)?;
    Ok(ExitCode::SUCCESS)
}

/// Overrides as the service lists them, some perhaps of a newer version.
#[derive(Debug, Default, Serialize, Deserialize)]
struct OverrideList {
    overrides: Vec<Value>,
    next: Option<String>,
}

/// All overrides in force, or all that ended lately, page by page.
async fn all(
    admin: &AdminQuery,
    domain: Option<&str>,
    ended: bool,
) -> anyhow::Result<OverrideList> {
    let services = admin.service.services()?;
    let mut all = OverrideList::default();
    loop {
        let query = [
            ("count", Some("1000")),
            ("cursor", all.next.as_deref()),
            ("domain", domain),
            ("ended", ended.then_some("true")),
        ];
        let page: OverrideList = services.get(&with_query("overrides", &query)).await?;
        all.overrides.extend(page.overrides);
        all.next = page.next.filter(|_| all.overrides.len() <= MAX_OVERRIDES);
        if all.next.is_none() {
            return Ok(all);
        }
    }
}

pub(super) fn reset(reset: &ResetArgs) -> anyhow::Result<ExitCode> {
    let order = api::ResetOrder {
        domain: reset.domain.clone().unwrap_or_default(),
        entries: records(&exact_entries(&reset.entries)?),
        subject: reset.subject.clone(),
        limit: reset.limit.clone(),
    };
    (reset.admin).change(&Call::post("reset", &order)?, output::reset)
}
