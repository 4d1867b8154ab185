//! The requests of a load, made from templates and encoded by the field numbers of `proto/`. Source:
//! protobuf.dev, "Encoding".

use bytes::{BufMut, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

use super::super::print;
use super::super::workload::{Filled, Hits, Template};
use super::client::{EncodedDescriptor, EncodedRequest};
use crate::core::ask::written::entry;
use crate::core::proto::RateLimitDescriptor;

/// The bytes before a message of gRPC: a flag for compression, and its length.
const PREFIX_BYTES: usize = 5;

/// Numbers of fields: of a request, of a descriptor, and of an entry.
const DOMAIN: u32 = 1;
const DESCRIPTORS: u32 = 2;
const ENTRIES: u32 = 1;
const HITS_ADDEND: u32 = 3;
const KEY: u32 = 1;
const VALUE: u32 = 2;

/// Makes up requests.
pub(super) struct Requests {
    domain: String,
    templates: Vec<Template>,
    /// Without it there is no `hits_addend`, which means one hit.
    hits: Option<Hits>,
    random: fastrand::Rng,
    filled: Filled,
    descriptor: BytesMut,
    entry: BytesMut,
}

impl Requests {
    pub(super) fn new(
        domain: &str,
        templates: Vec<Template>,
        hits: Option<Hits>,
        seed: u64,
    ) -> Self {
        Self {
            domain: domain.to_owned(),
            templates,
            hits,
            random: fastrand::Rng::with_seed(seed),
            filled: Filled::default(),
            descriptor: BytesMut::new(),
            entry: BytesMut::new(),
        }
    }

    /// The next request.
    pub(super) fn next(&mut self) -> EncodedRequest {
        let mut message = BytesMut::with_capacity(256);
        message.put_bytes(0, PREFIX_BYTES);
        put_bytes(DOMAIN, self.domain.as_bytes(), &mut message);
        let mut descriptors = Vec::with_capacity(self.templates.len());
        for template in &mut self.templates {
            // There are no fields that a record could lack.
            template.fill(&mut self.random, |_| None, &mut self.filled);
            self.descriptor.clear();
            for entry in template.entries(&self.filled) {
                self.entry.clear();
                put_bytes(KEY, entry.key, &mut self.entry);
                put_bytes(VALUE, entry.value, &mut self.entry);
                put_bytes(ENTRIES, &self.entry, &mut self.descriptor);
            }
            let entries = self.descriptor.len();
            let hits = self.hits.as_ref().map(|hits| hits.draw(&mut self.random));
            if let Some(hits) = hits {
                // hits_addend is a message, UInt64Value, so that 0 differs from no hits.
                encode_key(HITS_ADDEND, WireType::LengthDelimited, &mut self.descriptor);
                encode_varint(1 + encoded_len_varint(hits) as u64, &mut self.descriptor);
                encode_key(1, WireType::Varint, &mut self.descriptor);
                encode_varint(hits, &mut self.descriptor);
            }
            put_bytes(DESCRIPTORS, &self.descriptor, &mut message);
            let start = message.len() - self.descriptor.len();
            descriptors.push(EncodedDescriptor {
                entries: start..start + entries,
                hits: hits.unwrap_or(1),
            });
        }
        let length = (message.len() - PREFIX_BYTES) as u32;
        message[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
        EncodedRequest {
            message: message.freeze(),
            descriptors,
        }
    }
}

fn put_bytes(field: u32, bytes: &[u8], out: &mut BytesMut) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.put_slice(bytes);
}

/// The entries of an encoded descriptor, as operators write them.
pub(super) fn written(entries: &[u8]) -> String {
    let decoded = RateLimitDescriptor::decode(entries).unwrap_or_default();
    let entries = decoded.entries.iter();
    print::words(entries.map(|own| entry(&own.key, &own.value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::workload::Fields;
    use crate::core::proto::RateLimitRequest;

    #[test]
    fn requests_are_encoded_as_prost_reads_them() {
        let texts = ["a=x{sequence},b=", "c={uniform:7..7}"];
        let templates = texts.map(|text| Template::parse(text, Fields::None).expect("a template"));
        for (hits, addend) in [(None, None), (Some("0"), Some(0)), (Some("300"), Some(300))] {
            let hits = hits.map(|text| Hits::parse(text).expect("hits"));
            let mut requests = Requests::new("demo", templates.to_vec(), hits, 1);
            for number in 1..3 {
                let EncodedRequest {
                    message,
                    descriptors,
                } = requests.next();
                let length = (message.len() - PREFIX_BYTES) as u32;
                assert_eq!(
                    message[..PREFIX_BYTES],
                    [&[0][..], &length.to_be_bytes()].concat()
                );
                let request =
                    RateLimitRequest::decode(&message[PREFIX_BYTES..]).expect("a message");
                assert_eq!((&*request.domain, request.hits_addend), ("demo", 0));
                let all = [format!("a=x{number} b="), "c=7".to_owned()];
                for ((own, encoded), text) in request.descriptors.iter().zip(&descriptors).zip(&all)
                {
                    assert_eq!(
                        (own.hits_addend, encoded.hits),
                        (addend, addend.unwrap_or(1))
                    );
                    assert_eq!(&written(&message[encoded.entries.clone()]), text);
                }
                assert_eq!((request.descriptors.len(), descriptors.len()), (2, 2));
            }
        }
    }
}
