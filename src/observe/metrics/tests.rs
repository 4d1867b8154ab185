use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::core::algorithm::{Algorithm, FixedWindow};
use crate::core::ask::Ask;
use crate::core::time::{Period, Rate, Span, Unit};
use crate::core::verdict::{Decision, Decisions, StoreError, Verdict, Wait};
use crate::limits::plan::{self, Check, CheckIndex, Checked, Checks, Fate, Modes, Plan, Slot};
use crate::limits::rules::limit::{Amount, Level, Limit, LimitId, Origin, Scale};

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
        shown: "".into(),
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
        origin: Origin::default(),
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

/// One request of one descriptor that asks for `hits` and is answered with `answer`.
fn observe(
    tallies: &Tallies,
    slot: Slot,
    hits: i64,
    modes: Modes,
    answer: Result<Verdict, StoreError>,
) {
    observe_decision(
        tallies,
        slot,
        hits,
        modes,
        answer.map_or_else(Decision::Fails, Decision::Store),
    );
}

fn observe_decision(tallies: &Tallies, slot: Slot, hits: i64, modes: Modes, decision: Decision) {
    let mut plan = empty_plan();
    plan.rules = Arc::new(Rules::of_limits([(
        "shop",
        (0..10).map(|id| limit(id, &[], Some(TEN))).collect(),
    )]));
    plan.unknown_domain = false;
    plan.slots.push(slot);
    plan.checks = Arc::new(Checks::of([(&b"key"[..], Check::new(FIXED, hits, modes))]));
    let decisions = Decisions::from_iter([decision]);
    tallies.observe(CORE, b"shop", &plan, &plan.outcomes(&decisions));
}

fn empty_plan() -> Plan {
    Plan::new(&Arc::default(), &Ask::default(), &plan::Options::default())
}

fn slot(limit: Option<u32>, fate: Fate) -> Slot {
    Slot {
        limit: limit.map(|id| LimitId::new(0, id)),
        row: None,
        fate,
    }
}

fn checked(limit: Option<u32>, metric: Option<&[&str]>) -> Slot {
    let metric = metric.map(|levels| levels.iter().map(ToString::to_string).collect());
    let checked = Checked {
        check: CheckIndex(0),
        shown: TEN,
        scale: Scale::ONE,
        metric,
        is_default_cost: false,
        is_raised: false,
    };
    slot(limit, Fate::Checked(checked))
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

/// Each of these samples has this value.
fn expect_each<S: AsRef<str>>(text: &str, samples: impl IntoIterator<Item = (S, f64)>) {
    for (series, value) in samples {
        expect(text, series.as_ref(), Some(value));
    }
}

fn plain_and_shadow() -> (Modes, Modes) {
    let shadow = Modes {
        shadow: true,
        quota: false,
    };
    (Modes::default(), shadow)
}

/// A sample of the metrics of envoyproxy/ratelimit for the limit with one level.
fn stat(name: &str) -> String {
    format!("ratelimit_service_rate_limit_{name}{ONE_LEVEL}")
}

/// The decisions of the limit `user` with this outcome.
fn decisions(outcome: &str) -> String {
    format!("weir_decisions_total{{domain=\"shop\",limit=\"user\",outcome=\"{outcome}\"}}")
}

#[track_caller]
fn expect(text: &str, series: &str, expected: Option<f64>) {
    assert_eq!(value(text, series), expected, "{series} in {text}");
}

const ONE_LEVEL: &str = "{domain=\"shop\",key1=\"user\"}";
const TWO_LEVELS: &str = "{domain=\"shop\",key1=\"user_bob\",key2=\"path./x\"}";

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
        for labels in [ONE_LEVEL, TWO_LEVELS] {
            expect(
                &text,
                &format!("ratelimit_service_rate_limit_{stat}{labels}"),
                Some(0.0),
            );
        }
        assert!(!text.contains(&format!(
            "ratelimit_service_rate_limit_{stat}{{domain=\"shop\",key1=\"vip\""
        )));
    }
    for outcome in ["ok", "over_limit", "shadow_over_limit", "error"] {
        let series = |limit: &str| {
            format!(
                "weir_decisions_total{{domain=\"shop\",limit=\"{limit}\",outcome=\"{outcome}\"}}"
            )
        };
        expect(&text, &series("user"), Some(0.0));
        expect(&text, &series("user_bob.path./x"), Some(0.0));
        expect(&text, &series("vip"), None);
    }
    expect(
        &text,
        "weir_decisions_total{domain=\"shop\",limit=\"vip\",outcome=\"unlimited\"}",
        Some(0.0),
    );
    expect(
        &text,
        "ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"}",
        Some(0.0),
    );
    expect(&text, "ratelimit_service_global_shadow_mode", Some(0.0));
    expect(&text, "ratelimit_service_config_load_error", Some(0.0));
    expect(
        &text,
        concat!(
            "weir_build_info{version=\"",
            env!("CARGO_PKG_VERSION"),
            "\",commit=\"",
            env!("WEIR_COMMIT"),
            "\"}"
        ),
        Some(1.0),
    );
}

