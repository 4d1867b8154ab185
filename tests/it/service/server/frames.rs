//! Calls sent frame by frame by a low-level HTTP/2 client: split messages, incomplete messages,
//! small windows, resets, and too many calls.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use tokio::time::timeout;
use tonic::Code;

use super::{Options, Server, request_of};
use crate::support::wait::eventually_async;

const SECOND: Duration = Duration::from_secs(1);

pub(super) const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A connection whose streams have an initial window of this size.
pub(super) async fn connect(server: &Server, window_bytes: u32) -> SendRequest<Bytes> {
    connect_to(server.address, window_bytes).await
}

/// As [`connect`], to any server.
pub(super) async fn connect_to(address: SocketAddr, window_bytes: u32) -> SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(address)
        .await
        .expect("a connection");
    stream.set_nodelay(true).expect("a socket");
    let mut builder = h2::client::Builder::new();
    // Tests reset calls without reading their answers, which h2 takes for a flood of small frames.
    builder
        .initial_window_size(window_bytes)
        .data_frame_budget(usize::MAX);
    let (client, connection) = builder.handshake::<_, Bytes>(stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    client
}

pub(super) fn head(path: &str, headers: &[(&'static str, &'static str)]) -> Request<()> {
    let mut request = Request::post(format!("http://weir{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request")
}

pub(super) async fn begin(
    client: &mut SendRequest<Bytes>,
    head: Request<()>,
    whole: bool,
) -> (ResponseFuture, SendStream<Bytes>) {
    poll_fn(|context| client.poll_ready(context))
        .await
        .expect("an open connection");
    client
        .send_request(head, whole)
        .expect("an open connection")
}

pub(super) fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::from(&[0][..]);
    frame.extend_from_slice(&u32::try_from(message.len()).expect("short").to_be_bytes());
    frame.extend_from_slice(message);
    frame.freeze()
}

/// The headers, the body and the status of an answer.
pub(super) async fn read(answer: ResponseFuture) -> (HeaderMap, Vec<u8>, Code) {
    let (head, mut body): (_, RecvStream) = answer.await.expect("an answer").into_parts();
    assert_eq!(head.status, 200);
    assert_eq!(head.headers["content-type"], "application/grpc");
    let mut read = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.expect("the answer goes on");
        body.flow_control()
            .release_capacity(data.len())
            .expect("within the window");
        read.extend_from_slice(&data);
    }
    let trailers = body.trailers().await.expect("an end");
    let status = |headers: &HeaderMap| {
        headers
            .get("grpc-status")
            .map(|code| Code::from_bytes(code.as_bytes()))
    };
    let code = trailers
        .as_ref()
        .and_then(status)
        .or_else(|| status(&head.headers))
        .expect("a status");
    (head.headers, read, code)
}

