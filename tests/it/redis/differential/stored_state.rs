//! The states stored in Redis, decoded so that they can be compared.

use bb8_redis::redis::{Cmd, Value, cmd};
use weir::core::algorithm::{Algorithm, State};
use weir::core::time::{Micros, Period};
use weir::limits::plan::{Check, Checks};

/// A state in the form that both sides share.
#[derive(Debug, PartialEq, Eq)]
pub enum Stored {
    Text(String),
    /// The tick in the fraction of the expiry, and the numbers after it.
    Packed(Vec<i64>),
    /// The newest tick or bucket, and the hits of each tick or bucket that has any.
    Log(Option<u64>, Vec<(u64, u64)>),
    /// Ids, and since when each holds how many places, or with none is marked.
    Holders(Vec<(Vec<u8>, u64, u64)>),
    Unreadable(Vec<u8>),
}

/// The part of a key that differs between algorithms and windows.
pub fn tag(limit: &Algorithm) -> String {
    let name = match limit {
        Algorithm::FixedWindow(_) => "fw".to_owned(),
        Algorithm::SlidingWindowLog(_) => "sl".to_owned(),
        Algorithm::SlidingWindowCounter(_) => "sc".to_owned(),
        Algorithm::SlidingWindowBuckets(buckets) => {
            format!("sb{}x{}", buckets.interval, buckets.buckets)
        }
        Algorithm::TokenBucket(_) => "tb".to_owned(),
        Algorithm::LeakyBucket(_) => "lb".to_owned(),
        Algorithm::Concurrency(_) => return HOLDERS.to_owned(),
    };
    match limit.window() {
        Period::Even(length) => format!("{name}.{}", length.micros()),
        calendar => format!("{name}.{calendar:?}"),
    }
}

/// The tag of keys that are sorted sets.
const HOLDERS: &str = "cc";

/// The command that reads a key.
pub fn read(key: &[u8]) -> Cmd {
    match key.ends_with(HOLDERS.as_bytes()) {
        true => cmd("ZRANGE")
            .arg(key)
            .arg(0)
            .arg(-1)
            .arg("WITHSCORES")
            .clone(),
        false => cmd("GET").arg(key).clone(),
    }
}

/// The stored value in a reply to [`read`]; `None` if there is none.
pub fn of_reply(reply: &Value, like: Option<&Stored>) -> Option<Stored> {
    match reply {
        Value::BulkString(text) => Some(of_text(text, like)),
        Value::Nil => None,
        Value::Array(members) if members.is_empty() => None,
        Value::Array(members) => Some(of_members(members)),
        other => panic!("{other:?}"),
    }
}

/// As `lua/concurrency.lua` describes it.
fn of_members(members: &[Value]) -> Stored {
    let (mut holders, mut weights, mut more) = (Vec::new(), Vec::new(), 0);
    for pair in members.as_chunks::<2>().0 {
        let [Value::BulkString(member), Value::BulkString(score)] = pair else {
            panic!("{pair:?}")
        };
        let score: i64 = String::from_utf8_lossy(score)
            .parse::<f64>()
            .expect("a score") as i64;
        match (&member[..], member.len()) {
            (b"x", 1) => more = -score,
            ([b'w', id @ ..], 17) => weights.push((id.to_vec(), (-score).cast_unsigned())),
            (id, 16) if score < 0 => {
                holders.push((id.to_vec(), (-score - (1 << 20)).cast_unsigned(), 0));
            }
            (id, 16) => holders.push((id.to_vec(), score.cast_unsigned(), 1)),
            _ => panic!("{pair:?}"),
        }
    }
    for (id, places) in weights {
        let holder = holders
            .iter_mut()
            .find(|(holder, ..)| *holder == id)
            .expect("a weight has a holder");
        holder.2 = places;
    }
    assert_eq!(
        more,
        holders
            .iter()
            .map(|(.., places)| places.saturating_sub(1).cast_signed())
            .sum::<i64>(),
        "the sum of all places"
    );
    holders.sort();
    Stored::Holders(holders)
}

/// The key's name in Redis.
pub fn key(checks: &Checks, check: &Check, now: Micros) -> Vec<u8> {
    let mut key = checks.key(check).to_vec();
    if let Algorithm::FixedWindow(fixed) = &check.algorithm {
        key.extend(format!(":{}", fixed.number(now)).into_bytes());
    }
    key
}

