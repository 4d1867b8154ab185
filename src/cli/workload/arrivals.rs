//! When requests arrive: at equal distances, or at random as those of many independent clients.

use std::time::Duration;

/// How the instants of a rate are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum ArrivalKind {
    /// All distances are equal.
    Constant,
    /// Distances are random (a Poisson process).
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
    pub(in crate::cli) fn next(&mut self, random: &mut fastrand::Rng) -> Duration {
        match self.kind {
            // A product has no error that grows, as a sum would.
            ArrivalKind::Constant => self.seconds = self.count as f64 / self.per_second,
            // 1 - f64() is never 0.
            ArrivalKind::Poisson => self.seconds -= (1.0 - random.f64()).ln() / self.per_second,
        }
        self.count += 1;
        Duration::try_from_secs_f64(self.seconds).unwrap_or(Duration::MAX)
    }

    /// How many requests are due before this time, which is behind the last one that was drawn: random
    /// ones that were not drawn count as their mean.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_rate_has_no_drift() {
        let mut random = fastrand::Rng::with_seed(1);
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
            let mut random = fastrand::Rng::with_seed(1);
            let mut arrivals = Arrivals::new(ArrivalKind::Constant, per_second);
            let foreseen = arrivals.due_before(end);
            let due = (0..).take_while(|_| arrivals.next(&mut random) < end);
            assert_eq!(due.count() as u64, foreseen, "{per_second} {millis}");
        }
        let mut random = fastrand::Rng::with_seed(1);
        let mut arrivals = Arrivals::new(ArrivalKind::Poisson, 1_000.0);
        for _ in 0..50 {
            arrivals.next(&mut random);
        }
        let rest = Duration::from_secs_f64(arrivals.seconds + 2.0);
        assert_eq!(arrivals.due_before(rest), 2_050);
    }

    #[test]
    fn random_arrivals_keep_the_mean_rate_and_vary_as_those_of_independent_clients() {
        let mut random = fastrand::Rng::with_seed(1);
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
}
