//! The table against a plain sorted map, and how much it moves.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::algorithm::{Algorithm, FixedWindow, State};
use crate::time::Span;

const SECOND: FixedWindow = FixedWindow { limit: 1, window: Span::from_secs(1), count_denied: true };

/// What recovers after so many seconds.
fn until(second: u64) -> Packed {
    let state = State::FixedWindow { window: second - 1, count: 1 };
    Packed::new(&state, &Algorithm::FixedWindow(SECOND), SECOND.end(second - 1)).expect("it fits")
}

fn at(second: u64) -> Micros {
    SECOND.end(second - 1)
}

/// Every entry is where it can be found, in order and without a gap before it.
fn assert_sound(table: &Table) {
    let homes = homes(table.slots.len());
    let entries: Vec<(usize, Fingerprint)> =
        table.slots.iter().enumerate().filter(|(_, entry)| !entry.is_gap()).map(|(slot, entry)| (slot, entry.key)).collect();
    assert_eq!(entries.len(), table.len());
    assert!(entries.iter().is_sorted_by(|left, right| left.1 < right.1));
    for (slot, key) in entries {
        assert!(home(key, homes) <= slot);
        assert!(table.slots[home(key, homes)..slot].iter().all(|entry| !entry.is_gap()));
    }
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Set(Fingerprint, u64),
    Remove(Fingerprint),
    Sweep(u64),
}

/// Few keys, some of them crowded at the ends, so that they meet.
fn calls() -> impl Strategy<Value = Vec<Call>> {
    let spread = (1..200_u128).prop_map(|key| key << 120);
    let keys = prop_oneof![spread, 1..20_u128, (0..20_u128).prop_map(|key| u128::MAX - key), (1..20_u128).prop_map(|key| key | 7 << 125)];
    let call = prop_oneof![
        6 => (keys.clone(), 1..50_u64).prop_map(|(key, second)| Call::Set(key, second)),
        2 => keys.prop_map(Call::Remove),
        1 => (1..60_u64).prop_map(Call::Sweep),
    ];
    prop::collection::vec(call, 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn it_holds_what_a_map_holds(calls in calls()) {
        let (mut table, mut map) = (Table::default(), BTreeMap::new());
        for call in calls {
            match call {
                Call::Set(key, second) => {
                    let packed = until(second);
                    match table.find(key) {
                        Some(slot) => table.set(slot, packed),
                        None => table.insert(Entry { key, packed }),
                    }
                    map.insert(key, packed);
                }
                Call::Remove(key) => {
                    let removed = table.find(key).map(|slot| table.remove(slot).packed);
                    prop_assert_eq!(removed, map.remove(&key));
                }
                Call::Sweep(second) => {
                    let mut gone = 0;
                    table.sweep(at(second), |_| gone += 1);
                    let before = map.len();
                    map.retain(|_, packed| packed.recovers() > at(second));
                    prop_assert_eq!(gone, before - map.len());
                }
            }
            assert_sound(&table);
            for (&key, &packed) in &map {
                prop_assert_eq!(table.find(key).map(|slot| table.get(slot)), Some(packed));
            }
            prop_assert_eq!(table.len(), map.len());
        }
    }
}

fn random_key(random: &mut fastrand::Rng) -> Fingerprint {
    random.u128(1..)
}

#[test]
fn an_insertion_moves_a_few_entries_or_the_table_once() {
    let (mut table, mut random) = (Table::default(), fastrand::Rng::with_seed(5));
    let mut rebuilt = 0;
    for _ in 0..700 {
        let before = table.slots.clone();
        table.insert(Entry { key: random_key(&mut random), packed: until(9) });
        if table.slots.len() == before.len() {
            let moved = before.iter().zip(&table.slots).filter(|(before, after)| before != after).count();
            assert!(moved <= 256, "{moved} of {}", table.len());
        } else {
            rebuilt += 1;
        }
    }
    // By a quarter each time: 4, 8, 12, 16, 20, 25 and so on.
    assert!((15..=28).contains(&rebuilt), "{rebuilt} times");
}

#[test]
fn it_is_never_much_larger_than_what_it_holds() {
    let mut random = fastrand::Rng::with_seed(6);
    let mut table = Table::default();
    for len in 1..=2_000_usize {
        table.insert(Entry { key: random_key(&mut random), packed: until(if len % 10 == 0 { 99 } else { 9 }) });
        assert!(table.slots() <= SMALLEST + len * 2, "{} slots for {len}", table.slots());
        assert!(len < 200 || table.slots() * 10 <= len * 16, "{} slots for {len}", table.slots());
    }
    table.sweep(at(9), |_| ());
    assert_eq!(table.len(), 200);
    assert!(table.slots() <= 300, "{} slots", table.slots());
    table.sweep(at(99), |_| ());
    assert_eq!(table.slots(), 0);
}

#[test]
fn a_sample_goes_round() {
    let mut table = Table::default();
    assert_eq!(table.soonest_of(5, 0), None);
    for key in 1..=3_u128 {
        table.insert(Entry { key: key << 125, packed: until(10 - key as u64) });
    }
    for from in 0..=table.slots() {
        assert_eq!(table.soonest_of(3, from), table.find(3 << 125));
    }
}
