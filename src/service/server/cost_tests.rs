//! How many allocations a whole call costs, from socket to socket: HTTP/2, gRPC and the decision.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use allocation_counter::{AllocationInfo, measure};
use tokio::sync::watch;
use tokio_util::either::Either;
use tonic::{Request, Response, Status};

use super::body::STREAM_BYTES;
use super::connection::{PREFACE, WorkerState, serve};
use super::open_connections::{BUSY_BYTES, KEPT_STREAM_BYTES, OpenConnections};
use super::wire::tests::frame;
use super::{CONNECTION_BYTES, ClientBounds, GrpcHealth, NewConnection, Options, Services};
use crate::observe::metrics::Metrics;
use crate::service::kuadrant::KuadrantService;
use crate::service::rls::respond::Framed;
use crate::service::rls::{EncodedRequest, RateLimitService};

/// Answers with an empty response, which costs one allocation.
struct Nothing;

#[tonic::async_trait]
impl RateLimitService for Nothing {
    async fn should_rate_limit(
        self: Arc<Self>,
        _: Request<EncodedRequest>,
    ) -> Result<Response<Framed>, Status> {
        Ok(Response::new(Framed::new(&[8, 1])))
    }
}

impl KuadrantService for Nothing {}

/// A header as a literal without indexing. Source: RFC 7541, section 6.2.2.
fn literal(name: &str, value: &str) -> Vec<u8> {
    [
        &[0, name.len() as u8],
        name.as_bytes(),
        &[value.len() as u8],
        value.as_bytes(),
    ]
    .concat()
}

/// The frames of one call as Envoy sends it: the pseudo headers, five more headers, and a message
/// in one DATA frame.
fn call(stream: u32) -> Vec<u8> {
    let mut head = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", crate::core::proto::METHOD_PATH),
        (":authority", "weir"),
        ("te", "trailers"),
        ("grpc-timeout", "20m"),
        ("content-type", "application/grpc"),
        ("x-envoy-internal", "true"),
        ("x-forwarded-for", "10.0.0.1"),
    ] {
        head.extend(literal(name, value));
    }
    [
        frame(1, 4, stream, &head),
        frame(0, 1, stream, b"\0\0\0\0\x03\x0a\x01d"),
    ]
    .concat()
}

/// Makes `calls` calls, one after the other.
fn client(socket: &mut TcpStream, calls: u32) {
    socket.write_all(PREFACE).expect("a server");
    socket
        .write_all(&[frame(4, 0, 0, &[]), frame(4, 1, 0, &[])].concat())
        .expect("a server");
    for index in 0..calls {
        let stream = 2 * index + 1;
        socket.write_all(&call(stream)).expect("a server");
        while !ends(socket, stream) {}
    }
}

/// Reads one frame, and returns its header.
fn read_frame(socket: &mut TcpStream) -> [u8; 9] {
    let mut head = [0; 9];
    socket.read_exact(&mut head).expect("an answer");
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    std::io::copy(&mut socket.take(length.into()), &mut std::io::sink()).expect("an answer");
    head
}

/// Reads one frame. True: it ends the stream.
fn ends(socket: &mut TcpStream, stream: u32) -> bool {
    let head = read_frame(socket);
    head[4] & 1 == 1
        && head[3] <= 1
        && u32::from_be_bytes([head[5], head[6], head[7], head[8]]) == stream
}

/// What a connection allocates until `client` returns, and `client`'s socket is dropped.
fn connection(
    client: impl FnOnce(&mut TcpStream) + Send + 'static,
    bounds: &ClientBounds,
) -> AllocationInfo {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let mut asking =
        TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (stream, _) = listener.accept().expect("a connection");
    stream.set_nonblocking(true).expect("a socket");
    let all = OpenConnections::new(&Options::default());
    // Many others: a connection of few keeps more.
    let _others: Vec<_> = (0..512).map(|_| all.open()).collect();
    let (open, _) = all.open().expect("another one");
    let services = Services::new(
        Nothing,
        GrpcHealth::new(),
        bounds.clone(),
        Metrics::new(1, 0.8),
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let (_stay, phase) = watch::channel(None);
    let shared = Arc::new(WorkerState::new(
        0,
        services,
        Arc::default(),
        Options {
            sheds_load: false,
            ..Options::default()
        },
    ));
    let connection = NewConnection {
        stream: Either::Left(stream),
        tls: None,
        open,
    };
    let (done, is_done) = tokio::sync::oneshot::channel();
    let client = std::thread::spawn(move || {
        client(&mut asking);
        done.send(()).expect("it is awaited");
        asking
    });
    let counted = measure(|| {
        let serving = serve(connection, shared, phase);
        let serving = runtime.spawn(serving);
        runtime.block_on(is_done).expect("all were answered");
        drop(serving);
    });
    drop(client.join());
    counted
}

/// One for the answer, one for the future of the trait, two each for the header maps of headers and
/// trailers, and ten for the request's headers and their values.
#[test]
fn a_call_costs_sixteen_allocations() {
    let of_all = |calls| {
        let bounds = ClientBounds::new(128 << 20);
        connection(move |socket| client(socket, calls), &bounds).count_total
    };
    let (few, many) = (of_all(1_000), of_all(3_000));
    let of_a_call = (many - few) as f64 / 2_000.0;
    assert!(
        (of_a_call - 16.0).abs() < 0.1,
        "{of_a_call} allocations per call"
    );
}

/// Sends these frames on a new connection, and waits until the server has read them.
fn sent(frames: Vec<u8>) -> impl FnOnce(&mut TcpStream) + Send + 'static {
    move |socket| {
        let ping = frame(6, 0, 0, &[7; 8]);
        let all = [
            &PREFACE[..],
            &frame(4, 0, 0, &[]),
            &frame(4, 1, 0, &[]),
            &frames,
            &ping,
        ]
        .concat();
        socket.write_all(&all).expect("a server");
        while read_frame(socket)[3..5] != [6, 1] {}
    }
}

/// The bytes that a connection holds when it has served these frames.
fn held(frames: Vec<u8>) -> i64 {
    connection(sent(frames), &ClientBounds::new(128 << 20)).bytes_current
}

/// A thousand frames, or pairs of them, for as many streams.
fn thousand(frames: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    (0..1_000).flat_map(|index| frames(2 * index + 1)).collect()
}

/// The headers of a call, without its message.
fn head(stream: u32) -> Vec<u8> {
    let call = call(stream);
    call[..9 + usize::from(call[2])].to_vec()
}

/// The constants are at most twice the truth, and never less.
#[track_caller]
fn assert_counts_for(bytes: i64, counted: u64) {
    println!("{bytes} bytes, counted as {counted}");
    let counted = i64::try_from(counted).expect("a size");
    assert!(
        (counted / 2..=counted).contains(&bytes),
        "{bytes} of {counted}"
    );
}

#[test]
fn a_connection_that_was_busy_holds_what_it_counts_for() {
    assert_counts_for(held(thousand(call)), CONNECTION_BYTES + BUSY_BYTES);
}

/// HTTP/2 keeps the room of its calls, which the rest of a call does not.
#[test]
fn a_call_that_waits_holds_what_it_counts_for() {
    let idle = held(call(1));
    let reset = |stream| frame(3, 0, stream, &[0, 0, 0, 8]);
    let [waiting, kept] = [
        held(thousand(head)),
        held([thousand(head), thousand(reset)].concat()),
    ];
    assert_counts_for((kept - idle) / 1_000, KEPT_STREAM_BYTES);
    assert_counts_for((waiting - kept) / 1_000, STREAM_BYTES as u64);
}