/// `None` for a state that no key stands for.
pub fn of_state(state: &State) -> Option<Stored> {
    Some(match state {
        State::Holds(holds) => return of_state(holds.counter.as_ref()?),
        State::Holders(all) => {
            let holders: Vec<_> = all
                .iter()
                .map(|(id, holder)| (id.0.to_vec(), holder.stamp, holder.places))
                .collect();
            return (!holders.is_empty()).then_some(Stored::Holders(holders));
        }
        State::FixedWindow { count, .. } => Stored::Text(count.to_string()),
        State::Tokens { last, level, units } => {
            Stored::Packed(vec![units.code().into(), last.cast_signed(), *level])
        }
        State::Queue {
            last,
            backlog,
            units,
        } => Stored::Packed(vec![
            units.code().into(),
            last.cast_signed(),
            backlog.cast_signed(),
        ]),
        State::Counter {
            window,
            current,
            previous,
        } => Stored::Packed(
            [&0, window, current, previous]
                .map(|number| number.cast_signed())
                .to_vec(),
        ),
        State::Log(log) => {
            let mut before = log.before;
            let own = |entry: &weir::core::algorithm::sliding_window_log::LoggedHits| {
                let own = entry.total - before;
                before = entry.total;
                (entry.tick, own)
            };
            Stored::Log(
                log.entries.back().map(|entry| entry.tick),
                log.entries.iter().map(own).collect(),
            )
        }
        State::Buckets(ring) => {
            let oldest = (ring.last + 1).saturating_sub(ring.counts.len() as u64);
            let counts = (oldest..=ring.last)
                .map(|number| (number, ring.count(number)))
                .filter(|&(_, count)| count > 0)
                .collect();
            Stored::Log(Some(ring.last), counts)
        }
    })
}

/// Decodes a stored value as the variant of `like`.
fn of_text(text: &[u8], like: Option<&Stored>) -> Stored {
    match (std::str::from_utf8(text), like) {
        (_, Some(Stored::Log(..))) => {
            of_log(text).unwrap_or_else(|| Stored::Unreadable(text.to_vec()))
        }
        (_, Some(Stored::Packed(_))) if text.len().is_multiple_of(8) => {
            let number = |eight: &[u8; 8]| f64::from_le_bytes(*eight);
            let mut numbers: Vec<f64> = text.as_chunks().0.iter().map(number).collect();
            numbers[0] = numbers[0].fract() * 16.0;
            Stored::Packed(numbers.into_iter().map(|number| number as i64).collect())
        }
        (Ok(text), _) => Stored::Text(text.to_owned()),
        _ => Stored::Unreadable(text.to_vec()),
    }
}

/// As `lua/log.lua` describes it.
fn of_log(text: &[u8]) -> Option<Stored> {
    let number = |start: usize, size: usize| {
        Some(
            text.get(start..start + size)?
                .iter()
                .fold(0, |number, &byte| number << 8 | u64::from(byte)),
        )
    };
    let (first, last, capacity) = (number(1, 4)?, number(5, 4)?, number(9, 4)?);
    let (newest, tip, base, total) = (
        number(13, 7)?,
        number(20, 7)?,
        number(27, 6)?,
        number(33, 6)?,
    );
    let cells = text.len().checked_sub(39)? as u64;
    // Totals are modulo 2^48 in cells of buckets, and modulo 2^24 in cells of a log.
    let size = if capacity > 0 { cells / capacity } else { 0 };
    let modulus = if size == 13 { 1 << 48 } else { 1 << 24 };
    if text.first() != Some(&1)
        || size * capacity != cells
        || !matches!(size, 10 | 13)
        || first > last
        || last > capacity
    {
        return None;
    }
    let mut entries = Vec::new();
    let mut before = base;
    for index in first..last {
        let start = 39 + (index * size) as usize;
        let (tick, sum) = (number(start, 7)?, number(start + 7, size as usize - 7)?);
        entries.push((tick, (sum + modulus - before) % modulus));
        before = sum;
    }
    let own = (total + modulus - before) % modulus;
    if own > 0 {
        entries.push((tip, own));
    }
    let newest = if size == 13 {
        Some(newest)
    } else {
        entries.last().map(|&(tick, _)| tick)
    };
    Some(Stored::Log(newest, entries))
}
