//! Shares of regions: each region counts for itself and admits a fixed share of each amount.
//!
//! Amounts are divided where they are made: of the layers of a limit, of a raise, and of a
//! request's own limit. `Amount` keeps both the whole number and the share. Counter keys do not
//! depend on the share. All numbers are whole and rounded down: shares of together at most 100 %
//! never add up to more than the whole, unless a share below 1 becomes 1.

use std::fmt;
use std::str::FromStr;

use crate::core::time::Rate;

/// The share of each amount that a region admits, in millionths: above 0, at most the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionShare(u32);

const WHOLE: u32 = 1_000_000;

impl Default for RegionShare {
    /// The whole: the share of a service without regions.
    fn default() -> Self {
        Self(WHOLE)
    }
}

impl RegionShare {
    /// The share of an amount, rounded down, but at least 1: only 0 refuses everything.
    pub fn of(self, amount: u64) -> u64 {
        let exact = u128::from(amount) * u128::from(self.0) / u128::from(WHOLE);
        (exact as u64).max(amount.min(1))
    }

    /// The share of a rate.
    pub fn of_rate(self, mut rate: Rate) -> Rate {
        rate.requests_per_unit = self.of(rate.requests_per_unit);
        rate
    }

    /// Whether the share of an amount is 1 only because it would be 0.
    pub fn is_raised_to_one(self, amount: u64) -> bool {
        amount > 0 && amount.saturating_mul(self.0.into()) < WHOLE.into()
    }
}

impl FromStr for RegionShare {
    type Err = &'static str;

    /// Reads a percentage with at most four decimals: `40%`, `33.3%`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_suffix('%').unwrap_or_default();
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let is_number = is_number(whole) && is_number(decimals) && !whole.is_empty();
        let parts = format!("{whole}{decimals:0<4}").parse();
        match parts {
            Ok(parts @ 1..=WHOLE) if is_number && (1..=4).contains(&decimals.len()) => {
                Ok(Self(parts))
            }
            _ => Err("write a percentage above 0% and at most 100%, such as 40% or 33.3%"),
        }
    }
}

impl fmt::Display for RegionShare {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = format!("{}.{:04}", self.0 / 10_000, self.0 % 10_000);
        let percent = percent.trim_end_matches('0').trim_end_matches('.');
        write!(out, "{percent} %")
    }
}

/// `region_shares`: the share of each region by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionShares(pub Vec<(Box<str>, RegionShare)>);

impl RegionShares {
    /// The shares of all regions together.
    ///
    /// # Errors
    /// They are more than the whole.
    pub fn checked(self) -> Result<Self, RegionShare> {
        let add = |sum: u32, (_, share): &(_, RegionShare)| sum.saturating_add(share.0);
        match self.0.iter().fold(0, add) {
            0..=WHOLE => Ok(self),
            sum => Err(RegionShare(sum)),
        }
    }

    /// The share of a region: its own, or `other`.
    pub fn of_region(&self, region: &str) -> Option<RegionShare> {
        let named = |name: &str| self.0.iter().find(move |(known, _)| **known == *name);
        let found = named(region).or_else(|| named("other"));
        found.map(|(_, share)| *share)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(text: &str) -> RegionShare {
        text.parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_percentage_is_read_exactly_and_shown_as_short_as_it_is() {
        for (text, parts, shown) in [
            ("40%", 400_000, "40 %"),
            ("33.3%", 333_000, "33.3 %"),
            ("33.3333%", 333_333, "33.3333 %"),
            ("0.0001%", 1, "0.0001 %"),
            ("100%", 1_000_000, "100 %"),
            ("100.0%", 1_000_000, "100 %"),
            ("007.5%", 75_000, "7.5 %"),
            ("10.05%", 100_500, "10.05 %"),
        ] {
            assert_eq!(
                (share(text).0, &*share(text).to_string()),
                (parts, shown),
                "{text}"
            );
        }
        for text in [
            "",
            "%",
            "40",
            "40 %",
            " 40%",
            "+40%",
            "-1%",
            ".5%",
            "5.%",
            "0%",
            "0.0%",
            "100.0001%",
            "101%",
            "0.00001%",
            "4e1%",
            "40%%",
            "1.2.3%",
            "4294967296%",
            "99999999999999999999%",
            "４０%",
            "1_0%",
        ] {
            assert!(text.parse::<RegionShare>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_share_is_rounded_down_but_is_1_at_least_and_only_0_stays_0() {
        let third = share("33.3333%");
        assert_eq!(
            [0, 1, 2, 3, 4, 6, 7].map(|amount| third.of(amount)),
            [0, 1, 1, 1, 1, 1, 2]
        );
        assert_eq!(
            [0, 1, 3, 4].map(|amount| third.is_raised_to_one(amount)),
            [false, true, true, false]
        );
        assert_eq!(share("100%").of(u64::MAX), u64::MAX);
        assert_eq!(share("50%").of((1 << 53) - 1), (1 << 52) - 1);
        assert_eq!(RegionShare::default().of(7), 7);
    }

    #[test]
    fn a_region_has_its_own_share_or_that_of_others() {
        let shares = |all: &[(&str, &str)]| {
            RegionShares(
                all.iter()
                    .map(|(name, text)| ((*name).into(), share(text)))
                    .collect(),
            )
        };
        let own = shares(&[("eu", "40%"), ("other", "10%")]);
        assert_eq!(
            ["eu", "us", "other", ""].map(|name| own.of_region(name).map(|share| share.0 / 10_000)),
            [Some(40), Some(10), Some(10), Some(10)]
        );
        assert_eq!(shares(&[("eu", "40%")]).of_region("us"), None);
        assert!(shares(&[("eu", "40%"), ("us", "60%")]).checked().is_ok());
        let sum = shares(&[("eu", "50%"), ("us", "60%")])
            .checked()
            .expect_err("too much");
        assert_eq!(sum.to_string(), "110 %");
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        #[test]
        fn any_text_is_read_or_refused_and_what_is_read_reads_the_same_when_shown(
            text in "[0-9.% e+-]{0,9}",
        ) {
            if let Ok(share) = text.parse::<RegionShare>() {
                let shown = share.to_string().replace(' ', "");
                prop_assert_eq!(shown.parse(), Ok(share));
            }
        }
    }
}
