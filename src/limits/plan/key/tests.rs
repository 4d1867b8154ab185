//! Different counters never have the same key, whatever bytes a client sends.

use proptest::prelude::*;

use super::*;
use crate::core::algorithm::{AlgorithmKind, Options};
use crate::core::time::{PeriodKind, Rate, Span, Unit, Zone};

/// What a key must tell apart.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Meaning {
    domain: Vec<u8>,
    /// Key, value, and whether the value is a shared pattern.
    entries: Vec<(Vec<u8>, Vec<u8>, bool)>,
    window_secs: u32,
    /// Calendar months of a fixed window, in place of seconds.
    months: Option<u32>,
    /// A calendar of a fixed window, in place of both: its unit, zone and anchor.
    calendar: Option<(Unit, &'static str, &'static str)>,
    kind: AlgorithmKind,
    /// Of buckets.
    interval: Option<Span>,
    /// The trial beside a limit.
    is_trial: bool,
}

fn algorithm(meaning: &Meaning, limit: u64) -> Algorithm {
    let (unit, unit_multiplier) = meaning
        .months
        .map_or((Unit::Second, meaning.window_secs), |months| {
            (Unit::Month, months)
        });
    let rate = Rate {
        requests_per_unit: limit,
        unit,
        unit_multiplier,
    };
    let calendar_months = meaning.months.is_some();
    let options = Options {
        kind: meaning.kind,
        bucket_interval: meaning.interval,
        calendar_months,
        ..Options::default()
    };
    let (rate, options) = match meaning.calendar {
        None => (rate, options),
        Some((unit, zone, anchor)) => {
            let (timezone, anchor) = (Zone::named(zone), anchor.parse().ok());
            (
                Rate {
                    unit,
                    unit_multiplier: 1,
                    ..rate
                },
                Options {
                    period: Some(PeriodKind::Calendar),
                    timezone,
                    anchor,
                    ..options
                },
            )
        }
    };
    Algorithm::try_new(&rate, &options).expect("options that belong together")
}

fn key(meaning: &Meaning) -> Vec<u8> {
    let entries: Vec<_> = meaning
        .entries
        .iter()
        .map(|(key, value, _)| Entry { key, value })
        .collect();
    let levels: Vec<_> = meaning
        .entries
        .iter()
        .map(|(key, value, share_threshold)| Level {
            key: String::from_utf8_lossy(key).into(),
            value: Some(String::from_utf8_lossy(value).into()),
            share_threshold: *share_threshold,
            ..Level::default()
        })
        .collect();
    let mut out = Vec::new();
    write(
        &mut out,
        "p",
        &meaning.domain,
        &entries,
        &levels,
        Some(&algorithm(meaning, 1)),
    );
    if meaning.is_trial {
        let mut trial = Vec::new();
        write_trial(&mut trial, &out, &algorithm(meaning, 1));
        return trial;
    }
    out
}

/// Text made of what gives keys their shape, and of what digests are made of.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "%", "{", "}", "|", "=", "~", "#", "a", "7", "%7c", "fw", "w1", ":", "_", "é",
    ]);
    prop_oneof![
        9 => prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat().into_bytes()),
        1 => Just(vec![b'a'; 129]),
        1 => Just(vec![b'a'; 130]),
        1 => Just("6836cf13bac400e9105071cd6af47084dfacad4e5e302c94bfed24e013afb73e".into()),
    ]
}

/// Calendars whose windows differ from each other, and from those of months that are counted by a
/// setting.
const CALENDARS: [(Unit, &str, &str); 9] = [
    (Unit::Month, "UTC", "2026-01-31"),
    (Unit::Month, "Europe/Berlin", "2026-01-31"),
    (Unit::Month, "Europe/Berlin", "2026-01-01"),
    (Unit::Month, "Europe/Berlin", "2026-01-01T06:00"),
    (Unit::Year, "UTC", "2026-01-31"),
    (Unit::Week, "UTC", "2026-11-23"),
    (Unit::Day, "UTC", ""),
    (Unit::Day, "Etc/GMT+1", ""),
    (Unit::Day, "Etc/GMT+11", ""),
];

