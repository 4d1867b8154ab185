//! `/api/v1/explain` and `weir explain`: the limits that a request finds, the reasons why it finds
//! no others, and the hits that they have left. It counts nothing.
//!
//! It peeks at the counters through the request path itself, and therefore cannot differ from the
//! decisions of requests. An explanation lists at most 20 branches of a level and 4,000 of a
//! request, and another thread makes it: on the control thread, the explanation of a large level
//! stopped health checks and new connections.

mod reason;

use std::sync::Arc;

use bytes::Bytes;
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::reason::{by_override, field, one_line, reason, unknown_domain};
use super::reply::{Failure, blocking};
use super::reservations::Reserved;
use super::{Call, Parts, subject};
use crate::core::answer::Decision;
use crate::core::request::{DecodedRequest, Entry};
use crate::limits::overrides::{Applied, Override, RateRecord, Record};
use crate::limits::plan::key::Subject;
use crate::limits::plan::{Check, CheckIndex, DecidedBy, Disposition, Explanation, Outcome, Plan};
use crate::limits::rules::limit::{Limit, LimitInForce, Scale, Units};
use crate::limits::rules::trace::{self, How, Named, WhyNot};
use crate::limits::rules::{Rules, diff};
use crate::service::pages::json;
use crate::service::rls::decode::decode;
use crate::store::redis::error;

/// Explanation of one request.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Report {
    pub domain: String,
    /// Explanations in the order of the request.
    pub descriptors: Vec<ExplainedDescriptor>,
    /// For `weir explain`: a line for each descriptor that another replica decides otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(skip)]
    pub differs: Vec<String>,
}

/// Explanation of one descriptor.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "Explained")]
pub struct ExplainedDescriptor {
    /// Entries as `key=value`, in the syntax of commands.
    pub entries: Vec<String>,
    /// The exact name of the subject: of the counter or, if nothing counts, of the descriptor.
    /// Calls accept it instead of domain and entries.
    pub subject: String,
    /// `checked`, `unlimited`, `exempt`, `blocked`, `replaced`, `no_limit` or `unknown_domain`.
    #[schemars(extend("enum" = [
        "checked", "unlimited", "exempt", "blocked", "replaced", "no_limit", "unknown_domain",
    ]))]
    pub outcome: String,
    /// Reason for the outcome, in one line.
    pub reason: String,
    /// Whether a running process would refuse the next hit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused_now: bool,
    /// Override that decides the descriptor now.
    #[serde(default, rename = "override", skip_serializing_if = "Option::is_none")]
    pub overridden: Option<Record>,
    /// The steps of the lookup.
    pub levels: Vec<Level>,
    /// The limit that applies, or would apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Shown>,
    /// The key of the counter, without the number of a window that a store may append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counter: Option<String>,
    /// The current state of the counter, in a running process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<State>,
    /// The limit's trial, which counts in addition and refuses nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial: Option<Tried>,
}

/// The `trial` of a limit.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "ExplainedTrial")]
pub struct Tried {
    /// Rate of the trial, and its other differences from the limit.
    pub amount: String,
    /// Key of the trial's counter.
    pub counter: String,
    /// Current state of that counter, in a running process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<State>,
}

/// One step of the lookup.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Level {
    /// The entry that is looked up.
    pub entry: String,
    /// The matching branch, as in the file.
    pub matched: Option<String>,
    /// `exact value`, `set`, `network`, `pattern` or `any value`.
    #[schemars(extend("enum" = ["exact value", "set", "network", "pattern", "any value", null]))]
    pub how: Option<String>,
    /// Other branches with this key that match too, but come later.
    pub later: Vec<String>,
    /// Branches with this key and another value.
    pub other_values: Vec<String>,
    /// Number of branches in neither list, because there are too many.
    pub more: usize,
}

