//! How many replicas share the limits (`REPLICAS`), for the policy `local`: a number, or the number
//! of addresses behind a DNS name.
//!
//! The name is resolved again and again on the control thread. The requests see one atomic number,
//! so that a change restarts nothing and no count is lost.
//!
//! DNS and not the API of Kubernetes: it is the same on every platform, and there is no right to
//! grant.

pub(crate) mod recent;
pub(crate) mod resolve;
mod source;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tokio::time::{Duration, Instant, sleep, timeout};

use recent::{Event, Recent};
use resolve::{ResolveError, Resolver};
pub use source::{DnsName, Source};

/// The time that a lookup may take, with all its attempts and its fallback to TCP: a longer one
/// would not end before the next one is due.
pub(crate) const LOOKUP_WITHIN: Duration = Duration::from_secs(5);

/// The number of replicas in force, and how many times their name was resolved since the start;
/// clones share both.
#[derive(Clone, Debug)]
pub struct ReplicaCount(Arc<ReplicaState>);

#[derive(Debug)]
struct ReplicaState {
    count: AtomicU32,
    answered: AtomicU64,
    failed: AtomicU64,
}

impl ReplicaCount {
    /// Of this many replicas.
    pub fn new(count: NonZeroU32) -> Self {
        Self(Arc::new(ReplicaState {
            count: count.get().into(),
            answered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }))
    }

    /// The number now.
    pub fn get(&self) -> NonZeroU32 {
        NonZeroU32::new(self.0.count.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
    }

    /// Lookups that found addresses.
    pub fn answered(&self) -> u64 {
        self.0.answered.load(Ordering::Relaxed)
    }

    /// All other lookups.
    pub fn failed(&self) -> u64 {
        self.0.failed.load(Ordering::Relaxed)
    }
}

/// The rhythm of lookups, and how answers become the number in force.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The time from the end of a lookup to the next one, varied by a tenth so that replicas do not
    /// ask together. Two small queries in this time are no load, and a replica that starts is known
    /// soon.
    pub interval: Duration,
    /// How long all answers have to be lower until the number in force is.
    pub hold: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            hold: Duration::from_secs(30),
        }
    }
}

/// Resolves `name` at intervals, and keeps the number of replicas at what it finds; never ends.
pub async fn follow(name: DnsName, replicas: ReplicaCount, options: Options) {
    let mut resolver = Resolver::new(name.clone());
    let mut recent = Recent::new(options.hold);
    loop {
        let answer = timeout(LOOKUP_WITHIN, resolver.addresses())
            .await
            .unwrap_or(Err(ResolveError::Timeout));
        let ReplicaState {
            count,
            answered,
            failed,
        } = &*replicas.0;
        let lookups = if answer.is_ok() { answered } else { failed };
        lookups.fetch_add(1, Ordering::Relaxed);
        let event = recent.observe(Instant::now(), answer.map_err(|error| error.to_string()));
        count.store(recent.count().get(), Ordering::Relaxed);
        if let Some(event) = event {
            log(&name, &event);
        }
        sleep(options.interval.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
    }
}

/// Writes a line of the log.
fn log(name: &DnsName, event: &Event) {
    match event {
        Event::Changed {
            from: None,
            to,
            recovered: _,
        } => {
            tracing::info!(name = %name, replicas = to, "REPLICAS: on_store_failure: local admits \
                this replica's share of each limit");
        }
        Event::Changed {
            from: Some(from),
            to,
            recovered,
        } => {
            tracing::info!(name = %name, replicas = to, before = from, recovered, "REPLICAS: the \
                number of replicas has changed");
        }
        Event::Failing { error, count } => {
            tracing::warn!(name = %name, error, replicas = count, "REPLICAS: the name cannot be \
                resolved; the number of replicas stays as it is until it can");
        }
        Event::Recovered { count } => {
            tracing::info!(name = %name, replicas = count, "REPLICAS: the name can be resolved \
                again");
        }
    }
}
