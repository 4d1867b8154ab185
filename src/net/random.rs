//! Random numbers of the operating system, for names that no two replicas may share and that no
//! caller may compute. `fastrand` is for jitter: its numbers follow from the clock at its first use.

use ring::rand::{SystemRandom, generate};

/// 128 random bits.
///
/// # Panics
/// The operating system has no random numbers. TLS has none then either.
pub fn bits() -> u128 {
    let random = generate(&SystemRandom::new()).expect("random numbers of the operating system");
    u128::from_ne_bytes(random.expose())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seed is the same where two processes start at one instant.
    #[test]
    fn they_do_not_follow_from_the_seed_of_the_jitter() {
        let mut all = std::collections::HashSet::new();
        for _ in 0..100 {
            fastrand::seed(1);
            assert!(all.insert(bits()), "repeated");
        }
    }
}
