//! A worker that cannot keep up: calls whose deadlines passed while they waited in the socket are
//! refused, and all others are served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use prost::Message;
use tokio::task::JoinSet;
use tonic::Code;

use super::frames::{METHOD, begin, connect, framed, head, read};
use super::raw::{DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame};
use super::{Options, Server, request_of};

/// Calls that a receive buffer holds, and of which the server reads a few tens in one turn. Each
/// takes a millisecond of the worker's time.
const CALLS: usize = 180;

/// The `grpc-timeout` of Envoy's calls, and a long one.
const ENVOYS_TIMEOUT: Option<&str> = Some("20m");
const LONG_TIMEOUT: Option<&str> = Some("10S");

/// A call as Envoy sends it: its message follows its headers. With `traced`, a header enters the
/// table of header compression.
fn call(stream: usize, path: &str, timeout: Option<&str>, traced: bool, message: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    let mut put = |representation: u8, name: &str, value: &str| {
        block.extend_from_slice(&[representation, name.len() as u8]);
        block.extend_from_slice(name.as_bytes());
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    };
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "weir"),
        ("content-type", "application/grpc"),
    ] {
        put(0, name, value);
    }
    if let Some(timeout) = timeout {
        put(0, "grpc-timeout", timeout);
    }
    if traced {
        put(
            0x40,
            "traceparent",
            &format!("00-{stream:032x}-00f067aa0ba902b7-01"),
        );
    }
    let stream = u32::try_from(stream).expect("few");
    [
        frame(HEADERS, END_HEADERS, stream, &block),
        frame(DATA, END_STREAM, stream, &framed(message)),
    ]
    .concat()
}

trait Socket: Read + Write {}
impl<S: Read + Write> Socket for S {}

/// Sends calls all at once, the last to another service. Returns whether each was answered with a
/// message.
fn answered(server: &Server, timeouts: &[Option<&str>], traced: bool) -> Vec<bool> {
    let timed = |socket: &TcpStream| {
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a socket");
    };
    let mut socket: Box<dyn Socket> = match &server.tls {
        None => {
            let socket = TcpStream::connect(server.address).expect("a connection");
            timed(&socket);
            Box::new(socket)
        }
        Some(tls) => {
            let socket = tls.connect_blocking();
            timed(&socket.sock);
            Box::new(socket)
        }
    };
    let mut sent = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let message = request_of(&format!("work{}", " ".repeat(100))).encode_to_vec();
    for (index, timeout) in timeouts.iter().enumerate() {
        sent.extend(call(2 * index + 1, METHOD, *timeout, traced, &message));
    }
    sent.extend(call(
        2 * timeouts.len() + 1,
        "/grpc.health.v1.Health/Check",
        None,
        false,
        b"",
    ));
    socket.write_all(&sent).expect("a server");
    let mut answered = vec![false; timeouts.len() + 1];
    let mut open = answered.len();
    while open > 0 {
        let mut head = [0; 9];
        socket.read_exact(&mut head).expect("an answer");
        let [a, b, c, kind, flags, ref stream @ ..] = head;
        std::io::copy(
            &mut Read::by_ref(&mut socket).take(u32::from_be_bytes([0, a, b, c]).into()),
            &mut std::io::sink(),
        )
        .expect("an answer");
        let index = u32::from_be_bytes(*stream) as usize / 2;
        if kind == DATA {
            answered[index] = true;
        } else if kind == HEADERS && flags & 1 == 1 {
            open -= 1;
        }
    }
    answered
}

async fn in_background(
    server: Arc<Server>,
    timeouts: Vec<Option<&'static str>>,
    traced: bool,
) -> Vec<bool> {
    tokio::task::spawn_blocking(move || answered(&server, &timeouts, traced))
        .await
        .expect("no panic")
}

