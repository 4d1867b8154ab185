//! The keys of a `rate_limit` or of `defaults` that choose how a limit is decided: `algorithm`, its
//! options, and `on_store_failure`; and what is recorded of it: `track_usage` and its options.
//!
//! Each value is checked for itself here. Which options belong to which algorithm, and their
//! bounds, is the algorithms' own knowledge.

use super::fields::{self, Fields};
use super::problem::{Problems, quoted};
use crate::core::algorithm::{AlgorithmKind, OPTIONS, OptionError, OptionField, Options};
use crate::core::time::{
    Anchor, LONGEST_WINDOW, ParseDurationError, PeriodKind, Rate, Span, WEEKDAYS, Zone,
};
use crate::core::usage;
use crate::limits::rules::limit::OnStoreFailure;
use crate::limits::rules::source::{Node, ValueType};

/// The longest duration: two of the longest windows. The sum of an instant and a longer one would
/// not be exact in Lua.
const LONGEST: Span = Span::from_micros(2 * LONGEST_WINDOW.micros());

/// The values that are written; `None` where a key is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AlgorithmFields {
    algorithm: Option<AlgorithmKind>,
    /// All but `kind`, which is [`AlgorithmFields::algorithm`] here.
    options: Options,
    pub(super) on_store_failure: Option<OnStoreFailure>,
    pub(super) usage: usage::Options,
}

impl AlgorithmFields {
    /// The options of a limit with these fields and these defaults, of which the first ones are the
    /// strongest.
    pub(super) fn apply_defaults(&self, defaults: &[Self]) -> Options {
        let kind = defaults
            .iter()
            .fold(self.algorithm, |kind, defaults| kind.or(defaults.algorithm))
            .unwrap_or_default();
        defaults.iter().fold(
            Options {
                kind,
                ..self.options
            },
            |options, defaults| options.apply_defaults(&defaults.options),
        )
    }

    /// The algorithm and the options of a limit, as defaults of its trial.
    pub(super) fn of(options: &Options) -> Self {
        Self {
            algorithm: Some(options.kind),
            options: *options,
            ..Self::default()
        }
    }

    /// The same with these options of usage.
    pub(super) const fn with_usage(self, usage: usage::Options) -> Self {
        Self { usage, ..self }
    }

    /// The options that are meant for this limit: its own, and those of these fields.
    pub(super) fn written(
        &self,
        kind: AlgorithmKind,
        of_limit: impl Iterator<Item = Self>,
    ) -> Options {
        of_limit.fold(
            Options {
                kind,
                ..self.options
            },
            |options, fields| options.apply_defaults(&fields.options),
        )
    }

    /// Those of a limit whose numbers stand above each other, the strongest first: what it says
    /// itself, and what is left of those below, from which another algorithm takes its own options
    /// only. What is recorded of it is none of them.
    pub(super) fn of_chain(chain: impl Iterator<Item = Self> + Clone) -> (Self, Vec<Self>) {
        let mut own = Self::default();
        let mut below = chain
            .clone()
            .take_while(|fields| fields.algorithm.is_none())
            .count();
        below = (below + 1).min(chain.clone().count());
        for fields in chain.clone().take(below) {
            own = Self {
                algorithm: own.algorithm.or(fields.algorithm),
                options: own.options.over(&fields.options),
                on_store_failure: own.on_store_failure.or(fields.on_store_failure),
                usage: usage::Options::default(),
            };
        }
        (
            own,
            chain
                .skip(below)
                .map(|fields| Self {
                    usage: usage::Options::default(),
                    ..fields
                })
                .collect(),
        )
    }

    /// Whether they leave the algorithm and its options to what stands below.
    pub(super) fn has_no_amount(&self) -> bool {
        *self
            == Self {
                on_store_failure: self.on_store_failure,
                ..Self::default()
            }
    }

    /// Whether they make windows of the calendar.
    pub(super) fn has_calendar(&self) -> bool {
        self.options.period == Some(PeriodKind::Calendar)
    }

    /// Whether they make limits of requests in flight.
    pub(super) fn is_concurrency(&self) -> bool {
        self.algorithm == Some(AlgorithmKind::Concurrency)
    }