fn meaning() -> impl Strategy<Value = Meaning> {
    let entry = (hostile(), hostile(), prop::bool::weighted(0.2));
    let kind = prop::sample::select(AlgorithmKind::OVER_TIME.map(|(_, kind)| kind).to_vec());
    let interval = prop::sample::select(vec![
        None,
        Some(Span::from_micros(100_000)),
        Some(Span::from_micros(500_000)),
    ]);
    let window = prop::sample::select(vec![1_u32, 16, 60, 160]);
    let months = prop::sample::select(vec![None, None, Some(1_u32), Some(16)]);
    let calendar = prop::option::weighted(0.3, prop::sample::select(CALENDARS.to_vec()));
    (
        hostile(),
        prop::collection::vec(entry, 0..4),
        window,
        months,
        kind,
        interval,
        calendar,
        any::<bool>(),
    )
        .prop_map(
            |(domain, entries, window_secs, months, kind, interval, calendar, is_trial)| {
                // 1,000 buckets at most.
                let interval = interval
                    .filter(|_| kind == AlgorithmKind::SlidingWindowBuckets && window_secs < 60);
                let calendar = calendar.filter(|_| kind == AlgorithmKind::FixedWindow);
                let months =
                    months.filter(|_| kind == AlgorithmKind::FixedWindow && calendar.is_none());
                let window_secs = if months.is_some() || calendar.is_some() {
                    0
                } else {
                    window_secs
                };
                Meaning {
                    domain,
                    entries,
                    window_secs,
                    months,
                    calendar,
                    kind,
                    interval,
                    is_trial,
                }
            },
        )
}

/// The same bytes with their borders moved: what separators alone would confuse.
fn moved(meaning: &Meaning, by: usize) -> Meaning {
    let mut moved = meaning.clone();
    if let Some((key, value, _)) = moved.entries.first_mut() {
        let mut both = [&key[..], b"=", &value[..]].concat();
        let at = by % (both.len() + 1);
        *value = both.split_off(at);
        *key = both;
    }
    moved
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn keys_are_equal_only_for_the_same_meaning(left in meaning(), right in meaning(), by in any::<usize>()) {
        prop_assert_eq!(left == right, key(&left) == key(&right), "{:?} {:?}", left, right);
        let mut toggled = left.clone();
        if let Some((_, _, share_threshold)) = toggled.entries.first_mut() {
            *share_threshold = !*share_threshold;
        }
        prop_assert_eq!(left == toggled, key(&left) == key(&toggled), "a pattern and the same \
            text: {:?}", left);
        let other = Meaning { is_trial: !left.is_trial, ..left.clone() };
        prop_assert_ne!(key(&left), key(&other), "a trial and its limit");
        let moved = moved(&left, by);
        prop_assert_eq!(left == moved, key(&left) == key(&moved), "{:?} {:?}", left, moved);
    }

    #[test]
    fn exactly_one_hash_tag_and_only_the_algorithm_behind_it(meaning in meaning()) {
        let key = key(&meaning);
        prop_assert_eq!(key.iter().filter(|&&byte| byte == b'{').count(), 1);
        prop_assert_eq!(key.iter().filter(|&&byte| byte == b'}').count(), 1);
        let end = key.iter().rposition(|&byte| byte == b'}').expect("a brace");
        let mut tag_alone = if meaning.is_trial { TRIAL.to_vec() } else { Vec::new() };
        write_tag(&mut tag_alone, &algorithm(&meaning, 1));
        prop_assert_eq!(&key[end + 1..], &tag_alone[..]);
    }

    /// A limit can be changed without forgetting.
    #[test]
    fn the_amount_is_not_in_the_key(meaning in meaning(), limit in 0..1_u64 << 40) {
        let tag_of = |limit| {
            let mut out = Vec::new();
            write_tag(&mut out, &algorithm(&meaning, limit));
            out
        };
        let limit = if meaning.kind == AlgorithmKind::SlidingWindowLog { limit % 100_000 } else { limit };
        prop_assert_eq!(tag_of(limit), tag_of(limit / 2));
        prop_assert_eq!(tag_of(limit), tag_of(limit % 10));
    }
}

