//! Every transition as a table, the goals that the parameters were chosen for, and properties that
//! hold for any calls at any times.

mod any_calls;
mod goals;

use super::*;

/// Any origin.
const START: u64 = 50_000_000;

const MILLIS: u64 = 1_000;

fn at(millis: u64) -> Micros {
    Micros(START + millis * MILLIS)
}

fn breaker() -> Breaker {
    Breaker::default()
}

/// Open since 0 ms; the first probe is due at 100 ms.
fn open(why: Why) -> Breaker {
    let mut breaker = breaker();
    breaker.open(at(0), why);
    breaker
}

/// In the ramp since 110 ms.
fn ramp() -> Breaker {
    let mut breaker = open(Why::Outage);
    breaker.probed(at(100), Ok(()), 500);
    breaker.probed(at(110), Ok(()), 500);
    breaker
}

fn next_probe(breaker: &Breaker) -> Option<u64> {
    breaker
        .next_probe()
        .map(|due| due.since(at(0)).micros() / MILLIS)
}

/// One report to a breaker.
#[derive(Clone, Copy)]
enum Report {
    /// Calls that were answered, and how many of them slowly.
    Good(u32, u32),
    Bad(u32),
    Config,
}

use Report::{Bad, Config, Good};

/// The millisecond of a report, and the report.
type TimedReport = (u64, Report);

/// The millisecond of a probe's result, the result, and the jitter.
type Probe = (u64, Result<(), Why>, u32);

fn report(breaker: &mut Breaker, millis: u64, outcome: Report) {
    match outcome {
        Good(calls, slow) => breaker.succeeded(at(millis), calls, slow),
        Bad(calls) => breaker.failed(at(millis), calls, Why::Outage),
        Config => breaker.failed(at(millis), 1, Why::Config),
    }
}

/// The same report every so many milliseconds.
fn every(millis: u64, outcome: Report, times: u64) -> Vec<TimedReport> {
    (0..times).map(|turn| (turn * millis, outcome)).collect()
}

/// A name, reports, and what has opened the breaker after them.
type Case = (&'static str, Vec<TimedReport>, Option<&'static str>);

fn cases_of_failures() -> Vec<Case> {
    let outage = Some("outage");
    vec![
        ("nothing", vec![], None),
        ("five in a row, one by one", every(3, Bad(1), 5), outage),
        ("four in a row", every(3, Bad(1), 4), None),
        (
            "five in a row, but all within 9 ms",
            vec![(0, Bad(1)), (0, Bad(3)), (9, Bad(1))],
            None,
        ),
        ("in two batches", vec![(0, Bad(4)), (20, Bad(1))], outage),
        ("none", every(20, Bad(0), 9), None),
        (
            "with an answer between",
            vec![
                (0, Bad(2)),
                (20, Bad(2)),
                (21, Good(1, 0)),
                (22, Bad(2)),
                (42, Bad(2)),
            ],
            None,
        ),
        (
            "with nothing between",
            vec![(0, Bad(2)), (20, Bad(2)), (21, Good(0, 0)), (22, Bad(2))],
            outage,
        ),
        ("a second apart", every(1_000, Bad(1), 5), outage),
        ("more than a second apart", every(1_001, Bad(1), 500), None),
        ("ten seconds apart", every(10_000, Bad(4), 500), None),
        (
            "a configuration error",
            vec![(0, Good(5_000, 0)), (1, Config)],
            Some("config"),
        ),
        (
            "half of twenty",
            vec![(0, Bad(5)), (50, Good(10, 0)), (100, Bad(5))],
            outage,
        ),
        (
            "nearly half of twenty",
            vec![(0, Bad(5)), (50, Good(11, 0)), (100, Bad(4))],
            None,
        ),
        (
            "half of nineteen",
            vec![(0, Bad(5)), (50, Good(9, 0)), (100, Bad(5))],
            None,
        ),
        (
            "half of twenty in one bucket",
            vec![(0, Bad(5)), (50, Good(10, 0)), (99, Bad(5))],
            None,
        ),
        (
            "half of twenty, but the older ones are forgotten",
            vec![(0, Bad(5)), (50, Good(10, 0)), (1_000, Bad(5))],
            None,
        ),
    ]
}

