//! `/api/v1/usage/top?by=share`: the subjects of a limit by the share of the current period that
//! they have used, largest first.
//!
//! The shares are of the counters, read as `weir explain` reads them: one read per subject. The
//! limit's index has the subjects. Another thread makes the plans of a part of them, and few
//! counters are read at a time, in batches as small as those of requests: requests wait for
//! neither. Redis needs 1 µs for a counter of a `fixed_window`, 45 µs for a part of the index.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;

use super::query::{Query, next};
use super::reply::{Failure, blocking};
use super::subject::{self, CountedSubject};
use super::usage::{CurrentUse, Top, TrackedLimit, USUAL_COUNT, UsageSubject, deadline};
use super::{Call, Parts};
use crate::core::verdict::StoreError;
use crate::limits::plan::key::Subject;

/// Subjects whose plans are made at once, which takes about a millisecond.
const SUBJECTS_PER_PART: usize = 256;

/// Counters that are read at a time: two full batches of checks with usage.
const READS_AT_A_TIME: usize = 64;

/// Subjects whose holds are read at a time, each on a connection of its own.
const HOLDS_AT_A_TIME: usize = 4;

/// The time to read counters in: less than a command waits for the answer.
const TIME: Duration = Duration::from_secs(4);

impl UsageSubject {
    /// The order by share, then by used hits, then by name, the largest first.
    pub fn largest_first(&self, other: &Self) -> Ordering {
        let used = |one: &Self| {
            one.current
                .as_ref()
                .map(|now| (now.share_percent, now.used))
        };
        let key = |one| (used(one), &one.subject);
        key(other)
            .partial_cmp(&key(self))
            .unwrap_or(Ordering::Equal)
    }
}

/// The subjects of a limit by share.
pub(super) async fn list(parts: Arc<Parts>, call: Call) -> Result<Top, Failure> {
    let (query, ends) = (&call.query, Instant::now() + TIME);
    let (above, page) = (above(query)?, query.page(USUAL_COUNT)?);
    let tracked = Arc::new(TrackedLimit::find(&parts, query).await?);
    let limit = tracked.limit();
    if limit.counts_in_flight() {
        return Err(Failure::bad_request(&format!(
            "by: {} ({}) counts requests in flight and has no period to use a share of; write hits",
            limit.path(),
            limit.origin
        )));
    }
    let all = (parts.usage)
        .subjects(&tracked.tracking, tracked.is_per_second, deadline())
        .await?;
    let is_listed = |one: &UsageSubject| {
        let current = one.current.as_ref().filter(|now| now.used > Some(0));
        current.is_some_and(|now| above.is_none_or(|above| now.share_percent > Some(above)))
    };
    let (mut subjects, mut examined, mut total) = (Vec::new(), 0, 0);
    let mut chunks = all.chunks(SUBJECTS_PER_PART);
    while Instant::now() < ends
        && let Some(part) = chunks.next()
    {
        let own = (Arc::clone(&parts), Arc::clone(&tracked), part.to_vec());
        let counted = blocking(move || {
            let (parts, tracked, part) = own;
            let counted = part
                .iter()
                .filter_map(|key| counted(&parts, &tracked, &Subject::of_key(key)));
            Ok(counted.collect::<Vec<_>>())
        });
        let read: Vec<Option<UsageSubject>> = stream::iter(counted.await?)
            .map(|subject| share_of(&parts, subject))
            .buffer_unordered(READS_AT_A_TIME)
            .try_collect()
            .await?;
        let before = subjects.len();
        subjects.extend(read.into_iter().flatten().filter(is_listed));
        (examined, total) = (examined + part.len(), total + subjects.len() - before);
        subjects.sort_by(UsageSubject::largest_first);
        subjects.truncate(page.offset.saturating_add(page.count));
    }
    subjects.drain(..page.offset.min(subjects.len()));
    let overrides = subject::overrides_of(&parts);
    for one in &mut subjects {
        one.overridden = overrides(&one.subject).map(|(kind, _)| kind);
    }
    if limit.has_holds() {
        subjects = with_holds(&parts, &tracked, subjects, ends).await;
    }
    let is_full = all.len() >= tracked.tracking.settings.subjects as usize
        || parts.usage.has_dropped(tracked.is_per_second);
    Ok(Top {
        limit: limit.path(),
        trial: tracked.is_trial,
        domain: limit.domain.to_string(),
        by: "share".to_owned(),
        total,
        examined: Some(examined),
        complete: Some(examined == all.len() && !is_full),
        subjects,
        next: next(page, total),
    })
}

