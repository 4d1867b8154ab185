use proptest::prelude::*;

use super::*;
use crate::core::algorithm::{Algorithm, AlgorithmKind, Options};
use crate::core::digest::{hex, sha256};
use crate::core::time::{PeriodKind, Unit, Zone};
use crate::limits::rules::limit::{Scale, Units};

fn record(kind: &str, path: &[(&str, Option<&str>)]) -> Record {
    let entry = |(key, value): &(&str, Option<&str>)| EntryRecord {
        key: (*key).to_owned(),
        value: value.map(str::to_owned),
        value_sha256: None,
    };
    Record {
        kind: kind.to_owned(),
        domain: "d".to_owned(),
        entries: path.iter().map(entry).collect(),
        to: (kind == "raise").then(|| to(500, "minute")),
        ..Record::default()
    }
}

fn to(requests_per_unit: u64, unit: &str) -> RateRecord {
    RateRecord {
        requests_per_unit: Units(requests_per_unit as f64),
        unit: Some(unit.to_owned()),
        unit_multiplier: None,
    }
}

fn made(kind: &str, path: &[(&str, Option<&str>)]) -> Override {
    record(kind, path).read().expect("an override")
}

fn rate(requests_per_unit: u64, unit: Unit) -> Rate {
    Rate {
        requests_per_unit,
        unit,
        unit_multiplier: 1,
    }
}

fn raise(rate: Rate, is_added: bool) -> RaiseRate {
    RaiseRate {
        rate,
        units: Units(rate.requests_per_unit as f64),
        is_added,
    }
}

fn raise_to(rate: Rate) -> RaiseRate {
    raise(rate, false)
}

fn raise_by(rate: Rate) -> RaiseRate {
    raise(rate, true)
}

fn algorithm(rate: &Rate, options: &Options) -> Algorithm {
    Algorithm::try_new(rate, options).expect("an algorithm")
}

fn amount(rate: Rate, options: &Options) -> Amount {
    Amount::new(rate, Scale::ONE, algorithm(&rate, options))
}

fn per_minute(requests_per_unit: u64) -> Amount {
    amount(rate(requests_per_unit, Unit::Minute), &Options::default())
}

/// The override that applies to a descriptor of one entry whose key is `user`.
fn to_user(
    overrides: &Overrides,
    now: u64,
    value: &[u8],
    amount: Option<&Amount>,
) -> Option<Applied> {
    let key = b"user";
    let found = overrides.at(Micros(now));
    let found = found.find(b"d", &[Entry { key, value }], amount);
    found.map(|(_, applied)| applied)
}

fn entry<'a>(&(key, value): &(&'a str, &'a str)) -> Entry<'a> {
    Entry {
        key: key.as_bytes(),
        value: value.as_bytes(),
    }
}

fn find(overrides: &Overrides, now: u64, path: &[(&str, &str)]) -> Option<&'static str> {
    let entries: Vec<_> = path.iter().map(entry).collect();
    let found = overrides.at(Micros(now));
    let found = found.find(b"d", &entries, Some(&per_minute(10)));
    found.map(|(_, applied)| match applied {
        Applied::Block { .. } => "block",
        Applied::Exempt => "exempt",
        Applied::Raise(_) => "raise",
    })
}

