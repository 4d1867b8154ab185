//! Streams that HTTP/2 resets for an error of their client: they are counted and logged, other
//! calls of the connection go on, and the memory is bounded.

use std::io::Write;

use super::frames::{METHOD, begin, connect_to, framed, head as request_head};
use super::raw::{
    DATA, END_HEADERS, END_STREAM, HEADERS, LIMITS, MIB, RST_STREAM, WINDOW_UPDATE, answered,
    connect, fields, frame, is_closed, literal, message, read_frame, wait_until_read,
};
use super::{Options, Server};
use crate::support::Weir;
use crate::support::wait::{eventually, eventually_async};

/// Weir closes a connection with more resets than this.
const MAX_RESETS: u32 = 65_536;

/// A call whose message is still to come.
fn head(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &fields("weir"))
}

/// A header that HTTP/2 forbids, which is an error of its stream. Source: RFC 9113, section 8.2.2.
fn malformed(stream: u32) -> Vec<u8> {
    frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        stream,
        &literal("connection", "close"),
    )
}

/// The calls that HTTP/2 has reset, and the connections that ended for an error.
pub(super) fn resets(server: &Server) -> [u64; 2] {
    let text = server.metrics.encode();
    [
        "weir_http2_stream_resets_total{",
        "weir_http2_connection_errors_total{",
    ]
    .map(|name| {
        let counts = text
            .lines()
            .filter(|line| line.starts_with(name))
            .map(|line| line.rsplit_once(' ').expect("a value").1);
        counts
            .map(|count| count.parse::<u64>().expect("a count"))
            .sum()
    })
}

fn reset(weir: &Weir, reason: &str) -> Option<f64> {
    weir.metric(&format!(
        "weir_http2_stream_resets_total{{reason=\"{reason}\"}}"
    ))
}

fn ended(weir: &Weir, reason: &str) -> Option<f64> {
    weir.metric(&format!(
        "weir_http2_connection_errors_total{{reason=\"{reason}\"}}"
    ))
}

/// Reads frames until this stream is reset; returns the error code.
fn code_of_reset(socket: &mut std::net::TcpStream, stream: u32) -> u32 {
    loop {
        let (kind, _, id, payload) = read_frame(socket).expect("an open connection");
        if (kind, id) == (RST_STREAM, stream) {
            return u32::from_be_bytes(payload.try_into().expect("four bytes"));
        }
    }
}

/// What HTTP/2 resets by itself, Envoy lets pass: it is counted by its reason, and one line a
/// minute says so.
#[tokio::test(flavor = "multi_thread")]
async fn resets_are_counted_by_reason_and_logged() {
    let weir = Weir::start(LIMITS, &[("LOG_LEVEL", "info")]);
    assert_eq!(
        [
            reset(&weir, "protocol_error"),
            reset(&weir, "refused_stream")
        ],
        [Some(0.0); 2],
        "an alert finds them"
    );
    assert_eq!(
        [
            ended(&weir, "protocol_error"),
            reset(&weir, "flow_control_error")
        ],
        [Some(0.0), None]
    );
    let mut socket = connect(weir.grpc_addr());
    // An authority that no URI can have, and a header that HTTP/2 forbids.
    socket
        .write_all(&frame(HEADERS, END_HEADERS, 1, &fields("a b")))
        .expect("a server");
    assert_eq!(code_of_reset(&mut socket, 1), 1);
    let line = weir.wait_for_log("Envoy's failure mode decided").await;
    assert!(line.contains("protocol_error 1"), "{line}");
    socket.write_all(&malformed(3)).expect("a server");
    assert_eq!(code_of_reset(&mut socket, 3), 1);
    // A window that is larger than any may be.
    socket
        .write_all(
            &[
                head(5),
                frame(WINDOW_UPDATE, 0, 5, &0x7fff_ffff_u32.to_be_bytes()),
            ]
            .concat(),
        )
        .expect("a server");
    assert_eq!(code_of_reset(&mut socket, 5), 3);
    // More calls at a time than Weir accepts.
    socket
        .write_all(
            &(0..1_025)
                .map(|index| head(7 + 2 * index))
                .collect::<Vec<_>>()
                .concat(),
        )
        .expect("a server");
    assert_eq!(code_of_reset(&mut socket, 7 + 2 * 1_024), 7);
    let counts = ["protocol_error", "flow_control_error", "refused_stream"]
        .map(|reason| reset(&weir, reason));
    assert_eq!(counts, [Some(2.0), Some(1.0), Some(1.0)]);
    // DATA outside of a stream is an error of the connection.
    socket
        .write_all(&frame(DATA, 0, 0, b"x"))
        .expect("a server");
    eventually_async(|| (ended(&weir, "protocol_error") == Some(1.0)).then_some(()))
        .await
        .expect("the connection ends");
    let lines = weir
        .logs()
        .into_iter()
        .filter(|line| line.contains("Envoy's failure mode decided"))
        .count();
    assert_eq!(lines, 1, "one line a minute");
    let mut client = weir.client().await;
    client
        .should_rate_limit(crate::support::request("d", Vec::new()))
        .await
        .expect_err("no descriptors, and an answer");
}

