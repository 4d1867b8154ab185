//! `POST /json`: converts the JSON of a request to the bytes that Envoy would send, and the bytes
//! of a response to JSON.
//!
//! The mapping is protobuf's (ProtoJSON), by the published descriptors; the bytes take the same
//! decoder as gRPC's. Keys and values that are not UTF-8 can only be sent over gRPC.

use std::sync::LazyLock;

use bytes::Bytes;
use http::StatusCode;
use prost_reflect::prost::Message;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};

use crate::core::proto;

/// The published descriptors.
static DESCRIPTORS: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(proto::DESCRIPTORS).expect("build.rs encoded the descriptors")
});

/// The descriptor of a message of rate limits.
fn message(name: &str) -> MessageDescriptor {
    DESCRIPTORS
        .get_message_by_name(&format!("envoy.service.ratelimit.v3.{name}"))
        .expect("build.rs compiled rls.proto")
}

/// Encodes a `RateLimitRequest` from its JSON.
///
/// # Errors
/// The error in the JSON with its position, in one line of bounded length.
pub(crate) fn request(json: &[u8]) -> Result<Bytes, String> {
    if objects(json) > MAX_OBJECTS {
        return Err(format!(
            "more than {MAX_OBJECTS} objects; a request has at most 256 descriptors of 64 entries"
        ));
    }
    let mut reader = serde_json::Deserializer::from_slice(json);
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let kind = message("RateLimitRequest");
    let message = DynamicMessage::deserialize_with_options(kind, &mut reader, &options);
    let message = message
        .and_then(|message| reader.end().map(|()| message))
        .map_err(|error| shortened(&error.to_string()))?;
    Ok(message.encode_to_vec().into())
}

/// The characters of an error that are shown, from its beginning and from its end, where its place
/// in the body is.
const ERROR_START_CHARS: usize = 200;
const ERROR_END_CHARS: usize = 60;

/// An error in one line. It may quote the whole body.
fn shortened(error: &str) -> String {
    let count = error.chars().count();
    let end = count.saturating_sub(ERROR_END_CHARS);
    let shorten = |(index, char): (usize, char)| match index {
        ERROR_START_CHARS if index < end => Some('…'),
        _ if (ERROR_START_CHARS..end).contains(&index) => None,
        _ => Some(if char.is_control() { ' ' } else { char }),
    };
    error.chars().enumerate().filter_map(shorten).collect()
}

/// Maximum number of JSON objects in a request. Each becomes a message with a map of fields, which
/// needs a hundred times the memory of its two braces.
pub(crate) const MAX_OBJECTS: usize = 256 * (64 + 4);

