//! `reservations`: hits that a request reserves, and settles later.

use super::{
    Commit, FieldValue, Form, Layers, Limit, Node, OptionError, Options, Problems, Section, Terms,
    fields, messages,
};
use crate::core::algorithm::reservations::is_reservation_key;
use crate::core::algorithm::{OnExpiry, Reservations};
use crate::limits::rules::compile::domain::Domain;
use crate::limits::rules::compile::options::percentage;
use crate::limits::rules::limit::LimitId;

/// `max_share` where it is not written, in per cent. Source: Kuadrant's RFC 0021.
const DEFAULT_MAX_SHARE: u8 = 50;

impl FieldValue for Reservations {
    const FORM: Form = Form::Map(Section::Reservations);

    fn read(problems: &Problems, node: &Node, _key: &str) -> Option<Self> {
        let fields = fields::read(problems, node, Section::Reservations)?;
        if fields.get("ttl").is_none() {
            return problems.fail(&node.at, messages::reservations_without_ttl());
        }
        let share = fields.value("max_share", percentage);
        let minimum: Option<u32> = fields.read("minimum");
        let on_expiry: Option<OnExpiry> = fields.read("on_expiry");
        let ttl = fields.read("ttl")?;
        (fields.is_valid.get() && fields.meant.is_empty()).then(|| Self {
            ttl,
            max_share: share.unwrap_or(DEFAULT_MAX_SHARE),
            minimum: minimum.unwrap_or_default(),
            on_expiry: on_expiry.unwrap_or_default(),
        })
    }
}

impl Layers<'_> {
    /// Removes `reservations` where hits cannot be reserved, for any algorithm. Returns the error if
    /// they are meant for this limit.
    pub(super) fn remove_reservations(
        &self,
        options: &mut Options,
        meant: &Options,
        terms: &Terms,
    ) -> Option<OptionError> {
        options.reservations?;
        let message = match terms.commit {
            Commit::AllOrNone => messages::reservations_all_or_none(),
            Commit::Each if self.has_trial() => messages::reservations_with_trial(),
            Commit::Each => return None,
        };
        options.reservations = None;
        meant.reservations.map(|_| message.of("reservations"))
    }
}

impl Domain {
    /// Remembers the descriptors of a list, below a limit, that have keys of reservations.
    pub(crate) fn note_keys_of_holds(&mut self, limit: LimitId, items: &[Node]) {
        for item in items {
            let key = item.get("key").and_then(Node::text).unwrap_or_default();
            if is_reservation_key(key.as_bytes()) {
                self.keys_of_holds.push((limit, item.at.clone()));
            }
        }
    }

    /// Reports them below limits that have reservations.
    pub(crate) fn check_keys_of_holds(&mut self, problems: &Problems, limits: &[Limit]) {
        for (id, at) in self.keys_of_holds.drain(..) {
            if limits
                .iter()
                .any(|limit| limit.id == id && limit.has_holds())
            {
                problems.error(&at, messages::key_of_reservations());
            }
        }
    }
}