    /// The warning that an anchor changes nothing.
    pub(super) fn idle_anchor(&self, rate: &Rate) -> Option<OptionError> {
        self.options.has_idle_anchor(rate).then(|| OptionError {
            option: "anchor",
            what: "'anchor' changes nothing: a day begins at midnight on every date".to_owned(),
            remedy: "write a time of day, such as 2026-03-31T06:00, or remove it".to_owned(),
        })
    }

    /// The errors of options that are not those of the algorithm beside them.
    pub(super) fn foreign(&self) -> Vec<OptionError> {
        self.algorithm
            .map(|kind| {
                Options {
                    kind,
                    ..self.options
                }
                .remove_foreign()
            })
            .unwrap_or_default()
    }
}

/// `track_usage` and its options.
pub(super) const USAGE: [&str; 5] = [
    "track_usage",
    "usage_interval",
    "usage_buckets",
    "usage_expiry",
    "usage_subjects",
];

/// The names of the keys.
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    ["algorithm", "on_store_failure"]
        .into_iter()
        .chain(OPTIONS.iter().map(|&(name, _)| name))
        .chain(USAGE)
}

/// Reads the keys; `None` if one of them is wrong, which is reported.
pub(super) fn read(problems: &mut Problems, fields: &Fields<'_>) -> Option<AlgorithmFields> {
    // Misspelled keys are reported already.
    let mut is_valid = !keys().any(|key| fields.meant(key));
    let mut read = AlgorithmFields::default();
    if let Some(node) = fields.get("algorithm") {
        is_valid &= set(&mut read.algorithm, algorithm(problems, node));
    }
    for (name, field) in OPTIONS {
        let Some(node) = fields.get(name) else {
            continue;
        };
        is_valid &= match field {
            OptionField::Number(field) => set(
                field(&mut read.options),
                fields::number(problems, node, name),
            ),
            OptionField::Amount(field) => set(
                field(&mut read.options),
                fields::amount(problems, node, name),
            ),
            OptionField::Duration(field) => {
                set(field(&mut read.options), duration(problems, node, name))
            }
            OptionField::Bool(field) => {
                set(field(&mut read.options), fields::bool(problems, node, name))
            }
            OptionField::Period(field) => set(
                field(&mut read.options),
                named(problems, node, name, &PeriodKind::NAMED),
            ),
            OptionField::Zone(field) => set(field(&mut read.options), zone(problems, node, name)),
            OptionField::Weekday(field) => set(
                field(&mut read.options),
                named(problems, node, name, &WEEKDAYS),
            ),
            OptionField::Anchor(field) => {
                set(field(&mut read.options), anchor(problems, node, name))
            }
        };
    }
    if let Some(node) = fields.get("on_store_failure") {
        is_valid &= set(
            &mut read.on_store_failure,
            named(problems, node, "on_store_failure", &OnStoreFailure::NAMED),
        );
    }
    let usage = read_usage(problems, fields)?;
    is_valid.then_some(AlgorithmFields { usage, ..read })
}

/// Reads `track_usage` and its options; `None` if one of them is wrong, which is reported.
pub(super) fn read_usage(problems: &mut Problems, fields: &Fields<'_>) -> Option<usage::Options> {
    let (mut read, mut is_valid) = (usage::Options::default(), true);
    for name in USAGE {
        let Some(node) = fields.get(name) else {
            continue;
        };
        is_valid &= match name {
            "track_usage" => set(&mut read.track, fields::bool(problems, node, name)),
            "usage_interval" => set(&mut read.interval, duration(problems, node, name)),
            "usage_buckets" => set(&mut read.buckets, fields::number(problems, node, name)),
            "usage_expiry" => set(&mut read.expiry, duration(problems, node, name)),
            _ => set(&mut read.subjects, fields::number(problems, node, name)),
        };
    }
    is_valid.then_some(read)
}

/// Whether there is a value.
fn set<T>(field: &mut Option<T>, value: Option<T>) -> bool {
    *field = value;
    field.is_some()
}

