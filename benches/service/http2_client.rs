//! The HTTP/2 and gRPC client of the load: it encodes frames beforehand, and decodes only what it
//! needs of an answer.
//!
//! The load shares the machine with the server that it measures, so that it must cost little: a
//! connection is a socket, two buffers and a few slots, and it never decodes header tables. It
//! reads the `overall_code` of an answer. An answer without a message is an error, because gRPC
//! servers send errors without one. `correctness.rs` checks whole answers with a real client before
//! anything is measured.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use prost::Message;
use weir::core::proto::RateLimitRequest;

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// Flags: END_STREAM ends the stream, ACK acknowledges SETTINGS and PING, END_HEADERS ends the
/// header block.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

const FRAME_HEADER_BYTES: usize = 9;
/// The prefix of a gRPC message: a flag for compression, and its length.
const MESSAGE_PREFIX_BYTES: usize = 5;

/// The longest message of the load, in bytes. A call is made only when the server's window has as
/// much left.
const LONGEST_MESSAGE: i64 = 8 * 1_024;

/// The size of the receive buffer: more than the longest frame that a server may send with default
/// settings.
const INPUT_BYTES: usize = 32 * 1_024;

/// The error code CANCEL (RFC 9113, section 7).
const CANCEL: u32 = 8;

/// The most bytes that wait for the socket. Further calls wait in the load, where they can still be
/// given up.
const MAX_UNSENT_BYTES: usize = 16 * 1_024;

/// The initial flow-control window (RFC 9113, section 6.9.2).
const FIRST_WINDOW: i64 = 65_535;

/// The headers that Envoy sends with each call; `grpc-timeout` gets the value of
/// [`Connection::timeout`].
const HEADER_FIELDS: [(&str, &str); 8] = [
    (":path", PATH),
    (":authority", "ratelimit"),
    ("te", "trailers"),
    ("grpc-timeout", ""),
    ("content-type", "application/grpc"),
    ("x-envoy-internal", "true"),
    ("x-forwarded-for", "10.0.0.1"),
    ("x-envoy-expected-rq-timeout-ms", "10000"),
];

/// How many calls of a client that traces refer to the same entries of the table. Each adds its
/// `traceparent`, and with this many all entries fit in the 4,096 bytes of a table (RFC 7541,
/// section 4.1).
const TRACED_CALLS: usize = 30;

/// A span in the form of W3C Trace Context: version, trace, parent, flags.
const TRACEPARENT: &[u8] = b"00-00000000000000000000000000000000-00f067aa0ba902b7-01";

/// `:method: POST` and `:scheme: http` of the static table.
const METHOD_AND_SCHEME: [u8; 2] = [0x83, 0x86];

/// The first index of the dynamic table (RFC 7541, section 2.3.3).
const DYNAMIC: usize = 62;

/// The result of a call, as far as the load reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Ok,
    OverLimit,
    Failed,
}

/// A request as the DATA frame that carries it.
pub struct EncodedRequest(Box<[u8]>);

impl EncodedRequest {
    pub fn new(request: &RateLimitRequest) -> Self {
        let message = request.encode_to_vec();
        assert!((message.len() + MESSAGE_PREFIX_BYTES) as i64 <= LONGEST_MESSAGE);
        let mut frame = Vec::new();
        put_frame_header(
            &mut frame,
            message.len() + MESSAGE_PREFIX_BYTES,
            DATA,
            END_STREAM,
            0,
        );
        frame.push(0);
        frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
        frame.extend_from_slice(&message);
        Self(frame.into())
    }
}

impl EncodedRequest {
    /// The offsets of a text in the frame, for [`EncodedRequest::put_digits`].
    pub fn offsets(&self, text: &[u8]) -> Vec<usize> {
        self.0
            .windows(text.len())
            .enumerate()
            .filter(|(_, window)| *window == text)
            .map(|(offset, _)| offset)
            .collect()
    }

    /// Overwrites the digits at an offset with a number.
    pub fn put_digits(&mut self, offset: usize, digits: usize, mut number: u32) {
        for digit in self.0[offset..offset + digits].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }
}

/// A call.
struct Slot {
    in_flight: bool,
    since: Instant,
    /// The prefix of the message and its first field.
    message_start: [u8; MESSAGE_PREFIX_BYTES + 2],
    received: usize,
}

/// One connection.
pub struct Connection {
    pub stream: TcpStream,
    /// The value of `grpc-timeout` in its calls.
    pub timeout: String,
    out: Vec<u8>,
    input: Box<[u8]>,
    filled: usize,
    /// The stream ids of the next call and of the first one in `slots`. A client's streams have odd
    /// ids.
    next_id: u32,
    first_id: u32,
    /// The calls in flight, and later ones that are done, in the order of their streams.
    slots: VecDeque<Slot>,
    streams: usize,
    in_flight: usize,
    /// The server sent GOAWAY, or closed the connection.
    pub closed: bool,
    window: i64,
    /// The window that must be left before a call is made, in bytes.
    pub min_window: i64,
    /// The header block of all calls after the first. It refers to the table entries that the first
    /// call made.
    later_headers: Vec<u8>,
    /// For a client that traces: the calls since the one that made the table entries.
    traced: Option<usize>,
}

