//! Random limits, times and checks, including the edge cases: huge hits, window edges, clocks that
//! go back, limits that change.

use super::*;
use weir::core::algorithm::concurrency::{LARGEST_LIMIT, LONGEST_DURATION, TAKE_BACK};

/// Zones of calendars: half hours, both hemispheres, midnights that do not exist.
const ZONES: [&str; 6] = [
    "UTC",
    "Europe/Berlin",
    "America/Havana",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "Pacific/Apia",
];

/// Makes random plans and times.
pub struct Generator {
    pub random: fastrand::Rng,
    kinds: Vec<AlgorithmKind>,
    scene: usize,
    limits: Vec<Algorithm>,
    /// Small steps of time and few hits per check, so that many hits collect under one key.
    is_steady: bool,
    now: u64,
    /// The wait of the last refused check, in microseconds.
    pub last_wait: u64,
}

impl Generator {
    pub fn new(kinds: &[AlgorithmKind], seed: u64) -> Self {
        let mut generator = Self {
            random: fastrand::Rng::with_seed(seed),
            kinds: kinds.to_vec(),
            scene: 0,
            limits: Vec::new(),
            is_steady: false,
            now: START,
            last_wait: 0,
        };
        generator.next_scene();
        generator
    }

    pub fn next_scene(&mut self) {
        self.scene += 1;
        self.now = START;
        self.is_steady = self.random.u8(..4) == 0;
        self.limits = (0..if self.is_steady { 1 } else { 4 })
            .map(|_| self.limit(None))
            .collect();
    }

    /// An amount of any size: an algorithm for which it is too large is not made.
    fn requests(&mut self) -> u64 {
        let random = &mut self.random;
        match random.u8(..10) {
            0 => random.u64(0..2),
            1 => u64::from(u32::MAX) - random.u64(0..3),
            2 => weir::core::time::MAX_SAFE_INTEGER >> random.u8(..30),
            3 => random.u64(..100_001),
            _ if self.is_steady => random.u64(20..2_000),
            _ => random.u64(1..30),
        }
    }

    /// A random limit; with `like`, one of this rate.
    fn limit(&mut self, like: Option<Rate>) -> Algorithm {
        loop {
            let kind = self.kinds[self.random.usize(..self.kinds.len())];
            if kind == AlgorithmKind::Concurrency {
                return self.places();
            }
            let requests = self.requests();
            let random = &mut self.random;
            let (unit, unit_multiplier) = match random.u8(..8) {
                // With longer windows, waits after the clock has gone back by a window would exceed
                // 2^53 microseconds.
                0 => (Unit::Year, random.u32(1..51)),
                1 => (Unit::Day, random.u32(1..40)),
                _ => (Unit::Second, random.u32(1..100)),
            };
            let is_calendar =
                like.is_none() && kind == AlgorithmKind::FixedWindow && random.u8(..3) == 0;
            let (unit, unit_multiplier) = if is_calendar {
                (
                    [Unit::Day, Unit::Week, Unit::Month, Unit::Year][random.usize(..4)],
                    1,
                )
            } else {
                (unit, unit_multiplier)
            };
            let rate = like.unwrap_or(Rate {
                requests_per_unit: requests,
                unit,
                unit_multiplier,
            });
            let mut options = algorithm::Options {
                kind,
                ..Default::default()
            };
            if is_calendar {
                options.period = Some(PeriodKind::Calendar);
                options.timezone = Zone::named(ZONES[random.usize(..ZONES.len())]);
                options.anchor = random.bool().then(|| {
                    format!("2024-12-{:02}T{:02}:30", random.u8(1..32), random.u8(..24))
                        .parse()
                        .expect("an anchor")
                });
            }
            let window = rate.window().map_or(1, Span::micros);
            let small = [0, 0, 10, 20][random.usize(..4)];
            let mut some = |most: u64| {
                random
                    .bool()
                    .then(|| Span::from_micros(random.u64(..=most)))
            };
            match kind {
                AlgorithmKind::SlidingWindowBuckets => {
                    options.bucket_interval = some(window);
                    options.bucket_span = some(3 * window);
                    options.subject_expiry = some(5 * window);
                }
                // Of any part of the window, and of the amount: both may be far smaller.
                AlgorithmKind::LeakyBucket => options.max_delay = some((2 * window) >> small),
                AlgorithmKind::TokenBucket => {
                    options.burst = some((2 * requests) >> small).map(Span::micros);
                }
                _ => {}
            }
            options.count_denied = [None, Some(true), Some(false)][random.usize(..3)];
            if options.count_denied == Some(true)
                && kind != AlgorithmKind::FixedWindow
                && random.bool()
            {
                options.max_debt = Some(random.u32(1..=100));
            }
            if let Ok(limit) = Algorithm::try_new(&rate, &options) {
                return limit;
            }
        }
    }

