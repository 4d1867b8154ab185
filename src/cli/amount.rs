//! Amounts as people write them: `500`, `50k`, `2.5M`.

use crate::core::time::MAX_SAFE_INTEGER;

/// Decimal suffixes.
const SUFFIXES: [(&str, f64); 4] = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)];

/// More requests a second than this are a mistake in the suffix.
const MOST_PER_SECOND: f64 = 1e9;

/// Requests per second: a number from 1 on, with a decimal suffix.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let value = Some(number(text)?).filter(|value| (1.0..=MOST_PER_SECOND).contains(value));
    value.ok_or_else(|| "write 1 to 1G".to_owned())
}

/// Hits or requests: a whole number from 0 on, with the same suffixes.
pub(super) fn whole(text: &str) -> Result<u64, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match number(text)? {
        value if value.fract() == 0.0 && value <= MAX_SAFE_INTEGER as f64 => Ok(value as u64),
        _ => Err("write a whole number".to_owned()),
    }
}

/// A whole number in a range, with the same suffixes.
pub(super) fn between(least: u64, most: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| {
        let number = Some(whole(text)?).filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("write {least} to {most}"))
    }
}

/// The multiplier and the name of a unit, as in `30 seconds`, `30second` and `minute`.
pub(super) fn multiple(text: &str) -> Option<(u32, String)> {
    let unit = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let digits = &text[..text.len() - unit.len()];
    let unit = unit.trim().to_ascii_lowercase();
    let multiplier = match digits {
        "" => 1,
        digits => digits.parse().ok()?,
    };
    let unit = unit.strip_suffix('s').unwrap_or(&unit);
    Some((multiplier, unit.to_owned()))
}

/// Hits, of which negative ones are given back.
pub(super) fn signed(text: &str) -> Result<i64, String> {
    let (digits, sign) = match text.strip_prefix('-') {
        Some(digits) => (digits, -1),
        None => (text, 1),
    };
    let number = i64::try_from(whole(digits)?).map_err(|_| "write fewer hits")?;
    Ok(sign * number)
}

/// Digits with at most one point, and a decimal suffix.
pub(super) fn number(text: &str) -> Result<f64, String> {
    let end = text.find(char::is_alphabetic).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let is_part = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    let number = digits.parse::<f64>().ok();
    let number = number.filter(|_| digits.bytes().all(is_part));
    let number = number.ok_or("write a number such as 500, 50k, 2.5M or 1G")?;
    // `m` is a thousandth in Kubernetes's quantities.
    if suffix == "m" {
        return Err("'m' is a thousandth; write M for millions".to_owned());
    }
    let is_it = |(known, _): &&(&str, _)| known.eq_ignore_ascii_case(suffix);
    let Some((_, factor)) = SUFFIXES.iter().find(is_it) else {
        let suffix = suffix.escape_debug();
        return Err(format!("'{suffix}' is no suffix; write k, M or G"));
    };
    Ok(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_amounts_are_read() {
        for (text, value) in [
            ("0", Some(0)),
            ("2k", Some(2_000)),
            ("2.5M", Some(2_500_000)),
            ("10_000", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("0.0001k", None),
            ("1.5", None),
            ("5m", None),
            ("-1", None),
            ("x", None),
        ] {
            assert_eq!(whole(text).ok(), value, "{text}");
        }
    }

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
            (".5k", 500.0),
        ] {
            assert_eq!(rate(text), Ok(value), "{text}");
        }
        for text in [
            "", "k", "0", "0.5", "-1", "-5k", "1e6", "2T", "2 M", "2MB", "1..5k", "10_000", "inf",
            "NaN", "1.1G", "٣", "5m", "5kk",
        ] {
            assert!(rate(text).is_err(), "{text:?}: {:?}", rate(text));
        }
        let long = "9".repeat(400);
        assert!(rate(&long).is_err(), "more than a number holds");
    }

    #[test]
    fn hits_are_read_with_their_sign() {
        for (text, value) in [
            ("3", Some(3)),
            ("-2k", Some(-2_000)),
            ("0", Some(0)),
            ("--1", None),
            ("-", None),
            ("9223372036854775808", None),
        ] {
            assert_eq!(signed(text).ok(), value, "{text}");
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        for (error, part) in [
            (rate("5m"), "M for millions"),
            (rate("5x"), "'x' is no suffix"),
            (rate("0"), "1 to 1G"),
            (rate("-5k"), "such as 500, 50k"),
            (between(1, 20)("2k").map(|_| 0.0), "write 1 to 20"),
        ] {
            assert!(
                error.clone().is_err_and(|text| text.contains(part)),
                "{error:?} lacks {part}"
            );
        }
    }
}
