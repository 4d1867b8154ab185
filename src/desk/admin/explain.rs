//! `/api/v1/explain` and `weir explain`: which limits a request finds, why no others, and what they
//! have left. It counts nothing.
//!
//! What a limit has left is asked by the request path itself, with looks, so that `weir explain`
//! cannot differ from what requests meet. An explanation is made on another thread and lists 20
//! branches of a level and 4,000 of a request: on the control thread one of a large level stopped
//! health checks and new connections.

use std::sync::Arc;

use bytes::Bytes;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::reply::Failure;
use super::{Call, Parts, blocking, known, subject};
use crate::core::ask::{Ask, Entry};
use crate::core::time::people;
use crate::core::verdict::{Decision, Decisions};
use crate::limits::overrides::{Applied, InForce, RateRecord, Record};
use crate::limits::plan::{By, Check, CheckIndex, Explanation, Fate, Outcomes, Plan, Slot, key};
use crate::limits::rules::compile::OneLine;
use crate::limits::rules::limit::{LimitInForce, Scale};
use crate::limits::rules::trace::{self, End, How, Named, Trace, WhyNot};
use crate::limits::rules::{Rules, diff};
use crate::net::http::responses::Page;
use crate::service::pages::json;
use crate::service::rls::decode::decode;
use crate::store::redis::error;

/// Domains that are named where the domain of a request is unknown.
const MAX_DOMAINS: usize = 20;

/// What is said of a request.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Its domain.
    pub domain: String,
    /// In the order of the request.
    pub descriptors: Vec<Descriptor>,
}

/// What is said of one descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct Descriptor {
    /// As `key=value`, as commands take it.
    pub entries: Vec<String>,
    /// The exact name of the subject: of the counter or, where nothing counts, of the descriptor.
    /// Calls take it in place of domain and entries.
    pub subject: String,
    /// `checked`, `unlimited`, `exempt`, `blocked`, `replaced`, `no_limit` or `unknown_domain`.
    pub outcome: String,
    /// In one line.
    pub reason: String,
    /// In a running process: the next hit would be refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused_now: bool,
    /// The override that decides it now.
    #[serde(default, rename = "override", skip_serializing_if = "Option::is_none")]
    pub overridden: Option<Record>,
    /// The steps of the look-up.
    pub levels: Vec<Level>,
    /// The limit that applies, or would apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Shown>,
    /// The key of the counter, without the number of a window that a store may append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counter: Option<String>,
    /// What the limit has left, in a running process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<State>,
    /// What counts beside the limit and refuses nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial: Option<Tried>,
}

/// The `trial` of a limit.
#[derive(Debug, Serialize, Deserialize)]
pub struct Tried {
    /// Its rate, and what else differs from the limit.
    pub amount: String,
    /// The key of its counter.
    pub counter: String,
    /// What it has left, in a running process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<State>,
}

/// One step of the look-up.
#[derive(Debug, Serialize, Deserialize)]
pub struct Level {
    /// The entry that is looked up.
    pub entry: String,
    /// The branch that matches, as it is written.
    pub matched: Option<String>,
    /// `exact value`, `set`, `network`, `pattern` or `any value`.
    pub how: Option<String>,
    /// Other branches with this key that match too, but come later.
    pub later: Vec<String>,
    /// Branches with this key and another value.
    pub other_values: Vec<String>,
    /// Branches that are in neither list, because there are too many.
    pub more: usize,
}

/// A limit.
#[derive(Debug, Serialize, Deserialize)]
pub struct Shown {
    /// Its full key.
    pub path: String,
    /// Where it is written.
    pub from: String,
    /// Its amount; `None`: it is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateRecord>,
    /// Everything that it says, with the names of files. Numbers and booleans are such.
    pub fields: IndexMap<String, Value>,
}

/// What the counter of a check has now.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    /// Hits that count now, in the units of the limit, rounded up; `None` if no store answered.
    pub used: Option<u64>,
    /// Hits that still fit now, in whole units of the limit; `None` if no store answered.
    pub left: Option<u64>,
    /// Seconds until the limit has fully recovered; `None` also for a limit of requests in flight
    /// and for one of 0.
    pub resets_in_seconds: Option<f64>,
    /// The numbers are of this replica only: the counters are in its memory, its share of the limit
    /// decides, or its denial cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub this_replica_only: bool,
    /// Hits that count as used and that this replica has drawn ahead for requests to come (`lease`),
    /// in whole units of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// Why the store did not answer. Its failure policy decides meanwhile; `used` is what `local`
    /// counted here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// That policy, as limit files write it: `on_store_failure: deny`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// Explains the request in the body, or the descriptor of the parameter `subject`, by the rules in
