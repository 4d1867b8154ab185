//! Operators' view of the limits in force: plans without decisions, peeks at counters, and resets.
//! This file also finds the subject of a call, by its domain and entries or by its exact name
//! (`subject` in answers). The request path does not use it. Peeks count nothing, not even in
//! metrics.

use std::sync::Arc;

use super::query::Query;
use super::reply::Failure;
use super::{Parts, names};
use crate::core::answer::{Decision, Decisions};
use crate::core::request::notation::WildcardText;
use crate::core::request::{DecodedRequest, Entry, MAX_ENTRIES};
use crate::core::text::first_names;
use crate::limiter::Undecided;
use crate::limits::overrides::record::read_digits;
use crate::limits::overrides::{Applied, InForce, Override, Pattern, Value};
use crate::limits::plan::key::{EntryText, Part, Subject, SubjectEntry};
use crate::limits::plan::{Check, CheckIndex, Checks, Disposition, Plan, PlanError};
use crate::limits::rules::Rules;
use crate::limits::rules::limit::{Amount, Limit, LimitInForce, Scale};
use crate::live::Snapshot;
use crate::observe::traces::TraceSpan;

/// Maximum number of limits that an error names.
pub(super) const MAX_NAMED: usize = 10;

/// A counter that was reset: its key, and whether the store had it.
pub(super) type ResetKey = (Vec<u8>, bool);

impl Parts {
    pub(super) fn snapshot(&self) -> Result<Arc<Snapshot>, Failure> {
        let no_limits = || Failure::unavailable("no limits are in force yet");
        self.live.load().ok_or_else(no_limits)
    }

    /// The plan of a request whose descriptors peek, and the decisions of its limits and trials.
    pub(super) async fn peek(
        &self,
        request: &DecodedRequest<'_>,
    ) -> Result<(Plan, Decisions), Failure> {
        let live = self.snapshot()?;
        let mut plan = Plan::with_overrides(&live.rules, live.overrides(), request, &self.plan);
        plan.peek();
        let decisions = self.peek_at(&plan.rules, &plan.checks).await;
        Ok((plan, decisions))
    }

    /// Peeks at the limits and the trials of these checks, which were planned by `rules`. The
    /// checks have no hits. Metrics count the holds that end.
    async fn peek_at(&self, rules: &Arc<Rules>, checks: &Arc<Checks>) -> Decisions {
        let (span, live) = (TraceSpan::default(), self.live.load());
        let live = live.filter(|live| Arc::ptr_eq(&live.rules, rules));
        let mut decided = self.limiter.decide(Undecided {
            checks,
            timeout: None,
            span: &span,
            tallies: live.as_ref().map(|live| &live.tallies),
        });
        decided.wait().await.decisions
    }

    /// The plan of a subject. Of the overrides only raises apply: a blocked or exempt subject has a
    /// counter too. `limit` is the path of its limit, where several may count it.
    pub(super) fn plan_of(&self, subject: &Subject, limit: Option<&str>) -> Result<Plan, Failure> {
        let live = self.snapshot()?;
        let Ok(request) = subject.exact() else {
            return self.plan_of_files(&live.rules, subject, limit);
        };
        let (rules, options) = (&live.rules, &self.plan);
        let raises = live.overrides().map(|overrides| overrides.for_hits(-1));
        Ok(Plan::with_overrides(rules, raises, &request, options))
    }

    /// The plan of a subject without overrides.
    fn plan_of_files(
        &self,
        rules: &Arc<Rules>,
        subject: &Subject,
        limit: Option<&str>,
    ) -> Result<Plan, Failure> {
        Plan::of_subject(rules, subject, limit, &self.plan).map_err(|error| match error {
            PlanError::NoLimit => no_limit(),
            PlanError::Unlimited => unlimited(),
            PlanError::Several(paths) => {
                let paths = first_names(&paths, MAX_NAMED);
                let what = "limit: Weir has only the digest of the value, and these limits may \
                    count it";
                Failure::bad_request(&format!("{what}: {paths}; write one of them as limit"))
            }
        })
    }

