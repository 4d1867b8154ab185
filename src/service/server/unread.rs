//! Answers to acquires of places that their client may not have read.
//!
//! A client that gives up resets its call, and Envoy sends no release then. The reset may cross the
//! answer, and HTTP/2 forgets a stream with the last frame of its answer: h2 ignores the reset.
//! Therefore answers on their way are kept here with their places. A reset releases the places,
//! because clients do not reset a call whose answer they have read. The end of a connection
//! releases the places of answers that were not written to its socket, or of all if the socket
//! broke. A client that has read everything closes its socket in order; otherwise the kernel resets
//! it.
//!
//! Other answers are not kept, and cost a comparison.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lru::LruCache;

use crate::core::lock;
use crate::limiter::Places;

/// An answer counts as read after this time: within it, a client has to answer a ping and to read
/// an answer.
pub(crate) const READ_WITHIN: Duration = Duration::from_secs(10);

/// Memory for these answers of one worker. When it is used up, the oldest count as read.
pub(crate) const MAX_UNREAD_BYTES: usize = 2 << 20;

/// Memory of an answer in addition to its places.
const ANSWER_BYTES: usize = 256;

/// The answers of one worker.
#[derive(Debug)]
pub(super) struct UnreadAnswers(Mutex<Unread>);

#[derive(Debug)]
struct Unread {
    /// By connection and stream, in the order of the answers.
    answers: LruCache<(u64, u32), UnreadAnswer>,
    bytes: usize,
    connections: u64,
}

#[derive(Debug)]
struct UnreadAnswer {
    places: Box<Places>,
    bytes: usize,
    since: Instant,
    /// Its last frame is written to the socket, or counts as written.
    is_written: bool,
}

/// Unread answers of one connection.
#[derive(Debug)]
pub(crate) struct OfConnection {
    all: Arc<UnreadAnswers>,
    connection: u64,
    /// Whether it had any.
    is_used: AtomicBool,
    is_broken: AtomicBool,
    is_closing: AtomicBool,
}

impl Default for UnreadAnswers {
    fn default() -> Self {
        Self(Mutex::new(Unread {
            answers: LruCache::unbounded(),
            bytes: 0,
            connections: 0,
        }))
    }
}

impl Unread {
    fn remove(&mut self, key: &(u64, u32)) -> Option<UnreadAnswer> {
        let answer = self.answers.pop(key)?;
        self.bytes -= answer.bytes;
        Some(answer)
    }

    /// Removes the oldest answer if it is old, or the memory is used up.
    fn remove_old(&mut self) -> Option<UnreadAnswer> {
        let (&key, oldest) = self.answers.peek_lru()?;
        let is_old = oldest.since.elapsed() > READ_WITHIN;
        if !is_old && self.bytes <= MAX_UNREAD_BYTES {
            return None;
        }
        let mut answer = self.remove(&key)?;
        // Its client may get it later.
        answer.is_written |= !is_old;
        Some(answer)
    }
}

/// At the end of the process, unread answers count as read: they may have been.
impl Drop for Unread {
    fn drop(&mut self) {
        while let Some((_, answer)) = self.answers.pop_lru() {
            answer.places.delivered();
        }
    }
}

impl UnreadAnswer {
    /// The client has it, if it has ever been written.
    fn read(self) {
        if self.is_written {
            self.places.delivered();
        }
    }
}

impl OfConnection {
    /// Unread answers of a new connection.
    pub(super) fn new(all: &Arc<UnreadAnswers>) -> Arc<Self> {
        let mut unread = lock(&all.0);
        unread.connections += 1;
        Arc::new(Self {
            all: Arc::clone(all),
            connection: unread.connections,
            is_used: AtomicBool::default(),
            is_broken: AtomicBool::default(),
            is_closing: AtomicBool::default(),
        })
    }

    /// An answer to an acquire waits to be written.
    pub(super) fn queued(&self, stream: u32, places: Box<Places>) {
        self.is_used.store(true, Ordering::Relaxed);
        let answer = UnreadAnswer {
            bytes: ANSWER_BYTES + places.bytes(),
            places,
            since: Instant::now(),
            is_written: false,
        };
        let mut unread = lock(&self.all.0);
        unread.bytes += answer.bytes;
        unread.answers.put((self.connection, stream), answer);
        // Dropped without the lock, because the drop releases places.
        let old: Vec<_> = std::iter::from_fn(|| unread.remove_old()).collect();
        drop(unread);
        old.into_iter().for_each(UnreadAnswer::read);
    }

