//! Counter keys: an inverse reads back from a key what it was made of, so that two different
//! counters never share one; the length has a bound. Names of subjects and entries that operators
//! write are read as what was printed.
//!
//! The inverse is the definition of the format: separators, escapes and digests as `plan/key.rs`
//! documents them.

use super::Input;
use crate::core::algorithm::{Algorithm, AlgorithmKind, Options};
use crate::core::digest::{hex, sha256};
use crate::core::request::Entry;
use crate::core::time::{PeriodKind, Rate, Span, Unit, Zone};
use crate::limits::overrides::Pattern;
use crate::limits::plan::features::{trials, usage};
use crate::limits::plan::key::{self, Subject};
use crate::limits::rules::Commit;
use crate::limits::rules::limit::Level;

const PREFIX: &str = "p";

/// The longest text of a part that is not replaced by its digest, and the most bytes of such a
/// part: all escaped, and its mark.
const MAX_TEXT_BYTES: usize = 128;
const MAX_PART_BYTES: usize = 3 * MAX_TEXT_BYTES + 1;

/// The most bytes of a key outside of its parts and of what separates them: the longest name of a
/// zone is 32 bytes long.
const MAX_REST_BYTES: usize = 60;

/// Calendars whose windows differ.
const CALENDARS: [(Unit, &str, &str); 12] = [
    (Unit::Month, "UTC", "2026-01-01"),
    (Unit::Month, "UTC", "2026-01-11"),
    (Unit::Month, "Etc/GMT+1", "2026-01-01"),
    (Unit::Month, "Etc/GMT+11", "2026-01-01"),
    (Unit::Quarter, "UTC", "2026-01-01"),
    (Unit::Quarter, "UTC", "2026-05-01"),
    (
        Unit::Quarter,
        "America/Argentina/ComodRivadavia",
        "2026-12-24T23:59:59",
    ),
    (Unit::Year, "UTC", "2026-01-01"),
    (
        Unit::Year,
        "America/Argentina/ComodRivadavia",
        "2026-12-24T23:59:59",
    ),
    (Unit::Week, "Europe/Berlin", "2026-11-23"),
    (Unit::Day, "Europe/Berlin", "2026-11-23"),
    (Unit::Day, "Europe/Berlin", "2026-11-23T06:00"),
];

/// What a key must tell apart.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counter {
    domain: Vec<u8>,
    entries: Vec<(Vec<u8>, Value)>,
    kind: AlgorithmKind,
    window: Span,
    /// An index of [`CALENDARS`], instead of the window.
    calendar: Option<usize>,
    interval: Option<Span>,
    /// It is the trial of a limit.
    is_trial: bool,
    /// That of the domain.
    commit: Commit,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    OfRequest(Vec<u8>),
    SharedPattern(String),
}

/// One part of a key: its mark and its text, or the digest in the text's place.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    is_pattern: bool,
    text: Text,
}

#[derive(Debug, PartialEq, Eq)]
enum Text {
    Plain(Vec<u8>),
    Digest(String),
}

