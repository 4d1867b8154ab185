//! The encoder of a call of the script.

use bb8_redis::redis::Cmd;
use smallvec::SmallVec;

use super::sections::{SECTIONS, SectionRows};
use super::{Call, ClockReading, MAX_INTEGER, ScriptRef, number, pack, pack_short};
use super::{longest_jitter, write_key};
use crate::core::algorithm::Algorithm;
use crate::core::fingerprint::Fingerprint;
use crate::core::time::Span;
use crate::limits::plan::Check;
use crate::limits::rules::Commit;
use crate::store::redis::wire::request::Request;
use crate::store::redis::wire::script;

/// A script that runs at most this much later than its caller's deadline still counts, because the
/// estimate of Redis's clock is not more exact.
const SLACK: Span = Span::from_micros(5_000);

impl Call<'_> {
    /// The whole command.
    pub fn command(&self, script_ref: ScriptRef) -> Cmd {
        let mut command = Cmd::new();
        self.write(script_ref, &mut command);
        command
    }

    /// Writes the whole command into an empty one.
    pub(crate) fn write(&self, script_ref: ScriptRef, command: &mut Cmd) {
        let script = if self.crosses_slots {
            &script::CROSS_SLOT_SCRIPT
        } else {
            &script::SCRIPT
        };
        match script_ref {
            ScriptRef::ByHash => command.arg("EVALSHA").arg(&script.hash),
            ScriptRef::ByText => command.arg("EVAL").arg(&script.text),
        };
        if self.crosses_slots {
            command.arg(0);
        }
        let sections = SECTIONS.each_ref().map(|section| (section.write)(self));
        let further: usize = sections.iter().map(|rows| rows.keys.len()).sum();
        command.arg(self.checks.len() + further);
        let rows = self.write_keys(command);
        for section in &sections {
            command.arg(&section.keys);
        }
        let rows_of_32 = rows.runs.len() + self.requests.len() + 1;
        let mut arguments = Arguments {
            packed: Vec::with_capacity(64 * rows.limits.len() + 32 * rows_of_32),
            ends: SmallVec::new(),
        };
        if self.is_time_given {
            let mut time = itoa::Buffer::new();
            let time = time.format(self.now.time.0);
            arguments.packed.extend_from_slice(time.as_bytes());
        }
        arguments.end();
        self.write_codes(&rows.limits, &sections, &mut arguments.packed);
        arguments.end();
        for limit in &rows.limits {
            // The code of its algorithm, its tick in microseconds, and its parameters.
            arguments.packed.push(limit.spec().wire_code);
            pack(&mut arguments.packed, &[limit.tick().micros()]);
            pack(&mut arguments.packed, &limit.script_parameters());
        }
        arguments.end();
        for run in &rows.runs {
            run.pack(&mut arguments.packed);
        }
        arguments.end();
        self.write_requests(&mut arguments.packed);
        arguments.end();
        let mut firsts = (0..).zip(&rows.firsts);
        if firsts.any(|(position, &first)| first != position) {
            for first in &rows.firsts {
                pack_short(&mut arguments.packed, first + 1);
            }
        }
        arguments.end();
        for rows in sections.iter().flat_map(|rows| &rows.arguments) {
            arguments.packed.extend_from_slice(rows);
            arguments.end();
        }
        arguments.write(command);
    }

    /// Writes the keys of all checks, and makes the rows of the arguments that follow them.
    fn write_keys(&self, command: &mut Cmd) -> CheckRows<'_> {
        let mut rows = CheckRows {
            firsts: SmallVec::with_capacity(self.checks.len()),
            ..CheckRows::default()
        };
        let mut keys: SmallVec<[(Fingerprint, u8); 16]> =
            SmallVec::with_capacity(self.checks.len());
        let mut key = Vec::new();
        let (mut was_alone, mut in_flight) = (false, 0);
        for (position, request, check) in self.indexed() {
            write_key(&request.checks, check, self.now.time, &mut key);
            command.arg(&key[..]);
            let of_check = (check.fingerprint, check.algorithm.spec().wire_code);
            let first = keys.iter().position(|key| *key == of_check);
            rows.firsts.push(first.unwrap_or(position));
            keys.push(of_check);
            let mut run = self.run(request, check, number(&mut rows.limits, &&check.algorithm));
            if check.algorithm.counts_in_flight() {
                run.check_number = position as u64 - in_flight;
                in_flight += 1;
            }
            // The step of a run returns only for its last check whether it is allowed.
            let is_alone = check.has_holds() || check.is_tracked();
            match rows.runs.last_mut() {
                Some(last) if run == (Run { checks: 1, ..*last }) && !is_alone && !was_alone => {
                    last.checks += 1;
                }
                _ => rows.runs.push(run),
            }
            was_alone = is_alone;
        }
        rows
    }

    fn write_requests(&self, out: &mut Vec<u8>) {
        let deadlines = self.parts().map(|(request, _)| self.deadline(request));
        let earliest = deadlines.min().unwrap_or(MAX_INTEGER.unsigned_abs());
        pack(out, &[earliest]);
        for (request, checks) in self.parts() {
            out.push((request.checks.commit == Commit::AllOrNone).into());
            pack_short(out, checks.len());
            pack_short(out, request.checks.passing_quotas());
            pack(out, &[self.deadline(request)]);
        }
    }

    /// The time of Redis's clock after which the script counts nothing of a request.
    fn deadline(&self, request: &Request) -> u64 {
        let (deadline, ClockReading { time, at }) = (request.budget.deadline, self.now);
        let slack = if self.is_time_given {
            Span::ZERO
        } else {
            SLACK
        };
        let past = Span::from(at.saturating_duration_since(deadline));
        let left = Span::from(deadline.saturating_duration_since(at));
        let deadline = (time + slack + left).0.saturating_sub(past.micros());
        deadline.min(MAX_INTEGER.unsigned_abs())
    }

    /// Writes the codes of the algorithms that this call needs, `A` if a request commits all or
    /// none, and the codes of sections that have rows, the last section first.
    fn write_codes(&self, limits: &[&Algorithm], sections: &[SectionRows], out: &mut Vec<u8>) {
        let begin = out.len();
        for code in limits.iter().map(|limit| limit.spec().wire_code) {
            if !out[begin..].contains(&code) {
                out.push(code);
            }
        }
        if self.has_groups() {
            out.push(b'A');
        }
        let used = SECTIONS.iter().zip(sections).rev();
        let used = used.filter(|(_, rows)| rows.arguments.iter().any(|rows| !rows.is_empty()));
        out.extend(used.filter_map(|(section, _)| section.code));
    }

    /// A run of this check alone. The modes of a check matter to the script only in a request that
    /// commits all or none.
    fn run(&self, request: &Request, check: &Check, limit: usize) -> Run {
        let modes = match request.checks.commit {
            Commit::Each => 0,
            Commit::AllOrNone => {
                usize::from(check.modes.quota) + 2 * usize::from(check.modes.shadow)
            }
        };
        Run {
            limit_and_modes: 4 * limit + modes,
            checks: 1,
            hits: check.algorithm.script_hits(check.hits),
            check_number: self.check_number(check, request.budget.max_wait),
        }
    }

    /// The number of a packed run that belongs to the checks and not to their limit. Fixed windows:
    /// microseconds until the counter may expire, jitter included. Leaky buckets: the longest delay
    /// in ticks. Limits of requests in flight: the checks of other algorithms before it.
    fn check_number(&self, check: &Check, max_wait: Span) -> u64 {
        match &check.algorithm {
            Algorithm::FixedWindow(fixed) => {
                let jitter = fastrand::u64(..=longest_jitter(fixed, self.jitter_secs)) * 1_000_000;
                let now = self.now.time;
                fixed.end(fixed.number(now)).since(now).micros() + jitter
            }
            algorithm => algorithm.check_parameter(max_wait),
        }
    }
}

