//! Reservations: the lists of actions whose hits Envoy reserves, and the descriptors that reserve,
//! settle and refund them.

use clap::Args;
use hashbrown::{HashMap, HashSet};

use super::sources::display;
use super::yaml::scalar;
use crate::core::algorithm::OnExpiry;
use crate::limits::rules::limit::Limit;

/// The rest of a descriptor that refunds what a request has taken when it has ended.
pub(super) const RELEASE: &str =
    "\nhits_addend:\n  number: 1\n  is_negative_hits: true\napply_on_stream_done: true";

/// Formats of Envoy that yield numbers of hits.
#[derive(Args, Debug)]
pub(super) struct HitFormats {
    /// Reserve the hits that this format of Envoy yields, for limits with reservations
    #[arg(long, default_value = "%REQ(x-estimate)%", value_name = "FORMAT")]
    estimate: String,
    /// Settle reservations with the hits that this format of Envoy yields
    #[arg(long, default_value = "%RESP(x-cost)%", value_name = "FORMAT")]
    cost: String,
}

/// A descriptor of a list of actions: its comment, the key of the id of the reservation, and its
/// fields after the actions.
pub(super) type Step = (&'static str, Option<&'static str>, String);

/// The `on_expiry` of amounts; `None` for one without `reservations`.
#[derive(Clone, Debug, Default)]
pub(super) struct Expiries(HashSet<Option<OnExpiry>>);

impl Expiries {
    /// Adds the expiries of a limit.
    pub(super) fn add(&mut self, limit: Option<&Self>) {
        self.0.extend(limit.into_iter().flat_map(|limit| &limit.0));
    }

    /// Whether hits are reserved and settled.
    pub(super) fn are_reserved(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }

    /// Whether hits are reserved and, for another limit, counted at once.
    pub(super) fn are_mixed(&self) -> bool {
        self.are_reserved() && self.0.contains(&None)
    }

    /// The descriptors of a list of actions with these limits; none if nothing is reserved.
    pub(super) fn steps(&self, formats: &HitFormats) -> Vec<Step> {
        if !self.are_reserved() {
            return Vec::new();
        }
        let [estimate, cost] = [&formats.estimate, &formats.cost]
            .map(|format| format!("\nhits_addend:\n  format: {}", scalar(format)));
        let cost = cost + "\napply_on_stream_done: true";
        // Without an estimate Envoy sends no reservation.
        let mut steps = vec![
            ("a peek", None, "\nhits_addend:\n  number: 0".to_owned()),
            ("the reservation", Some("reserve"), estimate),
            ("the settlement, at the end", Some("settle"), cost),
        ];
        // Otherwise the reservation of a request without a cost expires.
        if !self.0.contains(&Some(OnExpiry::Keep)) {
            let comment = "the refund without a cost";
            steps.push((comment, Some("settle"), RELEASE.to_owned()));
        }
        steps
    }
}

/// The [`Expiries`] of limits by the levels that lead to them. The outline has only what a
/// `rate_limit` writes itself, and `reservations` may be in `defaults` and plans.
pub(super) fn by_levels<'r>(
    limits: impl Iterator<Item = &'r Limit>,
) -> HashMap<Vec<String>, Expiries> {
    let mut all = HashMap::<_, Expiries>::new();
    for limit in limits {
        let levels = limit.levels.iter();
        let path = levels.map(|level| display(&level.key, level.value.as_deref()));
        let Expiries(of_limit) = all.entry(path.collect()).or_default();
        let terms = limit.amounts().map(|amount| amount.reservations);
        of_limit.extend(terms.map(|terms| terms.map(|terms| terms.on_expiry)));
    }
    all
}
