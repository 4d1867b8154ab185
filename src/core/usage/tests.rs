//! Tests of the pure step and of the views of a record. `tests/it/operators/usage/vectors.rs`
//! compares the step with both stores.

use proptest::prelude::*;

use super::*;
use crate::core::time::Span;

const SECOND: u64 = 1_000_000;

fn settings(interval_secs: u64, buckets: u32) -> Settings {
    Settings {
        interval: Span::from_secs(interval_secs),
        buckets,
        ..Settings::default()
    }
}

fn requested(hits: u64) -> Hits {
    Hits {
        asked: hits,
        ..Hits::default()
    }
}

/// A record of one hit at each of these seconds.
fn record(settings: &Settings, seconds: &[u64]) -> Record {
    let step = |record, &second: &u64| {
        Some(Record::step(
            record,
            settings,
            Micros(second * SECOND),
            requested(1),
        ))
    };
    seconds.iter().fold(None, step).expect("at least one hit")
}

#[test]
fn a_count_says_between_which_numbers_it_is() {
    let settings = settings(10, 6);
    let known = record(&settings, &[100, 101, 110, 125, 131]);
    let count = |now: u64, over: u64| {
        let count = known.count(Micros(now * SECOND), Span::from_secs(over))?;
        Some((
            count.at_least.asked,
            count.hits.asked,
            count.from.0 / SECOND,
        ))
    };
    assert_eq!(
        count(135, 20),
        Some((2, 3, 110)),
        "the bucket from 110 to 120 begins before the interval"
    );
    assert_eq!(count(140, 30), Some((3, 3, 110)), "whole buckets");
    assert_eq!(
        count(135, 3_600),
        Some((5, 5, 80)),
        "all that there is: the subject was not known before"
    );
    assert_eq!(count(175, 60), None, "the ring does not go back as far");
    assert_eq!(
        count(175, 50),
        Some((1, 2, 120)),
        "the ring goes back far enough"
    );
}

#[test]
fn buckets_after_the_last_hits_are_known_to_be_empty() {
    let ten = settings(10, 6);
    let count = |known: &Record, now: u64, over: u64| {
        let count = known.count(Micros(now * SECOND), Span::from_secs(over))?;
        Some((count.at_least.asked, count.hits.asked))
    };
    // After a pause as long as the ring, and longer ones.
    for back in [160, 165, 1_000, 100_000] {
        let known = record(&ten, &[90, 100, back]);
        for over in [1, 9, 20, 25] {
            let hits = count(&known, back, over).map(|(_, hits)| hits);
            assert_eq!(hits, Some(1), "{back} {over}");
        }
        let later = record(&ten, &[90, 100, back, back + 10, back + 35]);
        assert_eq!(
            count(&later, back + 35, 50).map(|(_, hits)| hits),
            Some(3),
            "{back}"
        );
    }
    let known = record(&ten, &[90, 100]);
    assert_eq!(
        count(&known, 1_000, 800),
        Some((0, 0)),
        "longer than the ring, and still away"
    );
    assert_eq!(count(&known, 140, 60), Some((2, 2)));
    assert_eq!(
        count(&known, 165, 70),
        None,
        "a hit is in a bucket that is gone"
    );
    // A changed ring: hits before it may be anywhere until the end of their bucket.
    let changed = |other: &Settings, now: u64| {
        Record::step(
            Some(known.clone()),
            other,
            Micros(now * SECOND),
            requested(1),
        )
    };
    for (other, now, over, expected) in [
        (settings(5, 12), 109, 5, None),
        (settings(5, 12), 121, 5, Some((1, 1))),
        (settings(5, 12), 121, 15, None),
        (settings(60, 60), 400, 100, Some((1, 1))),
        (settings(60, 60), 400, 300, None),
        (settings(60, 60), 40_000, 3_000, Some((1, 1))),
    ] {
        assert_eq!(
            count(&changed(&other, now), now, over),
            expected,
            "{now} {over}"
        );
    }
}

#[test]
fn a_subject_that_came_once_is_kept_for_the_ring_and_no_longer() {
    let six = settings(10, 6);
    let settings = Settings {
        expiry: Span::from_secs(86_400),
        ..settings(60, 60)
    };
    let keep = |seconds: &[u64]| record(&settings, seconds).keep_for(&settings).micros() / SECOND;
    assert_eq!(keep(&[1_000]), 3_600);
    let short = Settings {
        expiry: Span::from_secs(600),
        ..six
    };
    assert_eq!(
        record(&short, &[1_000]).keep_for(&short),
        Span::from_secs(600),
        "not longer than the limit says"
    );
    assert_eq!(keep(&[1_000, 1_000 + 7_200]), 7_200);
    assert_eq!(keep(&[1_000, 1_000 + 7_200, 1_000_000]), 86_400);
}