/// Counts opening braces outside of strings.
fn objects(json: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (0, false, false);
    for &byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

/// The JSON of an encoded `RateLimitResponse`, and the status of HTTP for its overall code.
///
/// # Errors
/// The bytes are not a `RateLimitResponse`, which would be a defect of Weir.
pub(super) fn response(encoded: Bytes) -> Result<(StatusCode, Vec<u8>), String> {
    let message = DynamicMessage::decode(message("RateLimitResponse"), encoded)
        .map_err(|error| error.to_string())?;
    let overall = message.get_field_by_name("overall_code");
    let status = match overall.and_then(|code| code.as_enum_number()) {
        Some(1) => StatusCode::OK,
        Some(2) => StatusCode::TOO_MANY_REQUESTS,
        // UNKNOWN, or a code of a newer version.
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let json = serde_json::to_vec(&message).map_err(|error| error.to_string())?;
    Ok((status, json))
}

#[cfg(test)]
mod tests {
    use prost_reflect::Value;

    use super::*;

    #[test]
    fn a_request_becomes_what_envoy_would_send() {
        let json = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "ü"}], "hitsAddend": "3", "is_negative_hits": true,
            "limit": {"requestsPerUnit": 5, "unit": "MINUTE"}}], "hitsAddend": 2}"#;
        let entry = b"\x0a\x01k\x12\x02\xc3\xbc";
        let mut descriptor = vec![0x0a, entry.len() as u8];
        descriptor.extend_from_slice(entry);
        descriptor.extend_from_slice(b"\x12\x04\x08\x05\x10\x02\x1a\x02\x08\x03\x20\x01");
        let mut expected = b"\x0a\x01d\x12".to_vec();
        expected.push(descriptor.len() as u8);
        expected.extend_from_slice(&descriptor);
        expected.extend_from_slice(b"\x18\x02");
        assert_eq!(request(json.as_bytes()).unwrap(), expected);
        assert_eq!(request(b"{}").unwrap(), b"".as_slice());
    }

    #[test]
    fn invalid_json_is_reported() {
        for (json, what) in [
            (&b""[..], "EOF"),
            (b"[]", "invalid type"),
            (br#"{"domian": "d"}"#, "domian"),
            (br#"{"domain": 5}"#, "invalid type"),
            (br#"{"domain": "d"} x"#, "trailing"),
            (b"{\"domain\": \"\xff\"}", "unicode"),
            (br#"{"hitsAddend": -1}"#, "out of range"),
            (br#"{"hitsAddend": 4294967296}"#, "out of range"),
            (
                br#"{"descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}"#,
                "FORTNIGHT",
            ),
        ] {
            let error = request(json).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        let long = format!(r#"{{"a\n{}z": "d"}}"#, "b".repeat(10_000));
        let error = request(long.as_bytes()).unwrap_err();
        assert!(
            error.starts_with("unrecognized field name 'a bbb")
                && error.ends_with("bbz' at line 1 column 10007"),
            "{error}"
        );
        assert!(error.len() < 300, "{error}");
        let many = format!(r#"{{"descriptors": [{}{{}}]}}"#, "{},".repeat(100_000));
        assert!(request(many.as_bytes()).unwrap_err().contains("objects"));
        let text = format!(r#"{{"domain": "{}\""}}"#, "{".repeat(100_000));
        assert!(
            request(text.as_bytes()).is_ok(),
            "braces in strings do not count"
        );
        assert!(request(&b"[".repeat(100_000)).is_err());
        assert!(request(&br#"{"descriptors":"#.repeat(100_000)).is_err());
    }

    #[test]
    fn a_response_becomes_canonical_json() {
        // overall_code OVER_LIMIT; a status: OVER_LIMIT, {20 per MINUTE, multiplier 2}, remaining
        // 0, reset after 58 s.
        let encoded: &[u8] =
            b"\x08\x02\x12\x10\x08\x02\x12\x08\x08\x14\x10\x02\x22\x02\x08\x02\x22\x02\x08\x3a";
        let (status, json) = response(Bytes::from_static(encoded)).unwrap();
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        let expected = serde_json::json!({
            "overallCode": "OVER_LIMIT",
            "statuses": [{
                "code": "OVER_LIMIT",
                "currentLimit": {"requestsPerUnit": 20, "unit": "MINUTE", "unitMultiplier": 2},
                "durationUntilReset": "58s",
            }],
        });
        assert_eq!(
            serde_json::from_slice::<serde_json::Value>(&json).unwrap(),
            expected
        );
        assert_eq!(
            response(Bytes::from_static(b"\x08\x01")).unwrap().0,
            StatusCode::OK
        );
        assert_eq!(
            response(Bytes::new()).unwrap().0,
            StatusCode::INTERNAL_SERVER_ERROR
        );
        assert!(response(Bytes::from_static(b"\xff")).is_err());
    }

    #[test]
    fn the_descriptors_are_the_published_ones() {
        let entry = DynamicMessage::decode(
            message("RateLimitRequest"),
            request(br#"{"domain": "d"}"#).unwrap(),
        )
        .unwrap();
        assert_eq!(
            entry.get_field_by_name("domain").unwrap().as_ref(),
            &Value::String("d".to_owned())
        );
    }
}