/// The plan of a subject, if the limit still counts it: another one may since a reload.
fn counted(parts: &Parts, tracked: &TrackedLimit, subject: &Subject) -> Option<CountedSubject> {
    let limit = tracked.limit().path();
    let found = subject::counted(parts, subject, Some(&limit), tracked.is_trial).ok()?;
    let tracking = found.checks()[found.check].tracking()?;
    let is_same = tracking.is_same_limit(&tracked.tracking);
    is_same.then_some(found)
}

/// These subjects with the hits that requests hold, as far as they can be read until `ends`.
async fn with_holds(
    parts: &Parts,
    tracked: &TrackedLimit,
    subjects: Vec<UsageSubject>,
    ends: Instant,
) -> Vec<UsageSubject> {
    let with_holds = async |mut one: UsageSubject| {
        if Instant::now() < ends
            && let Ok(subject) = one.subject.parse()
            && let Some(found) = counted(parts, tracked, &subject)
            && let Some(current) = &mut one.current
        {
            let held = found.held(parts).await;
            current.held = held.map(|hits| found.scale().units_rounded_up(hits));
        }
        one
    };
    let all = stream::iter(subjects).map(with_holds);
    all.buffered(HOLDS_AT_A_TIME).collect().await
}

/// The share of a subject; `None` if its counter has the type of something else.
async fn share_of(
    parts: &Parts,
    subject: CountedSubject,
) -> Result<Option<UsageSubject>, StoreError> {
    let counter = subject.counter(parts).await;
    match counter.store_error() {
        Some(StoreError::Data(_)) => Ok(None),
        Some(error) => Err(error),
        None => Ok(Some(UsageSubject {
            subject: subject.name(),
            totals: None,
            current: Some(CurrentUse::new(&subject, &counter)),
            entries: subject.entries,
            overridden: None,
        })),
    }
}

/// `above`: the share in percent that listed subjects have exceeded.
fn above(query: &Query) -> Result<Option<f64>, Failure> {
    let Some(text) = query.get("above") else {
        return Ok(None);
    };
    let percent = text.strip_suffix('%').unwrap_or(text).parse().ok();
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
    let wrong = || Failure::bad_request("above: write a percentage from 0 to 100, such as 80");
    percent.map(Some).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(subject: &str, percent: f64, used: u64) -> UsageSubject {
        UsageSubject {
            entries: Vec::new(),
            subject: subject.to_owned(),
            totals: None,
            current: Some(CurrentUse {
                used: Some(used),
                amount: 100,
                share_percent: Some(percent),
                left: None,
                held: None,
                resets_in_seconds: None,
                timezone: None,
            }),
            overridden: None,
        }
    }

    #[test]
    fn the_largest_share_is_first_whatever_the_amount() {
        let mut all = [
            share("few", 90.0, 9),
            share("a", 80.0, 80),
            share("many", 89.9, 900),
            share("b", 80.0, 80),
            share("c", 80.0, 90),
        ];
        all.sort_by(UsageSubject::largest_first);
        let names = all.each_ref().map(|one| &*one.subject);
        assert_eq!(names, ["few", "many", "c", "b", "a"]);
    }

    #[test]
    fn a_threshold_is_a_percentage() {
        let read = |text: &str| above(&Query::new(&format!("above={text}")));
        assert_eq!(read("80"), Ok(Some(80.0)));
        assert_eq!(read("99.5%25"), Ok(Some(99.5)));
        assert_eq!(read(""), Ok(None));
        for wrong in ["-1", "101", "NaN", "x", "80%25%25"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
