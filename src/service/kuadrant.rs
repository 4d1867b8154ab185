//! Kuadrant's service, as Limitador has it: decisions that count nothing, charges, reservations.
//!
//! All methods end in `Rls::answer_by`, as `ShouldRateLimit` does. A reservation is a request whose
//! descriptors have one more entry, as in `core::algorithm::reservations`: `reserve`, or `settle` to
//! commit it, with an id that Weir makes. All descriptors of a request share the id: 16 random
//! bytes, which no other replica makes and no caller can compute.
//!
//! Sources: kuadrantrls.proto and kuadrant_service.rs of Kuadrant/limitador, at 13e4303.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use smallvec::SmallVec;
use tonic::{Request, Response, Status};

use super::rls::decode::bytes_and_number;
use super::rls::respond::Framed;
use super::rls::{Call, EncodedRequest, Method, Rls};
use crate::core::algorithm::reservations::{Outcome, RESERVE, SETTLE};
use crate::core::answer::{Decision, Decisions};
use crate::core::proto::kuadrant::{self, CommitResponse, ReserveResponse};
use crate::core::proto::rate_limit_response::Code;
use crate::core::request::{DecodedRequest, Descriptor, Entry};
use crate::core::time::Span;
use crate::core::verdict::Wait;
use crate::limits::plan::{Checked, Disposition, Plan, Slot};
use crate::limits::rules::Rules;
use crate::limits::rules::limit::Amount;
use crate::net::random;
pub use generated::rate_limit_service_server::{
    RateLimitService as KuadrantService, RateLimitServiceServer as KuadrantServiceServer,
};

type Answer = Result<Response<Framed>, Status>;

#[tonic::async_trait]
impl KuadrantService for Rls {
    async fn check_rate_limit(self: Arc<Self>, request: Request<EncodedRequest>) -> Answer {
        let call = self.call(request, kuadrant::CHECK_RATE_LIMIT);
        let check = CheckRateLimit::default();
        let answer = self.answer_by(check, &call.message, call.timeout, &call.span);
        self.count_call(&call, answer.await)
    }

    async fn report(self: Arc<Self>, request: Request<EncodedRequest>) -> Answer {
        let call = self.call(request, kuadrant::REPORT);
        let answer = self.answer_by(Report, &call.message, call.timeout, &call.span);
        self.count_call(&call, answer.await)
    }

    async fn reserve(self: Arc<Self>, request: Request<EncodedRequest>) -> Answer {
        let call = self.call(request, kuadrant::RESERVE);
        let id = format!("{:032x}", random::bits());
        let (answer, code) = self.reserve_all(&call, id.as_bytes()).await;
        let response = ReserveResponse {
            code: code.into(),
            reservation_id: Some(id).filter(|_| code == Code::Ok).unwrap_or_default(),
        };
        self.count_call(&call, answer.map(|answer| answer.with_message(&response)))
    }

    async fn commit(self: Arc<Self>, request: Request<EncodedRequest>) -> Answer {
        let call = self.call(request, kuadrant::COMMIT);
        let (id, hits) = bytes_and_number(&call.message, [3, 4]);
        let mut reservation_released = false;
        let settle = Settle {
            id,
            hits,
            picked: &[],
            has_released: &mut reservation_released,
        };
        let answer = (self.answer_by(settle, &call.message, call.timeout, &call.span)).await;
        let response = CommitResponse {
            reservation_released,
        };
        self.count_call(&call, answer.map(|answer| answer.with_message(&response)))
    }
}

impl Rls {
    /// Reserves the hits of all descriptors for an id, or of none.
    async fn reserve_all(&self, call: &Call, id: &[u8]) -> (Result<Framed, Status>, Code) {
        let (message, span) = (&call.message, &call.span);
        let (mut held, mut code) = (SmallVec::new(), Code::Unknown);
        let (ttl, hits) = bytes_and_number(message, [4, 3]);
        let reserve = Reserve {
            id,
            hits,
            ttl,
            longest: Span::MAX,
            check: CheckRateLimit::default(),
            held: &mut held,
            code: &mut code,
        };
        let answer = self.answer_by(reserve, message, call.timeout, span).await;
        if code != Code::Ok && held.contains(&true) {
            // Until then, the held hits may refuse another request. They never admit one. A hold
            // that is not cancelled expires after its `ttl`.
            let cancel = Settle {
                id,
                hits: 0,
                picked: &held,
                has_released: &mut false,
            };
            let left = (call.timeout).map(|all| all.saturating_sub(call.started.elapsed()));
            let _ = self.answer_by(cancel, message, left, span).await;
        }
        (answer, code)
    }
}

/// Gives each descriptor, or the `picked` ones, these hits and, unless the id is empty, an entry
/// for the id where a limit applies.
///
/// # Errors
/// A limit has no `reservations`.
fn add_id<'m>(
    rules: &Rules,
    request: &mut DecodedRequest<'m>,
    (key, id): (&'m [u8], &'m [u8]),
    hits: u64,
    picked: &[bool],
) -> Result<(), String> {
    let sent = std::mem::take(request);
    request.domain = sent.domain;
    for (index, (_, entries)) in sent.descriptors().enumerate() {
        if picked.get(index) == Some(&false) {
            continue;
        }
        let limit = rules.find(sent.domain, entries);
        let limit = limit.filter(|limit| limit.amount().is_some() && !id.is_empty());
        let is_plain = |amount: &Amount| amount.reservations.is_none();
        if let Some(limit) = limit.filter(|limit| limit.amount().is_some_and(is_plain)) {
            return Err(format!(
                "limit '{}' has no 'reservations'; add them, or call CheckRateLimit and Report",
                limit.display_name()
            ));
        }
        // The path of the limit, without an id of the caller's own.
        let path = limit.map_or(entries.len(), |limit| limit.limit.levels.len());
        let id = limit.map(|_| Entry { key, value: id });
        let entries = entries.iter().take(path).chain(&id);
        entries.for_each(|entry| request.push(*entry));
        let mut descriptor = Descriptor::default();
        descriptor.hits_addend = Some(hits);
        request.close(descriptor);
    }
    Ok(())
}

