//! How many allocations a whole call costs, from socket to socket: HTTP/2, gRPC and the decision.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use allocation_counter::measure;
use tokio::sync::watch;
use tokio_util::either::Either;
use tonic::{Request, Response, Status};

use super::connection::{WorkerState, serve};
use super::open_connections::OpenConnections;
use super::wire::tests::frame;
use super::{Budget, GrpcHealth, NewConnection, Options, Services};
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
fn client(mut socket: TcpStream, calls: u32) {
    socket
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .expect("a server");
    socket
        .write_all(&[frame(4, 0, 0, &[]), frame(4, 1, 0, &[])].concat())
        .expect("a server");
    for index in 0..calls {
        let stream = 2 * index + 1;
        socket.write_all(&call(stream)).expect("a server");
        while !ends(&mut socket, stream) {}
    }
}

/// Reads one frame. True: it ends the stream.
fn ends(socket: &mut TcpStream, stream: u32) -> bool {
    let mut head = [0; 9];
    socket.read_exact(&mut head).expect("an answer");
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    std::io::copy(&mut socket.take(length.into()), &mut std::io::sink()).expect("an answer");
    head[4] & 1 == 1
        && head[3] <= 1
        && u32::from_be_bytes([head[5], head[6], head[7], head[8]]) == stream
}

/// The allocations of a connection with `calls` calls.
fn connection(calls: u32) -> u64 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let asking =
        TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (stream, _) = listener.accept().expect("a connection");
    stream.set_nonblocking(true).expect("a socket");
    let (open, _) = OpenConnections::new(1).open().expect("the only one");
    let services = Services::new(
        Nothing,
        GrpcHealth::new(),
        Budget::new(128 << 20),
        Metrics::new(1, 0.8),
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let (_stay, phase) = watch::channel(None);
    let client = std::thread::spawn(move || client(asking, calls));
    let shared = Arc::new(WorkerState::new(
        0,
        services,
        Arc::default(),
        Options::default(),
    ));
    let serving = serve(
        NewConnection {
            stream: Either::Left(stream),
            tls: None,
            open,
        },
        shared,
        phase,
    );
    let counted = measure(|| runtime.block_on(serving)).count_total;
    client.join().expect("all were answered");
    counted
}

/// One for the answer, one for the future of the trait, two each for the header maps of headers and
/// trailers, and ten for the request's headers and their values.
#[test]
fn a_call_costs_sixteen_allocations() {
    let (few, many) = (connection(1_000), connection(3_000));
    let of_a_call = (many - few) as f64 / 2_000.0;
    assert!(
        (of_a_call - 16.0).abs() < 0.1,
        "{of_a_call} allocations per call"
    );
}
