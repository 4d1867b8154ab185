//! Trials of a control plane: the field `trial` of `weir` in the metadata of a descriptor.

use super::*;

fn with(metadata: &serde_json::Value, rate_limit: Policy) -> Resource {
    let metadata = metadata.as_object().cloned();
    resource(
        "r",
        "d",
        vec![Descriptor {
            metadata,
            ..node("user", "", Some(rate_limit))
        }],
    )
}

#[test]
fn metadata_gives_a_limit_a_trial_and_a_mistake_refuses_the_domain() {
    let limit = Policy {
        unit: MINUTE,
        requests_per_unit: 100,
        ..Policy::default()
    };
    let unlimited = Policy {
        unlimited: true,
        ..Policy::default()
    };
    let trial = |fields: serde_json::Value| serde_json::json!({ "weir": { "trial": fields } });
    for (metadata, policy, amounts) in [
        (
            trial(serde_json::json!({ "requests_per_unit": 50.0 })),
            limit.clone(),
            (Some(100), 50, Unit::Minute),
        ),
        (
            trial(serde_json::json!({ "requests_per_unit": 5, "unit": "hour" })),
            unlimited.clone(),
            (None, 5, Unit::Hour),
        ),
    ] {
        let applied =
            Domains::default().apply(vec![with(&metadata, policy)], &XdsOptions::default());
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
        assert!(limit.metadata.is_none(), "it is not for Envoy");
    }
    for (metadata, policy, problem) in [
        (
            trial(serde_json::json!({})),
            limit.clone(),
            "the trial says nothing",
        ),
        (
            trial(serde_json::json!({ "name": "x" })),
            limit,
            "'name' has no meaning in trial",
        ),
        (
            trial(serde_json::json!({ "requests_per_unit": 5 })),
            unlimited,
            "the trial has no 'unit'",
        ),
    ] {
        let applied =
            Domains::default().apply(vec![with(&metadata, policy)], &XdsOptions::default());
        let refused: String = applied
            .refused
            .iter()
            .map(|refused| texts(&refused.problems))
            .collect();
        assert!(refused.contains(problem), "{problem}: {refused}");
        assert!(
            applied
                .rules
                .is_none_or(|rules| rules.limits().next().is_none()),
            "{problem}"
        );
    }
}