#[test]
fn hits_and_outcomes_are_counted_by_limit() {
    let metrics = Metrics::new(2, 0.8);
    let tallies = tallies_of(
        &metrics,
        &[
            limit(0, &[("user", None)], Some(TEN)),
            limit(1, &[("vip", None)], None),
        ],
    );
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
    for unchecked in [slot(Some(1), Fate::Unlimited), slot(None, Fate::Free)] {
        observe(&tallies, unchecked, 1, plain, Ok(verdict(true, 1)));
    }
    let text = metrics.encode();
    let hits = [
        ("total_hits", 13.0),
        ("within_limit", 3.0),
        ("near_limit", 2.0),
        ("over_limit", 7.0),
        ("shadow_mode", 5.0),
    ];
    expect_each(&text, hits.map(|(name, hits)| (stat(name), hits)));
    let counts = [
        ("ok", 2.0),
        ("over_limit", 2.0),
        ("shadow_over_limit", 1.0),
        ("error", 1.0),
    ];
    expect_each(
        &text,
        counts.map(|(outcome, count)| (decisions(outcome), count)),
    );
    expect_each(
        &text,
        [
            (
                "weir_decisions_total{domain=\"shop\",limit=\"vip\",outcome=\"unlimited\"}",
                1.0,
            ),
            (
                "weir_negative_hits_total{domain=\"shop\",limit=\"user\"}",
                4.0,
            ),
            ("weir_store_errors_total{kind=\"unknown\"}", 1.0),
            ("weir_free_descriptors_total{domain=\"shop\"}", 1.0),
            ("weir_free_descriptors_total{domain=\"blog\"}", 0.0),
        ],
    );
}

#[test]
fn decisions_without_the_store_are_counted_by_their_source() {
    let metrics = Metrics::new(1, 0.8);
    let tallies = tallies_of(&metrics, &[limit(0, &[("user", None)], Some(TEN))]);
    let (plain, shadow) = plain_and_shadow();
    let (over, error) = (verdict(false, 5), StoreError::NotExecuted("connect"));
    for (hits, modes, decision) in [
        (3, plain, Decision::DenialCache(over)),
        (4, shadow, Decision::DenialCache(over)),
        (
            10,
            plain,
            Decision::Local(verdict(true, 9), error, NonZeroU32::MIN),
        ),
        (20, plain, Decision::Local(over, error, NonZeroU32::MIN)),
        (100, plain, Decision::PolicyAllows(error)),
        (200, plain, Decision::PolicyRefuses(error)),
        (400, plain, Decision::Fails(StoreError::Unknown("timeout"))),
    ] {
        observe_decision(&tallies, checked(Some(0), None), hits, modes, decision);
    }
    let text = metrics.encode();
    let hits = [
        ("total_hits", 737.0),
        ("within_limit", 10.0),
        ("near_limit", 0.0),
        ("over_limit", 27.0),
        ("shadow_mode", 4.0),
    ];
    expect_each(&text, hits.map(|(name, hits)| (stat(name), hits)));
    expect(
        &text,
        &format!("weir_denial_cache_refused_hits_total{ONE_LEVEL}"),
        Some(7.0),
    );
    let counts = [
        ("ok", 1.0),
        ("over_limit", 2.0),
        ("shadow_over_limit", 1.0),
        ("error", 1.0),
        ("outage_allowed", 1.0),
        ("outage_denied", 1.0),
    ];
    expect_each(
        &text,
        counts.map(|(outcome, count)| (decisions(outcome), count)),
    );
    for (policy, count) in [
        ("error", 1.0),
        ("allow", 1.0),
        ("deny", 1.0),
        ("local", 2.0),
    ] {
        let series = format!("weir_outage_answers_total{{policy=\"{policy}\"}}");
        expect(&text, &series, Some(count));
    }
    expect(&text, "weir_denial_cache_answers_total", Some(2.0));
    expect(
        &text,
        "weir_store_errors_total{kind=\"not_executed\"}",
        Some(4.0),
    );
}