/// force, and looks at its counters.
///
/// # Errors
/// 400: the body is no request, or the values of the subject are not known. 503: there are no rules
/// yet.
pub(super) async fn running(parts: &Arc<Parts>, call: Call) -> Result<Page, Failure> {
    let asked = match call.query.get("subject") {
        Some(_) if !call.body.is_empty() => {
            return Err(Failure::bad_request(
                "subject: it stands in the place of a body",
            ));
        }
        Some(name) => Asked::Subject(subject::read(name)?),
        None => Asked::Message(message(call.body).await?),
    };
    let (looked, hits) = {
        let mut ask = asked.ask()?;
        let of_each = ask.descriptors();
        let hits = of_each.map(|(one, _)| ask.hits(one).max(1).unsigned_abs());
        let hits: Vec<_> = hits.collect();
        ask.look();
        (parts.rls.look(&ask).await, hits)
    };
    let (plan, decisions) =
        looked.ok_or_else(|| Failure::unavailable("no limits are in force yet"))?;
    let parts = Arc::clone(parts);
    blocking(move || {
        let ask = asked.ask()?;
        let mut report = Report::new(&plan, &ask);
        let (outcomes, is_alone) = (plan.outcomes(&decisions), parts.deployments.is_empty());
        report.add_states(&plan, &outcomes, &decisions, is_alone);
        report.add_never(&outcomes, &hits);
        report.add_held(&outcomes, |check| parts.rls.held(&plan, check));
        let snapshot = parts.live.load();
        if let Some(overrides) = snapshot.as_ref().and_then(|live| live.overrides()) {
            report.name_overrides(&plan, &ask, overrides);
        }
        asked.check(&report)?;
        Ok(report)
    })
    .await
}

/// What is to be explained.
enum Asked {
    /// A request.
    Message(Bytes),
    /// One descriptor.
    Subject(key::Subject),
}

impl Asked {
    fn ask(&self) -> Result<Ask<'_>, Failure> {
        match self {
            Self::Message(message) => {
                decode(message).map_err(|error| Failure::bad_request(&error.to_string()))
            }
            Self::Subject(subject) => subject
                .one_of()
                .map_err(|why| Failure::bad_request(&format!("subject: {why}"))),
        }
    }

    /// Checks that values which share a counter still do.
    fn check(&self, report: &Report) -> Result<(), Failure> {
        let Self::Subject(subject) = self else {
            return Ok(());
        };
        let is_it = |descriptor: &Descriptor| {
            key::Subject::read(&descriptor.subject).is_ok_and(|found| found.tag() == subject.tag())
        };
        if subject.is_shared() && !report.descriptors.iter().all(is_it) {
            return Err(Failure::not_found(
                "no limit in force lets the values of this pattern share a counter",
            ));
        }
        Ok(())
    }
}

async fn message(body: Vec<u8>) -> Result<Bytes, Failure> {
    let read = tokio::task::spawn_blocking(move || json::request(&body)).await;
    let read = read.unwrap_or_else(|error| Err(error.to_string()));
    read.map_err(|error| {
        Failure::bad_request(&format!(
            "the body is not a RateLimitRequest in JSON: {error}"
        ))
    })
}

impl Report {
    /// Explains `plan`, which was made of `ask`.
    #[must_use]
    pub fn new(plan: &Plan, ask: &Ask<'_>) -> Self {
        // Once: a request may have thousands of descriptors, and there may be many domains.
        let unknown = plan
            .unknown_domain
            .then(|| unknown_domain(&plan.rules, ask.domain));
        let all = ask.descriptors().zip(plan.explain(ask)).enumerate();
        let descriptors = all.map(|(index, ((_, entries), explanation))| {
            Descriptor::new(
                plan,
                index,
                ask.domain,
                entries,
                &explanation,
                unknown.as_deref(),
            )
        });
        Self {
            domain: String::from_utf8_lossy(ask.domain).into_owned(),
            descriptors: descriptors.collect(),
        }
    }

