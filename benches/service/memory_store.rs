//! The memory store with very many keys: bytes per key, and the longest time that it blocks a
//! request.
//!
//! It is measured in new processes, in which the allocator holds no freed memory. Pauses are CPU
//! time, because wall time would include other work of the machine. A request may wait for one
//! insertion, which may make a shard grow, and for one sweep of the same shard; the report adds the
//! longest of both, though they hardly ever coincide. No request waits for maintenance, which
//! allocates and frees memory. The longest of millions includes interrupts, which count as CPU time
//! of the running thread. Arithmetic that needs no memory, on the same thread, as often and between
//! the insertions, shows how long those are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use weir::core::algorithm::{Algorithm, Arrival, Options};
use weir::core::time::{Micros, Rate, Span, Unit};
use weir::limits::plan::{Check, CheckIndex, Checks, Modes};
use weir::store::{Memory, memory};

use super::machine::own_resident_bytes;
use super::servers::{CpuPlacement, run_this_process_on};

/// The argument that starts the measurement in a new process; the number of keys follows.
pub const FILL: &str = "--fill";

/// Insertions that are timed together, because reading the clock costs as much as one of them.
const TOGETHER: usize = 16;

/// Steps of arithmetic that are timed together: a few microseconds, like the insertions.
const ARITHMETIC: u64 = 4_000;

/// Shards that are swept between two pauses, each timed separately. The whole store is swept within
/// seconds.
const IN_TURN: usize = 16;

const PAUSE: Duration = Duration::from_micros(100);

/// Processes.
const ROUNDS: usize = 3;

/// The figures of one process.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    pub bytes_per_key: f64,
    pub longest_insertion_ms: f64,
    pub longest_sweep_ms: f64,
    pub longest_tending_ms: f64,
    pub longest_arithmetic_ms: f64,
}

/// Runs the measurement a few times on all cores, because a service runs its control thread beside
/// its workers.
pub fn in_new_processes(keys: usize) -> Vec<Fill> {
    run_this_process_on(CpuPlacement::AllCores);
    (0..ROUNDS).map(|_| in_a_new_process(keys)).collect()
}

/// Runs the measurement in a new process and reads what it prints.
fn in_a_new_process(keys: usize) -> Fill {
    let this = std::env::current_exe().expect("a program");
    let output = std::process::Command::new(this)
        .args([FILL, &keys.to_string()])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text
        .split_whitespace()
        .map(|figure| figure.parse().expect("a number"))
        .collect();
    let [
        bytes_per_key,
        longest_insertion_ms,
        longest_sweep_ms,
        longest_tending_ms,
        longest_arithmetic_ms,
    ] = figures[..]
    else {
        panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr))
    };
    Fill {
        bytes_per_key,
        longest_insertion_ms,
        longest_sweep_ms,
        longest_tending_ms,
        longest_arithmetic_ms,
    }
}

/// Prints the five figures.
pub fn here(keys: usize) {
    // Capacity for the later keys beside the first ones, in case the sweep is late.
    let memory = Memory::new(memory::Options {
        max_keys: 2 * keys,
        max_bytes: usize::MAX,
        ..Default::default()
    });
    let before = own_resident_bytes();
    let done = AtomicBool::new(false);
    // Set when the first keys have recovered, so that they are swept while new ones are inserted.
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
        let bytes = (own_resident_bytes() - before) / all as f64;
        late.store(true, Ordering::Relaxed);
        let second = insert(memory, keys..keys + keys / 2, true);
        done.store(true, Ordering::Relaxed);
        (
            std::array::from_fn(|index| first[index].max(second[index])),
            sweeper.join().expect("no panic"),
            bytes,
            all,
        )
    });
    assert_eq!(
        (all, memory.size().evicted),
        (keys, 0),
        "the store holds all keys"
    );
    println!("{bytes:.1} {insertion:.3} {sweep:.3} {tending:.3} {arithmetic:.3}");
}

/// The beginning of a minute, or a time when its counters have recovered. The real clock could
/// reach the next window during the insertions; the sweep would then drop keys before they are
/// counted.
fn at(late: bool) -> Micros {
    Micros(1_800_000_000_000_000)
        + if late {
            Span::from_secs(600)
        } else {
            Span::ZERO
        }
}

/// The longest CPU time of [`TOGETHER`] insertions, and of arithmetic that takes about as long.
fn insert(memory: &Memory, keys: std::ops::Range<usize>, late: bool) -> [f64; 2] {
    let rate = Rate {
        requests_per_unit: 100,
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    let algorithm = Algorithm::try_new(&rate, &Options::default()).expect("a fixed window");
    let [mut insertion, mut arithmetic] = [0.0_f64; 2];
    for first in keys.step_by(TOGETHER) {
        let requests: [Checks; TOGETHER] = std::array::from_fn(|offset| {
            let key = format!("w1{{bench|user={}}}x", first + offset);
            Checks::of([(key.as_bytes(), Check::new(algorithm, 1, Modes::default()))])
        });
        let arrival = Arrival {
            now: at(late),
            max_wait: Span::ZERO,
        };
        insertion = insertion.max(cpu_ms_of(|| {
            for checks in &requests {
                std::hint::black_box(memory.decide_at(checks, &[CheckIndex(0)], arrival));
            }
        }));
        arithmetic = arithmetic.max(cpu_ms_of(|| {
            std::hint::black_box((0..ARITHMETIC).fold(first as u64, |sum, number| {
                std::hint::black_box(sum.rotate_left(5) ^ number)
            }));
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
