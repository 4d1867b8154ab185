//! Answers that their clients do not take, because they give no flow-control window or do not read
//! the socket: they take bounded memory for a bounded time.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use socket2::{Domain, Socket, Type};
use tokio::time::timeout;
use tonic::Code;
use weir::service::server::ClientBounds;

use super::frames::{METHOD, begin, call, connect, connect_to, framed, head, read, send};
use super::raw::{
    DATA, END_HEADERS, END_STREAM, HEADERS, MIB, PREFACE, SETTINGS, SETTINGS_ACK, WINDOW_UPDATE,
    fields, frame,
};
use super::resets::resets;
use super::{Options, Server};
use crate::support::wait::{TIMEOUT, eventually, eventually_async, eventually_within};
use crate::support::{DEMO, Weir, descriptor, request};

/// The largest window. Source: RFC 9113, section 6.9.1.
const MAX_WINDOW: u32 = (1 << 31) - 1;

fn short() -> ClientBounds {
    let mut budget = ClientBounds::new(128 << 20);
    budget.taken_within = Duration::from_millis(300);
    budget
}

/// A call with a large answer: 250 descriptors, each with the status of a limit.
fn large_answer() -> Bytes {
    let values: Vec<_> = (0..250).map(|index| format!("{index}")).collect();
    let descriptors = values
        .iter()
        .map(|value| descriptor(&[("year", value)]))
        .collect();
    framed(&prost::Message::encode_to_vec(&request(
        "demo",
        descriptors,
    )))
}

