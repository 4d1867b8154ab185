//! `track_usage` and its options: as written, and with their defaults.

use crate::core::algorithm::OptionError;
use crate::core::time::Span;

/// The most buckets of a ring. A full one takes 18 KB in Redis.
pub const MOST_BUCKETS: u32 = 1_000;

/// The shortest bucket. Shorter ones would tell nothing, because clocks and answers are not more
/// exact.
const SHORTEST_INTERVAL: Span = Span::from_secs(1);

/// The longest `usage_expiry`: ten years.
const LONGEST_EXPIRY: Span = Span::from_secs(87_600 * 3_600);

/// The most subjects of an index. Each costs about 600 bytes in Redis.
pub(crate) const MOST_SUBJECTS: u32 = 100_000;

const DEFAULT_INTERVAL: Span = Span::from_secs(60);
const DEFAULT_BUCKETS: u32 = 60;
const DEFAULT_SUBJECTS: u32 = 10_000;

/// Thirty days: a customer that comes once a month is still known.
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
    /// `usage_expiry`: how long the record of an idle subject is kept at most; default: 30 days, or
    /// the length of the ring if that is longer.
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
    #[must_use]
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

    /// An option that is written and has no effect, because nothing says whether usage is tracked.
    #[must_use]
    pub fn without_effect(&self) -> Option<OptionError> {
        let written = [
            ("usage_interval", self.interval.is_some()),
            ("usage_buckets", self.buckets.is_some()),
            ("usage_expiry", self.expiry.is_some()),
            ("usage_subjects", self.subjects.is_some()),
        ];
        let option = written
            .iter()
            .find(|(_, is_written)| *is_written && self.track.is_none())?
            .0;
        Some(OptionError {
            option,
            what: format!("'{option}' has no effect without 'track_usage'"),
            remedy: format!("write 'track_usage: true', or remove '{option}'"),
        })
    }

    /// The settings of a limit with these options; `None` if its usage is not tracked.
    ///
    /// # Errors
    /// The first option that is wrong.
    pub fn settings(&self) -> Result<Option<Settings>, OptionError> {
        if self.track != Some(true) {
            return Ok(None);
        }
        let error = |option, what: String, remedy: String| {
            Err(OptionError {
                option,
                what,
                remedy,
            })
        };
        let interval = self.interval.unwrap_or(DEFAULT_INTERVAL);
        if interval < SHORTEST_INTERVAL {
            return error(
                "usage_interval",
                format!("a usage_interval of {interval} is shorter than a second"),
                "write 1s or more".to_owned(),
            );
        }
        let buckets = self.buckets.unwrap_or(DEFAULT_BUCKETS);
        if !(1..=MOST_BUCKETS).contains(&buckets) {
            let what = format!("'usage_buckets' is {buckets}");
            return error(
                "usage_buckets",
                what,
                format!("write a number from 1 to {MOST_BUCKETS}"),
            );
        }
        let subjects = self.subjects.unwrap_or(DEFAULT_SUBJECTS);
        if !(1..=MOST_SUBJECTS).contains(&subjects) {
            let what = format!("'usage_subjects' is {subjects}");
            return error(
                "usage_subjects",
                what,
                format!("write a number from 1 to {MOST_SUBJECTS}"),
            );
        }
        let settings = Settings {
            interval,
            buckets,
            subjects,
            ..Settings::default()
        };
        let span = settings.span();
        if span > LONGEST_EXPIRY {
            let option = if self.interval.is_some() {
                "usage_interval"
            } else {
                "usage_buckets"
            };
            let what = format!(
                "{buckets} buckets of {interval} cover {span}, which is longer than \
                 {LONGEST_EXPIRY}"
            );
            return error(
                option,
                what,
                "write a shorter usage_interval, or fewer usage_buckets".to_owned(),
            );
        }
        let expiry = self.expiry.unwrap_or(DEFAULT_EXPIRY.max(span));
        if expiry < span {
            let what = format!(
                "a usage_expiry of {expiry} is shorter than the {span} that {buckets} buckets of \
                 {interval} cover"
            );
            return error(
                "usage_expiry",
                what,
                format!("write {span} or more, or fewer usage_buckets"),
            );
        }
        if expiry > LONGEST_EXPIRY {
            let what = format!("a usage_expiry of {expiry} is longer than {LONGEST_EXPIRY}");
            return error(
                "usage_expiry",
                what,
                format!("write {LONGEST_EXPIRY} or less"),
            );
        }
        Ok(Some(Settings { expiry, ..settings }))
    }
}
