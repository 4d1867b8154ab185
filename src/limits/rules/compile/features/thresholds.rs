//! `notify`: parts of an amount whose use is reported.

use super::{
    AlgorithmKind, FieldTexts, FieldValue, Form, LayerSource, Layers, LimitInForce, Node,
    OptionError, Problems, Thresholds, fields, messages,
};
use crate::limits::rules::compile::keys::PERCENT;
use crate::limits::rules::compile::problem::quoted;
use crate::limits::rules::source::Content;

impl FieldValue for Thresholds {
    const FORM: Form = Form::Patterns("percent", PERCENT);

    /// Reads a list, or its text in a cell of a table, where one needs no brackets.
    fn read(problems: &Problems, node: &Node, key: &str) -> Option<Self> {
        let texts: Vec<&str> = match &node.content {
            Content::Sequence(items) => items.iter().map(|it| it.text().unwrap_or("")).collect(),
            _ => {
                let text = fields::text(problems, node, key)?.trim_matches(['[', ']']);
                text.split_terminator(',').map(str::trim).collect()
            }
        };
        let wrong = |text: &str| messages::wrong_threshold(quoted(text));
        problems.accept(&node.at, Thresholds::read(&texts).map_err(wrong))
    }
}

impl Layers<'_> {
    /// The parts whose use is reported. Those of defaults are left out for an algorithm that has none.
    pub(crate) fn reports(&self, kind: AlgorithmKind) -> Result<Thresholds, OptionError> {
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
}

impl FieldTexts {
    pub(super) fn add_thresholds(&mut self, limit: LimitInForce<'_>) {
        let notify = limit
            .amount()
            .map(|amount| amount.notify)
            .unwrap_or_default();
        self.add_list("notify", notify.each().map(|percent| format!("{percent}%")));
    }
}
