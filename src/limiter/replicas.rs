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

use recent::Recent;
pub use recent::{Event, Options as RecentOptions};
use resolve::{ResolveError, Resolver};
pub use source::{DnsName, Source};

/// The time that a lookup may take, with all its attempts and its fallback to TCP: a longer one
/// would not end before the next one is due.
pub(crate) const LOOKUP_WITHIN: Duration = Duration::from_secs(5);

/// The number of replicas in force; clones share it.
#[derive(Clone, Debug)]
pub struct ReplicaCount(Arc<AtomicU32>);

impl ReplicaCount {
    /// Of this many replicas.
    #[must_use]
    pub fn new(count: NonZeroU32) -> Self {
        Self(Arc::new(AtomicU32::new(count.get())))
    }

    /// The number now.
    #[must_use]
    pub fn get(&self) -> NonZeroU32 {
        NonZeroU32::new(self.0.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
    }

    fn set(&self, count: NonZeroU32) {
        self.0.store(count.get(), Ordering::Relaxed);
    }
}

/// How many times the name was resolved since the start; clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Lookups(Arc<LookupCounts>);

#[derive(Debug, Default)]
struct LookupCounts {
    answered: AtomicU64,
    failed: AtomicU64,
}

impl Lookups {
    /// Lookups that found addresses.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.0.answered.load(Ordering::Relaxed)
    }

    /// All others.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.0.failed.load(Ordering::Relaxed)
    }

    fn count(&self, is_answered: bool) {
        let counter = if is_answered {
            &self.0.answered
        } else {
            &self.0.failed
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The rhythm of lookups.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The time from the end of a lookup to the next one, varied by a tenth so that replicas do not
    /// ask together. Two small queries in this time are no load, and a replica that starts is known
    /// soon.
    pub interval: Duration,
    /// The time that a lookup may take.
    pub timeout: Duration,
    /// How answers become the number in force.
    pub recent: RecentOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            timeout: LOOKUP_WITHIN,
            recent: RecentOptions::default(),
        }
    }
}

/// Resolves `name` at intervals, and keeps `count` at the number of replicas; never ends.
pub async fn follow(name: DnsName, count: ReplicaCount, lookups: Lookups, options: Options) {
    let mut resolver = Resolver::new(name.clone());
    let mut recent = Recent::new(options.recent);
    loop {
        let answer = timeout(options.timeout, resolver.addresses())
            .await
            .unwrap_or(Err(ResolveError::Timeout));
        lookups.count(answer.is_ok());
        let event = recent.observe(
            Instant::now(),
            answer
                .as_ref()
                .map(|&addresses| addresses)
                .map_err(ToString::to_string),
        );
        count.set(recent.count());
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