    /// Adds what the counters have now, given what becomes of looks at them, and the decisions on
    /// those of the trials. `is_alone`: all counters are in this process.
    fn add_states(
        &mut self,
        plan: &Plan,
        outcomes: &Outcomes<'_>,
        decisions: &Decisions,
        is_alone: bool,
    ) {
        let all = self.descriptors.iter_mut().zip(&outcomes.each);
        for (index, (descriptor, outcome)) in all.enumerate() {
            descriptor.refused_now = outcome.refuses;
            if let By::Check {
                planned,
                check,
                decision,
            } = outcome.by
            {
                let verdict = decision.verdict();
                descriptor.refused_now |=
                    !check.modes.shadow && verdict.is_some_and(|verdict| verdict.remaining == 0);
                descriptor.live = Some(State::new(decision, planned.scale, check, is_alone));
            }
            if let (Some(trial), Some((check, limit))) =
                (&mut descriptor.trial, plan.trial_of(index))
            {
                trial.live = limit.trial.as_ref().map(|limit| {
                    let (check, decision) = (&plan.checks[check], &decisions[check.0]);
                    State::new(decision, limit.amount.scale, check, is_alone)
                });
            }
        }
    }

    /// Adds to the reason of each descriptor that its hits can never pass.
    fn add_never(&mut self, outcomes: &Outcomes<'_>, hits: &[u64]) {
        let all = self.descriptors.iter_mut().zip(&outcomes.each).zip(hits);
        for ((descriptor, outcome), &hits) in all {
            if let By::Check { check, .. } = outcome.by
                && hits > check.algorithm.capacity()
            {
                descriptor.refused_now = !check.modes.shadow;
                descriptor.reason += ", never passes: asks for more than the limit";
            }
        }
    }

    /// Adds the hits that this replica has drawn ahead.
    fn add_held(&mut self, outcomes: &Outcomes<'_>, held: impl Fn(CheckIndex) -> u64) {
        for (descriptor, outcome) in self.descriptors.iter_mut().zip(&outcomes.each) {
            if let (By::Check { planned, .. }, Some(live)) = (outcome.by, &mut descriptor.live) {
                let units = planned.scale.units(held(planned.check));
                live.held = Some(units).filter(|&units| units > 0);
            }
        }
    }

    /// Adds to the reason of each descriptor which override decides it.
    fn name_overrides(&mut self, plan: &Plan, ask: &Ask<'_>, overrides: InForce<'_>) {
        for ((descriptor, slot), (_, entries)) in self
            .descriptors
            .iter_mut()
            .zip(&plan.slots)
            .zip(ask.descriptors())
        {
            let is_overridden = match &slot.fate {
                Fate::Exempt | Fate::Blocked(_) => true,
                Fate::Checked(checked) => checked.is_raised,
                Fate::Free | Fate::Unlimited => false,
            };
            let Some((one, applied)) =
                subject::override_of(&plan.rules, overrides, ask.domain, entries)
                    .filter(|_| is_overridden)
            else {
                continue;
            };
            let until = one.until.map_or_else(String::new, |until| {
                format!(" until {}", people::instant(people::timestamp(until)))
            });
            let behind = |mark: &str, text: &str| match text {
                "" => String::new(),
                text => format!("{mark}{text}"),
            };
            let (by, why) = (behind(" of ", &one.by), behind(": ", &one.reason));
            let before = match applied {
                Applied::Raise(amount) => {
                    format!("{}, raised to {}", descriptor.reason, amount.rate)
                }
                Applied::Block { .. } => "blocked".to_owned(),
                Applied::Exempt => "exempt".to_owned(),
            };
            descriptor.reason = one_line(&format!(
                "{before} by the override {}{by}{until}{why}",
                one.id
            ));
            descriptor.overridden = Some(Record::from(one));
        }
    }
}