#[test]
fn counters_survive_a_reload_by_the_labels_of_their_limit() {
    let metrics = Metrics::new(1, 0.8);
    let old = tallies_of(
        &metrics,
        &[
            limit(0, &[("user", None)], Some(TEN)),
            limit(1, &[("gone", None)], Some(TEN)),
        ],
    );
    let new = tallies_of(
        &metrics,
        &[
            limit(0, &[("fresh", None)], Some(TEN)),
            limit(1, &[("user", None)], Some(TEN)),
        ],
    );
    observe(
        &old,
        checked(Some(0), None),
        1,
        Modes::default(),
        Ok(verdict(true, 1)),
    );
    observe(
        &new,
        checked(Some(1), None),
        2,
        Modes::default(),
        Ok(verdict(true, 3)),
    );
    let text = metrics.encode();
    let total = |key| {
        value(
            &text,
            &format!("ratelimit_service_rate_limit_total_hits{{domain=\"shop\",key1=\"{key}\"}}"),
        )
    };
    assert_eq!(
        total("user"),
        Some(3.0),
        "a request that is still on the old rules counts too"
    );
    assert_eq!(total("fresh"), Some(0.0));
    assert_eq!(total("gone"), None);
}

#[test]
fn limits_of_equal_labels_are_one_series() {
    let metrics = Metrics::new(1, 0.8);
    let (one, other) = (
        limit(0, &[("a_b", Some("c"))], Some(TEN)),
        limit(1, &[("a", Some("b_c"))], Some(TEN)),
    );
    let (dotted, nested) = (
        limit(2, &[("x.y", None)], Some(TEN)),
        limit(3, &[("x", None), ("y", None)], Some(TEN)),
    );
    let tallies = tallies_of(&metrics, &[one, other, dotted, nested]);
    for id in 0..4 {
        observe(
            &tallies,
            checked(Some(id), None),
            1,
            Modes::default(),
            Ok(verdict(true, 1)),
        );
    }
    let text = metrics.encode();
    expect(
        &text,
        "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"a_b_c\"}",
        Some(2.0),
    );
    expect(
        &text,
        "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"x\",key2=\"y\"}",
        Some(1.0),
    );
    expect(
        &text,
        "weir_decisions_total{domain=\"shop\",limit=\"x.y\",outcome=\"ok\"}",
        Some(2.0),
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
        for hits in [hits, -hits] {
            let slot = checked(Some(id), None);
            observe(&tallies, slot, hits, Modes::default(), Ok(verdict(true, 1)));
        }
    }
    let text = metrics.encode();
    for (labels, hits) in [
        ("limit=\"user\"", 1.0),
        ("limit=\"path\",name=\"per \\\"path\\\"\"", 2.0),
        ("limit=\"a_b_c\",name=\"one\"", 4.0),
        ("limit=\"a_b_c\",name=\"two\"", 8.0),
    ] {
        expect(
            &text,
            &format!("weir_decisions_total{{domain=\"shop\",{labels},outcome=\"ok\"}}"),
            Some(2.0),
        );
        expect(
            &text,
            &format!("weir_negative_hits_total{{domain=\"shop\",{labels}}}"),
            Some(hits),
        );
    }
    let total = |key| {
        value(
            &text,
            &format!("ratelimit_service_rate_limit_total_hits{{domain=\"shop\",key1=\"{key}\"}}"),
        )
    };
    assert_eq!((total("path"), total("a_b_c")), (Some(2.0), Some(12.0)));
    // A reload keeps the counters of a limit that keeps its name.
    let _reloaded = tallies_of(
        &metrics,
        &[
            named(0, &[("a_b", Some("c"))], "one"),
            named(1, &[("a", Some("b_c"))], "new"),
        ],
    );
    let text = metrics.encode();
    let hits = |name| {
        value(
            &text,
            &format!("weir_negative_hits_total{{domain=\"shop\",limit=\"a_b_c\",name=\"{name}\"}}"),
        )
    };
    assert_eq!(
        (hits("one"), hits("two"), hits("new")),
        (Some(4.0), None, Some(0.0))
    );
}