    fn places(&mut self) -> Algorithm {
        let random = &mut self.random;
        let requests_per_unit = match random.u8(..10) {
            0 => random.u64(0..2),
            1 => LARGEST_LIMIT - random.u64(0..3),
            _ => random.u64(1..12),
        };
        let max_duration = match random.u8(..8) {
            0 => random.u64(1..=LONGEST_DURATION.micros()),
            1 => random.u64(1..1_000),
            _ => 1_000_000 * random.u64(1..60),
        };
        let options = algorithm::Options {
            kind: AlgorithmKind::Concurrency,
            max_duration: Some(Span::from_micros(max_duration)),
            ..Default::default()
        };
        Algorithm::try_new(
            &Rate {
                requests_per_unit,
                unit: Unit::None,
                unit_multiplier: 1,
            },
            &options,
        )
        .expect("a limit")
    }

    pub fn time(&mut self) -> Micros {
        let random = &mut self.random;
        let limit = self.limits[random.usize(..self.limits.len())];
        let (window, tick) = (limit.window().shortest().micros(), limit.tick().micros());
        let near = |at: u64, random: &mut fastrand::Rng| {
            (at + random.u64(..3) * tick).saturating_sub(tick) + random.u64(..2)
        };
        let now = self.now;
        if self.is_steady && random.u8(..64) > 0 {
            self.now = now + random.u64(..=window / 512 + 1);
            return Micros(self.now.min(END));
        }
        self.now = match random.u8(..32) {
            0..8 => now,
            8..14 => now + random.u64(..=tick),
            14..18 => now + random.u64(..=window / 8 + 1),
            18 => now + random.u64(..=3 * window),
            // The edges of windows and buckets, and the ends of waits.
            19..22 => match limit.window() {
                Period::Even(_) => near((now / window + 1) * window, random),
                calendar => near(calendar.window_at(Micros(now)).end.0, random),
            },
            22 => near(now + window, random),
            23..27 => near(now + self.last_wait.min(END), random),
            // Back by less than a window, by about one window, to any time, and a jump ahead.
            27..29 => now.saturating_sub(random.u64(..=window)),
            29 => near(now.saturating_sub(window), random),
            30 => random.u64(..=END),
            _ => now + random.u64(..=1 << 50),
        };
        if self.now > END {
            self.now = START;
        }
        Micros(self.now)
    }

    fn hits(&mut self, limit: &Algorithm) -> i64 {
        let random = &mut self.random;
        let capacity = limit.capacity().cast_signed();
        if self.is_steady && random.u8(..16) > 0 {
            return random.i64(-2..6);
        }
        if limit.counts_in_flight() && random.u8(..3) > 0 {
            return [1, 1, 1, -1, -1, TAKE_BACK][random.usize(..6)];
        }
        match random.u8(..24) {
            0..3 => 0,
            3 => i64::MAX,
            4 => i64::MIN,
            5..7 => -random.i64(1..=capacity + 1),
            7..9 => -random.i64(1..4),
            9 => capacity,
            10 => capacity + 1,
            11..14 => random.i64(1..=capacity / 2 + 2),
            14 => random.i64(1..=3 * capacity + 3),
            15 => random.i64(..),
            _ => random.i64(1..4),
        }
    }

    pub fn checks(&mut self) -> Checks {
        let (mut checks, mut ids) = (Vec::new(), Vec::new());
        for _ in 0..self.random.usize(1..7) {
            let limit = self.limits[self.random.usize(..self.limits.len())];
            let limit = if self.random.u8(..10) == 0 {
                self.other_amount(limit)
            } else {
                limit
            };
            let modes = Modes {
                shadow: self.random.u8(..5) == 0,
                quota: self.random.u8(..4) == 0,
            };
            let key = format!(
                "{}.{}.{}",
                self.scene,
                if self.is_steady {
                    0
                } else {
                    self.random.u8(..2)
                },
                stored_state::tag(&limit)
            );
            // Few, so that acquires and releases meet.
            ids.push(self.random.u8(..9));
            checks.push((key, Check::new(limit, self.hits(&limit), modes)));
        }
        let mut checks = Checks::of(
            checks
                .iter()
                .map(|(key, check)| (key.as_bytes(), check.clone())),
        );
        for (index, id) in ids.into_iter().enumerate() {
            checks = checks.with_holder(CheckIndex(index), &[id]);
        }
        checks.commit = if self.random.u8(..3) == 0 {
            Commit::AllOrNone
        } else {
            Commit::Each
        };
        checks
    }

    /// The limit after a reload that changed its amount: the key stays the same, also if the tick
    /// changes.
    fn other_amount(&mut self, limit: Algorithm) -> Algorithm {
        if limit.counts_in_flight() {
            return self.places();
        }
        let window = limit.window().shortest().micros() / 1_000_000;
        let unit_multiplier = u32::try_from(window).unwrap_or(u32::MAX);
        let requests_per_unit = match self.random.u8(..4) {
            // A log alone takes no larger limit.
            0 if self.kinds != [AlgorithmKind::SlidingWindowLog] => self.random.u32(..).into(),
            1 => self.random.u64(..100_001),
            _ => self.random.u64(0..40),
        };
        if let (Algorithm::FixedWindow(_), Period::Months(_) | Period::Calendar(_)) =
            (limit, limit.window())
        {
            return limit.with_limit(requests_per_unit).unwrap_or(limit);
        }
        let rate = Rate {
            requests_per_unit,
            unit: Unit::Second,
            unit_multiplier,
        };
        self.limit(Some(rate))
    }
}
