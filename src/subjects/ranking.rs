//! Rankings: the heaviest subjects of the panes of a window, and how wrong each number may be.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::sketch::Counter;
use super::windows::View;
use super::{Ranking, Recent, Subject, text};

/// What to rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The time.
    pub window: Recent,
    /// The order.
    pub by: Ranking,
    /// The number of subjects at most.
    pub count: usize,
    /// Only subjects of this domain.
    pub domain: Option<String>,
    /// Only subjects of the limit with this path.
    pub limit: Option<String>,
}

/// The heaviest subjects of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heaviest {
    /// The time that was counted, in seconds.
    pub seconds: u64,
    /// The hits of all subjects, or all refused hits, as it is ranked; with any filter the same.
    pub total: u64,
    /// A subject that is not counted has no more of what it is ranked by, and the number of one that is counted lacks no more.
    pub error_at_most: u64,
    /// Whether there are more subjects than were asked for.
    pub is_cut: bool,
    /// The heaviest first.
    pub subjects: Vec<Ranked>,
}

/// A subject and its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// Who.
    pub subject: Subject,
    /// Hits. At least as many; in a ranking by refusals, there may be more than `error` says.
    pub hits: u64,
    /// Refused hits. At least as many; in a ranking by hits, there may be more than `error` says.
    pub refusals: u64,
    /// Hits (or refused hits, as it is ranked) at most that were not counted.
    pub error: u64,
}

/// A subject in all panes.
#[derive(Clone, Copy)]
struct Sum {
    count: u64,
    others: u64,
    /// What its counters may lack.
    missed: u64,
    /// What it could have, without counters, in the panes where it has one.
    of_slots: u64,
    /// Where its text is: a pane, and a counter of it.
    text: (u16, u16),
}

/// The heaviest subjects of a view.
pub(super) fn heaviest(view: &View<'_>, query: &Query) -> Heaviest {
    let sketches = || view.panes.iter().map(|pane| pane.sketch(query.by));
    let error_at_most = sketches().fold(0_u64, |sum, sketch| sum.saturating_add(sketch.error()));
    let total = sketches().fold(0_u64, |sum, sketch| sum.saturating_add(sketch.total()));
    let counters = sketches().map(|sketch| sketch.counters().len()).sum();
    let mut sums: HashMap<u64, Sum> = HashMap::with_capacity(counters);
    let limit = query.limit.as_deref().map(text::path);
    for (pane, sketch) in sketches().enumerate() {
        for (index, counter) in sketch.counters().iter().enumerate() {
            let (path, key) = sketch.text(counter);
            let is_other_domain = |domain: &String| *domain != text::read(path, key).domain;
            if limit.as_ref().is_some_and(|limit| limit != path) || query.domain.as_ref().is_some_and(is_other_domain) {
                continue;
            }
            let sum = sums.entry(counter.fingerprint).or_insert(Sum {
                count: 0,
                others: 0,
                missed: 0,
                of_slots: 0,
                text: (pane as u16, index as u16),
            });
            sum.count = sum.count.saturating_add(counter.count);
            sum.others = sum.others.saturating_add(counter.others);
            sum.missed = sum.missed.saturating_add(counter.missed);
            sum.of_slots = sum.of_slots.saturating_add(sketch.error_of(counter.fingerprint));
        }
    }
    let mut order: Vec<(Reverse<u64>, u64)> = sums.iter().map(|(&fingerprint, sum)| (Reverse(sum.count), fingerprint)).collect();
    let is_cut = order.len() > query.count;
    if is_cut {
        order.select_nth_unstable(query.count);
        order.truncate(query.count);
    }
    let others = others(view, query.by, &order);
    let ranked = |(_, fingerprint): &(_, u64)| {
        let sum = sums.get(fingerprint)?;
        let sketch = view.panes.get(usize::from(sum.text.0))?.sketch(query.by);
        let (path, key) = sketch.text(sketch.counters().get(usize::from(sum.text.1))?);
        let other = others.get(fingerprint).copied().unwrap_or_default();
        let (hits, refusals) = match query.by {
            Ranking::Hits => (sum.count, other.max(sum.others)),
            Ranking::Refusals => (other.max(sum.count), sum.count),
        };
        // In a pane where it has no counter, it has at most what its slot has.
        let of_slots = sketches().fold(0_u64, |sum, sketch| sum.saturating_add(sketch.error_of(*fingerprint)));
        let error = of_slots.saturating_sub(sum.of_slots).saturating_add(sum.missed);
        Some(Ranked { subject: text::read(path, key), hits, refusals, error })
    };
    let mut subjects: Vec<Ranked> = order.iter().filter_map(ranked).collect();
    // Fingerprints differ from process to process; equal counts have an order that readers can follow.
    subjects.sort_by(|one, other| {
        let weight = |ranked: &Ranked| match query.by {
            Ranking::Hits => ranked.hits,
            Ranking::Refusals => ranked.refusals,
        };
        weight(other).cmp(&weight(one)).then_with(|| one.subject.cmp(&other.subject))
    });
    Heaviest { seconds: view.covers.as_secs(), total, error_at_most, is_cut, subjects }
}

/// What the other sketches of the panes have counted for the subjects of this order.
fn others(view: &View<'_>, by: Ranking, order: &[(Reverse<u64>, u64)]) -> HashMap<u64, u64> {
    let mut others: HashMap<u64, u64> = order.iter().map(|&(_, fingerprint)| (fingerprint, 0)).collect();
    let by_other = match by {
        Ranking::Hits => Ranking::Refusals,
        Ranking::Refusals => Ranking::Hits,
    };
    for Counter { fingerprint, count, .. } in view.panes.iter().flat_map(|pane| pane.sketch(by_other).counters()) {
        if let Some(sum) = others.get_mut(fingerprint) {
            *sum = sum.saturating_add(*count);
        }
    }
    others
}
