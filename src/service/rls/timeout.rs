//! The caller's deadline: the `grpc-timeout` header.
//!
//! Weir reads it itself, and not through tonic, because it has to answer before the deadline, by a
//! failure policy if need be.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The caller's timeout; `None` if the header is missing or malformed.
///
/// Source: "gRPC over HTTP2", Requests: `Timeout → "grpc-timeout" TimeoutValue TimeoutUnit`, where
/// the value has at most eight digits and the units are H (hour), M (minute), S (second), m
/// (millisecond), u (microsecond) and n (nanosecond).
pub fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(value * 3_600)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(header: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(GRPC_TIMEOUT, header.parse().expect("a header value"));
        grpc_timeout(&headers)
    }

    #[test]
    fn every_unit_is_parsed() {
        assert_eq!(read("20m"), Some(Duration::from_millis(20)));
        assert_eq!(
            read("99999999H"),
            Some(Duration::from_secs(99_999_999 * 3_600))
        );
        assert_eq!(read("3M"), Some(Duration::from_secs(180)));
        assert_eq!(read("1S"), Some(Duration::from_secs(1)));
        assert_eq!(read("20000u"), Some(Duration::from_millis(20)));
        assert_eq!(read("7n"), Some(Duration::from_nanos(7)));
    }

    #[test]
    fn a_malformed_header_is_no_timeout() {
        for header in [
            "",
            "m",
            "20",
            "20s",
            "-1m",
            "+1m",
            "1.5S",
            "123456789m",
            "1 m",
        ] {
            assert_eq!(read(header), None, "{header:?}");
        }
        assert_eq!(grpc_timeout(&HeaderMap::new()), None);
    }
}
