//! Fingerprints of counter keys: 64 bits, keyed, and cheap enough for every decision.
//!
//! The mixing step is that of wyhash (Wang Yi, "Modern Non-Cryptographic Hash Function and
//! Pseudorandom Number Generator", 2021): a product of 128 bits, folded. Both factors depend on
//! random numbers of this process. No answer, and nothing that a client could measure, depends on a
//! fingerprint, so that a client cannot learn which of its values share one. If two subjects did,
//! they would be shown as one.
//!
//! The crates `foldhash` and `rapidhash` have the same step, and take 115 instructions for a usual
//! key where this takes 50: with them, counting the subjects of ten descriptors would be more than
//! the 2 % of a decision that it may be.

use std::hash::{BuildHasher, RandomState};

/// Makes the fingerprints of one process.
#[derive(Clone)]
pub(super) struct Fingerprints {
    /// Random, and unknown to clients: with a known one, they could construct texts whose product
    /// is zero.
    secrets: [u64; 2],
}

/// What one step mixes.
const BLOCK_BYTES: usize = 16;

impl Default for Fingerprints {
    fn default() -> Self {
        // The keys of std's hash are random numbers of the operating system.
        let state = RandomState::new();
        Self {
            secrets: [0_u8, 1].map(|number| state.hash_one(number)),
        }
    }
}

impl Fingerprints {
    /// The fingerprint of a text.
    #[inline]
    pub(super) fn of(&self, text: &[u8]) -> u64 {
        self.mix(self.secrets[0], text)
    }

    /// The fingerprint of several texts, one after the other.
    pub(super) fn of_all<'t>(&self, texts: impl IntoIterator<Item = &'t [u8]>) -> u64 {
        texts
            .into_iter()
            .fold(self.secrets[0], |state, text| self.mix(state, text))
    }

    #[inline]
    fn mix(&self, state: u64, text: &[u8]) -> u64 {
        // Texts that differ in zeros at their ends only differ in their lengths.
        let mut state = state ^ text.len() as u64;
        let (blocks, rest) = text.as_chunks::<BLOCK_BYTES>();
        for block in blocks {
            state = self.step(state, block);
        }
        if !rest.is_empty() {
            let mut last = [0; BLOCK_BYTES];
            match text.last_chunk() {
                // Bytes that were mixed already do no harm.
                Some(chunk) => last = *chunk,
                None => last[..rest.len()].copy_from_slice(rest),
            }
            state = self.step(state, &last);
        }
        fold(state ^ self.secrets[0], self.secrets[1])
    }

    #[inline]
    fn step(&self, state: u64, block: &[u8; BLOCK_BYTES]) -> u64 {
        let both = u128::from_le_bytes(*block);
        fold(both as u64 ^ state, (both >> 64) as u64 ^ self.secrets[1])
    }
}

#[inline]
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

impl std::fmt::Debug for Fingerprints {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Fingerprints").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Texts as counter keys are: they differ in a few digits, in their middle or at their end, and
    /// in length.
    #[test]
    fn similar_texts_have_different_fingerprints_in_all_bits() {
        let fingerprints = Fingerprints::default();
        let (mut all, mut bits) = (HashSet::new(), [0_u32; 64]);
        let mut add = |text: &[u8]| {
            let fingerprint = fingerprints.of(text);
            assert!(all.insert(fingerprint), "{}", String::from_utf8_lossy(text));
            for (bit, count) in bits.iter_mut().enumerate() {
                *count += (fingerprint >> bit & 1) as u32;
            }
        };
        for number in 0..20_000 {
            add(format!("w1{{shop|user={number}}}fw60").as_bytes());
            add(format!("w1{{shop|user={number:05}|path=/a}}tb3600").as_bytes());
        }
        for length in 0..1_000 {
            add(&vec![0; length]);
        }
        // Half of 41,000, and ten times the standard deviation to either side.
        for (bit, count) in bits.into_iter().enumerate() {
            assert!(
                (19_500..21_500).contains(&count),
                "bit {bit} is set in {count} of 41,000"
            );
        }
    }

    #[test]
    fn each_process_has_its_own() {
        let (one, other) = (Fingerprints::default(), Fingerprints::default());
        assert_eq!(one.of(b"text"), one.clone().of(b"text"));
        assert_ne!(one.of(b"text"), other.of(b"text"));
        assert_ne!(
            one.of_all([&b"ab"[..], b"c"]),
            one.of_all([&b"a"[..], b"bc"])
        );
    }
}
