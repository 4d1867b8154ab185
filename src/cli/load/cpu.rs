//! The CPU time of processes, as `/proc` of Linux has it.

use std::fmt;
use std::fs;

use rustix::param::clock_ticks_per_second;

/// A process whose CPU time is measured.
#[derive(Clone, Debug)]
pub struct Process {
    /// What the result calls it.
    pub name: String,
    /// Its id, or `self`.
    id: String,
    begin: Option<f64>,
}

impl fmt::Display for Process {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={}", self.name, self.id)
    }
}

impl Process {
    /// Reads `NAME=PID`.
    ///
    /// # Errors
    /// What to write.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let named = text
            .split_once('=')
            .filter(|(name, id)| !name.is_empty() && id.parse::<u32>().is_ok());
        let (name, id) = named.ok_or("write a name and the id of a process, such as weir=4711")?;
        Ok(Self {
            name: name.to_owned(),
            id: id.to_owned(),
            begin: None,
        })
    }

    /// This process, from now on; `None` without `/proc`.
    pub(super) fn own() -> Option<Self> {
        let mut own = Self {
            name: "load".to_owned(),
            id: "self".to_owned(),
            begin: None,
        };
        own.begin().is_ok().then_some(own)
    }

    /// Measures from now on.
    ///
    /// # Errors
    /// There is no such process.
    pub(super) fn begin(&mut self) -> anyhow::Result<()> {
        let micros = cpu_micros(&self.id);
        self.begin =
            Some(micros.ok_or_else(|| anyhow::anyhow!("there is no such process in /proc"))?);
        Ok(())
    }

    /// CPU time since then, in µs; `None` if the process has ended.
    pub(super) fn used_micros(&self) -> Option<f64> {
        Some(cpu_micros(&self.id)? - self.begin?)
    }
}

/// CPU time of all threads of a process so far, in microseconds; `None` without such a process. The
/// kernel counts ticks, mostly of 10 ms. Source: proc_pid_stat(5).
#[must_use]
pub fn cpu_micros(id: &str) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name is in brackets, and may have any characters.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    let (user, system) = (ticks()?, ticks()?);
    Some((user + system) * 1e6 / clock_ticks_per_second() as f64)
}
