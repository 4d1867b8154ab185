//! The decoder against prost's: both decode the same messages to the same values, and reject the
//! same messages.

use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::core::proto::rate_limit_descriptor::{Entry as WireEntry, RateLimitOverride};
use crate::core::proto::{RateLimitDescriptor, RateLimitRequest};

fn request(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors,
        hits_addend: 0,
    }
}

fn one_entry(count: usize) -> RateLimitDescriptor {
    RateLimitDescriptor {
        entries: vec![
            WireEntry {
                key: b"k".into(),
                value: b"v".into()
            };
            count
        ],
        ..Default::default()
    }
}

fn limited(unit: i32, unit_multiplier: Option<u32>) -> RateLimitDescriptor {
    RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: 5,
            unit,
            unit_multiplier,
        }),
        ..one_entry(1)
    }
}

fn error_of(request: &RateLimitRequest) -> InvalidRequest {
    decode(&request.encode_to_vec()).expect_err("an invalid request")
}

#[test]
fn each_error_names_its_field() {
    use InvalidRequest::*;
    let descriptor = 0;
    let multiplier = |multiplier| Multiplier {
        descriptor,
        multiplier,
    };
    for (domain, descriptors, error) in [
        ("", vec![one_entry(1)], NoDomain),
        ("d", vec![], NoDescriptors),
        ("d", vec![one_entry(1); 257], TooManyDescriptors),
        (
            "d",
            vec![one_entry(1), one_entry(65)],
            TooManyEntries { descriptor: 1 },
        ),
        (
            "d",
            vec![limited(0, None)],
            Unit {
                descriptor,
                unit: 0,
            },
        ),
        ("d", vec![limited(6, Some(101))], multiplier(101)),
        ("d", vec![limited(6, Some(0))], multiplier(0)),
    ] {
        assert_eq!(error_of(&request(domain, descriptors)), error);
    }
    let text = error_of(&request("d", vec![limited(99, None)])).to_string();
    let what = "descriptors[0].limit.unit: 99 is not a unit: use";
    assert!(text.starts_with(what), "{text}");
    assert!(decode(&request("d", vec![one_entry(64); 256]).encode_to_vec()).is_ok());
}

#[test]
fn text_need_not_be_utf8() {
    // domain ff, one descriptor with the entry (fe, fd).
    let message = b"\x0a\x01\xff\x12\x08\x0a\x06\x0a\x01\xfe\x12\x01\xfd";
    let decoded = decode(message).expect("a request");
    assert_eq!(decoded.domain, b"\xff");
    let (_, entries) = decoded.descriptors().next().expect("one descriptor");
    assert_eq!(
        entries,
        [Entry {
            key: b"\xfe",
            value: b"\xfd"
        }]
    );
}

#[test]
fn all_units_are_accepted() {
    for unit in 1..=7 {
        let bytes = request("d", vec![limited(unit, Some(2))]).encode_to_vec();
        let decoded = decode(&bytes).expect("a unit");
        let (descriptor, _) = decoded.descriptors().next().expect("one descriptor");
        let rate = descriptor.limit.expect("a limit");
        assert_eq!((rate.unit.number(), rate.unit_multiplier), (unit, 2));
    }
}

#[test]
fn hits_of_the_descriptor_take_precedence_over_those_of_the_request() {
    for (request_hits, own, negative, expected) in [
        (0, None, false, 1),
        (7, None, false, 7),
        (7, Some(0), false, 0),
        (7, Some(3), false, 3),
        (7, Some(3), true, -3),
        (7, None, true, -7),
        (0, Some(u64::MAX), false, i64::MAX),
        (0, Some(u64::MAX), true, -i64::MAX),
        (u32::MAX, None, false, i64::from(u32::MAX)),
    ] {
        let descriptor = RateLimitDescriptor {
            hits_addend: own,
            is_negative_hits: negative,
            ..one_entry(1)
        };
        let bytes = RateLimitRequest {
            hits_addend: request_hits,
            ..request("d", vec![descriptor])
        }
        .encode_to_vec();
        let decoded = decode(&bytes).expect("a request");
        let (descriptor, _) = decoded.descriptors().next().expect("one descriptor");
        assert_eq!(
            decoded.hits(descriptor),
            expected,
            "{request_hits} {own:?} {negative}"
        );
    }
}

