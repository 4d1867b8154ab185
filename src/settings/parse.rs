//! Values of settings as envoyproxy/ratelimit writes them: Go's booleans and durations.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::rules::limit::OnStoreFailure;

/// `MEMORY_MAX_KEYS`: fewer would forget what is still counted, more have no room in any memory.
pub(super) const KEYS: RangeInclusive<u64> = 1_000..=4_000_000_000;

const HOUR: Duration = Duration::from_secs(3_600);

/// What stands for "never" among ages.
pub(super) const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// Go's `strconv.ParseBool`.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("write true or false".to_owned()),
    }
}

/// Go's `time.ParseDuration` without signs: `10s`, `1m30s`, `150us`, `1.5h`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    const HOW: &str = "write a number and a unit, such as 250ms, 10s, 1m30s or 24h";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(HOW)?;
        let (number, tail) = rest.split_at(unit_at);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let secs = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return Err(HOW.to_owned()),
        };
        let part = number.parse::<f64>().ok().and_then(|number| Duration::try_from_secs_f64(number * secs).ok()).ok_or(HOW)?;
        total = total.checked_add(part).ok_or(HOW)?;
        rest = tail;
    }
    if text.is_empty() { Err(HOW.to_owned()) } else { Ok(total) }
}

/// `STORE_TIMEOUT`: no store answers in less than a millisecond, and no caller waits for an hour.
pub(super) fn store_timeout(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_millis(1), HOUR, "write 1ms to 1h")
}

/// `ON_STORE_FAILURE`, in any letter case.
pub(super) fn on_store_failure(text: &str) -> Result<OnStoreFailure, String> {
    let named = OnStoreFailure::NAMED.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    named.map(|&(_, policy)| policy).ok_or_else(|| "write error, allow, deny or local".to_owned())
}

/// `LOCAL_CACHE_SIZE_IN_BYTES`. No more is of use: an entry lives for a second.
pub(super) fn cache_bytes(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 32;
    text.parse().ok().filter(|bytes| *bytes <= MOST).ok_or_else(|| format!("write 0 for none, or bytes up to {MOST}"))
}

/// `DRAIN_DELAY`.
pub(super) fn drain_delay(text: &str) -> Result<Duration, String> {
    within(text, Duration::ZERO, HOUR, "write 0 to 1h")
}

/// Ages of connections; 0 means never, as in gRPC's own options. Never is ten years here: sums of it stay far from overflowing.
pub(super) fn age(text: &str) -> Result<Duration, String> {
    let age = within(text, Duration::ZERO, NEVER, "write 0 for never, or up to 87600h")?;
    Ok(if age.is_zero() { NEVER } else { age })
}

fn within(text: &str, least: Duration, most: Duration, how: &str) -> Result<Duration, String> {
    duration(text).and_then(|duration| if (least..=most).contains(&duration) { Ok(duration) } else { Err(how.to_owned()) })
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
