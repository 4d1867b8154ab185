//! HTTP/2 and gRPC as the load speaks it: frames put together beforehand, and of an answer only what is judged.
//!
//! The load shares the machine with what it measures, so that it must cost little: a connection here is a socket, two buffers and a handful
//! of slots, and header tables are never decoded. An answer counts by the `overall_code` of its message; without a message it failed, which
//! is how every gRPC server sends an error. A real client looks at whole answers before anything is measured (`correctness.rs`).

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use prost::Message;
use weir::proto::RateLimitRequest;

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// RFC 9113, 6: the types of frames that matter here.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// Flags: the last frame of a stream; of SETTINGS and PING, an acknowledgement; the header block is whole.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

const FRAME_HEAD: usize = 9;
/// Whether it is compressed, and its length.
const MESSAGE_HEAD: usize = 5;

/// No message of the load is longer: so much of the server's window must be free.
const LONGEST_MESSAGE: i64 = 8 * 1_024;

/// Room for received bytes: more than the longest frame that a server may send unasked.
const INPUT: usize = 32 * 1_024;

/// The reason of a reset by whoever does not want the answer any more (RFC 9113, 7).
const CANCEL: u32 = 8;

/// What waits for the socket at most; a call that finds more waits for its turn where it can still be given up.
const MOST_UNSENT: usize = 16 * 1_024;

/// What a server lets a client send before it says more (RFC 9113, 6.9.2).
const FIRST_WINDOW: i64 = 65_535;

/// What Envoy sends with each call; its patience is told by [`Line::patience`].
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

/// `:method: POST` and `:scheme: http` of the static table.
const METHOD_AND_SCHEME: [u8; 2] = [0x83, 0x86];

/// The first index of the dynamic table (RFC 7541, 2.3.3).
const DYNAMIC: usize = 62;

/// What a server said, as far as the load looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Ok,
    OverLimit,
    Failed,
}

/// A request as the DATA frame that carries it.
pub struct Question(Box<[u8]>);

impl Question {
    pub fn new(request: &RateLimitRequest) -> Self {
        let message = request.encode_to_vec();
        assert!((message.len() + MESSAGE_HEAD) as i64 <= LONGEST_MESSAGE);
        let mut frame = Vec::new();
        put_head(&mut frame, message.len() + MESSAGE_HEAD, DATA, END_STREAM, 0);
        frame.push(0);
        frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
        frame.extend_from_slice(&message);
        Self(frame.into())
    }
}

impl Question {
    /// The places of a text in the message, to be written over.
    pub fn places(&self, text: &[u8]) -> Vec<usize> {
        self.0.windows(text.len()).enumerate().filter(|(_, window)| *window == text).map(|(place, _)| place).collect()
    }

    /// Writes a number over the digits at a place.
    pub fn put_digits(&mut self, place: usize, digits: usize, mut number: u32) {
        for digit in self.0[place..place + digits].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }
}

/// A call.
struct Slot {
    under_way: bool,
    since: Instant,
    /// The head of the message, then the first field of it.
    begin: [u8; MESSAGE_HEAD + 2],
    have: usize,
}

/// One connection.
pub struct Line {
    pub stream: TcpStream,
    /// What its calls say that they wait for, as `grpc-timeout` has it.
    pub patience: String,
    out: Vec<u8>,
    input: Box<[u8]>,
    filled: usize,
    /// Of the next call, and of the first one in `slots`: streams of a client are every second number.
    next_id: u32,
    first_id: u32,
    /// The calls under way, and those behind them that are done, in the order of their streams.
    slots: VecDeque<Slot>,
    streams: usize,
    in_flight: usize,
    /// The server has said goodbye, or hung up.
    pub ended: bool,
    window: i64,
    /// Of the window, before a call is made.
    pub needs: i64,
    /// The header block of all calls but the first, which fills the table that it points into.
    again: Vec<u8>,
}

