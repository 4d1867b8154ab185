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
use prost::Message;
use serde_json::json;

use super::admin::{self, AdminFlags};
use super::{UnusableFiles, UsageError, entries, print};
use crate::core::ask::written::shell_word;
use crate::core::proto::rate_limit_descriptor::Entry;
use crate::core::proto::{RateLimitDescriptor, RateLimitRequest};
use crate::core::time::people;
use crate::desk::admin::explain::{Descriptor, Level, Report, State, Tried, list};
use crate::desk::admin::status::now;
use crate::limits::plan::key::Subject;
use crate::limits::plan::{self, Plan};
use crate::limits::rules::compile::OneLine;
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
    It asks a running service, which also says what each limit has left; with --config it reads \
        limit files. \\* is a star and \\\\ a backslash, as in the entries that commands print."
)]
pub(super) struct Explain {
    /// Entries of the descriptor, in their order; a `,` between two entries begins the next
    /// descriptor
    #[arg(required_unless_present_any = ["json", "subject"], value_name = "KEY=VALUE")]
    entries: Vec<OsString>,
    /// Domain of the request
    #[arg(long, short, required_unless_present_any = ["json", "subject"])]
    domain: Option<String>,
    /// Exact name of the subject, in place of a domain and entries: the `subject` of an answer
    #[arg(long, value_name = "NAME", conflicts_with_all = ["entries", "domain", "json"])]
    subject: Option<String>,
    /// File with the request as JSON, as for POST /json, in place of a domain and entries; `-`
    /// reads stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["entries", "domain"])]
    json: Option<PathBuf>,
    /// Read this folder of limit files, or this file, and ask no service
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// CACHE_KEY_PREFIX of the service, which begins the keys of its counters, with --config
    #[arg(
        long,
        env = "CACHE_KEY_PREFIX",
        default_value = "",
        value_name = "TEXT"
    )]
    cache_key_prefix: String,
    /// Format of the output: text for people, json for programs
    #[arg(long, default_value = "text", value_name = "text|json")]
    format: print::Format,
    #[command(flatten)]
    read: ReadFlags,
    #[command(flatten)]
    admin: AdminFlags,
}

pub(super) fn run(explain: &Explain) -> anyhow::Result<ExitCode> {
    let report = match &explain.config {
        Some(config) => by_files(explain, config)?,
        None => {
            let (services, body) = (explain.admin.services()?, body(explain)?);
            let subject = explain.subject.as_deref().map(|name| ("subject", name));
            let call = admin::with_query("explain", &subject.into_iter().collect::<Vec<_>>());
            admin::block_on(services.send(Method::POST, &call, &body.into()))?
        }
    };
    print::out(match explain.format {
        print::Format::Text => text(&report),
        print::Format::Json => print::json(&report)?,
    })?;
    // As in commands that can say nothing else of an unknown domain.
    Ok(
        if report
            .descriptors
            .iter()
            .any(|one| one.outcome == "unknown_domain")
        {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        },
    )
}

fn by_files(explain: &Explain, config: &Path) -> anyhow::Result<Report> {
    let message = message(explain)?;
    let ask = crate::service::rls::decode::decode(&message)
        .map_err(|error| UsageError(error.to_string()))?;
    let options = explain.read.options(config.to_owned(), false);
    let compiled =
        files::read(&options).and_then(|read| compile::compile(&read.texts, &options.compile));
    let rules: Arc<Rules> = Arc::new(compiled.map_err(UnusableFiles::limits)?.rules);
    let calendar_months = options.compile.process.calendar_months;
    let options = plan::Options {
        key_prefix: explain.cache_key_prefix.clone(),
        calendar_months,
        ..plan::Options::default()
    };
    Ok(Report::new(&Plan::new(&rules, &ask, &options), &ask))
}

/// The request as Envoy would send it.
fn message(explain: &Explain) -> anyhow::Result<Vec<u8>> {
    if let Some(path) = &explain.json {
        return Ok(json::request(&read(path)?).map_err(UsageError)?.to_vec());
    }
    if let Some(name) = &explain.subject {
        let subject = Subject::read(name).map_err(|error| UsageError(error.to_string()))?;
        let ask = subject
            .one_of()
            .map_err(|why| UsageError(format!("subject: {why}")))?;
        let domain = String::from_utf8(ask.domain.to_vec())
            .map_err(|_| UsageError("subject: its domain is no UTF-8".to_owned()))?;
        let entries = ask
            .first()
            .iter()
            .map(|entry| Entry {
                key: entry.key.to_vec(),
                value: entry.value.to_vec(),
            })
            .collect();
        let descriptors = vec![RateLimitDescriptor {
            entries,
            ..RateLimitDescriptor::default()
        }];
        return Ok(RateLimitRequest {
            domain,
            descriptors,
            hits_addend: 0,
        }
        .encode_to_vec());
    }
    let descriptors = entries::written_descriptors(&explain.entries)?;
    Ok(RateLimitRequest {
        domain: explain.domain.clone().unwrap_or_default(),
        descriptors,
        hits_addend: 0,
    }
    .encode_to_vec())
}