/// Weir answers a request before all of it has arrived, and drops calls that their clients reset:
/// neither is an error.
#[tokio::test]
async fn resets_that_weir_means_are_not_counted() {
    let server = Server::start(Options::default());
    let mut client = connect_to(server.address, 65_535).await;
    let mut get = request_head(METHOD, &[]);
    *get.method_mut() = http::Method::GET;
    let (answer, mut stream) = begin(&mut client, get, false).await;
    assert_eq!(answer.await.expect("an answer").status(), 405);
    let gone = std::future::poll_fn(|context| stream.poll_reset(context))
        .await
        .expect("a reset");
    assert_eq!(gone, h2::Reason::NO_ERROR);
    drop(stream);
    let (answer, mut stream) = begin(&mut client, request_head(METHOD, &[]), false).await;
    stream
        .send_data(framed(b"hold"), true)
        .expect("an open stream");
    eventually_async(|| {
        (server.held.load(std::sync::atomic::Ordering::Relaxed) == 1).then_some(())
    })
    .await
    .expect("it waits");
    stream.send_reset(h2::Reason::CANCEL);
    eventually_async(|| {
        (server.held.load(std::sync::atomic::Ordering::Relaxed) == 0).then_some(())
    })
    .await
    .expect("it is dropped");
    drop((answer, stream, client));
    eventually_async(|| (server.metric("weir_connections") == Some(0.0)).then_some(()))
        .await
        .expect("the connection ends");
    assert_eq!(resets(&server), [0; 2]);
}

#[test]
fn thousands_of_resets_do_not_end_calls_in_flight() {
    let weir = Weir::start(LIMITS, &[]);
    let mut socket = connect(weir.grpc_addr());
    socket.write_all(&head(1)).expect("a server");
    let mut reader = socket.try_clone().expect("a socket");
    let reads = std::thread::spawn(move || answered(&mut reader, [1]) == [true]);
    for index in 1..10_000 {
        let _ = socket.write_all(&malformed(1 + 2 * index));
    }
    let _ = socket.write_all(&frame(DATA, END_STREAM, 1, &message()));
    assert!(
        reads.join().expect("no panic"),
        "the connection ended, and with it a call in flight"
    );
}

#[test]
fn resets_that_the_client_does_not_read_take_bounded_memory() {
    let weir = Weir::start(LIMITS, &[]);
    let before = weir.resident_kib();
    let mut socket = connect(weir.grpc_addr());
    for index in 0..MAX_RESETS {
        let _ = socket.write_all(&malformed(1 + 2 * index));
    }
    wait_until_read(&weir);
    let grown = weir.resident_kib().saturating_sub(before);
    assert!(
        grown < 64 * MIB,
        "{MAX_RESETS} resets take {} MiB",
        grown / MIB
    );
    let _ = socket.write_all(&malformed(1 + 2 * MAX_RESETS));
    eventually(|| is_closed(&socket).then_some(())).expect("one more ends the connection");
}
