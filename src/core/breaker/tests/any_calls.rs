//! Invariants for any calls at any times, in order or not, and for any figures.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Call {
    Admits,
    Succeeded(u32, u32),
    Failed(u32, Why),
    Open(Why),
    Probed(Result<(), Why>, u32),
    Advance,
}

fn why() -> impl Strategy<Value = Why> {
    prop_oneof![9 => Just(Why::Outage), 1 => Just(Why::Config)]
}

fn count() -> impl Strategy<Value = u32> {
    prop_oneof![9 => 0_u32..9, 2 => 0_u32..200, 1 => Just(u32::MAX)]
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        4 => Just(Call::Admits),
        4 => (count(), count()).prop_map(|(calls, slow)| Call::Succeeded(calls, slow)),
        6 => (count(), why()).prop_map(|(calls, why)| Call::Failed(calls, why)),
        1 => why().prop_map(Call::Open),
        6 => (prop_oneof![3 => Just(Ok(())), 1 => why().prop_map(Err)], any::<u32>())
            .prop_map(|(found, jitter)| Call::Probed(found, jitter)),
        1 => Just(Call::Advance),
    ]
}

/// Calls and the microseconds before each; 0 is common.
fn calls() -> impl Strategy<Value = Vec<(u64, Call)>> {
    let pause = prop_oneof![
        4 => Just(0_u64),
        8 => 0_u64..20_000,
        4 => 0_u64..300_000,
        1 => 0_u64..20_000_000,
    ];
    prop::collection::vec((pause, call()), 0..120)
}

fn make(breaker: &mut Breaker, now: Micros, call: Call) -> Option<bool> {
    match call {
        Call::Admits => return Some(breaker.admits(now)),
        Call::Succeeded(calls, slow) => breaker.succeeded(now, calls, slow),
        Call::Failed(calls, why) => breaker.failed(now, calls, why),
        Call::Open(why) => breaker.open(now, why),
        Call::Probed(found, jitter) => breaker.probed(now, found, jitter),
        Call::Advance => breaker.advance(now),
    }
    None
}

fn opened(transitions: Transitions) -> u64 {
    transitions.opened_by_outage + transitions.opened_by_config + transitions.opened_by_slowness
}

/// A breaker with a past, and its present.
fn after(calls: &[(u64, Call)]) -> (Breaker, Micros) {
    let mut breaker = breaker();
    let mut now = START;
    for &(pause, call) in calls {
        now += pause;
        make(&mut breaker, Micros(now), call);
    }
    (breaker, Micros(now))
}

proptest! {
    #![proptest_config(crate::testing::property(2_000))]

    #[test]
    fn nothing_panics(
        calls in prop::collection::vec(
            (prop_oneof![any::<u64>(), 0_u64..9, Just(u64::MAX)], call()),
            0..60,
        ),
    ) {
        let mut breaker = Breaker::default();
        for (now, call) in calls {
            make(&mut breaker, Micros(now), call);
            prop_assert_eq!(
                breaker.next_probe().is_some(),
                breaker.state() == CircuitState::Open
            );
        }
    }

    #[test]
    fn open_lets_none_in_and_each_change_is_counted_once(calls in calls()) {
        let (mut breaker, mut now) = (breaker(), START);
        for (pause, call) in calls {
            now += pause;
            // Then each call below makes at most one change.
            breaker.advance(Micros(now));
            let (was, before) = (breaker.state(), breaker.transitions());
            let admitted = make(&mut breaker, Micros(now), call);
            let (is, after) = (breaker.state(), breaker.transitions());
            match was {
                CircuitState::Open => prop_assert_ne!(admitted, Some(true)),
                CircuitState::Closed => prop_assert_ne!(admitted, Some(false)),
                CircuitState::Ramp { .. } => {}
            }
            let changed = |to: fn(CircuitState) -> bool| u64::from(to(is) && !to(was));
            prop_assert_eq!(
                opened(after) - opened(before),
                changed(|state| state == CircuitState::Open),
                "{:?}: {:?} to {:?}",
                call,
                was,
                is
            );
            prop_assert_eq!(
                after.ramped - before.ramped,
                changed(|state| matches!(state, CircuitState::Ramp { .. }))
            );
            prop_assert_eq!(after.closed, before.closed, "only time closes it");
            prop_assert_eq!(
                opened(after),
                after.ramped + u64::from(is == CircuitState::Open),
                "{:?}",
                after
            );
            prop_assert!(after.closed <= after.ramped);
            prop_assert_eq!(breaker.why().is_some(), is != CircuitState::Closed);
        }
    }

    #[test]
    fn it_closes_when_probes_succeed_and_calls_are_answered(calls in calls()) {
        let (mut breaker, mut now) = after(&calls);
        let mut probes = 0;
        while let Some(due) = breaker.next_probe() {
            prop_assert!(due.since(now) <= Span::from_micros(5_625_000), "{:?}", due.since(now));
            now = now.max(due);
            prop_assert!(!breaker.admits(now));
            breaker.probed(now, Ok(()), 500);
            probes += 1;
            prop_assert!(probes <= 2, "{} probes", probes);
        }
        for _ in 0..400 {
            now = now + Span::from_micros(1_000);
            if breaker.admits(now) {
                breaker.succeeded(now, 1, 0);
            }
        }
        // A ramp that was under way may have had failures, but answers never open it.
        prop_assert_eq!(breaker.state(), CircuitState::Closed);
    }

    #[test]
    fn the_ramp_lets_in_its_share_of_any_pattern(
        calls in calls(),
        pauses in prop::collection::vec(
            prop_oneof![3 => Just(0_u64), 3 => 0_u64..500, 1 => 0_u64..150_000],
            1..400,
        ),
    ) {
        let (mut breaker, mut now) = after(&calls);
        breaker.open(now, Why::Outage);
        for _ in 0..2 {
            breaker.probed(now, Ok(()), 500);
        }
        let began = now;
        // (requested, admitted) in each step.
        let mut steps = [(0_u64, 0_u64); 4];
        for (turn, pause) in pauses.into_iter().enumerate() {
            now = now + Span::from_micros(pause);
            let is_admitted = breaker.admits(now);
            prop_assert!(is_admitted || turn > 0, "the first");
            let Ok(step) = usize::try_from(now.since(began).micros() / 100_000) else {
                break;
            };
            let Some((asked, admitted)) = steps.get_mut(step) else {
                prop_assert_eq!(breaker.state(), CircuitState::Closed);
                break;
            };
            *asked += 1;
            *admitted += u64::from(is_admitted);
            let percent = [10, 25, 50, 100][step];
            prop_assert_eq!(breaker.state(), CircuitState::Ramp { percent });
            // After each request: no block of refused ones is longer than the share allows.
            prop_assert!(
                (*admitted * 100).abs_diff(*asked * u64::from(percent)) < 100,
                "step {}: \
                {} of {}",
                step,
                admitted,
                asked
            );
        }
    }

    #[test]
    fn one_report_of_an_outage_never_opens_a_closed_breaker(
        calls in calls(),
        failed in count(),
        good in 1_u32..100,
    ) {
        let (mut breaker, now) = after(&calls);
        for _ in 0..2 {
            breaker.probed(now, Ok(()), 500);
        }
        // Long enough for the past to be forgotten and for a ramp to end.
        let now = now + Span::from_secs(2);
        breaker.succeeded(now, good, 0);
        breaker.failed(now, failed, Why::Outage);
        prop_assert_eq!(breaker.state(), CircuitState::Closed);
    }
}
