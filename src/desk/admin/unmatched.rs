//! `/api/v1/unmatched`: the last descriptors that no limit matched, by domain. They are samples.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::entry::Entry;
use super::query::Query;
use super::reply::Failure;
use super::{Parts, known};
use crate::observe::subjects::{UnmatchedDescriptor, UnmatchedDomain};

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmatched {
    /// The domain that was seen last comes first.
    pub domains: Vec<Domain>,
}

/// A domain with such descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// Its name; cut if it is long.
    pub domain: String,
    /// Whether the limits in force have it.
    pub known: bool,
    /// The newest first.
    pub descriptors: Vec<Descriptor>,
}

/// A descriptor that no limit matched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// Keys and values. Long ones are cut, and `…` stands for what is left out.
    pub entries: Vec<Entry>,
    /// The exact name of its subject, which calls take in place of domain and entries; `None` if
    /// something was cut.
    pub subject: Option<String>,
    /// When it was seen last.
    pub seen_at: Timestamp,
}

pub(super) fn report(parts: &Parts, query: &Query) -> Result<Unmatched, Failure> {
    let descriptor = |UnmatchedDescriptor {
                          entries,
                          name,
                          seen_at,
                      }: UnmatchedDescriptor| Descriptor {
        entries: entries.into_iter().map(Entry::from).collect(),
        subject: name,
        seen_at: Timestamp::try_from(seen_at).unwrap_or_default(),
    };
    let domain = |UnmatchedDomain {
                      domain,
                      is_known,
                      descriptors,
                  }: UnmatchedDomain| Domain {
        domain,
        known: is_known,
        descriptors: descriptors.into_iter().map(descriptor).collect(),
    };
    let domains: Vec<_> = parts
        .subjects
        .unmatched(query.get("domain"))
        .into_iter()
        .map(domain)
        .collect();
    if domains.is_empty() {
        known::domain(&known::rules(parts), query.get("domain"))?;
    }
    Ok(Unmatched { domains })
}