fn cases_of_slowness() -> Vec<Case> {
    vec![
        (
            "slow for a second",
            every(100, Good(10, 8), 10),
            Some("slowness"),
        ),
        ("not quite all slow", every(100, Good(10, 7), 100), None),
        (
            "slow for half a second after a quiet time",
            every(100, Good(100, 100), 5),
            None,
        ),
        ("slow, but few", every(100, Good(1, 1), 100), None),
        (
            "slow and answered count as answered",
            vec![(0, Bad(4)), (10, Good(1, 1)), (20, Bad(4))],
            None,
        ),
    ]
}

#[test]
fn what_opens_a_closed_breaker() {
    for (name, reports, opened_by) in cases_of_failures().into_iter().chain(cases_of_slowness()) {
        let mut breaker = breaker();
        for &(millis, outcome) in &reports {
            report(&mut breaker, millis, outcome);
        }
        let (was, why) = (breaker.transitions(), breaker.why());
        let seen = match (
            was.opened_by_outage,
            was.opened_by_config,
            was.opened_by_slowness,
        ) {
            (0, 0, 0) => None,
            (1, 0, 0) => Some("outage"),
            (0, 1, 0) => Some("config"),
            (0, 0, 1) => Some("slowness"),
            _ => Some("several"),
        };
        assert_eq!(seen, opened_by, "{name}");
        assert_eq!(
            breaker.state(),
            if seen.is_some() {
                CircuitState::Open
            } else {
                CircuitState::Closed
            },
            "{name}"
        );
        let expected = seen.map(|by| {
            if by == "config" {
                Why::Config
            } else {
                Why::Outage
            }
        });
        assert_eq!(why, expected, "{name}");
        let later = reports.last().map_or(0, |&(millis, _)| millis);
        assert_eq!(breaker.admits(at(later)), seen.is_none(), "{name}");
    }
}

#[test]
fn late_reports_change_nothing_while_open() {
    let mut breaker = open(Why::Outage);
    let before = breaker.transitions();
    for millis in [1, 20, 20, 99] {
        for outcome in [Good(500, 500), Bad(500), Config] {
            report(&mut breaker, millis, outcome);
        }
        breaker.open(at(millis), Why::Config);
        assert!(!breaker.admits(at(millis)));
    }
    assert_eq!(
        (breaker.state(), breaker.why(), next_probe(&breaker)),
        (CircuitState::Open, Some(Why::Outage), Some(100))
    );
    assert_eq!(breaker.transitions(), before);
}

#[test]
fn probes_back_off_and_jitter_spreads_them() {
    let outage = Err(Why::Outage);
    // And the waits that follow.
    let cases: &[(&str, &[Probe], &[u64])] = &[
        (
            "as far as 200 ms at first",
            &[(100, outage, 500), (260, outage, 500), (460, outage, 500)],
            &[160, 200, 200],
        ),
        (
            "a quarter less or more",
            &[(100, outage, 0), (220, outage, 1_000)],
            &[120, 250],
        ),
        ("and no more than that", &[(100, outage, u32::MAX)], &[200]),
        (
            "as far as 700 ms after ten seconds",
            &[
                (10_000, outage, 500),
                (10_200, outage, 500),
                (10_500, outage, 500),
            ],
            &[160, 256, 409],
        ),
        (
            "and no farther",
            &[
                (99_000, outage, 500),
                (99_200, outage, 500),
                (99_500, outage, 500),
                (99_900, outage, 500),
                (99_999, outage, 500),
            ],
            &[160, 256, 409, 655, 700],
        ),
        (
            "slowly after a configuration error",
            &[
                (100, Err(Why::Config), 500),
                (5_100, Err(Why::Config), 1_000),
            ],
            &[4_500, 5_625],
        ),
        (
            "fast again when it is not that",
            &[(100, Err(Why::Config), 500), (4_600, outage, 500)],
            &[4_500, 160],
        ),
        (
            "soon after a good one",
            &[(100, Ok(()), 500), (110, outage, 500), (270, Ok(()), 500)],
            &[10, 160, 10],
        ),
    ];
    for (name, probes, waits) in cases {
        let mut breaker = open(Why::Outage);
        for (&(millis, found, jitter), wait) in probes.iter().zip(*waits) {
            breaker.probed(at(millis), found, jitter);
            assert_eq!(next_probe(&breaker), Some(millis + wait), "{name}");
            assert_eq!(
                (breaker.state(), breaker.why()),
                (CircuitState::Open, Some(found.err().unwrap_or(Why::Outage))),
                "{name}"
            );
        }
    }
}