#[test]
fn keys_read_well_and_stay_short() {
    let meaning = |value: &[u8]| Meaning {
        domain: b"shop".to_vec(),
        entries: vec![
            (b"user".to_vec(), b"42".to_vec(), false),
            (b"path".to_vec(), value.to_vec(), false),
        ],
        window_secs: 60,
        months: None,
        calendar: None,
        kind: AlgorithmKind::FixedWindow,
        interval: None,
        is_trial: false,
    };
    assert_eq!(
        key(&meaning(b"/x?y=1")),
        b"pw1{shop|user=42|path=/x?y%3d1}fw60"
    );
    assert_eq!(
        key(&Meaning {
            is_trial: true,
            ..meaning(b"/x")
        }),
        b"pw1{shop|user=42|path=/x}trfw60"
    );
    assert!(key(&meaning(&vec![0xff; 1 << 20])).len() < 128);
}

/// The tag of an algorithm with so many hits in so many of a unit.
fn tag(limit: u64, unit: Unit, unit_multiplier: u32, options: &Options) -> String {
    let rate = Rate {
        requests_per_unit: limit,
        unit,
        unit_multiplier,
    };
    let algorithm = Algorithm::try_new(&rate, options).expect("good options");
    let mut out = Vec::new();
    write_tag(&mut out, &algorithm);
    String::from_utf8(out).expect("ASCII")
}

#[test]
fn tags_tell_algorithms_and_windows() {
    use AlgorithmKind::{
        FixedWindow, LeakyBucket, SlidingWindowBuckets, SlidingWindowCounter, SlidingWindowLog,
        TokenBucket,
    };
    const MANY: u64 = u32::MAX as u64;
    let minute = (5, Unit::Minute, 1);
    for (kind, (limit, unit, multiplier), burst, expected) in [
        (FixedWindow, minute, None, "fw60"),
        (SlidingWindowLog, minute, None, "sl60"),
        (SlidingWindowCounter, minute, None, "sc60"),
        (SlidingWindowCounter, (MANY, Unit::Day, 1), None, "sc86400"),
        (SlidingWindowBuckets, minute, None, "sb60.1000000x61"),
        (TokenBucket, minute, Some(10), "tb60"),
        (
            TokenBucket,
            (MANY, Unit::Year, 100),
            Some(10),
            "tb3153600000",
        ),
        (LeakyBucket, (5, Unit::Second, 30), None, "lb30"),
        // The 30 days of a replica that does not follow the calendar.
        (FixedWindow, (5, Unit::Month, 1), None, "fw2592000"),
        // A tick of ten seconds, of which the window is no whole number.
        (
            LeakyBucket,
            (MANY, Unit::Second, 2_000_001),
            None,
            "lb2000001",
        ),
    ] {
        let options = Options {
            kind,
            burst,
            ..Options::default()
        };
        assert_eq!(tag(limit, unit, multiplier, &options), expected);
    }
}

#[test]
fn tags_tell_calendars_and_zones() {
    let of_months = |kind| {
        let options = Options {
            kind,
            calendar_months: true,
            ..Options::default()
        };
        tag(5, Unit::Month, 3, &options)
    };
    assert_eq!(of_months(AlgorithmKind::FixedWindow), "fwm3");
    assert_eq!(
        of_months(AlgorithmKind::TokenBucket),
        "tb7776000",
        "other algorithms have no windows that begin at a boundary"
    );
    let calendar = |unit, zone, anchor: &str| {
        let options = Options {
            period: Some(PeriodKind::Calendar),
            timezone: Zone::named(zone),
            anchor: anchor.parse().ok(),
            ..Options::default()
        };
        tag(5, unit, 1, &options)
    };
    assert_eq!(
        calendar(Unit::Month, "Europe/Berlin", "2026-03-31"),
        "fwmonth-31@Europe/Berlin"
    );
    assert_eq!(
        [Unit::Day, Unit::Week].map(|unit| calendar(unit, "UTC", "")),
        ["fwday@UTC", "fwweek-mon@UTC"]
    );
    // The windows of the setting.
    assert_eq!(
        [Unit::Month, Unit::Year].map(|unit| calendar(unit, "UTC", "")),
        ["fwm1", "fwm12"]
    );
}
