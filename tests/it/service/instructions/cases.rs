//! The cases whose instructions are counted: the steps of a request in memory, a step of each
//! algorithm, and matching in few and in many limits.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;

use futures_util::FutureExt;
use weir::core::algorithm::{Algorithm, AlgorithmKind, Arrival, Options, State};
use weir::core::request::Entry;
use weir::core::time::{Micros, PeriodKind, Rate, Span, Unit, Zone};
use weir::limits::plan::{self, Plan};
use weir::limits::rules::Rules;
use weir::observe::traces::TraceSpan;
use weir::service::rls::decode::decode;

use crate::support::workload::{message, rules, service, typical_rules};

/// The beginning of a case's line; the number of calls, a space and the name follow.
pub const COUNTED: &str = "counted: ";

/// Counted calls of each case, after a warm-up of as many.
const CALLS: usize = 1_000;

/// Customers in turn; many, so that the count does not depend on one position in a hash map.
const CUSTOMERS: usize = 500;

/// Equal sets of rules that are used in turn, because the cost of a look-up depends a little on the
/// random key of its hash map.
const SETS: usize = 2;

const START: Micros = Micros(1_800_000_000_000_000);

/// The function that callgrind counts; it is selected by its name.
#[inline(never)]
pub fn counted_by_callgrind(call: &mut dyn FnMut()) {
    for _ in 0..CALLS {
        call();
    }
}

/// The call at which callgrind stops counting.
#[inline(never)]
pub fn no_more_counted_by_callgrind() {
    black_box(());
}

fn count(name: &str, mut call: impl FnMut()) {
    (0..CALLS).for_each(|_| call());
    counted_by_callgrind(black_box(&mut call));
    no_more_counted_by_callgrind();
    println!("{COUNTED}{CALLS} {name}");
}

#[test]
#[ignore = "run under callgrind by instructions_are_no_more_than_recorded"]
fn counted() {
    // Ends the line that the test runner has begun.
    println!();
    for descriptors in [1, 3, 10] {
        request(descriptors);
    }
    for (name, kind) in AlgorithmKind::OVER_TIME {
        step(name, kind);
    }
    calendar();
    for count in [10, 300] {
        matching(count);
    }
}

fn request(descriptors: usize) {
    let messages = || -> VecDeque<Vec<u8>> {
        (0..CUSTOMERS)
            .map(|customer| message(descriptors, customer))
            .collect()
    };
    let of = |what: &str| format!("{what}, {descriptors} descriptors");
    let mut all = messages();
    count(&of("decode"), || {
        all.rotate_left(1);
        drop(black_box(decode(black_box(&all[0])).expect("a request")));
    });
    let (mut all, rules, options) = (
        messages(),
        Arc::new(typical_rules()),
        plan::Options::default(),
    );
    count(&of("decode and plan"), || {
        all.rotate_left(1);
        drop(black_box(Plan::new(
            &rules,
            &decode(&all[0]).expect("a request"),
            &options,
        )));
    });
    let (mut all, service) = (messages(), service());
    count(&of("from request to answer in memory"), || {
        all.rotate_left(1);
        let answer = service
            .answer(&all[0], None, &TraceSpan::default())
            .now_or_never()
            .expect("memory does not wait")
            .expect("an answer");
        drop(black_box(answer));
    });
}

fn step(name: &str, kind: AlgorithmKind) {
    let requests_per_unit = if kind == AlgorithmKind::SlidingWindowLog {
        100
    } else {
        4_000_000
    };
    let rate = Rate {
        requests_per_unit,
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    let algorithm = Algorithm::try_new(
        &rate,
        &Options {
            kind,
            ..Options::default()
        },
    )
    .expect("options that belong together");
    let (mut state, mut now): (Option<State>, _) = (None, START);
    count(&format!("step of {name}"), || {
        now = now + Span::from_micros(100_000);
        state = black_box(algorithm.step(
            state.take(),
            Arrival {
                now,
                max_wait: Span::ZERO,
            },
            1,
        ))
        .state;
    });
}

/// A day of a time zone: a window that the thread has found before, and one that it has to find.
fn calendar() {
    let rate = Rate {
        requests_per_unit: 4_000_000,
        unit: Unit::Day,
        unit_multiplier: 1,
    };
    let made = |anchor: u64| {
        let anchor = format!("2026-01-01T{:02}:{:02}", anchor / 60, anchor % 60)
            .parse()
            .ok();
        let options = Options {
            period: Some(PeriodKind::Calendar),
            timezone: Zone::named("America/New_York"),
            anchor,
            ..Options::default()
        };
        Algorithm::try_new(&rate, &options).expect("options that belong together")
    };
    let (algorithm, mut state, mut now): (_, Option<State>, _) = (made(0), None, START);
    count("step of fixed_window by the calendar", || {
        now = now + Span::from_micros(100_000);
        state = black_box(algorithm.step(
            state.take(),
            Arrival {
                now,
                max_wait: Span::ZERO,
            },
            1,
        ))
        .state;
    });
    let mut days: VecDeque<Algorithm> = (0..1_000).map(made).collect();
    count("window of the calendar, found anew", || {
        days.rotate_left(1);
        black_box(days[0].window().window_at(black_box(START)));
    });
}

fn matching(limits: usize) {
    let sets_of_rules = |value: &dyn Fn(usize) -> String| {
        let limit = |index| {
            format!(
                "- {{key: path, value: '{}', rate_limit: {{unit: hour, requests_per_unit: 9}}}}\n",
                value(index)
            )
        };
        let text = (0..limits).map(limit).collect::<String>();
        (0..SETS).map(|_| rules(&text)).collect::<VecDeque<Rules>>()
    };
    let find = |name: &str, mut sets: VecDeque<Rules>, value: &dyn Fn(usize) -> String| {
        let mut values: VecDeque<String> =
            (0..CUSTOMERS).map(|index| value(index % limits)).collect();
        count(&format!("match one of {limits} {name}"), || {
            values.rotate_left(1);
            sets.rotate_left(1);
            black_box(sets[0].find(
                b"shop",
                &[Entry {
                    key: b"path",
                    value: black_box(values[0].as_bytes()),
                }],
            ));
        });
    };
    find(
        "values",
        sets_of_rules(&|index| format!("/{index:04}")),
        &|index| format!("/{index:04}"),
    );
    find(
        "prefixes",
        sets_of_rules(&|index| format!("/{index:04}/*")),
        &|index| format!("/{index:04}/x"),
    );
}
