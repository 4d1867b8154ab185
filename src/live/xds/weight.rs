//! The memory of a resource once it is decoded and compiled, estimated from its bytes.
//!
//! Nothing is allocated for it: a message which is small, but has many elements, is refused before
//! it is decoded. The numbers are a tenth above what a process took at its peak for the first
//! version of many of them. The version that another one replaces stays for a while, which adds as
//! much as half.
//!
//! Counting descriptors alone let lists of empty values through, two bytes of which take 250.
//! Resources that did not change are those in force, and are not decoded again.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Messages inside each other: as deep as prost decodes.
pub(crate) const MAX_DEPTH: usize = 100;

/// Copies of a text: in the message, decoded, as a node of the compiler, in the tree and in the
/// limit.
const COPIES: u64 = 8;

/// Copies of it in each limit below: in its path, its usage and its metrics.
const COPIES_BELOW: u64 = 4;

/// Memory of a level for each limit below it, in addition to its texts.
const LEVEL_BELOW: u64 = 260;

/// The reason why a resource has no weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotWeighed {
    /// The message is not valid.
    Invalid,
    /// Its weight is above the maximum.
    TooMuch,
}

impl NotWeighed {
    /// The problem of the resource, where all resources may have so many bytes of memory.
    pub(super) fn explain(self, max_memory: u64) -> String {
        match self {
            Self::Invalid => "the message is not valid".to_owned(),
            Self::TooMuch => format!(
                "it does not fit into the {} MiB of memory for all resources of the control plane, \
                 which are a part of MEMORY_LIMIT",
                max_memory >> 20
            ),
        }
    }
}

/// A message or a text.
struct MessageKind {
    /// The bytes that one takes, whatever it holds.
    each: u64,
    role: Role,
    /// By the numbers of fields. A text has none, and numbers are part of their message.
    fields: &'static [(u32, &'static MessageKind)],
}

/// The texts of other messages of which a message has copies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Part,
    /// Each limit in it or below holds copies of its texts.
    Level,
    /// It holds copies of the texts of all levels above.
    Limit,
}

use Role::{Level, Limit, Part};

impl MessageKind {
    const fn new(each: u64, role: Role, fields: &'static [(u32, &'static Self)]) -> Self {
        Self { each, role, fields }
    }
}

/// The name of a domain is in each of its limits.
static CONFIG: MessageKind =
    MessageKind::new(3_000, Level, &[(1, &TEXT), (2, &TEXT), (3, &DESCRIPTOR)]);
static DESCRIPTOR: MessageKind = MessageKind::new(
    1_400,
    Level,
    &[
        (1, &TEXT),
        (2, &TEXT),
        (3, &POLICY),
        (4, &DESCRIPTOR),
        (8, &STRUCT),
    ],
);
static POLICY: MessageKind = MessageKind::new(2_000, Limit, &[(4, &TEXT), (5, &REPLACED)]);
static REPLACED: MessageKind = MessageKind::new(400, Part, &[(1, &TEXT)]);
/// A map of one field has room for more.
static STRUCT: MessageKind = MessageKind::new(1_400, Part, &[(1, &FIELD)]);
static FIELD: MessageKind = MessageKind::new(400, Part, &[(1, &TEXT), (2, &VALUE)]);
static VALUE: MessageKind = MessageKind::new(300, Part, &[(3, &TEXT), (5, &STRUCT), (6, &LIST)]);
static LIST: MessageKind = MessageKind::new(100, Part, &[(1, &VALUE)]);
static TEXT: MessageKind = MessageKind::new(100, Part, &[]);

/// The weight of an encoded `RateLimitConfig`, in bytes, at most `most`.
pub(super) fn weigh(config: &[u8], most: u64) -> Result<u64, NotWeighed> {
    let mut left = most;
    below(config, &CONFIG, 0, &mut left, MAX_DEPTH)?;
    Ok(most - left)
}