impl Descriptor {
    fn new(
        plan: &Plan,
        index: usize,
        domain: &[u8],
        entries: &[Entry<'_>],
        explanation: &Explanation<'_>,
        unknown: Option<&str>,
    ) -> Self {
        let slot = &plan.slots[index];
        let written: Vec<_> = entries.iter().map(ToString::to_string).collect();
        let traced = explanation.trace.iter();
        let levels = traced
            .flat_map(|trace| trace.levels.iter().zip(&written))
            .map(Level::new)
            .collect();
        let counter = match &slot.fate {
            Fate::Checked(checked) => Some(plan.checks.key(&plan.checks[checked.check])),
            _ => None,
        };
        let (outcome, reason) = outcome(plan, slot, explanation, &written, unknown);
        Self {
            subject: counter
                .map_or_else(|| key::name_of(domain, entries.iter().copied()), key::name),
            outcome: outcome.to_owned(),
            reason,
            refused_now: false,
            overridden: None,
            entries: written,
            levels,
            limit: plan.limit(slot).map(|limit| Shown::new(&plan.rules, limit)),
            counter: counter.map(|counter| String::from_utf8_lossy(counter).into_owned()),
            live: None,
            trial: Tried::new(plan, index),
        }
    }
}

impl Tried {
    /// The trial of a descriptor, if the request is counted in one.
    fn new(plan: &Plan, slot: usize) -> Option<Self> {
        let (check, limit) = plan.trial_of(slot)?;
        Some(Self {
            amount: field(&diff::fields(&plan.rules, limit), "trial")?.to_owned(),
            counter: String::from_utf8_lossy(plan.checks.key(&plan.checks[check])).into_owned(),
            live: None,
        })
    }
}

impl State {
    /// The state of the counter of a look.
    pub(super) fn new(decision: &Decision, scale: Scale, check: &Check, is_alone: bool) -> Self {
        let verdict = decision.verdict();
        Self {
            used: verdict.map(|verdict| scale.units_rounded_up(verdict.used)),
            left: verdict.map(|verdict| scale.units(verdict.remaining)),
            resets_in_seconds: verdict
                .filter(|_| !check.algorithm.has_holders() && check.algorithm.capacity() > 0)
                .map(|verdict| verdict.reset_after.micros() as f64 / 1e6),
            this_replica_only: is_alone
                || matches!(decision, Decision::DenialCache(_) | Decision::Local(..)),
            held: None,
            error: decision
                .store_error()
                .map(|error| error::for_callers(error).to_owned()),
            policy: decision.policy().map(str::to_owned),
        }
    }
}

/// What happens to a descriptor, by its name and in one line.
fn outcome(
    plan: &Plan,
    slot: &Slot,
    explanation: &Explanation<'_>,
    entries: &[String],
    unknown: Option<&str>,
) -> (&'static str, String) {
    let rate =
        |limit: Option<LimitInForce<'_>>| limit.map_or_else(String::new, |limit| rate(plan, limit));
    let limit = plan.limit(slot);
    if let (Fate::Free, Some(why)) = (&slot.fate, unknown) {
        return ("unknown_domain", why.to_owned());
    }
    match (&slot.fate, limit) {
        (Fate::Free, None) => {
            let why = why_no_limit(&plan.rules, explanation.trace.as_ref(), entries);
            ("no_limit", format!("not limited: {why}"))
        }
        (Fate::Free, Some(_)) => {
            let by = explanation.replaced_by.iter().map(|by| {
                let (path, origin) = (by.limit.path(), by.limit.origin.to_string());
                format!("{} ({})", one_line(&path), one_line(&origin))
            });
            let by = by.collect::<Vec<_>>().join(", ");
            ("replaced", format!("not limited: replaced by {by}"))
        }
        (Fate::Unlimited, _) => ("unlimited", rate(limit)),
        (Fate::Exempt, _) => ("exempt", "exempt by an override of an operator".to_owned()),
        (Fate::Blocked(_), _) => (
            "blocked",
            "blocked by an override of an operator".to_owned(),
        ),
        (Fate::Checked(_), None) => ("checked", "the request brings a limit along".to_owned()),
        (Fate::Checked(_), Some(in_force)) if in_force.shadow_mode() => {
            let rate = rate(limit);
            ("checked", format!("{rate}, never refused (shadow_mode)"))
        }
        (Fate::Checked(_), _) => ("checked", rate(limit)),
    }
}

/// What is said of a domain that no file defines.
fn unknown_domain(rules: &Rules, domain: &[u8]) -> String {
    let mut domains: Vec<&[u8]> = rules.domains().collect();
    domains.sort_unstable();
    let more = domains.len().saturating_sub(MAX_DOMAINS);
    domains.truncate(MAX_DOMAINS);
    let domains: Vec<_> = domains
        .into_iter()
        .map(|domain| one_line(&String::from_utf8_lossy(domain)))
        .collect();
    let domain = String::from_utf8_lossy(domain);
    let near = known::near_domain(rules, &domain);
    format!(
        "not limited: no file defines the domain {}; there are: {}{near}",
        one_line(&domain),
        list(&domains, more)
    )
}

fn why_no_limit(rules: &Rules, trace: Option<&Trace>, entries: &[String]) -> String {
    let entry = |level: usize| one_line(entries.get(level).map_or("", String::as_str));
    // The last level is the one whose entry failed.
    let failed = || entry(trace.map_or(0, |trace| trace.levels.len().saturating_sub(1)));
    match trace.map(|trace| &trace.end) {
        Some(End::NoBranch(keys)) if keys.first.is_empty() => format!(
            "the descriptor goes on with {} where the files have no further level",
            failed()
        ),
        Some(End::NoBranch(keys)) => {
            let names: Vec<_> = keys.first.iter().map(|key| one_line(key)).collect();
            let entry = failed();
            let key = entry.split('=').next().unwrap_or_default();
            let near = names.iter().filter(|name| **name != key);
            format!(
                "no branch matches the entry {entry}; its level has the keys {}{}",
                list(&names, keys.more),
                known::did_you_mean(key, near.map(String::as_str))
            )
        }
        Some(End::NoLimit(below)) if below.first.is_empty() => {
            "what it matches has no rate_limit".to_owned()
        }
        Some(End::NoLimit(below)) => {
            let written = below.first.iter().map(ToString::to_string);
            let names: Vec<_> = written.map(|written| one_line(&written)).collect();
            format!(
                "what it matches has no rate_limit; the files go on with {}",
                list(&names, below.more)
            )
        }
        Some(End::Limit(id)) => {
            let table = rules.limit(*id).table.as_ref();
            let (file, entry) = table
                .map(|table| (one_line(&table.rows.file.document.name), entry(table.level)))
                .unwrap_or_default();
            format!("the table {file} has no row for {entry}, and there is no 'rate_limit'")
        }
        None => String::new(),
    }
}

/// The value of a field of a limit.
fn field<'f>(fields: &'f [(&str, String)], sought: &str) -> Option<&'f str> {
    let mut named = fields.iter().filter(|(name, _)| *name == sought);
    named.next().map(|(_, value)| &**value)
}

