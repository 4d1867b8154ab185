//! Features of limits that need commands of their own, and those that a deployment uses. The
//! deployment does not know the rules: a feature is in use from the first request that needs it.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::limits::plan::Check;

/// A feature of limits.
pub(crate) struct Feature {
    /// Whether a check needs it.
    is_needed: fn(&Check) -> bool,
    pub(crate) commands: Purpose,
}

/// A command in a form that changes nothing: its name, which may be two words, and its arguments.
pub(crate) type Query = &'static [&'static str];

/// Placeholder argument for a key of the server. No such key exists.
pub(crate) const KEY: &str = "{key}";

/// Commands that Weir needs for one purpose: the feature that fails without them, and one form of
/// each command that changes nothing.
pub(crate) type Purpose = (&'static str, &'static [Query]);

/// All of them.
pub(crate) static FEATURES: [Feature; 3] = [
    Feature {
        is_needed: |check| check.algorithm.counts_in_flight(),
        commands: CONCURRENCY,
    },
    Feature {
        is_needed: Check::has_holds,
        commands: RESERVATIONS,
    },
    Feature {
        is_needed: Check::is_tracked,
        commands: USAGE,
    },
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
    for (bit, feature) in FEATURES.iter().enumerate() {
        if uses.load(Ordering::Relaxed) & (1 << bit) == 0 && (feature.is_needed)(check) {
            uses.fetch_or(1 << bit, Ordering::Relaxed);
        }
    }
}

/// The features of these uses.
pub(crate) fn in_use(uses: Uses) -> impl Iterator<Item = &'static Feature> {
    let all = FEATURES.iter().enumerate();
    let used = all.filter(move |(bit, _)| uses & (1 << bit) != 0);
    used.map(|(_, feature)| feature)
}