    /// Resets the counter of a subject, and the counter of its trial. Returns its plan without
    /// overrides, and the counters; there are none if nothing is counted.
    pub(super) async fn reset(
        &self,
        subject: &Subject,
        limit: Option<&str>,
    ) -> Result<(Plan, Vec<ResetKey>), Failure> {
        let live = self.snapshot()?;
        let plan = self.plan_of_files(&live.rules, subject, limit)?;
        let raised = subject.exact().ok().map(|request| {
            Plan::with_overrides(&live.rules, live.overrides(), &request, &self.plan).checks
        });
        let raised = raised.as_ref().unwrap_or(&plan.checks);
        let mut counters = Vec::new();
        for index in plan.checks.all() {
            let existed = self.limiter.reset(&plan.checks, index, raised).await;
            let existed = existed.map_err(|error| {
                let what = "the store did not reset the counter";
                Failure::unavailable(&format!("{what}: {error}; try again"))
            })?;
            counters.push((plan.checks.key(&plan.checks[index]).to_vec(), existed));
        }
        Ok((plan, counters))
    }
}

fn no_limit() -> Failure {
    Failure::not_found("no limit applies to these entries; `weir explain` shows why")
}

fn unlimited() -> Failure {
    Failure::not_found("the subject is unlimited: Weir neither counts nor records it")
}

/// A subject that a store counts.
pub(super) struct CountedSubject {
    plan: Plan,
    /// The index of its check.
    pub(super) index: CheckIndex,
    /// The entries as answers show them.
    pub(super) entries: Vec<EntryText>,
    /// Whether the call is about the trial of the limit.
    pub(super) is_trial: bool,
}

impl CountedSubject {
    /// The limit that counts it.
    pub(super) fn limit(&self) -> Result<&Limit, Failure> {
        let found = self.plan.limit(&self.plan.slots[0]);
        let limit = found.map(|found| found.limit);
        limit.ok_or_else(|| Failure::not_found("the subject has no limit"))
    }

    /// The current state of its counter.
    pub(super) async fn counter(&self, parts: &Parts) -> Decision {
        let mut peeks = self.checks().clone();
        peeks.peek_only(peeks.total());
        let decisions = parts.peek_at(&self.plan.rules, &Arc::new(peeks)).await;
        decisions[self.index.0]
    }

    /// The amount of the limit, or of its trial, without an override.
    pub(super) fn amount(&self) -> Option<&Amount> {
        let in_force = self.plan.limit(&self.plan.slots[0])?;
        match self.is_trial {
            true => in_force.trial().map(|trial| &trial.amount),
            false => in_force.amount(),
        }
    }

    /// The hits of a unit of its amount.
    pub(super) fn scale(&self) -> Scale {
        match &self.plan.slots[0].disposition {
            Disposition::Checked(checked) if !self.is_trial => checked.scale,
            _ => self.amount().map_or(Scale::ONE, |amount| amount.scale),
        }
    }

    /// The checks of its plan.
    pub(super) fn checks(&self) -> &Checks {
        &self.plan.checks
    }

    /// Its check.
    pub(super) fn check(&self) -> &Check {
        &self.checks()[self.index]
    }

    /// The exact name of the subject.
    pub(super) fn name(&self) -> String {
        Subject::of_key(self.checks().key(self.check())).to_string()
    }
}

/// Reads the parameters `entry`, each `key=value`.
fn parse_entries<'t>(texts: &[&'t str]) -> Result<Vec<Entry<'t>>, Failure> {
    if texts.is_empty() || texts.len() > MAX_ENTRIES {
        let what = "entry: write the entries of the descriptor, as entry=key%3Dvalue";
        return Err(Failure::bad_request(&format!("{what}, 1 to {MAX_ENTRIES}")));
    }
    let entry = |text: &&'t str| {
        let (key, value) = text.split_once('=')?;
        let (key, value) = (key.as_bytes(), value.as_bytes());
        Some(Entry { key, value })
    };
    let entries: Option<_> = texts.iter().map(entry).collect();
    let wrong = "entry: write key=value, with = as %3D; a key with = needs subject";
    entries.ok_or_else(|| Failure::bad_request(wrong))
}

