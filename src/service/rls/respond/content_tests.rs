//! Content of responses for clients and Envoy: headers, bodies, names and metadata, as exact text.

use std::sync::Arc;

use prost::Message;

use super::*;
use crate::core::answer::{Decision, Decisions};
use crate::core::proto::rate_limit_descriptor::{Entry, RateLimitOverride};
use crate::core::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use crate::core::time::Span;
use crate::core::verdict::{Verdict, Wait};
use crate::limits::plan::{self, Plan};
use crate::limits::rules::compile::rules_of;
use crate::service::rls::decode::decode;

const LIMITS: &str = r#"
domain: d
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 5, name: per-user}}
  - {key: path, value: /login, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: all, rate_limit: {unit: second, unit_multiplier: 30, requests_per_unit: 4294967295}}
  - {key: odd, rate_limit: {unit: day, requests_per_unit: 1, name: "caf\u00e9 \"a\" \\ x: y"}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 7, name: in-shadow}}
  - {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 7, name: first-quota}}
  - {key: other, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 7, name: second-quota}}
"#;

/// A descriptor with one entry.
fn of(key: impl AsRef<[u8]>) -> RateLimitDescriptor {
    let entry = Entry {
        key: key.as_ref().to_vec(),
        value: b"/login".to_vec(),
    };
    RateLimitDescriptor {
        entries: vec![entry],
        ..Default::default()
    }
}

fn left(remaining: u64, reset_secs: u64) -> Decision {
    let reset_after = Span::from_secs(reset_secs);
    let verdict = Verdict {
        allowed: true,
        remaining,
        used: 0,
        reset_after,
        retry_after: Wait::Never,
        delay: Span::ZERO,
    };
    Decision::Store(verdict)
}

fn over(retry_secs: u64) -> Decision {
    let retry_after = Wait::For(Span::from_secs(retry_secs));
    let reset_after = Span::from_secs(retry_secs);
    Decision::DenialCache(Verdict {
        allowed: false,
        remaining: 0,
        used: 9,
        reset_after,
        retry_after,
        delay: Span::ZERO,
    })
}

/// The response to a request whose checks are decided so.
fn answer(
    descriptors: Vec<RateLimitDescriptor>,
    decisions: &[Decision],
    options: &Options,
) -> RateLimitResponse {
    let request = RateLimitRequest {
        domain: "d".to_owned(),
        descriptors,
        hits_addend: 0,
    }
    .encode_to_vec();
    let decoded = decode(&request).expect("a request");
    let plan = Plan::new(
        &Arc::new(rules_of(LIMITS)),
        &decoded,
        &plan::Options::default(),
    );
    assert_eq!(
        plan.checks.len(),
        decisions.len(),
        "a decision for each check"
    );
    let decisions: Decisions = decisions.iter().copied().collect();
    let reply = respond(&decoded, &plan.outcomes(&decisions), options).expect("nothing fails");
    RateLimitResponse::decode(reply.answer.message()).expect("a response")
}

fn headers(response: &RateLimitResponse) -> Vec<(&str, &str)> {
    let headers = response.response_headers_to_add.iter();
    headers
        .map(|header| (&*header.key, &*header.value))
        .collect()
}

fn names() -> HeaderNames {
    HeaderNames {
        limit: "Limit".to_owned(),
        remaining: "Remaining".to_owned(),
        reset: "Reset".to_owned(),
    }
}

fn draft_11() -> Options {
    Options {
        ratelimit_headers: RateLimitHeaders::Draft11,
        ..Options::default()
    }
}

/// All optional content of a refusal.
fn explained() -> Options {
    Options {
        problem_details: true,
        refused_by: Some("x-refused-by".to_owned()),
        dynamic_metadata: true,
        ..Options::default()
    }
}

fn problem(response: &RateLimitResponse) -> serde_json::Value {
    serde_json::from_slice(&response.raw_body).expect("JSON")
}

