use std::num::NonZeroU32;
use std::time::Duration;

use tonic::Code;

use super::*;
use crate::core::algorithm::{Algorithm, FixedWindow};
use crate::core::answer::{Decision, Decisions, Effect};
use crate::core::request::DecodedRequest;
use crate::core::time::{Period, Rate, Span, Unit};
use crate::core::verdict::{StoreError, Verdict, Wait};
use crate::limits::plan::{
    self, Check, CheckIndex, Checked, Checks, Disposition, Modes, Plan, Slot,
};
use crate::limits::rules::limit::{Amount, Level, Limit, LimitId, Scale};
use crate::limits::rules::place::Place;

const CORE: Core = Core(0);
const FIXED: Algorithm = Algorithm::FixedWindow(FixedWindow {
    limit: 10,
    window: Period::Even(Span::from_secs(60)),
    count_denied: true,
});
const TEN: Rate = Rate {
    requests_per_unit: 10,
    unit: Unit::Minute,
    unit_multiplier: 1,
};

fn level(key: &str, value: Option<&str>) -> Level {
    Level {
        key: key.into(),
        value: value.map(Into::into),
        ..Level::default()
    }
}

fn limit(id: u32, levels: &[(&str, Option<&str>)], rate: Option<Rate>) -> Limit {
    Limit {
        id: LimitId::new(0, id),
        domain: "shop".into(),
        levels: levels
            .iter()
            .map(|&(key, value)| level(key, value))
            .collect(),
        name: None,
        display_name: "".into(),
        amount: rate.map(|rate| Amount::new(rate, Scale::ONE, FIXED)),
        trial: None,
        is_by_rows: false,
        plan: None,
        table: None,
        shadow_mode: false,
        quota_mode: false,
        on_store_failure: None,
        usage: None,
        detailed_metric: false,
        replaces: [].into(),
        metadata: None,
        origin: Place::default(),
    }
}

fn tallies_of(metrics: &Arc<Metrics>, limits: &[Limit]) -> Tallies {
    metrics.tallies(&Rules::of_limits([
        ("shop", limits.to_vec()),
        ("blog", Vec::new()),
    ]))
}

fn verdict(allowed: bool, used: u64) -> Verdict {
    let second = Span::from_secs(1);
    Verdict {
        allowed,
        remaining: 0,
        used,
        reset_after: second,
        retry_after: Wait::For(second),
        delay: Span::ZERO,
    }
}

/// One request with one descriptor of `hits`, which is answered with `answer`.
fn observe(
    tallies: &Tallies,
    slot: Slot,
    hits: i64,
    modes: Modes,
    answer: Result<Verdict, StoreError>,
) {
    let decision = answer.map_or_else(Decision::Fails, Decision::Store);
    observe_decision(tallies, slot, hits, modes, decision);
}

/// One request that a limit allows.
fn allow(tallies: &Tallies, limit: u32, hits: i64) {
    let slot = checked(Some(limit), None);
    observe(tallies, slot, hits, Modes::default(), Ok(verdict(true, 1)));
}

fn observe_decision(tallies: &Tallies, slot: Slot, hits: i64, modes: Modes, decision: Decision) {
    observe_effect(tallies, slot, hits, modes, decision, Effect::None);
}

fn observe_effect(
    tallies: &Tallies,
    slot: Slot,
    hits: i64,
    modes: Modes,
    decision: Decision,
    effect: Effect,
) {
    let mut plan = empty_plan();
    let limits = (0..10).map(|id| limit(id, &[], Some(TEN)));
    plan.rules = Arc::new(Rules::of_limits([("shop", limits.collect())]));
    plan.unknown_domain = false;
    plan.slots.push(slot);
    plan.checks = Arc::new(Checks::of([(&b"key"[..], Check::new(FIXED, hits, modes))]));
    let mut decisions = Decisions::from_iter([decision]);
    decisions.add_effects(vec![(CheckIndex(0), effect)]);
    tallies.observe(CORE, b"shop", &plan, &plan.outcomes(&decisions));
}

fn empty_plan() -> Plan {
    Plan::new(
        &Arc::default(),
        &DecodedRequest::default(),
        &plan::Options::default(),
    )
}

fn slot(limit: Option<u32>, disposition: Disposition) -> Slot {
    Slot {
        limit: limit.map(|id| LimitId::new(0, id)),
        row: None,
        disposition,
    }
}

