//! The encoding of a `RateLimitResponse`, by the field numbers of `proto/`. All lengths are
//! computed before the first byte is written, so that there is one allocation of the right size.
//!
//! Fields with their default value are left out, as in every proto3 encoder. prost encodes what is
//! rare: headers, the body of a refusal and metadata. Source: protobuf.dev, "Encoding".
//!
//! A property test compares the encoding with that of prost.

use bytes::Bytes;
use prost::Message;

use super::{Framed, PREFIX_BYTES};
use crate::core::proto::RateLimitResponse;
use crate::core::proto::rate_limit_response::Code;
use crate::core::time::Rate;
use crate::limits::plan::Outcome;

/// The tag of a field: `number << 3 | wire type`.
const fn tag(number: u8, wire_type: u8) -> u8 {
    number << 3 | wire_type
}

const VARINT: u8 = 0;
const BYTES: u8 = 2;

/// Encodes a response behind the prefix of a gRPC message. `extras` has fields whose numbers are
/// above those of the code and the statuses.
pub(super) fn encode(
    overall: Code,
    outcomes: &[Outcome<'_>],
    extras: Option<&RateLimitResponse>,
) -> Framed {
    let length = 2
        + outcomes
            .iter()
            .map(|outcome| field_bytes(status_bytes(outcome)))
            .sum::<usize>()
        + extras.map_or(0, Message::encoded_len);
    let mut out = Vec::with_capacity(PREFIX_BYTES + length);
    out.push(0);
    // Far below 4 GiB, because a request has at most 4 MiB.
    out.extend_from_slice(&(length as u32).to_be_bytes());
    out.extend_from_slice(&[tag(1, VARINT), overall as u8]);
    for outcome in outcomes {
        put_status(&mut out, outcome);
    }
    if let Some(extras) = extras {
        // Encoding into a `Vec` does not fail.
        let _ = extras.encode(&mut out);
    }
    debug_assert_eq!(
        out.len(),
        PREFIX_BYTES + length,
        "the computed length is the written length"
    );
    Framed(Bytes::from(out), None)
}

fn put_status(out: &mut Vec<u8>, outcome: &Outcome<'_>) {
    out.push(tag(2, BYTES));
    put_varint(out, status_bytes(outcome) as u64);
    let code = if outcome.refuses {
        Code::OverLimit
    } else {
        Code::Ok
    };
    out.extend_from_slice(&[tag(1, VARINT), code as u8]);
    if let Some(rate) = &outcome.shown {
        let name = outcome.name;
        out.push(tag(2, BYTES));
        put_varint(out, limit_bytes(rate, name) as u64);
        put_number(out, tag(1, VARINT), on_wire(rate.requests_per_unit));
        put_number(out, tag(2, VARINT), rate.on_wire().0.cast_unsigned().into());
        if !name.is_empty() {
            out.push(tag(3, BYTES));
            put_varint(out, name.len() as u64);
            out.extend_from_slice(name.as_bytes());
        }
        if let Some(multiplier) = multiplier(rate) {
            put_wrapped(out, tag(4, BYTES), multiplier);
        }
    }
    put_number(out, tag(3, VARINT), on_wire(outcome.remaining));
    if let Some(secs) = outcome.reset_secs {
        put_wrapped(out, tag(4, BYTES), whole_seconds(secs));
    }
}

fn status_bytes(outcome: &Outcome<'_>) -> usize {
    2 + outcome
        .shown
        .as_ref()
        .map_or(0, |rate| field_bytes(limit_bytes(rate, outcome.name)))
        + number_bytes(on_wire(outcome.remaining))
        + outcome
            .reset_secs
            .map_or(0, |secs| field_bytes(number_bytes(whole_seconds(secs))))
}

fn limit_bytes(rate: &Rate, name: &str) -> usize {
    number_bytes(on_wire(rate.requests_per_unit))
        + number_bytes(rate.on_wire().0.cast_unsigned().into())
        + if name.is_empty() {
            0
        } else {
            field_bytes(name.len())
        }
        + multiplier(rate).map_or(0, |multiplier| field_bytes(number_bytes(multiplier)))
}

/// A number of a limit, which is a uint32 in the message. [`super::metadata`] has the whole one.
fn on_wire(number: u64) -> u64 {
    number.min(u32::MAX.into())
}

/// The `unit_multiplier`; left out if it is 1.
fn multiplier(rate: &Rate) -> Option<u64> {
    let (_, multiplier) = rate.on_wire();
    (multiplier != 1).then_some(multiplier.into())
}

/// The seconds of a `google.protobuf.Duration`, which are an int64.
fn whole_seconds(secs: u64) -> u64 {
    secs.min(i64::MAX as u64)
}

/// Bytes of a length-delimited field with `content` bytes. All field numbers are below 16, so that
/// a tag is one byte.
fn field_bytes(content: usize) -> usize {
    1 + varint_bytes(content as u64) + content
}

/// Bytes of a varint field; 0 for the default value 0.
fn number_bytes(number: u64) -> usize {
    if number == 0 {
        0
    } else {
        1 + varint_bytes(number)
    }
}

/// Bytes of a varint: seven bits per byte.
fn varint_bytes(number: u64) -> usize {
    ((70 - (number | 1).leading_zeros()) / 7) as usize
}

fn put_number(out: &mut Vec<u8>, tag: u8, number: u64) {
    if number != 0 {
        out.push(tag);
        put_varint(out, number);
    }
}

/// A field with a message whose field 1 is a number: a `UInt32Value`, or a `Duration` of whole
/// seconds.
fn put_wrapped(out: &mut Vec<u8>, outer: u8, number: u64) {
    out.extend_from_slice(&[outer, number_bytes(number) as u8]);
    put_number(out, tag(1, VARINT), number);
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
