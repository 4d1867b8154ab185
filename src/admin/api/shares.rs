//! `/api/v1/usage/top?by=share`: the subjects of a limit by the share of the current period that
//! they have used, largest first; and with `period=last` by what they have used of the last closed
//! period, by their records.
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

use super::query::Query;
use super::reply::{Failure, blocking};
use super::subject::{self, CountedSubject};
use super::usage::{CurrentUse, Top, TrackedLimit, USUAL_COUNT, UsageSubject, is_last};
use super::{Call, Parts};
use crate::core::time::Span;
use crate::core::verdict::StoreError;
use crate::limits::plan::key::Subject;

/// Subjects whose plans are made at once, which takes about a millisecond.
const SUBJECTS_PER_PART: usize = 256;

/// Counters that are read at a time: two full batches of checks with usage.
const READS_AT_A_TIME: usize = 64;

/// Records that are read at a time, each on a connection of its own.
const RECORDS_AT_A_TIME: usize = 16;

/// Subjects whose holds are read at a time, each on a connection of its own.
const HOLDS_AT_A_TIME: usize = 4;

/// The time to read counters in: less than a command waits for the answer.
const TIME: Duration = Duration::from_secs(4);

impl UsageSubject {
    /// The share in percent of the current or of the last period, and the used hits or units.
    fn share(&self) -> Option<(f64, f64)> {
        let (now, last) = (self.current.as_ref(), self.last_period.as_ref());
        let last = last.map(|last| (last.share_percent, last.used as f64));
        last.or_else(|| Some((now?.share_percent?, now?.used?.0)))
    }

    /// The order by share, then by used hits, then by name, the largest first.
    pub fn largest_first(&self, other: &Self) -> Ordering {
        let [own, others] = [self, other].map(|one| (one.share(), &one.subject));
        others.partial_cmp(&own).unwrap_or(Ordering::Equal)
    }
}

/// The subjects of a limit by share, or of its last closed period.
pub(super) async fn list(parts: Arc<Parts>, call: Call) -> Result<Top, Failure> {
    let (query, ends) = (&call.query, Instant::now() + TIME);
    let (above, page, is_last) = (above(query)?, query.page(USUAL_COUNT)?, is_last(query)?);
    if query.get("by").is_some_and(|by| by != "share") {
        return Err(Failure::bad_request("by: with period=last write share"));
    }
    let tracked = Arc::new(TrackedLimit::find(&parts, query).await?);
    let limit = tracked.limit();
    if limit.counts_in_flight() {
        let (path, origin) = (limit.path(), &limit.origin);
        return Err(Failure::bad_request(&format!(
            "by: {path} ({origin}) counts requests in flight and has no period to use a share of; \
             write hits"
        )));
    }
    let all = tracked.subjects().await?;
    let is_listed = |subject: &UsageSubject| {
        let share = subject.share().filter(|(_, used)| *used > 0.0);
        share.is_some_and(|(share, _)| above.is_none_or(|above| share > above))
    };
    let (mut subjects, mut examined, mut total, mut is_whole) = (Vec::new(), 0, 0, true);
    let mut chunks = all.chunks(SUBJECTS_PER_PART);
    while Instant::now() < ends
        && let Some(part) = chunks.next()
    {
        let counted = counted_of(&parts, &tracked, part.to_vec());
        let at_a_time = match is_last {
            true => RECORDS_AT_A_TIME,
            false => READS_AT_A_TIME,
        };
        let read = stream::iter(counted.await?).map(|subject| use_of(&parts, subject, is_last));
        let read = read.buffer_unordered(at_a_time).try_collect();
        let read: Vec<Option<UsageSubject>> = read.await?;
        let before = subjects.len();
        let mut found = read.iter().flatten();
        is_whole &= !is_last || found.all(|subject| is_kept(&parts, &tracked, subject));
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
    if limit.has_holds() && !is_last {
        subjects = with_holds(&parts, &tracked, subjects, ends).await;
    }
    let are_all = examined == all.len() && !tracked.may_have_more(all.len());
    Ok(Top {
        examined: Some(examined),
        complete: Some(are_all && is_whole),
        ..tracked.top("share", page, total, subjects)
    })
}

/// The plans of subjects that the limit still counts.
async fn counted_of(
    parts: &Arc<Parts>,
    tracked: &Arc<TrackedLimit>,
    part: Vec<Vec<u8>>,
) -> Result<Vec<CountedSubject>, Failure> {
    let (parts, tracked) = (Arc::clone(parts), Arc::clone(tracked));
    let counted = blocking(move || {
        let all = part.iter().map(|key| Subject::of_key(key));
        let counted = all.filter_map(|subject| tracked.counted(&parts, &subject));
        Ok(counted.collect())
    });
    counted.await
}

/// Whether the last period of a subject is known, and all of it was kept.
fn is_kept(parts: &Parts, tracked: &TrackedLimit, subject: &UsageSubject) -> bool {
    subject.last_period.as_ref().is_some_and(|last| {
        let period = last.end.duration_since(last.begin).as_micros() as u64;
        tracked.keeps(Span::from_micros(period))
            && (!parts.deployments.is_empty() || parts.started_at <= last.begin)
    })
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
            && let Some(found) = tracked.counted(parts, &subject)
            && let Some(current) = one.current.take()
        {
            one.current = Some(current.with_held(&found, parts).await);
        }
        one
    };
    let all = stream::iter(subjects).map(with_holds);
    all.buffered(HOLDS_AT_A_TIME).collect().await
}

/// The use of a subject, of the current period by its counter, or of the last one by its record.
/// `None` if its counter has the type of something else.
async fn use_of(
    parts: &Parts,
    subject: CountedSubject,
    is_last: bool,
) -> Result<Option<UsageSubject>, StoreError> {
    let (mut current, mut last_period) = (None, None);
    if is_last {
        let (now, record) = subject.record(parts).await?;
        let Some(record) = record else {
            return Ok(None);
        };
        let (_, amount) = subject.in_force(parts);
        last_period = amount.and_then(|amount| subject.last_period(&record, now, &amount));
    } else {
        let counter = subject.counter(parts).await;
        match counter.store_error() {
            Some(StoreError::Data(_)) => return Ok(None),
            Some(error) => return Err(error),
            None => current = Some(CurrentUse::new(&subject, &counter)),
        }
    }
    Ok(Some(UsageSubject {
        subject: subject.name(),
        current,
        last_period,
        entries: subject.entries,
        ..UsageSubject::default()
    }))
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
    use crate::limits::rules::limit::Units;

    fn share(subject: &str, percent: f64, used: u64) -> UsageSubject {
        UsageSubject {
            entries: Vec::new(),
            subject: subject.to_owned(),
            totals: None,
            current: Some(CurrentUse {
                used: Some(Units(used as f64)),
                amount: Units(100.0),
                share_percent: Some(percent),
                ..CurrentUse::default()
            }),
            last_period: None,
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
    fn above_is_a_percentage() {
        let read = |text: &str| above(&Query::new(&format!("above={text}")));
        assert_eq!(read("80"), Ok(Some(80.0)));
        assert_eq!(read("99.5%25"), Ok(Some(99.5)));
        assert_eq!(read(""), Ok(None));
        for wrong in ["-1", "101", "NaN", "x", "80%25%25"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