pub(super) fn check(input: &[u8]) {
    let written = String::from_utf8_lossy(input);
    if let Ok(pattern) = written.parse::<Pattern>() {
        assert_eq!(pattern.to_string().parse(), Ok(pattern), "{written}");
    }
    if let Ok(subject) = written.parse::<Subject>() {
        let again: Subject = subject.to_string().parse().expect("a name");
        assert_eq!(again.tag(), subject.tag(), "{written}");
    }
    let mut input = Input(input);
    let (one, other) = (counter(&mut input), counter(&mut input));
    let keys = [&one, &other].map(checked_key);
    assert_eq!(one == other, keys[0] == keys[1], "{one:?} {other:?}");
    // The same counter with one border moved, one mark changed, or one part more.
    let mut changed = one.clone();
    match (input.byte() % 4, changed.entries.last_mut()) {
        (0, Some((key, Value::OfRequest(value)))) => key.append(value),
        (1, Some((_, value))) => {
            *value = match value {
                Value::OfRequest(text) => {
                    Value::SharedPattern(String::from_utf8_lossy(text).into_owned())
                }
                Value::SharedPattern(text) => Value::OfRequest(text.clone().into_bytes()),
            }
        }
        (2, Some(_)) => drop(changed.entries.pop()),
        _ => changed
            .entries
            .push((Vec::new(), Value::OfRequest(Vec::new()))),
    }
    assert_eq!(
        one == changed,
        keys[0] == checked_key(&changed),
        "{one:?} {changed:?}"
    );
    // A limit can be changed without forgetting: an amount that all algorithms can have.
    let amount = 1 + u64::from(input.byte()) * 100;
    assert_eq!(keys[0], key_of(&one, amount), "{one:?} of {amount}");
    // Without entries the domain is the hash tag in any case.
    let elsewhere = Counter {
        commit: match one.commit {
            Commit::Each => Commit::AllOrNone,
            Commit::AllOrNone => Commit::Each,
        },
        ..one.clone()
    };
    assert_eq!(
        one.entries.is_empty(),
        keys[0] == checked_key(&elsewhere),
        "{one:?} of another commit"
    );
    let beside = Counter {
        is_trial: !one.is_trial,
        ..one.clone()
    };
    assert_ne!(keys[0], checked_key(&beside), "{one:?} and its trial");
    let records = [&one, &beside].map(|counter| {
        let mut record = Vec::new();
        usage::write_key(&key_of(counter, 1), &mut record);
        record
    });
    assert_ne!(
        records[0], records[1],
        "{one:?} and its trial have records of their own"
    );
}

/// The key of a counter, which is known to be readable and short.
fn checked_key(counter: &Counter) -> Vec<u8> {
    let key = key_of(counter, 1);
    let Parsed {
        commit,
        domain,
        entries,
        tag,
    } = parse(&key).unwrap_or_else(|| panic!("unreadable: {}", key.escape_ascii()));
    assert_eq!(domain, expected(None, &counter.domain));
    if !entries.is_empty() {
        assert_eq!(commit, counter.commit, "{}", key.escape_ascii());
    }
    let expected: Vec<_> = counter
        .entries
        .iter()
        .map(|(key, value)| match value {
            Value::OfRequest(value) => (expected(None, key), expected(Some(false), value)),
            Value::SharedPattern(value) => (
                expected(None, String::from_utf8_lossy(key).as_bytes()),
                expected(Some(true), value.as_bytes()),
            ),
        })
        .collect();
    assert_eq!(entries, expected, "{}", key.escape_ascii());
    assert!(
        tag.iter().all(u8::is_ascii_graphic) && !tag.contains(&b'{'),
        "{}",
        key.escape_ascii()
    );
    let subject = Subject::of_key(&key);
    let is_named = |(key, _): &(Vec<u8>, Value)| !key.is_empty();
    if !counter.domain.is_empty() && !entries.is_empty() && counter.entries.iter().all(is_named) {
        assert_eq!(
            subject.to_string().parse(),
            Ok(subject),
            "{}",
            key.escape_ascii()
        );
    }
    let opening = key.iter().filter(|&&byte| byte == b'{').count();
    assert_eq!(opening, 1, "one hash tag: {}", key.escape_ascii());
    let parts = 1 + 2 * entries.len();
    assert!(
        key.len() <= PREFIX.len() + parts * (MAX_PART_BYTES + 1) + MAX_REST_BYTES,
        "{} bytes for {parts} parts",
        key.len()
    );
    key
}

/// How a text stands in a key; `None` without a mark, else whether the mark is that of a pattern.
fn expected(mark: Option<bool>, text: &[u8]) -> Part {
    let text = if text.len() > MAX_TEXT_BYTES {
        Text::Digest(hex(&sha256(text)))
    } else {
        Text::Plain(text.to_vec())
    };
    Part {
        is_pattern: mark == Some(true),
        text,
    }
}

