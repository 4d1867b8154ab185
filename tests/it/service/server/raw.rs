//! HTTP/2 written frame by frame: what no client library sends, or not in this way.
//!
//! Source: RFC 9113, sections 3.4 (preface), 4.1 (frames) and 6 (types and flags); RFC 7541,
//! section 6.2 (literals).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::frames::{METHOD, framed};
use crate::support::wait::eventually;
use crate::support::{Weir, descriptor, request};

/// Limits that refuse nothing.
pub const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: year, requests_per_unit: 1000000 }
",
)];

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const SETTINGS_ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// A MiB, in the KiB in which memory is measured.
pub const MIB: u64 = 1_024;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header as a literal without indexing.
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    [
        &[0, name.len() as u8],
        name.as_bytes(),
        &[value.len() as u8],
        value.as_bytes(),
    ]
    .concat()
}

/// The headers of a call, with this authority.
pub fn fields(authority: &str) -> Vec<u8> {
    fields_of(METHOD, authority)
}

/// The headers of a call of a method.
pub fn fields_of(path: &str, authority: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("content-type", "application/grpc"),
    ];
    fields.map(|(name, value)| literal(name, value)).concat()
}

/// The message of a call that [`LIMITS`] allow.
pub fn message() -> Vec<u8> {
    framed(&prost::Message::encode_to_vec(&request(
        "d",
        vec![descriptor(&[("k", "v")])],
    )))
    .to_vec()
}

/// A connection that has sent the preface and its settings.
pub fn connect(address: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(address).expect("a connection");
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a socket");
    socket
        .write_all(
            &[
                PREFACE,
                &frame(SETTINGS, 0, 0, &[]),
                &frame(SETTINGS, SETTINGS_ACK, 0, &[]),
            ]
            .concat(),
        )
        .expect("a server");
    socket
}

/// Reads a frame: its type, flags, stream and payload. `None`: the connection ends before.
pub fn read_frame(socket: &mut TcpStream) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut header = [0; 9];
    socket.read_exact(&mut header).ok()?;
    let [a, b, c, kind, flags, ref id @ ..] = header;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    socket.read_exact(&mut payload).expect("a whole frame");
    Some((kind, flags, u32::from_be_bytes(*id), payload))
}

/// Reads frames until each of these streams has got DATA, which is true, or a reset. All are false
/// that the end of the connection leaves open.
pub fn answered<const N: usize>(socket: &mut TcpStream, streams: [u32; N]) -> [bool; N] {
    let mut outcomes = [None; N];
    while outcomes.contains(&None)
        && let Some((kind, _, id, _)) = read_frame(socket)
    {
        if [DATA, RST_STREAM].contains(&kind)
            && let Some(index) = streams.iter().position(|&stream| stream == id)
        {
            outcomes[index].get_or_insert(kind == DATA);
        }
    }
    outcomes.map(|outcome| outcome == Some(true))
}

/// Whether Weir has closed the connection.
pub fn is_closed(mut socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).expect("a socket");
    let mut bytes = [0; 1_024];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// The bytes that wait in the kernel for Weir to read them. Source of the columns: proc_net_tcp(5).
fn unread_bytes(weir: &Weir) -> u64 {
    let port = format!(":{:04X}", weir.grpc_addr().port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
    let unread = |line: &str| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let queue = columns
            .get(4)
            .filter(|_| columns[1].ends_with(&port))?
            .split_once(':')?
            .1;
        u64::from_str_radix(queue, 16).ok()
    };
    table.lines().filter_map(unread).sum()
}

pub fn wait_until_read(weir: &Weir) {
    eventually(|| (unread_bytes(weir) == 0).then_some(())).expect("Weir reads what arrives");
}
