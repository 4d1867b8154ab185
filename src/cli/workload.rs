//! Requests that are made up: templates of descriptors, amounts of hits, and instants at which
//! requests arrive. `weir load` and `weir replay` share them; all randomness is of one generator,
//! and a seed repeats a workload.

mod part;
mod template;

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::core::proto::{RateLimitDescriptor, RateLimitRequest};
pub(crate) use part::Hits;
pub(crate) use template::{Fields, Template, Templates};

/// How the instants of a rate are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ArrivalKind {
    /// Constant inter-arrival times.
    Constant,
    /// A Poisson process.
    Poisson,
}

/// The instants at which requests of a constant mean rate are due.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Arrivals {
    kind: ArrivalKind,
    per_second: f64,
    /// Requests so far, and the seconds after the begin at which the last one was due.
    count: u64,
    seconds: f64,
}

impl Arrivals {
    /// Requests at this mean rate, which is above 0.
    pub(in crate::cli) const fn new(kind: ArrivalKind, per_second: f64) -> Self {
        Self {
            kind,
            per_second,
            count: 0,
            seconds: 0.0,
        }
    }

    /// When the next request is due, after the begin. The first of a constant rate is due at once.
    pub(in crate::cli) fn next(&mut self, random: &mut SmallRng) -> Duration {
        match self.kind {
            // A product has no error that grows, as a sum would.
            ArrivalKind::Constant => self.seconds = self.count as f64 / self.per_second,
            // 1 - random() is never 0.
            ArrivalKind::Poisson => {
                self.seconds -= (1.0 - random.random::<f64>()).ln() / self.per_second;
            }
        }
        self.count += 1;
        Duration::try_from_secs_f64(self.seconds).unwrap_or(Duration::MAX)
    }

    /// Number of requests due before this time, which is after the last one that was drawn:
    /// random ones that were not drawn count as their mean.
    pub(in crate::cli) fn due_before(&self, end: Duration) -> u64 {
        let end = end.as_secs_f64();
        let due = match self.kind {
            ArrivalKind::Constant => (end * self.per_second).ceil(),
            ArrivalKind::Poisson => {
                let left = (end - self.seconds).max(0.0);
                (left * self.per_second).round() + self.count as f64
            }
        };
        due as u64
    }
}

/// Makes requests of templates.
pub(crate) struct Requests {
    /// Of all requests, where a record names none.
    pub(in crate::cli) domain: Option<String>,
    /// One for each descriptor.
    pub(crate) templates: Vec<Template>,
    /// Hits of each descriptor; without them the field is empty, which means one hit.
    hits: Option<Hits>,
    random: SmallRng,
}

