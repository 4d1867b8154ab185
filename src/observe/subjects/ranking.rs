//! Rankings: the heaviest subjects of the panes of a window, and how wrong each number may be.
//!
//! Both sketches of a pane count refused hits, and the better lower and upper bound holds. So both
//! rankings have the same numbers of a subject, at no further cost of a request. A pane that is
//! closed late includes everything until then.

use std::cmp::Reverse;

use hashbrown::{HashMap, HashSet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sketch::{Counter, Sketch};
use super::windows::View;
use super::{LimitedSubject, Ranking, Recent, text};

/// Query of a ranking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The time.
    pub window: Recent,
    /// The order.
    pub by: Ranking,
    /// Maximum number of subjects.
    pub count: usize,
    /// Only subjects of this domain.
    pub domain: Option<String>,
    /// Only subjects of the limit with this path.
    pub limit: Option<String>,
    /// Only subjects with these labels (see [`LimitedSubject::label`]); all if it is empty.
    pub subjects: HashSet<String>,
}

/// The heaviest subjects of a window. A subject that is not among them has at most `hits_at_most`
/// hits, and `refused_at_most` refused ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heaviest {
    /// The time that was counted, in seconds.
    pub seconds: u64,
    /// The hits of all subjects, or all refused hits, as it is ranked; with any filter the same.
    pub total: u64,
    /// Upper bound of the ranked number of a subject that has no counter.
    pub error_at_most: u64,
    /// See above.
    pub hits_at_most: u64,
    /// See above.
    pub refused_at_most: u64,
    /// The heaviest first.
    pub subjects: Vec<Ranked>,
}

/// A subject and its numbers. Each number is a lower bound, with its maximum error; it is never too
/// high.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Ranked {
    #[serde(flatten)]
    pub subject: LimitedSubject,
    /// Lower bound of the hits, refused ones included.
    pub hits: u64,
    /// Maximum of further hits beyond `hits`.
    pub hits_error: u64,
    /// Lower bound of the refused hits; at most `hits`.
    pub refused: u64,
    /// Maximum of further refused hits beyond `refused`.
    pub refused_error: u64,
}

/// Lower and upper bound of a number.
#[derive(Clone, Copy, Debug, Default)]
struct Bound {
    least: u64,
    most: u64,
}

/// The bounds of a subject's numbers in all panes.
#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    hits: Bound,
    refused: Bound,
}

impl Bounds {
    /// Both sketches of a pane count hits and refused hits: each number is the better of their
    /// bounds.
    fn new(view: &View<'_>, fingerprint: u64) -> Self {
        let (mut bounds, mut most_of_hits) = (Self::default(), 0_u64);
        for pane in &view.panes {
            let slot = pane.hits.error_of(fingerprint);
            let (hits, others, missed) = pane.hits.get(fingerprint).map_or((0, 0, slot), |known| {
                (known.count, known.others, known.missed)
            });
            let slot = pane.refusals.error_of(fingerprint);
            let known = pane.refusals.get(fingerprint);
            let (count, refused_missed) =
                known.map_or((0, slot), |known| (known.count, known.missed));
            let refused = count.max(others);
            let add = |sum: &mut u64, more: [u64; 2]| {
                *sum = more.into_iter().fold(*sum, u64::saturating_add);
            };
            add(&mut bounds.refused.least, [refused, 0]);
            add(
                &mut bounds.hits.least,
                [hits.saturating_sub(others), refused],
            );
            add(&mut bounds.hits.most, [hits, missed]);
            add(&mut bounds.refused.most, [count, refused_missed]);
            // Hits that were missed may have been refused.
            add(&mut most_of_hits, [others, missed]);
        }
        bounds.refused.most = bounds.refused.most.min(most_of_hits);
        bounds
    }

    fn of(self, subject: LimitedSubject) -> Ranked {
        let error = |bound: Bound| bound.most.saturating_sub(bound.least);
        Ranked {
            subject,
            hits: self.hits.least,
            hits_error: error(self.hits),
            refused: self.refused.least,
            refused_error: error(self.refused),
        }
    }

