//! The table against a plain sorted map, and how much it moves.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::core::algorithm::{Algorithm, FixedWindow, State};
use crate::core::time::{Period, Span};

const SECOND: FixedWindow = FixedWindow {
    limit: 1,
    window: Period::Even(Span::from_secs(1)),
    count_denied: true,
};

/// A state that recovers after `second` seconds.
fn until(second: u64) -> Packed {
    used(second, UsedShare::NOTHING_LEFT)
}

fn used(second: u64, share: UsedShare) -> Packed {
    let state = State::FixedWindow {
        window: second - 1,
        count: 1,
    };
    Packed::new(
        &state,
        &Algorithm::FixedWindow(SECOND),
        SECOND.end(second - 1),
    )
    .expect("it fits")
    .with_used(share)
}

fn at(second: u64) -> Micros {
    SECOND.end(second - 1)
}

fn slots(table: &Table) -> Vec<Entry> {
    table
        .blocks
        .iter()
        .flat_map(|block| block.iter().copied())
        .collect()
}

/// Every entry is where it can be found, in order and without a gap before it.
fn assert_sound(table: &Table) {
    let (homes, slots) = (homes(table.slots()), slots(table));
    let entries: Vec<(usize, EntryKey)> = slots
        .iter()
        .enumerate()
        .filter(|(_, entry)| !entry.is_gap())
        .map(|(slot, entry)| (slot, entry.key))
        .collect();
    assert_eq!(entries.len(), table.len());
    assert!(entries.iter().is_sorted_by(|left, right| left.1 < right.1));
    for (slot, key) in entries {
        assert!(home(key, homes) <= slot);
        assert!(
            slots[home(key, homes)..slot]
                .iter()
                .all(|entry| !entry.is_gap())
        );
    }
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Set(EntryKey, u64),
    Remove(EntryKey),
    Sweep(u64),
}

/// Few keys, some of them crowded at the ends, where they meet.
fn calls() -> impl Strategy<Value = Vec<Call>> {
    let spread = (1..200_u128).prop_map(|key| key << 120);
    let keys = prop_oneof![
        spread,
        1..20_u128,
        (0..MAX_OVERFLOW_SLOTS as u128).prop_map(|key| u128::MAX - key),
        (1..20_u128).prop_map(|key| key | 7 << 125)
    ];
    let call = prop_oneof![
        6 => (keys.clone(), 1..50_u64).prop_map(|(key, second)| Call::Set(key, second)),
        2 => keys.prop_map(Call::Remove),
        1 => (1..60_u64).prop_map(Call::Sweep),
    ];
    prop::collection::vec(call, 1..300)
}