/// A limit.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "ExplainedLimit")]
pub struct Shown {
    /// Full key of the limit.
    pub path: String,
    /// File and line of the limit.
    pub from: String,
    /// Amount of the limit; missing if it is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateRecord>,
    /// All fields, named as in limit files. Numbers and booleans have their JSON types.
    #[schemars(extend("additionalProperties" = { "type": ["string", "integer", "boolean"] }))]
    pub fields: IndexMap<String, Value>,
}

/// Current state of a counter.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "LiveState")]
pub struct State {
    /// Hits that count now, in the units of the limit; null if no store answered. With `scale` it has
    /// decimals, at most as many as a power of ten needs that is the scale or more, rounded up.
    pub used: Option<Units>,
    /// The same in hits, if the limit has a `scale`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_hits: Option<u64>,
    /// Hits that still fit now, in the units of the limit, with such decimals, rounded down; null if
    /// no store answered.
    pub left: Option<Units>,
    /// The same in hits, if the limit has a `scale`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_hits: Option<u64>,
    /// Seconds until the limit has fully recovered; null also for a limit of requests in flight
    /// and for a limit of 0.
    pub resets_in_seconds: Option<f64>,
    /// Whether the numbers are of this replica only: it counts in memory, or its share of the limit
    /// or its denial cache decides.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub this_replica_only: bool,
    /// Hits that this replica has drawn in advance (`lease`), in the units of the limit; they count
    /// as used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Units>,
    /// Hits that requests have reserved and not settled; they count as used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Reserved>,
    /// Why the store did not answer. Until it answers, the failure policy decides; with `local`,
    /// `used` is the count of this replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The failure policy, as in limit files: `on_store_failure: deny`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// Explains the request in the body, or the descriptor of the parameter `subject`, by the rules in
/// force, and peeks at its counters.
///
/// # Errors
/// 400: the body is no request, or the values of the subject are not known. 503: there are no rules
/// yet.
pub(super) async fn running(parts: Arc<Parts>, call: Call) -> Result<Report, Failure> {
    let asked = match call.query.get("subject") {
        Some(_) if !call.body.is_empty() => {
            return Err(Failure::bad_request("subject: send it or a body, not both"));
        }
        Some(name) => ExplainTarget::Subject(subject::read(name)?),
        None => ExplainTarget::Message(blocking(move || message(&call.body)).await?),
    };
    let (plan, decisions) = {
        let mut request = asked.request()?;
        request.peek();
        parts.peek(&request).await?
    };
    let reserved = parts.reserved(&plan).await;
    let report = blocking(move || {
        let snapshot = parts.live.load();
        let request = asked.request()?;
        let overrides = snapshot.as_ref().and_then(|live| live.overrides());
        let mut report = Report::new(&plan, &request);
        let outcomes = plan.outcomes(&decisions);
        let all = report.descriptors.iter_mut().zip(request.descriptors());
        for ((descriptor, (one, entries)), outcome) in all.zip(&outcomes.each) {
            let hits = request.hits(one).max(1).unsigned_abs();
            descriptor.add_state(&parts, &plan, outcome, hits);
            if let Some(overrides) = overrides.filter(|_| is_overridden(outcome)) {
                let found = subject::override_of(&plan.rules, overrides, request.domain, entries);
                descriptor.add_override(found);
            }
        }
        for (index, reserved) in reserved {
            if let Some(live) = &mut report.descriptors[index].live {
                live.reserved = Some(reserved);
            }
        }
        for (check, index, limit) in plan.trials() {
            if let (Some(shown), Some(trial)) = (&mut report.descriptors[index].trial, &limit.trial)
            {
                let (check, decision) = (&plan.checks[check], &decisions[check.0]);
                let is_alone = parts.deployments.is_empty();
                shown.live = Some(State::new(decision, trial.amount.scale, check, is_alone));
            }
        }
        asked.check(&report)?;
        Ok(report)
    });
    report.await
}

/// The subject of an explanation.
pub(crate) enum ExplainTarget {
    /// A request.
    Message(Bytes),
    /// One descriptor.
    Subject(Subject),
}

impl ExplainTarget {
    pub(crate) fn request(&self) -> Result<DecodedRequest<'_>, Failure> {
        let request = match self {
            Self::Message(message) => decode(message).map_err(|error| error.to_string()),
            Self::Subject(subject) => subject.one_of().map_err(|why| format!("subject: {why}")),
        };
        request.map_err(|why| Failure::bad_request(&why))
    }

