//! `weir explain`: which limits a request finds in limit files or in a running service, and why no
//! others.

use std::ffi::OsString;
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use http::Method;
use indexmap::IndexMap;
use prost::Message;
use serde_json::{Value, json};

use super::admin::{AdminFlags, AdminQuery, Call, Service, with_query};
use super::entries::{self, read_exact};
use super::overrides::order;
use super::{UnusableFiles, UsageError, print, success_if};
use crate::admin::api::explain::{
    ExplainTarget, ExplainedDescriptor, Level, Report, Shown, State, Tried,
};
use crate::admin::api::reply::Failure;
use crate::admin::api::reservations::Reserved;
use crate::admin::api::status::now;
use crate::admin::api::subject;
use crate::core::proto::rate_limit_descriptor::Entry;
use crate::core::proto::{RateLimitDescriptor, RateLimitRequest};
use crate::core::text::list;
use crate::core::time::Zone;
use crate::core::time::people::{self, counted};
use crate::limits::plan::{self, Plan};
use crate::limits::rules::compile::OneLine;
use crate::limits::rules::limit::Units;
use crate::limits::rules::{Rules, compile};
use crate::live::files;
use crate::process::settings::ReadFlags;
use crate::service::pages::json;

/// The longest JSON that is read, in bytes: the longest request that a service takes.
const MAX_JSON_BYTES: u64 = 4 << 20;

#[derive(Args, Debug)]
#[command(
    after_help = "Example: weir explain --domain demo path=/login remote_address=10.0.0.1 , \
        remote_address=10.0.0.1\n\n\
    Asks a running service, which also shows what is left of each limit; with --config reads \
        limit files. \\* is a star and \\\\ a backslash, as in the entries that commands print."
)]
pub(super) struct Explain {
    /// Explain a descriptor with these entries, in order; a separate `,` begins the next one
    #[arg(required_unless_present_any = ["json", "subject"], value_name = "KEY=VALUE")]
    entries: Vec<OsString>,
    /// Explain a request of this domain
    #[arg(long, short, required_unless_present_any = ["json", "subject"])]
    domain: Option<String>,
    /// Select the subject by its name, `subject` in JSON output, instead of domain and entries
    #[arg(long, value_name = "NAME", conflicts_with_all = ["entries", "domain", "json"])]
    subject: Option<String>,
    /// Read the request from a JSON file, as for POST /json, instead of domain and entries; `-` is
    /// stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["entries", "domain"])]
    json: Option<PathBuf>,
    /// Read this folder of limit files, or this file, instead of querying a running service
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Begin keys of counters with this prefix (CACHE_KEY_PREFIX of the service), with --config
    #[arg(long, env = "CACHE_KEY_PREFIX", default_value = "")]
    #[arg(value_name = "TEXT")]
    cache_key_prefix: String,
    #[command(flatten)]
    admin: AdminQuery,
    #[command(flatten)]
    read: ReadFlags,
}

pub(super) fn run(explain: &Explain) -> anyhow::Result<ExitCode> {
    let report = match &explain.config {
        Some(config) => by_files(explain, config)?,
        None => print::block_on(by_services(explain))?,
    };
    explain.admin.format.print(&report, text)?;
    // Commands that only read files fail for an unknown domain in the same way.
    let is_known = |one: &ExplainedDescriptor| one.outcome != "unknown_domain";
    Ok(success_if(report.descriptors.iter().all(is_known)))
}

/// The explanation of the first replica that answers, compared with all others that are named.
async fn by_services(explain: &Explain) -> anyhow::Result<Report> {
    let service = &explain.admin.service;
    let call = Call {
        method: Method::POST,
        path: with_query("explain", &[("subject", explain.subject.as_deref())]),
        body: body(explain)?.into(),
    };
    let first = service.services()?;
    let mut report: Report = first.send(&call).await?;
    let query = async |service: &Service| {
        let other = service.call(&call).await?;
        Ok(differences(&report, &other, service.address()))
    };
    let others = service.query_each(query).await?;
    for line in others.failures() {
        print::error(format_args!("weir: {line}"));
    }
    report.differs = others.answer.concat();
    Ok(report)
}

/// A line for each descriptor that a replica decides otherwise. Replicas disagree if the outcome,
/// the limit, one of its fields, or the refusal of the next hit differs. Used hits change between
/// two answers, and files may have other names.
fn differences(first: &Report, other: &Report, address: &str) -> Vec<String> {
    let pairs = first.descriptors.iter().zip(&other.descriptors);
    let line = |(one, other)| {
        let (mut before, mut now) = (facts(one), facts(other));
        now.retain(|name, value| before.get(name) != Some(value));
        let differs = now.iter().map(|(name, value)| {
            let first = before.swap_remove(name).unwrap_or_default();
            let (value, first) = (print::plain(value), print::plain(&first));
            format!("{name} {}, not {}", OneLine(&value), OneLine(&first))
        });
        let differs = differs.collect::<Vec<_>>().join("; ");
        let words = print::words(&one.entries);
        (!differs.is_empty()).then(|| format!("{address}: {words}: {differs}"))
    };
    pairs.filter_map(line).collect()
}

