//! The encoded response against prost's encoding of the same response, for random plans and
//! decisions.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Buf;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::core::answer::{Decision, Decisions};
use crate::core::proto::RateLimitResponse;
use crate::core::proto::rate_limit_response::{DescriptorStatus, RateLimit};
use crate::core::time::{Micros, Span, Unit};
use crate::core::verdict::{Verdict, Wait};
use crate::limits::overrides::{EntryRecord, Kind, Override, Overrides, RateRecord, Record};
use crate::limits::plan::{self, Block, Checked, Disposition, Plan, Slot};
use crate::limits::rules::compile::rules_of;
use crate::limits::rules::limit::Units;
use crate::service::rls::decode::decode;

/// The status of one descriptor.
fn status(plan: &Plan, decisions: &Decisions, slot: &Slot, path: &str) -> DescriptorStatus {
    let limit = slot.limit;
    let ok = DescriptorStatus {
        code: Code::Ok.into(),
        ..Default::default()
    };
    match &slot.disposition {
        Disposition::Free => ok,
        Disposition::Unlimited | Disposition::Exempt => DescriptorStatus {
            limit_remaining: u32::MAX,
            ..ok
        },
        Disposition::Blocked(Block { rate, ends_in, .. }) => DescriptorStatus {
            code: Code::OverLimit.into(),
            current_limit: rate.filter(|_| ends_in.is_some()).map(|rate| RateLimit {
                name: limit
                    .and_then(|id| plan.rules.limit(id).name.as_deref())
                    .unwrap_or(path)
                    .to_owned(),
                requests_per_unit: rate.requests_per_unit.try_into().unwrap_or(u32::MAX),
                unit: rate.unit.number(),
                unit_multiplier: Some(rate.on_wire().1).filter(|multiplier| *multiplier != 1),
            }),
            duration_until_reset: ends_in.map(|span| prost_types::Duration {
                seconds: span.secs_rounded_up() as i64,
                nanos: 0,
            }),
            ..ok
        },
        Disposition::Checked(Checked { check, rate, .. }) => {
            let decision = &decisions[check.0];
            let name = limit.and_then(|id| plan.rules.limit(id).name.as_deref());
            let refused = !decision.allows() && !plan.checks[*check].modes.shadow;
            let seconds = |span: Span| i64::try_from(span.secs_rounded_up()).unwrap_or(i64::MAX);
            DescriptorStatus {
                code: if refused { Code::OverLimit } else { Code::Ok }.into(),
                current_limit: (!matches!(decision, Decision::PolicyAllows(_))).then(|| {
                    RateLimit {
                        name: name.unwrap_or(path).to_owned(),
                        requests_per_unit: rate.requests_per_unit.try_into().unwrap_or(u32::MAX),
                        unit: rate.unit.number(),
                        unit_multiplier: Some(rate.on_wire().1)
                            .filter(|multiplier| *multiplier != 1),
                    }
                }),
                limit_remaining: decision.verdict().map_or(0, |verdict| {
                    verdict.remaining.try_into().unwrap_or(u32::MAX)
                }),
                duration_until_reset: decision.until_reset().map(|span| prost_types::Duration {
                    seconds: seconds(span),
                    nanos: 0,
                }),
                quota: None,
            }
        }
    }
}

/// The response as a prost message.
fn as_message(
    decoded: &DecodedRequest<'_>,
    plan: &Plan,
    decisions: &Decisions,
    options: &Options,
) -> RateLimitResponse {
    let outcomes = plan.outcomes(decisions);
    let paths = if options.paths_as_names {
        fields::all_names(decoded, &outcomes)
    } else {
        vec![Cow::Borrowed(""); plan.slots.len()]
    };
    let named = match options.paths_as_names {
        true => outcomes.named(&paths),
        false => plan.outcomes(decisions),
    };
    let refused = plan
        .checks
        .is_over_limit(decisions.iter().map(Decision::allows))
        && !options.shadow_mode;
    let overall = if refused { Code::OverLimit } else { Code::Ok };
    RateLimitResponse {
        overall_code: overall.into(),
        statuses: plan
            .slots
            .iter()
            .zip(&paths)
            .map(|(slot, path)| status(plan, decisions, slot, path))
            .collect(),
        ..extras(decoded, &named, overall, options)
    }
}

const LIMITS: &str = "
domain: d
descriptors:
  - {key: plain, rate_limit: {unit: second, requests_per_unit: 5}}
  - {key: quarter, rate_limit: {unit: quarter, requests_per_unit: 5, name: q}}
  - {key: named, rate_limit: {unit: week, unit_multiplier: 300, requests_per_unit: 4000000000, name: this-limit-has-a-name}}
  - {key: zero, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: unlimited, rate_limit: {unlimited: true}, metadata: {team: a}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 7}}
  - {key: quota, quota_mode: true, rate_limit: {unit: month, requests_per_unit: 128}, metadata: {team: b, tags: [1, true]}}
";

const KEYS: [&str; 7] = [
    "plain",
    "named",
    "zero",
    "unlimited",
    "shadow",
    "quota",
    "unknown",
];