fn checked(limit: Option<u32>, metric: Option<&[&str]>) -> Slot {
    let metric = metric.map(|levels| levels.iter().map(ToString::to_string).collect());
    let checked = Checked {
        check: CheckIndex(0),
        rate: TEN,
        scale: Scale::ONE,
        metric,
        is_default_cost: false,
        is_raised: false,
    };
    slot(limit, Disposition::Checked(checked))
}

/// The value of a series, written as in Prometheus' text.
#[track_caller]
fn value(text: &str, series: &str) -> Option<f64> {
    let mut found = text
        .lines()
        .filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
        .map(|value| value.parse().unwrap());
    let value = found.next();
    assert_eq!(found.next(), None, "{series} is there twice");
    value
}

/// Each line of `samples` is a series and its value, or `-` if there is no such series.
#[track_caller]
fn expect(text: &str, samples: &str) {
    for sample in samples
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        let (series, expected) = sample.rsplit_once(' ').expect("a series and a value");
        assert_eq!(
            value(text, series),
            expected.parse().ok(),
            "{series} in {text}"
        );
    }
}

fn plain_and_shadow() -> (Modes, Modes) {
    let shadow = Modes {
        shadow: true,
        quota: false,
    };
    (Modes::default(), shadow)
}

#[test]
fn every_limit_has_its_series_from_the_start() {
    let metrics = Metrics::new(2, 0.8);
    let three = [("user", Some("bob")), ("path", None), ("/x", None)];
    let _tallies = tallies_of(
        &metrics,
        &[
            limit(0, &[("user", None)], Some(TEN)),
            limit(1, &three, Some(TEN)),
            limit(2, &[("vip", None)], None),
        ],
    );
    let text = metrics.encode();
    for stat in [
        "total_hits",
        "within_limit",
        "near_limit",
        "over_limit",
        "shadow_mode",
    ] {
        expect(
            &text,
            &format!(
                r#"
                ratelimit_service_rate_limit_{stat}{{domain="shop",key1="user"}} 0
                ratelimit_service_rate_limit_{stat}{{domain="shop",key1="user_bob",key2="path./x"}} 0
                ratelimit_service_rate_limit_{stat}{{domain="shop",key1="vip"}} -
                "#
            ),
        );
    }
    for outcome in ["ok", "over_limit", "shadow_over_limit", "error"] {
        expect(
            &text,
            &format!(
                r#"
                weir_decisions_total{{domain="shop",limit="user",outcome="{outcome}"}} 0
                weir_decisions_total{{domain="shop",limit="user_bob.path./x",outcome="{outcome}"}} 0
                weir_decisions_total{{domain="shop",limit="vip",outcome="{outcome}"}} -
                "#
            ),
        );
    }
    expect(
        &text,
        r#"
        weir_decisions_total{domain="shop",limit="vip",outcome="unlimited"} 0
        ratelimit_service_should_rate_limit_error{err_type="redis_error"} 0
        ratelimit_service_global_shadow_mode 0
        ratelimit_service_config_load_error 0
        "#,
    );
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("WEIR_COMMIT"));
    let build = format!(r#"weir_build_info{{version="{version}",commit="{commit}"}} 1"#);
    expect(&text, &build);
}

