//! The meaning of a scalar by the rules of YAML 1.1, as in the Go service that Weir replaces
//! (yaml.v2).
//!
//! YAML 1.2 has fewer words for bools and writes octal numbers in another way. Files that work
//! there must mean the same here, so these rules are written out rather than taken from a YAML 1.2
//! library. The meaning of a scalar does not depend on its use.

use super::ValueType;

/// Resolves a plain scalar, one without quotes.
pub(super) fn resolve(text: &str) -> ValueType {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => ValueType::Nothing,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            ValueType::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            ValueType::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" => ValueType::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => ValueType::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => ValueType::Float(f64::NEG_INFINITY),
        _ => match text.as_bytes()[0] {
            b'0'..=b'9' | b'+' | b'-' | b'.' => number(text),
            _ => ValueType::Text,
        },
    }
}

fn number(text: &str) -> ValueType {
    if text.starts_with('.') {
        return float(text);
    }
    // Underscores may group digits at any position. A scalar that is no number even without them
    // stays a text.
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
    // from_str_radix would accept a second sign.
    let is_unsigned = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let magnitude = u64::from_str_radix(digits, radix).ok();
    let Some(magnitude) = magnitude.filter(|_| is_unsigned) else {
        return float(&plain);
    };
    let number = i128::from(magnitude) * if negative { -1 } else { 1 };
    match i64::try_from(number) {
        Ok(int) => ValueType::Int(int),
        Err(_) if negative => float(&plain),
        Err(_) => ValueType::Huge(magnitude),
    }
}

/// A decimal number with an optional fraction and exponent: `1.0`, `.5`, `1e3`, and `089`, which is
/// not an octal number.
fn float(text: &str) -> ValueType {
    // Rust reads words too, such as `inf`.
    let may_be = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
    match text.parse::<f64>() {
        Ok(float) if float.is_finite() && text.bytes().all(may_be) => ValueType::Float(float),
        _ => ValueType::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_of_yaml_1_1() {
        let table = [
            ("", ValueType::Nothing),
            ("~", ValueType::Nothing),
            ("NULL", ValueType::Nothing),
            ("nULL", ValueType::Text),
            ("y", ValueType::Bool(true)),
            ("On", ValueType::Bool(true)),
            ("oN", ValueType::Text),
            ("no", ValueType::Bool(false)),
            ("OFF", ValueType::Bool(false)),
            ("0", ValueType::Int(0)),
            ("-0", ValueType::Int(0)),
            ("+12", ValueType::Int(12)),
            ("1_000_000", ValueType::Int(1_000_000)),
            ("0x1F", ValueType::Int(31)),
            ("-0x10", ValueType::Int(-16)),
            ("0b101", ValueType::Int(5)),
            ("0o17", ValueType::Int(15)),
            ("017", ValueType::Int(15)),
            ("08540", ValueType::Float(8540.0)),
            ("9223372036854775807", ValueType::Int(i64::MAX)),
            ("-9223372036854775808", ValueType::Int(i64::MIN)),
            (
                "-9223372036854775809",
                ValueType::Float(-9_223_372_036_854_775_809.0),
            ),
            (
                "9223372036854775808",
                ValueType::Huge(9_223_372_036_854_775_808),
            ),
            ("0xFFFFFFFFFFFFFFFFF", ValueType::Text),
            (
                "18446744073709551616",
                ValueType::Float(18_446_744_073_709_551_616.0),
            ),
            ("1.0", ValueType::Float(1.0)),
            ("1.", ValueType::Float(1.0)),
            (".5", ValueType::Float(0.5)),
            ("-.5", ValueType::Float(-0.5)),
            ("1e3", ValueType::Float(1000.0)),
            ("1E+3", ValueType::Float(1000.0)),
            ("1e", ValueType::Text),
            ("1e400", ValueType::Text),
            (".", ValueType::Text),
            ("-", ValueType::Text),
            ("+-1", ValueType::Text),
            ("0x", ValueType::Text),
            ("0x-1", ValueType::Text),
            ("1.2.3.4", ValueType::Text),
            ("2026-11-21", ValueType::Text),
            ("10:30", ValueType::Text),
            ("-.INF", ValueType::Float(f64::NEG_INFINITY)),
            ("1a", ValueType::Text),
            ("1 000", ValueType::Text),
        ];
        for (text, expected) in table {
            assert_eq!(resolve(text), expected, "{text:?}");
        }
        assert!(matches!(resolve(".NaN"), ValueType::Float(float) if float.is_nan()));
    }
}
