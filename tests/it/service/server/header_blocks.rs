//! Large header lists: they are accepted, and what clients leave unfinished takes bounded memory.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use bytes::Bytes;
use http::{HeaderValue, Request};
use tonic::Code;

use super::frames::{METHOD, begin, call, connect, framed, head, read};
use super::raw::{
    CONTINUATION, HEADERS, LIMITS, MIB, PREFACE, SETTINGS, frame, is_closed, wait_until_read,
};
use super::{Options, Server};
use crate::support::wait::eventually;
use crate::support::{Weir, descriptor, request};

/// The largest frame that Weir accepts.
const FRAME_BYTES: usize = 16 * 1_024;

/// Sends the start of a block with this HPACK content, which does not end.
fn unfinished(address: SocketAddr, hpack: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(address).expect("a connection");
    let mut sent = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    for (index, part) in hpack.chunks(FRAME_BYTES).enumerate() {
        sent.extend(frame(
            if index == 0 { HEADERS } else { CONTINUATION },
            0,
            1,
            part,
        ));
    }
    // Weir may close the connection before it has read all.
    let _ = socket.write_all(&sent);
    socket
}

/// Thousands of small headers: as much memory in a decoder for each byte on the wire as can be.
/// Source of the form: RFC 7541, section 6.2.2.
fn small_headers(count: usize) -> Vec<u8> {
    (0..count)
        .flat_map(|index| format!("\0\x04{}\0", name(index)).into_bytes())
        .collect()
}

/// A name of four letters for each number.
fn name(index: usize) -> String {
    (0..4)
        .map(|digit| {
            char::from(b'a' + u8::try_from(index / 26_usize.pow(digit) % 26).expect("a letter"))
        })
        .collect()
}

/// One header whose value is so long. Source of the form: RFC 7541, sections 5.1 and 6.2.2.
fn long_header(length: usize) -> Vec<u8> {
    let mut block = b"\0\x01a\x7f".to_vec();
    let mut rest = length - 0x7f;
    while rest >= 0x80 {
        block.push(0x80 | (rest & 0x7f) as u8);
        rest >>= 7;
    }
    block.push(rest as u8);
    block.resize(block.len() + length, b'v');
    block
}