#[test]
fn the_order_is_what_a_support_desk_expects() {
    let user = |value| [("user", value)];
    // Each override is a kind and the value to which it applies.
    for (orders, value, expected) in [
        // A block takes precedence over a raise, even a more specific one.
        ("raise=42 block", "42", "block"),
        ("raise=42 exempt=4*", "42", "exempt"),
        // An exception is more specific than the rule.
        ("block=4* exempt=42", "42", "exempt"),
        ("block=4* exempt=42", "43", "block"),
        ("exempt block=42", "42", "block"),
        ("exempt block=42", "43", "exempt"),
        ("exempt=4* block=42*", "421", "block"),
        // A key alone is the key with the value *.
        ("exempt=* block", "1", "block"),
        ("exempt block=*", "1", "block"),
        // For the same descriptors, the block applies.
        ("exempt=42 raise=42 block=42", "42", "block"),
        ("exempt=4* block=*2", "42", "block"),
        ("exempt=42 raise=42", "42", "exempt"),
        // The smaller network, and an address in any spelling.
        ("block=10.0.0.0/8 exempt=10.1.0.0/16", "10.1.2.3", "exempt"),
        ("block=10.0.0.0/8 exempt=10.1.0.0/16", "10.2.2.3", "block"),
        ("block=10.0.0.0/8 exempt=10.1.0.0/16", "10.0.0.0/9", "block"),
        ("exempt block=2001:DB8::/32", "2001:DB8::1", "block"),
        (
            "exempt=10.0.0.0/8 block=::FFFF:10.0.0.1",
            "10.0.0.1",
            "block",
        ),
        (
            "exempt=10.0.0.1/32 block=10.0.0.0/31",
            "::ffff:10.0.0.1",
            "exempt",
        ),
        ("exempt block=::ffff:10.0.0.0/104", "10.9.9.9", "block"),
        // A wildcard matches an address as it is sent, and by its canonical text.
        ("exempt block=2001:DB8:*", "2001:DB8:0::1", "block"),
        ("exempt block=2001:db8:*", "2001:DB8:0::1", "block"),
        ("exempt block=::ffff:10.*", "::ffff:10.0.0.1", "block"),
        ("exempt block=2001:DB8:*", "2001:db8::1", "exempt"),
    ] {
        let kind_and_value = |order: &'static str| match order.split_once('=') {
            Some((kind, value)) => (kind, Some(value)),
            None => (order, None),
        };
        let orders: Vec<_> = orders.split(' ').map(kind_and_value).collect();
        for turned in 0..orders.len() {
            let list = orders.iter().map(|(kind, value)| made(kind, &user(*value)));
            let mut list: Vec<_> = list.collect();
            list.rotate_left(turned);
            let found = find(&Overrides::new(list), 0, &[("user", value)]);
            assert_eq!(found, Some(expected), "{orders:?}: {value}");
        }
    }
}

#[test]
fn an_override_ends_at_its_instant_and_uncovers_what_is_below_it() {
    let until = |at, one| Override {
        until: Some(Micros(at)),
        ..one
    };
    let overrides = Overrides::new(vec![
        until(100, made("exempt", &[("user", Some("42"))])),
        until(200, made("block", &[("user", None)])),
        made("raise", &[("user", Some("42"))]),
    ]);
    for (now, expected) in [
        (0, "exempt"),
        (99, "exempt"),
        (100, "block"),
        (199, "block"),
        (200, "raise"),
        (u64::MAX, "raise"),
    ] {
        let found = find(&overrides, now, &[("user", "42")]);
        assert_eq!(found, Some(expected), "{now}");
    }
    let ends_in = Some(Span::from_micros(150));
    assert_eq!(
        to_user(&overrides, 50, b"1", None),
        Some(Applied::Block { ends_in })
    );
    let of_another_domain = overrides.at(Micros(50));
    let of_another_domain = of_another_domain.find(b"e", &[entry(&("user", "1"))], None);
    assert_eq!(of_another_domain, None);
}

#[test]
fn a_descriptor_matches_with_all_of_its_entries() {
    let overrides = Overrides::new(vec![
        made("block", &[("a", Some("1")), ("b", Some("3"))]),
        made("exempt", &[("a", None), ("b", Some("2"))]),
    ]);
    for (path, expected) in [
        (&[("a", "1"), ("b", "3")][..], Some("block")),
        // The branch for a=1 has no match, and the look-up backtracks.
        (&[("a", "1"), ("b", "2")], Some("exempt")),
        (&[("a", "1")], None),
        (&[("a", "1"), ("b", "3"), ("c", "")], None),
        (&[("b", "3"), ("a", "1")], None),
        (&[], None),
    ] {
        assert_eq!(find(&overrides, 0, path), expected, "{path:?}");
    }
}

