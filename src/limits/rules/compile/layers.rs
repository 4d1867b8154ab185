//! Resolves the layers of a limit to a rate, options and an amount. Pure: errors are returned, and
//! `build.rs` reports them.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::partial::{LayerSource, PartialLimit};
use crate::core::algorithm::{Algorithm, AlgorithmKind, OptionError, Options};
use crate::core::time::{PeriodKind, Rate, Span, Unit};
use crate::core::usage;
use crate::limits::rules::limit::{Amount, Limit, Scale};
use crate::limits::rules::place::Place;
use crate::limits::rules::region::{RegionShare, RegionShares};
use crate::limits::rules::thresholds::Thresholds;
use crate::limits::rules::{Commit, messages};

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

    /// The settings of usage of a limit with periods that are not longer.
    pub(super) fn usage(&self, period: Span) -> Result<Option<usage::Settings>, OptionError> {
        let add = |usage: usage::Options, layer: &PartialLimit| usage.apply_defaults(&layer.usage);
        let options = self.all().fold(usage::Options::default(), add);
        match options.without_effect() {
            Some(error) if self.place(error.option).is_some() => Err(error),
            _ => options.settings(period),
        }
    }

    /// The shares of regions, and their layer.
    pub(super) fn region_shares(&self) -> Option<(&'l PartialLimit, &'l Arc<RegionShares>)> {
        self.find(|layer| Some((layer, layer.region_shares.as_ref()?)))
    }

    /// The thresholds. Those of defaults are left out for an algorithm that has none.
    fn notify(&self, kind: AlgorithmKind) -> Result<Thresholds, OptionError> {
        use AlgorithmKind::{Concurrency, LeakyBucket};
        let has_none = matches!(kind, LeakyBucket | Concurrency);
        match self.find(|layer| Some((&layer.source, layer.notify?))) {
            Some((_, notify)) if !has_none => Ok(notify),
            Some((LayerSource::Own | LayerSource::Overlay(_), notify))
                if notify != Thresholds::default() =>
            {
                Err(messages::algorithm_without_notify(kind.name()).of("notify"))
            }
            Some(_) | None => Ok(Thresholds::default()),
        }
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
        let mut misplaced = None;
        if options.kind == AlgorithmKind::Concurrency {
            // A control plane sends a unit with each limit.
            (rate.unit, rate.unit_multiplier) = (Unit::None, 1);
            misplaced = self.misplaced_concurrency();
        }
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
        if options.lease == Some(true)
            && let Some(error) = misplaced_lease(is_tracked, terms)
        {
            options.lease = None;
            // A lease of the defaults was not meant for this limit, and goes without an error.
            errors.extend((meant.lease == Some(true)).then_some(error));
        }
        if options.reservations.is_some()
            && let Some(error) = self.misplaced_reservations(terms.commit)
        {
            options.reservations = None;
            errors.extend(meant.reservations.map(|_| error));
        }
        match (algorithm, usage, self.notify(options.kind)) {
            (Ok(algorithm), Ok(usage), Ok(notify)) if errors.is_empty() => Ok(Resolved {
                amount: Some(Amount {
                    whole,
                    share,
                    has_own_burst: burst.is_some_and(|burst| burst != whole),
                    default_cost: options.default_cost.and_then(NonZeroU64::new),
                    lease: options.lease == Some(true),
                    reservations: options.reservations,
                    notify,
                    ..Amount::new(own, Scale::new(options.scale), algorithm)
                }),
                is_by_rows: false,
                options,
                usage,
            }),
            (algorithm, usage, notify) => {
                errors.extend(algorithm.err());
                errors.extend(usage.err());
                errors.extend(notify.err());
                Err(errors)
            }
        }
    }

    /// Why hits of it cannot be reserved, for any algorithm.
    fn misplaced_reservations(&self, commit: Commit) -> Option<OptionError> {
        let has_trial = || self.all().any(|layer| layer.trial.is_some());
        let message = match commit {
            Commit::AllOrNone => messages::reservations_all_or_none(),
            Commit::Each if has_trial() => messages::reservations_with_trial(),
            Commit::Each => return None,
        };
        Some(message.of("reservations"))
    }

    /// Why requests in flight cannot be limited by it: the last descriptor of such a limit is the
    /// request's id.
    fn misplaced_concurrency(&self) -> Option<OptionError> {
        let is_meant = |layer: &PartialLimit| {
            layer.is_concurrency() && !matches!(layer.source, LayerSource::Defaults(_))
        };
        let message = match self.all().any(is_meant) {
            false => messages::concurrency_by_default(),
            true if self.ends_with_value => messages::concurrency_of_one_value(),
            true => return None,
        };
        Some(message.of("algorithm"))
    }
}

