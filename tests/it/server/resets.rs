//! Streams that HTTP/2 resets for an error of their client: other calls of the connection go on, and the memory is bounded.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::frames::{METHOD, framed};
use super::header_blocks::{MIB, PREFACE, SETTINGS, frame, is_closed, wait_until_read};
use crate::support::wait::eventually;
use crate::support::{Weir, descriptor, request};

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: year, requests_per_unit: 1000000 }
",
)];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS_ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Weir closes a connection with more resets than this.
const MAX_RESETS: u32 = 65_536;

fn literal(name: &str, value: &str) -> Vec<u8> {
    [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

/// A call whose message is still to come.
fn head(stream: u32) -> Vec<u8> {
    let headers = [(":method", "POST"), (":scheme", "http"), (":path", METHOD), ("content-type", "application/grpc")];
    frame(HEADERS, END_HEADERS, stream, &headers.map(|(name, value)| literal(name, value)).concat())
}

/// A header that HTTP/2 forbids, which is an error of its stream. Source: RFC 9113, section 8.2.2.
fn malformed(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &literal("connection", "close"))
}

fn connect(address: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(address).expect("a connection");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
    socket.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(SETTINGS, SETTINGS_ACK, 0, &[])].concat()).expect("a server");
    socket
}

fn message() -> Vec<u8> {
    framed(&prost::Message::encode_to_vec(&request("d", vec![descriptor(&[("k", "v")])]))).to_vec()
}

/// Reads frames until DATA of this stream. False: the connection ends before.
fn is_answered(socket: &mut TcpStream, stream: u32) -> bool {
    loop {
        let mut header = [0; 9];
        if socket.read_exact(&mut header).is_err() {
            return false;
        }
        let [a, b, c, kind, _, ref id @ ..] = header;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        socket.read_exact(&mut payload).expect("a whole frame");
        if kind == DATA && u32::from_be_bytes(*id) == stream {
            return true;
        }
    }
}

#[test]
fn thousands_of_resets_do_not_end_calls_in_flight() {
    let weir = Weir::start(LIMITS, &[]);
    let mut socket = connect(weir.grpc_addr());
    socket.write_all(&head(1)).expect("a server");
    let mut reader = socket.try_clone().expect("a socket");
    let reads = std::thread::spawn(move || is_answered(&mut reader, 1));
    for index in 1..10_000 {
        let _ = socket.write_all(&malformed(1 + 2 * index));
    }
    let _ = socket.write_all(&frame(DATA, END_STREAM, 1, &message()));
    assert!(reads.join().expect("no panic"), "the connection ended, and with it a call in flight");
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
    assert!(grown < 64 * MIB, "{MAX_RESETS} resets take {} MiB", grown / MIB);
    let _ = socket.write_all(&malformed(1 + 2 * MAX_RESETS));
    eventually(|| is_closed(&socket).then_some(())).expect("one more ends the connection");
}