impl Connection {
    /// Connects, for at most `streams` calls at a time.
    pub fn connect(address: SocketAddr, streams: usize) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a TCP socket");
        stream.set_nonblocking(true).expect("a TCP socket");
        let mut out = PREFACE.to_vec();
        put_frame_header(&mut out, 6, SETTINGS, 0, 0);
        // SETTINGS_ENABLE_PUSH = 0
        out.extend_from_slice(&[0, 2, 0, 0, 0, 0]);
        put_frame_header(&mut out, 4, WINDOW_UPDATE, 0, 0);
        // More than a run receives, so that no further WINDOW_UPDATE is needed.
        out.extend_from_slice(&(i32::MAX as u32 - FIRST_WINDOW as u32).to_be_bytes());
        let fields = HEADER_FIELDS.len();
        let later_headers = METHOD_AND_SCHEME
            .into_iter()
            .chain(
                (0..fields)
                    .rev()
                    .map(|index| 0x80 | (DYNAMIC + index) as u8),
            )
            .collect();
        Self {
            stream,
            // Long, so that slow servers are measured and not cut off.
            timeout: "10S".to_owned(),
            out,
            input: vec![0; INPUT_BYTES].into(),
            filled: 0,
            next_id: 1,
            first_id: 1,
            slots: VecDeque::with_capacity(streams),
            streams,
            in_flight: 0,
            closed: false,
            window: FIRST_WINDOW,
            min_window: LONGEST_MESSAGE,
            later_headers,
            traced: None,
        }
    }

    /// Sends a `traceparent` with each call that is new in each, as a proxy does that traces.
    pub fn trace(&mut self) {
        self.traced = Some(0);
    }

    /// The header block of the next call.
    fn put_headers(&mut self, id: u32) {
        let Some(calls) = self.traced else {
            let first = if id == 1 {
                first_headers(&self.timeout)
            } else {
                Vec::new()
            };
            let block = if id == 1 { &first } else { &self.later_headers };
            put_frame_header(&mut self.out, block.len(), HEADERS, END_HEADERS, id);
            return self.out.extend_from_slice(block);
        };
        let mut block = if calls == 0 {
            first_headers(&self.timeout)
        } else {
            self.later_headers
                .iter()
                .map(|&byte| {
                    if METHOD_AND_SCHEME.contains(&byte) {
                        byte
                    } else {
                        byte + calls as u8
                    }
                })
                .collect()
        };
        let mut traceparent = TRACEPARENT.to_vec();
        traceparent[3..35].copy_from_slice(format!("{:032x}", fastrand::u128(..)).as_bytes());
        put_field(&mut block, "traceparent", &traceparent);
        put_frame_header(&mut self.out, block.len(), HEADERS, END_HEADERS, id);
        self.out.extend_from_slice(&block);
        self.traced = Some((calls + 1) % TRACED_CALLS);
    }

    /// Whether another call may be made now.
    pub fn can_call(&self) -> bool {
        self.in_flight < self.streams
            && self.window >= self.min_window
            && self.out.len() < MAX_UNSENT_BYTES
            && !self.closed
    }

    /// Makes a call whose latency counts from `since`; [`Connection::flush`] sends it.
    pub fn call(&mut self, request: &EncodedRequest, since: Instant) {
        let id = self.next_id;
        self.next_id += 2;
        self.put_headers(id);
        let start = self.out.len();
        self.out.extend_from_slice(&request.0);
        self.out[start + 5..start + FRAME_HEADER_BYTES].copy_from_slice(&id.to_be_bytes());
        self.window -= (request.0.len() - FRAME_HEADER_BYTES) as i64;
        self.slots.push_back(Slot {
            in_flight: true,
            since,
            message_start: [0; MESSAGE_PREFIX_BYTES + 2],
            received: 0,
        });
        self.in_flight += 1;
    }

    /// Gives up the calls that have been in flight since before this instant. Returns how many
    /// those are.
    pub fn give_up(&mut self, before: Instant) -> u64 {
        let mut given_up = 0;
        while let Some(slot) = self
            .slots
            .front()
            .filter(|slot| !slot.in_flight || slot.since < before)
        {
            if slot.in_flight {
                put_frame_header(&mut self.out, 4, RST_STREAM, 0, self.first_id);
                self.out.extend_from_slice(&CANCEL.to_be_bytes());
                self.in_flight -= 1;
                given_up += 1;
            }
            self.slots.pop_front();
            self.first_id += 2;
        }
        given_up
    }

    /// The call of this stream, unless it is done.
    fn slot(&mut self, id: u32) -> Option<&mut Slot> {
        let index = id.checked_sub(self.first_id)? / 2;
        self.slots
            .get_mut(index as usize)
            .filter(|slot| slot.in_flight)
    }

    /// Sends as many bytes as the socket accepts.
    pub fn flush(&mut self) {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(sent) if sent == self.out.len() => self.out.clear(),
                Ok(sent) => drop(self.out.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    /// Reads what has arrived. Calls `answered` for each call that is done, with the instant since
    /// which it was in flight.
    pub fn receive(&mut self, mut answered: impl FnMut(Answer, Instant)) {
        loop {
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => {
                    self.closed = true;
                    return;
                }
                Ok(length) => self.filled += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.closed = true;
                    return;
                }
            }
            let was_full = self.filled == self.input.len();
            let mut input = std::mem::take(&mut self.input);
            let used = self.frames(&input[..self.filled], &mut answered);
            input.copy_within(used..self.filled, 0);
            self.filled -= used;
            self.input = input;
            if !was_full {
                return;
            }
        }
    }

    /// Processes whole frames. Returns how many bytes they had.
    fn frames(&mut self, input: &[u8], answered: &mut impl FnMut(Answer, Instant)) -> usize {
        let mut at = 0;
        while let Some(head) = input.get(at..at + FRAME_HEADER_BYTES) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some(payload) =
                input.get(at + FRAME_HEADER_BYTES..at + FRAME_HEADER_BYTES + length)
            else {
                break;
            };
            let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            self.frame(head[3], head[4], id, payload, answered);
            at += FRAME_HEADER_BYTES + length;
        }
        at
    }

    fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        id: u32,
        payload: &[u8],
        answered: &mut impl FnMut(Answer, Instant),
    ) {
        match kind {
            DATA => {
                if let Some(slot) = self.slot(id) {
                    let more = payload.len().min(slot.message_start.len() - slot.received);
                    slot.message_start[slot.received..slot.received + more]
                        .copy_from_slice(&payload[..more]);
                    slot.received += more;
                }
            }
            HEADERS if flags & END_STREAM != 0 => self.done(id, answered),
            RST_STREAM => self.done(id, answered),
            SETTINGS if flags & ACK == 0 => put_frame_header(&mut self.out, 0, SETTINGS, ACK, 0),
            PING if flags & ACK == 0 => {
                put_frame_header(&mut self.out, payload.len(), PING, ACK, 0);
                self.out.extend_from_slice(payload);
            }
            WINDOW_UPDATE if id == 0 => {
                let more = payload
                    .try_into()
                    .map(u32::from_be_bytes)
                    .expect("four bytes");
                self.window += i64::from(more);
            }
            GOAWAY => self.closed = true,
            _ => {}
        }
    }

    fn done(&mut self, id: u32, answered: &mut impl FnMut(Answer, Instant)) {
        let Some(slot) = self.slot(id) else { return };
        let code = (slot.received == slot.message_start.len()
            && slot.message_start[MESSAGE_PREFIX_BYTES] == 0x08)
            .then(|| slot.message_start[MESSAGE_PREFIX_BYTES + 1]);
        let answer = match code {
            Some(1) => Answer::Ok,
            Some(2) => Answer::OverLimit,
            _ => Answer::Failed,
        };
        slot.in_flight = false;
        let since = slot.since;
        self.in_flight -= 1;
        while self.slots.front().is_some_and(|slot| !slot.in_flight) {
            self.slots.pop_front();
            self.first_id += 2;
        }
        answered(answer, since);
    }

    /// The instants since which the calls in flight are waiting.
    pub fn waiting(&self) -> impl Iterator<Item = Instant> + '_ {
        self.slots
            .iter()
            .filter(|slot| slot.in_flight)
            .map(|slot| slot.since)
    }
}

fn put_frame_header(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, id: u32) {
    out.extend_from_slice(&(length as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&id.to_be_bytes());
}

/// The header block of the first call: literal fields, each added to the dynamic table (RFC 7541,
/// section 6.2.1).
fn first_headers(timeout: &str) -> Vec<u8> {
    let mut block = METHOD_AND_SCHEME.to_vec();
    for (name, value) in HEADER_FIELDS {
        let value = if name == "grpc-timeout" {
            timeout
        } else {
            value
        };
        match name {
            ":authority" => block.push(0x41),
            ":path" => block.push(0x44),
            _ => {
                put_field(&mut block, name, value.as_bytes());
                continue;
            }
        }
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    }
    block
}

/// A literal field with a new name, added to the dynamic table.
fn put_field(block: &mut Vec<u8>, name: &str, value: &[u8]) {
    block.extend_from_slice(&[0x40, name.len() as u8]);
    block.extend_from_slice(name.as_bytes());
    block.push(value.len() as u8);
    block.extend_from_slice(value);
}
