//! The numbers of a plan, of a row, or of a `rate_limit` that names a plan: any of them may be left out, and are then those of what stands below.

use super::algorithm_fields::{self, AlgorithmFields};
use super::fields::{self, Fields};
use super::problem::{Location, Problems};
use super::units;
use crate::rules::source::Position;
use crate::time::{Rate, Unit};

/// The numbers that are written; `None` where one is not.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    requests_per_unit: Option<u64>,
    unit: Option<Unit>,
    unit_multiplier: Option<u32>,
    unlimited: Option<bool>,
    pub(super) fields: AlgorithmFields,
    /// Where each is written.
    pub(super) keys: Vec<(&'static str, Location)>,
}

/// What numbers that stand above each other come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sum {
    Unlimited,
    Limited(Rate),
    /// This key is nowhere.
    Lacks(&'static str),
    /// The window is longer than 100 years.
    TooLong(Rate),
}

impl Numbers {
    /// Those of a complete `rate_limit`; `None`: it is unlimited.
    pub(super) fn complete(rate: Option<Rate>, fields: AlgorithmFields, keys: Vec<(&'static str, Location)>) -> Self {
        let Some(Rate { requests_per_unit, unit, unit_multiplier }) = rate else {
            return Self { unlimited: Some(true), fields, keys, ..Self::default() };
        };
        let (requests_per_unit, unit, unit_multiplier) = (Some(requests_per_unit), Some(unit), Some(unit_multiplier));
        Self { requests_per_unit, unit, unit_multiplier, unlimited: None, fields, keys }
    }

    /// Whether nothing is written but what `sum` and the fields do not need.
    pub(super) fn is_empty(&self) -> bool {
        let Self { requests_per_unit, unit, unit_multiplier, unlimited, fields, .. } = self;
        requests_per_unit.is_none()
            && unit.is_none()
            && unit_multiplier.is_none()
            && unlimited.is_none()
            && *fields == AlgorithmFields::default()
    }
}

/// Reads the numbers of a map; `None` if one is wrong, which is reported. `locate` makes a location of a position.
pub(super) fn read(problems: &mut Problems, fields: &Fields<'_>, locate: impl Fn(&Problems, Position) -> Location) -> Option<Numbers> {
    let keys = fields.locations().map(|(key, at)| (key, locate(problems, at))).collect();
    let mut is_valid = !["unit", "unit_multiplier", "requests_per_unit", "unlimited"].iter().any(|key| fields.meant(key));
    let unlimited = fields.get("unlimited").map(|node| fields::bool(problems, node, "unlimited"));
    is_valid &= unlimited != Some(None);
    if unlimited == Some(Some(true)) {
        units::unlimited(problems, fields);
        return is_valid.then(|| Numbers { unlimited: Some(true), keys, ..Numbers::default() });
    }
    let requests_per_unit = fields.get("requests_per_unit").map(|node| fields::amount(problems, node, "requests_per_unit"));
    let unit = fields.get("unit").map(|node| units::read_unit(problems, node));
    let unit_multiplier = units::unit_multiplier(problems, fields);
    is_valid &= requests_per_unit != Some(None) && unit != Some(None) && unit_multiplier.is_ok();
    let algorithm = algorithm_fields::read(problems, fields)?;
    if algorithm.is_concurrency()
        && let Some(node) = fields.get("algorithm")
    {
        let what = "'algorithm: concurrency' is that of a whole descriptor, whose last entry is the request's id";
        problems.error_at(node, what, "write it in the 'rate_limit' of a descriptor without table and plan");
        is_valid = false;
    }
    is_valid.then_some(Numbers {
        requests_per_unit: requests_per_unit.flatten(),
        unit: unit.flatten(),
        unit_multiplier: unit_multiplier.ok().flatten(),
        unlimited: unlimited.flatten(),
        fields: algorithm,
        keys,
    })
}

/// The rate of numbers that stand above each other, the strongest first.
pub(super) fn sum(chain: &[&Numbers]) -> Sum {
    let is_unlimited = chain.iter().find_map(|numbers| match numbers.unlimited {
        // A number means that there is a limit.
        None if numbers.requests_per_unit.is_some() || numbers.unit.is_some() => Some(false),
        unlimited => unlimited,
    });
    if is_unlimited == Some(true) {
        return Sum::Unlimited;
    }
    let Some(requests_per_unit) = chain.iter().find_map(|numbers| numbers.requests_per_unit) else {
        return Sum::Lacks("requests_per_unit");
    };
    let Some(of_unit) = chain.iter().position(|numbers| numbers.unit.is_some()) else { return Sum::Lacks("unit") };
    let Some(unit) = chain[of_unit].unit else { return Sum::Lacks("unit") };
    // The multiple of another unit has no meaning for this one.
    let unit_multiplier = chain[..=of_unit].iter().find_map(|numbers| numbers.unit_multiplier).unwrap_or(1);
    let rate = Rate { requests_per_unit, unit, unit_multiplier };
    if rate.window().is_some() { Sum::Limited(rate) } else { Sum::TooLong(rate) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbers() -> impl Strategy<Value = Numbers> {
        let unit = prop::option::of(prop::sample::select(vec![Unit::Second, Unit::Day]));
        (prop::option::of(0..9_u64), unit, prop::option::of(1..9_u32), prop::option::of(any::<bool>())).prop_map(
            |(requests_per_unit, unit, unit_multiplier, unlimited)| Numbers {
                requests_per_unit,
                unit,
                unit_multiplier,
                unlimited,
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
            let (mut requests, mut unit, mut unlimited) = (None, None, false);
            for one in [&limit, &plan, &row] {
                requests = one.requests_per_unit.or(requests);
                unit = match (one.unit, unit) {
                    (Some(own), _) => Some((own, one.unit_multiplier.unwrap_or(1))),
                    (None, Some((unit, multiplier))) => Some((unit, one.unit_multiplier.unwrap_or(multiplier))),
                    // A multiple of a unit that stands below nothing.
                    (None, None) => None,
                };
                let says_number = one.requests_per_unit.is_some() || one.unit.is_some();
                unlimited = one.unlimited.unwrap_or(unlimited && !says_number);
            }
            let expected = match (unlimited, requests, unit) {
                (true, ..) => Sum::Unlimited,
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