/// Takes the weight of a message and of all in it from `left`. A limit in it takes `path` for the
/// levels above.
fn below(
    message: &[u8],
    kind: &MessageKind,
    mut path: u64,
    left: &mut u64,
    depth: usize,
) -> Result<(), NotWeighed> {
    let depth = depth.checked_sub(1).ok_or(NotWeighed::Invalid)?;
    if kind.role == Level {
        path += LEVEL_BELOW;
        each_field(message, kind, |part, content| {
            if part.fields.is_empty() {
                path += COPIES_BELOW * content.len() as u64;
            }
            Ok(())
        })?;
    }
    let weight = kind.each + if kind.role == Limit { path } else { 0 };
    *left = left.checked_sub(weight).ok_or(NotWeighed::TooMuch)?;
    each_field(message, kind, |part, content| {
        if !part.fields.is_empty() {
            return below(content, part, path, left, depth);
        }
        let weight = part.each + COPIES * content.len() as u64;
        *left = left.checked_sub(weight).ok_or(NotWeighed::TooMuch)?;
        Ok(())
    })
}

/// Calls `found` with each message and text in a message.
fn each_field(
    mut message: &[u8],
    kind: &MessageKind,
    mut found: impl FnMut(&'static MessageKind, &[u8]) -> Result<(), NotWeighed>,
) -> Result<(), NotWeighed> {
    while !message.is_empty() {
        let (number, wire_type) = decode_key(&mut message).map_err(|_| NotWeighed::Invalid)?;
        let Some((_, part)) = kind.fields.iter().find(|(known, _)| *known == number) else {
            skip_field(wire_type, number, &mut message, DecodeContext::default())
                .map_err(|_| NotWeighed::Invalid)?;
            continue;
        };
        // prost reads the fields of a map whatever their wire type is.
        if wire_type != WireType::LengthDelimited {
            return Err(NotWeighed::Invalid);
        }
        let length = decode_varint(&mut message).map_err(|_| NotWeighed::Invalid)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let split = message.split_at_checked(length);
        let (content, rest) = split.ok_or(NotWeighed::Invalid)?;
        message = rest;
        found(part, content)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prost::{Message, encoding};

    use super::*;
    use crate::core::proto::xds::{
        RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace,
    };

    fn field(number: u32, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encoding::encode_key(number, WireType::LengthDelimited, &mut out);
        encoding::encode_varint(content.len() as u64, &mut out);
        out.extend(content);
        out
    }

    fn sample() -> Vec<u8> {
        let value = field(
            2,
            &field(
                6,
                &[
                    field(1, &[]),
                    field(1, &field(3, b"text")),
                    field(1, &field(5, &[])),
                ]
                .concat(),
            ),
        );
        let metadata = field(1, &[field(1, b"list"), value].concat());
        let metadata = prost_types::Struct::decode(&*metadata).expect("valid");
        let replaces = vec![RateLimitReplace {
            name: "other".to_owned(),
        }];
        let policy = RateLimitPolicy {
            unit: 2,
            requests_per_unit: 7,
            name: "name".to_owned(),
            replaces,
            ..Default::default()
        };
        let leaf = RateLimitDescriptor {
            key: "k".to_owned(),
            rate_limit: Some(policy),
            metadata: Some(metadata),
            ..Default::default()
        };
        let top = RateLimitDescriptor {
            key: "t".to_owned(),
            value: "v".to_owned(),
            descriptors: vec![leaf],
            ..Default::default()
        };
        RateLimitConfig {
            name: "res".to_owned(),
            domain: "dom".to_owned(),
            descriptors: vec![top],
        }
        .encode_to_vec()
    }

    #[test]
    fn every_element_has_its_weight_whatever_its_length() {
        let weight = |config: &[u8]| weigh(config, u64::MAX).expect("valid");
        assert_eq!(weight(&[]), CONFIG.each);
        for (elements, kind) in [
            (
                field(
                    3,
                    &[
                        field(1, b"k"),
                        field(
                            8,
                            &field(1, &field(2, &field(6, &field(1, &[]).repeat(1_000)))),
                        ),
                    ]
                    .concat(),
                ),
                &VALUE,
            ),
            (field(3, &field(3, &field(5, &[]).repeat(1_000))), &REPLACED),
            (field(3, &field(4, &[]).repeat(1_000)), &DESCRIPTOR),
        ] {
            assert!(
                weight(&elements) >= 1_000 * kind.each,
                "{} bytes",
                elements.len()
            );
        }
        // Each of a hundred limits has the long text above it, wherever that is written.
        let limits = field(4, &field(3, &[])).repeat(100);
        for level in [
            [field(1, &[b'x'; 10_000]), limits.clone()].concat(),
            [limits.clone(), field(1, &[b'x'; 10_000])].concat(),
        ] {
            assert!(weight(&field(3, &level)) > COPIES_BELOW * 100 * 10_000);
        }
        let domain = [
            field(2, &[b'x'; 10_000]),
            field(3, &field(3, &[])).repeat(1_000),
        ]
        .concat();
        assert!(
            weight(&domain) > COPIES_BELOW * 1_000 * 10_000,
            "each limit has the name of its domain"
        );
        let (sample, all) = (sample(), weight(&sample()));
        assert_eq!(
            (weigh(&sample, all), weigh(&sample, all - 1)),
            (Ok(all), Err(NotWeighed::TooMuch))
        );
    }

    #[test]
    fn what_is_not_valid_has_none() {
        let sample = sample();
        for length in 0..sample.len() {
            let (weight, decoded) = (
                weigh(&sample[..length], u64::MAX),
                RateLimitConfig::decode(&sample[..length]),
            );
            assert!(
                weight.is_ok() || (weight == Err(NotWeighed::Invalid) && decoded.is_err()),
                "{length}: {weight:?}"
            );
        }
        let garbage = [field(3, &field(4, &[]).repeat(1_000)), vec![0xff; 3]].concat();
        assert_eq!(
            weigh(&garbage, u64::MAX),
            Err(NotWeighed::Invalid),
            "it is not decoded up to there"
        );
        let entry = [
            field(1, b"k"),
            field(2, &field(6, &field(1, &[]).repeat(40))),
        ]
        .concat();
        let hidden = [vec![0x08, entry.len() as u8], entry].concat();
        let hidden = field(3, &field(8, &hidden));
        assert!(
            RateLimitConfig::decode(&*hidden).is_ok(),
            "a map of another wire type"
        );
        assert_eq!(weigh(&hidden, u64::MAX), Err(NotWeighed::Invalid));
        let deep = (0..10_000).fold(Vec::new(), |inner, _| field(4, &inner));
        assert_eq!(
            weigh(&field(3, &deep), u64::MAX),
            Err(NotWeighed::Invalid),
            "it is deeper than any decoder goes"
        );
    }

    /// A message that prost decodes has a weight, and takes less memory than its weight.
    #[test]
    fn mutated_messages_weigh_more_than_what_is_decoded_of_them() {
        fn descriptor(of: &RateLimitDescriptor) -> usize {
            let policy = of.rate_limit.iter().map(|limit| {
                limit.name.len() + limit.replaces.len() * size_of::<RateLimitReplace>()
            });
            let metadata = of
                .metadata
                .iter()
                .map(|metadata| metadata.encoded_len() * 20);
            size_of::<RateLimitDescriptor>()
                + of.key.len()
                + of.value.len()
                + of.descriptors
                    .iter()
                    .map(descriptor)
                    .chain(policy)
                    .chain(metadata)
                    .sum::<usize>()
        }
        let mut random = fastrand::Rng::with_seed(15);
        let (seed, mut decoded) = (sample().repeat(3), 0);
        let cases = crate::testing::cases(50_000);
        for _ in 0..cases {
            let mut message = seed.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..message.len());
                match random.u8(..3) {
                    0 => message[at] = random.u8(..),
                    1 => message[at] ^= 1 << random.u8(..8),
                    _ => message.truncate(at.max(1)),
                }
            }
            let weight = weigh(&message, u64::MAX);
            if let (Ok(weight), Ok(read)) = (weight, RateLimitConfig::decode(&message[..])) {
                let bytes = read.descriptors.iter().map(descriptor).sum::<usize>() as u64;
                assert!(
                    weight > bytes,
                    "{weight} for {bytes}: {}",
                    message.escape_ascii()
                );
                decoded += 1;
            }
        }
        assert!(decoded > cases / 10, "{decoded} were valid");
    }
}
