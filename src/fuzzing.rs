//! Properties that hold for any input. Each is a function of bytes, which `fuzz/` runs under
//! libFuzzer, and the tests here on mutations of the corpus.
//!
//! A property panics where it does not hold. It compares with something independent (another
//! decoder, a simple model, an inverse), because a function that merely does not panic may still be
//! wrong. Nothing here is compiled into the service.

#![allow(clippy::panic, reason = "how a property fails")]

mod authority;
mod decode;
mod header_blocks;
mod json;
mod keys;
mod replies;
mod yaml;

/// A name in `fuzz/fuzz_targets` and `fuzz/corpus`, and the property.
type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 7] = [
    ("authority", authority::check),
    ("decode", decode::check),
    ("header_blocks", header_blocks::check),
    ("json", json::check),
    ("keys", keys::check),
    ("replies", replies::check),
    ("yaml", yaml::check),
];

/// Checks the property of a target for one input.
///
/// # Panics
/// The property does not hold, or there is no such target.
pub fn check(target: &str, input: &[u8]) {
    let (_, property) = TARGETS
        .iter()
        .find(|(name, _)| *name == target)
        .expect("a target of this name");
    property(input);
}

/// An input that is taken apart from its beginning. At its end all numbers are 0.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or_default()
    }

    /// So many bytes, or those that are left.
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod tests;