    /// The last frame of an answer was written to the socket.
    pub(super) fn mark_written(&self, stream: u32) {
        if self.is_used.load(Ordering::Relaxed)
            && let Some(answer) = lock(&self.all.0)
                .answers
                .peek_mut(&(self.connection, stream))
        {
            answer.is_written = true;
        }
    }

    /// The client has reset a call.
    pub(super) fn reset(&self, stream: u32) {
        if self.is_used.load(Ordering::Relaxed) {
            let answer = lock(&self.all.0).remove(&(self.connection, stream));
            drop(answer);
        }
    }

    /// The socket failed.
    pub(super) fn broken(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }

    /// The client has been asked to end the connection, and may close it without reading the rest.
    pub(super) fn closing(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    /// The connection has ended.
    pub(super) fn end(&self) {
        if !self.is_used.load(Ordering::Relaxed) {
            return;
        }
        let is_broken =
            self.is_broken.load(Ordering::Relaxed) && !self.is_closing.load(Ordering::Relaxed);
        let mut unread = lock(&self.all.0);
        let own = unread.answers.iter().map(|(key, _)| *key);
        let own: Vec<_> = own.filter(|key| key.0 == self.connection).collect();
        let own: Vec<_> = own.iter().filter_map(|key| unread.remove(key)).collect();
        drop(unread);
        for answer in own {
            if !is_broken || answer.since.elapsed() > READ_WITHIN {
                answer.read();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use prost::Message;
    use tonic::Request;

    use super::*;
    use crate::core::proto::rate_limit_descriptor::Entry;
    use crate::core::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
    use crate::limits::rules::compile::rules_of;
    use crate::live::Live;
    use crate::observe::metrics::Metrics;
    use crate::service::rls::respond::{Framed, PREFIX_BYTES};
    use crate::service::rls::{EncodedRequest, RateLimitService, Rls};

    const PLACES: u32 = 10_000;

    const LIMITS: &str = "
domain: shop
descriptors:
  - key: user
    descriptors:
      - key: request
        rate_limit: { algorithm: concurrency, requests_per_unit: 10000, max_duration: 1h }
";

    fn service() -> Arc<Rls> {
        let live = Arc::new(Live::new(Metrics::new(1, 0.8)));
        live.replace(rules_of(LIMITS));
        Arc::new(Rls::builder(live).build())
    }

    /// Acquires a place, and returns how many are taken, and the place.
    fn acquire(service: &Arc<Rls>, id: u32) -> (u32, Box<Places>) {
        let entry = |(key, value): (&str, String)| Entry {
            key: key.into(),
            value: value.into(),
        };
        let entries = [("user", "ann".to_owned()), ("request", id.to_string())];
        let request = RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                entries: entries.map(entry).to_vec(),
                ..RateLimitDescriptor::default()
            }],
            hits_addend: 0,
        };
        let request = Request::new(EncodedRequest {
            message: request.encode_to_vec().into(),
            time_left: None,
        });
        let answer = Arc::clone(service).should_rate_limit(request);
        let answer = answer.now_or_never().expect("memory does not wait");
        let Framed(answer, places) = answer.expect("an answer").into_inner();
        let answer = RateLimitResponse::decode(&answer[PREFIX_BYTES..]).expect("a response");
        let taken = PLACES - answer.statuses[0].limit_remaining;
        (taken, places.expect("a place"))
    }

    /// It is not written yet, but will be.
    #[test]
    fn when_the_memory_is_used_up_the_oldest_answer_keeps_its_place() {
        let service = service();
        let unread = OfConnection::new(&Arc::default());
        let kept = || lock(&unread.all.0).answers.len();
        let mut stream = 0;
        while kept() == stream as usize {
            let (taken, places) = acquire(&service, stream);
            stream += 1;
            assert_eq!(taken, stream);
            unread.queued(stream, places);
        }
        assert_eq!(acquire(&service, stream).0, stream + 1);
    }
}
