//! `weir explain`: which limits a request finds in limit files, and why no others. No service is asked.

use std::ffi::OsString;
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use prost::Message;
use serde::{Serialize, Serializer};

use super::{UnusableFiles, UsageError, entries, print};
use crate::ask::Ask;
use crate::http::json;
use crate::live::files;
use crate::plan::{self, Explanation, Outcome, Plan};
use crate::proto::RateLimitRequest;
use crate::rules::compile::OneLine;
use crate::rules::limit::Limit;
use crate::rules::trace::{End, How, Named, Trace, WhyNot};
use crate::rules::{Rules, compile, diff};
use crate::settings::ReadFlags;

/// The longest JSON that is read, in bytes: the longest request that a service takes.
const MAX_JSON_BYTES: u64 = 4 << 20;

#[derive(Args, Debug)]
#[command(after_help = "Example: weir explain --domain demo path=/login remote_address=10.0.0.1 , remote_address=10.0.0.1")]
pub(super) struct Explain {
    /// Entries of the descriptor, in their order; a `,` between two entries begins the next descriptor
    #[arg(required_unless_present = "json", value_name = "KEY=VALUE")]
    entries: Vec<OsString>,
    /// Domain of the request
    #[arg(long, short, required_unless_present = "json")]
    domain: Option<String>,
    /// File with the request as JSON, as for POST /json, in place of a domain and entries; `-` reads stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["entries", "domain"])]
    json: Option<PathBuf>,
    /// Folder of limit files, or one file
    #[arg(long, default_value = "config", value_name = "PATH")]
    config: PathBuf,
    /// CACHE_KEY_PREFIX of the service, which begins the keys of its counters
    #[arg(long, env = "CACHE_KEY_PREFIX", default_value = "", value_name = "TEXT")]
    cache_key_prefix: String,
    /// Format of the output: text for people, json for programs
    #[arg(long, default_value = "text", value_name = "text|json")]
    format: print::Format,
    #[command(flatten)]
    read: ReadFlags,
}

