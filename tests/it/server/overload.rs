//! A worker under overload: calls that have waited too long are refused, all others are served, and connections stay usable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::SendRequest;
use prost::Message;
use tokio::task::JoinSet;
use tonic::Code;

use super::frames::{METHOD, begin, call, connect, framed, head, read};
use super::{Options, Server, ask};

const CONNECTIONS: usize = 4;
/// Calls of one connection at a time. The worker needs 160 ms for a round of all callers.
const AT_A_TIME: usize = 40;

/// The longest time that a test keeps up the overload.
const LONG: Duration = Duration::from_secs(20);

/// The `grpc-timeout` of Envoy's calls, and a long one.
const ENVOYS_TIMEOUT: &str = "20m";
const LONG_TIMEOUT: &str = "10S";

/// Counts of answered and refused calls.
#[derive(Debug, Default)]
struct Tally {
    served: AtomicU64,
    refused: AtomicU64,
    stop: AtomicBool,
}

impl Tally {
    /// Sends calls one after the other; each takes a millisecond of the worker's time. The stream ends with the message, as Envoy ends it, or with
    /// an empty frame after it, as tonic does.
    async fn call(self: Arc<Self>, mut client: SendRequest<Bytes>, timeout: &'static str, ends_after: bool) {
        let message = framed(&ask("work").encode_to_vec());
        while !self.stop.load(Ordering::Relaxed) {
            let (answer, mut stream) = begin(&mut client, head(METHOD, &[("grpc-timeout", timeout)]), false).await;
            stream.send_data(message.clone(), !ends_after).expect("an open stream");
            if ends_after {
                stream.send_data(Bytes::new(), true).expect("an open stream");
            }
            let (headers, _, code) = read(answer).await;
            let count = match code {
                Code::Ok => &self.served,
                _ => {
                    assert_eq!((code, &headers["grpc-message"]), (Code::ResourceExhausted, &"overloaded".parse().expect("a text")));
                    &self.refused
                }
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counts(&self) -> (u64, u64) {
        (self.served.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }
}

/// Sends calls from many callers on a few connections until `enough` returns true. Returns the counts and the connections.
async fn overload(
    server: &Server,
    timeout: &'static str,
    enough: impl AsyncFn(&mut SendRequest<Bytes>, u64, u64) -> bool,
) -> (u64, u64, Vec<SendRequest<Bytes>>) {
    let tally = Arc::<Tally>::default();
    let (mut callers, mut clients) = (JoinSet::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let client = connect(server, 65_535).await;
        for index in 0..AT_A_TIME {
            callers.spawn(Arc::clone(&tally).call(client.clone(), timeout, index % 2 == 0));
        }
        clients.push(client);
    }
    let began = Instant::now();
    while !enough(&mut clients[0], tally.counts().0, tally.counts().1).await && began.elapsed() < LONG {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tally.stop.store(true, Ordering::Relaxed);
    callers.join_all().await;
    let (served, refused) = tally.counts();
    (served, refused, clients)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_waited_too_long_are_refused_and_connections_stay_usable() {
    let server = Server::start(Options::default());
    let (served, refused, mut clients) =
        overload(&server, ENVOYS_TIMEOUT, async |_, served, refused| served > 500 && refused > 2_000).await;
    assert!(served > 500 && refused > 2_000, "{served} were served and {refused} refused");
    assert_eq!(server.metric("weir_calls_refused_total"), Some(refused as f64), "each refusal is counted");

    // After the overload no call is refused.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let message = framed(&ask("x").encode_to_vec());
    for client in &mut clients {
        for _ in 0..30 {
            let (_, _, code) = call(client, head(METHOD, &[("grpc-timeout", ENVOYS_TIMEOUT)]), &[&message]).await;
            assert_eq!(code, Code::Ok, "it keeps up");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_with_a_long_timeout_are_answered() {
    let server = Server::start(Options::default());
    let (served, refused, _) = overload(&server, LONG_TIMEOUT, async |_, served, _| served > 1_000).await;
    assert!(served > 1_000);
    assert_eq!(refused, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_load_shedding_no_call_is_refused() {
    let server = Server::start(Options { sheds_load: false, ..Options::default() });
    let (served, refused, _) = overload(&server, ENVOYS_TIMEOUT, async |_, served, _| served > 1_000).await;
    assert!(served > 1_000);
    assert_eq!(refused, 0);
}

/// Health checks share the connection with calls that are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_checks_are_answered_under_overload() {
    let server = Server::start(Options::default());
    let answered = AtomicU64::new(0);
    let health = async |client: &mut SendRequest<Bytes>, _: u64, refused: u64| {
        let (_, _, code) = call(client, head("/grpc.health.v1.Health/Check", &[]), &[&framed(b"")]).await;
        assert_eq!(code, Code::Ok);
        refused > 0 && answered.fetch_add(1, Ordering::Relaxed) > 10
    };
    let (_, refused, _) = overload(&server, ENVOYS_TIMEOUT, health).await;
    assert!(refused > 0 && answered.load(Ordering::Relaxed) > 10, "{answered:?} beside {refused}");
}
