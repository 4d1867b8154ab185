//! `/api/v1/top`: the heaviest subjects of the last minute or hour, by hits or by refusals, in this process.

use serde::{Deserialize, Serialize};

use super::Parts;
use super::entry::Entry;
use super::query::Query;
use super::reply::Failure;
use crate::subjects::{self, Heaviest, Ranked, Ranking, Recent};

/// Subjects in an answer that asks for no number.
const USUAL_COUNT: usize = 20;

/// The names of windows and of rankings in calls, in answers and on the command line.
pub const WINDOWS: [(&str, Recent); 2] = [("minute", Recent::Minute), ("hour", Recent::Hour)];
/// See [`WINDOWS`].
pub const RANKINGS: [(&str, Ranking); 2] = [("hits", Ranking::Hits), ("refusals", Ranking::Refusals)];

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Top {
    /// `minute` or `hour`.
    pub window: String,
    /// `hits` or `refusals`.
    pub by: String,
    /// The time that was counted: a minute or an hour, up to a sixth longer, or the time since the start.
    pub seconds: u64,
    /// The hits (or refused hits, as it is ranked) of all subjects, also of those that a filter leaves out.
    pub total: u64,
    /// A subject that is not counted has at most so many; no number here lacks more.
    pub error_at_most: u64,
    /// The heaviest first.
    pub subjects: Vec<Subject>,
}

/// A subject: one counter of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The path of its limit; cut if it is long.
    pub limit: String,
    /// Its domain.
    pub domain: String,
    /// Keys and values; where values share a counter, the pattern.
    pub entries: Vec<Entry>,
    /// Its exact name, which calls take in place of domain and entries; `None` if it is too long to be kept.
    pub subject: Option<String>,
    /// Hits, also refused ones: at least as many.
    pub hits: u64,
    /// Refused hits: at least as many.
    pub refusals: u64,
    /// What may be missing of the number by which it is ranked, at most.
    pub error: u64,
}

impl Subject {
    /// The number by which it is ranked.
    #[must_use]
    pub const fn weight(&self, by: Ranking) -> u64 {
        match by {
            Ranking::Hits => self.hits,
            Ranking::Refusals => self.refusals,
        }
    }
}

pub(super) fn report(parts: &Parts, query: &Query) -> Result<Top, Failure> {
    let (window, recent) = named(query, "window", WINDOWS)?;
    let (by, ranking) = named(query, "by", RANKINGS)?;
    let text = |name| query.get(name).map(str::to_owned);
    let asked =
        subjects::Query { window: recent, by: ranking, count: query.count(USUAL_COUNT)?, domain: text("domain"), limit: text("limit") };
    let Heaviest { seconds, total, error_at_most, subjects, .. } = parts.subjects.heaviest(&asked);
    let subjects = subjects.into_iter().map(Subject::from).collect();
    Ok(Top { window: window.to_owned(), by: by.to_owned(), seconds, total, error_at_most, subjects })
}

impl From<Ranked> for Subject {
    fn from(Ranked { subject, hits, refusals, error }: Ranked) -> Self {
        let subjects::Subject { limit, domain, entries, name } = subject;
        Self { limit, domain, entries: entries.into_iter().map(Entry::from).collect(), subject: name, hits, refusals, error }
    }
}

/// The value of a parameter by its name; the first without the parameter.
fn named<T: Copy>(query: &Query, parameter: &str, names: [(&'static str, T); 2]) -> Result<(&'static str, T), Failure> {
    let [first, second] = names;
    match query.get(parameter) {
        None => Ok(first),
        Some(text) if text == first.0 => Ok(first),
        Some(text) if text == second.0 => Ok(second),
        Some(_) => Err(Failure::bad_request(&format!("{parameter}: write {} or {}", first.0, second.0))),
    }
}
