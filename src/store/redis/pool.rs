//! The links of one runtime to one server: bb8 keeps them, this says how they are made and when they are not used again.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use bb8_redis::bb8;
use tokio::sync::Notify;
use tokio::time::{Duration, Instant};

use super::error::{self, Refusal};
use super::link::Link;
use super::node::{Node, Place};

/// A lane gives up on a link after this long; attempts to connect end much sooner.
const LONGEST_GET: Duration = Duration::from_secs(5);

/// A link that nobody used for this long is closed. Long, because whoever asks next would have to wait for another one.
const IDLE: Duration = Duration::from_secs(600);

/// Between two attempts to replace an old link.
const RENEW_AGAIN: Duration = Duration::from_secs(1);

/// How often links are looked at for their age.
const REAPER_RATE: Duration = Duration::from_secs(10);

/// The links of one runtime to one server.
#[derive(Debug)]
pub(super) struct Pool {
    links: bb8::Pool<Links>,
    last: Arc<Last>,
    node: Arc<Node>,
    next: Arc<Mutex<Next>>,
}

/// A link to replace an old one.
#[derive(Debug)]
enum Next {
    /// None is needed yet, or the last attempt failed and the next one is not due.
    NotBefore(Instant),
    /// Somebody connects.
    Coming,
    /// For the next old link that is used.
    Ready(Box<Link>, Arc<Place>),
}

/// How the last attempt to connect failed, told to all who wait for a link: bb8 would let them wait on.
#[derive(Debug, Default)]
struct Last {
    failure: Mutex<&'static str>,
    failed: Notify,
}

/// A link, until it is dropped.
pub(super) type Lent<'a> = bb8::PooledConnection<'a, Links>;

impl Pool {
    /// An empty pool, to be used in the runtime that it is made in. Connects when the first link is wanted.
    pub(super) fn new(node: &Arc<Node>) -> Self {
        let last = Arc::new(Last::default());
        let manager = Links { node: Arc::clone(node), last: Arc::clone(&last) };
        let links = bb8::Pool::builder()
            .max_size(node.options().pool_size.get())
            .min_idle(None)
            // Costs no round trip here: it only looks whether the other side has hung up.
            .test_on_check_out(true)
            .connection_timeout(LONGEST_GET)
            // The breaker decides when to try again; bb8's own way has no jitter and keeps callers waiting.
            .retry_connection(false)
            // Old links are replaced in use, when there is another one.
            .max_lifetime(None)
            .idle_timeout(IDLE)
            .reaper_rate(REAPER_RATE)
            // The link that was used last is the warmest, and those beyond what is needed grow idle.
            .queue_strategy(bb8::QueueStrategy::Lifo)
            .error_sink(Box::new(Sink(Arc::clone(node))))
            .build_unchecked(manager);
        let next = Arc::new(Mutex::new(Next::NotBefore(Instant::now())));
        Self { links, last, node: Arc::clone(node), next }
    }

    /// Replaces a link that is old, as soon as there is another one; until then it goes on, so that nobody has to wait for its successor.
    #[expect(clippy::disallowed_methods, reason = "ends with the attempt to connect")]
    pub(super) fn renew(&self, lent: &mut Lent<'_>) {
        if !lent.is_old() {
            return;
        }
        let mut next = lock(&self.next);
        match &*next {
            Next::Ready(..) => {
                let now = Next::NotBefore(Instant::now());
                if let Next::Ready(mut link, place) = std::mem::replace(&mut *next, now)
                    && link.is_quiet()
                    && self.node.is_at(&place)
                {
                    self.node.link_opened();
                    lent.replace(*link, place);
                }
            }
            Next::NotBefore(at) if *at <= Instant::now() => {
                *next = Next::Coming;
                let (node, next) = (Arc::clone(&self.node), Arc::clone(&self.next));
                tokio::spawn(async move {
                    let opened = node.connect().await;
                    *lock(&next) = match opened {
                        Ok((link, place)) => Next::Ready(Box::new(link), place),
                        Err(refusal) => {
                            node.tallies().refused(&refusal);
                            Next::NotBefore(Instant::now() + RENEW_AGAIN)
                        }
                    };
                });
            }
            Next::NotBefore(_) | Next::Coming => {}
        }
    }

    /// A link, as soon as there is one or the attempt to make one has failed.
    ///
    /// # Errors
    /// The name of what went wrong.
    pub(super) async fn link(&self) -> Result<Lent<'_>, &'static str> {
        let failed = self.last.failed.notified();
        let mut link = pin!(self.links.get());
        tokio::select! {
            biased;
            link = &mut link => link.map_err(|_| error::CONNECT_TIMEOUT),
            () = failed => Err(*self.last.failure()),
        }
    }
}

fn lock(next: &Mutex<Next>) -> std::sync::MutexGuard<'_, Next> {
    // Every change is a single assignment, so that a poisoned lock holds a whole value.
    next.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Last {
    fn failure(&self) -> std::sync::MutexGuard<'_, &'static str> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How bb8 makes links and judges them.
#[derive(Debug)]
pub(super) struct Links {
    node: Arc<Node>,
    last: Arc<Last>,
}

/// A link that is counted while it exists, and knows where it leads.
#[derive(Debug)]
pub(super) struct Counted {
    link: Link,
    place: Arc<Place>,
    node: Arc<Node>,
}

impl Counted {
    /// The old link is closed.
    fn replace(&mut self, link: Link, place: Arc<Place>) {
        let old = std::mem::replace(&mut self.link, link);
        self.node.link_closed(&old);
        self.place = place;
    }

    /// Whether the link must not be used again: it is spent, or leads to where the server is no more.
    pub(super) fn is_spent(&self) -> bool {
        self.link.is_spent() || !self.node.is_at(&self.place)
    }
}

impl std::ops::Deref for Counted {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.link
    }
}

impl std::ops::DerefMut for Counted {
    fn deref_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.node.link_closed(&self.link);
    }
}

/// What happened outside of any request.
#[derive(Debug)]
pub(super) enum Event {
    /// An attempt failed.
    Refused(Refusal),
    /// The other side hung up on a link that nobody used.
    HungUp,
    /// The server is elsewhere by now.
    Moved,
}

impl bb8::ManageConnection for Links {
    type Connection = Counted;
    type Error = Event;

    async fn connect(&self) -> Result<Counted, Event> {
        match self.node.connect().await {
            Ok((link, place)) => {
                self.node.link_opened();
                Ok(Counted { link, place, node: Arc::clone(&self.node) })
            }
            Err(refusal) => {
                *self.last.failure() = refusal.name;
                self.last.failed.notify_waiters();
                Err(Event::Refused(refusal))
            }
        }
    }

    async fn is_valid(&self, link: &mut Counted) -> Result<(), Event> {
        if link.is_spent() {
            return Err(Event::Moved);
        }
        if link.is_quiet() {
            return Ok(());
        }
        link.condemn();
        Err(Event::HungUp)
    }

    fn has_broken(&self, link: &mut Counted) -> bool {
        link.is_spent()
    }
}

/// Where bb8 reports what no caller waits for.
#[derive(Clone, Debug)]
struct Sink(Arc<Node>);

impl bb8::ErrorSink<Event> for Sink {
    fn sink(&self, event: Event) {
        match event {
            Event::Refused(refusal) => self.0.tallies().refused(&refusal),
            Event::HungUp => self.0.tallies().record(error::IDLE_CLOSED, None),
            Event::Moved => {}
        }
    }

    fn boxed_clone(&self) -> Box<dyn bb8::ErrorSink<Event>> {
        Box::new(self.clone())
    }
}
