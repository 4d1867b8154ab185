//! Parsers of values, in the notation of envoyproxy/ratelimit: Go's booleans and durations.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::{Arg, ArgAction};

use crate::core::time::parse_duration;

/// `MEMORY_MAX_KEYS` and `LOCAL_MAX_KEYS`: fewer keys would be dropped while they count, more fit
/// into no memory.
pub(super) const KEYS: RangeInclusive<usize> = 1_000..=4_000_000_000;

/// `MEMORY_MAX_BYTES` and `MEMORY_USAGE_BYTES`: less memory would hold too few keys or records to
/// be of use, more is in no machine.
pub(super) const STORE_BYTES: RangeInclusive<usize> = 1 << 20..=1 << 40;

/// `XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES`: a gRPC message is shorter than 4 GiB, and one of a gibibyte
/// is a mistake. 0 is the default.
pub(super) const MESSAGE_BYTES: RangeInclusive<usize> = 0..=1 << 30;

const HOUR: Duration = Duration::from_secs(3_600);

/// The age for "never": ten years, because sums of it must not overflow.
pub(super) const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// Allows a flag whose value is a `BOOL` without a value: `--redis-tls` is `--redis-tls=true`.
pub(super) fn switch(flag: Arg) -> Arg {
    if flag.get_value_names() != Some(&["BOOL".into()]) {
        return flag;
    }
    flag.value_parser(boolean)
        .action(ArgAction::Set)
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
}

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

/// Durations from `min` to one hour.
pub(super) fn duration_from(
    min: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let (parsed, range) = (duration(text)?, duration(min)?..=HOUR);
        let is_inside = range.contains(&parsed).then_some(parsed);
        is_inside.ok_or_else(|| format!("write {min} to 1h"))
    }
}

/// The values with these names, in any letter case.
pub(super) fn named<T: Copy + Send + Sync>(
    names: &'static [(&'static str, T)],
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let mut found = names.iter();
        let found = found.find(|(name, _)| name.eq_ignore_ascii_case(text));
        found.map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<_> = names.iter().map(|(name, _)| *name).collect();
            let (last, before) = names.split_last().expect("there are names");
            format!("write {} or {last}", before.join(", "))
        })
    }
}

/// A whole number as Go's `strconv.ParseInt` reads one with base 0: with a sign, with the prefix
/// 0x, 0o, 0 or 0b, and with `_` between digits.
pub(super) fn integer(text: &str) -> Result<i64, String> {
    let error = || "write a whole number".to_owned();
    let (sign, digits) = match text.as_bytes() {
        [b'-', ..] => ("-", &text[1..]),
        [b'+', ..] => ("", &text[1..]),
        _ => ("", text),
    };
    let (base, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // There may also be one between a prefix and a digit.
    let digits = match base {
        10 => digits,
        _ => digits.strip_prefix('_').unwrap_or(digits),
    };
    let are_apart = !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
    let digits = digits.replace('_', "");
    if !are_apart || !digits.bytes().all(|digit| digit.is_ascii_alphanumeric()) {
        return Err(error());
    }
    i64::from_str_radix(&format!("{sign}{digits}"), base).map_err(|_| error())
}

/// A parser of whole numbers in a range.
pub(super) fn number<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: TryFrom<i64> + PartialOrd + Display + Clone,
{
    move |text| {
        let number = integer(text).ok();
        let number = number.and_then(|number| T::try_from(number).ok());
        let (first, last) = (range.start(), range.end());
        number
            .filter(|number| range.contains(number))
            .ok_or_else(|| format!("write a whole number from {first} to {last}"))
    }
}

/// A number that may have decimals, such as the part of a whole, from 0 to `most`.
pub(super) fn ratio(most: f32) -> impl Fn(&str) -> Result<f32, String> + Clone {
    move |text| {
        let percent = text.strip_suffix('%').map(|number| number.trim().parse());
        Err(match (text.parse(), percent) {
            (Ok(ratio), _) if (0.0..=most).contains(&ratio) => return Ok(ratio),
            (Ok(_), _) => "write 0 to 1".to_owned(),
            (_, Some(Ok::<f64, _>(percent))) => format!("write {} for {text}", percent / 100.0),
            _ => "write a number such as 0.8".to_owned(),
        })
    }
}

/// A port; 0 takes a free one.
pub(super) fn port(text: &str) -> Result<u16, String> {
    number(0..=u16::MAX)(text).map_err(|_| {
        let remedy = "write a port from 0 to 65535".to_owned();
        if text.starts_with("tcp://") || text.starts_with("udp://") {
            // As STATSD_PORT for a Service `statsd`.
            remedy + ", or enableServiceLinks: false, without which Kubernetes sets the variable"
        } else {
            remedy
        }
    })
}

/// The size of a pool; 0 is the default, as in envoyproxy/ratelimit.
pub(super) fn pool_size(text: &str) -> Result<u32, String> {
    let size = integer(text)
        .ok()
        .filter(|size| *size >= 0)
        .ok_or_else(|| "write 1 or more, or 0 for the default".to_owned())?;
    Ok(u32::try_from(size).unwrap_or(u32::MAX))
}

/// Seconds of jitter. Less than 0 is 0, as in envoyproxy/ratelimit.
pub(super) fn jitter_secs(text: &str) -> Result<u32, String> {
    Ok(u32::try_from(integer(text)?.max(0)).unwrap_or(u32::MAX))
}

/// `GRPC_UDS_MODE`: permissions in octal digits, as chmod takes them.
pub(super) fn mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "write octal digits, 0 to 0777".to_owned())
}

