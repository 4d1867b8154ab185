//! `decode` against prost: a message means what prost reads in it, and is malformed where it is
//! malformed for prost.
//!
//! They differ on purpose in two things. Text need not be UTF-8, and a known field of another wire
//! type is unknown. So the message is first rewritten to one that has neither, by prost's own
//! reader of the wire format.

use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
};
use prost::{DecodeError, Message};

use crate::core::proto::RateLimitRequest;
use crate::core::request::DecodedRequest;
use crate::service::rls::decode::{InvalidRequest, decode};

pub(super) fn check(message: &[u8]) {
    let ours = decode(message);
    let mut rewritten = Vec::new();
    let is_valid = rewrite(message, MessageType::Request, &mut rewritten).is_ok();
    let theirs = is_valid
        .then(|| RateLimitRequest::decode(&rewritten[..]).expect("it was rewritten by prost"));
    match (&ours, &theirs) {
        // prost stops at another depth.
        (
            Err(InvalidRequest::Malformed {
                reason: "groups are nested too deep",
                ..
            }),
            _,
        ) => {}
        (Ok(decoded), Some(request)) => check_content(decoded, request),
        (Err(error), Some(request)) => check_error(*error, request),
        // These are found before the rest of the message is read.
        (
            Err(
                InvalidRequest::Malformed { .. }
                | InvalidRequest::TooManyDescriptors
                | InvalidRequest::TooManyEntries { .. }
                | InvalidRequest::Unit { .. }
                | InvalidRequest::Multiplier { .. },
            ),
            None,
        ) => {}
        _ => panic!("a malformed message is decoded: {ours:?}"),
    }
}

fn check_content(decoded: &DecodedRequest<'_>, request: &RateLimitRequest) {
    assert_eq!(text(decoded.domain), request.domain);
    assert!(!decoded.domain.is_empty() && !decoded.is_empty());
    assert_eq!(
        (decoded.hits_addend, decoded.len()),
        (request.hits_addend, request.descriptors.len())
    );
    for ((descriptor, entries), theirs) in decoded.descriptors().zip(&request.descriptors) {
        let entries = entries.iter().map(|entry| (entry.key, entry.value));
        assert!(
            entries.eq(theirs
                .entries
                .iter()
                .map(|entry| (&entry.key[..], &entry.value[..]))),
            "{decoded:?} {request:?}"
        );
        assert_eq!(
            (descriptor.hits_addend, descriptor.is_negative_hits),
            (theirs.hits_addend, theirs.is_negative_hits)
        );
        let limit = theirs.limit.map(|limit| {
            (
                limit.requests_per_unit.into(),
                limit.unit,
                limit.unit_multiplier.unwrap_or(1),
            )
        });
        assert_eq!(
            descriptor.limit.map(|rate| (
                rate.requests_per_unit,
                rate.unit.number(),
                rate.unit_multiplier
            )),
            limit
        );
    }
}

fn check_error(error: InvalidRequest, request: &RateLimitRequest) {
    let limit = |descriptor: usize| request.descriptors[descriptor].limit.expect("a limit");
    let is_right = match error {
        InvalidRequest::Malformed { .. } => false,
        InvalidRequest::NoDomain => request.domain.is_empty(),
        InvalidRequest::NoDescriptors => request.descriptors.is_empty(),
        InvalidRequest::TooManyDescriptors => request.descriptors.len() > 256,
        InvalidRequest::TooManyEntries { descriptor } => {
            request.descriptors[descriptor].entries.len() > 64
        }
        InvalidRequest::Unit { descriptor, unit } => {
            limit(descriptor).unit == unit && !(1..=7).contains(&unit)
        }
        InvalidRequest::Multiplier {
            descriptor,
            multiplier,
        } => {
            limit(descriptor).unit_multiplier == Some(multiplier)
                && (multiplier == 0 || multiplier > 100)
        }
    };
    assert!(is_right, "{error:?} {request:?}");
}

/// Bytes as text, one character for each.
fn text(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

#[derive(Clone, Copy)]
enum MessageType {
    Request,
    Descriptor,
    Entry,
    Limit,
    /// `UInt32Value` and `UInt64Value`.
    Wrapper,
}

#[derive(Clone, Copy)]
enum FieldType {
    Varint,
    Bytes,
    Text,
    Message(MessageType),
}

impl MessageType {
    /// The type of a field, from `rls.proto` and `ratelimit.proto`.
    const fn field(self, number: u32) -> Option<FieldType> {
        Some(match (self, number) {
            (Self::Request, 1) => FieldType::Text,
            (Self::Request, 2) => FieldType::Message(Self::Descriptor),
            (Self::Request, 3)
            | (Self::Descriptor, 4)
            | (Self::Limit, 1 | 2)
            | (Self::Wrapper, 1) => FieldType::Varint,
            (Self::Descriptor, 1) => FieldType::Message(Self::Entry),
            (Self::Descriptor, 2) => FieldType::Message(Self::Limit),
            (Self::Descriptor | Self::Limit, 3) => FieldType::Message(Self::Wrapper),
            (Self::Entry, 1 | 2) => FieldType::Bytes,
            _ => return None,
        })
    }
}

/// Copies the known fields that have their own wire type, and changes text to UTF-8.
fn rewrite(
    mut message: &[u8],
    message_type: MessageType,
    out: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    while !message.is_empty() {
        let (number, wire_type) = decode_key(&mut message)?;
        let mut value = message;
        skip_field(wire_type, number, &mut message, DecodeContext::default())?;
        let field = match (message_type.field(number), wire_type) {
            (Some(FieldType::Varint), WireType::Varint) => {
                encode_key(number, wire_type, out);
                encode_varint(decode_varint(&mut value)?, out);
                continue;
            }
            (Some(field), WireType::LengthDelimited) => field,
            _ => continue,
        };
        let length = decode_varint(&mut value)? as usize;
        let bytes = &value[..length];
        let content = match field {
            FieldType::Varint => continue,
            FieldType::Bytes => bytes.to_vec(),
            FieldType::Text => text(bytes).into_bytes(),
            FieldType::Message(message_type) => {
                let mut content = Vec::new();
                rewrite(bytes, message_type, &mut content)?;
                content
            }
        };
        encode_key(number, wire_type, out);
        encode_varint(content.len() as u64, out);
        out.extend(content);
    }
    Ok(())
}