fn any_descriptor() -> impl Strategy<Value = RateLimitDescriptor> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..9);
    let entry = (bytes(), bytes()).prop_map(|(key, value)| WireEntry { key, value });
    let limit = (any::<u32>(), 1..8_i32, prop::option::of(1..100_u32)).prop_map(
        |(requests_per_unit, unit, unit_multiplier)| RateLimitOverride {
            requests_per_unit,
            unit,
            unit_multiplier,
        },
    );
    let entries = prop::collection::vec(entry, 0..5);
    let hits = prop::option::of(any::<u64>());
    (entries, prop::option::of(limit), hits, any::<bool>()).prop_map(
        |(entries, limit, hits_addend, is_negative_hits)| RateLimitDescriptor {
            entries,
            limit,
            hits_addend,
            is_negative_hits,
        },
    )
}

fn any_request() -> impl Strategy<Value = RateLimitRequest> {
    let descriptors = prop::collection::vec(any_descriptor(), 1..6);
    let request = ("[a-z|_]{1,8}", descriptors, any::<u32>());
    request.prop_map(|(domain, descriptors, hits_addend)| RateLimitRequest {
        domain,
        descriptors,
        hits_addend,
    })
}

/// A value in its wire format.
#[derive(Clone, Debug)]
enum Wire {
    Varint(u64),
    Fixed64(u64),
    Bytes(Vec<u8>),
    Group,
    Fixed32(u32),
}

fn field(number: u64, value: &Wire) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut tag = |wire_type| prost::encoding::encode_varint(number << 3 | wire_type, &mut bytes);
    match value {
        Wire::Varint(value) => {
            tag(0);
            prost::encoding::encode_varint(*value, &mut bytes);
        }
        Wire::Fixed64(value) => {
            tag(1);
            bytes.extend(value.to_le_bytes());
        }
        Wire::Bytes(value) => {
            tag(2);
            prost::encoding::encode_varint(value.len() as u64, &mut bytes);
            bytes.extend(value);
        }
        Wire::Group => {
            tag(3);
            tag(4);
        }
        Wire::Fixed32(value) => {
            tag(5);
            bytes.extend(value.to_le_bytes());
        }
    }
    bytes
}

fn any_wire() -> impl Strategy<Value = Wire> {
    prop_oneof![
        any::<u64>().prop_map(Wire::Varint),
        any::<u64>().prop_map(Wire::Fixed64),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(Wire::Bytes),
        Just(Wire::Group),
        any::<u32>().prop_map(Wire::Fixed32),
    ]
}

/// The domain `d`, and an entry (`k`, `v`) of a descriptor.
const DOMAIN: &[u8] = b"\x0a\x01d";
const ENTRY: &[u8] = b"\x0a\x06\x0a\x01k\x12\x01v";

