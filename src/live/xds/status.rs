//! The state of the connection to the control plane, for metrics and operators.

use std::sync::{Arc, Mutex};

use super::protocol::ApplyOutcome;
use crate::core::lock;
use crate::core::time::Micros;
use crate::net::clock;
use crate::observe::metrics::families::{self, Sample};

/// The longest version that is shown, in bytes.
const MAX_SHOWN_BYTES: usize = 128;

/// The state of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// There is no stream.
    #[default]
    Connecting,
    /// A stream is open, and nothing was received on it yet.
    Waiting,
    /// The last response was accepted.
    Synced,
    /// The last response was refused, in whole or in part.
    Nacked,
}

/// The states by their names in metrics.
const STATES: [(&str, State); 4] = [
    ("connecting", State::Connecting),
    ("waiting", State::Waiting),
    ("synced", State::Synced),
    ("nacked", State::Nacked),
];

/// Events that are counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    Accepted,
    Refused,
    /// A newer response came before it was compiled.
    Superseded,
    OtherType,
    Connected,
    ConnectFailed,
    Saved,
    SaveFailed,
}

const COUNTS: usize = Count::SaveFailed as usize + 1;

/// The family and the label of each [`Count`], in its order.
static SERIES: [(&families::Family, &str); COUNTS] = [
    (&families::XDS_RESPONSES, "accepted"),
    (&families::XDS_RESPONSES, "refused"),
    (&families::XDS_RESPONSES, "superseded"),
    (&families::XDS_RESPONSES, "other_type"),
    (&families::XDS_CONNECTS, "opened"),
    (&families::XDS_CONNECTS, "failed"),
    (&families::XDS_CACHE_WRITES, "written"),
    (&families::XDS_CACHE_WRITES, "failed"),
];

/// The status; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Status(Arc<Mutex<Figures>>);

#[derive(Debug, Default)]
struct Figures {
    state: State,
    counts: [u64; COUNTS],
    version: String,
    accepted_at: Micros,
    refused_at: Micros,
    kept: usize,
    absent: usize,
}

impl Status {
    pub(super) fn set(&self, state: State) {
        lock(&self.0).state = state;
    }

    pub(super) fn count(&self, count: Count) {
        lock(&self.0).counts[count as usize] += 1;
    }

    /// Notes whether a response of this version was accepted as a whole.
    pub(super) fn answered(&self, outcome: &ApplyOutcome, version: &[u8]) {
        let mut figures = lock(&self.0);
        let now = clock::now();
        match outcome {
            ApplyOutcome::Accepted => {
                figures.counts[Count::Accepted as usize] += 1;
                let shown = &version[..version.len().min(MAX_SHOWN_BYTES)];
                figures.version = String::from_utf8_lossy(shown).into_owned();
                figures.accepted_at = now;
            }
            ApplyOutcome::Refused { .. } => {
                figures.counts[Count::Refused as usize] += 1;
                figures.refused_at = now;
            }
        }
    }

    /// Notes how many refused domains have their last good limits, and how many have none.
    pub(super) fn set_refused(&self, kept: usize, absent: usize) {
        let mut figures = lock(&self.0);
        (figures.kept, figures.absent) = (kept, absent);
    }

    /// The samples of a scrape.
    pub(super) fn samples(&self) -> Vec<Sample> {
        let figures = lock(&self.0);
        let secs = |at: Micros| at.0 / 1_000_000;
        let mut samples = vec![
            families::XDS_CONNECTED.count(&[], u64::from(figures.state != State::Connecting)),
            families::XDS_REFUSED_DOMAINS.count(&["kept"], figures.kept as u64),
            families::XDS_REFUSED_DOMAINS.count(&["absent"], figures.absent as u64),
            families::XDS_ACCEPTED_TIMESTAMP.count(&[], secs(figures.accepted_at)),
            families::XDS_REFUSED_TIMESTAMP.count(&[], secs(figures.refused_at)),
            families::XDS_ACCEPTED_INFO.count(&[&figures.version], 1),
        ];
        for (name, state) in STATES {
            let is_it = u64::from(state == figures.state);
            samples.push(families::XDS_STATE.count(&[name], is_it));
        }
        for ((family, label), count) in SERIES.into_iter().zip(figures.counts) {
            samples.push(family.count(&[label], count));
        }
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_state_at_a_time_is_shown() {
        let status = Status::default();
        for (_, state) in STATES {
            status.set(state);
            let connected =
                families::XDS_CONNECTED.count(&[], u64::from(state != State::Connecting));
            let samples = status.samples();
            assert!(samples.contains(&connected), "{state:?}");
            for (name, other) in STATES {
                assert!(
                    samples
                        .contains(&families::XDS_STATE.count(&[name], u64::from(other == state))),
                    "{state:?} {other:?}"
                );
            }
        }
    }

    #[test]
    fn counts_have_their_own_series() {
        let status = Status::default();
        status.answered(&ApplyOutcome::Accepted, b"v1");
        status.count(Count::SaveFailed);
        status.set_refused(2, 1);
        let samples = status.samples();
        for sample in [
            families::XDS_RESPONSES.count(&["accepted"], 1),
            families::XDS_RESPONSES.count(&["refused"], 0),
            families::XDS_CACHE_WRITES.count(&["failed"], 1),
            families::XDS_CACHE_WRITES.count(&["written"], 0),
            families::XDS_REFUSED_DOMAINS.count(&["kept"], 2),
            families::XDS_REFUSED_DOMAINS.count(&["absent"], 1),
            families::XDS_ACCEPTED_INFO.count(&["v1"], 1),
        ] {
            assert!(samples.contains(&sample), "{sample:?} in {samples:?}");
        }
    }
}
