//! The numbers of a plan, of a row, or of a `rate_limit` that names a plan: any of them may be left
//! out, and are then those of what stands below. So are the name and the mode that stand beside
//! them.

use super::algorithm_fields::{self, AlgorithmFields, USAGE};
use super::fields::{self, Fields};
use super::problem::{Location, Problems};
use super::units;
use crate::core::time::{Rate, Unit};
use crate::limits::rules::source::Position;

/// The numbers that are written; `None` where one is not.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    requests_per_unit: Option<u64>,
    unit: Option<Unit>,
    unit_multiplier: Option<u32>,
    unlimited: Option<bool>,
    pub(super) fields: AlgorithmFields,
    /// The name that responses show. That of a row is none of them: few rows share it.
    pub(super) name: Option<Box<str>>,
    pub(super) shadow_mode: Option<bool>,
    /// Where each is written.
    pub(super) keys: Vec<(&'static str, Location)>,
}

/// What numbers that stand above each other come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sum {
    /// Numbers above `unlimited` say something that only a limit has: this key, and where it is if
    /// the topmost ones say it.
    Unlimited {
        beside: Option<(&'static str, Option<Location>)>,
    },
    Limited(Rate),
    /// This key is nowhere.
    Lacks(&'static str),
    /// The window is longer than 100 years.
    TooLong(Rate),
}

impl Numbers {
    /// Those of a complete `rate_limit`; `None`: it is unlimited.
    pub(super) fn complete(
        rate: Option<Rate>,
        fields: AlgorithmFields,
        keys: Vec<(&'static str, Location)>,
    ) -> Self {
        let Some(Rate {
            requests_per_unit,
            unit,
            unit_multiplier,
        }) = rate
        else {
            return Self {
                unlimited: Some(true),
                fields,
                keys,
                ..Self::default()
            };
        };
        let (requests_per_unit, unit, unit_multiplier) =
            (Some(requests_per_unit), Some(unit), Some(unit_multiplier));
        Self {
            requests_per_unit,
            unit,
            unit_multiplier,
            fields,
            keys,
            ..Self::default()
        }
    }

    /// The same with this name.
    pub(super) fn named(self, name: Option<&str>) -> Self {
        Self {
            name: name.map(Into::into),
            ..self
        }
    }

    /// Whether they leave the amount to what stands below.
    pub(super) fn has_no_amount(&self) -> bool {
        let Self {
            requests_per_unit,
            unit,
            unit_multiplier,
            unlimited,
            ..
        } = self;
        requests_per_unit.is_none()
            && unit.is_none()
            && unit_multiplier.is_none()
            && unlimited.is_none()
            && self.fields.has_no_amount()
    }

    /// A key of what only a limit has, but for its number.
    fn of_a_limit(&self) -> Option<(&'static str, Location)> {
        let is_one = |key: &str| {
            matches!(key, "unit" | "unit_multiplier")
                || (algorithm_fields::keys().any(|known| known == key) && !USAGE.contains(&key))
        };
        self.keys.iter().copied().find(|(key, _)| is_one(key))
    }
}

/// Where each of these is written, the strongest first, but for a multiple of another unit.
pub(super) fn keys(chain: &[&Numbers]) -> Vec<(&'static str, Location)> {
    let of_unit = chain
        .iter()
        .position(|numbers| numbers.unit.is_some())
        .unwrap_or(chain.len());
    let keys = chain
        .iter()
        .enumerate()
        .flat_map(|(index, numbers)| numbers.keys.iter().map(move |key| (index, *key)));
    keys.filter(|(index, (key, _))| *index <= of_unit || *key != "unit_multiplier")
        .map(|(_, key)| key)
        .collect()
}

/// Reads the numbers of a map; `None` if one is wrong, which is reported. `locate` makes a location
/// of a position.
pub(super) fn read(
    problems: &mut Problems,
    fields: &Fields<'_>,
    locate: impl Fn(&Problems, Position) -> Location,
) -> Option<Numbers> {
    let written = fields
        .locations()
        .filter(|(key, _)| fields.get(key).is_some());
    let keys = written
        .map(|(key, at)| (key, locate(problems, at)))
        .collect();
    let shadow_mode = fields
        .get("shadow_mode")
        .map(|node| fields::bool(problems, node, "shadow_mode"));
    let beside = Numbers {
        shadow_mode: shadow_mode.flatten(),
        keys,
        ..Numbers::default()
    };
    let mut is_valid = !["unit", "unit_multiplier", "requests_per_unit", "unlimited"]
        .iter()
        .any(|key| fields.meant(key));
    let unlimited = fields
        .get("unlimited")
        .map(|node| fields::bool(problems, node, "unlimited"));
    is_valid &= unlimited != Some(None) && shadow_mode != Some(None);
    if unlimited == Some(Some(true)) {
        units::unlimited(problems, fields);
        return is_valid.then_some(Numbers {
            unlimited: Some(true),
            ..beside
        });
    }
    let requests_per_unit = fields
        .get("requests_per_unit")
        .map(|node| fields::amount(problems, node, "requests_per_unit"));
    let unit = fields
        .get("unit")
        .map(|node| units::read_unit(problems, node));
    let unit_multiplier = units::unit_multiplier(problems, fields);
    is_valid &= requests_per_unit != Some(None) && unit != Some(None) && unit_multiplier.is_ok();
    let algorithm = algorithm_fields::read(problems, fields)?;
    if algorithm.is_concurrency()
        && let Some(node) = fields.get("algorithm")
    {
        let what = "'algorithm: concurrency' is that of a whole descriptor, whose last entry is \
            the request's id";
        problems.error_at(
            node,
            what,
            "write it in the 'rate_limit' of a descriptor without table and plan",
        );
        is_valid = false;
    }
    is_valid.then_some(Numbers {
        requests_per_unit: requests_per_unit.flatten(),
        unit: unit.flatten(),
        unit_multiplier: unit_multiplier.ok().flatten(),
        unlimited: unlimited.flatten(),
        fields: algorithm,
        ..beside
    })
}

/// The rate of numbers that stand above each other, the strongest first.
pub(super) fn sum(chain: &[&Numbers]) -> Sum {
    // A number means that there is a limit; a unit alone does not.
    let decides = chain
        .iter()
        .position(|numbers| numbers.unlimited.is_some() || numbers.requests_per_unit.is_some());
    if let Some(decides) = decides.filter(|&decides| chain[decides].unlimited == Some(true)) {
        let mut above = chain[..decides]
            .iter()
            .enumerate()
            .filter_map(|(index, numbers)| Some((index, numbers.of_a_limit()?)));
        return Sum::Unlimited {
            beside: above
                .next()
                .map(|(index, (key, at))| (key, (index == 0).then_some(at))),
        };
    }
    let Some(requests_per_unit) = chain.iter().find_map(|numbers| numbers.requests_per_unit) else {
        return Sum::Lacks("requests_per_unit");
    };
    let Some(of_unit) = chain.iter().position(|numbers| numbers.unit.is_some()) else {
        return Sum::Lacks("unit");
    };
    let Some(unit) = chain[of_unit].unit else {
        return Sum::Lacks("unit");
    };
    // The multiple of another unit has no meaning for this one.
    let unit_multiplier = chain[..=of_unit]
        .iter()
        .find_map(|numbers| numbers.unit_multiplier)
        .unwrap_or(1);
    let rate = Rate {
        requests_per_unit,
        unit,
        unit_multiplier,
    };
    if rate.window().is_some() {
        Sum::Limited(rate)
    } else {
        Sum::TooLong(rate)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbers() -> impl Strategy<Value = Numbers> {
        let unit = prop::option::of(prop::sample::select(vec![Unit::Second, Unit::Day]));
        (
            prop::option::of(0..9_u64),
            unit,
            prop::option::of(1..9_u32),
            prop::option::of(any::<bool>()),
        )
            .prop_map(
                |(requests_per_unit, unit, unit_multiplier, unlimited)| Numbers {
                    requests_per_unit,
                    unit,
                    unit_multiplier,
                    unlimited,
                    keys: [
                        ("unit", unit.is_some()),
                        ("unit_multiplier", unit_multiplier.is_some()),
                    ]
                    .into_iter()
                    .filter_map(|(key, is_written)| {
                        is_written.then_some((key, Problems::default().here(Position::default())))
                    })
                    .collect(),
                    ..Numbers::default()
                },
            )
    }

    proptest! {
        /// What stands further up decides, and what it does not say is as if it were not there.
        #[test]
        fn what_stands_above_decides(row in numbers(), plan in numbers(), limit in numbers()) {
            let all = [&row, &plan, &limit];
            // One by one, from the weakest on.
            let (mut requests, mut unit, mut unlimited, mut beside) = (None, None, false, None);
            for (is_row, one) in [(false, &limit), (false, &plan), (true, &row)] {
                requests = one.requests_per_unit.or(requests);
                unit = match (one.unit, unit) {
                    (Some(own), _) => Some((own, one.unit_multiplier.unwrap_or(1))),
                    (None, Some((unit, multiplier))) => Some((unit, one.unit_multiplier.unwrap_or(multiplier))),
                    // A multiple of a unit that stands below nothing.
                    (None, None) => None,
                };
                beside = match (one.unlimited, one.keys.first()) {
                    (None, Some(&(key, at))) => Some((key, is_row.then_some(at))),
                    (None, None) => beside,
                    (Some(_), _) => None,
                };
                unlimited = one.unlimited.unwrap_or(unlimited && one.requests_per_unit.is_none());
            }
            let expected = match (unlimited, requests, unit) {
                (true, ..) => Sum::Unlimited { beside },
                (false, None, _) => Sum::Lacks("requests_per_unit"),
                (false, Some(_), None) => Sum::Lacks("unit"),
                (false, Some(requests_per_unit), Some((unit, unit_multiplier))) => Sum::Limited(Rate { requests_per_unit, unit, unit_multiplier }),
            };
            prop_assert_eq!(sum(&all), expected);
            // What says nothing changes nothing.
            prop_assert_eq!(sum(&[&row, &Numbers::default(), &plan, &limit]), expected);
        }
    }
}