/// An encoded request for these keys. A number next to a key is the descriptor's own limit.
fn request(domain: &str, keys: &[(&str, Option<u32>)]) -> Vec<u8> {
    use crate::core::proto::rate_limit_descriptor::{Entry, RateLimitOverride};
    use crate::core::proto::{RateLimitDescriptor, RateLimitRequest};
    let descriptor = |&(key, own): &(&str, Option<u32>)| RateLimitDescriptor {
        entries: vec![Entry {
            key: key.into(),
            value: "v".into(),
        }],
        limit: own.map(|amount| RateLimitOverride {
            requests_per_unit: amount,
            unit: Unit::Minute.number(),
            unit_multiplier: None,
        }),
        ..Default::default()
    };
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: keys.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
    .encode_to_vec()
}

/// An override for all descriptors of a key.
fn order(key: &str, kind: usize, until: Option<u64>) -> Override {
    let record = Record {
        kind: Kind::NAMES[kind].to_owned(),
        domain: "d".to_owned(),
        entries: vec![EntryRecord {
            key: key.to_owned(),
            value: None,
            value_sha256: None,
        }],
        to: (kind == 2).then(|| RateRecord {
            requests_per_unit: Units(900.0),
            unit: Some("second".to_owned()),
            unit_multiplier: None,
        }),
        ..Record::default()
    };
    Override {
        until: until.map(Micros),
        ..record.read().expect("an override")
    }
}

fn any_decision() -> impl Strategy<Value = Decision> {
    let number = || prop_oneof![Just(0), 0..200_u64, any::<u64>()];
    let verdict = (any::<bool>(), number(), number(), number(), any::<bool>()).prop_map(
        |(allowed, remaining, reset, retry, never)| Verdict {
            allowed,
            remaining,
            used: 0,
            reset_after: Span::from_micros(reset),
            retry_after: if never {
                Wait::Never
            } else {
                Wait::For(Span::from_micros(retry))
            },
            delay: Span::ZERO,
        },
    );
    let error = StoreError::NotExecuted("down");
    prop_oneof![
        verdict.clone().prop_map(Decision::Store),
        verdict.clone().prop_map(Decision::DenialCache),
        verdict.prop_map(move |verdict| Decision::Local(verdict, error, NonZeroU32::MIN)),
        Just(Decision::PolicyAllows(error)),
        Just(Decision::PolicyRefuses(error)),
    ]
}

fn any_options() -> impl Strategy<Value = Options> {
    let names = || HeaderNames {
        limit: "x-limit".to_owned(),
        remaining: "x-remaining".to_owned(),
        reset: "x-reset".to_owned(),
    };
    let headers = prop_oneof![
        Just(RateLimitHeaders::Off),
        Just(RateLimitHeaders::Legacy(names())),
        Just(RateLimitHeaders::Draft03(names())),
        Just(RateLimitHeaders::Draft11),
    ];
    let flags = (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    );
    let request_headers = prop::option::of(Just(names()));
    (headers, request_headers, flags).prop_map(
        |(
            ratelimit_headers,
            request_headers,
            (shadow_mode, retry_after, problem_details, refused_by, paths_as_names, metadata),
        )| {
            let refused_by = refused_by.then(|| "x-refused-by".to_owned());
            Options {
                shadow_mode,
                ratelimit_headers,
                request_headers,
                retry_after,
                problem_details,
                refused_by,
                paths_as_names,
                dynamic_metadata: metadata,
            }
        },
    )
}

proptest! {
    #![proptest_config(crate::testing::property(256))]

    #[test]
    fn the_encoding_is_that_of_prost(
        domain in prop_oneof![Just("d"), Just("unknown")],
        keys in proptest::collection::vec((0..KEYS.len(), prop_oneof![3 => Just(None), 1 => any::<u32>().prop_map(Some)]), 1..40),
        pool in proptest::collection::vec(any_decision(), 40),
        options in any_options(),
        quota_mode in any::<bool>(),
        orders in prop::collection::vec((0..KEYS.len(), 0..3_usize, prop::option::of(1_000_000..9_000_000_u64)), 0..5),
    ) {
        let keys: Vec<_> = keys.into_iter().map(|(index, own)| (KEYS[index], own)).collect();
        let request = request(domain, &keys);
        let decoded = decode(&request).expect("a request");
        let plan_options = plan::Options { quota_mode, ..plan::Options::default() };
        let overrides = Overrides::new(orders.iter().map(|&(key, kind, until)| order(KEYS[key], kind, until)).collect());
        let in_force = (!orders.is_empty()).then(|| overrides.at(Micros(999_999)));
        let plan = Plan::with_overrides(&Arc::new(rules_of(LIMITS)), in_force, &decoded, &plan_options);
        let decisions: Decisions = pool.into_iter().take(plan.checks.len()).collect();
        let reply = respond(&decoded, &plan.outcomes(&decisions), &options).expect("nothing fails");

        let Framed(bytes, _) = reply.answer;
        let mut framed = bytes.clone();
        prop_assert_eq!(framed.get_u8(), 0);
        prop_assert_eq!(framed.get_u32() as usize, framed.len());
        prop_assert_eq!(&framed, &Framed(bytes, None).message());
        let expected = as_message(&decoded, &plan, &decisions, &options);
        prop_assert_eq!(RateLimitResponse::decode(framed.clone()).expect("a message"), expected.clone());
        prop_assert_eq!(framed.len(), expected.encoded_len(), "not a byte more than prost would \
            write");
        prop_assert_eq!(reply.shadowed, options.shadow_mode && plan.checks.is_over_limit(decisions.iter().map(Decision::allows)));
    }
}