/// Calls of one connection have deadlines of their own, and a client that traces is treated as one
/// that does not.
#[tokio::test]
async fn a_call_is_refused_when_its_own_deadline_passed_in_the_socket() {
    for (traced, tls) in [(false, false), (true, false), (false, true)] {
        let server = Arc::new(if tls {
            Server::start_tls(Options::default())
        } else {
            Server::start(Options::default())
        });
        let timeouts = [ENVOYS_TIMEOUT, LONG_TIMEOUT, None]
            .into_iter()
            .cycle()
            .take(CALLS)
            .collect();
        let answered = in_background(Arc::clone(&server), timeouts, traced).await;
        let with = |timeout: usize| answered[..CALLS].iter().skip(timeout).step_by(3);
        assert!(
            with(1).chain(with(2)).all(|&answered| answered),
            "calls with time left are answered"
        );
        assert!(
            answered[0] && answered[CALLS],
            "the first call did not wait, and health is always answered"
        );
        // With TLS, Weir reads a record of up to 16 KiB at once, and knows the wait of its first
        // call only.
        let answered_late = with(0)
            .skip(CALLS / 6)
            .filter(|&&answered| answered)
            .count();
        assert!(
            answered_late <= if tls { CALLS / 24 } else { 0 },
            "the later half is refused, traced: {traced}, TLS: {tls}: {answered_late}"
        );
        let refused = with(0).filter(|&&answered| !answered).count();
        assert_eq!(
            server.metric("weir_calls_refused_total"),
            Some(refused as f64),
            "each refusal is counted"
        );
        assert_eq!(
            server.metric("weir_connections_behind{worker=\"0\"}"),
            Some(0.0),
            "some calls had time left"
        );
    }
}

#[tokio::test]
async fn without_load_shedding_no_call_is_refused() {
    let options = Options {
        sheds_load: false,
        ..Options::default()
    };
    for server in [Server::start(options), Server::start_tls(options)] {
        assert_eq!(
            in_background(Arc::new(server), vec![ENVOYS_TIMEOUT; CALLS], false).await,
            [true; CALLS + 1]
        );
    }
}

/// One connection brings more work than can be done within its deadlines; another one calls beside
/// it.
#[tokio::test]
async fn a_connection_that_brings_too_much_at_once_catches_up() {
    let server = Arc::new(Server::start(Options::default()));
    let flood = tokio::spawn(in_background(
        Arc::clone(&server),
        vec![ENVOYS_TIMEOUT; CALLS],
        false,
    ));
    let mut other = connect(&server, 65_535).await;
    for _ in 0..10 {
        assert_eq!(
            send(&mut other, ENVOYS_TIMEOUT, "x").await,
            Code::Ok,
            "others are served"
        );
    }
    let answered = flood.await.expect("no panic");
    let served = answered[..CALLS]
        .iter()
        .filter(|&&answered| answered)
        .count();
    assert!(
        served > 10 && served < CALLS / 2 && answered[CALLS],
        "{served} of {CALLS} were served"
    );
    assert_eq!(
        server.metric("weir_calls_refused_total"),
        Some((CALLS - served) as f64)
    );
    assert_eq!(
        server.metric("weir_connections_behind{worker=\"0\"}"),
        Some(0.0),
        "it has caught up"
    );
}

/// Makes a call and returns its code.
async fn send(client: &mut SendRequest<Bytes>, timeout: Option<&'static str>, text: &str) -> Code {
    let headers: Vec<_> = timeout
        .into_iter()
        .map(|timeout| ("grpc-timeout", timeout))
        .collect();
    let (answer, mut stream) = begin(client, head(METHOD, &headers), false).await;
    stream
        .send_data(framed(&request_of(text).encode_to_vec()), true)
        .expect("an open stream");
    read(answer).await.2
}

/// Calls one after the other, each of which takes a millisecond of the worker's time, until `stop`.
async fn keep_calling(
    mut client: SendRequest<Bytes>,
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
) {
    while !stop.load(Ordering::Relaxed) {
        let _ = send(&mut client, LONG_TIMEOUT, "work").await;
        answers.fetch_add(1, Ordering::Relaxed);
    }
}

/// A neighbour keeps the worker busy, and every call is answered within a few milliseconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sporadic_caller_beside_a_busy_connection_is_not_refused() {
    let server = Server::start(Options::default());
    let (stop, answers) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let busy = connect(&server, 65_535).await;
    let mut neighbours = JoinSet::new();
    for _ in 0..4 {
        neighbours.spawn(keep_calling(
            busy.clone(),
            Arc::clone(&stop),
            Arc::clone(&answers),
        ));
    }
    let mut sporadic = connect(&server, 65_535).await;
    let mut codes = Vec::new();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(60)).await;
        codes.push(send(&mut sporadic, Some("200m"), "x").await);
    }
    stop.store(true, Ordering::Relaxed);
    neighbours.join_all().await;
    assert!(
        answers.load(Ordering::Relaxed) > 400,
        "the worker was busy: {answers:?}"
    );
    assert_eq!(codes, [Code::Ok; 20]);
}
