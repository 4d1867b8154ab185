//! The plan of a subject that an operator names. The request path does not use it.
//!
//! If all texts of a subject are available, the plan is the plan of that descriptor. For other
//! subjects (a long value of which only the digest is stored, a counter that values share) it is
//! the plan of the limit that may count the subject: a digest does not reveal which pattern the
//! value matches.

use std::sync::Arc;

use super::key::{self, Part, Subject, SubjectEntry};
use super::{Checked, Checks, Disposition, Options, Plan, Slot, features};
use crate::core::digest::LONGEST_PLAIN;
#[cfg(test)]
use crate::core::request::{DecodedRequest, Descriptor, Entry};
use crate::limits::rules::Rules;
use crate::limits::rules::address;
use crate::limits::rules::limit::{Level, Limit, LimitInForce, Matching};
use crate::limits::rules::tree::matches;

/// Why a subject has no plan.
#[derive(Debug)]
pub(crate) enum PlanError {
    /// No limit in force can count it.
    NoLimit,
    /// Its limit is `unlimited`: nothing is counted.
    Unlimited,
    /// Several limits may count it: their paths.
    Several(Vec<String>),
}

impl Plan {
    /// The plan of the only descriptor of a subject. `limit` is the path of its limit, if the
    /// caller has it.
    ///
    /// # Errors
    /// No limit counts it, or several may.
    pub(crate) fn of_subject(
        rules: &Arc<Rules>,
        subject: &Subject,
        limit: Option<&str>,
        options: &Options,
    ) -> Result<Self, PlanError> {
        if let Ok(request) = subject.exact() {
            return Ok(Self::new(rules, &request, options));
        }
        let is_it = |one: &&Limit| limit.is_none_or(|limit| one.path() == limit);
        let limits = rules.limits().filter(|one| may_count(one, subject));
        let in_force = limits
            .filter(is_it)
            .filter_map(|limit| of_row(limit, subject));
        let in_force: Vec<LimitInForce<'_>> = in_force.collect();
        let mut counting = in_force.clone();
        counting.retain(|limit| features::counts(*limit));
        match counting[..] {
            [limit] => Ok(Self::of_counter(rules, subject, limit, options)),
            [] if in_force.is_empty() => Err(PlanError::NoLimit),
            [] => Err(PlanError::Unlimited),
            _ => {
                let paths = counting.iter().map(|limit| limit.limit.path());
                Err(PlanError::Several(paths.collect()))
            }
        }
    }

    /// The plan of a subject by one limit, which may be `unlimited` itself.
    fn of_counter(
        rules: &Arc<Rules>,
        subject: &Subject,
        in_force: LimitInForce<'_>,
        options: &Options,
    ) -> Self {
        let LimitInForce { limit, row } = in_force;
        let mut checks = Checks {
            commit: rules.commit(limit.domain.as_bytes()).unwrap_or_default(),
            ..Checks::default()
        };
        let (prefix, tag, commit) = (&options.key_prefix, subject.tag(), checks.commit);
        key::write_subject(&mut checks.keys, prefix, &tag, commit);
        let subject = checks.keys.clone();
        let disposition = in_force.amount().map_or(Disposition::Unlimited, |amount| {
            amount.algorithm.write_key_tag(&mut checks.keys);
            let key = 0..checks.keys.len();
            let check = checks.add(key, Some(in_force), amount, 0, options);
            Disposition::Checked(Checked::new(check, amount))
        });
        let slot = Slot {
            limit: Some(limit.id),
            row,
            disposition,
        };
        checks.complete(rules, in_force, &slot, &subject);
        Self {
            rules: Arc::clone(rules),
            slots: [slot].into_iter().collect(),
            unknown_domain: false,
            checks: Arc::new(checks),
        }
    }
}

/// A request with one descriptor.
#[cfg(test)]
pub(crate) fn request_of<'a>(
    domain: &'a [u8],
    entries: &[(&'a [u8], &'a [u8])],
) -> DecodedRequest<'a> {
    let mut request = DecodedRequest::default();
    request.domain = domain;
    for &(key, value) in entries {
        request.push(Entry { key, value });
    }
    request.close(Descriptor::default());
    request
}

/// Whether a descriptor of the subject may find the limit.
fn may_count(limit: &Limit, subject: &Subject) -> bool {
    let mut entries = limit.levels.iter().zip(&subject.entries);
    subject.domain.is(&limit.domain)
        && limit.levels.len() == subject.entries.len()
        && entries.all(|(level, entry)| may_match(level, entry))
}

/// The limit with the row of the subject; `None` if the subject's row, or its absence, leads to
/// another limit.
fn of_row<'r>(limit: &'r Limit, subject: &Subject) -> Option<LimitInForce<'r>> {
    let Some(table) = &limit.table else {
        return Some(limit.into());
    };
    let rows = &table.rows;
    let row = match &subject.entries.get(table.level)?.value {
        Part::Text(value) => rows.find(value),
        // A linear search, slow in a table of millions of rows. Only long values have digests.
        digest @ Part::Digest(_) => {
            let is = |value: &[u8]| str::from_utf8(value).is_ok_and(|value| digest.is(value));
            let is_it = |value: &[u8]| value.len() > LONGEST_PLAIN && is(value);
            rows.rows().find(|&row| is_it(rows.value(row)))
        }
    };
    let of_row = match row {
        Some(row) => rows.meaning(row).map(|meaning| meaning.limit),
        None => table.default(),
    };
    (of_row == Some(limit.id.limit)).then_some(LimitInForce { limit, row })
}

