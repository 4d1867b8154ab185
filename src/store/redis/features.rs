//! Features of limits that need commands of their own, and those that a deployment uses. The
//! deployment does not know the rules: a feature is in use from the first request that needs it.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::limits::plan::Check;

/// A command in a form that changes nothing: its name, which may be two words, and its arguments.
pub(crate) type Query = &'static [&'static str];

/// Placeholder argument for a key of the server. No such key exists.
pub(crate) const KEY: &str = "{key}";

/// Commands that Weir needs for one purpose: the feature that fails without them, and one form of
/// each command that changes nothing.
pub(crate) type Purpose = (&'static str, &'static [Query]);

/// Whether a check needs a feature.
type IsNeeded = fn(&Check) -> bool;

/// All features, with their commands.
pub(crate) static FEATURES: [(IsNeeded, Purpose); 3] = [
    (|check| check.algorithm.counts_in_flight(), CONCURRENCY),
    (Check::has_holds, RESERVATIONS),
    (Check::is_tracked, USAGE),
];

/// The sets of holders of limits with `algorithm: concurrency`.
const CONCURRENCY: Purpose = (
    "limits with algorithm: concurrency get no answer",
    &[
        &["ZCOUNT", KEY, "0", "0"],
        &["ZSCORE", KEY, "x"],
        &["ZADD", KEY, "XX", "0", "x"],
        &["ZREM", KEY, "x"],
        &["ZRANGEBYSCORE", KEY, "0", "0"],
        &["ZREVRANGEBYSCORE", KEY, "0", "0"],
        &["ZREMRANGEBYSCORE", KEY, "0", "0"],
    ],
);

/// The reservations of limits with `reservations`.
const RESERVATIONS: Purpose = (
    "limits with reservations get no answer",
    &[
        &["ZCOUNT", KEY, "0", "0"],
        &["ZADD", KEY, "XX", "0", "x"],
        &["ZREM", KEY, "x"],
        &["ZRANGEBYSCORE", KEY, "0", "0"],
        &["HMGET", KEY, "x"],
        // A user with the right gets an error about the number of arguments.
        &["HSET", KEY, "x"],
        &["HDEL", KEY, "x"],
        &["HLEN", KEY],
        &["EXISTS", KEY],
        &["PTTL", KEY],
    ],
);

/// The index of usage, of limits with `track_usage`.
const USAGE: Purpose = (
    "the lists of subjects of limits with track_usage (weir usage --top) lack subjects or \
        cannot be read",
    &[
        &["ZADD", KEY, "XX", "0", "x"],
        &["ZREMRANGEBYRANK", KEY, "0", "0"],
        &["ZRANGE", KEY, "0", "0", "REV"],
        &["ZREM", KEY, "x"],
        &["ZCARD", KEY],
    ],
);

/// The features in use, each a bit by its index in [`FEATURES`].
pub(crate) type Uses = u8;

/// Notes the features that a check needs.
pub(crate) fn note(uses: &AtomicU8, check: &Check) {
    for (bit, (is_needed, _)) in FEATURES.iter().enumerate() {
        if uses.load(Ordering::Relaxed) & (1 << bit) == 0 && is_needed(check) {
            uses.fetch_or(1 << bit, Ordering::Relaxed);
        }
    }
}

/// The commands that these uses need.
pub(crate) fn commands(uses: Uses) -> impl Iterator<Item = Purpose> {
    let all = FEATURES.iter().enumerate();
    all.filter_map(move |(bit, (_, commands))| (uses & (1 << bit) != 0).then_some(*commands))
}