#[test]
fn unfinished_header_blocks_take_what_they_have_on_the_wire() {
    let weir = Weir::start(LIMITS, &[]);
    let before = weir.resident_kib();
    let block = small_headers(6_000);
    let connections: Vec<_> = (0..150)
        .map(|_| unfinished(weir.grpc_addr(), &block))
        .collect();
    wait_until_read(&weir);
    let grown = weir.resident_kib().saturating_sub(before);
    assert!(
        grown < 40 * MIB,
        "150 blocks of {} bytes take {} MiB",
        block.len(),
        grown / MIB
    );
    assert!(
        !connections.iter().any(is_closed),
        "they may still be finished"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn all_unfinished_header_blocks_share_a_budget() {
    let weir = Weir::start(LIMITS, &[("MEMORY_LIMIT", "512Mi")]);
    let mut client = weir.client().await;
    let request_of = || request("d", vec![descriptor(&[("k", "v")])]);
    client
        .should_rate_limit(request_of())
        .await
        .expect("an answer");
    let before = weir.resident_kib();
    let block = long_header(250_000);
    let connections: Vec<_> = (0..500)
        .map(|_| unfinished(weir.grpc_addr(), &block[..240_000]))
        .collect();
    wait_until_read(&weir);
    let grown = weir.resident_kib().saturating_sub(before);
    assert!(
        grown < 110 * MIB,
        "500 blocks of 240 KB take {} MiB",
        grown / MIB
    );
    let series = "weir_http2_connection_errors_total{reason=\"header_memory\"}";
    // The head of a scrape takes the memory of one more.
    let closed = eventually(|| {
        let counted = weir.metric(series);
        let closed = connections.iter().filter(|socket| is_closed(socket));
        let closed = closed.count();
        (counted == Some(closed as f64)).then_some(closed)
    });
    let closed = closed.expect("each is counted");
    assert!(
        (200..=300).contains(&closed),
        "64 MiB are enough for 270 or so, and {closed} of 500 connections are closed"
    );
    client
        .should_rate_limit(request_of())
        .await
        .expect("others are served");
    drop(connections);
    // The budget is free again.
    eventually(|| {
        (!is_closed_soon(&unfinished(weir.grpc_addr(), &block[..240_000]))).then_some(())
    })
    .expect("a connection that stays");
}

fn is_closed_soon(socket: &TcpStream) -> bool {
    std::thread::sleep(std::time::Duration::from_millis(100));
    is_closed(socket)
}

/// A header block without an end is no way to send for ever.
#[test]
fn a_block_of_too_many_frames_ends_its_connection() {
    let weir = Weir::start(LIMITS, &[]);
    for (what, payload) in [("empty", &b""[..]), ("full", &[0x82; FRAME_BYTES])] {
        let mut socket = unfinished(weir.grpc_addr(), &long_header(1_000_000)[..FRAME_BYTES]);
        for _ in 0..30 {
            let _ = socket.write_all(&frame(CONTINUATION, 0, 1, payload));
        }
        eventually(|| is_closed(&socket).then_some(()))
            .unwrap_or_else(|| panic!("30 {what} frames"));
    }
    assert!(
        !is_closed_soon(&unfinished(weir.grpc_addr(), &long_header(1_000)[..500])),
        "others are served"
    );
}

/// Calls whose message does not arrive keep only the headers that Weir reads.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_for_their_message_do_not_keep_large_headers() {
    let weir = Weir::start(LIMITS, &[]);
    let stream = tokio::net::TcpStream::connect(weir.grpc_addr())
        .await
        .expect("a connection");
    let (mut client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    let message = framed(&prost::Message::encode_to_vec(&request(
        "d",
        vec![descriptor(&[("k", "v")])],
    )));
    let large = || {
        let mut request = head(METHOD, &[]);
        for _ in 0..6_000 {
            request
                .headers_mut()
                .append("a", HeaderValue::from_static("b"));
        }
        request
    };
    assert_eq!(call(&mut client, large(), &[&message]).await.2, Code::Ok);
    let before = weir.resident_kib();
    let mut waiting = Vec::new();
    for _ in 0..200 {
        waiting.push(begin(&mut client, large(), false).await);
        assert_eq!(
            call(&mut client, head(METHOD, &[]), &[&message]).await.2,
            Code::Ok
        );
    }
    let grown = weir.resident_kib().saturating_sub(before);
    assert!(
        grown < 30 * MIB,
        "200 calls without a message take {} MiB",
        grown / MIB
    );
    drop(waiting);
}

/// A header list up to the bound is accepted whole or split by the client, one above it is answered
/// with 431, and neither affects other calls.
#[tokio::test]
async fn header_lists_of_256_kib_are_accepted() {
    let server = Server::start(Options::default());
    let mut client = connect(&server, 65_535).await;
    let (held, mut stream) = begin(&mut client, head(METHOD, &[]), false).await;
    let with_state = |length: usize| -> Request<()> {
        let mut request = head(METHOD, &[]);
        // A letter that Huffman coding, which this client always uses, makes shorter.
        request.headers_mut().insert(
            "tracestate",
            HeaderValue::from_bytes(&vec![b'v'; length]).expect("a value"),
        );
        request
    };
    for length in [1_000, 16_300, 16_400, 33_000, 66_000, 255_000] {
        let (_, body, code) = call(&mut client, with_state(length), &[&framed(b"long 9")]).await;
        assert_eq!((body.len(), code), (5 + 9, Code::Ok), "{length} bytes");
    }
    let (refused, _stream) = begin(&mut client, with_state(270_000), true).await;
    assert_eq!(refused.await.expect("an answer").status(), 431);
    stream
        .send_data(Bytes::copy_from_slice(&framed(b"long 9")), true)
        .expect("the connection goes on");
    assert_eq!(read(held).await.2, Code::Ok);
}