#[test]
fn each_entry_matches_by_one_of_its_spellings() {
    let overrides = Overrides::new(vec![
        made(
            "block",
            &[("a", Some("2001:DB8:*")), ("b", Some("2001:DB8::7"))],
        ),
        made("exempt", &[("*", Some("2001:DB8::7"))]),
    ]);
    for (path, expected) in [
        (
            &[("a", "2001:DB8::1"), ("b", "2001:DB8:0::7")][..],
            Some("block"),
        ),
        (&[("a", "2001:DB8::1"), ("b", "2001:db8::7")], Some("block")),
        (&[("a", "2001:db8::1"), ("b", "2001:db8::7")], None),
        // A value with a wildcard is a text.
        (&[("c", "2001:DB8::7")], Some("exempt")),
        (&[("c", "2001:db8::7")], None),
    ] {
        assert_eq!(find(&overrides, 0, path), expected, "{path:?}");
    }
    // Each branch is visited once, for any number of entries with two spellings.
    let overrides = Overrides::new(vec![made("block", &[("k", Some("2001:*")); 16])]);
    let mut visits = 0;
    let path = [entry(&("k", "2001:DB8::1")); 16];
    overrides.by_domain["d".as_bytes()].each_match(&path, &mut |_| visits += 1);
    assert_eq!(visits, 1);
}

#[test]
fn a_raise_has_the_unit_of_the_limit_and_is_above_it() {
    let fixed = per_minute(10);
    let log = Options {
        kind: AlgorithmKind::SlidingWindowLog,
        ..Options::default()
    };
    let log = amount(fixed.rate, &log);
    let other_unit = Err(Unfit::OtherUnit(fixed.rate));
    let two_minutes = Rate {
        unit_multiplier: 2,
        ..rate(500, Unit::Minute)
    };
    for (of, to, expected) in [
        (&fixed, rate(500, Unit::Minute), Ok(per_minute(500))),
        (&fixed, rate(500, Unit::Hour), other_unit),
        (&fixed, two_minutes, other_unit),
        (
            &fixed,
            rate(10, Unit::Minute),
            Err(Unfit::NotAbove(fixed.rate)),
        ),
        (
            &log,
            rate(100_001, Unit::Minute),
            Err(Unfit::AtMost(100_000)),
        ),
    ] {
        assert_eq!(raised(of, &raise_to(to)), expected, "{to:?}");
    }
    assert!(raised(&log, &raise_to(rate(100_000, Unit::Minute))).is_ok());
}

#[test]
fn an_addition_is_added_to_the_amount_of_the_limit() {
    let fixed = per_minute(10);
    let log = Options {
        kind: AlgorithmKind::SlidingWindowLog,
        ..Options::default()
    };
    let log = amount(fixed.rate, &log);
    let of_unit = |rate: Rate, of: &Amount| raised(of, &raise_by(rate)).map(|raised| raised.whole);
    let minutes = |added| rate(added, Unit::Minute);
    assert_eq!(raised(&fixed, &raise_by(minutes(1))), Ok(per_minute(11)));
    for (added, of, expected) in [
        (minutes(5), &fixed, Ok(15)),
        (minutes(5), &per_minute(0), Ok(5)),
        (minutes(99_990), &log, Ok(100_000)),
        (minutes(99_991), &log, Err(Unfit::AtMost(100_000))),
        (
            rate(5, Unit::Hour),
            &fixed,
            Err(Unfit::OtherUnit(fixed.rate)),
        ),
    ] {
        assert_eq!(of_unit(added, of), expected, "{added:?}");
    }
    assert!(
        matches!(of_unit(minutes(u64::MAX), &fixed), Err(Unfit::AtMost(_))),
        "more than a counter holds"
    );
    // The sum is shared by regions.
    let share = Amount {
        whole: 30,
        share: "50%".parse().expect("a share"),
        ..fixed
    };
    let raised = raised(&share, &raise_by(minutes(10))).expect("it fits");
    assert_eq!((raised.whole, raised.rate.requests_per_unit), (40, 20));
}

