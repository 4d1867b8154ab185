//! A TCP proxy between Weir and Redis that simulates network faults: delay, throttling, black
//! holes, lost replies and resets.
//!
//! It runs on its own thread and runtime, so that a test needs none and cannot stall it. Its faults
//! may change at any time, separately for each direction, also for open connections. It never
//! changes a byte.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::ports;
use super::wait::eventually;

/// The most chunks that wait for their delay on one connection.
const MAX_DELAYED_CHUNKS: usize = 4_096;

/// The most bytes that are read at once.
const CHUNK_BYTES: usize = 16 * 1024;

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Forwarding {
    /// They are forwarded at once.
    Pass,
    /// They are forwarded in order after `by` and a random part of `jitter`.
    Delay { by: Duration, jitter: Duration },
    /// They wait while this is set, and neither side gets an error: a network partition.
    BlackHole,
    /// The next bytes are lost, and both sides get a reset.
    LoseThenReset,
    /// This number of bytes is forwarded on each connection; then both sides get a reset.
    CutAfter { bytes: usize },
}

/// What happens to new connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ListenerState {
    /// They reach the server.
    Open,
    /// They are refused, because nothing listens.
    Closed,
}

/// Totals so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Connections accepted.
    pub connections: u64,
    /// Bytes that were passed on to the server.
    pub to_server: u64,
    /// Bytes that were passed on to clients.
    pub to_client: u64,
    /// Connections that the proxy reset.
    pub resets: u64,
}

/// One direction.
struct Direction {
    forwarding: watch::Sender<Forwarding>,
    bytes: AtomicU64,
}

struct Shared {
    server: SocketAddr,
    to_server: Direction,
    to_client: Direction,
    listener_state: watch::Sender<ListenerState>,
    /// A counter; each increment resets every open connection.
    cuts: watch::Sender<u64>,
    /// Whether the next reply on any connection is lost.
    lose_one: AtomicBool,
    listens: AtomicBool,
    connections: AtomicU64,
    resets: AtomicU64,
}

/// A running proxy; it ends when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Why a pump ended.
#[derive(PartialEq)]
enum End {
    Closed,
    Reset,
}

