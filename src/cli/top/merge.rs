//! Merges the rankings of several replicas: counts are added up, and so is what each may lack.

use std::collections::HashMap;

use crate::admin::entry::Entry;
use crate::admin::top::{Subject, Top};
use crate::subjects::Ranking;

/// Limit, domain, entries and exact name of a subject.
type Name<'t> = (&'t str, &'t str, &'t [Entry], Option<&'t str>);

/// The ranking of all replicas. Each was asked for `asked` subjects; the merged one has at most `count`.
///
/// A subject that a replica does not name had something there all the same: at most the error of its ranking or, where the ranking was cut, as much as
/// the last subject of it may have.
pub(super) fn merge(tops: &[&Top], by: Ranking, asked: usize, count: usize) -> Top {
    let absent = |top: &Top| {
        let last = top.subjects.last().filter(|_| top.subjects.len() >= asked);
        last.map_or(0, |last| last.weight(by)).saturating_add(top.error_at_most)
    };
    let all_absent = tops.iter().fold(0_u64, |sum, top| sum.saturating_add(absent(top)));
    let mut merged: HashMap<Name<'_>, Subject> = HashMap::new();
    for top in tops {
        let absent = absent(top);
        for subject in &top.subjects {
            let known =
                merged.entry((&subject.limit, &subject.domain, &subject.entries, subject.subject.as_deref())).or_insert_with(|| Subject {
                    hits: 0,
                    refusals: 0,
                    // So far it is absent everywhere.
                    error: all_absent,
                    ..subject.clone()
                });
            known.hits = known.hits.saturating_add(subject.hits);
            known.refusals = known.refusals.saturating_add(subject.refusals);
            known.error = known.error.saturating_sub(absent).saturating_add(subject.error);
        }
    }
    let mut subjects: Vec<_> = merged.into_values().collect();
    let name = |subject: &Subject| (subject.limit.clone(), subject.domain.clone(), subject.entries.clone(), subject.subject.clone());
    subjects.sort_by(|one, other| other.weight(by).cmp(&one.weight(by)).then_with(|| name(one).cmp(&name(other))));
    subjects.truncate(count);
    let sum = |value: fn(&Top) -> u64| tops.iter().fold(0_u64, |sum, top| sum.saturating_add(value(top)));
    Top {
        window: tops.first().map(|top| top.window.clone()).unwrap_or_default(),
        by: tops.first().map(|top| top.by.clone()).unwrap_or_default(),
        seconds: tops.iter().map(|top| top.seconds).max().unwrap_or(0),
        total: sum(|top| top.total),
        error_at_most: all_absent,
        subjects,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subject(user: &str, hits: u64, refusals: u64, error: u64) -> Subject {
        let entries = vec![Entry { key: "user".to_owned(), value: user.to_owned() }];
        Subject {
            limit: "d.user".to_owned(),
            domain: "d".to_owned(),
            subject: Some(format!("d|user={user}")),
            entries,
            hits,
            refusals,
            error,
        }
    }

    fn top(error_at_most: u64, subjects: Vec<Subject>) -> Top {
        let total = subjects.iter().map(|subject| subject.hits).sum();
        Top { window: "minute".to_owned(), by: "hits".to_owned(), seconds: 60, total, error_at_most, subjects }
    }

    #[test]
    fn counts_and_errors_are_added_up() {
        let one = top(2, vec![subject("ann", 10, 5, 1), subject("bob", 4, 0, 0)]);
        let other = top(3, vec![subject("bob", 9, 1, 3)]);
        let merged = merge(&[&one, &other], Ranking::Hits, 100, 10);
        assert_eq!(merged.subjects, [subject("bob", 13, 1, 3), subject("ann", 10, 5, 4)], "ann may have three in the other");
        assert_eq!((merged.total, merged.error_at_most, merged.seconds), (23, 5, 60));
        let cut = merge(&[&one, &other], Ranking::Refusals, 2, 1);
        assert_eq!(cut.subjects, [subject("ann", 10, 5, 4)]);
        assert_eq!(merge(&[], Ranking::Hits, 1, 1).subjects, []);
    }

    /// The exact counts of a replica, of which it shows a few.
    fn replica(exact: &[u64], count: usize) -> Top {
        let mut subjects: Vec<_> =
            exact.iter().enumerate().filter(|(_, hits)| **hits > 0).map(|(user, &hits)| subject(&user.to_string(), hits, 0, 0)).collect();
        subjects.sort_by_key(|subject| std::cmp::Reverse(subject.hits));
        subjects.truncate(count);
        top(0, subjects)
    }

    proptest! {
        /// Where replicas show only their first ones, the true counts of all are still within the stated errors.
        #[test]
        fn the_true_count_is_within_the_error(replicas in prop::collection::vec(prop::collection::vec(0..20_u64, 12), 1..5), asked in 1..14_usize) {
            let tops: Vec<_> = replicas.iter().map(|exact| replica(exact, asked)).collect();
            let merged = merge(&tops.iter().collect::<Vec<_>>(), Ranking::Hits, asked, 100);
            for user in 0..12 {
                let exact: u64 = replicas.iter().map(|exact| exact[user]).sum();
                match merged.subjects.iter().find(|subject| subject.entries[0].value == user.to_string()) {
                    Some(found) => prop_assert!(found.hits <= exact && exact <= found.hits + found.error, "{exact}, {found:?}"),
                    None => prop_assert!(exact <= merged.error_at_most),
                }
            }
        }
    }
}