#[test]
fn hits_and_outcomes_are_counted_by_limit() {
    let metrics = Metrics::new(2, 0.8);
    let limits = [
        limit(0, &[("user", None)], Some(TEN)),
        limit(1, &[("vip", None)], None),
    ];
    let tallies = tallies_of(&metrics, &limits);
    let (plain, shadow) = plain_and_shadow();
    for (hits, modes, answer) in [
        (3, plain, Ok(verdict(true, 9))),
        (3, plain, Ok(verdict(false, 12))),
        (5, shadow, Ok(verdict(false, 17))),
        (2, plain, Err(StoreError::Unknown("lost"))),
        (-4, plain, Ok(verdict(true, 13))),
        (0, plain, Ok(verdict(false, 13))),
    ] {
        observe(&tallies, checked(Some(0), None), hits, modes, answer);
    }
    for unchecked in [
        slot(Some(1), Disposition::Unlimited),
        slot(None, Disposition::Free),
    ] {
        observe(&tallies, unchecked, 1, plain, Ok(verdict(true, 1)));
    }
    expect(
        &metrics.encode(),
        r#"
        ratelimit_service_rate_limit_total_hits{domain="shop",key1="user"} 13
        ratelimit_service_rate_limit_within_limit{domain="shop",key1="user"} 3
        ratelimit_service_rate_limit_near_limit{domain="shop",key1="user"} 2
        ratelimit_service_rate_limit_over_limit{domain="shop",key1="user"} 7
        ratelimit_service_rate_limit_shadow_mode{domain="shop",key1="user"} 5
        weir_decisions_total{domain="shop",limit="user",outcome="ok"} 2
        weir_decisions_total{domain="shop",limit="user",outcome="over_limit"} 2
        weir_decisions_total{domain="shop",limit="user",outcome="shadow_over_limit"} 1
        weir_decisions_total{domain="shop",limit="user",outcome="error"} 1
        weir_decisions_total{domain="shop",limit="vip",outcome="unlimited"} 1
        weir_negative_hits_total{domain="shop",limit="user"} 4
        weir_peeks_total{domain="shop",limit="user"} 1
        weir_peeks_total{domain="shop",limit="vip"} -
        weir_store_errors_total{kind="unknown"} 1
        weir_free_descriptors_total{domain="shop"} 1
        weir_free_descriptors_total{domain="blog"} 0
        "#,
    );
    // A reload keeps the counter of a domain.
    let reloaded = tallies_of(&metrics, &limits[..1]);
    observe(
        &reloaded,
        slot(None, Disposition::Free),
        1,
        plain,
        Ok(verdict(true, 1)),
    );
    expect(
        &metrics.encode(),
        r#"
        weir_free_descriptors_total{domain="shop"} 2
        weir_peeks_total{domain="shop",limit="user"} 1
        "#,
    );
}

#[test]
fn decisions_without_the_store_are_counted_by_their_source() {
    let metrics = Metrics::new(1, 0.8);
    let tallies = tallies_of(&metrics, &[limit(0, &[("user", None)], Some(TEN))]);
    let (plain, shadow) = plain_and_shadow();
    let (over, error) = (verdict(false, 5), StoreError::NotExecuted("connect"));
    let local = |verdict| Decision::Local(verdict, error, NonZeroU32::MIN);
    for (hits, modes, decision) in [
        (3, plain, Decision::DenialCache(over)),
        (4, shadow, Decision::DenialCache(over)),
        (10, plain, local(verdict(true, 9))),
        (20, plain, local(over)),
        (100, plain, Decision::PolicyAllows(error)),
        (200, plain, Decision::PolicyRefuses(error)),
        (400, plain, Decision::Fails(StoreError::Unknown("timeout"))),
    ] {
        observe_decision(&tallies, checked(Some(0), None), hits, modes, decision);
    }
    expect(
        &metrics.encode(),
        r#"
        ratelimit_service_rate_limit_total_hits{domain="shop",key1="user"} 737
        ratelimit_service_rate_limit_within_limit{domain="shop",key1="user"} 10
        ratelimit_service_rate_limit_near_limit{domain="shop",key1="user"} 0
        ratelimit_service_rate_limit_over_limit{domain="shop",key1="user"} 27
        ratelimit_service_rate_limit_shadow_mode{domain="shop",key1="user"} 4
        weir_denial_cache_refused_hits_total{domain="shop",key1="user"} 7
        weir_denial_cache_answers_total 2
        weir_decisions_total{domain="shop",limit="user",outcome="ok"} 1
        weir_decisions_total{domain="shop",limit="user",outcome="over_limit"} 2
        weir_decisions_total{domain="shop",limit="user",outcome="shadow_over_limit"} 1
        weir_decisions_total{domain="shop",limit="user",outcome="error"} 1
        weir_decisions_total{domain="shop",limit="user",outcome="outage_allowed"} 1
        weir_decisions_total{domain="shop",limit="user",outcome="outage_denied"} 1
        weir_outage_answers_total{policy="error"} 1
        weir_outage_answers_total{policy="allow"} 1
        weir_outage_answers_total{policy="deny"} 1
        weir_outage_answers_total{policy="local"} 2
        weir_store_errors_total{kind="not_executed"} 4
        "#,
    );
}