#[test]
fn limits_that_were_never_asked_can_be_left_out() {
    const LIMITS: u32 = 10_000;
    let keys: Vec<_> = (0..LIMITS).map(|id| format!("key_{id}")).collect();
    let limits: Vec<_> = keys
        .iter()
        .zip(0..)
        .map(|(key, id)| limit(id, &[(key, None)], Some(TEN)))
        .collect();
    let series = |metrics: &Metrics| {
        metrics
            .encode()
            .lines()
            .filter(|line| line.contains("key_"))
            .count()
    };
    for omits_unused_limits in [false, true] {
        let metrics = Metrics::with_options(
            1,
            Options {
                near_limit_ratio: 0.8,
                omits_unused_limits,
            },
        );
        let tallies = tallies_of(&metrics, &limits);
        assert_eq!(
            series(&metrics),
            if omits_unused_limits { 0 } else { 13 * 10_000 }
        );
        // Whatever was decided, also about a look and in an outage.
        observe(
            &tallies,
            checked(Some(5), None),
            0,
            Modes::default(),
            Ok(verdict(true, 1)),
        );
        observe(
            &tallies,
            checked(Some(9), None),
            1,
            Modes::default(),
            Err(StoreError::Unknown("lost")),
        );
        let text = metrics.encode();
        let total = |id| {
            value(
                &text,
                &format!(
                    "ratelimit_service_rate_limit_total_hits{{domain=\"shop\",key1=\"key_{id}\"}}"
                ),
            )
        };
        let unused = if omits_unused_limits { None } else { Some(0.0) };
        assert_eq!(
            (total(5), total(9), total(7)),
            (Some(0.0), Some(1.0), unused)
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
    observe(
        &tallies,
        checked(Some(0), Some(&["user_bob"])),
        1,
        Modes::default(),
        Ok(verdict(true, 1)),
    );
    observe(
        &tallies,
        checked(None, Some(&["user_\"eve\"", "b", "c"])),
        12,
        Modes::default(),
        Ok(verdict(false, 11)),
    );
    let text = metrics.encode();
    let within = "ratelimit_service_rate_limit_within_limit";
    expect(
        &text,
        &format!("{within}{{domain=\"shop\",key1=\"user_bob\"}}"),
        Some(1.0),
    );
    expect(&text, &format!("{within}{ONE_LEVEL}"), None);
    expect(
        &text,
        "weir_decisions_total{domain=\"shop\",limit=\"user\",outcome=\"ok\"}",
        Some(1.0),
    );
    let over = "ratelimit_service_rate_limit_over_limit{domain=\"shop\",key1=\"user_\\\"eve\\\"\",key2=\"b.c\"}";
    expect(&text, over, Some(2.0));
    expect(
        &text,
        "weir_decisions_total{domain=\"shop\",limit=\"(request)\",outcome=\"over_limit\"}",
        Some(1.0),
    );
}

#[test]
fn unknown_domains_are_named_up_to_a_bound() {
    let metrics = Metrics::new(1, 0.8);
    let tallies = tallies_of(&metrics, &[]);
    for number in 0..MAX_UNKNOWN_DOMAINS + 50 {
        tallies.observe(
            CORE,
            format!("d{number}").as_bytes(),
            &empty_plan(),
            &empty_plan().outcomes(&Decisions::new()),
        );
    }
    for _ in 0..2 {
        let plan = empty_plan();
        tallies.observe(CORE, b"d0", &plan, &plan.outcomes(&Decisions::new()));
    }
    let text = metrics.encode();
    expect(
        &text,
        "weir_domain_not_found_total{domain=\"d0\"}",
        Some(3.0),
    );
    expect(
        &text,
        "weir_domain_not_found_total{domain=\"other\"}",
        Some(50.0),
    );
    assert_eq!(
        text.lines()
            .filter(|line| line.starts_with("weir_domain_not_found_total"))
            .count(),
        MAX_UNKNOWN_DOMAINS + 1
    );
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
        metrics.request_answered(Core(core), code, Duration::from_micros(micros));
    }
    metrics.request_failed(Core(1), ErrorCause::Store);
    metrics.request_failed(Core(0), ErrorCause::Service);
    let text = metrics.encode();
    let method = "grpc_method=\"ShouldRateLimit\"";
    expect(
        &text,
        &format!("ratelimit_service_total_requests{{{method}}}"),
        Some(4.0),
    );
    expect(&text, "weir_requests_total{code=\"OK\"}", Some(2.0));
    expect(
        &text,
        "weir_requests_total{code=\"INVALID_ARGUMENT\"}",
        Some(1.0),
    );
    expect(&text, "weir_requests_total{code=\"INTERNAL\"}", None);
    expect(
        &text,
        "ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"}",
        Some(1.0),
    );
    expect(
        &text,
        "ratelimit_service_should_rate_limit_error{err_type=\"service_error\"}",
        Some(1.0),
    );
    let time = "ratelimit_service_response_time_seconds";
    for (le, count) in [("0.00005", 2.0), ("0.0001", 3.0), ("1", 3.0), ("+Inf", 4.0)] {
        expect(
            &text,
            &format!("{time}_bucket{{{method},le=\"{le}\"}}"),
            Some(count),
        );
    }
    let sum = value(&text, &format!("{time}_sum{{{method}}}")).unwrap();
    assert!((sum - 2.000_111).abs() < 1e-9, "{sum}");
}

