//! All regions together have at most what is written, whatever the shares and the numbers are, but
//! where a warning says what they have.

use std::collections::HashMap;

use proptest::prelude::*;
use weir::core::algorithm::Algorithm;
use weir::core::request::Entry;
use weir::core::time::{Rate, Unit};
use weir::limits::overrides::{RaiseRate, raised};
use weir::limits::rules::compile::{
    Compiled, Options, Problem, ProcessDefaults, SourceText, compile,
};
use weir::limits::rules::limit::Amount;
use weir::limits::rules::limit::Units;

/// Shares in millionths that come to at most all: the differences of cuts.
fn shares() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::btree_set(1..=1_000_000_u32, 1..6).prop_map(|cuts| {
        let cuts: Vec<u32> = [0].into_iter().chain(cuts).collect();
        cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
    })
}

/// Numbers of all sizes.
fn numbers() -> impl Strategy<Value = u64> {
    (1..=39_u32, any::<u64>()).prop_map(|(bits, number)| number >> (64 - bits))
}

fn compiled(file: &str, region: usize) -> Compiled {
    let file = SourceText {
        name: "a.yaml".to_owned(),
        text: file.into(),
    };
    let region = Some(format!("r{region}").into());
    let process = ProcessDefaults {
        region,
        ..ProcessDefaults::default()
    };
    let options = Options {
        process,
        ..Options::default()
    };
    compile(&[file], &options).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn amount(compiled: &Compiled) -> Amount {
    let entry = Entry {
        key: b"k",
        value: b"v",
    };
    let limit = compiled.rules.find(b"d", &[entry]).expect("a limit");
    *limit.amount().expect("an amount")
}

fn suffix(algorithm: &Algorithm) -> Vec<u8> {
    let mut suffix = Vec::new();
    algorithm.write_key_suffix(&mut suffix);
    suffix
}

/// The numbers for which a warning says how much the regions have together.
fn warned(problems: &[Problem]) -> HashMap<u64, u64> {
    let read = |problem: &Problem| {
        let (_, text) = problem.message.what.split_once("a share of ")?;
        let (number, text) = text.split_once(" is below 1 and is 1: the regions admit ")?;
        Some((
            number.parse().ok()?,
            text.strip_suffix(" together")?.parse().ok()?,
        ))
    };
    problems
        .iter()
        .map(|problem| read(problem).unwrap_or_else(|| panic!("{problem}")))
        .collect()
}

proptest! {
    #![proptest_config(crate::testing::property(256))]

    #[test]
    fn regions_together_have_at_most_what_is_written_or_what_a_warning_says(
        shares in shares(),
        limit in numbers(),
        burst in prop::option::of(numbers()),
        to in numbers(),
        trial in numbers(),
    ) {
        let map: Vec<_> = shares
            .iter()
            .enumerate()
            .map(|(index, share)| format!("r{index}: {}.{:04}%", share / 10_000, share % 10_000))
            .collect();
        let burst = burst.filter(|burst| *burst > 0 && limit > 0);
        let bucket = burst
            .map(|burst| format!(", algorithm: token_bucket, burst: {burst}"))
            .unwrap_or_default();
        let file = format!(
            "domain: d\ndescriptors:\n- key: k\n  rate_limit: {{ unit: second, requests_per_unit: \
             {limit}{bucket}, region_shares: {{ {} }}, trial: {{ requests_per_unit: {trial} }} \
             }}\n",
            map.join(", ")
        );
        let to = Rate {
            requests_per_unit: to,
            unit: Unit::Second,
            unit_multiplier: 1,
        };
        let raise = RaiseRate {
            rate: to,
            units: Units(to.requests_per_unit as f64),
            is_added: false,
        };
        let (mut sums, mut key) = ([0_u64; 4], None);
        let mut warnings = HashMap::new();
        for (region, share) in shares.iter().enumerate() {
            let mut compiled = compiled(&file, region);
            compiled
                .warnings
                .retain(|problem| !problem.message.what.contains("the trial is the same"));
            warnings = warned(&compiled.warnings);
            let amount = amount(&compiled);
            prop_assert_eq!(
                key.get_or_insert_with(|| suffix(&amount.algorithm)).clone(),
                suffix(&amount.algorithm),
                "a counter has one key, whatever the share"
            );
            let exact = |number: u64| {
                (u128::from(number) * u128::from(*share) / 1_000_000).max(u128::from(number > 0))
            };
            prop_assert_eq!(u128::from(amount.rate.requests_per_unit), exact(limit));
            prop_assert_eq!(amount.whole, limit);
            let trial = &compiled
                .rules
                .limits()
                .next()
                .and_then(|limit| limit.trial.as_ref())
                .expect("a trial")
                .amount;
            let raised = raised(&amount, &raise).ok();
            prop_assert_eq!(
                raised.is_some(),
                to.requests_per_unit > limit,
                "a raise fits all regions or none"
            );
            prop_assert!(raised.is_none_or(
                |raised| (raised.whole, raised.share) == (to.requests_per_unit, amount.share)
            ));
            let raised = raised.unwrap_or(amount);
            for (sum, number) in sums.iter_mut().zip([
                amount.rate.requests_per_unit,
                amount.algorithm.capacity(),
                trial.rate.requests_per_unit,
                raised.algorithm.capacity(),
            ]) {
                *sum += number;
            }
        }
        let raised = if to.requests_per_unit > limit {
            to.requests_per_unit
        } else {
            limit
        };
        let whole = [
            limit,
            burst.unwrap_or(limit),
            trial,
            burst.filter(|burst| *burst != limit).unwrap_or(raised),
        ];
        for (index, (sum, whole)) in sums.into_iter().zip(whole).enumerate() {
            // A raise is not in the file, and has no warning.
            let least = (index == 3 && whole < 1_000_000).then(|| whole + shares.len() as u64);
            let most = warnings.get(&whole).copied().or(least).unwrap_or(whole);
            prop_assert!(
                sum <= most,
                "{index}: {sum} of {whole}, {most} at most: {file}"
            );
            let written = u128::from(whole)
                * shares.iter().map(|share| u128::from(*share)).sum::<u128>()
                / 1_000_000;
            prop_assert!(
                u128::from(sum) + shares.len() as u128 >= written,
                "each region loses less than a hit"
            );
        }
    }
}
