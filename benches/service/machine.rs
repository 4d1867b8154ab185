//! The machine: its cores, CPU times of processes, and versions of programs.

use std::fs;
use std::process::{Command, Stdio};

/// CPU time of a process so far, in microseconds. The kernel counts ticks of 10 ms, so that a
/// window must be much longer.
pub fn cpu_micros(process: u32) -> f64 {
    weir::cli::load::cpu::cpu_micros(&process.to_string()).expect("Linux")
}

/// CPU time of a process's first thread so far, in microseconds: the exact CPU time of a process
/// with one thread.
pub fn first_thread_micros(process: u32) -> f64 {
    let schedstat = fs::read_to_string(format!("/proc/{process}/schedstat")).expect("Linux");
    schedstat
        .split_whitespace()
        .next()
        .and_then(|nanos| nanos.parse::<f64>().ok())
        .expect("nanoseconds")
        / 1_000.0
}

/// The resident memory of this process, in bytes.
pub fn own_resident_bytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("a size");
    line.trim()
        .trim_end_matches(" kB")
        .parse::<f64>()
        .expect("a number")
        * 1_024.0
}

/// The number of cores.
pub fn cores() -> usize {
    let online = fs::read_to_string("/proc/cpuinfo")
        .unwrap_or_default()
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    online.max(1)
}

/// Whether processes can be pinned to cores.
pub fn can_pin() -> bool {
    cores() > 1
        && Command::new("taskset")
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok()
}

/// The first line of a program's `--version`.
pub fn version(program: &str) -> String {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    String::from_utf8_lossy(&output)
        .lines()
        .next()
        .unwrap_or(program)
        .to_owned()
}

/// The number and the model of the processors.
pub fn processors() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, model)| model);
    format!("{} × {model}", cores())
}

/// The version of redis-server.
pub fn redis_version() -> String {
    version("redis-server")
        .split(" sha")
        .next()
        .unwrap_or_default()
        .to_owned()
}