    /// Fails if the subject is a counter that values share, and no limit in force has this counter.
    fn check(&self, report: &Report) -> Result<(), Failure> {
        let Self::Subject(subject) = self else {
            return Ok(());
        };
        let is_it = |descriptor: &ExplainedDescriptor| {
            (descriptor.subject.parse()).is_ok_and(|found: Subject| found.tag() == subject.tag())
        };
        if subject.is_shared() && !report.descriptors.iter().all(is_it) {
            return Err(Failure::not_found(
                "no limit in force has one counter for the values of this pattern",
            ));
        }
        Ok(())
    }
}

fn message(body: &[u8]) -> Result<Bytes, Failure> {
    json::request(body).map_err(|error| {
        let what = "the body is not a RateLimitRequest in JSON";
        Failure::bad_request(&format!("{what}: {error}"))
    })
}

impl Report {
    /// Explains `plan`, which is the plan of `request`.
    pub fn new(plan: &Plan, request: &DecodedRequest<'_>) -> Self {
        // Computed once: a request may have thousands of descriptors, and there may be many
        // domains.
        let is_unknown = plan.unknown_domain;
        let unknown = is_unknown.then(|| unknown_domain(&plan.rules, request.domain));
        let all = request.descriptors().zip(plan.explain(request)).enumerate();
        let descriptors = all.map(|(index, ((_, entries), explanation))| {
            let unknown = unknown.as_deref();
            ExplainedDescriptor::new(plan, index, request.domain, entries, &explanation, unknown)
        });
        let mut descriptors: Vec<_> = descriptors.collect();
        for (check, index, limit) in plan.trials() {
            descriptors[index].trial = Tried::new(plan, check, limit);
        }
        Self {
            domain: String::from_utf8_lossy(request.domain).into_owned(),
            descriptors,
            differs: Vec::new(),
        }
    }
}