#[test]
fn draft_11_lists_all_limits_by_name_or_path() {
    let descriptors = vec![of("path"), of("unknown"), of("free"), of("user"), of("all")];
    let far = left(u32::MAX.into(), u64::MAX / 1_000_000);
    let response = answer(descriptors, &[left(99, 1_800), over(7), far], &draft_11());
    let expected = [
        (
            "RateLimit-Policy",
            r#""path_/login";q=100;w=3600, "per-user";q=5;w=60, "all";q=4294967295;w=30"#,
        ),
        (
            "RateLimit",
            r#""path_/login";r=99;t=1800, "per-user";r=0;t=7, "all";r=4294967295;t=18446744073709"#,
        ),
    ];
    assert_eq!(headers(&response), expected);
    // An empty list is no header, and neither is an unknown count.
    let unknown_count = [Decision::PolicyAllows(StoreError::NotExecuted("down"))];
    for (descriptors, decisions) in [
        (vec![of("unknown"), of("free")], &[][..]),
        (vec![of("user")], &unknown_count),
    ] {
        assert!(headers(&answer(descriptors, decisions, &draft_11())).is_empty());
    }
}

#[test]
fn descriptors_of_one_limit_are_one_policy() {
    let three = |decisions: &[Decision]| answer(vec![of("user"); 3], decisions, &draft_11());
    let response = three(&[left(3, 10), left(1, 20), left(2, 60)]);
    let expected = [
        ("RateLimit-Policy", r#""per-user";q=5;w=60"#),
        ("RateLimit", r#""per-user";r=1;t=20"#),
    ];
    assert_eq!(headers(&response), expected);
    let response = three(&[left(3, 10), left(3, 20), left(3, 15)]);
    assert_eq!(headers(&response)[1].1, r#""per-user";r=3;t=20"#);
}

#[test]
fn draft_03_is_that_of_envoy() {
    let options = Options {
        ratelimit_headers: RateLimitHeaders::Draft03(names()),
        ..Options::default()
    };
    let response = answer(
        vec![of("path"), of("user"), of("all")],
        &[left(4, 1_800), left(2, 60), left(2, 30)],
        &options,
    );
    let limit = r#"5, 100;w=3600, 5;w=60;name="per-user", 4294967295;w=30"#;
    assert_eq!(
        headers(&response),
        [("Limit", limit), ("Remaining", "2"), ("Reset", "60")],
        "of two with as many left, the first"
    );
    assert!(headers(&answer(vec![of("unknown")], &[], &options)).is_empty());
}

#[test]
fn no_text_of_a_client_or_a_file_leaves_its_header() {
    let own = |key: &[u8]| {
        let limit = RateLimitOverride {
            requests_per_unit: 3,
            unit: 2,
            unit_multiplier: None,
        };
        RateLimitDescriptor {
            limit: Some(limit),
            ..of(key)
        }
    };
    let options = Options {
        refused_by: Some("x-refused-by".to_owned()),
        ..draft_11()
    };
    let response = answer(
        vec![own(b"\r\nset-cookie: a=\"b\\\xff"), of("odd")],
        &[over(1), over(2)],
        &options,
    );
    let (own, odd) = (
        r#""%0D%0Aset-cookie: a=%22b%5C%FF""#,
        r#""caf%C3%A9 %22a%22 %5C x: y""#,
    );
    let expected = [
        (
            "RateLimit-Policy",
            format!("{own};q=3;w=60, {odd};q=1;w=86400"),
        ),
        ("RateLimit", format!("{own};r=0;t=1, {odd};r=0;t=2")),
        ("x-refused-by", format!("{own}, {odd}")),
    ];
    assert_eq!(
        headers(&response),
        expected.each_ref().map(|(key, value)| (*key, &**value))
    );
}

#[test]
fn headers_name_sixteen_limits_at_most() {
    let descriptor = |index: u32| RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: 100 + index,
            unit: 2,
            unit_multiplier: None,
        }),
        ..of([b'a'; 200])
    };
    let descriptors = (0..40).map(descriptor).collect();
    let decisions = (0..39).map(|index| left(index % 20, 60));
    let decisions: Vec<_> = decisions.chain([over(5)]).collect();
    let options = Options {
        ratelimit_headers: RateLimitHeaders::Draft11,
        ..explained()
    };
    let response = answer(descriptors, &decisions, &options);
    let all = headers(&response);
    let [policies, states] =
        [0, 1].map(|header: usize| all[header].1.split(", ").collect::<Vec<_>>());
    assert_eq!([policies.len(), states.len()], [fields::MAX_POLICIES; 2]);
    // The one that refuses, in the order of the request, and those with the least that remains.
    let are_right = policies[15].ends_with(";q=139;w=60") && policies[14].ends_with(";q=126;w=60");
    assert!(are_right, "{policies:?}");
    assert!(all.iter().map(|(_, value)| value.len()).sum::<usize>() < 6_000);
}