impl Requests {
    /// Of these descriptors. A seed repeats its requests.
    pub(crate) fn new(
        domain: Option<String>,
        descriptors: &[Templates],
        hits: Option<Hits>,
        seed: u64,
    ) -> Self {
        Self {
            domain,
            templates: descriptors.iter().flat_map(|all| all.0.clone()).collect(),
            hits,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    /// The next request of a record, without the descriptors of which it misses a field. `field` is
    /// the value of a field of a template, both by their indices.
    pub(in crate::cli) fn of_record<'a>(
        &mut self,
        field: impl Fn(usize, usize) -> Option<&'a [u8]>,
    ) -> RateLimitRequest {
        let random = &mut self.random;
        let all = self.templates.iter_mut().enumerate();
        let descriptors = all.filter_map(|(index, template)| {
            Some(RateLimitDescriptor {
                entries: template.fill(random, |own| field(index, own))?,
                hits_addend: self.hits.as_ref().map(|hits| hits.draw(random)),
                ..RateLimitDescriptor::default()
            })
        });
        RateLimitRequest {
            descriptors: descriptors.collect(),
            domain: self.domain.clone().unwrap_or_default(),
            hits_addend: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::proto::rate_limit_descriptor::Entry;

    #[test]
    fn a_constant_rate_has_no_drift() {
        let mut random = SmallRng::seed_from_u64(1);
        let mut arrivals = Arrivals::new(ArrivalKind::Constant, 3.0);
        let mut last = Duration::ZERO;
        for _ in 0..=30_000 {
            last = arrivals.next(&mut random);
        }
        assert_eq!(last, Duration::from_secs(10_000));
    }

    #[test]
    fn requests_that_are_due_are_counted_without_drawing_them() {
        for (per_second, millis) in [(3.0, 1_000), (100.0, 1_000), (7.5, 10_500), (1e6, 100)] {
            let end = Duration::from_millis(millis);
            let mut random = SmallRng::seed_from_u64(1);
            let mut arrivals = Arrivals::new(ArrivalKind::Constant, per_second);
            let foreseen = arrivals.due_before(end);
            let due = (0..).take_while(|_| arrivals.next(&mut random) < end);
            assert_eq!(due.count() as u64, foreseen, "{per_second} {millis}");
        }
        let mut random = SmallRng::seed_from_u64(1);
        let mut arrivals = Arrivals::new(ArrivalKind::Poisson, 1_000.0);
        for _ in 0..50 {
            arrivals.next(&mut random);
        }
        let rest = Duration::from_secs_f64(arrivals.seconds + 2.0);
        assert_eq!(arrivals.due_before(rest), 2_050);
    }

    #[test]
    fn random_arrivals_keep_the_mean_rate_and_vary_as_those_of_independent_clients() {
        let mut random = SmallRng::seed_from_u64(1);
        let mut arrivals = Arrivals::new(ArrivalKind::Poisson, 100.0);
        let mut counts = vec![0_u32; 1_000];
        while let Some(count) = counts.get_mut(arrivals.next(&mut random).as_secs() as usize) {
            *count += 1;
        }
        let mean = f64::from(counts.iter().sum::<u32>()) / 1_000.0;
        let square = |&count: &u32| (f64::from(count) - mean).powi(2);
        let variance = counts.iter().map(square).sum::<f64>() / 1_000.0;
        // The variance of a Poisson distribution is its mean.
        assert!((mean - 100.0).abs() < 2.0, "{mean}");
        assert!((variance - 100.0).abs() < 20.0, "{variance}");
    }

    #[test]
    fn a_descriptor_has_its_entries_and_hits_and_is_left_out_without_a_field() {
        let texts = ["a=x{sequence},b=", "c={who}{uniform:7..7}"];
        let templates = texts.map(|text| Templates::parse(text, Fields::Allowed).expect("one"));
        let mut requests = Requests::new(Some("demo".to_owned()), &templates, None, 0);
        for (hits, addend, who, expected) in [
            (None, None, Some("é"), &["a=x1 b=", "c=é7"][..]),
            (Some("0"), Some(0), None, &["a=x2 b="]),
            (Some("300"), Some(300), Some(""), &["a=x3 b=", "c=7"]),
        ] {
            requests.hits = hits.map(|text| Hits::parse(text).expect("hits"));
            let request = requests.of_record(|template, field| {
                assert_eq!((template, field), (1, 0));
                who.map(str::as_bytes)
            });
            assert_eq!((&*request.domain, request.hits_addend), ("demo", 0));
            let display = |descriptor: &RateLimitDescriptor| {
                assert_eq!(descriptor.hits_addend, addend);
                let text = |entry: &Entry| {
                    let [key, value] = [&entry.key, &entry.value].map(|text| str::from_utf8(text));
                    format!("{}={}", key.expect("UTF-8"), value.expect("UTF-8"))
                };
                let entries: Vec<_> = descriptor.entries.iter().map(text).collect();
                entries.join(" ")
            };
            let all: Vec<_> = request.descriptors.iter().map(display).collect();
            assert_eq!(all, expected);
        }
    }
}
