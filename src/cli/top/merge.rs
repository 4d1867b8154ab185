//! Merges the rankings of several replicas: counts and their errors are added up.
//!
//! The command merges, because replicas do not know each other.

use std::collections::HashMap;

use crate::admin::api::top::{Top, TopSubject};
use crate::observe::subjects::{LimitedSubject, Ranked, Ranking};

/// Adds the counts of a replica to a subject that it was missing from so far.
fn add(known: &mut Ranked, subject: &Ranked, top: &Top) {
    let add = |sum: &mut u64, unknown, found| {
        *sum = sum.saturating_sub(unknown).saturating_add(found);
    };
    add(&mut known.hits, 0, subject.hits);
    add(&mut known.refused, 0, subject.refused);
    add(&mut known.hits_error, top.hits_at_most, subject.hits_error);
    let unknown = top.refused_at_most;
    add(&mut known.refused_error, unknown, subject.refused_error);
}

/// The ranking of all replicas, with at most `count` subjects. A subject that a replica does not
/// name has at most the number there that the replica reports for subjects out of its list.
pub(super) fn merge(tops: &[Top], by: Ranking, count: usize) -> Top {
    let sum = |value: fn(&Top) -> u64| tops.iter().map(value).fold(0, u64::saturating_add);
    let mut hits_at_most = sum(|top| top.hits_at_most);
    let mut refused_at_most = sum(|top| top.refused_at_most);
    let mut merged: HashMap<&LimitedSubject, TopSubject> = HashMap::new();
    for top in tops {
        for one in &top.subjects {
            let subject = &one.ranked.subject;
            // So far it is absent everywhere.
            let absent = || TopSubject {
                ranked: Ranked {
                    subject: subject.clone(),
                    hits_error: hits_at_most,
                    refused_error: refused_at_most,
                    ..Ranked::default()
                },
                overridden: one.overridden.clone(),
            };
            let known = merged.entry(subject).or_insert_with(absent);
            add(&mut known.ranked, &one.ranked, top);
        }
    }
    let mut subjects: Vec<_> = merged.into_values().collect();
    sort(&mut subjects, by);
    let error_at_most = match by {
        Ranking::Hits => hits_at_most,
        Ranking::Refusals => refused_at_most,
    };
    for TopSubject { ranked: cut, .. } in subjects.drain(count.min(subjects.len())..) {
        hits_at_most = hits_at_most.max(cut.hits.saturating_add(cut.hits_error));
        refused_at_most = refused_at_most.max(cut.refused.saturating_add(cut.refused_error));
    }
    let first = |text: fn(&Top) -> &String| tops.first().map(text).cloned().unwrap_or_default();
    Top {
        window: first(|top| &top.window),
        by: first(|top| &top.by),
        seconds: tops.iter().map(|top| top.seconds).max().unwrap_or(0),
        total: sum(|top| top.total),
        error_at_most,
        hits_at_most,
        refused_at_most,
        subjects,
    }
}

/// Sorts the heaviest first.
fn sort(subjects: &mut [TopSubject], by: Ranking) {
    subjects.sort_by(|one, other| {
        let heavier = other.weight(by).cmp(&one.weight(by));
        heavier.then_with(|| one.ranked.subject.cmp(&other.ranked.subject))
    });
}

