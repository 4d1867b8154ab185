//! What each algorithm does to the same traffic, as pictures; and how far the sliding counter is
//! from the exact log.
//!
//! `cargo bench --bench plots` writes `benches/plots/*.svg` and prints the table of
//! config/algorithms.md. Nothing here is timed: the pure steps run on given times, so that the same
//! pictures come out everywhere, and a test compares them.

use std::collections::VecDeque;
use std::fmt::Write;

use weir::core::algorithm::{Algorithm, AlgorithmKind, Arrival, Options};
use weir::core::time::{Micros, Rate, Span, Unit};

/// 60 a minute, for all pictures.
const LIMIT: u32 = 60;
const WINDOW_SECS: usize = 60;
const SECONDS: usize = 180;

/// A minute begins here.
const START_SECS: u64 = 1_800_000_000;

const WIDTH: usize = 720;
const HEIGHT: usize = 200;
const LEFT: usize = 40;
const BOTTOM: usize = 30;
const TOP: usize = 24;

/// Requests of each second: steady, a burst, silence, a burst across the edge of a window, too much
/// for a while, and little.
fn offered(second: usize) -> u32 {
    match second {
        0..20 => 1,
        20..22 => 40,
        56..64 => 15,
        90..130 => 3,
        150..180 => 1,
        _ => 0,
    }
}

fn rate() -> Rate {
    Rate {
        requests_per_unit: LIMIT.into(),
        unit: Unit::Minute,
        unit_multiplier: 1,
    }
}

fn options(kind: AlgorithmKind) -> Options {
    Options {
        kind,
        burst: (kind == AlgorithmKind::TokenBucket).then_some(20),
        max_delay: (kind == AlgorithmKind::LeakyBucket).then_some(Span::from_secs(5)),
        bucket_interval: (kind == AlgorithmKind::SlidingWindowBuckets)
            .then_some(Span::from_secs(5)),
        ..Options::default()
    }
}

/// One algorithm on the traffic: how many requests were admitted, by the second in which they
/// leave, and refused, by that in which they came.
fn run(algorithm: &Algorithm) -> (Vec<u32>, Vec<u32>) {
    let (mut admitted, mut refused) = (vec![0; SECONDS + 10], vec![0; SECONDS]);
    let mut state = None;
    for (second, refused) in refused.iter_mut().enumerate() {
        let count = offered(second);
        for number in 0..count {
            let micros = (START_SECS + second as u64) * 1_000_000
                + u64::from(number) * 1_000_000 / u64::from(count);
            let step = algorithm.step(
                state.take(),
                Arrival {
                    now: Micros(micros),
                    max_wait: Span::MAX,
                },
                1,
            );
            state = step.state;
            if step.verdict.allowed {
                let leaves = micros + step.verdict.delay.micros() - START_SECS * 1_000_000;
                admitted[usize::try_from(leaves / 1_000_000).expect("a second")] += 1;
            } else {
                *refused += 1;
            }
        }
    }
    admitted.truncate(SECONDS);
    (admitted, refused)
}

/// Where a second and a count are in the picture.
fn x(second: f64) -> f64 {
    LEFT as f64 + second * (WIDTH - LEFT - 20) as f64 / SECONDS as f64
}

fn y(count: f64) -> f64 {
    (HEIGHT - BOTTOM) as f64 - count * (HEIGHT - BOTTOM - TOP) as f64 / 130.0
}

/// What the colours mean.
fn legend() -> String {
    let mut svg = String::new();
    for (at, colour, meaning) in [
        (330, "#bbb", "refused"),
        (400, "#2a7", "admitted, each second"),
        (545, "#06c", "admitted within a minute"),
    ] {
        let label = at + 12;
        let _ = writeln!(
            svg,
            "<rect x=\"{at}\" y=\"7\" width=\"8\" height=\"8\" fill=\"{colour}\"/><text \
             x=\"{label}\" y=\"15\">{meaning}</text>"
        );
    }
    svg
}

/// A line and its time for each minute.
fn minutes() -> String {
    let mut svg = String::new();
    for minute in 0..=SECONDS / 60 {
        let at = x((minute * 60) as f64);
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{}\" stroke=\"#ddd\"/><text \
             x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{} s</text>",
            HEIGHT - BOTTOM,
            HEIGHT - 12,
            minute * 60
        );
    }
    svg
}