impl Proxy {
    /// Listens on a free port and passes everything on to `server`.
    pub fn start(server: SocketAddr) -> Self {
        let address = ports::free();
        let direction = || Direction {
            forwarding: watch::Sender::new(Forwarding::Pass),
            bytes: AtomicU64::new(0),
        };
        let shared = Arc::new(Shared {
            server,
            to_server: direction(),
            to_client: direction(),
            listener_state: watch::Sender::new(ListenerState::Open),
            cuts: watch::Sender::new(0),
            lose_one: AtomicBool::new(false),
            listens: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            resets: AtomicU64::new(0),
        });
        let (stop, stopped) = mpsc::channel(1);
        let run = serve(address, Arc::clone(&shared), stopped);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(run);
        });
        let proxy = Self {
            address,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        };
        proxy.wait_until_listening(true);
        proxy
    }

    /// A proxy before the server on this port of the loopback interface.
    pub fn before(port: u16) -> Self {
        Self::start(SocketAddr::from(([127, 0, 0, 1], port)))
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The value of `REDIS_URL`.
    pub fn url(&self) -> String {
        self.address.to_string()
    }

    /// What happens to requests.
    pub fn to_server(&self, forwarding: Forwarding) {
        self.shared.to_server.forwarding.send_replace(forwarding);
    }

    /// What happens to replies.
    pub fn to_client(&self, forwarding: Forwarding) {
        self.shared.to_client.forwarding.send_replace(forwarding);
    }

    /// Sets what happens to new connections. Returns when it is in effect.
    pub fn set_listener(&self, listener_state: ListenerState) {
        self.shared.listener_state.send_replace(listener_state);
        self.wait_until_listening(listener_state != ListenerState::Closed);
    }

    /// Resets every open connection.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Loses the next reply and resets its connection.
    pub fn lose_one_reply(&self) {
        self.shared.lose_one.store(true, Ordering::Relaxed);
    }

    /// Totals so far.
    pub fn traffic(&self) -> Traffic {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Traffic {
            connections: read(&self.shared.connections),
            to_server: read(&self.shared.to_server.bytes),
            to_client: read(&self.shared.to_client.bytes),
            resets: read(&self.shared.resets),
        }
    }

    fn wait_until_listening(&self, listens: bool) {
        let done =
            eventually(|| (self.shared.listens.load(Ordering::Acquire) == listens).then_some(()));
        done.unwrap_or_else(|| panic!("the proxy on {} does not get ready", self.address));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}

/// Accepts connections until it is stopped; they end with it.
async fn serve(address: SocketAddr, shared: Arc<Shared>, mut stopped: mpsc::Receiver<()>) {
    let mut listener_state = shared.listener_state.subscribe();
    let mut connections = tokio::task::JoinSet::new();
    let mut listener = None;
    loop {
        if *listener_state.borrow_and_update() == ListenerState::Closed {
            listener = None;
        } else if listener.is_none() {
            listener = Some(TcpListener::bind(address).await.expect("the port is ours"));
        }
        shared.listens.store(listener.is_some(), Ordering::Release);
        let accepted = tokio::select! {
            _ = stopped.recv() => return,
            _ = listener_state.changed() => continue,
            accepted = accept(listener.as_ref()) => accepted,
        };
        shared.connections.fetch_add(1, Ordering::Relaxed);
        connections.spawn(connection(accepted, Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else {
        std::future::pending().await
    };
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            return stream;
        }
    }
}

async fn connection(mut client: TcpStream, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    let Ok(mut server) = TcpStream::connect(shared.server).await else {
        return reset(&client);
    };
    // Both are best effort: a closed socket is noticed by its next read.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let end = {
        let (client_reads, client_writes) = client.split();
        let (server_reads, server_writes) = server.split();
        let lose_one = &shared.lose_one;
        tokio::select! {
            end = pump(client_reads, server_writes, &shared.to_server, None) => end,
            end = pump(server_reads, client_writes, &shared.to_client, Some(lose_one)) => end,
            _ = cuts.changed() => Ok(End::Reset),
        }
    };
    if end.is_ok_and(|end| end == End::Reset) {
        shared.resets.fetch_add(1, Ordering::Relaxed);
        reset(&client);
        reset(&server);
    }
}

/// Makes the following close send a reset.
fn reset(stream: &TcpStream) {
    // Fails only on a closed socket.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Forwards one direction of a connection. It reads on while chunks are delayed, so that a delay
/// does not throttle.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    direction: &Direction,
    lose_one: Option<&AtomicBool>,
) -> io::Result<End> {
    let (send, mut delayed) = mpsc::channel::<(Instant, Vec<u8>)>(MAX_DELAYED_CHUNKS);
    let reading = async {
        let mut forwarding = direction.forwarding.subscribe();
        let (mut chunk, mut latest, mut passed) = (vec![0; CHUNK_BYTES], Instant::now(), 0);
        loop {
            let now = *forwarding.borrow_and_update();
            if now == Forwarding::BlackHole {
                let _ = forwarding.changed().await;
                continue;
            }
            let count = tokio::select! {
                biased;
                _ = forwarding.changed() => { passed = 0; continue; }
                count = from.read(&mut chunk) => count?,
            };
            if count == 0 {
                return Ok(End::Closed);
            }
            if now == Forwarding::LoseThenReset
                || lose_one.is_some_and(|flag| flag.swap(false, Ordering::Relaxed))
            {
                return Ok(End::Reset);
            }
            let (mut due, mut whole) = (Instant::now(), count);
            match now {
                Forwarding::Delay { by, jitter } => due += by + jitter.mul_f64(fastrand::f64()),
                Forwarding::CutAfter { bytes } => whole = count.min(bytes - passed),
                Forwarding::Pass | Forwarding::BlackHole | Forwarding::LoseThenReset => {}
            }
            passed += whole;
            latest = due.max(latest);
            // The other half ends only together with this one.
            let _ = send.send((latest, chunk[..whole].to_vec())).await;
            if matches!(now, Forwarding::CutAfter { bytes } if passed >= bytes) {
                // The forwarded bytes must arrive before the reset, which discards unread bytes.
                tokio::time::sleep(Duration::from_millis(20)).await;
                return Ok(End::Reset);
            }
        }
    };
    let writing = async {
        while let Some((due, bytes)) = delayed.recv().await {
            // A timer would take a millisecond for what is due at once.
            if due > Instant::now() {
                tokio::time::sleep_until(due).await;
            }
            // Counted before it is written, because a test may read the total as soon as it has the
            // bytes.
            direction
                .bytes
                .fetch_add(bytes.len() as u64, Ordering::Relaxed);
            to.write_all(&bytes).await?;
        }
        Ok(End::Closed)
    };
    tokio::select! {
        end = reading => end,
        end = writing => end,
    }
}
