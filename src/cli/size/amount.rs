//! Amounts as people write them: `50k`, `2M`, `60%`, `16GiB`; and figures as people read them.

use std::time::Duration;

use crate::core::time::parse_duration;

/// Decimal suffixes of rates and counts.
const SUFFIXES: [(&str, f64); 4] = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)];

/// Suffixes of bytes: binary, as `MiB` or Kubernetes's `Mi`, and decimal.
const BYTE_SUFFIXES: [(&str, f64); 10] = [
    ("", 1.0),
    ("KiB", 1_024.0),
    ("Ki", 1_024.0),
    ("MiB", 1_048_576.0),
    ("Mi", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("Gi", 1_073_741_824.0),
    ("K", 1e3),
    ("M", 1e6),
    ("G", 1e9),
];

/// More decisions a second than this, in one service, are a mistake in the suffix.
const MOST_PER_SECOND: f64 = 1e9;

/// More keys than this need terabytes of Redis.
const MOST_KEYS: f64 = 1e11;

/// A server of Redis has at least a mebibyte, and no machine has more than this.
const SERVER_BYTES: [f64; 2] = [1_048_576.0, 64.0 * 1_099_511_627_776.0];

/// The longest window of a limit that is planned for: 100 years.
const LONGEST_WINDOW: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// The longest round trip to Redis. Callers wait for 20 ms by default, and Weir for 500 ms.
const LONGEST_ROUND_TRIP: Duration = Duration::from_millis(500);

/// Decisions per second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    count(text, MOST_PER_SECOND)
}

/// Keys.
pub(super) fn keys(text: &str) -> Result<f64, String> {
    count(text, MOST_KEYS)
}

/// A number from 1 to `most`, with a decimal suffix.
fn count(text: &str, most: f64) -> Result<f64, String> {
    let value = with_suffix(
        text,
        &SUFFIXES,
        "write a number such as 500, 50k, 2.5M or 1G",
    )?;
    if (1.0..=most).contains(&value) {
        Ok(value)
    } else {
        Err(format!("write 1 to {}", short(most)))
    }
}

/// Bytes of one server's memory.
pub(super) fn server_bytes(text: &str) -> Result<f64, String> {
    let value = with_suffix(
        text,
        &BYTE_SUFFIXES,
        "write bytes such as 512MiB, 16GiB or 16G",
    )?;
    if (SERVER_BYTES[0]..=SERVER_BYTES[1]).contains(&value) {
        Ok(value)
    } else {
        Err("write 1MiB to 65536GiB".to_owned())
    }
}

/// A share from 0 % to 99 %: the rest has to be something.
pub(super) fn share(text: &str) -> Result<f64, String> {
    percent(text, 0.0, 99.0)
}

/// A share of what there is from 1 % to 100 %.
pub(super) fn target(text: &str) -> Result<f64, String> {
    percent(text, 1.0, 100.0)
}

/// A share that is not nothing.
pub(super) fn part(text: &str) -> Result<f64, String> {
    percent(text, 1.0, 99.0)
}

fn percent(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let number = text
        .strip_suffix('%')
        .ok_or_else(|| "write a percentage such as 60%".to_owned())?;
    let value =
        number_of(number.trim_end()).ok_or_else(|| "write a percentage such as 60%".to_owned())?;
    if (least..=most).contains(&value) {
        Ok(value / 100.0)
    } else {
        Err(format!("write {least}% to {most}%"))
    }
}

/// How many times the measured CPU time a core takes.
pub(super) fn factor(text: &str) -> Result<f64, String> {
    let value = number_of(text).ok_or_else(|| "write a number such as 0.7".to_owned())?;
    if (0.05..=20.0).contains(&value) {
        Ok(value)
    } else {
        Err("write 0.05 to 20".to_owned())
    }
}

/// The window of a limit.
pub(super) fn window(text: &str) -> Result<Duration, String> {
    within(
        text,
        Duration::from_secs(1),
        LONGEST_WINDOW,
        "write 1s to 876000h",
    )
}

/// A round trip to Redis.
pub(super) fn round_trip(text: &str) -> Result<Duration, String> {
    within(
        text,
        Duration::from_micros(10),
        LONGEST_ROUND_TRIP,
        "write 10us to 500ms",
    )
}

/// How long Envoy waits.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    within(
        text,
        Duration::from_millis(1),
        Duration::from_secs(10),
        "write 1ms to 10s",
    )
}

fn within(text: &str, least: Duration, most: Duration, remedy: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).map_err(|error| error.report().1.to_owned())?;
    if (least..=most).contains(&duration) {
        Ok(duration)
    } else {
        Err(remedy.to_owned())
    }
}