#[tokio::test]
async fn a_stream_without_a_window_is_reset_in_time() {
    let server = Server::start_with(Options::default(), short());
    let mut client = connect(&server, 0).await;
    for (path, message) in [
        (METHOD, framed(b"long 9")),
        ("/grpc.health.v1.Health/Check", framed(b"")),
        ("/grpc.health.v1.Health/Watch", framed(b"")),
        (
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            framed(b"\x3a\x00"),
        ),
    ] {
        for pieces in [1, 2] {
            let (answer, mut stream) = begin(&mut client, head(path, &[]), false).await;
            let (first, second) = message.split_at(if pieces == 1 { 0 } else { 3 });
            for (piece, is_last) in [(first, false), (second, true)] {
                stream
                    .send_data(Bytes::copy_from_slice(piece), is_last)
                    .expect("an open stream");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let mut body = answer.await.expect("the head of an answer").into_body();
            let data = timeout(TIMEOUT, body.data())
                .await
                .unwrap_or_else(|_| panic!("{path} stays open"))
                .expect("no end");
            assert_eq!(
                data.expect_err("no data").reason(),
                Some(h2::Reason::CANCEL),
                "{path} in {pieces} pieces"
            );
        }
    }
    // A window for a part of the answer prolongs nothing.
    let mut narrow = connect(&server, 10).await;
    let mut body = send(&mut narrow, b"long 100")
        .await
        .await
        .expect("the head of an answer")
        .into_body();
    assert_eq!(
        timeout(TIMEOUT, body.data())
            .await
            .expect("data")
            .expect("data")
            .expect("data")
            .len(),
        10
    );
    let reset = timeout(TIMEOUT, body.data())
        .await
        .expect("in time")
        .expect("no end")
        .expect_err("no more data");
    assert_eq!(reset.reason(), Some(h2::Reason::CANCEL));
    let mut client = connect(&server, 65_535).await;
    assert_eq!(
        call(&mut client, head(METHOD, &[]), &[&framed(b"long 9")])
            .await
            .2,
        Code::Ok,
        "others are served"
    );
    assert_eq!(resets(&server), [0; 2], "HTTP/2 has reset none");
}

/// Its hits have counted, and its client gets an error.
#[tokio::test]
async fn a_call_without_memory_for_its_answer_is_refused() {
    let options = Options {
        connections_bytes: 64 << 10,
        ..Options::default()
    };
    let server = Server::start_with(options, short());
    let mut client = connect(&server, 0).await;
    let mut answers = Vec::new();
    // A quarter of the memory has room for 16 more than the first 16.
    for _ in 0..33 {
        answers.push(send(&mut client, b"long 9").await);
    }
    let refused = || server.metric("weir_calls_refused_total");
    eventually_async(|| (refused() > Some(0.0)).then_some(()))
        .await
        .expect("the last one is counted");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(refused(), Some(1.0), "the others have their time");
}

#[tokio::test]
async fn a_slow_client_gets_its_whole_answer() {
    let server = Server::start(Options::default());
    let mut client = connect(&server, 1_000).await;
    let message = framed(b"long 300000");
    let (_, body, code) = call(&mut client, head(METHOD, &[]), &[&message]).await;
    assert_eq!(
        (body.len(), code),
        (5 + 300_000, Code::Ok),
        "in pieces of 1,000 bytes"
    );
}

/// Each of 5,000 answers stayed for ever. Now the oldest end when all take the memory for what is
/// unfinished, and all end in time.
#[tokio::test(flavor = "multi_thread")]
async fn answers_without_a_window_share_a_budget() {
    let weir = Weir::start(DEMO, &[("MEMORY_LIMIT", "64Mi")]);
    let message = large_answer();
    let mut usual = connect_to(weir.grpc_addr(), 65_535).await;
    let answer_bytes = call(&mut usual, head(METHOD, &[]), &[&message])
        .await
        .1
        .len();
    let before = weir.resident_kib();
    let (mut clients, mut open) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let mut client = connect_to(weir.grpc_addr(), 0).await;
        let mut answers = Vec::new();
        for _ in 0..250 {
            let (answer, mut stream) = begin(&mut client, head(METHOD, &[]), false).await;
            stream
                .send_data(message.clone(), true)
                .expect("an open stream");
            answers.push(answer);
        }
        for answer in answers {
            // The oldest may have ended already.
            if let Ok(answer) = timeout(TIMEOUT, answer)
                .await
                .expect("the head of an answer")
            {
                open.push(answer.into_body());
            }
        }
        clients.push(client);
        assert_eq!(
            call(&mut usual, head(METHOD, &[]), &[&message]).await.2,
            Code::Ok
        );
    }
    let grown = weir.resident_kib().saturating_sub(before) / MIB;
    let all = 20 * 250 * answer_bytes / 1_048_576;
    assert!(
        all > 25 && grown < 20,
        "answers of {answer_bytes} bytes, {all} MiB, take {grown} MiB"
    );
    for mut body in open.into_iter().rev().take(100) {
        let data = timeout(TIMEOUT, body.data())
            .await
            .expect("it ends in time")
            .expect("no end");
        // A connection that holds the most memory ends as a whole.
        let error = data.expect_err("no data");
        let is_ended = error.is_io() || error.is_go_away();
        assert!(
            is_ended || error.reason() == Some(h2::Reason::CANCEL),
            "{error}"
        );
    }
    drop(clients);
}

/// A client that gives all windows there are, and reads nothing.
struct Deaf {
    socket: TcpStream,
    next_stream: u32,
}

