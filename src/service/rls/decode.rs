//! Decodes a `RateLimitRequest` into a [`DecodedRequest`], by a reader of the protobuf wire format
//! that copies nothing: the request borrows from the received bytes. Errors name the field and
//! become INVALID_ARGUMENT.
//!
//! Only the numbers of descriptors and of entries are capped, which Envoy's configuration
//! determines. Values of any length and any bytes, which a client can choose, are never rejected,
//! because Envoy lets a request pass when its rate limit call fails.
//!
//! A known field of another wire type is an unknown field, and a number for a field of 32 bits
//! loses its higher bits, as in the Go and C++ runtimes.
//!
//! Source of the field numbers: `envoy/service/ratelimit/v3/rls.proto` (`RateLimitRequest`) and
//! `envoy/extensions/common/ratelimit/v3/ratelimit.proto` (`RateLimitDescriptor`); of the wire
//! format: protobuf.dev, "Encoding".

pub(crate) use crate::core::request::MAX_ENTRIES;
use crate::core::request::{DecodedRequest, Descriptor, Entry};
use crate::core::time::{Rate, Unit};

/// The most descriptors of one request. Envoy sends one per rate limit of a route.
pub(crate) const MAX_DESCRIPTORS: usize = 256;

/// Why a request is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// The bytes are no message of this type.
    #[error("malformed {message}: {field}: {reason}")]
    Malformed {
        /// The type of the message.
        message: &'static str,
        /// The field that cannot be decoded.
        field: &'static str,
        /// Description of the error.
        reason: &'static str,
    },
    /// `domain` is empty.
    #[error("rate limit domain must not be empty")]
    NoDomain,
    /// `descriptors` is empty.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// More than [`MAX_DESCRIPTORS`] descriptors.
    #[error("descriptors: {MAX_DESCRIPTORS} at most")]
    TooManyDescriptors,
    /// A descriptor has more than [`MAX_ENTRIES`] entries.
    #[error("descriptors[{descriptor}].entries: {MAX_ENTRIES} at most")]
    TooManyEntries {
        /// The index of the descriptor in the request.
        descriptor: usize,
    },
    /// The limit of a descriptor has an unknown unit.
    #[error(
        "descriptors[{descriptor}].limit.unit: {unit} is not a unit: use SECOND = 1, MINUTE = 2, \
         HOUR = 3, DAY = 4, MONTH = 5, YEAR = 6 or WEEK = 7"
    )]
    Unit {
        /// The index of the descriptor in the request.
        descriptor: usize,
        /// The number that was sent; 0 is UNKNOWN.
        unit: i32,
    },
    /// The limit of a descriptor has a window of no length or of more than 100 years.
    #[error(
        "descriptors[{descriptor}].limit.unit_multiplier: {multiplier} gives a window outside of 1 \
         second to 100 years"
    )]
    Multiplier {
        /// The index of the descriptor in the request.
        descriptor: usize,
        /// The number that was sent.
        multiplier: u32,
    },
}

impl InvalidRequest {
    /// The error of a message of another type with the same fields.
    #[must_use]
    pub(crate) fn of(mut self, name: &'static str) -> Self {
        if let Self::Malformed { message, .. } = &mut self {
            *message = name;
        }
        self
    }
}

/// Decodes an encoded `RateLimitRequest`.
///
/// # Errors
/// [`InvalidRequest`] names the field that is wrong.
pub fn decode(message: &[u8]) -> Result<DecodedRequest<'_>, InvalidRequest> {
    let mut request = DecodedRequest::default();
    decode_into(&mut request, message)?;
    Ok(request)
}