/// The key of a counter whose limit has this amount.
fn key_of(counter: &Counter, requests_per_unit: u64) -> Vec<u8> {
    let entries: Vec<_> = counter
        .entries
        .iter()
        .map(|(key, value)| match value {
            Value::OfRequest(value) => Entry { key, value },
            Value::SharedPattern(_) => Entry {
                key,
                value: b"of the request",
            },
        })
        .collect();
    let level = |(key, value): &(Vec<u8>, Value)| Level {
        key: String::from_utf8_lossy(key).into(),
        value: if let Value::SharedPattern(text) = value {
            Some(text.as_str().into())
        } else {
            None
        },
        is_shared: matches!(value, Value::SharedPattern(_)),
        ..Level::default()
    };
    let levels: Vec<_> = counter.entries.iter().map(level).collect();
    let algorithm = algorithm(counter, requests_per_unit);
    let mut key = Vec::new();
    key::write(
        &mut key,
        PREFIX,
        &counter.domain,
        &entries,
        &levels,
        (!counter.is_trial).then_some(&algorithm),
        counter.commit,
    );
    if counter.is_trial {
        trials::write_tag(&mut key, &algorithm);
    }
    key
}

fn algorithm(counter: &Counter, requests_per_unit: u64) -> Algorithm {
    let Counter {
        kind,
        window,
        interval: bucket_interval,
        ..
    } = *counter;
    let (unit, unit_multiplier) = (Unit::Second, window.secs_rounded_up() as u32);
    let (mut rate, mut options) = (
        Rate {
            requests_per_unit,
            unit,
            unit_multiplier,
        },
        Options {
            kind,
            bucket_interval,
            ..Options::default()
        },
    );
    if let Some((unit, zone, anchor)) = counter.calendar.map(|index| CALENDARS[index]) {
        rate = Rate {
            unit,
            unit_multiplier: 1,
            ..rate
        };
        let (timezone, anchor) = (Zone::named(zone), anchor.parse().ok());
        options = Options {
            period: Some(PeriodKind::Calendar),
            timezone,
            anchor,
            ..options
        };
    }
    Algorithm::try_new(&rate, &options).expect("options that belong together")
}

/// A key taken apart.
struct Parsed<'k> {
    commit: Commit,
    domain: Part,
    entries: Vec<(Part, Part)>,
    /// What follows the last entry.
    tag: &'k [u8],
}

fn parse(key: &[u8]) -> Option<Parsed<'_>> {
    let inner = key.strip_prefix(PREFIX.as_bytes())?.strip_prefix(b"w1{")?;
    let braces: Vec<_> = (0..inner.len()).filter(|&at| inner[at] == b'}').collect();
    // All keys of a domain share the text before the first brace.
    let (domain, path, tag) = match braces[..] {
        [end] => {
            let path = &inner[..end];
            let domain = path.iter().position(|&byte| byte == b'|').unwrap_or(end);
            (&path[..domain], &path[domain..], &inner[end + 1..])
        }
        [domain, end] => (&inner[..domain], &inner[domain + 1..end], &inner[end + 1..]),
        _ => return None,
    };
    let mut parts = path.split(|&byte| byte == b'|');
    let (domain, rest) = part(domain)?;
    if parts.next() != Some(b"") || !rest.is_empty() {
        return None;
    }
    let entry = |text: &[u8]| {
        // A digest alone is a value behind an empty key: behind a key there is always a mark.
        let is_value = text.first() == Some(&b'#') && text.len() == 1 + 64;
        let (key, rest) = if is_value {
            part(b"").map(|(key, _)| (key, text))?
        } else {
            part(text)?
        };
        let (value, rest) = match rest.split_first()? {
            (b'=', rest) => part(rest).filter(|_| rest.first() != Some(&b'#'))?,
            (b'~', rest) => part(rest).map(|(part, rest)| {
                (
                    Part {
                        is_pattern: true,
                        ..part
                    },
                    rest,
                )
            })?,
            (b'#', _) => part(rest)?,
            _ => return None,
        };
        rest.is_empty().then_some((key, value))
    };
    Some(Parsed {
        commit: match braces.len() {
            1 => Commit::Each,
            _ => Commit::AllOrNone,
        },
        domain,
        entries: parts.map(entry).collect::<Option<_>>()?,
        tag,
    })
}

