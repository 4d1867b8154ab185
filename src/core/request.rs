//! A decoded rate limit request, which borrows from the bytes that the caller sent.
//!
//! Descriptors and entries are in two inline vectors: a usual request needs no allocation. Keys and
//! values are bytes, because Envoy forwards header values that need not be UTF-8.

pub mod notation;

use std::fmt;

use smallvec::SmallVec;

use crate::core::time::Rate;

/// The most entries of one descriptor. Envoy sends one per action of a rate limit.
pub const MAX_ENTRIES: usize = 64;

/// One request: a domain, and descriptors to decide in it.
#[derive(Debug, Default)]
pub struct DecodedRequest<'a> {
    /// The domain, which selects a set of limits.
    pub domain: &'a [u8],
    /// The hits of each descriptor without hits of its own; 0 means 1.
    pub hits_addend: u32,
    entries: SmallVec<[Entry<'a>; 16]>,
    descriptors: SmallVec<[Descriptor; 4]>,
}

/// One entry of a descriptor: a step on the path through the tree of limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Envoy's configuration chooses it.
    pub key: &'a [u8],
    /// Often chosen by a client: any bytes of any length.
    pub value: &'a [u8],
}

impl fmt::Display for Entry<'_> {
    /// As operators write it: see [`notation`].
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&notation::entry(self.key, self.value))
    }
}

/// One descriptor, apart from its entries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Descriptor {
    /// Index of the entry after its last one.
    end: usize,
    /// Its own hits; `Some(0)` peeks without counting.
    pub hits_addend: Option<u64>,
    /// The hits are refunded instead of counted.
    pub is_negative_hits: bool,
    /// A limit of the request, which replaces the configured one.
    pub limit: Option<Rate>,
}

impl<'a> DecodedRequest<'a> {
    /// Adds an entry to the descriptor that the next [`DecodedRequest::close`] completes.
    pub fn push(&mut self, entry: Entry<'a>) {
        self.entries.push(entry);
    }

    /// Adds a descriptor with all entries that were pushed since the previous one.
    pub fn close(&mut self, descriptor: Descriptor) {
        self.descriptors.push(Descriptor {
            end: self.entries.len(),
            ..descriptor
        });
    }

    /// The number of descriptors.
    pub fn len(&self) -> usize {
        self.descriptors.len()
    }

    /// Whether there are no descriptors.
    pub fn is_empty(&self) -> bool {
        self.descriptors.is_empty()
    }

    /// The descriptors in the order of the request, each with its entries.
    pub fn descriptors(&self) -> impl Iterator<Item = (&Descriptor, &[Entry<'a>])> {
        let mut start = 0;
        self.descriptors.iter().map(move |descriptor| {
            let entries = &self.entries[start..descriptor.end];
            start = descriptor.end;
            (descriptor, entries)
        })
    }

    /// The entries of the first descriptor.
    pub fn first(&self) -> &[Entry<'a>] {
        self.descriptors()
            .next()
            .map_or(&[], |(_, entries)| entries)
    }

    /// Makes each descriptor a peek, whatever hits it has.
    pub fn peek(&mut self) {
        for descriptor in &mut self.descriptors {
            descriptor.hits_addend = Some(0);
            descriptor.is_negative_hits = false;
        }
    }

    /// Whether neither the descriptor nor the request names any hits.
    pub const fn names_no_hits(&self, descriptor: &Descriptor) -> bool {
        descriptor.hits_addend.is_none() && self.hits_addend == 0
    }

    /// The hits of a descriptor: 0 peeks, a negative number refunds. Saturates at the range of i64.
    pub fn hits(&self, descriptor: &Descriptor) -> i64 {
        self.hits_or(descriptor, 1)
    }

    /// The same, with `default_cost` if neither the descriptor nor the request has hits.
    pub fn hits_or(&self, descriptor: &Descriptor, default_cost: u64) -> i64 {
        let of_request = match self.hits_addend {
            0 => default_cost,
            hits => hits.into(),
        };
        let asked = descriptor.hits_addend.unwrap_or(of_request);
        let hits = i64::try_from(asked).unwrap_or(i64::MAX);
        if descriptor.is_negative_hits {
            -hits
        } else {
            hits
        }
    }
}
