//! From the wire to an [`Ask`], borrowed from the received bytes; whatever is wrong is INVALID_ARGUMENT and names the field.
//!
//! Only what Envoy's configuration chooses is capped. What a client can choose (values: any length, any bytes) is never refused, because
//! Envoy lets a request pass when its check fails.

mod wire;

use crate::ask::{Ask, Descriptor, Entry};
use crate::time::{Rate, Unit};
use wire::{Fields, Malformed, Value};

/// Descriptors of one request. Envoy sends one per configured rate limit.
const MOST_DESCRIPTORS: usize = 256;

/// Entries of one descriptor. Envoy sends one per configured action.
const MOST_ENTRIES: usize = 64;

/// Why a message cannot be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// Not a protobuf message of this type.
    #[error("malformed RateLimitRequest: {field}: {reason}")]
    Malformed {
        /// The field that could not be read.
        field: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No domain.
    #[error("rate limit domain must not be empty")]
    NoDomain,
    /// Nothing to decide.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// More than any configuration of Envoy needs.
    #[error("descriptors: {MOST_DESCRIPTORS} at most")]
    TooManyDescriptors,
    /// More than any configuration of Envoy needs.
    #[error("descriptors[{descriptor}].entries: {MOST_ENTRIES} at most")]
    TooManyEntries {
        /// Its place in the request.
        descriptor: usize,
    },
    /// A limit in a unit that does not exist.
    #[error("descriptors[{descriptor}].limit.unit: {unit} is not a unit; SECOND is 1, MINUTE 2, HOUR 3, DAY 4, MONTH 5, YEAR 6, WEEK 7")]
    Unit {
        /// Its place in the request.
        descriptor: usize,
        /// The number that was sent; 0 is UNKNOWN.
        unit: u64,
    },
    /// A window of no length, or of more than 100 years.
    #[error("descriptors[{descriptor}].limit.unit_multiplier: {multiplier} units are no window between 1 second and 100 years")]
    Multiplier {
        /// Its place in the request.
        descriptor: usize,
        /// The number that was sent.
        multiplier: u32,
    },
}

/// Reads a `RateLimitRequest`.
///
/// # Errors
/// [`InvalidRequest`], which becomes INVALID_ARGUMENT.
pub fn decode(message: &[u8]) -> Result<Ask<'_>, InvalidRequest> {
    let mut ask = Ask::default();
    for field in Fields::of(message) {
        match field.map_err(malformed("request"))? {
            (1, value) => ask.domain = value.bytes().map_err(malformed("domain"))?,
            (2, value) => descriptor(&mut ask, value.bytes().map_err(malformed("descriptors"))?)?,
            (3, value) => ask.hits_addend = value.uint32().map_err(malformed("hits_addend"))?,
            _ => {}
        }
    }
    match () {
        () if ask.domain.is_empty() => Err(InvalidRequest::NoDomain),
        () if ask.is_empty() => Err(InvalidRequest::NoDescriptors),
        () => Ok(ask),
    }
}

fn descriptor<'a>(ask: &mut Ask<'a>, message: &'a [u8]) -> Result<(), InvalidRequest> {
    let index = ask.len();
    if index == MOST_DESCRIPTORS {
        return Err(InvalidRequest::TooManyDescriptors);
    }
    let mut descriptor = Descriptor::default();
    let mut limit = None;
    let mut entries = 0;
    for field in Fields::of(message) {
        match field.map_err(malformed("descriptors"))? {
            (1, value) => {
                entries += 1;
                if entries > MOST_ENTRIES {
                    return Err(InvalidRequest::TooManyEntries { descriptor: index });
                }
                ask.push(entry(value).map_err(malformed("descriptors.entries"))?);
            }
            (2, value) => read_limit(limit.get_or_insert_default(), value).map_err(malformed("descriptors.limit"))?,
            (3, value) => {
                let read = wrapped(value, descriptor.hits_addend.unwrap_or(0));
                descriptor.hits_addend = Some(read.map_err(malformed("descriptors.hits_addend"))?);
            }
            (4, value) => descriptor.is_negative_hits = value.varint().map_err(malformed("descriptors.is_negative_hits"))? != 0,
            _ => {}
        }
    }
    descriptor.limit = limit.as_ref().map(|limit| rate(limit, index)).transpose()?;
    ask.close(descriptor);
    Ok(())
}

fn entry(value: Value<'_>) -> Result<Entry<'_>, Malformed> {
    let mut entry = Entry::default();
    for field in Fields::of(value.bytes()?) {
        match field? {
            (1, value) => entry.key = value.bytes()?,
            (2, value) => entry.value = value.bytes()?,
            _ => {}
        }
    }
    Ok(entry)
}

/// A limit as it stands in the message, before anybody asks whether it makes sense.
#[derive(Default)]
struct WireLimit {
    requests_per_unit: u32,
    unit: u64,
    unit_multiplier: Option<u64>,
}

fn read_limit(limit: &mut WireLimit, value: Value<'_>) -> Result<(), Malformed> {
    for field in Fields::of(value.bytes()?) {
        match field? {
            (1, value) => limit.requests_per_unit = value.uint32()?,
            (2, value) => limit.unit = value.varint()?,
            (3, value) => limit.unit_multiplier = Some(wrapped(value, limit.unit_multiplier.unwrap_or(0))?),
            _ => {}
        }
    }
    Ok(())
}

fn rate(limit: &WireLimit, descriptor: usize) -> Result<Rate, InvalidRequest> {
    let unit = Unit::from_number(limit.unit).ok_or(InvalidRequest::Unit { descriptor, unit: limit.unit })?;
    // A uint32 on the wire: higher bits are cut off, as protobuf says.
    let unit_multiplier = limit.unit_multiplier.map_or(1, |multiplier| multiplier as u32);
    let rate = Rate { requests_per_unit: limit.requests_per_unit, unit, unit_multiplier };
    rate.window().map(|_| rate).ok_or(InvalidRequest::Multiplier { descriptor, multiplier: unit_multiplier })
}

/// A `google.protobuf.UInt32Value` or `UInt64Value`: present without a field, it is 0. Sent in parts, the parts are merged.
fn wrapped(value: Value<'_>, before: u64) -> Result<u64, Malformed> {
    let mut number = before;
    for field in Fields::of(value.bytes()?) {
        if let (1, value) = field? {
            number = value.varint()?;
        }
    }
    Ok(number)
}

fn malformed(field: &'static str) -> impl Fn(Malformed) -> InvalidRequest {
    move |Malformed(reason)| InvalidRequest::Malformed { field, reason }
}

#[cfg(test)]
mod tests;
