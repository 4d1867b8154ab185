//! What the kernel knows of the process and of the worker threads, read from `/proc` by each
//! scrape. The request path pays nothing for it.
//!
//! Where there is no `/proc`, as on macOS, these families have no samples. Source: proc(5); the
//! names are those of Prometheus, "Writing client libraries", process metrics.

use std::fs;

use super::families::{self, Sample};

/// Ticks per second of the times in `/proc`: USER_HZ, which is 100 on every architecture that Rust
/// supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// The names of the worker threads: this and a number.
const WORKER: &str = "weir-";

/// The fields of a `stat` file that are used; times in ticks.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    cpu_ticks: u64,
    /// Since the machine booted.
    started_ticks: u64,
}

/// Adds the samples of the process and of its worker threads.
pub(super) fn gather(samples: &mut Vec<Sample>) {
    if let Some(stat) = read("/proc/self/stat").and_then(|text| stat_of(&text)) {
        samples.push(
            families::PROCESS_CPU_SECONDS.sample(&[], stat.cpu_ticks as f64 / TICKS_PER_SECOND),
        );
        if let Some(booted) = read("/proc/stat").and_then(|text| value_of(&text, "btime")) {
            samples.push(families::PROCESS_START_TIME.sample(
                &[],
                booted as f64 + stat.started_ticks as f64 / TICKS_PER_SECOND,
            ));
        }
    }
    if let Some(status) = read("/proc/self/status") {
        for (name, family) in [
            ("VmRSS:", &families::PROCESS_RESIDENT_MEMORY),
            ("VmSize:", &families::PROCESS_VIRTUAL_MEMORY),
            ("Threads:", &families::PROCESS_THREADS),
        ] {
            if let Some(value) = value_of(&status, name) {
                let unit = if name == "Threads:" { 1 } else { 1_024 };
                samples.push(family.count(&[], value * unit));
            }
        }
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        // Without the one that reads the folder.
        samples
            .push(families::PROCESS_OPEN_FDS.count(&[], (files.count() as u64).saturating_sub(1)));
    }
    if let Some(most) = read("/proc/self/limits").and_then(|text| value_of(&text, "Max open files"))
    {
        samples.push(families::PROCESS_MAX_FDS.count(&[], most));
    }
    for (worker, busy_seconds) in busy_workers() {
        samples.push(families::WORKER_BUSY_SECONDS.sample(&[&worker], busy_seconds));
    }
}

/// The CPU time of each worker thread in seconds, with the worker's number.
fn busy_workers() -> Vec<(String, f64)> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    let workers = threads.filter_map(|thread| {
        let stat = stat_of(&fs::read_to_string(thread.ok()?.path().join("stat")).ok()?)?;
        let worker = stat.name.strip_prefix(WORKER)?;
        worker
            .parse::<usize>()
            .is_ok()
            .then(|| (worker.to_owned(), stat.cpu_ticks as f64 / TICKS_PER_SECOND))
    });
    workers.collect()
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Reads a `stat` file. The name is in parentheses and may hold any byte, so that the numbers begin
/// behind the last one.
fn stat_of(text: &str) -> Option<Stat> {
    let (head, numbers) = text.rsplit_once(") ")?;
    let (_, name) = head.split_once('(')?;
    // Fields are numbered from 1, and the state, which is the first one here, is field 3.
    let field = |number: usize| {
        numbers
            .split_ascii_whitespace()
            .nth(number - 3)?
            .parse::<u64>()
            .ok()
    };
    Some(Stat {
        name: name.to_owned(),
        cpu_ticks: field(14)? + field(15)?,
        started_ticks: field(22)?,
    })
}

/// The first number behind the name that a line begins with.
fn value_of(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name))?
        .split_ascii_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let text = "4242 (a) b (c) S 1 4242 4242 0 -1 4194560 900 0 3 0 120 30 0 0 20 0 9 0 777000 \
            300000000 6000 18446744073709551615";
        assert_eq!(
            stat_of(text),
            Some(Stat {
                name: "a) b (c".to_owned(),
                cpu_ticks: 150,
                started_ticks: 777_000
            })
        );
        assert_eq!((stat_of(""), stat_of("1 (weir) S 1 2")), (None, None));
    }

    #[test]
    fn values_stand_behind_their_names() {
        let text = "VmPeak:\t  900 kB\nVmRSS:\t   512 kB\nMax open files            \
            1024                 4096                 files\n";
        assert_eq!(value_of(text, "VmRSS:"), Some(512));
        assert_eq!(value_of(text, "Max open files"), Some(1_024));
        assert_eq!(
            (
                value_of(text, "VmSwap:"),
                value_of("Max open files unlimited", "Max open files")
            ),
            (None, None)
        );
    }
}
