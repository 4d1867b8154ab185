//! The section of limits with `reservations`, whose other end is `lua/reservations.lua`: two keys
//! for each counter, a row for each check, and the changes of holds in the reply.

use smallvec::smallvec;

use super::{Section, SectionRows};
use crate::core::algorithm::places::RequestId;
use crate::core::algorithm::reservations::{HoldChange, Outcome, Purpose};
use crate::core::algorithm::{Algorithm, Arrival, OnExpiry};
use crate::core::answer::{Answer, Effect};
use crate::core::time::Span;
use crate::core::verdict::{StoreError, Verdict};
use crate::limits::plan::Check;
use crate::limits::plan::features::reservations::{self, Reservation};
use crate::store::redis::wire::call::row::CheckRow;
use crate::store::redis::wire::call::{
    Call, MAX_INTEGER, NUMBER_BYTES, Notes, PROTOCOL_ERROR, integer, numbers, pack, pack_short,
};
use crate::store::redis::wire::request::Request;

/// Bytes of the change of a hold: ten numbers.
const CHANGE_BYTES: usize = 10 * NUMBER_BYTES;

pub(super) const SECTION: Section = Section {
    script: include_str!("../../../../../../lua/reservations.lua"),
    code: Some(b'R'),
    write,
    read,
};

fn write(call: &Call<'_>) -> SectionRows {
    let (mut keys, mut rows) = (Vec::<Vec<u8>>::new(), Vec::new());
    for (position, request, check, reservation) in call.reservations() {
        let pair = reservations::keys_of(request.checks.key(check));
        let known = keys.iter().position(|known| *known == pair[0]);
        let first = known.unwrap_or_else(|| {
            keys.extend(pair);
            keys.len() - 2
        });
        for number in [position + 1, first / 2 + 1] {
            pack_short(&mut rows, number);
        }
        let (terms, limit) = (&reservation.terms, &check.algorithm);
        let (code, id) = match reservation.purpose {
            Purpose::Plain => (0, RequestId::default()),
            Purpose::Reserve(id) => (1, id),
            Purpose::Settle(id) => (2, id),
            Purpose::Undo(id) => (3, id),
        };
        let keeps = terms.on_expiry == OnExpiry::Keep;
        let tells_open = check.reports_use();
        rows.extend([code, u8::from(keeps) + 2 * u8::from(tells_open)]);
        let window = match limit {
            Algorithm::FixedWindow(fixed) => fixed.number(call.now.time),
            _ => 0,
        };
        let numbers = [
            terms.ttl.micros(),
            terms.most_held(limit),
            window,
            limit.largest_charge(),
        ];
        pack(&mut rows, &numbers);
        let hits = check.hits.clamp(-MAX_INTEGER, MAX_INTEGER) as f64;
        rows.extend(hits.to_le_bytes());
        rows.extend(id.0);
    }
    SectionRows {
        keys,
        arguments: smallvec![rows],
    }
}

fn read(
    call: &Call<'_>,
    rest: &mut &[u8],
    answers: &mut [Answer],
    notes: &mut Notes,
) -> Result<(), StoreError> {
    for (position, ..) in call.reservations() {
        let change = rest.split_off(..CHANGE_BYTES).and_then(change);
        let (change, room_after) = change.ok_or(PROTOCOL_ERROR)?;
        let answer = answers.get_mut(position).ok_or(PROTOCOL_ERROR)?;
        answer.effect = change.into();
        if room_after > Span::ZERO {
            notes.rooms.push((position, room_after));
        }
    }
    Ok(())
}

/// The verdict of a row on the check at this position, whose hold this effect has changed.
pub(in crate::store::redis::wire::call) fn verdict(
    call: &Call<'_>,
    row: CheckRow,
    (position, check): (usize, &Check),
    effect: Effect,
    notes: &Notes,
    at: Arrival,
) -> Verdict {
    if !check.has_holds() {
        return call.verdict(row, &check.algorithm, check.hits, at);
    }
    let (requested, mut algorithm, change) = (check.hits, check.algorithm, effect.hold());
    let hits = match change.is_plain() && !check.reserves() {
        true => requested,
        false => change.stepped.cast_signed(),
    };
    if change.outcome.is_of_hold() {
        algorithm = algorithm.without_debt();
    }
    let verdict = call.verdict(row, &algorithm, hits, at);
    let room = notes.rooms.iter().find(|(of, _)| *of == position);
    let room_after = room.map_or(Span::ZERO, |(_, room)| *room);
    let verdict = change.verdict(verdict, room_after);
    verdict.of_capacity(&algorithm, requested, change.outcome)
}

/// The change of a hold in packed bytes, and the time until holds make room for refused hits; `None`
/// for one that no script writes.
fn change(packed: &[u8]) -> Option<(HoldChange, Span)> {
    let mut numbers = numbers(packed).map(integer);
    let mut number = || numbers.next().flatten();
    let outcome = usize::try_from(number()?).ok()?;
    let kept = number()?;
    let mut count = || u64::try_from(number()?).ok();
    let change = HoldChange {
        outcome: *Outcome::ALL.get(outcome)?,
        stepped: count()?,
        returned: count()?,
        held: count()?,
        age_ms: u32::try_from(count()?).unwrap_or(u32::MAX),
        expired: u16::try_from(count()?).unwrap_or(u16::MAX),
        open: count()?,
        settled: count()?,
        kept,
    };
    Some((change, Span::from_micros(count()?)))
}

impl Call<'_> {
    /// The checks of limits with `reservations` by their positions in the call.
    fn reservations(&self) -> impl Iterator<Item = (usize, &Request, &Check, &Reservation)> {
        self.indexed().filter_map(|(position, request, check)| {
            Some((position, request, check, check.reservation()?))
        })
    }
}