/// Everything by which replicas may disagree on a descriptor, by its name.
fn facts(descriptor: &ExplainedDescriptor) -> IndexMap<String, Value> {
    let limit = descriptor.limit.as_ref();
    let mut facts = limit.map(|limit| limit.fields.clone()).unwrap_or_default();
    // Places in files, which may have other names, and the number of all rows.
    facts.retain(|name, _| !["table", "row", "rows"].contains(&&**name));
    facts.insert("limit".to_owned(), json!(limit.map(|limit| &limit.path)));
    facts.insert("outcome".to_owned(), json!(descriptor.outcome));
    let overridden = descriptor.overridden.as_ref();
    facts.insert("override".to_owned(), json!(overridden.map(order)));
    facts.insert("refused now".to_owned(), json!(descriptor.refused_now));
    facts
}

fn by_files(explain: &Explain, config: &Path) -> anyhow::Result<Report> {
    let wrong = |failure: Failure| UsageError(failure.error);
    let target = match (&explain.subject, &explain.json) {
        (Some(name), _) => ExplainTarget::Subject(subject::read(name).map_err(wrong)?),
        (None, Some(path)) => {
            ExplainTarget::Message(json::request(&read(path)?).map_err(UsageError)?)
        }
        (None, None) => ExplainTarget::Message(request(explain)?.encode_to_vec().into()),
    };
    let request = target.request().map_err(wrong)?;
    let options = explain.read.options(config.to_owned());
    let compiled =
        files::read(&options).and_then(|read| compile::compile(&read.texts, &options.compile));
    let rules: Arc<Rules> = Arc::new(compiled.map_err(UnusableFiles::Limits)?.rules);
    let options = plan::Options {
        key_prefix: explain.cache_key_prefix.clone(),
        calendar_months: options.compile.process.calendar_months,
        ..plan::Options::default()
    };
    let plan = Plan::new(&rules, &request, &options);
    Ok(Report::new(&plan, &request))
}

/// The request of the arguments.
fn request(explain: &Explain) -> Result<RateLimitRequest, UsageError> {
    Ok(RateLimitRequest {
        domain: explain.domain.clone().unwrap_or_default(),
        descriptors: entries::descriptors(&explain.entries, read_exact)?,
        hits_addend: 0,
    })
}

/// The request as JSON. The service validates it.
fn body(explain: &Explain) -> anyhow::Result<Vec<u8>> {
    if let Some(path) = &explain.json {
        return read(path);
    }
    if explain.subject.is_some() {
        return Ok(Vec::new());
    }
    let what = "an entry is not UTF-8; explain it by --config";
    Ok(as_json(&request(explain)?).ok_or_else(|| UsageError(what.to_owned()))?)
}

/// A request as JSON; `None` if an entry is not UTF-8.
fn as_json(request: &RateLimitRequest) -> Option<Vec<u8>> {
    let entry = |Entry { key, value }: &Entry| {
        let (key, value) = (str::from_utf8(key).ok()?, str::from_utf8(value).ok()?);
        Some(json!({ "key": key, "value": value }))
    };
    let descriptor = |one: &RateLimitDescriptor| {
        let entries: Option<Value> = one.entries.iter().map(entry).collect();
        Some(json!({ "entries": entries? }))
    };
    let descriptors: Option<Value> = request.descriptors.iter().map(descriptor).collect();
    let json = json!({ "domain": request.domain, "descriptors": descriptors? });
    Some(json.to_string().into_bytes())
}

/// Answer of a running service about a descriptor.
pub(super) struct Explained {
    /// Why it has no limit, if it has none: the reason of `weir explain`.
    pub(super) reason: String,
    /// The failure policy that answers instead of the store.
    pub(super) policy: Option<String>,
    /// The zone of its calendar.
    pub(super) zone: Option<Zone>,
}

/// Explains each descriptor of a request by a running service. `None` if it cannot be asked.
pub(super) async fn explained(
    admin: &AdminFlags,
    request: &RateLimitRequest,
) -> Option<Vec<Explained>> {
    let call = Call {
        method: Method::POST,
        path: "explain".to_owned(),
        body: as_json(request)?.into(),
    };
    let report: Report = admin.services().ok()?.send(&call).await.ok()?;
    let explained = |one: ExplainedDescriptor| Explained {
        zone: zone(&one),
        policy: one.live.and_then(|live| live.policy),
        reason: match &*one.outcome {
            "checked" => "no limit: on_store_failure: allow let it pass".to_owned(),
            "unknown_domain" | "no_limit" | "replaced" => one.reason,
            outcome => format!("no limit ({outcome})"),
        },
    };
    Some(report.descriptors.into_iter().map(explained).collect())
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut read = |from: &mut dyn Read| from.take(MAX_JSON_BYTES).read_to_end(&mut text);
    let result = match path.to_str() {
        Some("-") => read(&mut std::io::stdin()),
        _ => std::fs::File::open(path).and_then(|mut file| read(&mut file)),
    };
    result.with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(text)
}

