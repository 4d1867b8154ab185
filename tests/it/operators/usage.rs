//! `track_usage`: records in both stores, exact whatever happens.

mod decimals;
mod outages;
mod periods;
mod redis;
mod reserved;
mod rights;
mod service;
mod shares;
mod stores;
mod vectors;

use std::sync::Arc;

use weir::core::time::{Period, Span};
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

/// The checks, all of them tracked, with periods of a minute.
pub fn tracked(checks: Checks, tracking: &Arc<Tracking>) -> Checks {
    (0..checks.len()).fold(checks, |checks, index| {
        let period = Some(Period::Even(Span::from_secs(60)));
        checks.tracked(CheckIndex(index), (Arc::clone(tracking), period))
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