#[test]
fn an_addition_follows_the_limit_and_the_order_of_raises() {
    let raise = |value, hits, is_added| {
        let rate = Some(to(hits, "minute"));
        let (to, add) = if is_added { (None, rate) } else { (rate, None) };
        let record = record("raise", &[("user", value)]);
        Record { to, add, ..record }.read().expect("an override")
    };
    let list = vec![raise(Some("42"), 5, true), raise(None, 70, false)];
    assert_eq!(list[0].id, raise(Some("42"), 9, false).id, "one raise each");
    let overrides = Overrides::new(list);
    for (user, own, expected) in [
        // The more specific one, also if it gives less.
        (b"42", 10, Some(15)),
        (b"42", 1_000, Some(1_005)),
        (b"43", 10, Some(70)),
        (b"43", 1_000, None),
    ] {
        let expected = expected.map(|all| Applied::Raise(per_minute(all)));
        let own = per_minute(own);
        assert_eq!(to_user(&overrides, 0, user, Some(&own)), expected);
    }
}

#[test]
fn a_raise_that_does_not_fit_is_passed_over_for_one_that_does() {
    let raise = |value, hits, unit| Record {
        to: Some(to(hits, unit)),
        ..record("raise", &[("user", value)])
    };
    let list = [raise(Some("42"), 9_000, "hour"), raise(None, 70, "minute")];
    let overrides = Overrides::new(list.map(|one| one.read().expect("one")).to_vec());
    for (amount, expected) in [
        (Some(10), Some(Applied::Raise(per_minute(70)))),
        (Some(70), None),
        // No limit, nothing to raise.
        (None, None),
    ] {
        let amount = amount.map(per_minute);
        assert_eq!(to_user(&overrides, 0, b"42", amount.as_ref()), expected);
    }
}

/// Every algorithm keeps its counters, their key, and its other options, when its amount is raised.
#[test]
fn a_raised_limit_goes_on_with_its_counter() {
    use crate::core::algorithm::Arrival;
    for (name, kind) in AlgorithmKind::OVER_TIME {
        let rates = [10, 90_000].map(|requests| rate(requests, Unit::Minute));
        let max_delay = (kind == AlgorithmKind::LeakyBucket).then_some(Span::from_secs(54));
        let options = Options {
            kind,
            max_delay,
            ..Options::default()
        };
        let amount = amount(rates[0], &options);
        let raised = raised(&amount, &raise_to(rates[1])).expect(name).algorithm;
        let written = algorithm(&rates[1], &options);
        assert_eq!(raised, written, "{name}: as if it were written so");
        let at = Arrival {
            now: Micros(1_800_000_000_000_000),
            max_wait: Span::MAX,
        };
        let full = amount.algorithm.step(None, at, 10);
        let next = amount.algorithm.step(full.state.clone(), at, 1);
        assert!(full.verdict.allowed && !next.verdict.allowed, "{name}");
        let peek = raised.step(full.state.clone(), at, 0).verdict;
        // A bucket keeps its tokens and is refilled faster; all others keep the hits that they
        // counted.
        let left = if kind == AlgorithmKind::TokenBucket {
            0
        } else {
            raised.capacity() - 10
        };
        assert_eq!((peek.allowed, peek.remaining), (true, left), "{name}");
        let identity = |algorithm: &Algorithm| {
            let mut suffix = Vec::new();
            algorithm.write_key_suffix(&mut suffix);
            (algorithm.kind(), algorithm.window(), suffix)
        };
        let identities = [&amount.algorithm, &raised].map(identity);
        assert_eq!(
            identities[0], identities[1],
            "{name}: what a key is made of"
        );
        // After the raise, the hits of the larger amount remain, as debt.
        if kind != AlgorithmKind::TokenBucket {
            let many = raised.step(full.state, at, 500);
            let next = amount.algorithm.step(many.state, at, 1);
            assert!(many.verdict.allowed && !next.verdict.allowed, "{name}");
        }
    }
}

