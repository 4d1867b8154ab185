//! The Redis store: counters that all replicas share, each plan decided in one trip.
//!
//! `options` says where Redis is, `pool` keeps connections and knows when there are none to be had, `link` is one connection, `batch` is what
//! goes over it and how the replies are read, `clock` numbers the windows by Redis's own time, `script` holds what runs inside Redis, `call`
//! is one call of that, and `error` names what goes wrong and says whether it ran. A check is never sent twice unless the first time provably did not run.

mod batch;
mod call;
mod clock;
mod error;
mod link;
mod options;
mod pool;
mod script;
mod socket;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use self::batch::{Batch, SLACK};
pub use self::call::{Call, Named, When};
use self::clock::Clock;
use self::error::Tallies;
use self::link::Link;
pub use self::options::{
    Address, Login, NameCheck, Options, OptionsError, Password, PasswordFileError, Secret, Tls, TlsError, TlsFiles, Topology, Written,
};
use self::pool::Pool;
use super::{Store, Within};
use crate::plan::Plan;
use crate::time::Span;
use crate::verdict::{Answers, StoreError};

/// The store as one runtime uses it; clones share its connections.
#[derive(Clone)]
pub struct Redis {
    shared: Arc<Shared>,
    /// Made when it is first used, because its connections belong to the runtime that it is made in.
    pool: Arc<OnceLock<Pool>>,
}

/// What all runtimes of a process share of one Redis: what its clock shows, and what went wrong.
#[derive(Debug)]
pub struct Shared {
    options: Options,
    clock: Clock,
    tallies: Tallies,
    opened: AtomicU64,
    open: AtomicUsize,
}

/// Connections of all runtimes, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Opened since the start.
    pub opened: u64,
    /// Open now.
    pub open: usize,
}

impl Shared {
    /// Nothing is connected yet.
    #[must_use]
    pub fn new(options: Options) -> Arc<Self> {
        let (clock, tallies) = (Clock::new(), Tallies::default());
        Arc::new(Self { options, clock, tallies, opened: AtomicU64::new(0), open: AtomicUsize::new(0) })
    }

    /// How often each error happened, by name: once per plan that it spoiled, once per failed attempt to connect. The names stay the same
    /// over versions.
    #[must_use]
    pub fn error_counts(&self) -> Vec<(&'static str, u64)> {
        self.tallies.counts()
    }

    /// Connections, opened and open.
    #[must_use]
    pub fn connections(&self) -> Connections {
        Connections { opened: self.opened.load(Ordering::Relaxed), open: self.open.load(Ordering::Relaxed) }
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn tallies(&self) -> &Tallies {
        &self.tallies
    }

    fn opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Redis {
    /// A store of its own. Never fails and never waits: it connects when it is first asked, and again whenever it has to.
    #[must_use]
    pub fn connect_lazily(options: Options) -> Self {
        Self::new(Shared::new(options))
    }

    /// The store for one runtime; all that are made of the same `shared` count as one. The first [`Store::decide`] binds it, and its clones,
    /// to the runtime that it runs in.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, pool: Arc::default() }
    }

    /// What it shares with the other runtimes.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// See [`Shared::error_counts`].
    #[must_use]
    pub fn error_counts(&self) -> Vec<(&'static str, u64)> {
        self.shared.error_counts()
    }

    /// See [`Shared::connections`].
    #[must_use]
    pub fn connections(&self) -> Connections {
        self.shared.connections()
    }

    async fn ask(&self, plan: &Plan, within: Within) -> Result<Answers, StoreError> {
        let deadline = within.deadline;
        let mut link = self.pool.get_or_init(|| Pool::new(&self.shared)).link(deadline).await?;
        let batch = Batch::new(plan, self.when(within)?, self.shared.options.expiry_jitter_secs);
        let mut answers = Answers::failed(plan.checks.len(), StoreError::Unknown(error::PROTOCOL));
        self.send(&mut link, &batch, deadline, &mut answers).await;
        if let Some(again) = batch.without_script(&answers) {
            self.send(&mut link, &again, deadline, &mut answers).await;
        }
        Ok(answers)
    }

    async fn send(&self, link: &mut Link, batch: &Batch<'_>, deadline: Instant, answers: &mut Answers) {
        batch.write(link.outgoing());
        match link.exchange(deadline).await {
            Ok(replies) => {
                batch.read(replies, answers);
                if answers.now.0 > 0 {
                    self.shared.clock.observe(answers.now, Instant::now());
                }
                if answers.checks.iter().any(|answer| answer.is_err_and(error::breaks_link)) {
                    link.condemn();
                }
            }
            Err(error) => batch.fail(error, answers),
        }
    }

    fn when(&self, within: Within) -> Result<When, StoreError> {
        let at = Instant::now();
        // Every handshake sets the clock, so that whoever has a link can read it, unless the clock stands before 1970.
        let now = self.shared.clock.read(at).ok_or(StoreError::NotExecuted(error::PROTOCOL))?;
        let left = u64::try_from(within.deadline.saturating_duration_since(at).as_micros()).unwrap_or(u64::MAX);
        Ok(When { now, deadline: now + Span::from_micros(left) + SLACK, patience: within.patience })
    }
}

impl Store for Redis {
    async fn decide(&self, plan: &Arc<Plan>, picked: &[usize], within: Within) -> Answers {
        if picked.is_empty() {
            return Answers::none();
        }
        let only;
        let plan: &Plan = if picked.len() == plan.checks.len() {
            plan
        } else {
            only = Plan::of_checks(picked.iter().map(|&place| (plan.key(&plan.checks[place]), plan.checks[place].clone())));
            &only
        };
        let answers = match self.ask(plan, within).await {
            Ok(answers) => answers,
            Err(error) => Answers::failed(plan.checks.len(), error),
        };
        let mut last = "";
        for name in answers.checks.iter().filter_map(|answer| answer.err()).map(error::name) {
            if name != last {
                self.shared.tallies.record(name, None);
                last = name;
            }
        }
        answers
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Redis").field("shared", &self.shared).finish_non_exhaustive()
    }
}