#[test]
fn a_configuration_error_is_probed_slowly_from_the_start() {
    let mut breaker = open(Why::Config);
    assert_eq!(next_probe(&breaker), Some(4_500));
    breaker.probed(at(4_500), Ok(()), 0);
    assert_eq!(
        next_probe(&breaker),
        Some(4_510),
        "one good probe and it is fast"
    );
    breaker.probed(at(4_510), Ok(()), 0);
    assert_eq!(
        (breaker.state(), breaker.why(), next_probe(&breaker)),
        (CircuitState::Ramp { percent: 10 }, Some(Why::Config), None)
    );
}

#[test]
fn what_fails_a_ramp() {
    let (back_off, first) = (Some(200), Some(100));
    let cases: &[(&str, &[TimedReport], Option<u64>)] = &[
        (
            "three failures",
            &[(120, Bad(1)), (120, Bad(1)), (120, Bad(1))],
            back_off,
        ),
        ("in one batch", &[(120, Bad(3))], back_off),
        ("two failures", &[(120, Bad(2)), (509, Good(1, 0))], None),
        (
            "a tenth of the calls",
            &[(120, Good(27, 0)), (130, Bad(3))],
            back_off,
        ),
        (
            "nearly a tenth of the calls",
            &[(120, Good(28, 0)), (130, Bad(3))],
            None,
        ),
        (
            "five in a row",
            &[(120, Good(900, 0)), (130, Bad(3)), (140, Bad(2))],
            back_off,
        ),
        (
            "a configuration error",
            &[(120, Good(900, 0)), (130, Config)],
            Some(4_500),
        ),
        ("three failures, when it is over", &[(510, Bad(3))], None),
        (
            "many failures, when it is over",
            &[(510, Bad(3)), (520, Bad(3))],
            first,
        ),
    ];
    for (name, reports, wait) in cases {
        let mut breaker = ramp();
        for &(millis, outcome) in *reports {
            report(&mut breaker, millis, outcome);
        }
        let reported = reports.last().map_or(0, |&(millis, _)| millis);
        assert_eq!(
            next_probe(&breaker),
            wait.map(|wait| reported + wait),
            "{name}"
        );
    }
}

#[test]
fn ramps_that_fail_are_one_outage() {
    let mut breaker = open(Why::Outage);
    for (millis, wait) in [
        (120, 200),
        (500, 200),
        (9_999, 200),
        (10_000, 400),
        (12_000, 700),
        (15_000, 700),
    ] {
        breaker.probed(at(millis), Ok(()), 500);
        breaker.probed(at(millis), Ok(()), 500);
        breaker.failed(at(millis), 3, Why::Outage);
        assert_eq!(next_probe(&breaker), Some(millis + wait));
    }
    breaker.probed(at(20_000), Ok(()), 500);
    breaker.probed(at(20_000), Ok(()), 500);
    breaker.open(at(21_000), Why::Outage);
    assert_eq!(
        next_probe(&breaker),
        Some(21_100),
        "it was closed: another outage"
    );
    let seen = breaker.transitions();
    assert_eq!((seen.opened_by_outage, seen.ramped, seen.closed), (8, 7, 1));
}
