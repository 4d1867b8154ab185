//! `/api/v1/top`: the heaviest subjects of the last minute or hour, by hits or by refusals, in this
//! process.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::query::Query;
use super::reply::Failure;
use super::{Parts, names, subject};
use crate::limits::rules::limit::Limit;
use crate::observe::subjects::{self, NO_LIMIT, REQUEST_LIMIT, Ranked, Ranking, Recent};

/// Number of subjects in an answer without `count`.
const USUAL_COUNT: usize = 20;

/// The names of windows and of rankings in calls, in answers and on the command line.
pub const WINDOWS: [(&str, Recent); 2] = [("minute", Recent::Minute), ("hour", Recent::Hour)];
/// See [`WINDOWS`].
pub const RANKINGS: [(&str, Ranking); 2] =
    [("hits", Ranking::Hits), ("refused", Ranking::Refusals)];

/// Response of `/api/v1/top`.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Top {
    /// `minute` or `hour`.
    #[schemars(extend("enum" = ["minute", "hour"]))]
    pub window: String,
    /// `hits` or `refused`.
    #[schemars(extend("enum" = ["hits", "refused"]))]
    pub by: String,
    /// Counted time: a minute or an hour, up to a sixth longer, or the time since start.
    pub seconds: u64,
    /// Hits (or refused hits, see `by`) of all subjects, including those that a filter leaves out.
    pub total: u64,
    /// Maximum hits, or refused hits (see `by`), of a subject that is not counted.
    pub error_at_most: u64,
    /// Maximum hits of a subject that is not in the list.
    pub hits_at_most: u64,
    /// Maximum refused hits of a subject that is not in the list.
    pub refused_at_most: u64,
    /// Subjects, heaviest first.
    pub subjects: Vec<TopSubject>,
}

/// A subject: one counter of a limit. The numbers are never too high, and too low by at most their
/// errors.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "Subject")]
pub struct TopSubject {
    #[serde(flatten)]
    pub ranked: Ranked,
    /// Kind of the override that decides the subject now.
    #[serde(default, rename = "override", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["block", "exempt", "raise", null]))]
    pub overridden: Option<String>,
}

impl TopSubject {
    /// The number by which it is ranked.
    pub const fn weight(&self, by: Ranking) -> u64 {
        match by {
            Ranking::Hits => self.ranked.hits,
            Ranking::Refusals => self.ranked.refused,
        }
    }
}

pub(super) fn report(parts: &Parts, query: &Query) -> Result<Top, Failure> {
    let (window, recent) = named(query, "window", WINDOWS)?;
    let (by, ranking) = named(query, "by", RANKINGS)?;
    let (domain, limit) = (query.get("domain"), query.get("limit"));
    let mut asked = subjects::Query {
        window: recent,
        by: ranking,
        count: query.count(USUAL_COUNT)?,
        domain: domain.map(str::to_owned),
        limit: limit.map(str::to_owned),
        subjects: query.all("subject").map(str::to_owned).collect(),
    };
    let mut found = parts.subjects.heaviest(&asked);
    // A counted name exists, also after its limit has been removed.
    if found.subjects.is_empty() && asked.subjects.is_empty() {
        let rules = names::rules(parts);
        names::domain(&rules, domain)?;
        if let Some(limit) = limit.filter(|limit| ![NO_LIMIT, REQUEST_LIMIT].contains(limit)) {
            let is_it = |one: &&Limit| names::is_named(one, limit);
            let path = names::limits(&rules, domain).find(is_it).map(Limit::path);
            asked.limit = Some(path.ok_or_else(|| names::no_limit_named(&rules, domain, limit))?);
            found = parts.subjects.heaviest(&asked);
        }
    }
    let overrides = subject::overrides_of(parts);
    let subject = |ranked: Ranked| {
        let overridden = ranked.subject.name.as_deref().and_then(&overrides);
        TopSubject {
            overridden: overridden.map(|(kind, _)| kind),
            ranked,
        }
    };
    Ok(Top {
        window: window.to_owned(),
        by: by.to_owned(),
        seconds: found.seconds,
        total: found.total,
        error_at_most: found.error_at_most,
        hits_at_most: found.hits_at_most,
        refused_at_most: found.refused_at_most,
        subjects: found.subjects.into_iter().map(subject).collect(),
    })
}

/// The value of a parameter by its name; the first without the parameter.
fn named<T: Copy>(
    query: &Query,
    parameter: &str,
    names: [(&'static str, T); 2],
) -> Result<(&'static str, T), Failure> {
    let text = query.get(parameter);
    let is_it = |(name, _): &(&str, T)| text.is_none_or(|text| text == *name);
    let [(first, _), (second, _)] = names;
    let wrong = || Failure::bad_request(&format!("{parameter}: write {first} or {second}"));
    names.into_iter().find(is_it).ok_or_else(wrong)
}