#[test]
fn all_codes_have_their_names() {
    let metrics = Metrics::new(1, 0.8);
    (0..17).for_each(|code| metrics.request_answered(CORE, Code::from(code), Duration::ZERO));
    let text = metrics.encode();
    for name in [
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "RESOURCE_EXHAUSTED",
        "UNAVAILABLE",
        "UNAUTHENTICATED",
    ] {
        expect(
            &text,
            &format!("weir_requests_total{{code=\"{name}\"}}"),
            Some(1.0),
        );
    }
}

#[test]
fn other_parts_of_the_process_add_their_samples() {
    let metrics = Metrics::new(1, 0.8);
    metrics.register(Box::new(|| vec![families::MEMORY_KEYS.count(&[], 7)]));
    metrics.panicked();
    metrics.connection_refused();
    metrics.calls_refused(1);
    metrics.config_refused();
    let text = metrics.encode();
    expect(&text, "weir_memory_keys", Some(7.0));
    expect(&text, "weir_panics_total", Some(1.0));
    expect(&text, "weir_connections_refused_total", Some(1.0));
    expect(&text, "weir_calls_refused_total", Some(1.0));
    expect(&text, "weir_config_last_load_successful", Some(0.0));
    metrics.config_loaded(&Rules::default(), 3);
    let text = metrics.encode();
    expect(&text, "weir_config_last_load_successful", Some(1.0));
    expect(&text, "weir_config_generation", Some(3.0));
    expect(&text, "ratelimit_service_config_load_success", Some(1.0));
}

#[test]
fn no_request_waits_for_a_scrape_or_a_reload() {
    let metrics = Metrics::new(2, 0.8);
    let tallies = tallies_of(&metrics, &[limit(0, &[("user", None)], Some(TEN))]);
    // Both hold this lock for as long as they go through all limits.
    let held = crate::core::lock(&metrics.series);
    let (done, counted) = std::sync::mpsc::sync_channel(1);
    let request = std::thread::spawn(move || {
        observe(
            &tallies,
            checked(Some(0), None),
            1,
            Modes::default(),
            Ok(verdict(true, 1)),
        );
        done.send(()).unwrap();
    });
    assert_eq!(counted.recv_timeout(Duration::from_secs(10)), Ok(()));
    drop(held);
    request.join().unwrap();
}