proptest! {
    #![proptest_config(crate::testing::property(300))]

    #[test]
    fn it_holds_what_a_map_holds(calls in calls()) {
        let (mut table, mut map, pool) = (Table::default(), BTreeMap::new(), BlockPool::default());
        for call in calls {
            match call {
                Call::Set(key, second) => {
                    let packed = until(second);
                    match table.find(key) {
                        Some(slot) => table.set(slot, packed),
                        None => table.insert(Entry { key, packed }, &pool),
                    }
                    map.insert(key, packed);
                }
                Call::Remove(key) => {
                    let removed = table.find(key).map(|slot| table.remove(slot).packed);
                    prop_assert_eq!(removed, map.remove(&key));
                }
                Call::Sweep(second) => {
                    let (mut gone, mut left) = (0, FreedBlocks::new());
                    table.sweep(at(second), &mut left, |_| gone += 1);
                    prop_assert!(left.iter().all(|block| block.iter().all(Entry::is_gap)), "a \
                        table that gets them would hold what was left in them");
                    pool.refund(left);
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

fn random_key(random: &mut fastrand::Rng) -> EntryKey {
    random.u128(1..)
}

/// Tables of many blocks that get each other's.
#[test]
fn tables_that_share_a_pool_hold_what_maps_hold() {
    let (mut random, pool) = (fastrand::Rng::with_seed(7), BlockPool::default());
    let mut tables: [(Table, BTreeMap<_, _>); 3] = Default::default();
    for round in 0..60 {
        let (table, map) = &mut tables[round % 3];
        for _ in 0..random.usize(..900) {
            let (key, packed) = (random_key(&mut random), until(random.u64(1..200)));
            table.insert(Entry { key, packed }, &pool);
            map.insert(key, packed);
        }
        for _ in 0..random.usize(..=map.len() / 4) {
            let from = random.usize(..table.slots());
            let removed = table
                .least_loss(from, Micros(0), |_| true)
                .map(|slot| table.remove(slot))
                .expect("there is one");
            assert_eq!(map.remove(&removed.key), Some(removed.packed));
        }
        let now = at(random.u64(1..220));
        if round % 2 == 0 {
            let mut left = FreedBlocks::new();
            table.sweep(now, &mut left, |_| ());
            map.retain(|_, packed| packed.recovers() > now);
            pool.refund(left);
        }
        if round % 5 == 0 {
            pool.maintain();
        }
        for (table, map) in &tables {
            assert_sound(table);
            let held = slots(table)
                .into_iter()
                .filter(|entry| !entry.is_gap())
                .map(|entry| (entry.key, entry.packed));
            assert!(held.eq(map.iter().map(|(&key, &packed)| (key, packed))));
        }
    }
}

#[test]
fn an_insertion_moves_a_few_entries_or_the_table_once() {
    let (mut table, mut random, pool) = (
        Table::default(),
        fastrand::Rng::with_seed(5),
        BlockPool::default(),
    );
    let mut rebuilt = 0;
    for _ in 0..1_400 {
        let before = slots(&table);
        table.insert(
            Entry {
                key: random_key(&mut random),
                packed: until(9),
            },
            &pool,
        );
        if table.slots() == before.len() {
            let moved = before
                .iter()
                .zip(&slots(&table))
                .filter(|(before, after)| before != after)
                .count();
            assert!(moved <= 256, "{moved} of {}", table.len());
        } else {
            rebuilt += 1;
        }
    }
    // By a quarter each time: 1, 2, 3, 4, 5, 6, 7, 8, 10 blocks and so on.
    assert!((9..=15).contains(&rebuilt), "{rebuilt} times");
}

#[test]
fn it_is_never_much_larger_than_what_it_holds() {
    let (mut table, mut random, pool) = (
        Table::default(),
        fastrand::Rng::with_seed(6),
        BlockPool::default(),
    );
    for len in 1..=2_000_usize {
        table.insert(
            Entry {
                key: random_key(&mut random),
                packed: until(if len % 10 == 0 { 99 } else { 9 }),
            },
            &pool,
        );
        assert!(
            table.slots() <= SLOTS + len * 8 / 5,
            "{} slots for {len}",
            table.slots()
        );
    }
    let (mut left, most) = (FreedBlocks::new(), table.slots());
    table.sweep(at(9), &mut left, |_| ());
    assert_eq!(table.len(), 200);
    assert!(table.slots() < 300 + SLOTS, "{} slots", table.slots());
    table.sweep(at(99), &mut left, |_| ());
    assert_eq!(
        (table.slots(), left.len() * SLOTS),
        (0, most),
        "all that it had is left"
    );
}

#[test]
fn a_sample_goes_round() {
    let (mut table, pool) = (Table::default(), BlockPool::default());
    assert_eq!(table.least_loss(0, Micros(0), |_| true), None);
    for key in 1..=3_u128 {
        table.insert(
            Entry {
                key: key << 125,
                packed: until(10 - key as u64),
            },
            &pool,
        );
    }
    for from in 0..=table.slots() {
        let least = table.least_loss(from, Micros(0), |_| true);
        assert_eq!(least, table.find(3 << 125));
    }
}

/// Of keys that recover at the same time, those that were refused go last; what has recovered goes
/// first. More keys than usual are looked at while all have nothing left.
#[test]
fn of_keys_that_recover_together_the_refused_go_last() {
    let (mut table, pool) = (Table::default(), BlockPool::default());
    let mut insert = |key: u128, packed| {
        let key = key << 120;
        table.insert(Entry { key, packed }, &pool);
    };
    for key in 1..=20 {
        insert(key, used(9, UsedShare::REFUSED));
    }
    insert(21, used(9, UsedShare::NOTHING_LEFT));
    insert(22, used(8, UsedShare::REFUSED));
    let least = |table: &Table, now| table.least_loss(0, now, |_| true);
    assert_eq!(least(&table, at(1)), table.find(21 << 120));
    assert_eq!(
        least(&table, at(8)),
        table.find(22 << 120),
        "it has recovered"
    );
}

fn maintain(pool: &BlockPool) {
    (0..100).for_each(|_| pool.maintain());
}

#[test]
fn a_part_of_the_used_blocks_is_kept_ready_and_no_more() {
    let (pool, mut blocks) = (BlockPool::default(), Blocks::new());
    maintain(&pool);
    assert_eq!(pool.len(), 0, "an empty store keeps nothing");
    pool.take(1_600, &mut blocks);
    maintain(&pool);
    assert_eq!((blocks.len(), pool.len()), (1_600, 100));
    pool.refund(blocks.drain(..).collect());
    assert_eq!(pool.len(), 1_700);
    maintain(&pool);
    assert_eq!(pool.len(), 0);
}

#[test]
fn the_pool_is_bounded() {
    let pool = BlockPool::default();
    pool.used.store(1_000_000, Ordering::Relaxed);
    maintain(&pool);
    assert_eq!(pool.len(), MAX_READY);
}

#[test]
fn blocks_that_one_table_left_the_next_one_gets() {
    let (pool, mut blocks) = (BlockPool::default(), Blocks::new());
    pool.take(3, &mut blocks);
    let first = &raw const *blocks[0];
    pool.refund(blocks.drain(..1).collect());
    pool.take(2, &mut blocks);
    assert_eq!((blocks.len(), pool.len()), (4, 0));
    assert!(blocks.iter().any(|block| &raw const **block == first));
}

#[test]
fn who_finds_the_pool_busy_makes_a_block() {
    let (pool, mut blocks) = (BlockPool::default(), Blocks::new());
    let busy = pool.ready.lock().expect("no thread panicked with the lock");
    pool.take(2, &mut blocks);
    assert_eq!(blocks.len(), 2);
    drop(busy);
}
