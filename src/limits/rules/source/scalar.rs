//! What a scalar means by the rules of YAML 1.1, as the Go service that Weir replaces reads it
//! (yaml.v2).
//!
//! YAML 1.2 knows fewer words for bools and writes octal numbers in another way. Files that work
//! there must mean the same here, so these rules are written out rather than taken from a YAML 1.2
//! library. Nothing in here knows what a scalar is used for.

/// A scalar, resolved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar {
    /// `~`, `null` or nothing at all.
    Null,
    /// `true`, `yes`, `on`, `y` and their opposites.
    Bool(bool),
    /// A whole number that fits 64 bits with a sign.
    Int(i64),
    /// A whole number beyond that, still within 64 bits.
    Huge(u64),
    /// A number with a fraction, an exponent or no bound.
    Float(f64),
    /// Anything else: dates too, and numbers that nothing can hold.
    Text,
}

/// Resolves a plain scalar, one without quotes.
pub(super) fn resolve(text: &str) -> Scalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Scalar::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Scalar::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Scalar::Float(f64::NEG_INFINITY),
        _ if text.starts_with(|first: char| {
            first.is_ascii_digit() || matches!(first, '+' | '-' | '.')
        }) =>
        {
            number(text)
        }
        _ => Scalar::Text,
    }
}

/// Whether a plain scalar is a number that a leading zero makes octal: `010` is eight.
pub(super) fn is_octal_by_zero(text: &str) -> bool {
    let digits = text.trim_start_matches(['+', '-']);
    digits.len() > 1
        && digits.starts_with('0')
        && digits
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'_')
        && matches!(resolve(text), Scalar::Int(_) | Scalar::Huge(_))
}

fn number(text: &str) -> Scalar {
    if text.starts_with('.') {
        return float(text);
    }
    // Underscores group digits, wherever they stand; what is no number without them stays the text
    // that it is.
    let plain: String = text.chars().filter(|&letter| letter != '_').collect();
    let (negative, digits) = match plain.as_bytes() {
        [b'-', ..] => (true, &plain[1..]),
        [b'+', ..] => (false, &plain[1..]),
        _ => (false, plain.as_str()),
    };
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (&digits[2..], 16),
        [b'0', b'b' | b'B', _, ..] => (&digits[2..], 2),
        [b'0', b'o' | b'O', _, ..] => (&digits[2..], 8),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    // from_str_radix would take a second sign.
    let magnitude = digits
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric())
        .then(|| u64::from_str_radix(digits, radix).ok())
        .flatten();
    match magnitude {
        Some(magnitude) => match (negative, i64::try_from(magnitude)) {
            (false, Ok(int)) => Scalar::Int(int),
            (true, _) if magnitude <= i64::MIN.unsigned_abs() => {
                Scalar::Int(0i64.wrapping_sub_unsigned(magnitude))
            }
            (false, Err(_)) => Scalar::Huge(magnitude),
            (true, _) => float(&plain),
        },
        None => float(&plain),
    }
}

/// A decimal number with an optional fraction and exponent: `1.0`, `.5`, `1e3`, and `089`, which is
/// no octal number.
fn float(text: &str) -> Scalar {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = unsigned
        .split_once(['e', 'E'])
        .map_or((unsigned, None), |(mantissa, exponent)| {
            (mantissa, Some(exponent))
        });
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let has_digits = !(whole.is_empty() && fraction.is_empty());
    let exponent_is_right = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !exponent.is_empty() && all_digits(exponent)
    });
    if !(has_digits && all_digits(whole) && all_digits(fraction) && exponent_is_right) {
        return Scalar::Text;
    }
    match text.parse::<f64>() {
        Ok(float) if float.is_finite() => Scalar::Float(float),
        _ => Scalar::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_of_yaml_1_1() {
        let table = [
            ("", Scalar::Null),
            ("~", Scalar::Null),
            ("NULL", Scalar::Null),
            ("nULL", Scalar::Text),
            ("y", Scalar::Bool(true)),
            ("On", Scalar::Bool(true)),
            ("oN", Scalar::Text),
            ("no", Scalar::Bool(false)),
            ("OFF", Scalar::Bool(false)),
            ("0", Scalar::Int(0)),
            ("-0", Scalar::Int(0)),
            ("+12", Scalar::Int(12)),
            ("1_000_000", Scalar::Int(1_000_000)),
            ("0x1F", Scalar::Int(31)),
            ("-0x10", Scalar::Int(-16)),
            ("0b101", Scalar::Int(5)),
            ("0o17", Scalar::Int(15)),
            ("017", Scalar::Int(15)),
            ("08540", Scalar::Float(8540.0)),
            ("9223372036854775807", Scalar::Int(i64::MAX)),
            ("-9223372036854775808", Scalar::Int(i64::MIN)),
            (
                "-9223372036854775809",
                Scalar::Float(-9_223_372_036_854_775_809.0),
            ),
            (
                "9223372036854775808",
                Scalar::Huge(9_223_372_036_854_775_808),
            ),
            ("0xFFFFFFFFFFFFFFFFF", Scalar::Text),
            (
                "18446744073709551616",
                Scalar::Float(18_446_744_073_709_551_616.0),
            ),
            ("1.0", Scalar::Float(1.0)),
            ("1.", Scalar::Float(1.0)),
            (".5", Scalar::Float(0.5)),
            ("-.5", Scalar::Float(-0.5)),
            ("1e3", Scalar::Float(1000.0)),
            ("1E+3", Scalar::Float(1000.0)),
            ("1e", Scalar::Text),
            ("1e400", Scalar::Text),
            (".", Scalar::Text),
            ("-", Scalar::Text),
            ("+-1", Scalar::Text),
            ("0x", Scalar::Text),
            ("0x-1", Scalar::Text),
            ("1.2.3.4", Scalar::Text),
            ("2026-11-21", Scalar::Text),
            ("10:30", Scalar::Text),
            ("-.INF", Scalar::Float(f64::NEG_INFINITY)),
            ("1a", Scalar::Text),
            ("1 000", Scalar::Text),
        ];
        for (text, expected) in table {
            assert_eq!(resolve(text), expected, "{text:?}");
        }
        assert!(matches!(resolve(".NaN"), Scalar::Float(float) if float.is_nan()));
    }

    #[test]
    fn a_leading_zero_makes_octal() {
        for (text, octal) in [
            ("010", true),
            ("-0_7", true),
            ("0", false),
            ("08", false),
            ("0x10", false),
            ("10", false),
            ("0o7", false),
        ] {
            assert_eq!(is_octal_by_zero(text), octal, "{text:?}");
        }
    }
}