/// Ages of connections; 0 and more than ten years mean never.
pub(super) fn age(text: &str) -> Result<Duration, String> {
    let age = duration(text)?.min(NEVER);
    Ok(if age.is_zero() { NEVER } else { age })
}

/// `MEMORY_LIMIT`: bytes, with the binary suffixes of Kubernetes or without one. What `512M` is
/// differs between Kubernetes and systemd.
pub(super) fn memory_limit(text: &str) -> Result<u64, String> {
    const BOUNDS: RangeInclusive<u64> = 64 << 20..=1 << 50;
    let suffixes = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)];
    let suffixed = suffixes
        .iter()
        .find_map(|(suffix, shift)| Some((text.strip_suffix(suffix)?, *shift)));
    let (number, shift) = suffixed.unwrap_or((text, 0));
    let number = number.parse::<u64>().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| BOUNDS.contains(bytes))
        .ok_or_else(|| "write 64Mi or more, such as 512Mi or 1Gi, or bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for (text, micros) in [
            ("150us", 150),
            ("10s", 10_000_000),
            ("1m30s", 90_000_000),
            ("1.5h", 5_400_000_000),
            ("0", 0),
            ("24h", 86_400_000_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for text in ["", "10", "s", "10 s", "-1s", "1d", "1..5s", "9e9h"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn booleans_are_gos() {
        for (texts, value) in [
            (["1", "t", "T", "true", "TRUE", "True"], true),
            (["0", "f", "F", "false", "FALSE", "False"], false),
        ] {
            assert!(
                texts.iter().all(|text| boolean(text) == Ok(value)),
                "{texts:?}"
            );
        }
        for text in ["", "yes", "on", "tRUE", " true"] {
            assert!(boolean(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn whole_numbers_are_gos() {
        for (text, value) in [
            ("0", 0),
            ("8080", 8_080),
            ("+7", 7),
            ("-12", -12),
            ("0x1F90", 8_080),
            ("0X1f_90", 8_080),
            ("0o17", 15),
            ("017", 15),
            ("-0b101", -5),
            ("10_000_000_000", 10_000_000_000),
            ("0x_ff", 255),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(integer(text), Ok(value), "{text}");
        }
        for text in [
            "",
            "+",
            "08",
            "1e3",
            "1 ",
            "1_",
            "1__0",
            "-+1",
            "0x+1",
            "9223372036854775808",
            "ten",
            "\u{663}",
        ] {
            assert!(integer(text).is_err(), "{text:?}");
        }
        assert_eq!(
            (port("0x1F90"), port("65536").is_err(), port("-1").is_err()),
            (Ok(8_080), true, true)
        );
        assert_eq!(
            (
                pool_size("0"),
                pool_size("99999999999"),
                pool_size("-1").is_err()
            ),
            (Ok(0), Ok(u32::MAX), true)
        );
        assert_eq!(
            (
                jitter_secs("-5"),
                jitter_secs("300"),
                jitter_secs("99999999999")
            ),
            (Ok(0), Ok(300), Ok(u32::MAX))
        );
    }

    #[test]
    fn memory_is_written_as_kubernetes_does() {
        for (text, bytes) in [
            ("512Mi", 512 << 20),
            ("1Gi", 1 << 30),
            ("65536Ki", 64 << 20),
            ("268435456", 256 << 20),
        ] {
            assert_eq!(memory_limit(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "63Mi",
            "512M",
            "1.5Gi",
            "-1",
            "Gi",
            "9999999999999Ti",
            "max",
        ] {
            assert!(memory_limit(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bounds_are_kept() {
        for (text, secs) in [
            ("0", 315_360_000),
            ("87600h", 315_360_000),
            ("24h", 86_400),
            ("2540400h", 315_360_000),
        ] {
            assert_eq!(age(text), Ok(Duration::from_secs(secs)), "{text}");
        }
        assert!(age("-1h").is_err());
        assert_eq!(duration_from("0")("0"), Ok(Duration::ZERO));
        assert!(duration_from("0")("61m").is_err());
        assert_eq!(duration_from("1ms")("1ms"), Ok(Duration::from_millis(1)));
        for text in ["0", "999us", "61m", "2540400h", "9999999999h"] {
            assert!(duration_from("1ms")(text).is_err(), "{text}");
        }
    }
}
