//! `notify`: the parts of an amount whose use is reported.

use std::ops::Range;

/// Maximum number of thresholds of a limit: each is a series of metrics, and a byte of each amount.
pub const MOST: usize = 8;

/// Thresholds in per cent of an amount, in ascending order. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thresholds([u8; MOST]);

impl Thresholds {
    /// Reads at most [`MOST`] whole percentages from `1%` to `100%`, in ascending order.
    ///
    /// # Errors
    /// The first text that is something else, not above the one before it, or one too many.
    pub fn read<'t>(texts: &[&'t str]) -> Result<Self, &'t str> {
        let mut read = Self::default();
        for (index, &text) in texts.iter().enumerate() {
            let lowest = read.each().last().unwrap_or(0) + 1;
            let free = read.0.get_mut(index).ok_or(text)?;
            let percent = percentage(text).filter(|&percent| percent >= lowest);
            *free = percent.ok_or(text)?;
        }
        Ok(read)
    }

    /// All of them, in per cent.
    pub fn each(self) -> impl Iterator<Item = u8> {
        self.0.into_iter().take_while(|percent| *percent > 0)
    }

    /// The thresholds that a count crosses which grows from the start of `taken` to its end. A
    /// count has reached a threshold with the first hit that is not below its part of `amount`.
    pub fn crossed(self, amount: u64, taken: &Range<u64>) -> impl Iterator<Item = u8> {
        let [start, end] = [taken.start, taken.end].map(|count| u128::from(count) * 100);
        let part = move |percent: u8| u128::from(amount) * u128::from(percent);
        self.each()
            .filter(move |&it| start < part(it) && part(it) <= end)
    }
}

/// A whole percentage from `1%` to `100%`.
pub fn percentage(text: &str) -> Option<u8> {
    let digits = text.strip_suffix('%')?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let percent = digits.parse().ok().filter(|_| is_number);
    percent.filter(|percent| (1..=100).contains(percent))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Thresholds, &str> {
        let texts: Vec<_> = text.split(", ").collect();
        Thresholds::read(&texts)
    }

    #[test]
    fn a_threshold_is_crossed_by_the_hit_that_reaches_its_part() {
        let all = read("50%, 80%, 100%").expect("thresholds");
        for (amount, taken, expected) in [
            (10, 0..4, &[][..]),
            (10, 4..5, &[50]),
            (10, 5..6, &[]),
            (10, 0..10, &[50, 80, 100]),
            (10, 9..12, &[100]),
            (10, 10..11, &[]),
            (10, 5..5, &[]),
            // Parts are rounded up to whole hits.
            (3, 0..1, &[]),
            (3, 1..2, &[50]),
            (3, 2..3, &[80, 100]),
            (1, 0..1, &[50, 80, 100]),
            (0, 0..5, &[]),
            (u64::MAX, 0..u64::MAX, &[50, 80, 100]),
        ] {
            let crossed: Vec<_> = all.crossed(amount, &taken).collect();
            assert_eq!(crossed, expected, "{taken:?} of {amount}");
        }
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        /// However hits of a count are divided among requests, each threshold is crossed once.
        #[test]
        fn each_threshold_is_crossed_by_one_of_all_requests(
            amount in 1..50_u64,
            parts in prop::collection::vec(0..9_u64, 0..30),
        ) {
            let all = read("1%, 33%, 80%, 100%").expect("thresholds");
            let (mut count, mut crossed) = (0, Vec::new());
            for part in parts {
                crossed.extend(all.crossed(amount, &(count..count + part)));
                count += part;
            }
            let expected: Vec<_> = all.crossed(amount, &(0..count)).collect();
            prop_assert_eq!(crossed, expected);
        }
    }
}