#[test]
fn a_refusal_names_the_limits_that_refuse() {
    let decide = |of_user, options: &Options| {
        let all = [of("user"), of("path"), of("shadow"), of("unknown")];
        answer(all.to_vec(), &[of_user, left(5, 9), over(7)], options)
    };
    let response = decide(over(7), &explained());
    let expected = [
        ("x-refused-by", "\"per-user\""),
        ("content-type", "application/problem+json"),
    ];
    assert_eq!(headers(&response), expected);
    let expected = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "violated-policies": ["per-user"],
    });
    assert_eq!(problem(&response), expected);
    let refused_by = |response: RateLimitResponse| {
        let metadata = response.dynamic_metadata.expect("metadata");
        metadata.fields.get("refusedBy").map(|by| format!("{by:?}"))
    };
    let by = refused_by(response).expect("a limit");
    let names_one = by.contains("\"d.user\"") && by.contains("\"per-user\"");
    assert!(names_one && !by.contains("login"), "{by}");

    // In shadow mode Envoy would send a body and a content type with the response; the metadata has
    // it, as the status shows it.
    let in_shadow = Options {
        shadow_mode: true,
        ..explained()
    };
    for (of_user, options, is_refused) in [
        (left(1, 7), &explained(), false),
        (over(7), &in_shadow, true),
    ] {
        let passed = decide(of_user, options);
        assert!(headers(&passed).is_empty() && passed.raw_body.is_empty());
        assert_eq!(refused_by(passed).is_some(), is_refused);
    }

    // A limit in the request has the keys of its descriptor.
    let own = RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: 3,
            unit: 2,
            unit_multiplier: None,
        }),
        ..of("own")
    };
    let by = refused_by(answer(vec![own], &[over(7)], &explained())).expect("a limit");
    assert!(by.contains("\"d.own\""), "{by}");
}

#[test]
fn quotas_refuse_only_together() {
    let (free, full) = (left(1, 1), over(1));
    let quotas = r#""first-quota", "second-quota""#;
    let all = r#""first-quota", "second-quota", "per-user""#;
    for (decisions, expected) in [
        (&[full, free][..], ""),
        (&[full, full], quotas),
        (&[full, free, full], r#""per-user""#),
        (&[full, full, full], all),
    ] {
        let keys = ["quota", "other", "user"];
        let descriptors = keys[..decisions.len()].iter().map(of).collect();
        let response = answer(descriptors, decisions, &explained());
        let refused_by = headers(&response).first().map_or("", |(_, value)| value);
        assert_eq!(refused_by, expected);
    }
}

/// A client that hears of a quota would slow down although it has done nothing wrong.
#[test]
fn a_refusal_for_an_outage_is_another_problem() {
    let denied = Decision::PolicyRefuses(StoreError::NotExecuted("down"));
    for (other, kind) in [
        (denied, "temporary-reduced-capacity"),
        (over(3), "quota-exceeded"),
    ] {
        let response = answer(vec![of("user"), of("path")], &[denied, other], &explained());
        let problem = problem(&response);
        let kind = format!("https://iana.org/assignments/http-problem-types#{kind}");
        assert_eq!(problem["type"], kind);
        let policies = serde_json::json!(["per-user", "path_/login"]);
        assert_eq!(problem["violated-policies"], policies);
    }
}

#[test]
fn limits_without_a_name_show_their_path_when_asked() {
    let names = |options: &Options| {
        let response = answer(
            vec![of("user"), of("path"), of("odd")],
            &[left(1, 1), left(1, 1), left(1, 1)],
            options,
        );
        response
            .statuses
            .into_iter()
            .map(|status| status.current_limit.expect("a limit").name)
            .collect::<Vec<_>>()
    };
    let odd = "caf%C3%A9 %22a%22 %5C x: y";
    assert_eq!(
        names(&Options::default()),
        ["per-user", "", odd],
        "as in envoyproxy/ratelimit"
    );
    assert_eq!(
        names(&Options {
            paths_as_names: true,
            ..Options::default()
        }),
        ["per-user", "path_/login", odd]
    );
}
