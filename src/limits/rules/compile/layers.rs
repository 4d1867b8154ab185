//! Resolves the layers of a limit to a rate, options and an amount. Pure: errors are returned, and
//! `build.rs` reports them.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::partial::{LayerSource, PartialLimit};
use crate::core::algorithm::{Algorithm, OptionError, Options};
use crate::core::time::{PeriodKind, Rate};
use crate::core::usage;
use crate::limits::rules::Commit;
use crate::limits::rules::limit::{Amount, Limit, Scale};
use crate::limits::rules::place::Place;
use crate::limits::rules::region::{RegionShare, RegionShares};

/// The layers of a limit.
#[derive(Clone, Copy, Default)]
pub(super) struct Layers<'l> {
    /// Layers that its author wrote for it, the strongest first: a row, a plan, the `rate_limit`.
    pub(super) own: &'l [&'l PartialLimit],
    /// Layers for several limits. A layer from outside of the files is left out where it does not
    /// fit this limit.
    pub(super) below: &'l [Arc<PartialLimit>],
    /// The last descriptor of the limit has one value, and therefore it is not a request's id.
    pub(super) ends_with_value: bool,
}

/// Result of resolving layers.
#[derive(Default)]
pub(super) struct Resolved {
    /// `None`: unlimited, or only rows have amounts.
    pub(super) amount: Option<Amount>,
    /// Rows have to complete it.
    pub(super) is_by_rows: bool,
    /// The options of its algorithm.
    pub(super) options: Options,
    pub(super) usage: Option<usage::Settings>,
}

/// Why layers have no rate.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoRate<'l> {
    /// No layer has this key.
    Missing(&'static str),
    /// A layer above `unlimited` has a key that needs a limit: this key, and its place if it is in
    /// the topmost layer.
    BesideUnlimited(&'static str, Option<&'l Place>),
}

/// Further inputs of an amount.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) share: RegionShare,
    pub(super) calendar_months: bool,
    pub(super) commit: Commit,
    /// `commit` is written for the domain; otherwise a setting of the process decides it.
    pub(super) declares_commit: bool,
}

impl Resolved {
    pub(super) fn by_rows() -> Self {
        Self {
            is_by_rows: true,
            ..Self::default()
        }
    }

    /// Writes it and the other fields of its layers to a limit.
    pub(super) fn fill(&self, limit: &mut Limit, layers: &Layers<'_>) {
        limit.amount = self.amount;
        limit.is_by_rows = self.is_by_rows;
        limit.name = layers.find(|layer| layer.name.clone());
        limit.display_name = Limit::display_name_of(limit.name.as_deref(), &limit.levels);
        let shadow_mode = layers.find(|layer| layer.shadow_mode);
        limit.shadow_mode = shadow_mode.unwrap_or(limit.shadow_mode);
        limit.on_store_failure = layers.find(|layer| layer.on_store_failure);
    }
}