/// Takes over the numbers that all replicas have of named subjects, where these are less unsure.
pub(super) fn refine(top: &mut Top, named: &[Top], by: Ranking) {
    let error = |ranked: &Ranked| ranked.hits_error.saturating_add(ranked.refused_error);
    let named = merge(named, by, usize::MAX).subjects;
    for TopSubject { ranked, .. } in &mut top.subjects {
        let better = named.iter().map(|named| &named.ranked);
        let mut better = better.filter(|named| named.subject == ranked.subject);
        if let Some(better) = better.next().filter(|named| error(named) < error(ranked)) {
            *ranked = better.clone();
        }
    }
    sort(&mut top.subjects, by);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::plan::key::EntryText;

    fn subject(
        user: &str,
        [hits, hits_error]: [u64; 2],
        [refused, refused_error]: [u64; 2],
    ) -> TopSubject {
        let entries = vec![EntryText {
            key: "user".to_owned(),
            value: user.to_owned(),
        }];
        let subject = LimitedSubject {
            limit: "d.user".to_owned(),
            domain: "d".to_owned(),
            entries,
            name: Some(format!("d|user={user}")),
        };
        TopSubject {
            ranked: Ranked {
                subject,
                hits,
                hits_error,
                refused,
                refused_error,
            },
            overridden: None,
        }
    }

    fn top([hits_at_most, refused_at_most]: [u64; 2], subjects: Vec<TopSubject>) -> Top {
        let total = subjects.iter().map(|subject| subject.ranked.hits).sum();
        let (window, by) = ("minute".to_owned(), "hits".to_owned());
        Top {
            window,
            by,
            seconds: 60,
            total,
            error_at_most: hits_at_most,
            hits_at_most,
            refused_at_most,
            subjects,
        }
    }

    #[test]
    fn counts_and_errors_are_added_up() {
        let one = top(
            [2, 1],
            vec![
                subject("ann", [10, 1], [5, 0]),
                subject("bob", [4, 0], [0, 0]),
            ],
        );
        let other = top([3, 2], vec![subject("bob", [9, 3], [1, 1])]);
        let merged = merge(&[one.clone(), other.clone()], Ranking::Hits, 10);
        let ann = subject("ann", [10, 4], [5, 2]);
        assert_eq!(
            merged.subjects,
            [subject("bob", [13, 3], [1, 1]), ann.clone()],
            "ann may have three in the other, two of them refused"
        );
        assert_eq!(
            (
                merged.total,
                merged.hits_at_most,
                merged.refused_at_most,
                merged.seconds
            ),
            (23, 5, 3, 60)
        );
        let cut = merge(&[one.clone(), other.clone()], Ranking::Refusals, 1);
        assert_eq!(
            (cut.subjects, cut.hits_at_most, cut.refused_at_most),
            (vec![ann], 16, 3)
        );
        assert_eq!(merge(&[], Ranking::Hits, 1).subjects, []);
    }

    /// The exact counts of a replica, of which it shows a few.
    fn replica(exact: &[(u64, u64)], by: Ranking, count: usize) -> Top {
        let exact_subject = |(user, &(passed, refused)): (usize, &(u64, u64))| {
            subject(&user.to_string(), [passed + refused, 0], [refused, 0])
        };
        let mut subjects: Vec<_> = exact.iter().enumerate().map(exact_subject).collect();
        subjects.sort_by_key(|subject| std::cmp::Reverse(subject.weight(by)));
        let cut = subjects.split_off(count.min(subjects.len()));
        let most = |value: fn(&TopSubject) -> u64| cut.iter().map(value).max().unwrap_or(0);
        top(
            [
                most(|subject| subject.ranked.hits),
                most(|subject| subject.ranked.refused),
            ],
            subjects,
        )
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        /// Where replicas show only their first ones, the true counts of all are still within the
        /// stated errors.
        #[test]
        fn the_true_counts_are_within_the_errors(
            replicas in
                prop::collection::vec(prop::collection::vec((0..20_u64, 0..20_u64), 12), 1..5),
            asked in 1..14_usize,
            shown in 1..14_usize,
            by_hits: bool,
        ) {
            let by = if by_hits {
                Ranking::Hits
            } else {
                Ranking::Refusals
            };
            let tops: Vec<_> = replicas
                .iter()
                .map(|exact| replica(exact, by, asked))
                .collect();
            let mut merged = merge(&tops, by, shown);
            assert_within(&merged, &replicas)?;
            // All replicas are asked for the subjects of the list.
            let mut named: Vec<_> = replicas.iter().map(|exact| replica(exact, by, 12)).collect();
            let listed: Vec<_> = merged.subjects.iter().map(|one| one.ranked.subject.clone()).collect();
            for top in &mut named {
                top.subjects.retain(|one| listed.contains(&one.ranked.subject));
            }
            refine(&mut merged, &named, by);
            assert_within(&merged, &replicas)?;
            let mut ranked = merged.subjects.iter().map(|one| &one.ranked);
            prop_assert!(ranked.all(|one| one.hits_error + one.refused_error == 0));
            prop_assert!(merged.subjects.is_sorted_by(|one, other| one.weight(by) >= other.weight(by)));
        }
    }

    /// The true counts of all users are within the errors.
    fn assert_within(merged: &Top, replicas: &[Vec<(u64, u64)>]) -> Result<(), TestCaseError> {
        for user in 0..12 {
            let refused: u64 = replicas.iter().map(|exact| exact[user].1).sum();
            let hits: u64 = refused + replicas.iter().map(|exact| exact[user].0).sum::<u64>();
            match merged
                .subjects
                .iter()
                .map(|subject| &subject.ranked)
                .find(|ranked| ranked.subject.entries[0].value == user.to_string())
            {
                Some(found) => {
                    prop_assert!(
                        found.hits <= hits && hits <= found.hits + found.hits_error,
                        "{hits}, {found:?}"
                    );
                    prop_assert!(
                        found.refused <= refused && refused <= found.refused + found.refused_error,
                        "{refused}, {found:?}"
                    );
                    prop_assert!(found.refused <= found.hits);
                }
                None => {
                    prop_assert!(hits <= merged.hits_at_most && refused <= merged.refused_at_most);
                }
            }
        }
        Ok(())
    }
}
