//! What holds for a whole domain, `commit` and `defaults`, and the algorithms of its limits, which wait for it.
//!
//! Files that share a domain share these too, wherever they stand, so that the order of files does not matter: algorithms are made when all
//! of them are read.

use super::Domain;
use super::choice::{self, Choice};
use super::fields::{self, Fields, Section};
use super::problem::{Location, Problems};
use crate::algorithm::{Algorithm, OptionError};
use crate::rules::Commit;
use crate::rules::limit::{Amount, Limit, LimitId, OnStoreFailure};
use crate::time::Rate;

/// The names that files use.
const COMMITS: [(&str, Commit); 2] = [("each", Commit::Each), ("all_or_none", Commit::AllOrNone)];

/// What a domain says once, or several times in the same way.
pub(super) struct Once<T> {
    pub(super) value: T,
    first: Location,
}

/// The `defaults` of a domain.
#[derive(Default)]
pub(super) struct Defaults {
    choice: Option<Once<Choice>>,
    /// The places of all that they say.
    said: Vec<(&'static str, Location)>,
    /// They are wrong, and it is reported.
    is_wrong: bool,
}

impl Defaults {
    /// What answers for the domain's limits while the store cannot.
    pub(super) fn on_store_failure(&self) -> Option<OnStoreFailure> {
        self.choice.as_ref().and_then(|choice| choice.value.on_store_failure)
    }
}

/// A limit without its algorithm.
pub(super) struct Undecided {
    pub(super) id: LimitId,
    pub(super) rate: Rate,
    pub(super) choice: Choice,
    /// The `rate_limit`.
    pub(super) at: Location,
    /// The keys of the `rate_limit` with their values' places.
    pub(super) said: Vec<(&'static str, Location)>,
}

/// Reads what a file says about its whole domain.
pub(super) fn read(problems: &mut Problems, fields: &Fields<'_>, domain: &mut Domain) {
    if let Some(node) = fields.get("commit")
        && let Some(text) = fields::text(problems, node, "commit")
        && let Some(commit) = fields::one_of(problems, node, text, "value of 'commit'", &COMMITS)
    {
        let place = problems.here(node.at);
        agree(problems, &mut domain.commit, "commit", Once { value: commit, first: place });
    }
    domain.defaults.is_wrong |= fields.meant("defaults");
    let Some(node) = fields.get("defaults") else { return };
    let said = fields::read(problems, node, Section::Defaults);
    let Some((said, choice)) = said.and_then(|said| choice::read(problems, &said).map(|choice| (said, choice))) else {
        domain.defaults.is_wrong = true;
        return;
    };
    let place = problems.here(node.at);
    domain.defaults.said.extend(said.places().map(|(key, at)| (key, problems.here(at))));
    domain.defaults.is_wrong |= !agree(problems, &mut domain.defaults.choice, "defaults", Once { value: choice, first: place });
}

/// Two files of one domain may say the same; whether they do.
fn agree<T: PartialEq>(problems: &mut Problems, known: &mut Option<Once<T>>, key: &str, said: Once<T>) -> bool {
    match known {
        None => *known = Some(said),
        Some(known) if known.value == said.value => {}
        Some(known) => {
            let what = format!("'{key}' is not the one that {} gives to the same domain", problems.show(known.first));
            problems.error_in(said.first, what, "write the same in both files, or in one of them only");
            return false;
        }
    }
    true
}

/// Gives every limit of the domain its algorithm, or reports why there is none.
pub(super) fn decide(problems: &mut Problems, limits: &mut [Limit], domain: &mut Domain) {
    let undecided = std::mem::take(&mut domain.undecided);
    if domain.defaults.is_wrong {
        // What the limits mean is not known; half of it would be told as mistakes of theirs.
        return;
    }
    let defaults = domain.defaults.choice.as_ref().map(|once| once.value).unwrap_or_default();
    'limits: for limit in undecided {
        let mut options = limit.choice.over(&defaults);
        let algorithm = loop {
            match Algorithm::try_new(&limit.rate, &options) {
                Ok(algorithm) => break algorithm,
                Err(mistake) => {
                    report(problems, &limit, &domain.defaults, &mistake);
                    if !choice::leave_out(&mut options, mistake.option) {
                        continue 'limits;
                    }
                }
            }
        };
        // Once a mistake is reported nobody will see this.
        if let Some(decided) = limits.get_mut(limit.id.0 as usize) {
            decided.amount = Some(Amount { rate: limit.rate, algorithm });
            decided.on_store_failure = limit.choice.on_store_failure.or(defaults.on_store_failure);
        }
    }
}

fn report(problems: &mut Problems, limit: &Undecided, defaults: &Defaults, mistake: &OptionError) {
    let location_of = |said: &[(&'static str, Location)]| said.iter().find(|(key, _)| *key == mistake.option).map(|&(_, place)| place);
    match (location_of(&limit.said), location_of(&defaults.said)) {
        (Some(place), _) => problems.error_in(place, mistake.what.as_str(), mistake.remedy.as_str()),
        (None, Some(place)) => {
            let what = format!("{} ('{}' is the default in {})", mistake.what, mistake.option, problems.show(place));
            problems.error_in(limit.at, what, mistake.remedy.as_str());
        }
        (None, None) => problems.error_in(limit.at, mistake.what.as_str(), mistake.remedy.as_str()),
    }
}