#[test]
fn limits_of_equal_labels_are_one_series() {
    let metrics = Metrics::new(1, 0.8);
    let limits = [
        limit(0, &[("a_b", Some("c"))], Some(TEN)),
        limit(1, &[("a", Some("b_c"))], Some(TEN)),
        limit(2, &[("x.y", None)], Some(TEN)),
        limit(3, &[("x", None), ("y", None)], Some(TEN)),
    ];
    let tallies = tallies_of(&metrics, &limits);
    (0..4).for_each(|id| allow(&tallies, id, 1));
    expect(
        &metrics.encode(),
        r#"
        ratelimit_service_rate_limit_total_hits{domain="shop",key1="a_b_c"} 2
        ratelimit_service_rate_limit_total_hits{domain="shop",key1="x",key2="y"} 1
        weir_decisions_total{domain="shop",limit="x.y",outcome="ok"} 2
        "#,
    );
}

#[test]
fn the_name_of_a_limit_is_a_label_of_weirs_own_metrics() {
    let metrics = Metrics::new(1, 0.8);
    let named = |id, levels: &[_], name: &str| Limit {
        name: Some(name.into()),
        ..limit(id, levels, Some(TEN))
    };
    // The last two have the same labels in the metrics of envoyproxy/ratelimit.
    let limits = [
        limit(0, &[("user", None)], Some(TEN)),
        named(1, &[("path", None)], "per \"path\""),
        named(2, &[("a_b", Some("c"))], "one"),
        named(3, &[("a", Some("b_c"))], "two"),
    ];
    let tallies = tallies_of(&metrics, &limits);
    for (id, hits) in [(0, 1), (1, 2), (2, 4), (3, 8)] {
        allow(&tallies, id, hits);
        allow(&tallies, id, -hits);
    }
    expect(
        &metrics.encode(),
        r#"
        weir_decisions_total{domain="shop",limit="user",outcome="ok"} 2
        weir_decisions_total{domain="shop",limit="path",name="per \"path\"",outcome="ok"} 2
        weir_decisions_total{domain="shop",limit="a_b_c",name="one",outcome="ok"} 2
        weir_decisions_total{domain="shop",limit="a_b_c",name="two",outcome="ok"} 2
        weir_negative_hits_total{domain="shop",limit="user"} 1
        weir_negative_hits_total{domain="shop",limit="path",name="per \"path\""} 2
        weir_negative_hits_total{domain="shop",limit="a_b_c",name="one"} 4
        weir_negative_hits_total{domain="shop",limit="a_b_c",name="two"} 8
        ratelimit_service_rate_limit_total_hits{domain="shop",key1="path"} 2
        ratelimit_service_rate_limit_total_hits{domain="shop",key1="a_b_c"} 12
        "#,
    );
    // A reload keeps the counters of a limit that keeps its name.
    let reloaded = [
        named(0, &[("a_b", Some("c"))], "one"),
        named(1, &[("a", Some("b_c"))], "new"),
    ];
    let _reloaded = tallies_of(&metrics, &reloaded);
    expect(
        &metrics.encode(),
        r#"
        weir_negative_hits_total{domain="shop",limit="a_b_c",name="one"} 4
        weir_negative_hits_total{domain="shop",limit="a_b_c",name="two"} -
        weir_negative_hits_total{domain="shop",limit="a_b_c",name="new"} 0
        "#,
    );
}

#[test]
fn limits_that_were_never_asked_can_be_left_out() {
    const LIMITS: u32 = 10_000;
    let key = |id| format!("key_{id}");
    let limits = (0..LIMITS).map(|id| limit(id, &[(&key(id), None)], Some(TEN)));
    let limits: Vec<_> = limits.collect();
    for (omits_unused_limits, series, unused) in [(false, 13 * 10_000, "0"), (true, 0, "-")] {
        let options = Options {
            near_limit_ratio: 0.8,
            omits_unused_limits,
        };
        let metrics = Metrics::with_options(1, options);
        let tallies = tallies_of(&metrics, &limits);
        let text = metrics.encode();
        let found = text.lines().filter(|line| line.contains("key_"));
        assert_eq!(found.count(), series);
        // Whatever was decided, also about a peek and in an outage.
        allow(&tallies, 5, 0);
        let lost = Err(StoreError::Unknown("lost"));
        observe(&tallies, checked(Some(9), None), 1, Modes::default(), lost);
        let total = "ratelimit_service_rate_limit_total_hits";
        expect(
            &metrics.encode(),
            &format!(
                r#"
                {total}{{domain="shop",key1="key_5"}} 0
                {total}{{domain="shop",key1="key_9"}} 1
                {total}{{domain="shop",key1="key_7"}} {unused}
                "#
            ),
        );
    }
}

