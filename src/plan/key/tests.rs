//! No two different things share a key, whatever a client sends.

use proptest::prelude::*;

use super::*;
use crate::algorithm::FixedWindow;
use crate::time::Span;

/// What a key must tell apart.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Meaning {
    domain: Vec<u8>,
    /// Key, value, and whether the value is a shared pattern.
    entries: Vec<(Vec<u8>, Vec<u8>, bool)>,
    window_secs: u64,
}

fn key(meaning: &Meaning) -> Vec<u8> {
    let entries: Vec<_> = meaning.entries.iter().map(|(key, value, _)| Entry { key, value }).collect();
    let levels: Vec<_> = meaning
        .entries
        .iter()
        .map(|(key, value, share_threshold)| Level {
            key: String::from_utf8_lossy(key).into(),
            value: Some(String::from_utf8_lossy(value).into()),
            share_threshold: *share_threshold,
            value_to_metric: false,
        })
        .collect();
    let mut out = Vec::new();
    let fixed = FixedWindow { limit: 1, window: Span::from_secs(meaning.window_secs), count_denied: true };
    write(&mut out, "p", &meaning.domain, &entries, &levels, &Algorithm::FixedWindow(fixed));
    out
}

/// Text made of what gives keys their shape, and of what digests are made of.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec!["%", "{", "}", "|", "=", "~", "#", "a", "7", "%7c", "fw", "w1", ":", "_", "é"]);
    prop_oneof![
        9 => prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat().into_bytes()),
        1 => Just(vec![b'a'; 129]),
        1 => Just(vec![b'a'; 130]),
        1 => Just("6836cf13bac400e9105071cd6af47084dfacad4e5e302c94bfed24e013afb73e".into()),
    ]
}

fn meaning() -> impl Strategy<Value = Meaning> {
    let entry = (hostile(), hostile(), prop::bool::weighted(0.2));
    (hostile(), prop::collection::vec(entry, 0..4), prop::sample::select(vec![1_u64, 16, 60, 160]))
        .prop_map(|(domain, entries, window_secs)| Meaning { domain, entries, window_secs })
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
        let moved = moved(&left, by);
        prop_assert_eq!(left == moved, key(&left) == key(&moved), "{:?} {:?}", left, moved);
    }

    #[test]
    fn exactly_one_hash_tag_and_only_the_algorithm_behind_it(meaning in meaning()) {
        let key = key(&meaning);
        prop_assert_eq!(key.iter().filter(|&&byte| byte == b'{').count(), 1);
        prop_assert_eq!(key.iter().filter(|&&byte| byte == b'}').count(), 1);
        let algorithm = format!("}}fw{}", meaning.window_secs);
        prop_assert!(key.ends_with(algorithm.as_bytes()));
    }
}

#[test]
fn keys_read_well_and_stay_short() {
    let meaning = |value: &[u8]| Meaning {
        domain: b"shop".to_vec(),
        entries: vec![(b"user".to_vec(), b"42".to_vec(), false), (b"path".to_vec(), value.to_vec(), false)],
        window_secs: 60,
    };
    assert_eq!(key(&meaning(b"/x?y=1")), b"pw1{shop|user=42|path=/x?y%3d1}fw60");
    assert!(key(&meaning(&vec![0xff; 1 << 20])).len() < 128);
}