/// The picture of one algorithm: what was offered and what passed in each second, and what passed
/// within the last minute.
pub fn picture(name: &str, kind: AlgorithmKind) -> String {
    let algorithm =
        Algorithm::try_new(&rate(), &options(kind)).expect("options that belong together");
    let (admitted, refused) = run(&algorithm);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"{LEFT}\" y=\"15\" \
         font-weight=\"bold\">{name}</text>\n"
    );
    let _ = write!(svg, "{}", legend());
    for count in [0, 60, 120] {
        let dash = if count == 60 {
            " stroke-dasharray=\"4 3\""
        } else {
            ""
        };
        let (right, line, label, middle) = (
            WIDTH - 10,
            y(f64::from(count)),
            LEFT - 5,
            y(f64::from(count)) + 4.0,
        );
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{line:.1}\" y2=\"{line:.1}\" \
             stroke=\"#ccc\"{dash}/>\
             <text x=\"{label}\" y=\"{middle:.1}\" text-anchor=\"end\">{count}</text>"
        );
    }
    let width = x(1.0) - x(0.0) - 0.5;
    let mut within: VecDeque<u32> = VecDeque::new();
    let mut line = String::new();
    for (second, &passed) in admitted.iter().enumerate() {
        let refused = refused[second];
        let left = x(second as f64);
        for (count, below, colour) in [(passed, 0, "#2a7"), (refused, passed, "#bbb")] {
            if count > 0 {
                let (top, bottom) = (y(f64::from(count + below)), y(f64::from(below)));
                let height = bottom - top;
                let _ = writeln!(
                    svg,
                    "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" \
                     height=\"{height:.1}\" fill=\"{colour}\"/>"
                );
            }
        }
        within.push_back(passed);
        if within.len() > WINDOW_SECS {
            within.pop_front();
        }
        let _ = write!(
            line,
            "{left:.1},{:.1} ",
            y(f64::from(within.iter().sum::<u32>()))
        );
    }
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#06c\" stroke-width=\"1.5\"/>",
        line.trim_end()
    );
    svg + &minutes() + "</svg>\n"
}

/// Traffic in requests of each tenth of a second, and its name. The random numbers are given, so
/// that they are the same everywhere.
type Shape = (&'static str, fn(usize, &mut fastrand::Rng) -> u32);

const SHAPES: [Shape; 5] = [
    ("steady, at the limit", |_, _| 1),
    ("random, 1.5 times the limit", |_, random| {
        u32::from(random.f64() < 0.5) * 3
    }),
    ("bursts of a fifth of the limit every 10 s", |tenth, _| {
        if tenth % 100 == 0 { 120 } else { 0 }
    }),
    ("on for 20 s, off for 40 s", |tenth, _| {
        if tenth % 600 < 200 { 3 } else { 0 }
    }),
    ("all of it in the last second of each minute", |tenth, _| {
        if tenth % 600 >= 590 { 60 } else { 0 }
    }),
];

/// The sliding counter beside the exact log on one shape, for an hour at 600 a minute: requests,
/// admitted by the log, admitted by the counter, and the most that the counter admitted within any
/// minute, as a share of the limit.
pub fn distance() -> String {
    let rate = Rate {
        requests_per_unit: 600,
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    let mut table = "| traffic | requests | the log admits | the counter admits | its fullest \
        minute |\n|---|---|---|---|---|\n"
        .to_owned();
    for (name, shape) in SHAPES {
        let (requests, by_log, _) = admits(&rate, AlgorithmKind::SlidingWindowLog, shape);
        let (_, by_counter, fullest) = admits(&rate, AlgorithmKind::SlidingWindowCounter, shape);
        let share = f64::from(by_counter) / f64::from(by_log) * 100.0;
        let most = fullest as f64 / 6.0;
        let _ = writeln!(
            table,
            "| {name} | {requests} | {by_log} | {by_counter} ({share:.1} %) | {most:.1} % of the \
             limit |"
        );
    }
    table
}

fn admits(
    rate: &Rate,
    kind: AlgorithmKind,
    shape: fn(usize, &mut fastrand::Rng) -> u32,
) -> (u32, u32, usize) {
    let algorithm = Algorithm::try_new(
        rate,
        &Options {
            kind,
            ..Options::default()
        },
    )
    .expect("options that belong together");
    let mut random = fastrand::Rng::with_seed(7);
    let (mut state, mut requests, mut admitted, mut fullest) = (None, 0, 0, 0);
    let mut minute: VecDeque<u64> = VecDeque::new();
    for tenth in 0..36_000 {
        let count = shape(tenth, &mut random);
        for number in 0..count {
            let now = START_SECS * 1_000_000
                + tenth as u64 * 100_000
                + u64::from(number) * 100_000 / u64::from(count);
            let step = algorithm.step(
                state.take(),
                Arrival {
                    now: Micros(now),
                    max_wait: Span::ZERO,
                },
                1,
            );
            state = step.state;
            requests += 1;
            if step.verdict.allowed {
                admitted += 1;
                minute.push_back(now);
                while minute
                    .front()
                    .is_some_and(|&first| first + 60_000_000 <= now)
                {
                    minute.pop_front();
                }
                fullest = fullest.max(minute.len());
            }
        }
    }
    (requests, admitted, fullest)
}

#[allow(dead_code, reason = "a test includes this file for its pictures")]
/// Draws the pictures, and prints the table.
pub fn main() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/plots");
    for (name, kind) in AlgorithmKind::OVER_TIME {
        std::fs::write(folder.join(format!("{name}.svg")), picture(name, kind))
            .expect("the folder is writable");
    }
    println!("wrote {}/*.svg\n\n{}", folder.display(), distance());
}
