//! The wall clock. `core` and `limits` take the time as an argument.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::core::time::Micros;

/// The time, to which windows are aligned. A clock before 1970 counts as 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock of what this process decides and shows"
)]
pub fn now() -> Micros {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Micros(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX))
}