/// A number and one of the suffixes.
fn with_suffix(text: &str, suffixes: &[(&str, f64)], remedy: &str) -> Result<f64, String> {
    let end = text
        .find(|letter: char| letter.is_alphabetic())
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let number = number_of(number).ok_or_else(|| remedy.to_owned())?;
    let known = suffixes
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(suffix) && !is_milli(suffix));
    match known {
        Some((_, factor)) => Ok(number * factor),
        None if is_milli(suffix) => Err("'m' is a thousandth; write M for millions".to_owned()),
        None => Err(format!(
            "'{}' is no suffix; {remedy}",
            suffix.escape_debug()
        )),
    }
}

/// `m` is a thousandth in Kubernetes's quantities.
fn is_milli(suffix: &str) -> bool {
    suffix == "m"
}

/// Digits with at most one point, and `_` between digits.
fn number_of(text: &str) -> Option<f64> {
    let are_apart = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    let digits = text.replace('_', "");
    let is_number = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.')
        && digits.bytes().any(|byte| byte.is_ascii_digit());
    if are_apart && is_number {
        digits.parse().ok()
    } else {
        None
    }
}

/// A whole number with `,` between thousands.
pub(super) fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// About three digits and a suffix: `240k`.
pub(super) fn short(value: f64) -> String {
    let (suffix, factor) = SUFFIXES
        .iter()
        .rev()
        .find(|(_, factor)| value >= *factor)
        .copied()
        .unwrap_or(("", 1.0));
    let scaled = value / factor;
    let digits = usize::from(scaled < 100.0);
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{text}{suffix}")
}

/// Bytes in MiB, or in GiB from ten of them on; rounded up.
pub(super) fn bytes(value: f64) -> String {
    let mebibytes = (value / 1_048_576.0).ceil();
    if mebibytes < 10_240.0 {
        format!("{} MiB", grouped(mebibytes))
    } else {
        format!("{} GiB", grouped((mebibytes / 1_024.0).ceil()))
    }
}

/// Cores, as an amount of CPU time per time.
pub(super) fn cores(value: f64) -> String {
    match value {
        value if value < 0.1 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => grouped(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read() {
        for (text, value) in [
            ("1", 1.0),
            ("500", 500.0),
            ("50k", 50_000.0),
            ("50K", 50_000.0),
            ("2M", 2e6),
            ("2.5M", 2.5e6),
            ("1G", 1e9),
            ("10_000", 10_000.0),
            (".5k", 500.0),
        ] {
            assert_eq!(rate(text), Ok(value), "{text}");
        }
        for text in [
            "", "k", "0", "0.5", "-1", "-5k", "1e6", "2T", "2 M", "2MB", "1..5k", "_1", "1_",
            "1__0", "inf", "NaN", "1.1G", "٣", "5m", "5kk",
        ] {
            assert!(rate(text).is_err(), "{text:?}: {:?}", rate(text));
        }
        assert_eq!(keys("100G"), Ok(1e11));
        assert!(keys("101G").is_err());
        let long = "9".repeat(400);
        assert!(rate(&long).is_err(), "more than a number holds");
    }

    #[test]
    fn errors_say_what_to_write() {
        for (error, part) in [
            (rate("5m"), "M for millions"),
            (rate("5x"), "'x' is no suffix"),
            (rate("0"), "1 to 1G"),
            (rate("-5k"), "such as 500, 50k"),
            (share("0.3"), "a percentage such as 60%"),
            (share("100%"), "0% to 99%"),
            (target("0%"), "1% to 100%"),
            (server_bytes("16"), "1MiB to"),
            (server_bytes("16g b"), "is no suffix"),
            (factor("0"), "0.05 to 20"),
        ] {
            assert!(
                error.clone().is_err_and(|text| text.contains(part)),
                "{error:?} lacks {part}"
            );
        }
        assert!(window("0s").is_err() && window("60").is_err() && round_trip("1s").is_err());
    }

    #[test]
    fn shares_and_bytes_are_read() {
        assert_eq!(
            (share("30%"), share("0%"), target("100%"), part("2.5%")),
            (Ok(0.3), Ok(0.0), Ok(1.0), Ok(0.025))
        );
        assert_eq!(
            (
                server_bytes("16GiB"),
                server_bytes("1Mi"),
                server_bytes("2G")
            ),
            (Ok(17_179_869_184.0), Ok(1_048_576.0), Ok(2e9))
        );
    }

    #[test]
    fn figures_are_written() {
        assert_eq!(
            [0.0, 999.0, 1_000.0, 1_234_567.4].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [1.0, 950.0, 1_000.0, 15_250.0, 240_400.0, 1e9].map(short),
            ["1", "950", "1k", "15.2k", "240k", "1G"]
        );
        assert_eq!(
            [0.0, 1.0, 1_048_576.0, 1e10, 1e12].map(bytes),
            ["0 MiB", "1 MiB", "1 MiB", "9,537 MiB", "932 GiB"]
        );
        assert_eq!(
            [0.012, 0.34, 5.46, 128.4].map(cores),
            ["0.01", "0.3", "5.5", "128"]
        );
    }
}