fn algorithm(problems: &mut Problems, node: &Node) -> Option<AlgorithmKind> {
    let text = fields::text(problems, node, "algorithm")?;
    fields::one_of(problems, node, text, "algorithm", &AlgorithmKind::NAMED)
}

fn named<T: Copy>(
    problems: &mut Problems,
    node: &Node,
    key: &str,
    all: &[(&'static str, T)],
) -> Option<T> {
    let text = fields::text(problems, node, key)?;
    fields::one_of(problems, node, text, &format!("value of '{key}'"), all)
}

/// A time zone; `None`, with an error, when there is none of that name.
fn zone(problems: &mut Problems, node: &Node, key: &str) -> Option<Zone> {
    let text = fields::text(problems, node, key)?;
    let zone = Zone::named(text);
    if zone.is_none() {
        let remedy = fields::nearest(text, Zone::names()).map_or_else(
            || "write a name of the IANA database, such as Europe/Berlin".to_owned(),
            |near| format!("write '{near}'"),
        );
        problems.error_at(node, format!("unknown time zone: {}", quoted(text)), remedy);
    }
    zone
}

fn anchor(problems: &mut Problems, node: &Node, key: &str) -> Option<Anchor> {
    let text = fields::text(problems, node, key)?;
    let read = text.parse::<Anchor>().map_err(|error| {
        let (what, remedy) = error.report();
        problems.error_at(node, format!("'{key}' is {}, {what}", quoted(text)), remedy);
    });
    read.ok()
}

/// A duration; `None`, with an error, when it is something else.
fn duration(problems: &mut Problems, node: &Node, key: &str) -> Option<Span> {
    let text = node.text().unwrap_or_default();
    let (what, remedy) = match (node.value_type(), text.parse::<Span>()) {
        (ValueType::Mapping | ValueType::Sequence | ValueType::Binary | ValueType::Bool, _) => (
            format!("'{key}' is {}, not a duration", node.value_type().name()),
            how(),
        ),
        (_, Ok(span)) if span <= LONGEST => return Some(span),
        (_, Ok(_) | Err(ParseDurationError::TooLong)) => (
            format!(
                "'{key}' is {}, which is longer than 200 years",
                quoted(text)
            ),
            "write a shorter duration".to_owned(),
        ),
        (ValueType::Int | ValueType::Huge | ValueType::Float, _)
        | (_, Err(ParseDurationError::NoUnit)) => {
            let remedy = match text.parse::<u32>() {
                Ok(number) => format!(
                    "write '{key}: {number}s' for seconds, or another unit: h, m, s, ms, us"
                ),
                Err(_) => how(),
            };
            (
                format!("'{key}' is {}, which has no unit", quoted(text)),
                remedy,
            )
        }
        (_, Err(error)) => {
            let (what, remedy) = error.report();
            (
                format!("'{key}' is {}, {what}", quoted(text)),
                remedy.to_owned(),
            )
        }
    };
    problems.error_at(node, what, remedy);
    None
}

/// How to write a duration.
fn how() -> String {
    ParseDurationError::Other.report().1.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::{Unit, Weekday};

    const SECOND: Span = Span::from_secs(1);

    fn full() -> AlgorithmFields {
        let options = Options {
            kind: AlgorithmKind::default(),
            burst: Some(10),
            scale: Some(1),
            default_cost: Some(7),
            bucket_interval: Some(SECOND),
            bucket_span: Some(SECOND),
            subject_expiry: Some(SECOND),
            max_delay: Some(SECOND),
            max_duration: Some(SECOND),
            count_denied: Some(true),
            max_debt: Some(2),
            period: Some(PeriodKind::Calendar),
            timezone: Zone::named("Europe/Berlin"),
            week_starts: Some(Weekday::Sunday),
            anchor: "2026-03-31".parse().ok(),
            calendar_months: false,
        };
        AlgorithmFields {
            algorithm: Some(AlgorithmKind::TokenBucket),
            options,
            on_store_failure: Some(OnStoreFailure::Deny),
            ..Default::default()
        }
    }

    #[test]
    fn only_defaults_of_the_limits_own_algorithm_apply() {
        let buckets = Options {
            bucket_interval: Some(SECOND),
            bucket_span: Some(SECOND),
            subject_expiry: Some(SECOND),
            ..Options::default()
        };
        let Options {
            period,
            timezone,
            week_starts,
            anchor,
            ..
        } = full().options;
        let calendar = Options {
            period,
            timezone,
            week_starts,
            anchor,
            ..Options::default()
        };
        for (kind, options) in [
            (AlgorithmKind::FixedWindow, calendar),
            (AlgorithmKind::SlidingWindowLog, Options::default()),
            (AlgorithmKind::SlidingWindowCounter, Options::default()),
            (AlgorithmKind::SlidingWindowBuckets, buckets),
            (
                AlgorithmKind::TokenBucket,
                Options {
                    burst: Some(10),
                    ..Options::default()
                },
            ),
            (
                AlgorithmKind::LeakyBucket,
                Options {
                    max_delay: Some(SECOND),
                    ..Options::default()
                },
            ),
        ] {
            let max_debt = (kind != AlgorithmKind::FixedWindow).then_some(2);
            let expected = Options {
                kind,
                scale: Some(1),
                default_cost: Some(7),
                count_denied: Some(true),
                max_debt,
                ..options
            };
            assert_eq!(
                AlgorithmFields {
                    algorithm: Some(kind),
                    ..AlgorithmFields::default()
                }
                .apply_defaults(&[full()]),
                expected
            );
        }
        assert_eq!(
            AlgorithmFields::default().apply_defaults(&[full()]),
            Options {
                burst: Some(10),
                max_debt: Some(2),
                ..Options {
                    kind: AlgorithmKind::TokenBucket,
                    scale: Some(1),
                    default_cost: Some(7),
                    count_denied: Some(true),
                    ..Options::default()
                }
            }
        );
        assert_eq!(
            AlgorithmFields::default().apply_defaults(&[]),
            Options::default()
        );
    }

    #[test]
    fn a_limits_own_options_win_over_defaults() {
        let own = Options {
            burst: Some(3),
            count_denied: Some(false),
            ..Options::default()
        };
        let options = AlgorithmFields {
            options: own,
            ..AlgorithmFields::default()
        }
        .apply_defaults(&[full()]);
        assert_eq!(
            (options.kind, options.burst, options.count_denied),
            (AlgorithmKind::TokenBucket, Some(3), Some(false))
        );
        // This includes an option of another algorithm, which is an error and must not disappear.
        let own = Options {
            burst: Some(3),
            ..Options::default()
        };
        let leaky = AlgorithmFields {
            algorithm: Some(AlgorithmKind::LeakyBucket),
            options: own,
            ..AlgorithmFields::default()
        };
        assert_eq!(leaky.apply_defaults(&[full()]).burst, Some(3));
    }
    #[test]
    fn the_default_of_max_debt_applies_where_refused_hits_count() {
        let per_hour = Rate {
            requests_per_unit: 10,
            unit: Unit::Hour,
            unit_multiplier: 1,
        };
        let max_debt = |own: Options, defaults: &[Options]| {
            let of = |options| AlgorithmFields {
                algorithm: Some(AlgorithmKind::TokenBucket),
                options,
                ..AlgorithmFields::default()
            };
            let defaults: Vec<_> = defaults.iter().copied().map(of).collect();
            let mut options = of(own).apply_defaults(&defaults);
            options.leave_out_defaults(&own, &per_hour);
            options.max_debt
        };
        let counted = |count_denied| Options {
            count_denied: Some(count_denied),
            ..Options::default()
        };
        let debt = |limits| Options {
            max_debt: Some(limits),
            ..Options::default()
        };
        assert_eq!(max_debt(counted(false), &[debt(2)]), None);
        assert_eq!(max_debt(counted(true), &[debt(2)]), Some(2));
        // Whichever of several defaults says that they count.
        assert_eq!(
            max_debt(Options::default(), &[debt(3), counted(true)]),
            Some(3)
        );
        assert_eq!(
            max_debt(Options::default(), &[counted(true), debt(3)]),
            Some(3)
        );
        // What the limit says of itself stays, and is an error.
        assert_eq!(max_debt(debt(2), &[]), Some(2));
    }
}
