//! `lease`: hits that a replica draws ahead of requests.

use super::{Commit, Layers, OptionError, Options, Problems, Resolved, Terms, messages};

/// Removes `lease` where hits cannot be drawn ahead of requests, for any algorithm. Returns the
/// error if it is meant for this limit.
pub(super) fn remove_misplaced(
    options: &mut Options,
    meant: &Options,
    terms: &Terms,
    is_tracked: bool,
) -> Option<OptionError> {
    let message = match terms.commit {
        _ if options.lease != Some(true) => return None,
        _ if is_tracked => messages::lease_with_usage(),
        Commit::Each => return None,
        Commit::AllOrNone if terms.declares_commit => messages::lease_all_or_none(),
        Commit::AllOrNone => messages::lease_all_or_none_by_setting(),
    };
    options.lease = None;
    (meant.lease == Some(true)).then(|| message.of("lease"))
}

/// Warns of a limit with `lease` and a trial, for which the store is queried at each hit.
pub(super) fn warn_of_trial(problems: &Problems, layers: &Layers<'_>, real: &Resolved) {
    if let Some(at) = layers.place("lease")
        && real.amount.is_some_and(|amount| amount.lease)
    {
        problems.warning(at, messages::lease_with_trial());
    }
}