pub(super) fn run(explain: &Explain) -> anyhow::Result<ExitCode> {
    let message = message(explain)?;
    let ask = crate::rls::decode::decode(&message).map_err(|error| UsageError(error.to_string()))?;
    let rules = rules(explain)?;
    let options = plan::Options { key_prefix: explain.cache_key_prefix.clone(), ..plan::Options::default() };
    let plan = Plan::new(&rules, &ask, &options);
    let report = Report::new(&plan, &ask);
    print::out(match explain.format {
        print::Format::Text => report.text(),
        print::Format::Json => print::json(&report)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The request as Envoy would send it.
fn message(explain: &Explain) -> anyhow::Result<Vec<u8>> {
    if let Some(path) = &explain.json {
        let text = read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        return Ok(json::request(&text).map_err(UsageError)?.to_vec());
    }
    let descriptors = entries::descriptors(&explain.entries)?;
    Ok(RateLimitRequest { domain: explain.domain.clone().unwrap_or_default(), descriptors, hits_addend: 0 }.encode_to_vec())
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().lock().take(MAX_JSON_BYTES).read_to_end(&mut text)?;
    } else {
        std::fs::File::open(path)?.take(MAX_JSON_BYTES).read_to_end(&mut text)?;
    }
    Ok(text)
}

fn rules(explain: &Explain) -> anyhow::Result<Arc<Rules>> {
    let options = explain.read.options(explain.config.clone(), false);
    let compiled = files::read(&options).and_then(|read| compile::compile(&read.texts, &options.compile));
    Ok(Arc::new(compiled.map_err(UnusableFiles::limits)?.rules))
}

/// What is printed.
#[derive(Serialize)]
struct Report {
    domain: String,
    descriptors: Vec<Descriptor>,
}

#[derive(Serialize)]
struct Descriptor {
    entries: Vec<String>,
    /// `checked`, `unlimited`, `replaced`, `no_limit` or `unknown_domain`.
    outcome: &'static str,
    /// In one line.
    reason: String,
    levels: Vec<Level>,
    /// The limit that applies, or would apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Shown>,
    /// The key of the counter, without the number of a window that a store may append.
    #[serde(skip_serializing_if = "Option::is_none")]
    counter: Option<String>,
}

/// One step of the look-up.
#[derive(Serialize)]
struct Level {
    entry: String,
    /// The branch that matches, as it is written.
    matched: Option<String>,
    /// `exact value`, `pattern` or `any value`.
    how: Option<&'static str>,
    /// Other branches with this key that match too, but come later.
    later: Vec<String>,
    /// Branches with this key and another value.
    other_values: Vec<String>,
    /// Branches that are in neither list, because there are too many.
    more: usize,
}

/// A limit.
#[derive(Serialize)]
struct Shown {
    path: String,
    from: String,
    /// Everything that it says, with the names of files; an object in JSON.
    #[serde(serialize_with = "object")]
    fields: Vec<(&'static str, String)>,
}

fn object<S: Serializer>(fields: &[(&'static str, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(fields.iter().map(|(name, value)| (name, value)))
}

impl Report {
    fn new(plan: &Plan, ask: &Ask<'_>) -> Self {
        let explained = plan.explain(ask);
        let descriptor = |((_, entries), explanation): ((_, &[crate::ask::Entry<'_>]), &Explanation<'_>)| {
            let entries: Vec<_> = entries.iter().map(|entry| entries::shown(entry.key, entry.value)).collect();
            let levels = explanation.trace.iter().flat_map(|trace| trace.levels.iter().zip(&entries)).map(Level::new).collect();
            let (outcome, limit) = outcome(&explanation.outcome);
            let counter = match explanation.outcome {
                Outcome::Checked { check, .. } => Some(String::from_utf8_lossy(plan.checks.key(&plan.checks[check])).into_owned()),
                _ => None,
            };
            let reason = reason(plan, ask, explanation);
            Descriptor { entries, outcome, reason, levels, limit: limit.map(|limit| Shown::new(&plan.rules, limit)), counter }
        };
        let descriptors = ask.descriptors().zip(&explained).map(descriptor).collect();
        Self { domain: String::from_utf8_lossy(ask.domain).into_owned(), descriptors }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        for Descriptor { entries, reason, levels, limit, counter, .. } in &self.descriptors {
            let _ = writeln!(text, "{}: {reason}", entries.join(" "));
            let width = levels.iter().map(|level| level.entry.chars().count()).max().unwrap_or(0);
            for level in levels {
                let _ = writeln!(text, "  {:width$}  {}", level.entry, level.text());
            }
            if let Some(limit) = limit {
                let unusual = limit.fields.iter().filter(|(name, value)| value != "false" && (*name, &**value) != ("commit", "each"));
                let unusual: Vec<_> = unusual.map(|(name, value)| format!("{name} {}", OneLine(value))).collect();
                let _ = writeln!(text, "  limit    {}", unusual.join(", "));
                let _ = writeln!(text, "  from     {}", limit.from);
            }
            if let Some(counter) = counter {
                let _ = writeln!(text, "  counter  {}", OneLine(counter));
            }
        }
        text
    }
}

/// The name of an outcome, and the limit that applies or would apply.
fn outcome<'p>(outcome: &Outcome<'p>) -> (&'static str, Option<&'p Limit>) {
    match outcome {
        Outcome::UnknownDomain => ("unknown_domain", None),
        Outcome::NoLimit => ("no_limit", None),
        Outcome::Replaced { limit, .. } => ("replaced", Some(limit)),
        Outcome::Unlimited(limit) => ("unlimited", Some(limit)),
        Outcome::Checked { limit, .. } => ("checked", *limit),
    }
}

fn reason(plan: &Plan, ask: &Ask<'_>, explanation: &Explanation<'_>) -> String {
    match &explanation.outcome {
        Outcome::UnknownDomain => {
            let mut domains: Vec<_> = plan.rules.domains().map(|domain| one_line(&String::from_utf8_lossy(domain))).collect();
            domains.sort_unstable();
            let more = domains.len().saturating_sub(MAX_DOMAINS);
            domains.truncate(MAX_DOMAINS);
            let domain = one_line(&String::from_utf8_lossy(ask.domain));
            format!("not limited: no file defines the domain {domain}; there are: {}", list(&domains, more))
        }
        Outcome::NoLimit => format!("not limited: {}", why_no_limit(explanation.trace.as_ref())),
        Outcome::Replaced { by, .. } => {
            let by: Vec<_> =
                by.iter().map(|limit| format!("{} ({})", one_line(&limit.path()), one_line(&limit.origin.to_string()))).collect();
            format!("not limited: replaced by {}", by.join(", "))
        }
        Outcome::Unlimited(_) => "unlimited".to_owned(),
        Outcome::Checked { limit: None, .. } => "the request brings a limit along".to_owned(),
        Outcome::Checked { limit: Some(limit), .. } if limit.shadow_mode => format!("{}, never refused (shadow_mode)", rate(plan, limit)),
        Outcome::Checked { limit: Some(limit), .. } => rate(plan, limit),
    }
}

/// Domains that are named where a request's domain is unknown.
const MAX_DOMAINS: usize = 20;

fn why_no_limit(trace: Option<&Trace>) -> String {
    match trace.map(|trace| &trace.end) {
        Some(End::NoBranch(keys)) => {
            let names: Vec<_> = keys.first.iter().map(|key| one_line(key)).collect();
            if names.is_empty() {
                "the descriptor goes on where the files have no further level".to_owned()
            } else {
                format!("no branch matches the last of these entries; its level has the keys {}", list(&names, keys.more))
            }
        }
        Some(End::NoLimit(below)) => {
            let names: Vec<_> = below.first.iter().map(|written| one_line(&written.to_string())).collect();
            if names.is_empty() {
                "what it matches has no rate_limit".to_owned()
            } else {
                format!("what it matches has no rate_limit; the files go on with {}", list(&names, below.more))
            }
        }
        Some(End::Limit(_)) | None => String::new(),
    }
}

fn rate(plan: &Plan, limit: &Limit) -> String {
    let rate = diff::fields(&plan.rules, limit).into_iter().find(|(name, _)| *name == "rate");
    rate.map(|(_, rate)| rate).unwrap_or_default()
}

impl Level {
    fn new((level, entry): (&crate::rules::trace::Level, &String)) -> Self {
        let Named { first, more } = &level.passed;
        let those =
            |is: fn(&WhyNot) -> bool| first.iter().filter(|(_, why)| is(why)).map(|(written, _)| one_line(&written.to_string())).collect();
        Self {
            entry: entry.clone(),
            matched: level.matched.as_ref().map(|(written, _)| one_line(&written.to_string())),
            how: level.matched.as_ref().map(|(_, how)| how_text(*how)),
            later: those(|why| matches!(why, WhyNot::Later(_))),
            other_values: those(|why| *why == WhyNot::OtherValue),
            more: *more,
        }
    }

    fn text(&self) -> String {
        let mut text = match (&self.matched, self.how) {
            (Some(matched), Some(how)) => format!("matches {matched} ({how})"),
            _ => "matches nothing".to_owned(),
        };
        if !self.later.is_empty() {
            text += &format!("; later, so not used: {}", self.later.join(", "));
        }
        if !self.other_values.is_empty() {
            text += &format!("; not: {}", list(&self.other_values, self.more));
        }
        text
    }
}

const fn how_text(how: How) -> &'static str {
    match how {
        How::Exact => "exact value",
        How::Pattern => "pattern",
        How::AnyValue => "any value",
    }
}

fn list(names: &[String], more: usize) -> String {
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{more}", names.join(", "))
}

fn one_line(text: &str) -> String {
    OneLine(text).to_string()
}

impl Shown {
    fn new(rules: &Rules, limit: &Limit) -> Self {
        Self { path: limit.path(), from: one_line(&limit.origin.to_string()), fields: diff::fields(rules, limit) }
    }
}