impl ExplainedDescriptor {
    fn new(
        plan: &Plan,
        index: usize,
        domain: &[u8],
        entries: &[Entry<'_>],
        explanation: &Explanation<'_>,
        unknown: Option<&str>,
    ) -> Self {
        let slot = &plan.slots[index];
        let texts: Vec<_> = entries.iter().map(ToString::to_string).collect();
        let traced = explanation.trace.iter();
        let levels = traced.flat_map(|trace| trace.levels.iter().zip(&texts));
        let counter = match &slot.disposition {
            Disposition::Checked(checked) => Some(plan.checks.key(&plan.checks[checked.check])),
            _ => None,
        };
        let of_entries = || Subject::new(domain, entries.iter().copied());
        let subject = counter.map_or_else(of_entries, Subject::of_key);
        let (outcome, reason) = reason(plan, slot, explanation, &texts, unknown);
        Self {
            subject: subject.to_string(),
            outcome: outcome.to_owned(),
            reason,
            refused_now: false,
            overridden: None,
            levels: levels.map(Level::new).collect(),
            entries: texts,
            limit: plan.limit(slot).map(|limit| Shown::new(&plan.rules, limit)),
            counter: counter.map(|counter| String::from_utf8_lossy(counter).into_owned()),
            live: None,
            trial: None,
        }
    }

    /// Adds the state of its counter, from a peek for `hits` hits.
    fn add_state(&mut self, parts: &Parts, plan: &Plan, outcome: &Outcome<'_>, hits: u64) {
        self.refused_now = outcome.refuses;
        let DecidedBy::Check {
            planned,
            check,
            decision,
            ..
        } = outcome.by
        else {
            return;
        };
        let verdict = decision.verdict();
        let is_used_up = verdict.is_some_and(|verdict| verdict.remaining == 0);
        self.refused_now |= !check.modes.shadow && is_used_up;
        if hits > check.algorithm.capacity() {
            self.refused_now = !check.modes.shadow;
            self.reason += ", never passes: the request has more hits than the limit";
        }
        let is_alone = parts.deployments.is_empty();
        let leased = parts.limiter.leased(&plan.checks, planned.check);
        self.live = Some(State {
            held: (leased > 0).then(|| planned.scale.decimal(leased)),
            ..State::new(decision, planned.scale, check, is_alone)
        });
    }

    /// Adds the override that decides it.
    fn add_override(&mut self, found: Option<(&Override, Applied)>) {
        let Some((one, applied)) = found else { return };
        self.reason = by_override(&self.reason, one, &applied);
        let raised = match &applied {
            Applied::Raise(amount) => Some(amount),
            Applied::Block { .. } | Applied::Exempt => None,
        };
        self.overridden = Some(Record::from(one).with_total(raised));
    }
}

/// Whether an override decides a descriptor.
const fn is_overridden(outcome: &Outcome<'_>) -> bool {
    match outcome.by {
        DecidedBy::Exempt | DecidedBy::Block(_) => true,
        DecidedBy::Check { planned, .. } => planned.is_raised,
        DecidedBy::NoLimit | DecidedBy::Unlimited => false,
    }
}

impl Tried {
    /// The trial of a descriptor, if the request is counted in one.
    fn new(plan: &Plan, check: CheckIndex, limit: &Limit) -> Option<Self> {
        Some(Self {
            amount: field(&diff::fields(&plan.rules, limit), "trial")?.to_owned(),
            counter: String::from_utf8_lossy(plan.checks.key(&plan.checks[check])).into_owned(),
            live: None,
        })
    }
}

impl State {
    /// The state of a counter, from a peek.
    pub(super) fn new(decision: &Decision, scale: Scale, check: &Check, is_alone: bool) -> Self {
        let verdict = decision.verdict();
        let has_reset = !check.algorithm.counts_in_flight() && check.algorithm.capacity() > 0;
        let reset = verdict.filter(|_| has_reset);
        let reset = reset.map(|verdict| verdict.reset_after);
        let is_local = matches!(decision, Decision::DenialCache(_) | Decision::Local(..));
        let error = decision.store_error().map(error::for_callers);
        Self {
            used: verdict.map(|verdict| scale.decimal_rounded_up(verdict.used)),
            used_hits: verdict.and_then(|verdict| scale.exact(verdict.used)),
            left: verdict.map(|verdict| scale.decimal(verdict.remaining)),
            left_hits: verdict.and_then(|verdict| scale.exact(verdict.remaining)),
            resets_in_seconds: reset.map(|reset| reset.micros() as f64 / 1e6),
            this_replica_only: is_alone || is_local,
            held: None,
            reserved: None,
            error: error.map(str::to_owned),
            policy: decision.policy().map(str::to_owned),
        }
    }
}

impl Level {
    fn new((level, entry): (&trace::TracedLevel<'_>, &String)) -> Self {
        let Named { first, more } = &level.passed;
        let those = |is: fn(&WhyNot) -> bool| {
            let branches = first.iter().filter(|(_, why)| is(why));
            branches.map(|(branch, _)| one_line(branch)).collect()
        };
        let matched = level.matched.as_ref();
        Self {
            entry: entry.clone(),
            matched: matched.map(|(branch, _)| one_line(branch)),
            how: matched.map(|(_, how)| how_text(*how).to_owned()),
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

impl Shown {
    fn new(rules: &Rules, limit: LimitInForce<'_>) -> Self {
        let fields = diff::fields(rules, limit).into_iter();
        let fields = fields.map(|(name, text)| (name.to_owned(), typed(text)));
        Self {
            path: limit.limit.path(),
            from: one_line(&limit.limit.origin),
            rate: limit.amount().map(|own| RateRecord::new(&own.display_rate)),
            fields: fields.collect(),
        }
    }
}

/// A number or a boolean, if it prints as this text. The name `007` stays a text.
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
