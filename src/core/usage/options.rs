//! `track_usage` and its options: as written, and with their defaults.

use crate::core::algorithm::{OptionError, messages};
use crate::core::time::Span;

/// The most buckets of a ring. A full one takes 18 KB in Redis.
pub const MOST_BUCKETS: u32 = 1_000;

/// The shortest bucket. Shorter ones would add nothing, because clocks and answers are not more
/// exact.
const SHORTEST_INTERVAL: Span = Span::from_secs(1);

/// The longest `usage_expiry`: ten years.
const LONGEST_EXPIRY: Span = Span::from_secs(87_600 * 3_600);

/// The most subjects of an index. Each costs about 600 bytes in Redis.
pub(crate) const MOST_SUBJECTS: u32 = 100_000;

const DEFAULT_INTERVAL: Span = Span::from_secs(60);
const DEFAULT_BUCKETS: u32 = 60;
const DEFAULT_SUBJECTS: u32 = 10_000;

/// Thirty days: the record of a customer that comes once a month remains.
pub const DEFAULT_EXPIRY: Span = Span::from_secs(720 * 3_600);

/// The options as written; `None` = not written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `track_usage`: the usage of each subject is recorded.
    pub track: Option<bool>,
    /// `usage_interval`: the length of a bucket; default: a minute.
    pub interval: Option<Span>,
    /// `usage_buckets`: the buckets of a ring; default: 60.
    pub buckets: Option<u32>,
    /// `usage_expiry`: the longest time for which the record of an idle subject is kept; default:
    /// 30 days, or if longer the length of the ring, or two periods.
    pub expiry: Option<Span>,
    /// `usage_subjects`: the subjects in the index of the limit; default: 10,000.
    pub subjects: Option<u32>,
}

/// The options of a tracked limit, with their defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// The length of a bucket.
    pub interval: Span,
    /// The buckets of a ring, with the open one.
    pub buckets: u32,
    /// The longest time for which the record of an idle subject is kept.
    pub expiry: Span,
    /// The most subjects in the index.
    pub subjects: u32,
}

impl Settings {
    /// The time that all buckets cover.
    pub const fn span(&self) -> Span {
        Span::from_micros(self.interval.micros().saturating_mul(self.buckets as u64))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: DEFAULT_INTERVAL,
            buckets: DEFAULT_BUCKETS,
            expiry: DEFAULT_EXPIRY,
            subjects: DEFAULT_SUBJECTS,
        }
    }
}

impl Options {
    /// These options, and for those that are not written, the defaults.
    #[must_use]
    pub fn apply_defaults(self, defaults: &Self) -> Self {
        Self {
            track: self.track.or(defaults.track),
            interval: self.interval.or(defaults.interval),
            buckets: self.buckets.or(defaults.buckets),
            expiry: self.expiry.or(defaults.expiry),
            subjects: self.subjects.or(defaults.subjects),
        }
    }

    /// An option that is written and has no effect, because `track_usage` is not written.
    pub fn without_effect(&self) -> Option<OptionError> {
        let written = [
            ("usage_interval", self.interval.is_some()),
            ("usage_buckets", self.buckets.is_some()),
            ("usage_expiry", self.expiry.is_some()),
            ("usage_subjects", self.subjects.is_some()),
        ];
        let mut without_effect = written
            .iter()
            .filter(|(_, is_written)| *is_written && self.track.is_none());
        let (option, _) = without_effect.next()?;
        Some(messages::usage_without_track(option).of(option))
    }

    /// The settings of a limit with these options and this longest period; `None` if its usage is not
    /// tracked.
    ///
    /// # Errors
    /// The first option that is wrong.
    pub fn settings(&self, period: Span) -> Result<Option<Settings>, OptionError> {
        if self.track != Some(true) {
            return Ok(None);
        }
        let interval = self.interval.unwrap_or(DEFAULT_INTERVAL);
        if interval < SHORTEST_INTERVAL {
            return Err(messages::usage_interval_too_short(interval).of("usage_interval"));
        }
        let settings = Settings {
            interval,
            buckets: self.buckets.unwrap_or(DEFAULT_BUCKETS),
            subjects: self.subjects.unwrap_or(DEFAULT_SUBJECTS),
            ..Settings::default()
        };
        for (option, number, most) in [
            ("usage_buckets", settings.buckets, MOST_BUCKETS),
            ("usage_subjects", settings.subjects, MOST_SUBJECTS),
        ] {
            if !(1..=most).contains(&number) {
                return Err(messages::usage_number_out_of_range(option, number, most).of(option));
            }
        }
        let expiry = self.expiry_of(&settings, period)?;
        Ok(Some(Settings { expiry, ..settings }))
    }

    /// The longest time for which a record with this ring is kept.
    fn expiry_of(&self, settings: &Settings, period: Span) -> Result<Span, OptionError> {
        let Settings {
            interval, buckets, ..
        } = settings;
        let span = settings.span();
        if span > LONGEST_EXPIRY {
            let option = if self.interval.is_some() {
                "usage_interval"
            } else {
                "usage_buckets"
            };
            let message = messages::usage_buckets_too_long(buckets, interval, span, LONGEST_EXPIRY);
            return Err(message.of(option));
        }
        // Two periods, of which each may be some days longer than a month of 30 days.
        let periods = Span::from_micros(period.micros() / 8 * 17).min(LONGEST_EXPIRY);
        let usual = DEFAULT_EXPIRY.max(span).max(periods);
        let expiry = self.expiry.unwrap_or(usual);
        let message = if expiry < span {
            messages::usage_expiry_too_short(expiry, span, buckets, interval)
        } else if expiry > LONGEST_EXPIRY {
            messages::usage_expiry_too_long(expiry, LONGEST_EXPIRY)
        } else {
            return Ok(expiry);
        };
        Err(message.of("usage_expiry"))
    }
}