#[test]
fn numbers_end_at_their_bounds() {
    let all = |number| Hits {
        asked: number,
        refused: number,
        given_back: number,
    };
    let settings = settings(10, 4);
    let full = Record::step(None, &settings, Micros(0), all(MOST_IN_TOTAL));
    let full = Record::step(Some(full), &settings, Micros(0), all(MOST_IN_TOTAL));
    assert_eq!(
        (full.total, full.bucket(0)),
        (all(MOST_IN_TOTAL), all(MOST_IN_BUCKET))
    );
    let count = |record: &Record| {
        record
            .count(Micros(0), Span::from_secs(10))
            .map(|count| (count.hits, count.is_cut))
    };
    assert_eq!(
        count(&full),
        Some((all(MOST_IN_BUCKET), true)),
        "there were more"
    );
    let nearly = Record::step(None, &settings, Micros(0), all(MOST_IN_BUCKET - 1));
    assert_eq!(count(&nearly), Some((all(MOST_IN_BUCKET - 1), false)));
    assert_eq!(
        Hits::of_check(i64::MIN, true),
        Hits {
            given_back: MOST_IN_TOTAL,
            ..Hits::default()
        }
    );
    assert_eq!(
        Hits::of_check(i64::MAX, false),
        Hits {
            asked: MOST_IN_TOTAL,
            refused: MOST_IN_TOTAL,
            given_back: 0
        }
    );
    assert!(Hits::of_check(0, true).is_none() && Hits::of_check(0, false).is_none());
}

#[test]
fn what_is_no_record_is_not_read() {
    let mut stored = vec![VERSION];
    stored.extend(
        [0, 60 * SECOND, 60, 5, 7, 3, 1, 0, 300, 400, 2, 1, 0]
            .iter()
            .flat_map(|&number| (number as f64).to_le_bytes()),
    );
    stored.extend([9, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let read = Record::from_stored(&stored).expect("a record");
    assert_eq!(
        (read.total, read.bucket(7)),
        (
            Hits {
                asked: 3,
                refused: 1,
                given_back: 0
            },
            Hits {
                asked: 2,
                refused: 1,
                given_back: 0
            }
        )
    );
    assert_eq!(
        read.bucket(5),
        Hits {
            asked: (1 << 40) + 9,
            refused: 4,
            given_back: 0
        }
    );
    for length in 0..HEADER_BYTES {
        assert_eq!(Record::from_stored(&stored[..length]), None);
    }
    for (index, byte) in [(0, 2), (1 + 8 * 3 + 7, 0xc0), (1 + 8 * 4, 1)] {
        let mut broken = stored.clone();
        broken[index] = byte;
        assert_eq!(Record::from_stored(&broken), None, "{index}");
    }
}

proptest! {
    #![proptest_config(crate::testing::property(256))]

    /// For any order and times, totals are sums. While the clock does not go back, a bucket has
    /// exactly the hits of its interval.
    #[test]
    fn buckets_have_the_hits_of_their_intervals(
        steps in prop::collection::vec((0u64..400, 0u64..5, any::<bool>()), 1..60),
        interval in 1u64..20,
        buckets in 1u32..12,
    ) {
        let settings = settings(interval, buckets);
        let (mut record, mut now, mut all) = (None, 1_000, Vec::new());
        for (gap, hits, refused) in steps {
            now += gap / 40 * (gap % 7);
            let hits = Hits {
                asked: hits,
                refused: if refused { hits } else { 0 },
                given_back: 0,
            };
            record = Some(Record::step(record, &settings, Micros(now * SECOND), hits));
            all.push((now, hits));
        }
        let record = record.expect("at least one step");
        let sum = |from: u64, to: u64| {
            let own = all.iter().filter(|(at, _)| (from..to).contains(at));
            own.fold(Hits::default(), |sum, (_, hits)| sum.plus(*hits, u64::MAX))
        };
        prop_assert_eq!(record.total, sum(0, u64::MAX));
        let series = record.series(Micros(now * SECOND), Span::from_secs(10_000));
        prop_assert_eq!(series.buckets.len(), buckets as usize);
        for (begin, hits) in (series.begin.0 / SECOND..)
            .step_by(interval as usize)
            .zip(&series.buckets)
        {
            prop_assert_eq!(*hits, sum(begin, begin + interval), "{}", begin);
        }
    }
}