/// The ten arguments after the keys, packed one after the other; see `lua/frame.lua`.
struct Arguments {
    packed: Vec<u8>,
    /// The end of each argument.
    ends: SmallVec<[usize; 10]>,
}

impl Arguments {
    fn end(&mut self) {
        self.ends.push(self.packed.len());
    }

    /// Writes them without the empty ones at the end, which the script takes for missing.
    fn write(&self, command: &mut Cmd) {
        let mut begin = 0;
        for &end in &self.ends {
            if begin == self.packed.len() {
                return;
            }
            command.arg(&self.packed[begin..end]);
            begin = end;
        }
    }
}

/// Description of the checks in the arguments of a call.
#[derive(Default)]
struct CheckRows<'c> {
    /// Each once.
    limits: SmallVec<[&'c Algorithm; 16]>,
    runs: SmallVec<[Run; 8]>,
    /// For each check the first one with its key.
    firsts: SmallVec<[usize; 16]>,
}

/// Consecutive checks that differ only in their keys, and are packed as one row.
#[derive(Clone, Copy, PartialEq)]
struct Run {
    /// Four times the index of the limit among the packed limits, plus 1 for quota mode and 2 for
    /// shadow mode.
    limit_and_modes: usize,
    /// Number of checks in the run.
    checks: usize,
    /// The hits of each check.
    hits: i64,
    /// See [`Call::check_number`].
    check_number: u64,
}

impl Run {
    fn pack(&self, out: &mut Vec<u8>) {
        pack_short(out, self.limit_and_modes);
        pack_short(out, self.checks);
        out.extend((self.hits as f64).to_le_bytes());
        pack(out, &[self.check_number]);
    }
}