/// Each known field within a descriptor with another wire type. The first descriptor is the same as
/// without that field.
#[test]
fn known_fields_of_another_wire_type_within_a_descriptor_are_unknown() {
    let others = [
        Wire::Varint(3),
        Wire::Fixed64(3),
        Wire::Bytes(b"\x08\x03".to_vec()),
        Wire::Group,
        Wire::Fixed32(3),
    ];
    let plain = [DOMAIN.to_vec(), field(2, &Wire::Bytes(ENTRY.to_vec()))].concat();
    let plain = format!("{:?}", decode(&plain).expect("a request"));
    for (number, is_varint) in [(1, false), (2, false), (3, false), (4, true)] {
        let is_other = |other: &&Wire| match other {
            Wire::Varint(_) => !is_varint,
            Wire::Bytes(_) => is_varint,
            _ => true,
        };
        for other in others.iter().filter(is_other) {
            let descriptor = [ENTRY.to_vec(), field(number, other)].concat();
            let bytes = [DOMAIN.to_vec(), field(2, &Wire::Bytes(descriptor))].concat();
            let read = decode(&bytes)
                .unwrap_or_else(|error| panic!("field {number} as {other:?}: {error}"));
            assert_eq!(format!("{read:?}"), plain, "field {number} as {other:?}");
        }
    }
    // Within an entry, a limit (5 per minute) and a wrapped number.
    for other in others
        .iter()
        .filter(|other| !matches!(other, Wire::Bytes(_) | Wire::Varint(_)))
    {
        let limit = [
            field(1, &Wire::Varint(5)),
            field(2, &Wire::Varint(2)),
            field(1, other),
            field(2, other),
            field(3, other),
        ]
        .concat();
        let entry = [
            field(1, &Wire::Bytes(b"k".to_vec())),
            field(1, other),
            field(2, other),
        ]
        .concat();
        let hits = [field(1, &Wire::Varint(7)), field(1, other)].concat();
        let descriptor = [
            field(1, &Wire::Bytes(entry)),
            field(2, &Wire::Bytes(limit)),
            field(3, &Wire::Bytes(hits)),
        ]
        .concat();
        let bytes = [DOMAIN.to_vec(), field(2, &Wire::Bytes(descriptor))].concat();
        let decoded = decode(&bytes).unwrap_or_else(|error| panic!("{other:?}: {error}"));
        let (descriptor, entries) = decoded.descriptors().next().expect("one descriptor");
        assert_eq!(
            (entries, descriptor.hits_addend),
            (
                &[Entry {
                    key: b"k",
                    value: b""
                }][..],
                Some(7)
            ),
            "{other:?}"
        );
        let expected = Rate {
            requests_per_unit: 5,
            unit: Unit::Minute,
            unit_multiplier: 1,
        };
        assert_eq!(descriptor.limit, Some(expected), "{other:?}");
    }
}

/// The property of the decoder: see `src/fuzzing/decode.rs`.
fn check(message: &[u8]) {
    crate::fuzzing::check("decode", message);
}

proptest! {
    #![proptest_config(crate::testing::property(256))]

    #[test]
    fn a_message_that_prost_encodes_is_decoded(request in any_request()) {
        let bytes = request.encode_to_vec();
        decode(&bytes).map_err(|error| TestCaseError::fail(error.to_string()))?;
        check(&bytes);
    }

    /// An enum of more than 32 bits loses the higher ones, and may become negative.
    #[test]
    fn numbers_of_any_size_are_read_as_prost_does(
        unit in prop_oneof![any::<u64>(), (any::<u32>(), 0..9_u64).prop_map(|(high, low)| u64::from(high) << 32 | low)],
        (requests, hits) in any::<(u64, u64)>(),
    ) {
        let limit = [field(1, &Wire::Varint(requests)), field(2, &Wire::Varint(unit))].concat();
        let descriptor = [ENTRY.to_vec(), field(2, &Wire::Bytes(limit))].concat();
        check(&[DOMAIN.to_vec(), field(2, &Wire::Bytes(descriptor)), field(3, &Wire::Varint(hits))].concat());
    }

    /// With a known field of another wire type at any position, the message has the same meaning as
    /// without it. prost refuses such messages, but the runtimes of Go (`consumeMessageField` and
    /// the like return `errUnknown`) and C++ (the table-driven parser's fallback) keep them as
    /// unknown fields.
    #[test]
    fn a_known_field_of_another_wire_type_is_unknown(request in any_request(), number in 1..5_u64, other in any_wire(), is_last in any::<bool>()) {
        let request = request.encode_to_vec();
        let other = field(number, &other);
        check(&if is_last { [request, other].concat() } else { [other, request].concat() });
    }

}

#[test]
fn the_bytes_and_the_number_of_kuadrant_are_read() {
    use crate::core::proto::kuadrant::{CommitRequest, ReserveRequest};
    let reserve = ReserveRequest {
        amount: u64::MAX,
        ttl: Some(prost_types::Duration {
            seconds: 9,
            nanos: 0,
        }),
        ..ReserveRequest::default()
    };
    assert_eq!(
        bytes_and_number(&reserve.encode_to_vec(), [4, 3]),
        (&b"\x08\x09"[..], u64::MAX)
    );
    let commit = CommitRequest {
        reservation_id: "id".to_owned(),
        actual_amount: 7,
        ..CommitRequest::default()
    };
    let commit = commit.encode_to_vec();
    assert_eq!(bytes_and_number(&commit, [3, 4]), (&b"id"[..], 7));
    assert_eq!(bytes_and_number(b"", [3, 4]), (&b""[..], 0));
}
