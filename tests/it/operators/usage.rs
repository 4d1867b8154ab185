//! `track_usage`: records in both stores, exact whatever happens.

mod redis;
mod reserved;
mod rights;
mod sentinel;
mod service;
mod shares;
mod stores;
mod vectors;

use std::sync::Arc;

use weir::core::time::Span;
use weir::core::usage::{Record, Settings, Tracking};
use weir::limits::plan::{CheckIndex, Checks};

/// A limit with a ring of buckets of so many seconds.
pub fn tracking(interval_secs: u64, buckets: u32) -> Arc<Tracking> {
    let settings = Settings {
        interval: Span::from_secs(interval_secs),
        buckets,
        ..Settings::default()
    };
    Arc::new(Tracking {
        settings,
        domain: "d".into(),
        levels: [].into(),
        is_trial: false,
        is_in_slot_of_domain: false,
    })
}

/// The checks, all of them tracked.
pub fn tracked(checks: Checks, tracking: &Arc<Tracking>) -> Checks {
    (0..checks.len()).fold(checks, |checks, index| {
        checks.tracked(CheckIndex(index), Arc::clone(tracking))
    })
}

/// Asked, refused and given-back hits in total.
pub fn total(record: &Record) -> [u64; 3] {
    [
        record.total.asked,
        record.total.refused,
        record.total.given_back,
    ]
}
