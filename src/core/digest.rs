//! Digests of texts, equal in all replicas, and their hexadecimal digits.
//!
//! The cryptography provider of TLS computes them, to save the binary a second implementation.

use ring::digest::{Context, SHA256, digest};

/// Bytes of the longest text that keys of counters and overrides have as it is. Of a longer one they
/// have the digest.
pub const LONGEST_PLAIN: usize = 128;

/// SHA-256. Source: FIPS 180-4.
pub fn sha256(text: impl AsRef<[u8]>) -> [u8; 32] {
    bytes(digest(&SHA256, text.as_ref()))
}

/// SHA-256 of the concatenation of these parts.
pub fn sha256_of_all<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(part.as_ref());
    }
    bytes(context.finish())
}

/// The first eight bytes of the SHA-256 of parts and their lengths: for comparisons, not for
/// security.
pub fn short<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> u64 {
    let mut context = Context::new(&SHA256);
    for part in parts {
        let part = part.as_ref();
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let first = bytes(context.finish()).first_chunk().copied();
    u64::from_be_bytes(first.unwrap_or_default())
}

/// One hash of two, in this order. Cheap, for pairs of [`short`].
pub const fn mix(one: u64, other: u64) -> u64 {
    // The fraction of the golden ratio, which has no pattern of bits.
    let one = one ^ 0x9E37_79B9_7F4A_7C15;
    one.wrapping_mul(other | 1).rotate_left(32) ^ other
}

fn bytes(digest: ring::digest::Digest) -> [u8; 32] {
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Two lower-case hexadecimal digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = Vec::with_capacity(2 * bytes.len());
    push_hex(&mut digits, bytes);
    String::from_utf8(digits).expect("hexadecimal digits are ASCII")
}

/// Appends bytes as [`hex`] writes them.
pub fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
    for byte in bytes {
        out.extend([digit(byte >> 4), digit(byte & 15)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of FIPS 180-2, appendix B.1.
    #[test]
    fn the_digest_is_the_published_one() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&sha256("abc")), expected);
        assert_eq!(hex(&sha256_of_all(["a", "", "bc"])), expected);
    }
}
