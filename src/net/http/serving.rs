//! The HTTP/1 server of every listener for operators: bounded connections, and the catching of
//! panics. It serves a [`Site`].

use std::collections::VecDeque;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::io::InspectReader;

use super::{Page, failed};
use crate::net::bounds::{MemoryBudget, MemoryReservation, TimedWrites};

/// Maximum number of open connections. A further one closes the oldest, because idle clients must
/// not keep out a health probe.
pub(crate) const MAX_CONNECTIONS: usize = 512;

/// The largest head of a request in bytes: request line and headers.
pub(crate) const MAX_HEAD_BYTES: usize = 64 << 10;

/// The head of a usual request. A connection that has sent such a head and waits takes no memory of
/// what is unfinished.
const USUAL_HEAD_BYTES: usize = 4 << 10;

/// Time for the head of a request to arrive, which includes the idle time between two requests.
pub(crate) const HEAD_DEADLINE: Duration = Duration::from_secs(10);

/// Time for a client to read an answer; until then, Weir reads nothing more from it. A scrape of
/// 10,000 limits has megabytes; Prometheus waits for 10 s by default.
pub(crate) const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Maximum age of a connection: no client holds one for ever.
pub(crate) const CONNECTION_AGE: Duration = Duration::from_secs(600);

/// Grace period for the request in flight when a connection has to end.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// Pause after an error of accept: most often there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Receives the events of serving pages, to count them.
pub trait Events {
    /// A connection was closed to make room for a newer one.
    fn connection_refused(&self);

    /// A request made its page panic.
    fn panicked(&self);
}

/// The pages of one listener.
pub trait Site: Send + Sync + 'static {
    /// Where events are counted.
    fn events(&self) -> &impl Events;

    /// Answers one request. A panic costs this request only.
    fn page(&self, request: Request<Incoming>) -> impl Future<Output = Page> + Send;
}

/// Serves until `stop` is true or its sender is dropped, and then until all requests in flight are
/// answered. Heads that are not whole take memory of `unfinished`.
pub async fn serve<S: Site>(
    listener: TcpListener,
    site: S,
    unfinished: MemoryBudget,
    mut stop: watch::Receiver<bool>,
) {
    let site = Arc::new(site);
    let mut connections = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    oldest_first.retain(|connection| !connection.is_finished());
                    if oldest_first.len() >= MAX_CONNECTIONS
                        && let Some(oldest) = oldest_first.pop_front()
                    {
                        site.events().connection_refused();
                        oldest.abort();
                    }
                    let (site, head) = (Arc::clone(&site), Head::new(&unfinished));
                    let served = connection(stream, site, head, stop.clone());
                    oldest_first.push_back(connections.spawn(served));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an HTTP connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = stopped(&mut stop) => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender was dropped, which stops too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// The head of a request, as long as it is not whole.
struct Head {
    memory: MemoryReservation,
    /// Bytes of the last read. If they are more than usual, they may have a part of the next head.
    last_read: AtomicUsize,
    /// A page is being made, which counts its body itself.
    is_whole: AtomicBool,
}

impl Head {
    fn new(unfinished: &MemoryBudget) -> Arc<Self> {
        Arc::new(Self {
            memory: unfinished.charge(0),
            last_read: AtomicUsize::new(0),
            is_whole: AtomicBool::new(false),
        })
    }

    fn arrived(&self, bytes: usize) {
        self.last_read.store(bytes, Ordering::Relaxed);
        if !self.is_whole.load(Ordering::Relaxed) {
            self.memory.add(bytes);
        }
    }

    async fn whole<T>(&self, page: impl Future<Output = T>) -> T {
        self.is_whole.store(true, Ordering::Relaxed);
        self.memory.set(0);
        let page = page.await;
        let last_read = self.last_read.load(Ordering::Relaxed);
        let large = Some(last_read).filter(|&bytes| bytes > USUAL_HEAD_BYTES);
        self.memory.set(large.unwrap_or(0));
        self.is_whole.store(false, Ordering::Relaxed);
        page
    }
}

async fn connection<S: Site>(
    stream: TcpStream,
    site: Arc<S>,
    head: Arc<Head>,
    mut stop: watch::Receiver<bool>,
) {
    // Sends small answers at once; an error of the option only makes them slower.
    let _ = stream.set_nodelay(true);
    let (next, memory_ended) = (Arc::clone(&head), head.memory.ended());
    let service = service_fn(move |request| {
        let (site, head) = (Arc::clone(&site), Arc::clone(&next));
        async move { Ok::<_, Infallible>(head.whole(catch_panics(&*site, request)).await) }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(MAX_HEAD_BYTES);
    let stream = TimedWrites::new(stream, ANSWER_DEADLINE);
    let stream = InspectReader::new(stream, move |bytes| head.arrived(bytes.len()));
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // A client that breaks off its connection is not logged.
        _ = connection.as_mut() => return,
        () = memory_ended => return,
        () = stopped(&mut stop) => {}
        () = sleep(CONNECTION_AGE) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(GRACE, connection).await;
}

/// A panic costs one request and is counted.
async fn catch_panics<S: Site>(site: &S, request: Request<Incoming>) -> Page {
    AssertUnwindSafe(site.page(request))
        .catch_unwind()
        .await
        .unwrap_or_else(|_| {
            site.events().panicked();
            failed(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the request made the service panic; this is a defect of the service",
            )
        })
}
