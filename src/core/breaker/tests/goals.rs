//! The goals of the figures: how soon an outage is noticed, and how soon requests are admitted
//! again.

use proptest::prelude::*;

use super::*;

/// The kind of an outage.
#[derive(Clone, Copy, Debug)]
enum Away {
    /// Connections are refused at once.
    Refuses,
    /// Nothing answers until it is back.
    Hangs,
    /// Nothing answers, and earlier requests stay without an answer after the return.
    Swallows,
}

/// Callers wait 20 ms.
const PATIENCE_MICROS: u64 = 20_000;
/// 5,000 requests a second.
const GAP_MICROS: u64 = 200;
/// A probe gives up.
const PROBE_MICROS: u64 = 100_000;
/// An answer takes this long.
const ANSWER_MICROS: u64 = 1_000;

/// Microseconds from the node's going away to opening, with that many batches on their way at a
/// time and that many microseconds until one of them fails.
fn noticed_after(lanes: usize, failing_micros: u64) -> u64 {
    let mut breaker = breaker();
    let away = START + 3_000_000;
    for now in (START..away).step_by(GAP_MICROS as usize) {
        assert!(breaker.admits(Micros(now)));
        breaker.succeeded(Micros(now), 1, 0);
    }
    // (when it fails, how many calls) of each lane.
    let mut under_way: Vec<(u64, u32)> = Vec::new();
    let mut queued = 0;
    for now in (away..away + 1_000_000).step_by(GAP_MICROS as usize) {
        for &(_, calls) in under_way.iter().filter(|(fails, _)| *fails <= now) {
            breaker.failed(Micros(now), calls, Why::Outage);
        }
        under_way.retain(|(fails, _)| *fails > now);
        if !breaker.admits(Micros(now)) {
            return now - away;
        }
        queued += 1;
        if under_way.len() < lanes {
            under_way.push((now + failing_micros, queued));
            queued = 0;
        }
    }
    u64::MAX
}

#[test]
fn an_outage_is_noticed_within_100_ms() {
    for lanes in [1, 2, 20] {
        for failing_micros in [100, 1_000, PATIENCE_MICROS] {
            let noticed = noticed_after(lanes, failing_micros);
            assert!(
                noticed <= 60_000,
                "{lanes} lanes, {failing_micros} microseconds: {noticed}"
            );
        }
    }
}

#[test]
fn connections_that_break_together_are_no_outage_when_new_ones_answer() {
    let mut breaker = breaker();
    for lane in 0..20 {
        breaker.failed(Micros(START + lane * 100), 50, Why::Outage);
    }
    for call in 0..1_000 {
        let now = Micros(START + 5_000 + call * GAP_MICROS);
        assert!(breaker.admits(now));
        breaker.succeeded(now, 10, 0);
    }
    assert_eq!(breaker.transitions(), Transitions::default());
}

#[test]
fn some_deadlines_missed_do_not_keep_it_open() {
    let mut breaker = ramp();
    // Two calls of a hundred.
    for millis in 110..600 {
        report(&mut breaker, millis, Good(98, 0));
        report(&mut breaker, millis, Bad(2));
    }
    assert_eq!(breaker.state(), CircuitState::Closed);
}

/// Microseconds from the node's return to the first request that is let in.
fn healed_after(away: Away, outage_micros: u64, jitters: &[u32]) -> u64 {
    let mut breaker = open(Why::Outage);
    let back = START + outage_micros;
    // No outage here needs a thousand probes.
    for &jitter in jitters.iter().cycle().take(1_000) {
        let Some(due) = breaker.next_probe() else {
            break;
        };
        assert!(!breaker.admits(due));
        let (at, found) = match away {
            _ if due.0 >= back => (due.0 + ANSWER_MICROS, Ok(())),
            Away::Hangs if due.0 + PROBE_MICROS > back => (back + ANSWER_MICROS, Ok(())),
            Away::Refuses => (due.0, Err(Why::Outage)),
            Away::Hangs | Away::Swallows => (due.0 + PROBE_MICROS, Err(Why::Outage)),
        };
        breaker.probed(Micros(at), found, jitter);
        if breaker.admits(Micros(at)) {
            return at.saturating_sub(back);
        }
    }
    u64::MAX
}

proptest! {
    #![proptest_config(crate::testing::property(2_000))]

    #[test]
    fn requests_are_let_in_soon_after_the_node_is_back(
        away in prop::sample::select(vec![Away::Refuses, Away::Hangs, Away::Swallows]),
        (is_young, micros) in prop_oneof![
            (Just(true), 0_u64..9_700_000),
            (Just(false), 0_u64..60_000_000)
        ],
        jitters in
            prop::collection::vec(prop_oneof![Just(0_u32), Just(1_000), 0_u32..=1_000], 1..9),
    ) {
        let healed = healed_after(away, micros, &jitters);
        prop_assert!(
            healed <= if is_young { 400_000 } else { 1_000_000 },
            "{} microseconds",
            healed
        );
    }
}