impl Line {
    /// Connects, for at most `streams` calls at a time.
    pub fn connect(address: SocketAddr, streams: usize) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a TCP socket");
        stream.set_nonblocking(true).expect("a TCP socket");
        let mut out = PREFACE.to_vec();
        put_head(&mut out, 6, SETTINGS, 0, 0);
        // SETTINGS_ENABLE_PUSH = 0
        out.extend_from_slice(&[0, 2, 0, 0, 0, 0]);
        put_head(&mut out, 4, WINDOW_UPDATE, 0, 0);
        // More than a run receives: nothing has to be given back on the way.
        out.extend_from_slice(&(i32::MAX as u32 - FIRST_WINDOW as u32).to_be_bytes());
        let fields = HEADER_FIELDS.len();
        let again = METHOD_AND_SCHEME.into_iter().chain((0..fields).rev().map(|place| 0x80 | (DYNAMIC + place) as u8)).collect();
        Self {
            stream,
            // Whoever is slow is to be measured, and not cut off.
            patience: "10S".to_owned(),
            out,
            input: vec![0; INPUT].into(),
            filled: 0,
            next_id: 1,
            first_id: 1,
            slots: VecDeque::with_capacity(streams),
            streams,
            in_flight: 0,
            ended: false,
            window: FIRST_WINDOW,
            needs: LONGEST_MESSAGE,
            again,
        }
    }

    /// Whether another call may be made now.
    pub fn has_room(&self) -> bool {
        self.in_flight < self.streams && self.window >= self.needs && self.out.len() < MOST_UNSENT && !self.ended
    }

    /// Makes a call, whose time counts from `since`; [`Line::flush`] sends it.
    pub fn ask(&mut self, question: &Question, since: Instant) {
        let id = self.next_id;
        self.next_id += 2;
        if id == 1 {
            let block = first_block(&self.patience);
            put_head(&mut self.out, block.len(), HEADERS, END_HEADERS, id);
            self.out.extend_from_slice(&block);
        } else {
            put_head(&mut self.out, self.again.len(), HEADERS, END_HEADERS, id);
            self.out.extend_from_slice(&self.again);
        }
        let start = self.out.len();
        self.out.extend_from_slice(&question.0);
        self.out[start + 5..start + FRAME_HEAD].copy_from_slice(&id.to_be_bytes());
        self.window -= (question.0.len() - FRAME_HEAD) as i64;
        self.slots.push_back(Slot { under_way: true, since, begin: [0; MESSAGE_HEAD + 2], have: 0 });
        self.in_flight += 1;
    }

    /// Gives up the calls that have been under way since before this instant; returns how many those were.
    pub fn give_up(&mut self, before: Instant) -> u64 {
        let mut given_up = 0;
        while let Some(slot) = self.slots.front().filter(|slot| !slot.under_way || slot.since < before) {
            if slot.under_way {
                put_head(&mut self.out, 4, RST_STREAM, 0, self.first_id);
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
        let place = id.checked_sub(self.first_id)? / 2;
        self.slots.get_mut(place as usize).filter(|slot| slot.under_way)
    }

    /// Sends what the socket takes.
    pub fn flush(&mut self) {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(sent) if sent == self.out.len() => self.out.clear(),
                Ok(sent) => drop(self.out.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.ended = true;
                    return;
                }
            }
        }
    }

    /// Reads what has come; `answered` hears of each call that is done, and since when it was under way.
    pub fn receive(&mut self, mut answered: impl FnMut(Answer, Instant)) {
        loop {
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => {
                    self.ended = true;
                    return;
                }
                Ok(length) => self.filled += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.ended = true;
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

    /// Takes whole frames; returns how many bytes they were.
    fn frames(&mut self, input: &[u8], answered: &mut impl FnMut(Answer, Instant)) -> usize {
        let mut at = 0;
        while let Some(head) = input.get(at..at + FRAME_HEAD) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some(payload) = input.get(at + FRAME_HEAD..at + FRAME_HEAD + length) else { break };
            let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            self.frame(head[3], head[4], id, payload, answered);
            at += FRAME_HEAD + length;
        }
        at
    }

    fn frame(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8], answered: &mut impl FnMut(Answer, Instant)) {
        match kind {
            DATA => {
                if let Some(slot) = self.slot(id) {
                    let more = payload.len().min(slot.begin.len() - slot.have);
                    slot.begin[slot.have..slot.have + more].copy_from_slice(&payload[..more]);
                    slot.have += more;
                }
            }
            HEADERS if flags & END_STREAM != 0 => self.done(id, answered),
            RST_STREAM => self.done(id, answered),
            SETTINGS if flags & ACK == 0 => put_head(&mut self.out, 0, SETTINGS, ACK, 0),
            PING if flags & ACK == 0 => {
                put_head(&mut self.out, payload.len(), PING, ACK, 0);
                self.out.extend_from_slice(payload);
            }
            WINDOW_UPDATE if id == 0 => {
                let more = payload.try_into().map(u32::from_be_bytes).expect("four bytes");
                self.window += i64::from(more);
            }
            GOAWAY => self.ended = true,
            _ => {}
        }
    }

    fn done(&mut self, id: u32, answered: &mut impl FnMut(Answer, Instant)) {
        let Some(slot) = self.slot(id) else { return };
        let code = (slot.have == slot.begin.len() && slot.begin[MESSAGE_HEAD] == 0x08).then(|| slot.begin[MESSAGE_HEAD + 1]);
        let answer = match code {
            Some(1) => Answer::Ok,
            Some(2) => Answer::OverLimit,
            _ => Answer::Failed,
        };
        slot.under_way = false;
        let since = slot.since;
        self.in_flight -= 1;
        while self.slots.front().is_some_and(|slot| !slot.under_way) {
            self.slots.pop_front();
            self.first_id += 2;
        }
        answered(answer, since);
    }

    /// Since when the calls under way are waiting.
    pub fn waiting(&self) -> impl Iterator<Item = Instant> + '_ {
        self.slots.iter().filter(|slot| slot.under_way).map(|slot| slot.since)
    }
}

fn put_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, id: u32) {
    out.extend_from_slice(&(length as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&id.to_be_bytes());
}

/// All fields in full, each to be kept in the table (RFC 7541, 6.2.1).
fn first_block(patience: &str) -> Vec<u8> {
    let mut block = METHOD_AND_SCHEME.to_vec();
    for (name, value) in HEADER_FIELDS {
        let value = if name == "grpc-timeout" { patience } else { value };
        match name {
            ":authority" => block.push(0x41),
            ":path" => block.push(0x44),
            _ => {
                block.extend_from_slice(&[0x40, name.len() as u8]);
                block.extend_from_slice(name.as_bytes());
            }
        }
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    }
    block
}
