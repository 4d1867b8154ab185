//! The admin API: operators' queries to a running process, and their changes. It is on the debug
//! listener, and needs no other port.
//!
//! The same calls serve the commands of `weir` and the admin page. `access` decides who may call:
//! reading is free on loopback, and every change needs a token. Answers are JSON of bounded size,
//! and hold no secret. Each topic is a file with its types, which the commands parse too.

pub mod access;
pub mod decisions;
pub mod explain;
pub mod limits;
pub(crate) mod names;
mod openapi;
pub mod overrides;
pub mod page;
pub mod query;
pub mod reply;
pub mod reservations;
mod routes;
mod shares;
pub mod status;
pub(crate) mod subject;
pub mod top;
pub mod unmatched;
pub mod usage;

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use self::access::Caller;
pub use self::access::{Access, Tokens};
use self::query::Query;
use self::reply::Failure;
use crate::limiter::Limiter;
use crate::limiter::outages::UnderWay;
use crate::limits::plan;
use crate::live::Live;
use crate::live::overrides::Registry;
use crate::net::bounds::MemoryBudget;
use crate::net::http::{Page, collect, not_allowed};
use crate::observe::health::Health;
use crate::observe::history::History;
use crate::observe::metrics::Metrics;
use crate::observe::subjects::Subjects;
use crate::store::Usage;
use crate::store::redis::Deployment;

/// Maximum number of requests that are answered at the same time; further ones wait. An answer may
/// take megabytes of memory while it is built.
pub(crate) const MAX_AT_A_TIME: usize = 4;

/// The largest body of a request in bytes: many descriptors to explain, or an override with all its
/// texts.
pub(crate) const MAX_BODY_BYTES: usize = 256 << 10;

/// The memory of all bodies together, in bytes. When it is used up, the oldest request is refused.
pub(crate) const MAX_UNANSWERED_BYTES: usize = 4 << 20;

/// The parts of the process that the API shows and changes.
pub struct Parts {
    /// The limits in force.
    pub live: Arc<Live>,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// The subjects that are limited, and the entries that no limit matched.
    pub subjects: Arc<Subjects>,
    /// The status of the process.
    pub health: Health,
    /// The limiter of the runtime that serves the API.
    pub limiter: Limiter,
    /// The options of plans, as in the request path.
    pub plan: plan::Options,
    /// The Redis deployments by name; none for the memory store.
    pub deployments: Vec<(&'static str, Arc<Deployment>)>,
    /// The usage of subjects.
    pub usage: Usage,
    /// The operators' overrides of limits.
    pub overrides: Arc<Registry>,
    /// The latest decisions.
    pub history: Arc<History>,
    /// The outage of Redis that is under way.
    pub outage: UnderWay,
    /// When the process started.
    pub started_at: Timestamp,
    /// The access rules.
    pub access: Access,
}

/// The API of one process.
pub struct Api {
    parts: Arc<Parts>,
    permits: Semaphore,
    unanswered: MemoryBudget,
}

impl Api {
    /// The path under which all calls of the API are.
    pub const PREFIX: &'static str = "/api/";

    /// An API for `parts`, with the access rules in them.
    pub fn new(parts: Arc<Parts>) -> Self {
        Self {
            parts,
            permits: Semaphore::new(MAX_AT_A_TIME),
            unanswered: MemoryBudget::new(MAX_UNANSWERED_BYTES),
        }
    }

    /// The answer to a request that the guard of the listener refused.
    pub fn refused(why: &str) -> Page {
        Failure::forbidden(why).into()
    }

    /// Answers one request below [`Api::PREFIX`].
    pub async fn answer(&self, request: Request<Incoming>) -> Page {
        let found = routes::find(request.method(), request.uri().path());
        let ((_, _, need, handler), id) = match found {
            Ok(found) => found,
            Err(None) => {
                return Failure::not_found("no such call; /api/v1/openapi.json lists them").into();
            }
            Err(Some(allowed)) => {
                let why = "wrong method for this call; /api/v1/openapi.json lists them\n";
                return not_allowed(allowed, why);
            }
        };
        let caller = match self.parts.access.caller(request.headers(), *need).await {
            Ok(caller) => caller,
            Err(failure) => return failure.into(),
        };
        let id = id.to_owned();
        let charge = self.unanswered.charge(0);
        let answer = charge.unless_oldest(async {
            let (head, body) = request.into_parts();
            let body = match head.method {
                Method::GET => Vec::new(),
                _ => collect(body, MAX_BODY_BYTES, &charge).await?,
            };
            let _permit = self.permits.acquire().await;
            let call = Call {
                query: Query::new(head.uri.query().unwrap_or_default()),
                id,
                body,
                caller,
            };
            let answer = handler(Arc::clone(&self.parts), call);
            answer.await.map_err(Page::from)
        });
        let oldest = "too many unanswered requests, of which this one was the oldest; try again";
        match Box::pin(answer).await {
            Some(Ok(page) | Err(page)) => page,
            None => Failure::unavailable(oldest).into(),
        }
    }
}

/// One call of the API.
#[derive(Debug)]
pub(crate) struct Call {
    /// Its parameters.
    pub(crate) query: Query,
    /// The name in its path; may be empty.
    pub(crate) id: String,
    /// Its body; empty for GET.
    pub(crate) body: Vec<u8>,
    /// Its caller.
    pub(crate) caller: Caller,
}

impl Call {
    /// The name of the caller's token; empty without one.
    pub(crate) fn by(&self) -> &str {
        self.caller.name.as_deref().unwrap_or_default()
    }

    /// The body, read as JSON.
    ///
    /// # Errors
    /// 400: the body is not JSON of this type.
    pub(crate) fn body<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let wrong = |error| Failure::bad_request(&format!("invalid body: {error}"));
        serde_json::from_slice(&self.body).map_err(wrong)
    }
}