    const fn ranked(self, by: Ranking) -> Bound {
        match by {
            Ranking::Hits => self.hits,
            Ranking::Refusals => self.refused,
        }
    }
}

/// The heaviest subjects of a view.
pub(super) fn heaviest(view: &View<'_>, query: &Query) -> Heaviest {
    let texts = texts(view, query);
    let weight = |&fingerprint: &u64| {
        let weight = Bounds::new(view, fingerprint).ranked(query.by).least;
        (Reverse(weight), fingerprint)
    };
    let mut order: Vec<(Reverse<u64>, u64)> = texts.keys().map(weight).collect();
    if order.len() > query.count {
        order.select_nth_unstable(query.count);
        order.truncate(query.count);
    }
    let ranked = |&(weight, fingerprint): &(_, u64)| {
        let &(sketch, counter) = texts.get(&fingerprint)?;
        let (path, key) = sketch.text(counter);
        let ranked = Bounds::new(view, fingerprint).of(text::read(path, key));
        Some((weight, ranked))
    };
    let mut ranked: Vec<_> = order.iter().filter_map(ranked).collect();
    // Fingerprints differ from process to process; equal counts have an order that readers can
    // follow.
    ranked.sort_by(|(weight, one), (other_weight, other)| {
        let by_weight = weight.cmp(other_weight);
        by_weight.then_with(|| one.subject.cmp(&other.subject))
    });
    let listed: HashSet<u64> = order.iter().map(|&(_, fingerprint)| fingerprint).collect();
    // Subjects without a counter, and subjects with a counter that are not listed.
    let at_most = |by: Ranking| {
        let others = counters(view, by).filter(|(sketch, one)| {
            !listed.contains(&one.fingerprint) && query.asks_for(sketch, one)
        });
        others
            .map(|(_, one)| Bounds::new(view, one.fingerprint).ranked(by).most)
            .fold(sum(view, by, Sketch::error), u64::max)
    };
    Heaviest {
        seconds: view.covers.as_secs(),
        total: sum(view, query.by, Sketch::total),
        error_at_most: sum(view, query.by, Sketch::error),
        hits_at_most: at_most(Ranking::Hits),
        refused_at_most: at_most(Ranking::Refusals),
        subjects: ranked.into_iter().map(|(_, ranked)| ranked).collect(),
    }
}

/// The counters of all subjects that match the query, one for each subject, by fingerprint.
fn texts<'v>(view: &'v View<'_>, query: &Query) -> HashMap<u64, (&'v Sketch, &'v Counter)> {
    let mut texts = HashMap::with_capacity(counters(view, query.by).count());
    // A named subject is also found if only the other ranking has a counter of it.
    let rankings = [Ranking::Hits, Ranking::Refusals].into_iter();
    let rankings = rankings.filter(|&by| by == query.by || !query.subjects.is_empty());
    for (sketch, one) in rankings.flat_map(|by| counters(view, by)) {
        if query.asks_for(sketch, one) {
            texts.entry(one.fingerprint).or_insert((sketch, one));
        }
    }
    texts
}

/// The counters of all panes, each with its sketch.
fn counters<'v>(
    view: &'v View<'_>,
    by: Ranking,
) -> impl Iterator<Item = (&'v Sketch, &'v Counter)> {
    view.panes.iter().flat_map(move |pane| {
        let sketch = pane.sketch(by);
        sketch.counters().iter().map(move |one| (sketch, one))
    })
}

fn sum(view: &View<'_>, by: Ranking, value: fn(&Sketch) -> u64) -> u64 {
    let values = view.panes.iter().map(|pane| value(pane.sketch(by)));
    values.fold(0, u64::saturating_add)
}

impl Query {
    fn asks_for(&self, sketch: &Sketch, counter: &Counter) -> bool {
        let (path, key) = sketch.text(counter);
        let limit = self.limit.as_deref();
        let is_limit = limit.is_none_or(|limit| text::path(limit) == path);
        let subject = || text::read(path, key);
        is_limit
            && (self.domain.as_ref()).is_none_or(|domain| *domain == subject().domain)
            && (self.subjects.is_empty() || self.subjects.contains(&subject().label()))
    }
}
