//! The CPU time of processes, as `/proc` of Linux has it.

use std::fs;

use rustix::param::clock_ticks_per_second;

use crate::observe::metrics::process::stat_of;

/// Name of this process in the result.
pub(super) const OWN: &str = "load";

/// A process whose CPU time is measured.
#[derive(Clone, Debug)]
pub(super) struct MeasuredProcess {
    /// Its name in the result.
    pub(super) name: String,
    /// Its id, or `self`.
    id: String,
    begin: f64,
}

impl MeasuredProcess {
    /// Reads `NAME=PID`, and measures from now on.
    ///
    /// # Errors
    /// What to write, or there is no such process.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let named = text.split_once('=');
        let named = named.filter(|(name, id)| !name.is_empty() && id.parse::<u32>().is_ok());
        let (name, id) = named.ok_or("write a name and the id of a process, such as weir=4711")?;
        Self::begin(name, id).ok_or_else(|| format!("there is no process {id} in /proc"))
    }

    /// This process, from now on; `None` without `/proc`.
    pub(super) fn own() -> Option<Self> {
        Self::begin(OWN, "self")
    }

    fn begin(name: &str, id: &str) -> Option<Self> {
        let begin = cpu_micros(id)?;
        Some(Self {
            name: name.to_owned(),
            id: id.to_owned(),
            begin,
        })
    }

    /// CPU time since then, in µs; `None` if the process has ended.
    pub(super) fn used_micros(&self) -> Option<f64> {
        Some(cpu_micros(&self.id)? - self.begin)
    }
}

/// CPU time of all threads of a process so far, in microseconds; `None` without such a process. The
/// kernel counts ticks, mostly of 10 ms. Source: proc_pid_stat(5).
pub fn cpu_micros(id: &str) -> Option<f64> {
    let stat = stat_of(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)?;
    Some(stat.cpu_ticks as f64 * 1e6 / clock_ticks_per_second() as f64)
}