impl<'l> Layers<'l> {
    /// With other layers of the author.
    pub(super) fn with_own<'o>(&self, own: &'o [&'o PartialLimit]) -> Layers<'o>
    where
        'l: 'o,
    {
        Layers { own, ..*self }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &'l PartialLimit> + Clone + use<'l> {
        let below = self.below.iter().map(AsRef::as_ref);
        self.own.iter().copied().chain(below)
    }

    /// The value of the strongest layer that has one.
    pub(super) fn find<T>(&self, value: impl Fn(&'l PartialLimit) -> Option<T>) -> Option<T> {
        self.all().find_map(value)
    }

    /// The rate; `None`: unlimited.
    pub(super) fn rate(&self) -> Result<Option<Rate>, NoRate<'l>> {
        // A number means that there is a limit; a unit alone does not.
        let decides = self
            .all()
            .position(|layer| layer.unlimited.is_some() || layer.requests_per_unit.is_some())
            .ok_or(NoRate::Missing("requests_per_unit"))?;
        if self.all().nth(decides).and_then(|layer| layer.unlimited) == Some(true) {
            let mut above = self.all().take(decides).enumerate();
            let beside = above.find_map(|(index, layer)| Some((index, layer.of_a_limit()?)));
            return beside.map_or(Ok(None), |(index, (key, at))| {
                Err(NoRate::BesideUnlimited(key, (index == 0).then_some(at)))
            });
        }
        let requests_per_unit = self.find(|layer| layer.requests_per_unit);
        let unit = self.find(|layer| layer.unit);
        let unit_multiplier = self.down_to_unit().find_map(|layer| layer.unit_multiplier);
        Ok(Some(Rate {
            requests_per_unit: requests_per_unit.ok_or(NoRate::Missing("requests_per_unit"))?,
            unit: unit.ok_or(NoRate::Missing("unit"))?,
            unit_multiplier: unit_multiplier.unwrap_or(1),
        }))
    }

    /// The layers down to the one with the unit: multiples of another unit have no meaning.
    fn down_to_unit(&self) -> impl Iterator<Item = &'l PartialLimit> + use<'l> {
        let of_unit = self.all().position(|layer| layer.unit.is_some());
        let count = of_unit.map_or(usize::MAX, |index| index + 1);
        self.all().take(count)
    }

    /// The place of a key in the author's layers.
    pub(super) fn place(&self, key: &str) -> Option<&'l Place> {
        if key == "unit_multiplier" {
            let mut own = self.down_to_unit().take(self.own.len());
            return own.find_map(|layer| layer.place(key));
        }
        self.own.iter().find_map(|layer| layer.place(key))
    }

    /// The options of its algorithm, and the subset that is meant for this limit: from the layers
    /// below the one that names the algorithm, it takes its own options only.
    fn options(&self) -> (Options, Options) {
        let named = self.own.iter().position(|layer| layer.algorithm.is_some());
        let count = named.map_or(self.own.len(), |index| index + 1);
        let (head, tail) = self.own.split_at(count);
        let mut meant = Options {
            kind: self.find(|layer| layer.algorithm).unwrap_or_default(),
            ..Options::default()
        };
        for layer in head {
            meant = meant.over(&layer.options);
        }
        for layer in tail {
            meant = meant.apply_defaults(&layer.options);
        }
        let mut all = meant;
        for layer in self.below {
            all = all.apply_defaults(&layer.options);
            if matches!(layer.source, LayerSource::Overlay(_)) {
                meant = meant.apply_defaults(&layer.options);
            }
        }
        (all, meant)
    }

    /// The shares of regions, and their layer.
    pub(super) fn region_shares(&self) -> Option<(&'l PartialLimit, &'l Arc<RegionShares>)> {
        self.find(|layer| Some((layer, layer.region_shares.as_ref()?)))
    }

    /// Makes a limit of these layers; all that is wrong if they make none.
    pub(super) fn resolve(
        &self,
        mut rate: Rate,
        terms: &Terms,
    ) -> Result<Resolved, Vec<OptionError>> {
        let (mut options, meant) = self.options();
        // Without the options of other algorithms, the next error shows too.
        let mut errors = options.remove_foreign();
        options.leave_out_defaults(&meant, &rate);
        let is_multiplied =
            meant.period == Some(PeriodKind::Calendar) && self.place("unit_multiplier").is_some();
        errors.extend(options.remove_wrong_calendar(&rate, is_multiplied));
        options.calendar_months = terms.calendar_months;
        let misplaced = self.remove_window(options.kind, &mut rate);
        let (share, whole) = (terms.share, rate.requests_per_unit);
        let (own, burst) = (share.of_rate(rate), options.burst);
        // An error names the numbers of the file, in all regions alike.
        let mut algorithm = misplaced.map_or_else(|| Algorithm::try_new(&rate, &options), Err);
        if share != RegionShare::default() && algorithm.is_ok() {
            let burst = burst.map(|burst| share.of(burst));
            algorithm = Algorithm::try_new(&own, &Options { burst, ..options });
        }
        let usage = self.usage(rate.window().unwrap_or_default());
        let is_tracked = matches!(usage, Ok(Some(_)));
        errors.extend(self.remove_misplaced(&mut options, &meant, terms, is_tracked));
        match (algorithm, usage, self.reports(options.kind)) {
            (Ok(algorithm), Ok(usage), Ok(reports)) if errors.is_empty() => {
                let amount = Amount {
                    whole,
                    share,
                    has_own_burst: burst.is_some_and(|burst| burst != whole),
                    default_cost: options.default_cost.and_then(NonZeroU64::new),
                    ..Amount::new(own, Scale::new(options.scale), algorithm)
                };
                Ok(Resolved {
                    amount: Some(amount.with_features(&options, reports)),
                    is_by_rows: false,
                    options,
                    usage,
                })
            }
            (algorithm, usage, reports) => {
                errors.extend(algorithm.err());
                errors.extend(usage.err());
                errors.extend(reports.err());
                Err(errors)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::partial::Places;
    use super::*;
    use crate::core::algorithm::AlgorithmKind;
    use crate::core::time::Unit;

    /// Any of several defaults may enable `count_denied`, without which `max_debt` has no effect.
    #[test]
    fn the_order_of_defaults_does_not_matter_to_max_debt() {
        let with = |change: fn(&mut Options)| {
            let mut layer = PartialLimit {
                algorithm: Some(AlgorithmKind::TokenBucket),
                ..PartialLimit::default()
            };
            change(&mut layer.options);
            Arc::new(layer)
        };
        let rate = Rate {
            requests_per_unit: 10,
            unit: Unit::Hour,
            unit_multiplier: 1,
        };
        let own = PartialLimit::default();
        let debt = with(|options| options.max_debt = Some(3));
        let counted = with(|options| options.count_denied = Some(true));
        for below in [[debt.clone(), counted.clone()], [counted, debt]] {
            let layers = Layers {
                own: &[&own],
                below: &below,
                ends_with_value: false,
            };
            let (mut options, meant) = layers.options();
            options.leave_out_defaults(&meant, &rate);
            assert_eq!(options.max_debt, Some(3));
        }
    }

    fn layer() -> impl Strategy<Value = PartialLimit> {
        let unit = prop::option::of(prop::sample::select(vec![Unit::Second, Unit::Day]));
        (
            prop::option::of(0..9_u64),
            unit,
            prop::option::of(1..9_u32),
            prop::option::of(any::<bool>()),
        )
            .prop_map(|(requests_per_unit, unit, unit_multiplier, unlimited)| {
                PartialLimit {
                    requests_per_unit,
                    unit,
                    unit_multiplier,
                    unlimited,
                    places: Places {
                        at: Place::default(),
                        keys: [
                            ("unit", unit.is_some()),
                            ("unit_multiplier", unit_multiplier.is_some()),
                        ]
                        .into_iter()
                        .filter_map(|(key, is_written)| {
                            is_written.then_some((key, Place::default()))
                        })
                        .collect(),
                    },
                    ..PartialLimit::default()
                }
            })
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        /// The strongest layer decides, and its missing options have no effect.
        #[test]
        fn what_stands_above_decides(row in layer(), plan in layer(), limit in layer()) {
            let all = [&row, &plan, &limit];
            // One by one, from the weakest on.
            let (mut requests, mut unit, mut unlimited, mut beside) = (None, None, false, None);
            for (is_row, one) in [(false, &limit), (false, &plan), (true, &row)] {
                requests = one.requests_per_unit.or(requests);
                unit = match (one.unit, unit) {
                    (Some(own), _) => Some((own, one.unit_multiplier.unwrap_or(1))),
                    (None, Some((unit, multiplier))) => {
                        Some((unit, one.unit_multiplier.unwrap_or(multiplier)))
                    }
                    // A multiple without a unit above it.
                    (None, None) => None,
                };
                beside = match (one.unlimited, one.places.keys.first()) {
                    (None, Some((key, at))) => Some((*key, is_row.then_some(at))),
                    (None, None) => beside,
                    (Some(_), _) => None,
                };
                unlimited = one
                    .unlimited
                    .unwrap_or(unlimited && one.requests_per_unit.is_none());
            }
            let expected = match (unlimited, requests, unit) {
                (true, ..) => {
                    beside.map_or(Ok(None), |(key, at)| Err(NoRate::BesideUnlimited(key, at)))
                }
                (false, None, _) => Err(NoRate::Missing("requests_per_unit")),
                (false, Some(_), None) => Err(NoRate::Missing("unit")),
                (false, Some(requests_per_unit), Some((unit, unit_multiplier))) => Ok(Some(Rate {
                    requests_per_unit,
                    unit,
                    unit_multiplier,
                })),
            };
            let layers = |own| Layers {
                own,
                below: &[],
                ends_with_value: false,
            };
            prop_assert_eq!(&layers(&all).rate(), &expected);
            // An empty layer changes nothing.
            let (empty, one) = (PartialLimit::default(), layers(&all));
            let with_empty = [&row, &empty, &plan, &limit];
            prop_assert_eq!(one.with_own(&with_empty).rate(), one.rate());
        }
    }
}
