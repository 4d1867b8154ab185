//! The memory store with very many keys: what a key takes, and the longest that a request is held up.
//!
//! In processes of their own, so that nothing that an allocator kept from before hides what is new. Pauses are CPU time: on a machine with other
//! work the clock would show that work. Whoever asks may have to wait for one insertion, which may make a shard grow, and for one sweep of
//! the same shard; the longest of both are added up, though they hardly ever meet. For tending, which gets memory and gives it back, nobody
//! waits. The longest of millions is also what the machine itself does now and then, in interrupts that count as CPU time of whoever runs:
//! how long that is shows arithmetic that needs no memory, between the insertions, on the same thread and as often.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use weir::algorithm::{Algorithm, Arrival, Options};
use weir::plan::{Check, CheckIndex, Checks, Modes};
use weir::store::{Memory, memory};
use weir::time::{Micros, Rate, Span, Unit};

use super::servers::{Place, run_this_on};

/// The argument that asks for it, with the number of keys.
pub const FILL: &str = "--fill";

/// Insertions that are timed together: the clock costs as much as one of them.
const TOGETHER: usize = 16;

/// Steps of arithmetic that are timed together: some microseconds, as the insertions are.
const ARITHMETIC: u64 = 4_000;

/// Shards that are swept between two pauses, each timed by itself: a store of twice as many keys as there are is swept within seconds.
const IN_TURN: usize = 16;

const PAUSE: Duration = Duration::from_micros(100);

/// Processes.
const ROUNDS: usize = 3;

/// What a process of its own found.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    pub bytes_per_key: f64,
    pub longest_insertion_ms: f64,
    pub longest_sweep_ms: f64,
    pub longest_tending_ms: f64,
    pub longest_arithmetic_ms: f64,
}

/// Runs it a few times, on all cores, as a service has its control thread beside its workers.
pub fn in_new_processes(keys: usize) -> Vec<Fill> {
    run_this_on(Place::Anywhere);
    (0..ROUNDS).map(|_| in_a_new_process(keys)).collect()
}

/// Runs it and reads what it prints.
fn in_a_new_process(keys: usize) -> Fill {
    let this = std::env::current_exe().expect("a program");
    let output = std::process::Command::new(this).args([FILL, &keys.to_string()]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text.split_whitespace().map(|figure| figure.parse().expect("a number")).collect();
    let [bytes_per_key, longest_insertion_ms, longest_sweep_ms, longest_tending_ms, longest_arithmetic_ms] = figures[..] else {
        panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr))
    };
    Fill { bytes_per_key, longest_insertion_ms, longest_sweep_ms, longest_tending_ms, longest_arithmetic_ms }
}

/// Prints the five figures.
pub fn here(keys: usize) {
    // Room for the second half beside the first, should the sweep be late.
    let memory = Memory::new(memory::Options { max_keys: 2 * keys });
    let before = resident_bytes();
    let done = AtomicBool::new(false);
    // From the middle on everything has recovered, and is swept while new keys come.
    let late = AtomicBool::new(false);
    let ([insertion, arithmetic], [sweep, tending], bytes, all) = std::thread::scope(|scope| {
        let (memory, done, late) = (&memory, &done, &late);
        let sweeper = scope.spawn(move || {
            let [mut sweep, mut tending] = [0.0_f64; 2];
            while !done.load(Ordering::Relaxed) {
                for _ in 0..IN_TURN {
                    sweep = sweep.max(cpu_ms_of(|| {
                        let _ = memory.sweep(at(late.load(Ordering::Relaxed)));
                    }));
                }
                tending = tending.max(cpu_ms_of(|| memory.maintain()));
                std::thread::sleep(PAUSE);
            }
            [sweep, tending]
        });
        let first = insert(memory, 0..keys, false);
        let all = memory.size().keys;
        let bytes = (resident_bytes() - before) / all as f64;
        late.store(true, Ordering::Relaxed);
        let second = insert(memory, keys..keys + keys / 2, true);
        done.store(true, Ordering::Relaxed);
        (std::array::from_fn(|index| first[index].max(second[index])), sweeper.join().expect("no panic"), bytes, all)
    });
    assert_eq!((all, memory.size().evicted), (keys, 0), "it held all of them");
    println!("{bytes:.1} {insertion:.3} {sweep:.3} {tending:.3} {arithmetic:.3}");
}

/// The beginning of a minute, or when all that was counted in that minute has recovered. The clock would cross an edge in between, and what is
/// swept then would not be counted as held.
fn at(late: bool) -> Micros {
    Micros(1_800_000_000_000_000) + if late { Span::from_secs(600) } else { Span::ZERO }
}

/// The longest that any few insertions took, and the longest of some arithmetic that takes about as long.
fn insert(memory: &Memory, keys: std::ops::Range<usize>, late: bool) -> [f64; 2] {
    let rate = Rate { requests_per_unit: 100, unit: Unit::Minute, unit_multiplier: 1 };
    let algorithm = Algorithm::try_new(&rate, &Options::default()).expect("a fixed window");
    let [mut insertion, mut arithmetic] = [0.0_f64; 2];
    for first in keys.step_by(TOGETHER) {
        let requests: [Checks; TOGETHER] = std::array::from_fn(|offset| {
            let key = format!("w1{{bench|user={}}}x", first + offset);
            Checks::of([(key.as_bytes(), Check::new(algorithm, 1, Modes::default()))])
        });
        let arrival = Arrival { now: at(late), max_hold: Span::ZERO };
        insertion = insertion.max(cpu_ms_of(|| {
            for checks in &requests {
                std::hint::black_box(memory.decide_at(checks, &[CheckIndex(0)], arrival));
            }
        }));
        arithmetic = arithmetic.max(cpu_ms_of(|| {
            std::hint::black_box((0..ARITHMETIC).fold(first as u64, |sum, number| std::hint::black_box(sum.rotate_left(5) ^ number)));
        }));
    }
    [insertion, arithmetic]
}

fn cpu_ms_of(work: impl FnOnce()) -> f64 {
    let begin = thread_cpu_ms();
    work();
    thread_cpu_ms() - begin
}

fn thread_cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// Bytes of this process that are in memory.
fn resident_bytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") * 1_024.0
}