#[test]
fn names_that_depend_on_the_request_are_counted_by_name_and_decided_by_limit() {
    let metrics = Metrics::new(1, 0.8);
    let detailed = Limit {
        detailed_metric: true,
        ..limit(0, &[("user", None)], Some(TEN))
    };
    let tallies = tallies_of(&metrics, &[detailed]);
    let (plain, _) = plain_and_shadow();
    let bob = checked(Some(0), Some(&["user_bob"]));
    observe(&tallies, bob, 1, plain, Ok(verdict(true, 1)));
    let eve = checked(None, Some(&["user_\"eve\"", "b", "c"]));
    observe(&tallies, eve, 12, plain, Ok(verdict(false, 11)));
    expect(
        &metrics.encode(),
        r#"
        ratelimit_service_rate_limit_within_limit{domain="shop",key1="user_bob"} 1
        ratelimit_service_rate_limit_within_limit{domain="shop",key1="user"} -
        ratelimit_service_rate_limit_over_limit{domain="shop",key1="user_\"eve\"",key2="b.c"} 2
        weir_decisions_total{domain="shop",limit="user",outcome="ok"} 1
        weir_decisions_total{domain="shop",limit="(request)",outcome="over_limit"} 1
        "#,
    );
}

#[test]
fn unknown_domains_are_named_up_to_a_bound() {
    let metrics = Metrics::new(1, 0.8);
    let tallies = tallies_of(&metrics, &[]);
    for number in (0..MAX_UNKNOWN_DOMAINS + 50).chain([0, 0]) {
        let (domain, plan, none) = (format!("d{number}"), empty_plan(), Decisions::default());
        let outcomes = plan.outcomes(&none);
        tallies.observe(CORE, domain.as_bytes(), &plan, &outcomes);
    }
    let text = metrics.encode();
    expect(
        &text,
        r#"
        weir_domain_not_found_total{domain="d0"} 3
        weir_domain_not_found_total{domain="other"} 50
        "#,
    );
    let names = text.lines();
    let names = names.filter(|line| line.starts_with("weir_domain_not_found_total"));
    assert_eq!(names.count(), MAX_UNKNOWN_DOMAINS + 1);
}

#[test]
fn requests_are_counted_by_code_and_timed() {
    let metrics = Metrics::new(2, 0.8);
    for (core, code, micros) in [
        (0, Code::Ok, 50),
        (1, Code::Ok, 51),
        (0, Code::InvalidArgument, 10),
        (1, Code::Unavailable, 2_000_000),
    ] {
        metrics
            .process
            .request(Core(core), code, Duration::from_micros(micros));
    }
    metrics.process.count(Core(1), Count::StoreFailed);
    metrics.process.count(Core(0), Count::ServiceFailed);
    let text = metrics.encode();
    let time = "ratelimit_service_response_time_seconds";
    let method = r#"grpc_method="ShouldRateLimit""#;
    expect(
        &text,
        &format!(
            r#"
            ratelimit_service_total_requests{{{method}}} 4
            weir_requests_total{{code="OK"}} 2
            weir_requests_total{{code="INVALID_ARGUMENT"}} 1
            weir_requests_total{{code="INTERNAL"}} -
            ratelimit_service_should_rate_limit_error{{err_type="redis_error"}} 1
            ratelimit_service_should_rate_limit_error{{err_type="service_error"}} 1
            {time}_bucket{{{method},le="0.00005"}} 2
            {time}_bucket{{{method},le="0.0001"}} 3
            {time}_bucket{{{method},le="1"}} 3
            {time}_bucket{{{method},le="+Inf"}} 4
            "#
        ),
    );
    let sum = value(&text, &format!("{time}_sum{{{method}}}")).unwrap();
    assert!((sum - 2.000_111).abs() < 1e-9, "{sum}");
}

#[test]
fn no_request_waits_for_a_scrape_or_a_reload() {
    let metrics = Metrics::new(2, 0.8);
    let tallies = tallies_of(&metrics, &[limit(0, &[("user", None)], Some(TEN))]);
    // Both hold this lock for as long as they go through all limits.
    let held = crate::core::lock(&metrics.series);
    let (done, counted) = std::sync::mpsc::sync_channel(1);
    let request = std::thread::spawn(move || {
        allow(&tallies, 0, 1);
        done.send(()).unwrap();
    });
    assert_eq!(counted.recv_timeout(Duration::from_secs(10)), Ok(()));
    drop(held);
    request.join().unwrap();
}