fn may_match(level: &Level, entry: &SubjectEntry) -> bool {
    let (key, value, is_shared) = (&entry.key, &entry.value, entry.is_shared);
    let written = level.value.as_deref();
    if let Matching::Cidr {
        prefix: own @ Some(_),
    } = level.matching
        && let bits @ Some(_) = entry.prefix()
    {
        return key.is(&level.key) && own == bits;
    }
    if level.is_shared || is_shared {
        let are_shared = level.is_shared && is_shared;
        return are_shared && key.is(&level.key) && value.is(written.unwrap_or_default());
    }
    let key_fits = match key {
        Part::Text(text) => matches(&level.key, text),
        Part::Digest(_) => level.key.contains('*') || key.is(&level.key),
    };
    let value_fits = || match value {
        Part::Text(text) => may_be(level, text),
        Part::Digest(_) => match level.matching {
            Matching::Text | Matching::Address => {
                written.is_none_or(|written| written.contains('*') || value.is(written))
            }
            // No address is long enough for a digest.
            Matching::Cidr { .. } => false,
            Matching::Set { .. } | Matching::Regex => true,
        },
    };
    key_fits && value_fits()
}

/// Whether a value may be one that the level matches. Exact for texts. The elements of networks,
/// sets and expressions are not compared: true if they may match any value of this kind.
fn may_be(level: &Level, value: &[u8]) -> bool {
    let Some(written) = level.value.as_deref() else {
        return true;
    };
    match level.matching {
        Matching::Text | Matching::Address => matches(written, value),
        Matching::Cidr { .. } => address::read(value).is_some(),
        Matching::Set { .. } | Matching::Regex => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::rules::compile::{self, SourceText, compile};

    const FILE: &str = "
domain: d
descriptors:
- { key: user, value: vip, rate_limit: { unit: day, requests_per_unit: 1 } }
- { key: user, rate_limit: { unit: day, requests_per_unit: 2, track_usage: true } }
- { key: token, value: 'Bearer *', rate_limit: { unit: day, requests_per_unit: 3 } }
- { key: token, rate_limit: { unit: day, requests_per_unit: 4 } }
- { key: path, value: '/a*', share_threshold: true, rate_limit: { unit: day, \
    requests_per_unit: 5 } }
- { key: path, rate_limit: { unit: day, requests_per_unit: 6 } }
- { key: free, rate_limit: { unlimited: true } }
- { key: tenant, table: t.csv, rate_limit: { unit: day, requests_per_unit: 7 } }
";

    /// A table with a row for a value that is so long that keys have its digest.
    fn table() -> String {
        format!(
            "value,requests_per_unit,unit\n{},8,hour\nshort,9,hour\n",
            "t".repeat(200)
        )
    }

    /// The key that a request counts with, and the name of its subject.
    fn counted(rules: &Arc<Rules>, key: &str, value: &[u8]) -> (Vec<u8>, String) {
        let plan = Plan::new(
            rules,
            &request_of(b"d", &[(key.as_bytes(), value)]),
            &Options::default(),
        );
        let key = plan
            .checks
            .iter()
            .map(|check| plan.checks.key(check).to_vec())
            .next()
            .expect("a check");
        let name = Subject::of_key(&key).to_string();
        (key, name)
    }

    #[test]
    fn a_name_leads_to_the_counter_that_it_came_from() {
        let file = |name: &str, text: &str| SourceText {
            name: name.to_owned(),
            text: text.into(),
        };
        let rules = Arc::new(
            compile(
                &[file("a.yaml", FILE), file("t.csv", &table())],
                &compile::Options::default(),
            )
            .unwrap_or_else(|problems| panic!("{problems:?}"))
            .rules,
        );
        let long = |begin: &str| format!("{begin}{}", "x".repeat(200)).into_bytes();
        let find = |name: &str, limit: Option<&str>| {
            Plan::of_subject(
                &rules,
                &name.parse().expect("a name"),
                limit,
                &Options::default(),
            )
        };
        let key_of = |plan: &Plan| {
            plan.checks
                .iter()
                .map(|check| plan.checks.key(check).to_vec())
                .next()
        };
        for (key, value, limit) in [
            ("user", b"vip".to_vec(), None),
            ("user", b"a|b\xff".to_vec(), None),
            ("user", long("vip"), None),
            ("path", b"/ab".to_vec(), None),
            ("path", long("/a"), None),
            ("path", long("/b"), None),
            ("token", long("Bearer "), Some("d.token_Bearer *")),
            ("token", long("Basic "), Some("d.token")),
            ("tenant", b"short".to_vec(), None),
            ("tenant", "t".repeat(200).into_bytes(), None),
            ("tenant", long("no row"), None),
        ] {
            let (counter, name) = counted(&rules, key, &value);
            let plan = find(&name, limit).unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert_eq!(key_of(&plan).as_deref(), Some(&*counter), "{name}");
            assert_eq!(
                plan.checks.is_tracked(),
                key == "user" && value != b"vip",
                "{name}"
            );
        }
        let (_, token) = counted(&rules, "token", &long("Bearer "));
        assert!(
            matches!(find(&token, None), Err(PlanError::Several(paths)) if paths == ["d.token_Bearer \
                *", "d.token"])
        );
        let digest = token.split_once('#').expect("a digest").1;
        assert!(matches!(
            find(&format!("d|free#{digest}"), None),
            Err(PlanError::Unlimited)
        ));
        for unknown in [
            format!("d|none#{digest}"),
            format!("e|user#{digest}"),
            "d|path~/b*".to_owned(),
            "d|user~vip".to_owned(),
        ] {
            assert!(
                matches!(find(&unknown, None), Err(PlanError::NoLimit)),
                "{unknown}"
            );
        }
    }
}
