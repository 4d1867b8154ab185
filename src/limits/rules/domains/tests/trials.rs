//! Trials of a control plane: `trial` of a `rate_limit` in the overlay.

use super::*;

fn trial(fields: &str) -> String {
    format!(
        "domains: [{{domain: d, descriptors: [{{key: user, rate_limit: {{trial: {fields}}}}}]}}]"
    )
}

fn unlimited() -> RateLimitPolicy {
    RateLimitPolicy {
        unlimited: true,
        ..RateLimitPolicy::default()
    }
}

fn apply(overlay: &str, policy: RateLimitPolicy) -> Applied {
    let list = vec![resource("r", "d", vec![node("user", "", Some(policy))])];
    Domains::default().apply(list, &with_overlay(overlay))
}

#[test]
fn an_overlay_gives_a_limit_a_trial() {
    let limit = per_minute(100).expect("a policy");
    for (fields, policy, amounts) in [
        (
            "{requests_per_unit: 50}",
            limit,
            (Some(100), 50, Unit::Minute),
        ),
        (
            "{requests_per_unit: 5, unit: hour}",
            unlimited(),
            (None, 5, Unit::Hour),
        ),
    ] {
        let applied = apply(&trial(fields), policy);
        assert_eq!(texts(&applied.warnings), "");
        let rules = applied.rules.expect("rules");
        let limit = rules.limits().next().expect("a limit");
        let rate = limit.trial.as_ref().expect("a trial").amount.rate;
        assert_eq!(
            (
                limit.amount.map(|amount| amount.rate.requests_per_unit),
                rate.requests_per_unit,
                rate.unit
            ),
            amounts
        );
    }
}

#[test]
fn a_trial_that_suits_a_limit_badly_is_left_out_there_and_refuses_nothing() {
    let log = "{algorithm: sliding_window_log, requests_per_unit: 200000}";
    for (fields, policy, what) in [
        (
            "{requests_per_unit: 5}",
            unlimited(),
            "the trial has no 'unit', and its limit is unlimited",
        ),
        (
            log,
            per_minute(100).expect("a policy"),
            "a sliding_window_log stores every hit and allows a limit of at most 100000, not \
             200000",
        ),
    ] {
        let applied = apply(&trial(fields), policy);
        let warnings = texts(&applied.warnings);
        assert!(
            warnings.starts_with(&format!("resource r: user: warning: {what}"))
                && warnings.contains(": overlay.yaml:1 is not used for this limit; "),
            "{warnings}"
        );
        let rules = applied.rules.expect("rules");
        assert!(rules.limits().all(|limit| limit.trial.is_none()));
        assert_eq!(rules.limit_count(), 1);
    }
}

#[test]
fn mistakes_of_a_trial_are_found_in_the_overlay() {
    for (fields, problem) in [
        ("{}", "'trial' is empty"),
        ("{name: x}", "'name' has no meaning in trial"),
    ] {
        let problems = overlay_problems(&trial(fields));
        assert!(problems.contains(problem), "{problems}");
    }
}
