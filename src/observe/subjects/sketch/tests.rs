//! Comparison of the sketch with exact counts: on the traffic of Zipf's law, and on any stream.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// Texts of the tests: `head` and the number of the subject.
const MAX_TEXT: usize = 32;

/// Bytes for 1,024, 256 and 20 counters.
const SIZES: [usize; 3] = [256 << 10, 36_864, 2_880];

/// A number as good as random for each subject, as a keyed hash gives.
fn fingerprint(subject: u64) -> u64 {
    let mixed = (subject ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// A sketch, and what is true.
struct Compared {
    sketch: Sketch,
    exact: HashMap<u64, (u64, u64)>,
}

impl Compared {
    fn new(bytes: usize) -> Self {
        Self {
            sketch: Sketch::new(bytes, MAX_TEXT),
            exact: HashMap::new(),
        }
    }

    fn add(&mut self, subject: u64, hits: u64, others: u64) {
        let exact = self.exact.entry(subject).or_default();
        (exact.0, exact.1) = (exact.0 + hits, exact.1 + others);
        let text = |texts: &mut Vec<u8>| {
            let tail = subject.to_string();
            texts.extend_from_slice(b"head");
            texts.extend_from_slice(tail.as_bytes());
            (4, tail.len())
        };
        self.sketch.add(fingerprint(subject), hits, others, text);
    }

    fn merge(&mut self, other: &Self) {
        self.sketch.merge(&other.sketch);
        for (&subject, &(hits, others)) in &other.exact {
            let exact = self.exact.entry(subject).or_default();
            (exact.0, exact.1) = (exact.0 + hits, exact.1 + others);
        }
    }

    fn counters(&self) -> HashMap<u64, Counter> {
        let of = |counter: &Counter| {
            let (head, tail) = self.sketch.text(counter);
            assert_eq!(head, b"head");
            let subject = str::from_utf8(tail)
                .expect("digits")
                .parse()
                .expect("a number");
            assert_eq!(
                fingerprint(subject),
                counter.fingerprint,
                "the text is that of the counter"
            );
            (subject, *counter)
        };
        let counters: HashMap<_, _> = self.sketch.counters().iter().map(of).collect();
        assert_eq!(
            counters.len(),
            self.sketch.counters().len(),
            "no subject has two counters"
        );
        counters
    }

    /// Everything that the documentation promises.
    fn check(&self) {
        let (counters, error) = (self.counters(), self.sketch.error());
        let total: u64 = self.exact.values().map(|(hits, _)| hits).sum();
        assert_eq!(self.sketch.total(), total);
        for (subject, &(hits, others)) in &self.exact {
            let Some(counter) = counters.get(subject) else {
                let at_most = self.sketch.error_of(fingerprint(*subject));
                assert!(
                    hits <= at_most && at_most <= error,
                    "{subject} had {hits} hits and has no counter; at most {at_most} of {error}"
                );
                continue;
            };
            assert!(
                counter.count <= hits && hits <= counter.count + counter.missed,
                "{subject}: {hits} hits, {counter:?}"
            );
            assert!(counter.missed <= error, "{counter:?}, error {error}");
            assert!(
                counter.others <= others && others <= counter.others + counter.missed,
                "{subject}: {others} others, {counter:?}"
            );
        }
        let limit = self.sketch.counters.capacity();
        if self.exact.len() <= limit {
            assert_eq!(error, 0, "{} subjects, {limit} counters", self.exact.len());
        }
    }
}

/// Subjects with frequencies by Zipf's law: 1 is the heaviest.
struct Zipf {
    /// The sum of the weights of all subjects up to each.
    sums: Vec<f64>,
    random: fastrand::Rng,
}

impl Zipf {
    fn new(subjects: usize, exponent: f64, seed: u64) -> Self {
        let weights = (1..=subjects).map(|rank| (rank as f64).powf(-exponent));
        let sums = weights.scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Self {
            sums: sums.collect(),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    fn next(&mut self) -> u64 {
        let all = self.sums.last().copied().unwrap_or(1.0);
        let at = self.random.f64() * all;
        self.sums.partition_point(|&sum| sum < at) as u64 + 1
    }
}

/// The heaviest ten are among those with counters, in an order that is right up to the error, and
/// the counts are what they are said to be.
#[test]
fn the_heaviest_of_zipf_traffic_are_found_and_each_count_is_within_its_error() {
    for exponent in [0.6, 0.8, 1.0, 1.2, 1.6] {
        for seed in 0..2 {
            let mut zipf = Zipf::new(50_000, exponent, seed);
            let mut compared = Compared::new(SIZES[0]);
            for _ in 0..100_000 {
                compared.add(zipf.next(), 1, 0);
            }
            compared.check();
            let counters = compared.counters();
            let mut heaviest: Vec<_> = compared
                .exact
                .iter()
                .map(|(&subject, &(hits, _))| (hits, subject))
                .collect();
            heaviest.sort_unstable_by(|one, other| other.cmp(one));
            if exponent >= 1.0 {
                let found = |(_, subject): &&(u64, u64)| counters.contains_key(subject);
                assert_eq!(
                    heaviest.iter().take(10).filter(found).count(),
                    10,
                    "exponent {exponent}, seed {seed}"
                );
            }
            assert!(
                compared.sketch.error() <= 100,
                "exponent {exponent}: {} of 100,000",
                compared.sketch.error()
            );
        }
    }
}

#[test]
fn a_subject_that_both_sketches_count_from_their_start_lacks_nothing() {
    let part = |size| {
        let mut part = Compared::new(size);
        part.add(0, 1_000, 0);
        (1..3_000).for_each(|subject| part.add(subject, 1, 0));
        assert!(part.sketch.error() > 0 && part.counters()[&0].missed == 0);
        part
    };
    let mut all = part(SIZES[1]);
    all.merge(&part(SIZES[2]));
    let counter = all.counters()[&0];
    assert_eq!(
        (counter.count, counter.missed),
        (2_000, 0),
        "although others may lack {}",
        all.sketch.error()
    );
}

/// Workers and windows may have different sizes, either way round.
#[test]
fn a_larger_sketch_is_merged_into_a_smaller_one() {
    let (mut large, mut small) = (
        Sketch::new(SIZES[0], MAX_TEXT),
        Sketch::new(SIZES[2], MAX_TEXT),
    );
    let slots = small.sums.len();
    large.sums[3 * slots + 5] = 100;
    small.merge(&large);
    assert_eq!(
        (small.sums[5], small.sums.iter().sum()),
        (100, 100_u64),
        "the slots of a larger one share slots"
    );
    large.merge(&small);
    assert_eq!(
        (large.sums[5], large.sums[3 * slots + 5], large.sums[6]),
        (100, 200, 0)
    );
    let mut all = Compared::new(SIZES[2]);
    for first in [0, 7_000] {
        let mut part = Compared::new(SIZES[0]);
        (first..first + 9_000).for_each(|subject| part.add(subject, 1 + subject % 5, 0));
        assert!(part.sketch.sums.len() > all.sketch.sums.len());
        all.merge(&part);
        all.check();
    }
}

#[test]
fn a_subject_that_becomes_heavy_late_gets_a_counter() {
    let mut compared = Compared::new(SIZES[1]);
    (1..20_000).for_each(|subject| compared.add(subject, 1, 0));
    (0..200).for_each(|_| compared.add(0, 1, 0));
    let counter = compared.counters()[&0];
    assert!(counter.count >= 170, "{counter:?}");
}

#[test]
fn hits_of_unknown_subjects_are_an_error_of_all() {
    let mut compared = Compared::new(SIZES[0]);
    compared.add(1, 5, 0);
    compared.sketch.add_unknown(3);
    compared.add(2, 7, 0);
    let counters = compared.counters();
    assert_eq!(
        (counters[&1].missed, counters[&2].missed),
        (3, 3),
        "those hits may have been of either"
    );
    assert_eq!((compared.sketch.error(), compared.sketch.total()), (3, 15));
    compared.sketch.clear();
    assert_eq!(
        (
            compared.sketch.error(),
            compared.sketch.total(),
            compared.sketch.counters().len()
        ),
        (0, 0, 0)
    );
    compared.exact.clear();
    compared.add(1, 1, 1);
    compared.check();
}

#[test]
fn a_long_text_makes_room_for_itself() {
    let mut sketch = Sketch::new(40_000, 8_000);
    for subject in 0..1_000_u64 {
        let length = if subject % 7 == 0 { 8_000 } else { 1 };
        sketch.add(fingerprint(subject), 1, 0, |texts: &mut Vec<u8>| {
            texts.resize(texts.len() + length, b'x');
            (length, 0)
        });
        assert!(sketch.texts.len() <= 40_000);
        let written: usize = sketch
            .counters()
            .iter()
            .map(|counter| sketch.text(counter).0.len())
            .sum();
        assert_eq!(written, sketch.texts.len());
    }
}

/// Operations on a sketch: subjects with hits, and merges with the counts of another one since the
/// last merge.
fn stream() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
    // Most subjects come seldom, some often, and some hits are very heavy.
    let subject = prop_oneof![3 => 0..2_000_u64, 2 => 0..40_u64];
    let hits = prop_oneof![5 => 1..4_u64, 1 => 1..1_000_000_u64];
    prop::collection::vec((subject, hits, any::<bool>()), 0..1_500)
}

proptest! {
    #![proptest_config(crate::testing::property(200))]

    #[test]
    fn the_bounds_hold_for_any_stream(
        stream in stream(),
        size in prop::sample::select(SIZES.to_vec()),
    ) {
        let mut compared = Compared::new(size);
        for (subject, hits, is_refused) in stream {
            compared.add(subject, hits, if is_refused { hits } else { 0 });
        }
        compared.check();
    }

    #[test]
    fn the_bounds_hold_for_any_sequence_of_merges(parts in prop::collection::vec(stream(), 1..4)) {
        // With equal sizes, the bound of all is the bound of one sketch.
        let mut all = Compared::new(SIZES[2]);
        for stream in &parts {
            let mut part = Compared::new(SIZES[2]);
            for &(subject, hits, is_refused) in stream {
                part.add(subject, hits, if is_refused { hits } else { 0 });
            }
            all.merge(&part);
            all.check();
            prop_assert!(all.sketch.counters.len() <= all.sketch.counters.capacity());
        }
    }
}
