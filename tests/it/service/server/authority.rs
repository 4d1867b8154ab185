//! Calls whose `:authority` has a `|`, as Istio's clusters have it: they are answered, in whatever
//! frames they come, and what is held for it is bounded.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use super::raw::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, LIMITS, MIB, answered, connect, fields,
    frame, is_closed, literal, message, wait_until_read,
};
use crate::support::Weir;

const ISTIOS: &str = "outbound|8081||ratelimit.default.svc.cluster.local";
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

fn rewritten(weir: &Weir) -> Option<f64> {
    weir.metric("weir_connections_rewritten_total")
}

/// A call with this block in one frame.
fn call(stream: u32, block: &[u8]) -> Vec<u8> {
    [
        frame(HEADERS, END_HEADERS, stream, block),
        frame(DATA, END_STREAM, stream, &message()),
    ]
    .concat()
}

/// Sends these bytes in two pieces, of which Weir reads the first one alone.
fn send_in_pieces(socket: &mut TcpStream, sent: &[u8], at: usize) {
    socket.set_nodelay(true).expect("a socket");
    let (first, second) = sent.split_at(at);
    socket.write_all(first).expect("a server");
    std::thread::sleep(Duration::from_millis(3));
    socket.write_all(second).expect("a server");
}

#[test]
fn a_call_is_answered_wherever_a_reading_cuts_it() {
    let weir = Weir::start(LIMITS, &[]);
    let mut socket = connect(weir.grpc_addr());
    let length = call(1, &fields(ISTIOS)).len();
    for (index, at) in (0..length).enumerate() {
        let stream = 1 + 2 * index as u32;
        send_in_pieces(&mut socket, &call(stream, &fields(ISTIOS)), at);
        assert_eq!(
            answered(&mut socket, [stream]),
            [true],
            "cut at {at} of {length}"
        );
    }
    assert_eq!(rewritten(&weir), Some(1.0));
}

#[test]
fn a_block_is_rewritten_in_frames_of_every_form() {
    let weir = Weir::start(LIMITS, &[]);
    let mut socket = connect(weir.grpc_addr());
    let state = ["|".repeat(50), "~".repeat(50)].concat();
    let block = [fields(ISTIOS), literal("tracestate", &state)].concat();
    let (start, rest) = block.split_at(
        block
            .windows(3)
            .position(|bytes| bytes == b"|80")
            .expect("the authority")
            + 1,
    );
    let padded = [&[9], &block[..], &[b'|'; 9]].concat();
    let with_priority = [&[0x80, 0, 0, 0, 99][..], &block].concat();
    let both = [&[2, 0, 0, 0, 0, 16][..], start, &[0; 2]].concat();
    let headers = [
        vec![(HEADERS, END_HEADERS | PADDED, padded)],
        vec![(HEADERS, END_HEADERS | PRIORITY, with_priority)],
        vec![
            (HEADERS, 0, start.to_vec()),
            (CONTINUATION, END_HEADERS, rest.to_vec()),
        ],
        vec![
            (HEADERS, PADDED | PRIORITY, both),
            (CONTINUATION, 0, Vec::new()),
            (CONTINUATION, 0, rest[..20].to_vec()),
            (CONTINUATION, END_HEADERS, rest[20..].to_vec()),
        ],
    ];
    for (index, frames) in headers.into_iter().enumerate() {
        let stream = 1 + 2 * index as u32;
        for (kind, flags, payload) in &frames {
            socket
                .write_all(&frame(*kind, *flags, stream, payload))
                .expect("a server");
        }
        socket
            .write_all(&frame(DATA, END_STREAM, stream, &message()))
            .expect("a server");
        assert_eq!(
            answered(&mut socket, [stream]),
            [true],
            "frames of kinds, flags and payloads {frames:?}"
        );
    }
    assert_eq!(rewritten(&weir), Some(1.0));
}

/// The first call decides whether a connection is looked at any further. A later `|` is reset, and
/// counted.
#[test]
fn a_connection_without_a_bar_is_not_looked_at_any_further() {
    let weir = Weir::start(LIMITS, &[]);
    let mut socket = connect(weir.grpc_addr());
    socket
        .write_all(
            &[
                call(1, &fields("weir")),
                call(3, &fields(ISTIOS)),
                call(5, &fields("weir")),
            ]
            .concat(),
        )
        .expect("a server");
    assert_eq!(answered(&mut socket, [1, 3, 5]), [true, false, true]);
    assert_eq!(
        weir.metric("weir_http2_stream_resets_total{reason=\"protocol_error\"}"),
        Some(1.0)
    );
    assert_eq!(rewritten(&weir), Some(0.0));
}

/// While a connection is looked at, a frame of headers is held until it is whole; its memory is
/// that of unfinished blocks.
#[test]
fn half_frames_of_headers_take_what_they_have_on_the_wire() {
    let weir = Weir::start(LIMITS, &[]);
    let before = weir.resident_kib();
    let state = literal("a", &"~".repeat(100)).repeat(155);
    let sent = call(1, &[fields(ISTIOS), state].concat());
    let mut connections: Vec<_> = (0..1_000)
        .map(|_| {
            let mut socket = connect(weir.grpc_addr());
            socket.write_all(&sent[..16_000]).expect("a server");
            socket
        })
        .collect();
    wait_until_read(&weir);
    let grown = weir.resident_kib().saturating_sub(before);
    assert!(
        grown < 100 * MIB,
        "1,000 half frames of 16 KB take {} MiB",
        grown / MIB
    );
    assert!(
        !connections.iter().any(is_closed),
        "they may still be finished"
    );
    for socket in connections.iter_mut().step_by(50) {
        socket.set_nonblocking(false).expect("a socket");
        socket.write_all(&sent[16_000..]).expect("a server");
        assert_eq!(answered(socket, [1]), [true]);
    }
}
