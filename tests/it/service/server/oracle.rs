//! tonic's own server as the oracle of the listener: with the same service, every kind of call gets
//! the same answer from both, except where [`DIFFERENCES`] gives the reason.
//!
//! The words of an error that the transport finds are each server's own.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, HeaderValue, Request};
use prost::Message;
use tokio::sync::watch;
use tokio::time::timeout;
use weir::core::proto::RateLimitResponse;
use weir::observe::metrics::Metrics;
use weir::service::rls::RateLimitServiceServer;
use weir::service::server::{
    self, Acceptor, ClientBounds, GrpcHealth, Listener, Services, TcpAddress, Workers,
};

use super::Options;
use super::frames::{METHOD, begin, connect_to, framed, head};
use crate::support::wait::TIMEOUT;
use crate::support::workload;
use crate::support::{descriptor, request};

/// Calls that both answer differently: the case, the answer of the listener, the answer of tonic,
/// and the reason.
const DIFFERENCES: &[(&str, &str, &str, &str)] = &[
    ("JSON", "HTTP 415", "OK", NOT_GRPC),
    ("gRPC-Web", "HTTP 415", "OK", NOT_GRPC),
    ("PUT", "HTTP 405", "OK", NOT_GRPC),
];

const NOT_GRPC: &str = "gRPC over HTTP/2, Requests: POST, and application/grpc";

/// An answer.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    headers: Vec<String>,
    message: Option<RateLimitResponse>,
    trailers: Vec<String>,
}

impl Answer {
    /// The code: of HTTP, or of gRPC.
    fn code(&self) -> String {
        let mut all = self.headers.iter().chain(&self.trailers);
        match all.find_map(|header| header.strip_prefix("grpc-status: ")) {
            Some("0") => "OK".to_owned(),
            Some(code) => code.to_owned(),
            None => format!("HTTP {}", self.status),
        }
    }

    /// Removes the words of an error that the transport finds: OUT_OF_RANGE, UNIMPLEMENTED,
    /// INTERNAL.
    fn without_words(mut self) -> Self {
        if ["11", "12", "13"].contains(&&*self.code()) {
            self.headers
                .retain(|header| !header.starts_with("grpc-message: "));
        }
        self
    }
}

/// All headers in order; not the date, nor the length of an empty body.
fn sorted(headers: &HeaderMap) -> Vec<String> {
    let mut sorted: Vec<String> = headers
        .iter()
        .filter(|(name, _)| !["date", "content-length"].contains(&name.as_str()))
        .map(|(name, value)| format!("{name}: {}", value.to_str().expect("text")))
        .collect();
    sorted.sort();
    sorted
}

/// One call: a request, and the pieces of its body, each in a frame of its own.
struct Case {
    name: &'static str,
    head: Request<()>,
    pieces: Vec<Bytes>,
}

impl Case {
    fn new(name: &'static str, pieces: Vec<Bytes>) -> Self {
        Self {
            name,
            head: head(METHOD, &[]),
            pieces,
        }
    }

    fn with(mut self, headers: &[(&'static str, &'static str)]) -> Self {
        for (name, value) in headers {
            let value = HeaderValue::from_static(value);
            self.head.headers_mut().insert(*name, value);
        }
        self
    }

    fn at(mut self, path: &str) -> Self {
        *self.head.uri_mut() = format!("http://weir{path}").parse().expect("a path");
        self
    }

