//! `algorithm: concurrency`: limits of requests in flight. The last descriptor of such a limit is
//! the id of a request.

use super::{
    AlgorithmKind, Fields, LayerSource, Layers, Node, OptionError, PartialLimit, Problems, messages,
};
use crate::core::time::{Rate, Unit};

impl Fields<'_> {
    /// Whether a `rate_limit` limits requests in flight by itself: no default does that.
    pub(crate) fn counts_in_flight(&self) -> bool {
        let algorithm = self.get("algorithm").and_then(Node::text);
        algorithm == Some(AlgorithmKind::Concurrency.name())
    }

    /// Whether a limit of requests in flight names no window: it counts the requests at an instant,
    /// not in a period.
    pub(crate) fn has_no_window(&self) -> bool {
        let present = || self.present(["unit", "unit_multiplier"]);
        for (key, node) in present() {
            let message = messages::concurrency_with_window(key);
            self.problems.error(&node.at, message);
        }
        present().next().is_none()
    }
}

impl PartialLimit {
    /// Reads a layer of several limits: defaults, a plan, a row, or one that these complete. None of
    /// them limits requests in flight.
    pub(crate) fn read_of_many(problems: &Problems, fields: &Fields<'_>) -> Option<Self> {
        let layer = Self::read(problems, fields)?;
        if layer.counts_in_flight() {
            return problems.fail(fields.lack("algorithm"), messages::concurrency_of_many());
        }
        Some(layer)
    }

    /// Whether it makes limits of requests in flight.
    pub(crate) fn counts_in_flight(&self) -> bool {
        self.algorithm == Some(AlgorithmKind::Concurrency)
    }
}

impl Layers<'_> {
    /// Removes the window of a limit of requests in flight: a control plane sends a unit with each
    /// limit. Returns why requests in flight cannot be limited by these layers.
    pub(crate) fn remove_window(
        &self,
        kind: AlgorithmKind,
        rate: &mut Rate,
    ) -> Option<OptionError> {
        if kind != AlgorithmKind::Concurrency {
            return None;
        }
        (rate.unit, rate.unit_multiplier) = (Unit::None, 1);
        let is_meant = |layer: &PartialLimit| {
            layer.counts_in_flight() && !matches!(layer.source, LayerSource::Defaults(_))
        };
        let message = match self.all().any(is_meant) {
            false => messages::concurrency_by_default(),
            true if self.ends_with_value => messages::concurrency_of_one_value(),
            true => return None,
        };
        Some(message.of("algorithm"))
    }
}
