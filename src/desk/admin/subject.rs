//! Which subject a call is about: its domain and entries, or its exact name, which answers have as
//! `subject`.

use std::sync::Arc;

use super::query::Query;
use super::reply::Failure;
use super::{Parts, known};
use crate::core::ask;
use crate::core::verdict::Decision;
use crate::limits::overrides::{Applied, EntryRecord, InForce, Override};
use crate::limits::plan::key::{self, EntryText};
use crate::limits::plan::{CheckIndex, Checks, Fate, NoPlan, Plan, ask_of};
use crate::limits::rules::Rules;
use crate::limits::rules::limit::LimitInForce;
use crate::limits::rules::limit::{Amount, Limit};

/// Entries of a subject at most, as in a request.
const MAX_ENTRIES: usize = 64;

/// Limits that an answer names.
const MAX_NAMED: usize = 10;

/// A subject that a store counts.
pub(super) struct CountedSubject {
    plan: Plan,
    pub(super) check: CheckIndex,
    /// As they are shown.
    pub(super) entries: Vec<EntryText>,
    /// It is asked what the trial of the limit counts.
    pub(super) is_trial: bool,
}

impl CountedSubject {
    /// The limit that counts it.
    pub(super) fn limit(&self) -> Result<&Limit, Failure> {
        let found = self.plan.limit(&self.plan.slots[0]);
        found
            .map(|found| found.limit)
            .ok_or_else(|| Failure::not_found("the subject has no limit"))
    }

    /// What its counter has now.
    pub(super) async fn counter(&self, parts: &Parts) -> Option<Decision> {
        let mut looks = self.checks().clone();
        looks.look_only(looks.total());
        let decisions = parts.rls.look_at(&Arc::new(looks)).await;
        decisions.get(self.check.0).copied()
    }

    /// The amount of that limit, or of its trial, without an override.
    pub(super) fn amount(&self) -> Option<&Amount> {
        let slot = &self.plan.slots[0];
        let in_force = self
            .plan
            .limit(slot)
            .filter(|_| matches!(slot.fate, Fate::Checked(_)))?;
        if self.is_trial {
            in_force.trial().map(|trial| &trial.amount)
        } else {
            in_force.amount()
        }
    }

    /// Where its check is.
    pub(super) fn checks(&self) -> &Checks {
        &self.plan.checks
    }

    /// Its exact name.
    pub(super) fn name(&self) -> String {
        key::name(self.checks().key(&self.checks()[self.check]))
    }
}

