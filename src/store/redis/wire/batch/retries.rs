//! The parts of a batch that are sent again on the same connection: checks that Redis certainly did
//! not execute, and that it may execute now.

use smallvec::SmallVec;

use super::{Batch, BatchOptions, CommandGroup, GroupEncoding, KeyScope, Retry, Way};
use crate::core::verdict::StoreError;
use crate::limits::rules::Commit;
use crate::store::redis::error;
use crate::store::redis::wire::call::{ClockReading, ScriptRef};
use crate::store::redis::wire::request::{CheckPosition, Reply};

impl<'r> Batch<'r> {
    /// The part of this batch to send again for a reason. `None` if it is empty, or if a reply
    /// broke the protocol: the next replies on the connection may belong to earlier commands.
    pub(crate) fn retries(&self, retry: Retry, replies: &[Reply]) -> Option<Self> {
        let (mut now, mut options) = (self.now, self.options);
        let groups = match retry {
            Retry::NoScript => self.without_script(replies, ScriptRef::ByHash),
            Retry::NoSharedScript => self.without_script(replies, ScriptRef::ByText),
            Retry::Slots => {
                options.scope = KeyScope::Slot;
                self.refused_slots(replies, options)
            }
            Retry::Late(reading) => {
                now = reading;
                self.late(replies, reading)
            }
        };
        let mut answers = replies.iter().flat_map(|reply| &reply.answers);
        let broken = Err(StoreError::Unknown(error::PROTOCOL));
        if groups.is_empty() || answers.any(|answer| answer.verdict == broken) {
            return None;
        }
        Some(Self {
            requests: self.requests.clone(),
            options,
            now,
            groups,
        })
    }

    /// The calls that Redis answered with NOSCRIPT: the first with the text of its script, the
    /// others by this reference.
    fn without_script(
        &self,
        replies: &[Reply],
        others: ScriptRef,
    ) -> SmallVec<[CommandGroup<'r>; 2]> {
        let no_script = Err(StoreError::NotExecuted(error::NO_SCRIPT));
        let refused = self.groups.iter().filter(|group| {
            group.way.encoding == GroupEncoding::Script(ScriptRef::ByHash)
                && group.checks[0].verdict(replies) == no_script
        });
        let mut script_refs = [ScriptRef::ByText; 2];
        let groups = refused.map(|group| {
            let script_ref = &mut script_refs[usize::from(group.way.scope == KeyScope::Node)];
            group.sent_as(std::mem::replace(script_ref, others))
        });
        groups.collect()
    }

    /// The checks that a transaction or a call with keys of several slots did not execute. Checks
    /// of a request that commits all or none stay together.
    fn refused_slots(
        &self,
        replies: &[Reply],
        options: BatchOptions,
    ) -> SmallVec<[CommandGroup<'r>; 2]> {
        let mut again = Self {
            requests: self.requests.clone(),
            groups: SmallVec::new(),
            now: self.now,
            options,
        };
        let all_are = |part: &[CheckPosition], is_refused: fn(StoreError) -> bool| {
            part.iter()
                .all(|at| at.verdict(replies).is_err_and(is_refused))
        };
        for group in &self.groups {
            let encoding = match group.way.encoding {
                GroupEncoding::Script(_) => GroupEncoding::Script(ScriptRef::ByHash),
                GroupEncoding::Transaction => GroupEncoding::Transaction,
                GroupEncoding::Plain => continue,
            };
            if group.way.scope == KeyScope::Slot {
                continue;
            }
            let of_requests = group
                .checks
                .chunk_by(|one, other| one.request == other.request);
            let parts = of_requests.flat_map(|checks| {
                checks.chunks(match self.requests[checks[0].request].checks.commit {
                    Commit::Each => 1,
                    Commit::AllOrNone => checks.len(),
                })
            });
            for part in parts {
                let is_alone = !all_are(part, error::refuses_slots);
                let needs_own =
                    || group.way.scope == KeyScope::Node && all_are(part, error::needs_own_call);
                if is_alone && !needs_own() {
                    continue;
                }
                for (index, &at) in part.iter().enumerate() {
                    again.add(at, encoding, is_alone && index == 0);
                }
            }
        }
        again.make_commands();
        again.groups
    }

    /// The checks that were refused as late and whose callers have time.
    fn late(&self, replies: &[Reply], now: ClockReading) -> SmallVec<[CommandGroup<'r>; 2]> {
        let late = Err(StoreError::NotExecuted(error::LATE));
        let is_sent = |at: &CheckPosition| {
            at.verdict(replies) == late && self.requests[at.request].budget.deadline > now.at
        };
        let groups = self.groups.iter().map(|group| {
            let mut group = group.sent_as(ScriptRef::ByHash);
            group.checks.retain(|at| is_sent(at));
            group
        });
        groups.filter(|group| !group.checks.is_empty()).collect()
    }

    /// The checks of this batch that these replies refused because of their slots. If the server
    /// executes one of them when it is sent for [`Retry::Slots`], it really refuses several slots.
    pub(crate) fn refused_for_slots(&self, replies: &[Reply]) -> Vec<CheckPosition> {
        let all = self.groups.iter().flat_map(|group| &group.checks).copied();
        all.filter(|at| at.verdict(replies).is_err_and(error::refuses_slots))
            .collect()
    }
}

impl<'r> CommandGroup<'r> {
    /// The same checks in a call of the script.
    fn sent_as(&self, script_ref: ScriptRef) -> Self {
        Self {
            way: Way {
                encoding: GroupEncoding::Script(script_ref),
                ..self.way
            },
            checks: self.checks.clone(),
            commands: Vec::new(),
        }
    }
}