#[test]
fn a_raised_limit_keeps_its_calendar_and_its_burst() {
    let calendar = Options {
        period: Some(PeriodKind::Calendar),
        timezone: Zone::named("Asia/Tokyo"),
        ..Options::default()
    };
    let amount = amount(rate(10, Unit::Month), &calendar);
    let window = raised(&amount, &raise_to(rate(50, Unit::Month)));
    let window = window.map(|raised| raised.algorithm.window());
    assert_eq!(window, Ok(amount.algorithm.window()));
    assert_eq!(
        raised(&amount, &raise_to(rate(50, Unit::Day))),
        Err(Unfit::OtherUnit(amount.rate))
    );
    let bucket = Options {
        kind: AlgorithmKind::TokenBucket,
        burst: Some(3),
        ..Options::default()
    };
    let bucket = algorithm(&rate(10, Unit::Minute), &bucket);
    assert_eq!(bucket.with_limit(50).expect("fits").capacity(), 3);
}

#[test]
fn records_say_what_is_wrong_with_them() {
    type Case = (fn(&mut Record), &'static str);
    let good = record("block", &[("user", Some("42"))]);
    let cases: [Case; 12] = [
        (
            |one| one.kind = "blok".into(),
            "kind: write one of block, exempt, raise",
        ),
        (|one| one.kind = "raise".into(), "to is missing"),
        (|one| one.to = Some(to(1, "day")), "no meaning for block"),
        (
            |one| {
                one.kind = "raise".into();
                one.add = Some(to(0, "day"));
            },
            "add: 0 adds nothing; write 1 or more",
        ),
        (
            |one| {
                one.kind = "raise".into();
                (one.to, one.add) = (Some(to(1, "day")), Some(to(1, "day")));
            },
            "to and add: write only one of them",
        ),
        (|one| one.domain.clear(), "domain is empty"),
        (|one| one.entries.clear(), "1 to 64 entries"),
        (
            |one| one.entries[0].value = Some("x".repeat(2_050)),
            "2048 at most",
        ),
        (
            |one| one.entries[0].value = Some("*".repeat(17)),
            "16 at most",
        ),
        (
            |one| one.reason = "é".repeat(301),
            "reason has more than 300 characters",
        ),
        (
            |one| one.by = "x".repeat(65),
            "by has more than 64 characters",
        ),
        (
            |one| one.until = Some("friday".into()),
            "`friday` is no instant; write RFC 3339",
        ),
    ];
    for (change, error) in cases {
        let mut record = good.clone();
        change(&mut record);
        let text = record.read().expect_err(error).0;
        assert!(text.contains(error), "{text}");
    }
}

#[test]
fn a_record_is_read_back_as_it_was() {
    let record = Record {
        until: Some("2030-01-31T18:00:00+02:00".to_owned()),
        created_at: Some("2029-01-01T00:00:00.25Z".to_owned()),
        reason: "sale \"é\"".to_owned(),
        by: "alice".to_owned(),
        ..record("raise", &[("user", Some("4*")), ("path", None)])
    };
    let one = record.read().expect("an override");
    let back = Record::from(&one);
    assert_eq!(
        (back.until.as_deref(), back.created_at.as_deref()),
        (
            Some("2030-01-31T16:00:00Z"),
            Some("2029-01-01T00:00:00.25Z")
        )
    );
    assert_eq!(back.read().as_ref(), Ok(&one));
    let text = serde_json::to_string(&back).expect("JSON");
    assert_eq!(
        serde_json::from_str::<Record>(&text).expect("a record"),
        back
    );
    assert!(
        serde_json::from_str::<Record>(&text.replace("reason", "raeson")).is_err(),
        "a misspelled field is not ignored"
    );
    // Versions without `add` read every other record.
    assert!(!text.contains("add") && !text.contains("total"), "{text}");
    let (to, add) = (None, record.to.clone());
    let addition = Record { to, add, ..record };
    let one = addition.read().expect("an override");
    assert_eq!(Record::from(&one).read().as_ref(), Ok(&one));
    // The longest record that is accepted can be read, also if all its characters are escaped.
    let widest = Record {
        entries: vec![EntryRecord {
            key: "k".to_owned(),
            value: Some("\u{1}".repeat(2_046)),
            value_sha256: None,
        }],
        reason: "\"".repeat(300),
        by: "\"".repeat(64),
        ..back
    };
    let widest = Record::from(&widest.read().expect("an override"));
    assert!(serde_json::to_string(&widest).expect("JSON").len() < MAX_RECORD_BYTES);
}

fn digest(value: &[u8]) -> String {
    hex(&sha256(value))
}

fn of_digest(kind: &str, value: &[u8]) -> Override {
    let record = Record {
        entries: vec![EntryRecord {
            key: "user".to_owned(),
            value: None,
            value_sha256: Some(digest(value)),
        }],
        ..record(kind, &[])
    };
    record.read().expect("an override")
}

#[test]
fn a_value_may_be_known_by_its_digest() {
    let overrides = Overrides::new(vec![
        of_digest("block", b"42"),
        of_digest("block", b"\xff"),
        made("exempt", &[("user", None)]),
    ]);
    assert_eq!(
        ["42", "43", &digest(b"42")].map(|value| find(&overrides, 0, &[("user", value)])),
        ["block", "exempt", "exempt"].map(Some)
    );
    assert_eq!(find(&overrides, 0, &[("other", "42")]), None);
    let bytes = [b"\xff", b"\xfe"].map(|value| to_user(&overrides, 0, value, None));
    let block = Applied::Block { ends_in: None };
    assert_eq!(bytes, [Some(block), Some(Applied::Exempt)]);
    assert_eq!(
        of_digest("block", b"42").entries[0].to_string(),
        format!("user#{}", digest(b"42"))
    );
    let overrides = Overrides::new(vec![
        of_digest("block", b"2001:DB8::1"),
        of_digest("block", b"2001:db8::2"),
    ]);
    let spelled = ["2001:DB8::1", "2001:db8::1", "2001:DB8::2", "2001:db8::2"]
        .map(|value| find(&overrides, 0, &[("user", value)]));
    assert_eq!(
        spelled,
        [Some("block"), None, Some("block"), Some("block")],
        "as it was sent, or by its canonical text"
    );
}

#[test]
fn a_digest_is_read_back_as_it_was_and_stands_alone() {
    let one = of_digest("block", b"42");
    assert_eq!(Record::from(&one).read().as_ref(), Ok(&one));
    for (key, value, digest) in [
        ("user", Some("42"), &*digest(b"42")),
        ("us*", None, &*digest(b"42")),
        ("user", None, "42"),
        ("user", None, &"é".repeat(32)),
    ] {
        let entry = EntryRecord {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            value_sha256: Some(digest.to_owned()),
        };
        let mut record = record("block", &[]);
        record.entries = vec![entry];
        let error = record.read().expect_err("a mistake");
        assert!(error.0.contains("value_sha256"), "{error:?}");
    }
    assert_eq!(
        EntryRecord::from(&Pattern::literal("user", b"\xff")).value_sha256,
        Some(digest(b"\xff"))
    );
    assert_eq!(
        EntryRecord::from(&Pattern::literal("user", b"4*")).pattern(),
        Ok(Pattern::literal("user", b"4*"))
    );
    assert_eq!(Pattern::of_file("user", r"a\*").to_string(), r"user=a\\*");
}

#[test]
fn ids_differ_where_anything_but_the_order_differs() {
    let ids = [
        made("block", &[("a", Some("b"))]),
        made("exempt", &[("a", Some("b"))]),
        made("block", &[("a", None)]),
        made("block", &[("a", Some(""))]),
        made("block", &[("a", Some("b")), ("c", None)]),
        made("block", &[("ab", Some(""))]),
    ]
    .map(|one| one.id);
    for (index, id) in ids.iter().enumerate() {
        assert!(!ids[..index].contains(id) && id.len() == 32, "{id}");
    }
    let again = Override {
        reason: "x".into(),
        until: Some(Micros(9)),
        created_at: Micros(7),
        ..made("block", &[("a", None)])
    };
    assert_eq!(again.id, ids[2]);
    let overrides = Overrides::new(vec![made("block", &[("a", None)]), again.clone()]);
    assert_eq!(overrides.list, [again.clone().into()], "the newest");
    // Another value with the same id, in a store that other programs write to.
    let other = Override {
        id: again.id.clone(),
        created_at: Micros(8),
        ..made("block", &[("a", Some("b"))])
    };
    let overrides = Overrides::new(vec![
        made("block", &[("a", None)]),
        other.clone(),
        again.clone(),
    ]);
    let has = |one: &Override| overrides.list.iter().any(|other| **other == *one);
    assert!(
        overrides.list.len() == 2 && has(&other) && has(&again),
        "{overrides:?}"
    );
}

#[test]
fn there_are_bounds() {
    let block = |number: u64, value: String| Override {
        created_at: Micros(number),
        ..made("block", &[("user", Some(&value))])
    };
    let exact = |number: u64| block(number, number.to_string());
    let pattern = |number: u64| block(number, format!("{number}*"));
    let full = Overrides::new((0..11_000).map(exact).collect());
    assert_eq!((full.list.len(), full.left_out), (MAX_OVERRIDES, 1_000));
    assert!(
        full.list.iter().all(|one| one.created_at.0 >= 1_000),
        "the oldest are left out"
    );
    assert!(
        full.admit(&exact(20_000), Micros(0))
            .is_err_and(|error| error.0.contains("10000 overrides already"))
    );
    assert!(
        full.admit(&exact(10_999), Micros(0)).is_ok(),
        "the same again is no further one"
    );
    let patterns = Overrides::new((0..1_200).map(pattern).collect());
    assert_eq!(
        (patterns.list.len(), patterns.left_out),
        (MAX_PATTERNS, 200)
    );
    assert!(
        patterns
            .admit(&pattern(5_000), Micros(0))
            .is_err_and(|error| error.0.contains("1000 overrides with a *"))
    );
    assert!(patterns.admit(&exact(5_000), Micros(0)).is_ok());
    let ended = |number| Override {
        until: Some(Micros(5)),
        ..exact(number)
    };
    // Overrides that have ended do not count towards the maximum.
    let ended = Overrides::new((0..10_000).map(ended).collect());
    assert!(ended.admit(&exact(20_000), Micros(5)).is_ok());
}

fn texts() -> impl Strategy<Value = String> {
    r"[ab*\\]{0,3}"
}

/// The index of a kind, entries, an end, and when it was ordered.
type Drawn = (usize, Vec<(String, Option<String>)>, Option<u64>, u64);

fn overrides() -> impl Strategy<Value = Vec<Override>> {
    let key = prop::sample::select(vec!["a", "b", "*"]).prop_map(str::to_owned);
    let entries = prop::collection::vec((key, prop::option::of(texts())), 1..3);
    let one = (0..3_usize, entries, prop::option::of(0..10_u64), 0..4_u64);
    prop::collection::vec(one, 0..12).prop_map(|all| {
        let made = |(kind, entries, until, created_at): Drawn| {
            let path: Vec<_> = entries
                .iter()
                .map(|(key, value)| (&**key, value.as_deref()))
                .collect();
            Override {
                until: until.map(Micros),
                created_at: Micros(created_at),
                ..made(Kind::NAMES[kind], &path)
            }
        };
        all.into_iter().map(made).collect()
    })
}

/// Whether a text matches a pattern, by trying all texts for each wildcard.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skipped| matches(rest, &text[skipped..])),
        Some((b'\\', [escaped @ (b'*' | b'\\'), rest @ ..])) => text
            .split_first()
            .is_some_and(|(first, behind)| first == escaped && matches(rest, behind)),
        Some((byte, rest)) => text
            .split_first()
            .is_some_and(|(first, behind)| first == byte && matches(rest, behind)),
    }
}

