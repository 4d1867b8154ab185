//! What a file says about its whole domain: `commit`, `plans` and `defaults`.
//!
//! `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT` is a default of `commit`, an option of compiling, so
//! that it holds wherever limits come from. envoyproxy/ratelimit reads all counters first and then
//! counts, which races; the atomic step exists here already.

use std::sync::Arc;

use super::Domain;
use super::fields::{self, Fields, Section};
use super::options;
use super::partial::{LayerSource, PartialLimit};
use super::plans;
use super::problem::Problems;
use crate::limits::rules::Commit;
use crate::limits::rules::limit::OnStoreFailure;
use crate::limits::rules::place::Place;

/// The values of `commit` in a file.
pub(super) const COMMITS: [(&str, Commit); 2] =
    [("each", Commit::Each), ("all_or_none", Commit::AllOrNone)];

/// The `defaults` of a domain.
#[derive(Default)]
pub(super) struct Defaults {
    pub(super) layer: Option<Arc<PartialLimit>>,
    /// They are wrong, which is reported.
    pub(super) is_invalid: bool,
}

impl Defaults {
    /// The failure policy of limits without one of their own.
    pub(super) fn on_store_failure(&self) -> Option<OnStoreFailure> {
        self.layer.as_ref()?.on_store_failure
    }
}

/// Reads the keys of a file that concern its whole domain.
pub(super) fn read(problems: &Problems, fields: &Fields<'_>, domain: &mut Domain) {
    if let Some(node) = fields.get("commit")
        && let Some(value) = fields.value("commit", options::named(&COMMITS))
    {
        match &domain.commit {
            None => domain.commit = Some((value, node.at.clone())),
            Some((known, _)) if *known == value => {}
            Some((_, known)) => differs(problems, "commit", known, &node.at),
        }
    }
    plans::read(problems, fields, &mut domain.plans);
    domain.defaults.is_invalid |= fields.meant("defaults");
    let Some(node) = fields.get("defaults") else {
        return;
    };
    let read = fields::read(problems, node, Section::Defaults).and_then(|fields| {
        let layer = PartialLimit::read(problems, &fields)?;
        if layer.is_concurrency() {
            let what = "'algorithm: concurrency' is no default: the last descriptor of such a \
                limit is the request's id";
            let remedy = "write it in the 'rate_limit' of these limits";
            return problems.fail(fields.lack("algorithm"), what, remedy);
        }
        Some(PartialLimit {
            source: LayerSource::Defaults(None),
            ..layer
        })
    });
    match (read, &domain.defaults.layer) {
        (None, _) => domain.defaults.is_invalid = true,
        (Some(layer), None) => domain.defaults.layer = Some(Arc::new(layer)),
        (Some(layer), Some(known)) if layer == **known => {}
        (Some(layer), Some(known)) => {
            differs(problems, "defaults", &known.places.at, &layer.places.at);
            domain.defaults.is_invalid = true;
        }
    }
}

fn differs(problems: &Problems, key: &str, first: &Place, second: &Place) {
    let what = format!("'{key}' differs from the one in {first}, for the same domain");
    let remedy = "write the same in both files, or remove one of them";
    problems.error(second, what, remedy);
}
