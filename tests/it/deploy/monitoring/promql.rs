//! As much of PromQL as the tests need: which series a query selects, and by which labels it
//! groups. promtool checks the grammar.

use std::collections::BTreeSet;

use super::live::Scrape;

/// Labels that Prometheus adds to each series of a target.
const TARGET_LABELS: [&str; 4] = ["job", "instance", "namespace", "pod"];

/// Whether Prometheus adds this label.
pub(super) fn is_of_the_target(label: &str) -> bool {
    TARGET_LABELS.contains(&label)
}

/// A metric with its matchers: label, values that are written out.
#[derive(Debug)]
pub(super) struct Selector {
    pub metric: String,
    pub matchers: Vec<(String, Vec<String>)>,
}

#[derive(Debug)]
pub(super) struct Query {
    pub selectors: Vec<Selector>,
    /// The labels of all `by (...)`.
    pub grouping: BTreeSet<String>,
    /// The labels that `label_replace` adds.
    added: BTreeSet<String>,
}

fn is_part(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

impl Query {
    pub(super) fn parse(text: &str) -> Self {
        let mut selectors = Vec::new();
        let mut rest = text;
        let mut grouping = BTreeSet::new();
        while let Some(begin) =
            rest.find(|letter: char| letter.is_ascii_alphabetic() || letter == '"')
        {
            rest = &rest[begin..];
            if let Some(quoted) = rest.strip_prefix('"') {
                rest = quoted.split_once('"').expect("a closed text").1;
                continue;
            }
            let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = after;
            if word == "by" {
                let (labels, after) = rest
                    .trim_start()
                    .strip_prefix('(')
                    .and_then(|rest| rest.split_once(')'))
                    .expect("a list of labels");
                grouping.extend(labels.split(',').map(|label| label.trim().to_owned()));
                rest = after;
            } else if ["weir_", "ratelimit_", "process_"]
                .iter()
                .any(|prefix| word.starts_with(prefix))
            {
                let inside = rest
                    .strip_prefix('{')
                    .map(|rest| rest.split_once('}').expect("a closed selector"));
                rest = inside.map_or(rest, |(_, after)| after);
                selectors.push(Selector {
                    metric: word.to_owned(),
                    matchers: inside.map_or_else(Vec::new, |(inside, _)| matchers(inside)),
                });
            }
        }
        let added = text
            .split("label_replace(")
            .skip(1)
            .filter_map(|call| call.split('"').nth(1))
            .map(ToOwned::to_owned)
            .collect();
        Self {
            selectors,
            grouping,
            added,
        }
    }

    /// Whether the result has this label. A query without `by` keeps those of its series.
    pub(super) fn groups_by(&self, label: &str) -> bool {
        self.grouping.contains(label)
            || self.added.contains(label)
            || (self.grouping.is_empty() && is_of_the_target(label))
            || self.keeps(label)
    }

    /// A query that is only a selector keeps all labels of its series.
    fn keeps(&self, label: &str) -> bool {
        self.grouping.is_empty() && ["redis", "server", "worker"].contains(&label)
    }
}

/// `label="value",label=~"one|other"`: a value with a variable or an expression stands for any.
fn matchers(inside: &str) -> Vec<(String, Vec<String>)> {
    let parts = inside
        .split("\",")
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let end = part.find(|letter| !is_part(letter)).expect("an operator");
            let value = part
                .split_once('"')
                .expect("a value")
                .1
                .trim_end_matches('"');
            let is_literal = value.chars().all(|letter| is_part(letter) || letter == '|');
            (
                part[..end].to_owned(),
                if is_literal {
                    value.split('|').map(ToOwned::to_owned).collect()
                } else {
                    Vec::new()
                },
            )
        })
        .collect()
}

/// Whether everything that the query names is in the scrape.
pub(super) fn check(query: &Query, scrape: &Scrape) -> Result<(), String> {
    for Selector { metric, matchers } in &query.selectors {
        if !scrape.has_metric(metric) {
            return Err(format!("no metric {metric}"));
        }
        for (label, values) in matchers
            .iter()
            .filter(|(label, _)| !is_of_the_target(label))
        {
            if !scrape.has_label(metric, label) {
                return Err(format!("{metric} has no label {label}"));
            }
            if let Some(value) = values
                .iter()
                .find(|value| !scrape.has_value(metric, label, value))
            {
                return Err(format!("{metric} has never had {label}={value}"));
            }
        }
    }
    // ALERTS is Prometheus's own.
    let is_known = |label: &str| {
        is_of_the_target(label)
            || query
                .selectors
                .iter()
                .any(|selector| scrape.has_label(&selector.metric, label))
    };
    match query.grouping.iter().find(|label| !is_known(label)) {
        Some(label) => Err(format!("no metric of the query has the label {label}")),
        None => Ok(()),
    }
}

/// The labels `{{name}}` of a legend.
pub(super) fn legend_labels(legend: &str) -> Vec<String> {
    legend
        .split("{{")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once("}}")?.0.trim().to_owned()))
        .collect()
}