fn all_texts() -> Vec<String> {
    let mut all = vec![String::new()];
    for length in 0..4 {
        let longer: Vec<_> = all
            .iter()
            .filter(|text| text.len() == length)
            .flat_map(|text| ["a", "b"].map(|end| format!("{text}{end}")))
            .collect();
        all.extend(longer);
    }
    all
}

proptest! {
    #![proptest_config(crate::testing::property(256))]

    /// The tree decides like a list that is searched from its start.
    #[test]
    fn a_tree_decides_as_a_list(
        list in overrides(),
        now in 0..12_u64,
        path in prop::collection::vec((r"[ab*\\]", r"[ab*\\]{0,3}"), 1..3),
    ) {
        let compiled = Overrides::new(list);
        let path: Vec<_> = path.iter().map(|(key, value)| (&**key, &**value)).collect();
        let is_matched = |one: &&Override| {
            one.until.is_none_or(|until| now < until.0)
                && one.entries.len() == path.len()
                && one
                    .entries
                    .iter()
                    .zip(&path)
                    .all(|(pattern, (key, value))| {
                        matches(pattern.key.to_string().as_bytes(), key.as_bytes())
                            && match &pattern.value {
                                Value::Any => true,
                                Value::Text(pattern) => {
                                    matches(pattern.to_string().as_bytes(), value.as_bytes())
                                }
                                Value::Network(network) => {
                                    panic!("{network}: no text of these is one")
                                }
                                Value::Digest(digest) => sha256(value) == *digest,
                            }
                    })
        };
        let expected = compiled
            .list
            .iter()
            .map(|one| &**one)
            .find(is_matched)
            .map(|one| one.kind.name());
        prop_assert_eq!(find(&compiled, now, &path), expected);
    }

    /// For all values of clients, an override of one value matches no other. The texts differ in
    /// special characters.
    #[test]
    fn an_exact_entry_matches_its_own_text_only(
        value in r"[ab*\\=u{}0-9]{0,6}|\PC{0,6}",
        other in r"[ab*\\=u{}0-9]{0,6}|\PC{0,6}",
        star in r"[ab*\\]{0,3}",
    ) {
        let overrides = |entry: EntryRecord| {
            Overrides::new(vec![
                Record {
                    entries: vec![entry],
                    ..record("block", &[])
                }
                .read()
                .expect("one"),
            ])
        };
        let line = crate::core::request::notation::entry(b"user", value.as_bytes());
        let (key, written) = line.split_once('=').expect("an entry");
        let others = [
            other,
            value.replace('*', &star),
            value.replace('\\', &star),
            format!("{value}{star}"),
        ];
        for entry in [
            EntryRecord::from(&Pattern::literal("user", value.as_bytes())),
            EntryRecord {
                key: key.to_owned(),
                value: Some(written.to_owned()),
                value_sha256: None,
            },
        ] {
            let overrides = overrides(entry);
            prop_assert!(
                !overrides.list[0].entries.iter().any(Pattern::has_wildcards)
                    && find(&overrides, 0, &[("user", &value)]) == Some("block")
            );
            for other in others.iter().filter(|other| **other != value) {
                prop_assert_eq!(
                    find(&overrides, 0, &[("user", other)]),
                    None,
                    "{} blocks {}",
                    written,
                    other
                );
            }
        }
    }

    #[test]
    fn patterns_intersect_where_a_text_matches_both(one in "[ab*]{0,4}", other in "[ab*]{0,4}") {
        let common = all_texts().iter().any(|text| {
            matches(one.as_bytes(), text.as_bytes()) && matches(other.as_bytes(), text.as_bytes())
        });
        let found = reach::intersect(&reach::symbols(&one), &reach::symbols(&other));
        prop_assert!(!common || found, "{one} {other}");
        // `all_texts` has all texts of up to four letters. The shortest common text has at most as
        // many letters as both patterns together.
        prop_assert!(
            common || !found || one.len() + other.len() > 4,
            "{one} {other}"
        );
    }

    #[test]
    fn a_pattern_contains_what_it_matches(
        one in "[ab*]{0,4}",
        other in "[ab*]{0,4}",
        text in "[ab]{0,4}",
    ) {
        let contains =
            |one: &str, other: &str| reach::contains(&reach::symbols(one), &reach::symbols(other));
        prop_assert_eq!(
            contains(&one, &text),
            matches(one.as_bytes(), text.as_bytes()),
            "{} {}",
            one,
            text
        );
        let all = all_texts();
        let is_above = all.iter().all(|text| {
            !matches(other.as_bytes(), text.as_bytes()) || matches(one.as_bytes(), text.as_bytes())
        });
        prop_assert!(is_above || !contains(&one, &other), "{one} {other}");
    }
}