/// The parameters `entry`.
fn written(texts: &[&str]) -> Result<Vec<EntryText>, Failure> {
    if texts.is_empty() || texts.len() > MAX_ENTRIES {
        return Err(Failure::bad_request(&format!(
            "entry: write the entries of the descriptor, as entry=key%3Dvalue, 1 to {MAX_ENTRIES}"
        )));
    }
    let entry = |text: &&str| {
        let (key, value) = text.split_once('=')?;
        Some(EntryText {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    };
    let entries: Option<_> = texts.iter().map(entry).collect();
    entries.ok_or_else(|| {
        Failure::bad_request("entry: write key=value, with = as %3D; a key with = needs subject")
    })
}

/// The subject of the parameters `subject`, or `domain` and `entry`.
pub(super) fn find(parts: &Parts, query: &Query) -> Result<CountedSubject, Failure> {
    let texts: Vec<&str> = query.all("entry").take(MAX_ENTRIES + 1).collect();
    let (plan, domain, entries) = match (query.get("subject"), query.get("domain")) {
        (Some(name), None) if texts.is_empty() => {
            let subject = read(name)?;
            let plan = match subject.exact() {
                Ok(ask) => parts.rls.plan(&ask).ok_or_else(no_limits)?,
                Err(_) => plan_of(parts, &subject, query.get("limit"))?,
            };
            (plan, subject.domain.shown(), entries_of(&subject))
        }
        (Some(_), _) => {
            return Err(Failure::bad_request(
                "subject: it has the domain and the entries; leave out domain and entry",
            ));
        }
        (None, None) => {
            return Err(Failure::bad_request(
                "domain: write the domain of the limit, or the subject of an answer as subject",
            ));
        }
        (None, Some(domain)) => {
            let entries = written(&texts)?;
            let bytes: Vec<_> = entries
                .iter()
                .map(|entry| (entry.key.as_bytes(), entry.value.as_bytes()))
                .collect();
            let plan = parts.rls.plan(&ask_of(domain.as_bytes(), &bytes));
            (plan.ok_or_else(no_limits)?, domain.to_owned(), entries)
        }
    };
    let is_trial = query.is("trial")?;
    let check = match &plan.slots[0].fate {
        Fate::Checked(_) | Fate::Unlimited if is_trial => {
            let (check, _) = plan.trial_of(0).ok_or_else(|| {
                Failure::not_found(
                    "the limit of the subject has no trial; write 'trial' in its rate_limit",
                )
            })?;
            check
        }
        Fate::Checked(checked) => checked.check,
        Fate::Unlimited => return Err(unlimited()),
        // The plan has no blocks and no exemptions.
        Fate::Free | Fate::Exempt | Fate::Blocked(_) => {
            let shown = entries.iter().map(|entry| (&*entry.key, &*entry.value));
            known::entries(&plan.rules, &domain, shown)?;
            return Err(no_limit());
        }
    };
    Ok(CountedSubject {
        plan,
        check,
        entries,
        is_trial,
    })
}

/// Reads the exact name of a subject.
pub(super) fn read(name: &str) -> Result<key::Subject, Failure> {
    key::Subject::read(name).map_err(|error| Failure::bad_request(&error.to_string()))
}

/// The plan of a named subject.
pub(super) fn plan_of(
    parts: &Parts,
    subject: &key::Subject,
    limit: Option<&str>,
) -> Result<Plan, Failure> {
    let plan = parts.rls.plan_of(subject, limit).ok_or_else(no_limits)?;
    plan.map_err(|error| match error {
        NoPlan::NoLimit => no_limit(),
        NoPlan::Unlimited => unlimited(),
        NoPlan::Several(paths) => {
            let more = if paths.len() > MAX_NAMED {
                " and others"
            } else {
                ""
            };
            let named = paths[..paths.len().min(MAX_NAMED)].join(", ");
            Failure::bad_request(&format!(
                "limit: the value is known by its digest only, and these limits may count it: \
                 {named}{more}; write one of them as limit"
            ))
        }
    })
}

/// The override that decides a descriptor, and what it makes of it.
pub(super) fn override_of<'o>(
    rules: &Rules,
    overrides: InForce<'o>,
    domain: &[u8],
    entries: &[ask::Entry<'_>],
) -> Option<(&'o Override, Applied)> {
    let limit = rules.find(domain, entries);
    let amount = limit.and_then(LimitInForce::amount);
    overrides.find(domain, entries, amount)
}

/// What finds the kind of the override that decides a subject, by its exact name.
pub(super) fn override_kinds(parts: &Parts) -> impl Fn(&str) -> Option<String> {
    let overrides = overrides_of(parts);
    move |name| overrides(name).map(|(kind, _)| kind)
}

/// The same with what the override makes of the subject. A subject that shares its counter has no
/// override of its own.
pub(super) fn overrides_of(parts: &Parts) -> impl Fn(&str) -> Option<(String, Applied)> {
    let snapshot = parts.live.load();
    move |name| {
        let snapshot = snapshot.as_ref()?;
        let subject = key::Subject::read(name)
            .ok()
            .filter(|subject| !subject.is_shared())?;
        let ask = subject.one_of().ok()?;
        let overrides = snapshot.overrides()?;
        let (one, applied) = override_of(&snapshot.rules, overrides, ask.domain, ask.first())?;
        Some((one.kind.name().to_owned(), applied))
    }
}

/// The entries of a subject, as lists show them.
pub(super) fn entries_of(subject: &key::Subject) -> Vec<EntryText> {
    subject
        .entries
        .iter()
        .map(|entry| EntryText {
            key: entry.key.shown(),
            value: entry.value.shown(),
        })
        .collect()
}

/// The domain of a subject, and the entries of an override of it: of a counter that values share
/// they are those of its pattern.
pub(crate) fn order_of(subject: &key::Subject) -> Result<(String, Vec<EntryRecord>), Failure> {
    let known = |part: &key::Part, what: &str| {
        let text = if let key::Part::Text(text) = part {
            String::from_utf8(text.clone()).ok()
        } else {
            None
        };
        let why = format!(
            "subject: its {what} is no UTF-8, or is known by its digest only; write domain and \
             entries"
        );
        text.ok_or_else(|| Failure::bad_request(&why))
    };
    let entry = |entry: &key::SubjectEntry| -> Result<EntryRecord, Failure> {
        let key = known(&entry.key, "key")?;
        Ok(match (&entry.value, entry.is_shared) {
            (shared, true) => EntryRecord::of_file(&key, &known(shared, "pattern")?),
            (key::Part::Text(text), false) => EntryRecord::exact_bytes(&key, text),
            (key::Part::Digest(digest), false) => EntryRecord::of_digest(&key, digest),
        })
    };
    let entries = subject
        .entries
        .iter()
        .map(entry)
        .collect::<Result<_, Failure>>()?;
    Ok((known(&subject.domain, "domain")?, entries))
}

pub(super) fn no_limits() -> Failure {
    Failure::unavailable("no limits are in force yet")
}

fn no_limit() -> Failure {
    Failure::not_found("no limit applies to these entries; weir explain says why")
}

fn unlimited() -> Failure {
    Failure::not_found("the subject is unlimited: no store counts it, so that nothing is recorded")
}