/// Decodes into an empty [`DecodedRequest`]. It is large: each move of it costs as much as a field.
///
/// # Errors
/// As [`decode`].
pub fn decode_into<'m>(
    request: &mut DecodedRequest<'m>,
    message: &'m [u8],
) -> Result<(), InvalidRequest> {
    for field in MessageFields::of(message) {
        match field.map_err(malformed("request"))? {
            (1, FieldValue::Bytes(domain)) => request.domain = domain,
            (2, FieldValue::Bytes(message)) => descriptor(request, message)?,
            (3, FieldValue::Varint(hits)) => request.hits_addend = hits as u32,
            _ => {}
        }
    }
    if request.domain.is_empty() {
        return Err(InvalidRequest::NoDomain);
    }
    if request.is_empty() {
        return Err(InvalidRequest::NoDescriptors);
    }
    Ok(())
}

fn descriptor<'a>(
    request: &mut DecodedRequest<'a>,
    message: &'a [u8],
) -> Result<(), InvalidRequest> {
    let index = request.len();
    if index == MAX_DESCRIPTORS {
        return Err(InvalidRequest::TooManyDescriptors);
    }
    let mut descriptor = Descriptor::default();
    let mut limit = None;
    let mut entries = 0;
    for field in MessageFields::of(message) {
        match field.map_err(malformed("descriptors"))? {
            (1, FieldValue::Bytes(message)) => {
                entries += 1;
                if entries > MAX_ENTRIES {
                    return Err(InvalidRequest::TooManyEntries { descriptor: index });
                }
                request.push(entry(message).map_err(malformed("descriptors.entries"))?);
            }
            (2, FieldValue::Bytes(message)) => read_limit(limit.get_or_insert_default(), message)
                .map_err(malformed("descriptors.limit"))?,
            (3, FieldValue::Bytes(message)) => {
                let read = wrapped(message, descriptor.hits_addend.unwrap_or(0));
                descriptor.hits_addend = Some(read.map_err(malformed("descriptors.hits_addend"))?);
            }
            (4, FieldValue::Varint(flag)) => descriptor.is_negative_hits = flag != 0,
            _ => {}
        }
    }
    descriptor.limit = limit.as_ref().map(|limit| rate(limit, index)).transpose()?;
    request.close(descriptor);
    Ok(())
}

fn entry(message: &[u8]) -> Result<Entry<'_>, MalformedMessage> {
    let mut entry = Entry::default();
    for field in MessageFields::of(message) {
        match field? {
            (1, FieldValue::Bytes(key)) => entry.key = key,
            (2, FieldValue::Bytes(value)) => entry.value = value,
            _ => {}
        }
    }
    Ok(entry)
}

/// A `RateLimitDescriptor.RateLimitOverride` as decoded, before validation.
#[derive(Default)]
struct WireLimit {
    requests_per_unit: u32,
    unit: i32,
    unit_multiplier: Option<u64>,
}

fn read_limit(limit: &mut WireLimit, message: &[u8]) -> Result<(), MalformedMessage> {
    for field in MessageFields::of(message) {
        match field? {
            (1, FieldValue::Varint(requests)) => limit.requests_per_unit = requests as u32,
            (2, FieldValue::Varint(unit)) => limit.unit = unit as i32,
            (3, FieldValue::Bytes(value)) => {
                limit.unit_multiplier = Some(wrapped(value, limit.unit_multiplier.unwrap_or(0))?);
            }
            _ => {}
        }
    }
    Ok(())
}

fn rate(limit: &WireLimit, descriptor: usize) -> Result<Rate, InvalidRequest> {
    let unit = u64::try_from(limit.unit).ok().and_then(Unit::from_number);
    let unit = unit.ok_or(InvalidRequest::Unit {
        descriptor,
        unit: limit.unit,
    })?;
    let multiplier = limit.unit_multiplier.unwrap_or(1) as u32;
    let rate = Rate {
        requests_per_unit: limit.requests_per_unit.into(),
        unit,
        unit_multiplier: multiplier,
    };
    let invalid = InvalidRequest::Multiplier {
        descriptor,
        multiplier,
    };
    rate.window().map(|_| rate).ok_or(invalid)
}

