//! Parsers of values, in the notation of envoyproxy/ratelimit: Go's booleans and durations.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::rules::limit::OnStoreFailure;
use crate::time::parse_duration;

/// `MEMORY_MAX_KEYS` and `LOCAL_MAX_KEYS`: fewer keys would be dropped while they count, more fit into no memory.
pub(super) const KEYS: RangeInclusive<u64> = 1_000..=4_000_000_000;

const HOUR: Duration = Duration::from_secs(3_600);

/// Stands for "never" among ages: ten years, so that sums of it do not overflow.
pub(super) const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// Go's `strconv.ParseBool`.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("write true or false".to_owned()),
    }
}

/// A duration in the notation of limits (`250ms`, `1m30s`), or `0` without a unit, as Go allows it.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    match text {
        "0" => Ok(Duration::ZERO),
        text => parse_duration(text).map_err(|error| error.report().1.to_owned()),
    }
}

/// `STORE_TIMEOUT`: a shorter one would fail most requests, and no client waits for an hour.
pub(super) fn store_timeout(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_millis(1), HOUR, "write 1ms to 1h")
}

/// `ON_STORE_FAILURE`, in any letter case.
pub(super) fn on_store_failure(text: &str) -> Result<OnStoreFailure, String> {
    let named = OnStoreFailure::NAMED.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    named.map(|&(_, policy)| policy).ok_or_else(|| "write error, allow, deny or local".to_owned())
}

/// `LOCAL_CACHE_SIZE_IN_BYTES`. Entries live for at most one second, so that a larger cache is of no use.
pub(super) fn cache_bytes(text: &str) -> Result<usize, String> {
    const MAX: usize = 1 << 32;
    text.parse().ok().filter(|bytes| *bytes <= MAX).ok_or_else(|| format!("write 0 for none, or bytes up to {MAX}"))
}

/// `DRAIN_DELAY`.
pub(super) fn drain_delay(text: &str) -> Result<Duration, String> {
    within(text, Duration::ZERO, HOUR, "write 0 to 1h")
}

/// Ages of connections; 0 means never.
pub(super) fn age(text: &str) -> Result<Duration, String> {
    let age = within(text, Duration::ZERO, NEVER, "write 0 for never, or up to 87600h")?;
    Ok(if age.is_zero() { NEVER } else { age })
}

fn within(text: &str, min: Duration, max: Duration, remedy: &str) -> Result<Duration, String> {
    duration(text).and_then(|duration| if (min..=max).contains(&duration) { Ok(duration) } else { Err(remedy.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for (text, micros) in
            [("150us", 150), ("10s", 10_000_000), ("1m30s", 90_000_000), ("1.5h", 5_400_000_000), ("0", 0), ("24h", 86_400_000_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for text in ["", "10", "s", "10 s", "-1s", "1d", "1..5s", "9e9h"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn booleans_are_gos() {
        assert_eq!(boolean("T"), Ok(true));
        assert_eq!(boolean("0"), Ok(false));
        assert!(boolean("yes").is_err());
    }

    #[test]
    fn bounds_are_kept() {
        for (text, secs) in [("0", 315_360_000), ("87600h", 315_360_000), ("24h", 86_400)] {
            assert_eq!(age(text), Ok(Duration::from_secs(secs)), "{text}");
        }
        assert!(age("87601h").is_err());
        assert_eq!(drain_delay("0"), Ok(Duration::ZERO));
        assert!(drain_delay("61m").is_err());
        assert_eq!(store_timeout("1ms"), Ok(Duration::from_millis(1)));
        for text in ["0", "999us", "61m", "2540400h", "9999999999h"] {
            assert!(store_timeout(text).is_err(), "{text}");
        }
    }
}
