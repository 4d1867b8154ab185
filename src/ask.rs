//! What a caller asks, borrowed from the bytes that it sent.
//!
//! No entry costs an allocation: descriptors and entries sit in two short vectors inside the ask. Keys and values are bytes, because Envoy
//! passes on header bytes that need not be UTF-8.

use smallvec::SmallVec;

use crate::time::Rate;

/// One request: a domain and what to decide in it.
#[derive(Debug, Default)]
pub struct Ask<'a> {
    /// The set of limits to look in.
    pub domain: &'a [u8],
    /// Hits of each descriptor that does not say otherwise; 0 means 1.
    pub hits_addend: u32,
    entries: SmallVec<[Entry<'a>; 16]>,
    descriptors: SmallVec<[Descriptor; 4]>,
}

/// One step of the path through the tree of limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Chosen by Envoy's configuration.
    pub key: &'a [u8],
    /// Often chosen by a client: any bytes, any length.
    pub value: &'a [u8],
}

/// One thing to decide, apart from its entries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Descriptor {
    end: usize,
    /// Its own hits; present with 0 it looks without counting.
    pub hits_addend: Option<u64>,
    /// The hits are given back.
    pub is_negative_hits: bool,
    /// A limit that the caller brings along in place of the configured one.
    pub limit: Option<Rate>,
}

impl<'a> Ask<'a> {
    /// Adds an entry to the descriptor that the next [`Ask::close`] ends.
    pub fn push(&mut self, entry: Entry<'a>) {
        self.entries.push(entry);
    }

    /// Ends a descriptor: all entries pushed since the last one are its own.
    pub fn close(&mut self, descriptor: Descriptor) {
        self.descriptors.push(Descriptor { end: self.entries.len(), ..descriptor });
    }

    /// How many descriptors there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.descriptors.len()
    }

    /// Whether nothing is asked.
    #[must_use]
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

    /// What a descriptor asks for: 0 looks, below 0 gives back. Saturates at what a counter can hold.
    #[must_use]
    pub fn hits(&self, descriptor: &Descriptor) -> i64 {
        let asked = descriptor.hits_addend.unwrap_or(u64::from(self.hits_addend.max(1)));
        let hits = i64::try_from(asked).unwrap_or(i64::MAX);
        if descriptor.is_negative_hits { -hits } else { hits }
    }
}