/// Reads a part without a mark, up to the next one.
fn part(text: &[u8]) -> Option<(Part, &[u8])> {
    if let Some(digest) = text.strip_prefix(b"#") {
        let (digest, rest) = digest.split_at_checked(64)?;
        let digest = String::from_utf8(digest.to_vec())
            .ok()
            .filter(|digest| digest.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        return Some((
            Part {
                is_pattern: false,
                text: Text::Digest(digest),
            },
            rest,
        ));
    }
    let end = text
        .iter()
        .position(|byte| b"=~#".contains(byte))
        .unwrap_or(text.len());
    let (mut escaped, rest) = text.split_at(end);
    let mut plain = Vec::new();
    while let Some((&byte, behind)) = escaped.split_first() {
        escaped = behind;
        if byte != b'%' {
            plain.push(byte);
            continue;
        }
        let (hex, behind) = escaped.split_at_checked(2)?;
        plain.push(u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?);
        escaped = behind;
    }
    Some((
        Part {
            is_pattern: false,
            text: Text::Plain(plain),
        },
        rest,
    ))
}

fn counter(input: &mut Input<'_>) -> Counter {
    let shape = input.byte();
    let domain = text(input);
    // Up to the 64 entries that a request may have.
    let count = if shape >= 0xf0 {
        64
    } else {
        usize::from(shape % 4)
    };
    let entry = |_| {
        let (key, value) = (text(input), text(input));
        match input.byte() % 4 {
            0 => {
                // Both are as in the file, which is UTF-8.
                let utf8 = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
                (utf8(&key).into_bytes(), Value::SharedPattern(utf8(&value)))
            }
            _ => (key, Value::OfRequest(value)),
        }
    };
    let entries = (0..count).map(entry).collect();
    let kind =
        AlgorithmKind::OVER_TIME[usize::from(input.byte()) % AlgorithmKind::OVER_TIME.len()].1;
    let window = Span::from_secs([1, 16, 60, 160, 86_400][usize::from(input.byte() % 5)]);
    let is_short = window <= Span::from_secs(16) && kind == AlgorithmKind::SlidingWindowBuckets;
    let last = usize::from(input.byte());
    let interval = [
        None,
        Some(Span::from_micros(100_000)),
        Some(Span::from_micros(500_000)),
    ][last % 3]
        .filter(|_| is_short);
    let calendar = Some(last / 3 % (2 * CALENDARS.len()))
        .filter(|&index| kind == AlgorithmKind::FixedWindow && index < CALENDARS.len());
    let window = if calendar.is_some() {
        Span::ZERO
    } else {
        window
    };
    let last = input.byte();
    Counter {
        domain,
        entries,
        kind,
        window,
        calendar,
        interval,
        is_trial: last % 2 == 1,
        commit: match last / 2 % 2 {
            1 if count > 0 => Commit::AllOrNone,
            _ => Commit::Each,
        },
    }
}

/// A text of up to 63 bytes, or one of one byte repeated, around the length from which digests are
/// used.
fn text(input: &mut Input<'_>) -> Vec<u8> {
    match input.byte() {
        length @ 0..0xc0 => input.bytes(usize::from(length % 64)).to_vec(),
        length => vec![input.byte(); usize::from(length - 0xc0) + 100],
    }
}