/// The subject of the parameters `subject`, or `domain` and `entry`.
pub(super) fn find(parts: &Parts, query: &Query) -> Result<CountedSubject, Failure> {
    let texts: Vec<&str> = query.all("entry").take(MAX_ENTRIES + 1).collect();
    let wrong = match (query.get("subject"), query.get("domain")) {
        (Some(_), domain) if domain.is_some() || !texts.is_empty() => {
            "subject: it contains the domain and the entries; leave out domain and entry"
        }
        (None, None) => {
            "domain: write the domain of the limit, or a subject from a response as subject"
        }
        (name, domain) => {
            let domain = domain.unwrap_or_default().as_bytes();
            let subject = match name {
                Some(name) => read(name)?,
                None => Subject::new(domain, parse_entries(&texts)?),
            };
            return counted(parts, &subject, query.get("limit"), query.is("trial")?);
        }
    };
    Err(Failure::bad_request(wrong))
}

/// A subject that a limit counts, or the trial of the limit. `limit`: as for [`Parts::plan_of`].
pub(super) fn counted(
    parts: &Parts,
    subject: &Subject,
    limit: Option<&str>,
    is_trial: bool,
) -> Result<CountedSubject, Failure> {
    let plan = parts.plan_of(subject, limit)?;
    let entries = subject.texts();
    let index = match &plan.slots[0].disposition {
        Disposition::Checked(_) | Disposition::Unlimited if is_trial => {
            let what = "the limit of the subject has no trial; write 'trial' in its rate_limit";
            let trial = plan.trials().next();
            trial.ok_or_else(|| Failure::not_found(what))?.0
        }
        Disposition::Checked(checked) => checked.check,
        Disposition::Unlimited => return Err(unlimited()),
        // The plan applies no blocks and no exemptions.
        Disposition::Free | Disposition::Exempt | Disposition::Blocked(_) => {
            let shown = entries.iter().map(|entry| (&*entry.key, &*entry.value));
            names::entries(&plan.rules, &subject.domain.to_string(), shown)?;
            return Err(no_limit());
        }
    };
    Ok(CountedSubject {
        plan,
        index,
        entries,
        is_trial,
    })
}

/// Reads the exact name of a subject.
pub(crate) fn read(name: &str) -> Result<Subject, Failure> {
    let subject = name.parse::<Subject>();
    subject.map_err(|error| Failure::bad_request(&error.to_string()))
}

/// The override that decides a descriptor, and its effect.
pub(super) fn override_of<'o>(
    rules: &Rules,
    overrides: InForce<'o>,
    domain: &[u8],
    entries: &[Entry<'_>],
) -> Option<(&'o Override, Applied)> {
    let limit = rules.find(domain, entries);
    let amount = limit.and_then(LimitInForce::amount);
    overrides.find(domain, entries, amount)
}

/// A function that finds the override of a subject by its exact name, and returns its kind and
/// effect. A subject that shares its counter has no override of its own.
pub(super) fn overrides_of(parts: &Parts) -> impl Fn(&str) -> Option<(String, Applied)> {
    let snapshot = parts.live.load();
    move |name| {
        let snapshot = snapshot.as_ref()?;
        let subject: Subject = name.parse().ok()?;
        let request = subject.exact().ok()?;
        let overrides = snapshot.overrides()?;
        let (one, applied) =
            override_of(&snapshot.rules, overrides, request.domain, request.first())?;
        Some((one.kind.name().to_owned(), applied))
    }
}

/// The domain of a subject, and the entries for an override of it. For a counter that values share,
/// they are the entries of its pattern.
pub(crate) fn order_of(subject: &Subject) -> Result<(String, Vec<Pattern>), Failure> {
    let text_of = |part: &Part, what: &str| {
        let text = match part {
            Part::Text(text) => String::from_utf8(text.clone()).ok(),
            Part::Digest(_) => None,
        };
        let why = format!("its {what} is not UTF-8, or Weir has only its digest");
        let why = format!("subject: {why}; write domain and entries");
        text.ok_or_else(|| Failure::bad_request(&why))
    };
    let entry = |entry: &SubjectEntry| -> Result<Pattern, Failure> {
        let key = text_of(&entry.key, "key")?;
        Ok(match (&entry.value, entry.is_shared) {
            (shared, true) => Pattern::of_file(&key, &text_of(shared, "pattern")?),
            (Part::Text(text), false) => Pattern::literal(&key, text),
            (Part::Digest(digits), false) => Pattern {
                key: WildcardText::literal(&key),
                value: Value::Digest(read_digits(digits)?),
            },
        })
    };
    let entries = subject.entries.iter().map(entry);
    let entries = entries.collect::<Result<_, Failure>>()?;
    Ok((text_of(&subject.domain, "domain")?, entries))
}