/// A `google.protobuf.UInt32Value` or `UInt64Value`. Without its field it is 0. A message field
/// that occurs again is merged with `before`.
fn wrapped(message: &[u8], before: u64) -> Result<u64, MalformedMessage> {
    let mut number = before;
    for field in MessageFields::of(message) {
        if let (1, FieldValue::Varint(value)) = field? {
            number = value;
        }
    }
    Ok(number)
}

/// The bytes and the number in these fields of a message of Kuadrant; none if it is malformed,
/// which [`decode`] reports.
pub(crate) fn bytes_and_number(message: &[u8], fields: [u64; 2]) -> (&[u8], u64) {
    let (mut bytes, mut number) = (&[][..], 0);
    for field in MessageFields::of(message).flatten() {
        match field {
            (field, FieldValue::Bytes(value)) if field == fields[0] => bytes = value,
            (field, FieldValue::Varint(value)) if field == fields[1] => number = value,
            _ => {}
        }
    }
    (bytes, number)
}

fn malformed(field: &'static str) -> impl Fn(MalformedMessage) -> InvalidRequest {
    let message = "RateLimitRequest";
    move |MalformedMessage(reason)| InvalidRequest::Malformed {
        message,
        field,
        reason,
    }
}

/// Why bytes are not a message: the reason, as error messages show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MalformedMessage(pub &'static str);

/// How deep groups may be nested. Envoy sends none; the bound protects the stack.
const MAX_GROUP_DEPTH: usize = 32;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldValue<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Eight bytes, four bytes or a group. No known field has such a type.
    Skipped,
}

/// The fields of a message, in the order of the wire. Ends after the first error.
struct MessageFields<'a> {
    rest: &'a [u8],
}

impl<'a> MessageFields<'a> {
    fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn field(&mut self) -> Result<(u64, FieldValue<'a>), MalformedMessage> {
        let (number, wire_type) = self.tag()?;
        Ok((number, self.value(number, wire_type, 0)?))
    }

    fn tag(&mut self) -> Result<(u64, u64), MalformedMessage> {
        let tag = self.varint()?;
        if tag > u64::from(u32::MAX) || tag >> 3 == 0 {
            return Err(MalformedMessage("invalid field number"));
        }
        Ok((tag >> 3, tag & 7))
    }

    fn value(
        &mut self,
        number: u64,
        wire_type: u64,
        depth: usize,
    ) -> Result<FieldValue<'a>, MalformedMessage> {
        match wire_type {
            0 => self.varint().map(FieldValue::Varint),
            1 => self.take(8).map(|_| FieldValue::Skipped),
            2 => {
                let length = self.varint()?;
                self.take(usize::try_from(length).unwrap_or(usize::MAX))
                    .map(FieldValue::Bytes)
            }
            3 if depth < MAX_GROUP_DEPTH => self.group(number, depth),
            3 => Err(MalformedMessage("groups are nested too deep")),
            5 => self.take(4).map(|_| FieldValue::Skipped),
            _ => Err(MalformedMessage("invalid wire type")),
        }
    }

    fn group(&mut self, opened: u64, depth: usize) -> Result<FieldValue<'a>, MalformedMessage> {
        loop {
            match self.tag()? {
                (closed, 4) if closed == opened => return Ok(FieldValue::Skipped),
                (number, wire_type) => self.value(number, wire_type, depth + 1)?,
            };
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], MalformedMessage> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(MalformedMessage("truncated"))?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, MalformedMessage> {
        match self.rest {
            // Nearly all: tags, lengths and hits.
            &[byte @ 0..0x80, ref rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, MalformedMessage> {
        let mut number = 0_u64;
        for (index, &byte) in self.rest.iter().enumerate().take(10) {
            if index == 9 && byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.rest = &self.rest[index + 1..];
                return Ok(number);
            }
        }
        Err(MalformedMessage(if self.rest.len() < 10 {
            "truncated"
        } else {
            "a varint of more than 64 bits"
        }))
    }
}

impl<'a> Iterator for MessageFields<'a> {
    type Item = Result<(u64, FieldValue<'a>), MalformedMessage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests;