impl Deaf {
    fn connect(address: SocketAddr) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        // So that the kernel takes little of what Weir writes.
        socket
            .set_recv_buffer_size(4 << 10)
            .expect("a small buffer");
        socket.connect(&address.into()).expect("a connection");
        let mut socket = TcpStream::from(socket);
        socket.set_nonblocking(true).expect("a socket");
        let window = [&[0, 4], &MAX_WINDOW.to_be_bytes()[..]].concat();
        let more = (MAX_WINDOW - 65_535).to_be_bytes();
        let hello = [
            PREFACE,
            &frame(SETTINGS, 0, 0, &window),
            &frame(SETTINGS, SETTINGS_ACK, 0, &[]),
            &frame(WINDOW_UPDATE, 0, 0, &more),
        ]
        .concat();
        socket.write_all(&hello).expect("a server");
        Self {
            socket,
            next_stream: 1,
        }
    }

    /// Sends calls until the connection takes no more, at most this many.
    fn call(&mut self, message: &[u8], most: usize) {
        let headers = fields("weir");
        for _ in 0..most {
            let mut sent = frame(HEADERS, END_HEADERS, self.next_stream, &headers);
            for (index, piece) in message.chunks(16_384).enumerate() {
                let is_last = (index + 1) * 16_384 >= message.len();
                sent.extend(frame(
                    DATA,
                    u8::from(is_last) * END_STREAM,
                    self.next_stream,
                    piece,
                ));
            }
            self.next_stream += 2;
            let mut rest = &sent[..];
            let written = eventually_within(Duration::from_millis(100), || {
                match self.socket.write(rest) {
                    Ok(count) => {
                        rest = &rest[count..];
                        rest.is_empty().then_some(())
                    }
                    Err(_) => None,
                }
            });
            if written.is_none() {
                return;
            }
        }
    }

    /// Whether the server has closed the connection. Writes, because what it has not read hides the
    /// end.
    fn is_closed(&mut self) -> bool {
        // A ping. Source: RFC 9113, section 6.7.
        let written = self.socket.write(&frame(6, 0, 0, &[0; 8]));
        matches!(written, Err(error) if error.kind() != ErrorKind::WouldBlock)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_client_does_not_read_is_closed_in_time() {
    let server = Server::start_with(Options::default(), short());
    let mut deaf = Deaf::connect(server.address);
    let begun = Instant::now();
    tokio::task::spawn_blocking(move || {
        deaf.call(&framed(b"long 1000000"), 50);
        eventually(|| deaf.is_closed().then_some(())).expect("it is closed");
    })
    .await
    .expect("no panic");
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "before a ping finds out: {:?}",
        begun.elapsed()
    );
    assert_eq!(
        server.metric("weir_http2_connection_errors_total{reason=\"not_read\"}"),
        Some(1.0)
    );
    let mut client = connect(&server, 65_535).await;
    assert_eq!(
        call(&mut client, head(METHOD, &[]), &[&framed(b"long 9")])
            .await
            .2,
        Code::Ok,
        "others are served"
    );
}

/// Weir reads nothing more from a client that does not read, so that answers do not pile up.
#[test]
fn answers_that_are_not_read_take_bounded_memory() {
    let weir = Weir::start(DEMO, &[]);
    let message = large_answer();
    let mut first = Deaf::connect(weir.grpc_addr());
    first.call(&message, 1);
    first.socket.set_nonblocking(false).expect("a socket");
    first
        .socket
        .set_read_timeout(Some(TIMEOUT))
        .expect("a socket");
    assert!(first.socket.read(&mut [0; 1_000]).expect("an answer") > 0);
    let before = weir.resident_kib();
    let mut clients: Vec<_> = (0..10).map(|_| Deaf::connect(weir.grpc_addr())).collect();
    for client in &mut clients {
        client.call(&message, 1_000);
    }
    let grown = weir.resident_kib().saturating_sub(before) / MIB;
    assert!(grown < 22, "10 clients that do not read take {grown} MiB");
    // Six times what an idle machine needs: other suites run beside this one.
    for client in &mut clients {
        eventually_within(3 * TIMEOUT, || client.is_closed().then_some(()))
            .expect("each is closed");
    }
}

/// A client that begins to read in time gets everything, and its connection goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_pauses_reading_gets_all_answers() {
    let server = Server::start(Options::default());
    let mut deaf = Deaf::connect(server.address);
    let frames = tokio::task::spawn_blocking(move || {
        deaf.call(&framed(b"long 1000000"), 20);
        std::thread::yield_now();
        deaf.socket.set_nonblocking(false).expect("a socket");
        deaf.socket
            .set_read_timeout(Some(TIMEOUT))
            .expect("a socket");
        let (mut ends, mut bytes) = (0, 0);
        while ends < 20 {
            let mut header = [0; 9];
            deaf.socket.read_exact(&mut header).expect("a frame");
            let [a, b, c, kind, flags, ..] = header;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            deaf.socket
                .read_exact(&mut vec![0; length])
                .expect("a whole frame");
            bytes += if kind == DATA { length } else { 0 };
            ends += usize::from(kind == HEADERS && flags & END_STREAM != 0);
        }
        bytes
    });
    assert_eq!(frames.await.expect("no panic"), 20 * (5 + 1_000_000));
    let mut client = connect(&server, 65_535).await;
    let message = framed(b"long 9");
    assert_eq!(
        read(send(&mut client, &message[5..]).await).await.2,
        Code::Ok
    );
}