/// Why hits of a limit cannot be drawn ahead of its requests, for any algorithm.
fn misplaced_lease(is_tracked: bool, terms: &Terms) -> Option<OptionError> {
    let message = match terms.commit {
        _ if is_tracked => messages::lease_with_usage(),
        Commit::Each => return None,
        Commit::AllOrNone if terms.declares_commit => messages::lease_all_or_none(),
        Commit::AllOrNone => messages::lease_all_or_none_by_setting(),
    };
    Some(message.of("lease"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::partial::Places;
    use super::*;
    use crate::core::algorithm::OnExpiry;
    use crate::core::algorithm::Reservations;
    use crate::core::time::Span;
    use crate::core::time::{Weekday, Zone};
    use crate::limits::rules::limit::OnStoreFailure;

    const SECOND: Span = Span::from_secs(1);

    /// The options of a limit with these defaults.
    fn resolved_options(own: &PartialLimit, defaults: &[PartialLimit]) -> Options {
        let below: Vec<_> = defaults.iter().cloned().map(Arc::new).collect();
        let layers = Layers {
            own: &[own],
            below: &below,
            ends_with_value: false,
        };
        layers.options().0
    }

    fn full() -> PartialLimit {
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
            lease: Some(true),
            reservations: Some(Reservations {
                ttl: SECOND,
                max_share: 50,
                minimum: 0,
                on_expiry: OnExpiry::Release,
            }),
            max_debt: Some(2),
            period: Some(PeriodKind::Calendar),
            timezone: Zone::named("Europe/Berlin"),
            week_starts: Some(Weekday::Sunday),
            anchor: "2026-03-31".parse().ok(),
            calendar_months: false,
        };
        PartialLimit {
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
            let lease = kind.spec().takes("lease").then_some(true);
            let has_reservations = kind.spec().takes("reservations");
            let reservations = full().options.reservations.filter(|_| has_reservations);
            let expected = Options {
                reservations,
                kind,
                scale: Some(1),
                default_cost: Some(7),
                count_denied: Some(true),
                lease,
                max_debt,
                ..options
            };
            let own = PartialLimit {
                algorithm: Some(kind),
                ..PartialLimit::default()
            };
            assert_eq!(resolved_options(&own, &[full()]), expected);
        }
    }

    #[test]
    fn a_limit_without_options_has_those_of_the_defaults_algorithm() {
        assert_eq!(
            resolved_options(&PartialLimit::default(), &[full()]),
            Options {
                burst: Some(10),
                max_debt: Some(2),
                reservations: full().options.reservations,
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
            resolved_options(&PartialLimit::default(), &[]),
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
        let of_limit = PartialLimit {
            options: own,
            ..PartialLimit::default()
        };
        let options_of_limit = resolved_options(&of_limit, &[full()]);
        assert_eq!(
            (
                options_of_limit.kind,
                options_of_limit.burst,
                options_of_limit.count_denied
            ),
            (AlgorithmKind::TokenBucket, Some(3), Some(false))
        );
        // This includes an option of another algorithm, which is an error and must not disappear.
        let own = Options {
            burst: Some(3),
            ..Options::default()
        };
        let leaky = PartialLimit {
            algorithm: Some(AlgorithmKind::LeakyBucket),
            options: own,
            ..PartialLimit::default()
        };
        assert_eq!(resolved_options(&leaky, &[full()]).burst, Some(3));
    }
    #[test]
    fn the_default_of_max_debt_applies_where_refused_hits_count() {
        let per_hour = Rate {
            requests_per_unit: 10,
            unit: Unit::Hour,
            unit_multiplier: 1,
        };
        let max_debt = |own: Options, defaults: &[Options]| {
            let of = |options| PartialLimit {
                algorithm: Some(AlgorithmKind::TokenBucket),
                options,
                ..PartialLimit::default()
            };
            let defaults: Vec<_> = defaults.iter().copied().map(of).collect();
            let mut options = resolved_options(&of(own), &defaults);
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
        // Any of several defaults may enable `count_denied`.
        assert_eq!(
            max_debt(Options::default(), &[debt(3), counted(true)]),
            Some(3)
        );
        assert_eq!(
            max_debt(Options::default(), &[counted(true), debt(3)]),
            Some(3)
        );
        // Options of the limit itself stay, and are errors.
        assert_eq!(max_debt(debt(2), &[]), Some(2));
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