/// Sends each of these pieces in its own frame, and reads the answer.
pub(super) async fn call(
    client: &mut SendRequest<Bytes>,
    head: Request<()>,
    pieces: &[&[u8]],
) -> (HeaderMap, Vec<u8>, Code) {
    let (answer, mut stream) = begin(client, head, pieces.is_empty()).await;
    for (index, piece) in pieces.iter().enumerate() {
        stream
            .send_data(Bytes::copy_from_slice(piece), index + 1 == pieces.len())
            .expect("an open stream");
        // So that it is sent before the next one.
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    read(answer).await
}

#[tokio::test]
async fn an_answer_waits_for_the_clients_window() {
    let server = Server::start(Options::default());
    for (window_bytes, length) in [(65_535, 0), (65_535, 1_000_000), (7, 1_000)] {
        let mut client = connect(&server, window_bytes).await;
        let message = framed(format!("long {length}").as_bytes());
        let (waits, mut stream) = begin(&mut client, head(METHOD, &[]), false).await;
        stream
            .send_data(message.clone(), true)
            .expect("an open stream");
        if window_bytes < 10 {
            // An answer that is not read does not block others.
            let (_, body, code) = call(&mut client, head(METHOD, &[]), &[&message]).await;
            assert_eq!((body.len(), code), (5 + length, Code::Ok));
        }
        let (_, body, code) = read(waits).await;
        assert_eq!(
            (body, code),
            (framed(&vec![7; length]).to_vec(), Code::Ok),
            "a window of {window_bytes}"
        );
    }
}

#[tokio::test]
async fn hundreds_of_calls_share_a_connection() {
    let server = Server::start(Options::default());
    let mut client = connect(&server, 65_535).await;
    let mut answers = Vec::new();
    for index in 0..300 {
        // Some of them wait, and must not block the others.
        let text = if index % 10 == 0 {
            format!("wait long {index}")
        } else {
            format!("long {index}")
        };
        let (answer, mut stream) = begin(&mut client, head(METHOD, &[]), false).await;
        stream
            .send_data(framed(text.as_bytes()), true)
            .expect("an open stream");
        answers.push(answer);
    }
    for (index, answer) in answers.into_iter().enumerate() {
        let (_, body, code) = read(answer).await;
        assert_eq!((body.len(), code), (5 + index, Code::Ok));
    }
}

/// A call whose client resets the stream or disconnects is dropped.
#[tokio::test]
async fn calls_of_a_client_that_disconnects_are_dropped() {
    let server = Server::start(Options::default());
    let held = || server.held.load(Ordering::Relaxed);
    let hold = async |client: &mut SendRequest<Bytes>| {
        let (answer, mut stream) = begin(client, head(METHOD, &[]), false).await;
        stream
            .send_data(framed(b"hold"), true)
            .expect("an open stream");
        (answer, stream)
    };
    let mut client = connect(&server, 65_535).await;
    let (first, mut reset) = hold(&mut client).await;
    let (second, open) = hold(&mut client).await;
    eventually_async(|| (held() == 2).then_some(()))
        .await
        .expect("both are held");
    reset.send_reset(h2::Reason::CANCEL);
    eventually_async(|| (held() == 1).then_some(()))
        .await
        .expect("one was reset");

    // A call in the middle of its message; then the whole connection ends.
    let (half, mut stream) = begin(&mut client, head(METHOD, &[]), false).await;
    stream
        .send_data(framed(b"hold").slice(..7), false)
        .expect("an open stream");
    drop((client, stream, half, first, reset, second, open));
    eventually_async(|| (held() == 0).then_some(()))
        .await
        .expect("all are gone");
    server
        .client()
        .await
        .should_rate_limit(request_of("x"))
        .await
        .expect("others are served");
}

/// Sends a whole message, and returns the answer to be read later.
pub(super) async fn send(client: &mut SendRequest<Bytes>, message: &[u8]) -> ResponseFuture {
    let (answer, mut stream) = begin(client, head(METHOD, &[]), false).await;
    stream
        .send_data(framed(message), true)
        .expect("an open stream");
    answer
}

/// Longer than a refusal takes on any machine.
const LONG: Duration = Duration::from_secs(10);

/// Health and reflection.
async fn assert_side_services_answer(client: &mut SendRequest<Bytes>) {
    let check = "/grpc.health.v1.Health/Check";
    assert_eq!(
        call(client, head(check, &[]), &[&framed(b"")]).await.2,
        Code::Ok,
        "health is answered"
    );
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    assert_eq!(
        call(client, head(reflection, &[]), &[&framed(b"\x3a\x00")])
            .await
            .2,
        Code::Ok,
        "and reflection"
    );
}

/// The number of waiting calls is limited. Calls that need not wait are answered all the same.
#[tokio::test]
async fn too_many_waiting_calls_are_refused_at_once() {
    let server = Server::start(Options {
        max_waiting_calls: 3,
        ..Options::default()
    });
    let refused = || server.metric("weir_calls_refused_total");
    let held = || server.held.load(Ordering::Relaxed);
    let (mut one, mut other) = (
        connect(&server, 65_535).await,
        connect(&server, 65_535).await,
    );
    let first = send(&mut one, b"hold").await;
    let second = send(&mut other, b"hold").await;
    eventually_async(|| (held() == 2).then_some(()))
        .await
        .expect("two are held");
    // Calls whose message has not arrived take no permit.
    let (half, mut rest) = begin(&mut other, head(METHOD, &[]), false).await;
    let message = framed(b"hold");
    rest.send_data(message.slice(..4), false)
        .expect("an open stream");
    let third = send(&mut other, b"hold").await;
    eventually_async(|| (held() == 3).then_some(()))
        .await
        .expect("a third is held");
    let refusal = timeout(LONG, read(send(&mut other, b"hold").await))
        .await
        .expect("it is refused and does not wait");
    assert_eq!(refusal.2, Code::ResourceExhausted);
    for client in [&mut one, &mut other] {
        assert_eq!(
            read(send(client, b"hold").await).await.2,
            Code::ResourceExhausted
        );
        let (_, body, code) = read(send(client, b"long 9").await).await;
        assert_eq!(
            (body.len(), code),
            (5 + 9, Code::Ok),
            "a call that need not wait is answered"
        );
        assert_side_services_answer(client).await;
    }
    assert_eq!(
        (refused(), held()),
        (Some(3.0), 3),
        "the other calls are not affected"
    );

    rest.send_data(message.slice(4..), true)
        .expect("an open stream");
    assert_eq!(
        read(half).await.2,
        Code::ResourceExhausted,
        "it has to wait when its message is whole"
    );
    drop(first);
    eventually_async(|| (held() == 2).then_some(()))
        .await
        .expect("one was dropped");
    let (whole, mut rest) = begin(&mut one, head(METHOD, &[]), false).await;
    rest.send_data(message.slice(..4), false)
        .expect("an open stream");
    tokio::time::sleep(Duration::from_millis(50)).await;
    rest.send_data(message.slice(4..), true)
        .expect("an open stream");
    eventually_async(|| (held() == 3).then_some(()))
        .await
        .expect("a message in two parts takes the permit");
    assert_eq!(refused(), Some(4.0));
    drop((second, third, whole));
}

/// It was asked to end when it was old, and a stream keeps it open.
#[tokio::test]
async fn an_old_connection_ends_when_a_new_one_needs_its_place() {
    let server = Server::start(Options {
        max_connections: 1,
        max_connection_age: Duration::from_millis(100),
        ..Options::default()
    });
    let mut old = connect(&server, 65_535).await;
    let watch = head("/grpc.health.v1.Health/Watch", &[]);
    let (answer, mut stream) = begin(&mut old, watch, false).await;
    stream.send_data(framed(b""), true).expect("an open stream");
    let mut body = answer.await.expect("an answer").into_body();
    body.data().await.expect("a status").expect("a status");
    assert!(timeout(2 * SECOND, body.data()).await.is_err(), "it stays");
    let mut new = connect(&server, 65_535).await;
    assert_eq!(read(send(&mut new, b"x").await).await.2, Code::Ok);
    let ended = timeout(10 * SECOND, body.data()).await.expect("it ends");
    assert!(ended.is_none_or(|data| data.is_err()));
}