/// Peeks, and decides whether the hits would fit.
#[derive(Default)]
struct CheckRateLimit {
    /// The hits of each check.
    wanted: SmallVec<[i64; 4]>,
}

impl Method<'_> for CheckRateLimit {
    fn plan(&mut self, plan: &mut Plan) {
        self.wanted = plan.checks.iter().map(|check| check.hits).collect();
        plan.peek();
    }

    /// Refuses checks whose hits are more than was left before their holds.
    fn decided(&mut self, plan: &Plan, decisions: &mut Decisions) {
        for ((index, check), &wanted) in plan.checks.indexed().zip(&self.wanted) {
            let held = decisions.effect(index).hold().held;
            let (Decision::Store(verdict)
            | Decision::Lease(verdict)
            | Decision::DenialCache(verdict)
            | Decision::Local(verdict, ..)) = &mut decisions.each[index.0]
            else {
                continue;
            };
            let wanted = u64::try_from(wanted).unwrap_or(0);
            if wanted > verdict.remaining.saturating_add(held) {
                verdict.allowed = false;
                verdict.retry_after = match wanted > check.algorithm.capacity() {
                    true => Wait::Never,
                    // It may be earlier.
                    false => Wait::For(verdict.reset_after),
                };
            }
        }
    }
}

/// Charges hits that were used already.
struct Report;

impl Method<'_> for Report {
    /// Proxies of Kuadrant do not expect a refusal.
    const REFUSES: bool = false;
}

/// Reserves hits for an id. Without hits, the default of Kuadrant's policies, it checks whether one
/// is left.
struct Reserve<'m> {
    id: &'m [u8],
    hits: u64,
    /// An encoded `google.protobuf.Duration`.
    ttl: &'m [u8],
    /// The hold expires after it, or earlier after the `ttl` of its limit.
    longest: Span,
    check: CheckRateLimit,
    /// Whether each descriptor may have a hold. It may also have one if the store did not answer.
    held: &'m mut SmallVec<[bool; 4]>,
    code: &'m mut Code,
}

impl<'m> Method<'m> for Reserve<'m> {
    const MESSAGE: &'static str = "ReserveRequest";

    fn request(&mut self, rules: &Rules, request: &mut DecodedRequest<'m>) -> Result<(), String> {
        let ttl = prost_types::Duration::decode(self.ttl);
        let ttl = ttl.map_err(|error| format!("malformed {}: ttl: {error}", Self::MESSAGE))?;
        // 0 is no ttl, and a negative one has no meaning.
        let ttl = Duration::try_from(ttl).ok().filter(|ttl| !ttl.is_zero());
        self.longest = ttl.map_or(Span::MAX, Span::from);
        add_id(rules, request, (RESERVE, self.id), self.hits, &[])
    }

    fn plan(&mut self, plan: &mut Plan) {
        if plan.checks.iter().all(|check| check.hits == 0) {
            plan.peek();
        }
        // Without an amount one hit has to be left. A `minimum` is one.
        self.check.wanted = plan.checks.iter().map(|check| check.hits.max(1)).collect();
        Arc::make_mut(&mut plan.checks).shorten_holds(self.longest);
    }

    fn decided(&mut self, plan: &Plan, decisions: &mut Decisions) {
        let is_held = |slot: &Slot| match &slot.disposition {
            Disposition::Checked(Checked { check, .. }) => {
                let is_undone = decisions.effect(*check).hold().outcome == Outcome::Undone;
                plan.checks[*check].hits > 0 && decisions[check.0].allows() && !is_undone
            }
            _ => false,
        };
        *self.held = plan.slots.iter().map(is_held).collect();
        // Of a large amount only a share is held, and all of it has to be left. A request that does
        // not fit cancels its holds.
        self.check.decided(plan, decisions);
    }

    fn replied(&mut self, code: Code) {
        *self.code = code;
    }
}

/// Settles the hold of an id; without an id, as [`Report`].
struct Settle<'m> {
    id: &'m [u8],
    hits: u64,
    /// The descriptors to settle; all if it is empty.
    picked: &'m [bool],
    has_released: &'m mut bool,
}

impl<'m> Method<'m> for Settle<'m> {
    const REFUSES: bool = Report::REFUSES;
    const MESSAGE: &'static str = "CommitRequest";

    fn request(&mut self, rules: &Rules, request: &mut DecodedRequest<'m>) -> Result<(), String> {
        add_id(rules, request, (SETTLE, self.id), self.hits, self.picked)
    }

    fn decided(&mut self, _: &Plan, decisions: &mut Decisions) {
        let mut effects = decisions.effects.iter();
        *self.has_released = effects.any(|(_, effect)| effect.hold().outcome.has_matched());
    }
}

#[allow(clippy::pedantic, clippy::all, reason = "generated")]
mod generated {
    include!(concat!(
        env!("OUT_DIR"),
        "/service/kuadrant.service.ratelimit.v1.rs"
    ));
}
