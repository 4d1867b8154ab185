//! Keys read well and stay short; `fuzzing/keys.rs` has what holds for any bytes of a client.

use super::*;
use crate::core::algorithm::{AlgorithmKind, Options};
use crate::core::time::{PeriodKind, Rate, Unit, Zone};
use crate::limits::plan::features::{trials, usage};

#[test]
fn keys_read_well_and_stay_short() {
    let rate = Rate {
        requests_per_unit: 1,
        unit: Unit::Second,
        unit_multiplier: 60,
    };
    let algorithm = Algorithm::try_new(&rate, &Options::default()).expect("a minute");
    let key_of = |value: &[u8], commit| {
        let entries = [("user", &b"42"[..]), ("path", value)].map(|(key, value)| Entry {
            key: key.as_bytes(),
            value,
        });
        let mut out = Vec::new();
        let algorithm = Some(&algorithm);
        write(&mut out, "p", b"shop", &entries, &[], algorithm, commit);
        out
    };
    let key = |value: &[u8]| key_of(value, Commit::Each);
    assert_eq!(key(b"/x?y=1"), b"pw1{shop|user=42|path=/x?y%3d1}fw60");
    let trial = |counter: &[u8]| {
        let mut trial = up_to_subject(counter).to_vec();
        trials::write_tag(&mut trial, &algorithm);
        trial
    };
    assert_eq!(trial(&key(b"/x")), b"pw1{shop|user=42|path=/x}trfw60");
    assert!(key(&vec![0xff; 1 << 20]).len() < 128);
    // The domain is the hash tag of all keys.
    let of_domain = key_of(b"/x", Commit::AllOrNone);
    assert_eq!(of_domain, b"pw1{shop}|user=42|path=/x}fw60");
    let trial = trial(&of_domain);
    assert_eq!(trial, b"pw1{shop}|user=42|path=/x}trfw60");
    let mut record = Vec::new();
    usage::write_key(&trial, &mut record);
    assert_eq!(record, b"pw1{shop}|user=42|path=/x}trus");
    assert_eq!(
        Subject::of_key(&of_domain).to_string(),
        "shop|user=42|path=/x"
    );
    assert_eq!(
        Subject::of_key(subject(&of_domain)).to_string(),
        "shop|user=42|path=/x"
    );
    let (mut of_subject, subject) = (Vec::new(), b"shop|user=42|path=/x");
    write_subject(&mut of_subject, "p", subject, Commit::AllOrNone);
    assert_eq!([&of_subject[..], b"fw60"].concat(), of_domain);
}

/// The tag of an algorithm with this limit and window.
fn tag(limit: u64, unit: Unit, unit_multiplier: u32, options: &Options) -> String {
    let rate = Rate {
        requests_per_unit: limit,
        unit,
        unit_multiplier,
    };
    let algorithm = Algorithm::try_new(&rate, options).expect("good options");
    let mut out = Vec::new();
    algorithm.write_key_tag(&mut out);
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