/// The rate, and what says so.
fn rate(plan: &Plan, limit: LimitInForce<'_>) -> String {
    let fields = diff::fields(&plan.rules, limit);
    let mut rate = field(&fields, "rate").unwrap_or_default().to_owned();
    for name in ["share", "plan", "row"] {
        if let Some(value) = field(&fields, name) {
            rate += &format!(", {name} {}", one_line(value));
        }
    }
    rate
}

impl Level {
    fn new((level, entry): (&trace::TracedLevel, &String)) -> Self {
        let Named { first, more } = &level.passed;
        let those = |is: fn(&WhyNot) -> bool| {
            first
                .iter()
                .filter(|(_, why)| is(why))
                .map(|(written, _)| one_line(&written.to_string()))
                .collect()
        };
        Self {
            entry: entry.clone(),
            matched: level
                .matched
                .as_ref()
                .map(|(written, _)| one_line(&written.to_string())),
            how: level
                .matched
                .as_ref()
                .map(|(_, how)| how_text(*how).to_owned()),
            later: those(|why| matches!(why, WhyNot::Later(_))),
            other_values: those(|why| *why == WhyNot::OtherValue),
            more: *more,
        }
    }
}

const fn how_text(how: How) -> &'static str {
    match how {
        How::Exact => "exact value",
        How::Set => "set",
        How::Network => "network",
        How::Pattern => "pattern",
        How::AnyValue => "any value",
    }
}

/// Names, and how many more there are.
#[must_use]
pub fn list(names: &[String], more: usize) -> String {
    let more = if more == 0 {
        String::new()
    } else {
        format!(" and {more} more")
    };
    format!("{}{more}", names.join(", "))
}

fn one_line(text: &str) -> String {
    OneLine(text).to_string()
}

impl Shown {
    fn new(rules: &Rules, limit: LimitInForce<'_>) -> Self {
        Self {
            path: limit.limit.path(),
            from: one_line(&limit.limit.origin.to_string()),
            rate: limit.amount().map(|amount| RateRecord::new(&amount.shown)),
            fields: diff::fields(rules, limit)
                .into_iter()
                .map(|(name, text)| (name.to_owned(), typed(text)))
                .collect(),
        }
    }
}

/// A number or a boolean, if the text is how one is written: the name `007` stays a text.
fn typed(text: String) -> Value {
    match (text.parse::<u64>(), text.parse::<bool>()) {
        (Ok(number), _) if number.to_string() == text => number.into(),
        (_, Ok(is)) => is.into(),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_number_only_as_numbers_are_written() {
        for text in ["007", "+7", "", "7.5", "True"] {
            assert_eq!(typed(text.to_owned()), Value::from(text));
        }
        assert_eq!(typed("7".to_owned()), Value::from(7));
        assert_eq!(typed("true".to_owned()), Value::from(true));
    }
}