/// The request as JSON. The service says what is wrong with it.
fn body(explain: &Explain) -> anyhow::Result<Vec<u8>> {
    if let Some(path) = &explain.json {
        return read(path);
    }
    if explain.subject.is_some() {
        return Ok(Vec::new());
    }
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
    let mut descriptors = Vec::new();
    for descriptor in entries::written_descriptors(&explain.entries)? {
        let entry = |entry: &crate::core::proto::rate_limit_descriptor::Entry| {
            Ok(json!({ "key": text(&entry.key)?, "value": text(&entry.value)? }))
        };
        let entries: Result<Vec<_>, std::string::FromUtf8Error> =
            descriptor.entries.iter().map(entry).collect();
        let entries = entries
            .map_err(|_| UsageError("an entry is not UTF-8; explain it by --config".to_owned()))?;
        descriptors.push(json!({ "entries": entries }));
    }
    Ok(
        json!({ "domain": explain.domain, "descriptors": descriptors })
            .to_string()
            .into_bytes(),
    )
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    let result = if path == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(MAX_JSON_BYTES)
            .read_to_end(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_JSON_BYTES).read_to_end(&mut text))
    };
    result.with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(text)
}

/// The report for people.
fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    for Descriptor {
        entries,
        reason,
        refused_now,
        levels,
        limit,
        counter,
        live,
        trial,
        ..
    } in &report.descriptors
    {
        let words: Vec<_> = entries.iter().map(|entry| shell_word(entry)).collect();
        let refused = if *refused_now { "REFUSED NOW: " } else { "" };
        let _ = writeln!(text, "{}: {refused}{reason}", words.join(" "));
        let width = levels
            .iter()
            .map(|level| level.entry.chars().count())
            .max()
            .unwrap_or(0);
        for level in levels {
            let _ = writeln!(text, "  {:width$}  {}", level.entry, level_text(level));
        }
        if let Some(limit) = limit {
            let is_usual = |name: &str, value: &str| {
                value == "false"
                    || (name, value) == ("commit", "each")
                    || (name == "trial" && trial.is_some())
            };
            let unusual = limit
                .fields
                .0
                .iter()
                .filter(|(name, value)| !is_usual(name, value));
            let unusual: Vec<_> = unusual
                .map(|(name, value)| format!("{name} {}", OneLine(value)))
                .collect();
            let _ = writeln!(text, "  limit    {}", unusual.join(", "));
            let _ = writeln!(text, "  from     {}", limit.from);
        }
        if let Some(counter) = counter {
            let _ = writeln!(text, "  counter  {}", OneLine(counter));
        }
        if let Some(live) = live {
            let _ = writeln!(text, "  now      {}", state_text(live));
        }
        if let Some(Tried {
            amount,
            counter,
            live,
        }) = trial
        {
            let now = live
                .as_ref()
                .map_or_else(String::new, |live| format!(": {}", state_text(live)));
            let _ = writeln!(text, "  trial    {}{now}", OneLine(amount));
            let _ = writeln!(text, "           {}", OneLine(counter));
        }
    }
    text
}

fn state_text(state: &State) -> String {
    let counted = match (state.used, state.left, state.resets_in_seconds) {
        (Some(used), Some(left), Some(reset)) => Some(format!(
            "{used} used, {left} left, resets in {}",
            people::ahead(reset, now())
        )),
        (Some(used), Some(left), None) => Some(format!("{used} used, {left} left")),
        _ => None,
    };
    match (counted, &state.error) {
        (Some(counted), None) if state.this_replica_only => {
            format!("{counted}; of this replica only")
        }
        (Some(counted), None) => counted,
        (Some(counted), Some(error)) => format!("{counted} in this replica; {}", OneLine(error)),
        (None, error) => format!(
            "unknown; {}",
            OneLine(error.as_deref().unwrap_or("the store did not answer"))
        ),
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
