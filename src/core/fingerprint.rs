//! Fingerprints of counter keys: they replace the keys in the tables of this process.
//!
//! Clients choose the values in a key, and must not be able to construct two keys with one
//! fingerprint, because one subject would then be limited by the hits of another. So the hash is
//! keyed with random numbers of the process, and has 128 bits.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::LazyLock;

use siphasher::sip128::{Hasher128, SipHasher13};

static SECRET: LazyLock<(u64, u64)> = LazyLock::new(|| {
    // The keys of std's hash are random numbers of the operating system.
    let secret = RandomState::new();
    (secret.hash_one(0), secret.hash_one(1))
});

/// A keyed hash; the default is no key's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint(u64, u64);

impl Fingerprint {
    /// The fingerprint of a key.
    pub fn of(key: &[u8]) -> Self {
        Self::hash_with(|hasher| hasher.write(key))
    }

    /// The fingerprint of several texts, one after the other.
    pub fn of_all<'t>(texts: impl IntoIterator<Item = &'t [u8]>) -> Self {
        Self::hash_with(|hasher| texts.into_iter().for_each(|text| text.hash(hasher)))
    }

    /// The fingerprint of something else than a key.
    pub fn of_value(value: &impl Hash) -> Self {
        Self::hash_with(|hasher| value.hash(hasher))
    }

    /// The fingerprint of a key together with something else.
    #[must_use]
    pub fn with(self, other: &impl Hash) -> Self {
        Self::of_value(&(self, other))
    }

    #[inline]
    fn hash_with(write: impl FnOnce(&mut SipHasher13)) -> Self {
        let (one, other) = *SECRET;
        let mut hasher = SipHasher13::new_with_keys(one, other);
        write(&mut hasher);
        let hash = hasher.finish128();
        Self(hash.h1, hash.h2)
    }

    /// The lower half.
    pub const fn half(self) -> u64 {
        self.0
    }

    /// All bits.
    pub const fn bits(self) -> u128 {
        self.0 as u128 | (self.1 as u128) << u64::BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_what_is_added_to_them_have_fingerprints_of_their_own() {
        let of =
            |texts: &[&'static str]| Fingerprint::of_all(texts.iter().map(|text| text.as_bytes()));
        let key = Fingerprint::of(b"key");
        let all = [
            key,
            Fingerprint::of(b"other"),
            Fingerprint::default(),
            key.with(&1),
            key.with(&2),
            of(&["ab", "c"]),
            of(&["a", "bc"]),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "{index}");
        }
        assert_eq!(key, Fingerprint::of(b"key"));
        assert_eq!(key.bits() as u64, key.half());
    }
}
