//! The section of limits with `track_usage`, whose other end is `lua/usage.lua`: rows of hits for
//! usage records, and the summaries of these records in the reply.
//!
//! Tracked checks are not merged to runs, because the step of a run returns only for its last check
//! whether it is allowed. `lua/usage.lua` wraps the steps that occur; calls without usage therefore
//! run the same code as without it. A state holds its expiry, and is overwritten in place until
//! that instant comes near.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::{Section, SectionRows};
use crate::core::answer::Answer;
use crate::core::time::{MAX_SAFE_INTEGER, Micros};
use crate::core::usage::{Settings, Summary, Tracked, Tracking};
use crate::core::verdict::StoreError;
use crate::limits::plan::Check;
use crate::limits::plan::features::usage;
use crate::store::redis::wire::call::{
    Call, MAX_INTEGER, NUMBER_BYTES, Notes, PROTOCOL_ERROR, integer, number, numbers, pack,
    pack_short,
};
use crate::store::redis::wire::request::Request;

/// Bytes of the summary of a usage record: four numbers.
const SUMMARY_BYTES: usize = 4 * NUMBER_BYTES;

pub(super) const SECTION: Section = Section {
    script: include_str!("../../../../../../lua/usage.lua"),
    code: Some(b'U'),
    write,
    read,
};

fn write(call: &Call<'_>) -> SectionRows {
    let (mut table, mut key) = (UsageRows::default(), Vec::new());
    let mut limits: SmallVec<[(Settings, [u64; 2]); 4]> = SmallVec::new();
    for (position, request, check, (tracking, period)) in call.tracked() {
        usage::write_key(request.checks.key(check), &mut key);
        let window = period.map(|period| period.window_at(call.now.time));
        let window = window.map_or_else(Default::default, |own| [own.begin.0, own.end.0]);
        let limit = number(&mut limits, &(tracking.settings, window));
        table.add(&key, limit, position + 1, check.hits, 0);
    }
    for refused in call.refused {
        let hits = refused.hits.min(MAX_SAFE_INTEGER);
        // The next check of the subject makes the snapshot of a new period.
        let limit = number(&mut limits, &(refused.tracking.settings, [0; 2]));
        table.add(&refused.record, limit, 0, hits.cast_signed(), hits);
    }
    let mut packed_limits = Vec::new();
    for (settings, [begin, end]) in limits {
        let expiry_ms = settings.expiry.micros().div_ceil(1_000);
        let numbers = [
            settings.interval.micros(),
            settings.buckets.into(),
            expiry_ms,
            begin.min(MAX_SAFE_INTEGER),
            end.min(MAX_SAFE_INTEGER),
        ];
        pack(&mut packed_limits, &numbers);
    }
    SectionRows {
        keys: table.keys,
        arguments: smallvec![table.rows, packed_limits],
    }
}

fn read(
    call: &Call<'_>,
    rest: &mut &[u8],
    _: &mut [Answer],
    notes: &mut Notes,
) -> Result<(), StoreError> {
    let rows = call.tracked().count() + call.refused.len();
    let rows = rest.split_off(..rows * SUMMARY_BYTES);
    let mut summaries = rows
        .ok_or(PROTOCOL_ERROR)?
        .chunks(SUMMARY_BYTES)
        .map(summary);
    let positions = call.tracked().map(|(position, ..)| position);
    notes.usage.extend(positions.zip(&mut summaries));
    notes.refused.extend(summaries);
    Ok(())
}

fn summary(packed: &[u8]) -> Option<Summary> {
    let mut numbers = numbers(packed).map(|number| u64::try_from(integer(number)?).ok());
    let mut number = || numbers.next().flatten();
    Some(Summary {
        asked: number()?,
        refused: number()?,
        first_seen: Micros(number()?),
        last_seen: Micros(number()?),
    })
}

impl Call<'_> {
    /// The tracked checks by their positions in the call. The tracked check of a request may be
    /// decided without the script.
    fn tracked(&self) -> impl Iterator<Item = (usize, &Request, &Check, &Tracked)> {
        self.indexed().filter_map(|(position, request, check)| {
            Some((position, request, check, check.tracked()?))
        })
    }
}

#[derive(Default)]
struct UsageRows {
    /// The keys of the records, each once.
    keys: Vec<Vec<u8>>,
    rows: Vec<u8>,
}

impl UsageRows {
    fn add(&mut self, key: &[u8], limit: usize, position: usize, hits: i64, refused: u64) {
        let known = self.keys.iter().position(|known| known == key);
        let record = known.unwrap_or_else(|| {
            self.keys.push(key.to_vec());
            self.keys.len() - 1
        });
        for number in [position, record + 1, limit + 1] {
            pack_short(&mut self.rows, number);
        }
        let hits = hits.clamp(-MAX_INTEGER, MAX_INTEGER) as f64;
        self.rows.extend(hits.to_le_bytes());
        pack(&mut self.rows, &[refused]);
    }
}

/// Hits that were refused without the script, by the denial cache.
#[derive(Clone, Debug)]
pub struct RefusedHits {
    /// The key of the usage record.
    pub record: Vec<u8>,
    /// The limit.
    pub tracking: Arc<Tracking>,
    /// Number of refused hits.
    pub hits: u64,
}