/// The report for people.
fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    for own in &report.descriptors {
        let words = print::words(&own.entries);
        let refused = if own.refused_now { "REFUSED NOW: " } else { "" };
        let _ = writeln!(text, "{words}: {refused}{}", own.reason);
        let widths = own.levels.iter().map(|level| level.entry.chars().count());
        let width = widths.max().unwrap_or(0);
        for level in &own.levels {
            let _ = writeln!(text, "  {:width$}  {}", level.entry, level_text(level));
        }
        for (name, line) in LINES {
            if let Some(line) = line(own) {
                let _ = writeln!(text, "  {name:<9}{line}");
            }
        }
    }
    for line in &report.differs {
        let _ = writeln!(text, "differs: {line}");
    }
    text
}

/// A line of an explanation; `None` where it has nothing to say.
type Line = fn(&ExplainedDescriptor) -> Option<String>;

/// The lines below the levels, with their names. A feature has its own lines.
const LINES: [(&str, Line); 8] = [
    ("limit", |own| {
        own.limit.as_ref().map(|limit| limit_text(limit, own))
    }),
    ("from", |own| Some(own.limit.as_ref()?.from.clone())),
    ("counter", |own| {
        Some(OneLine(own.counter.as_ref()?).to_string())
    }),
    ("now", |own| Some(state_text(own.live.as_ref()?, zone(own)))),
    ("lease", |own| {
        Some(format!(
            "{} held by this replica",
            hits(own.live.as_ref()?.held?)
        ))
    }),
    ("held", |own| {
        own.live.as_ref()?.reserved.as_ref().map(reserved_text)
    }),
    ("trial", |own| {
        own.trial.as_ref().map(|trial| trial_text(trial, own))
    }),
    ("", |own| {
        Some(OneLine(&own.trial.as_ref()?.counter).to_string())
    }),
];

/// The fields that differ from their defaults, except those that have a line of their own.
fn limit_text(limit: &Shown, own: &ExplainedDescriptor) -> String {
    let unusual = |(name, value): (&String, &Value)| match (&**name, &*print::plain(value)) {
        (_, "false") | ("commit", "each") => None,
        ("trial", _) if own.trial.is_some() => None,
        (name, value) => Some(format!("{name} {}", OneLine(value))),
    };
    let fields: Vec<_> = limit.fields.iter().filter_map(unusual).collect();
    fields.join(", ")
}

fn reserved_text(reserved: &Reserved) -> String {
    let made = counted(reserved.reservations, "reservation");
    let (hits, oldest) = (hits(reserved.hits), people::span(reserved.oldest_seconds));
    format!("{made}, {hits}, the oldest for {oldest}")
}

fn trial_text(trial: &Tried, own: &ExplainedDescriptor) -> String {
    let now = |live| format!(": {}", state_text(live, zone(own)));
    let now = trial.live.as_ref().map_or_else(String::new, now);
    format!("{}{now}", OneLine(&trial.amount))
}

/// The zone of the calendar that the limit follows.
fn zone(of: &ExplainedDescriptor) -> Option<Zone> {
    Zone::named(of.limit.as_ref()?.fields.get("timezone")?.as_str()?)
}

/// An amount with its noun.
fn hits(units: Units) -> String {
    format!("{units} hit{}", if units == Units(1.0) { "" } else { "s" })
}

fn state_text(state: &State, zone: Option<Zone>) -> String {
    let policy = state.policy.as_ref();
    let policy = policy.map_or_else(String::new, |policy| format!("; {policy} answers"));
    let error = state.error.as_deref();
    let (Some(used), Some(left)) = (state.used, state.left) else {
        let why = error.unwrap_or("the store did not answer");
        return format!("unknown; {}{policy}", OneLine(why));
    };
    let mut text = format!("{used} used, {left} left");
    if let Some(reset) = state.resets_in_seconds {
        text += &format!(", resets in {}", people::ahead(reset, now(), zone));
    }
    match error {
        Some(error) => text + &format!(" in this replica; {}{policy}", OneLine(error)),
        None if state.this_replica_only => text + "; of this replica only",
        None => text,
    }
}

fn level_text(level: &Level) -> String {
    let mut text = match (level.matched.as_deref(), level.how.as_deref()) {
        (Some(matched), Some(how)) => format!("matches {matched} ({how})"),
        _ => "matches nothing".to_owned(),
    };
    if !level.later.is_empty() {
        text += &format!("; later, so not used: {}", level.later.join(", "));
    }
    if !level.other_values.is_empty() {
        text += &format!("; not: {}", list(&level.other_values, level.more));
    }
    text
}