    async fn answer(&self, client: &mut SendRequest<Bytes>) -> Answer {
        let mut head = Request::new(());
        *head.method_mut() = self.head.method().clone();
        *head.uri_mut() = self.head.uri().clone();
        *head.headers_mut() = self.head.headers().clone();
        let (answer, mut stream) = begin(client, head, self.pieces.is_empty()).await;
        for (index, piece) in self.pieces.iter().enumerate() {
            let is_last = index + 1 == self.pieces.len();
            // A refused call may have ended already.
            let _ = stream.send_data(piece.clone(), is_last);
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        let answer = timeout(TIMEOUT, answer).await.expect("an answer in time");
        let (head, mut body) = answer.expect("an answer").into_parts();
        let mut bytes = Vec::new();
        while let Some(Ok(data)) = body.data().await {
            bytes.extend_from_slice(&data);
        }
        let trailers = body.trailers().await.ok().flatten();
        let message = bytes.get(5..).map(|message| {
            let mut message = RateLimitResponse::decode(message).expect("a response");
            // The second may end between the two calls.
            for status in &mut message.statuses {
                status.duration_until_reset = None;
            }
            message
        });
        let answer = Answer {
            status: head.status.as_u16(),
            headers: sorted(&head.headers),
            message,
            trailers: sorted(&trailers.unwrap_or_default()),
        };
        answer.without_words()
    }
}

fn encoded(entries: &[(&str, &str)]) -> Vec<u8> {
    request("shop", vec![descriptor(entries)]).encode_to_vec()
}

/// A message of a limit whose counter only cases have that both decide.
fn usual() -> Vec<u8> {
    encoded(&[("product", "p-1"), ("customer", "c"), ("path", "/1")])
}

/// A message for what only one of both decides.
fn aside() -> Vec<u8> {
    encoded(&[("product", "p-1"), ("customer", "c"), ("path", "/2")])
}

/// Messages of every kind, and the ways in which they arrive.
fn messages() -> Vec<Case> {
    let whole = framed(&usual());
    let with_flag = |flag: u8| Bytes::from([&[flag], &whole[1..]].concat());
    let bytes = |from: usize, to: usize| whole.slice(from..to);
    let end = whole.len();
    let mut many = request("shop", vec![]);
    many.descriptors = vec![descriptor(&[("product", "p-1"), ("customer", "many")]); 40];
    let no_domain = request("", vec![descriptor(&[("a", "b")])]);
    let no_descriptors = request("shop", vec![]);
    let one = |name, message: &[u8]| Case::new(name, vec![framed(message)]);
    let mut cases = vec![
        one("a usual call", &usual()),
        one("many descriptors", &many.encode_to_vec()),
        one("no limit", &encoded(&[("other", "x")])),
        one(
            "a long value",
            &encoded(&[("product", &"x".repeat(100_000))]),
        ),
        one(
            "more than 4 MiB",
            &encoded(&[("product", &"x".repeat(5 << 20))]),
        ),
        one("an empty message", b""),
        one("malformed protobuf", b"\x0a\xff\xff"),
        one("no domain", &no_domain.encode_to_vec()),
        one("no descriptors", &no_descriptors.encode_to_vec()),
    ];
    for (name, pieces) in [
        ("in two pieces", vec![bytes(0, 7), bytes(7, end)]),
        (
            "byte by byte",
            (0..end).map(|at| bytes(at, at + 1)).collect(),
        ),
        ("an empty last frame", vec![whole.clone(), Bytes::new()]),
        ("two messages", vec![whole.clone(), whole.clone()]),
        ("no message", vec![]),
        ("an empty body", vec![Bytes::new()]),
        ("half a prefix", vec![bytes(0, 3)]),
        ("half a message", vec![bytes(0, 9)]),
        ("an unknown flag", vec![with_flag(2)]),
        ("compressed without an encoding", vec![with_flag(1)]),
    ] {
        cases.push(Case::new(name, pieces));
    }
    let (encoding, aside) = ("grpc-encoding", aside());
    for (name, message, value) in [
        ("gzip", with_flag(1), "gzip"),
        ("gzip, not compressed", framed(&aside), "gzip"),
        ("another encoding", with_flag(1), "br"),
        ("identity", whole.clone(), "identity"),
    ] {
        cases.push(Case::new(name, vec![message]).with(&[(encoding, value)]));
    }
    cases
}

const CONTENT: &str = "content-type";

/// Methods, paths and headers.
fn heads() -> Vec<Case> {
    let (usual, aside) = (framed(&usual()), framed(&aside()));
    let one = |name, message: &Bytes| Case::new(name, vec![message.clone()]);
    let mut cases = vec![
        one("another method", &usual).at("/envoy.service.ratelimit.v3.RateLimitService/Other"),
        one("another service", &usual).at("/x.Y/Z"),
        one("no path", &usual).at("/"),
    ];
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for (name, message, header, value) in [
        ("a deadline", &usual, "grpc-timeout", "2S"),
        ("a malformed deadline", &usual, "grpc-timeout", "soon"),
        ("a very long deadline", &usual, "grpc-timeout", "99999999H"),
        ("with a format", &usual, CONTENT, "application/grpc+proto"),
        (
            "with a parameter",
            &usual,
            CONTENT,
            "application/grpc;charset=utf-8",
        ),
        ("in capitals", &usual, CONTENT, "Application/gRPC"),
        ("JSON", &aside, CONTENT, "application/json"),
        ("gRPC-Web", &aside, CONTENT, "application/grpc-web"),
        ("with a trace", &usual, "traceparent", trace),
        ("with a binary header", &usual, "x-any-bin", "AAEC"),
    ] {
        cases.push(one(name, message).with(&[(header, value)]));
    }
    let mut put = one("PUT", &aside);
    *put.head.method_mut() = http::Method::PUT;
    cases.push(put);
    cases
}

/// The address of the listener, with the sender whose drop stops it.
fn listener() -> (SocketAddr, watch::Sender<bool>) {
    let listener = server::listen(TcpAddress::One(([127, 0, 0, 1], 0).into())).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let metrics = Metrics::new(1, 0.8);
    let shared = Arc::clone(&metrics);
    let services = move |_| {
        let budget = ClientBounds::new(128 << 20);
        Services::new(
            workload::service(),
            GrpcHealth::new(),
            budget,
            Arc::clone(&shared),
        )
    };
    let workers = Workers::start(1, Options::default(), services).expect("a worker");
    let acceptor = Acceptor::Plaintext(Arc::new(workers));
    let (stop, stopping) = watch::channel(false);
    tokio::spawn(server::accept(
        Listener::Tcp(listener),
        acceptor,
        Options::default(),
        metrics,
        stopping,
    ));
    (address, stop)
}

/// The address of tonic's server.
async fn oracle() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("an address");
    let service = RateLimitServiceServer::new(workload::service());
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(incoming),
    );
    address
}

#[tokio::test]
async fn the_listener_answers_as_tonic_does() {
    let (address, _stop) = listener();
    let mut weir = connect_to(address, 1 << 20).await;
    let mut tonic = connect_to(oracle().await, 1 << 20).await;
    let (mut found, mut explained) = (Vec::new(), String::new());
    for case in messages().into_iter().chain(heads()) {
        let (own, other) = (case.answer(&mut weir).await, case.answer(&mut tonic).await);
        if own != other {
            found.push((case.name, own.code(), other.code()));
            let _ = writeln!(explained, "{}:\n  {own:?}\n  {other:?}", case.name);
        }
    }
    let expected = DIFFERENCES
        .iter()
        .map(|&(name, own, other, _)| (name, own.to_owned(), other.to_owned()));
    assert_eq!(found, expected.collect::<Vec<_>>(), "{explained}");
}
