//! A DNS server on a free port of the loopback interface, by UDP and TCP; it ends when it is
//! dropped. Whatever the name, it has the same addresses.
//!
//! An answer that is longer than the client takes by UDP is cut and marked as truncated. Source:
//! RFC 1035, section 4; RFC 6891, section 6.2.3; RFC 7766.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const A: u16 = 1;
const AAAA: u16 = 28;
/// The bytes of a datagram for a client that does not say more.
const DATAGRAM: usize = 512;
/// How often a thread looks whether it is to end.
const TICK: Duration = Duration::from_millis(20);

/// What the server answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Zone {
    /// The number of addresses of IPv4.
    pub v4: u32,
    /// The number of addresses of IPv6.
    pub v6: u32,
    /// What it does instead.
    pub fault: Option<Fault>,
}

/// A server that does not answer as it should.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// SERVFAIL.
    ServerFailure,
    /// SERVFAIL for AAAA only.
    OnlyV4,
}

/// What it was asked.
#[derive(Clone, Debug, Default)]
pub struct Queries {
    /// The names with their types, of the last lookups, by either protocol.
    pub names: Vec<(String, u16)>,
    /// Answers by UDP that were cut.
    pub truncated: usize,
    /// Queries by TCP.
    pub by_tcp: usize,
}

#[derive(Debug, Default)]
struct State {
    zone: Mutex<Zone>,
    queries: Mutex<Queries>,
    ends: AtomicBool,
}

/// A running server.
pub struct DnsServer {
    address: SocketAddr,
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

impl DnsServer {
    pub fn start(zone: Zone) -> Self {
        // The port of one protocol may be in use in the other.
        let bind = || {
            let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            TcpListener::bind(udp.local_addr().expect("an address"))
                .ok()
                .map(|tcp| (udp, tcp))
        };
        let (udp, tcp) = std::iter::repeat_with(bind)
            .take(100)
            .flatten()
            .next()
            .expect("a port that is free in UDP and TCP");
        let address = udp.local_addr().expect("an address");
        let state = Arc::new(State {
            zone: Mutex::new(zone),
            ..State::default()
        });
        let threads = [
            std::thread::spawn({
                let state = Arc::clone(&state);
                move || state.serve_udp(&udp)
            }),
            std::thread::spawn({
                let state = Arc::clone(&state);
                move || state.serve_tcp(&tcp)
            }),
        ];
        Self {
            address,
            state,
            threads: threads.into(),
        }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers like this from now on.
    pub fn set(&self, zone: Zone) {
        *self.state.zone.lock().expect("a lock") = zone;
    }

    /// What it was asked so far.
    pub fn queries(&self) -> Queries {
        self.state.queries.lock().expect("a lock").clone()
    }
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl State {
    fn ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    fn serve_udp(&self, socket: &UdpSocket) {
        socket.set_read_timeout(Some(TICK)).expect("a timeout");
        let mut query = [0; 4_096];
        while !self.ends() {
            let Ok((length, peer)) = socket.recv_from(&mut query) else {
                continue;
            };
            let query = &query[..length];
            let mut answer = self.answer(query);
            if answer.len() > datagram(query) {
                // Without records, and with the bit TC.
                answer.truncate(question_end(query));
                answer[2] |= 2;
                answer[6..8].fill(0);
                self.queries.lock().expect("a lock").truncated += 1;
            }
            let _ = socket.send_to(&answer, peer);
        }
    }

    fn serve_tcp(self: &Arc<Self>, listener: &TcpListener) {
        listener.set_nonblocking(true).expect("non-blocking");
        while !self.ends() {
            match listener.accept() {
                Ok((stream, _)) => {
                    let state = Arc::clone(self);
                    std::thread::spawn(move || state.serve_stream(stream));
                }
                Err(_) => std::thread::sleep(TICK),
            }
        }
    }

    /// Answers the queries of a connection until its client closes it, or has nothing to ask for a
    /// second.
    fn serve_stream(&self, mut stream: TcpStream) {
        stream.set_nonblocking(false).expect("blocking");
        stream
            .set_read_timeout(Some(Duration::from_secs(1)))
            .expect("a timeout");
        let mut length = [0; 2];
        while stream.read_exact(&mut length).is_ok() {
            let mut query = vec![0; u16::from_be_bytes(length).into()];
            if stream.read_exact(&mut query).is_err() {
                return;
            }
            self.queries.lock().expect("a lock").by_tcp += 1;
            let answer = self.answer(&query);
            let length = u16::try_from(answer.len())
                .expect("a short answer")
                .to_be_bytes();
            let _ = stream.write_all(&[&length, answer.as_slice()].concat());
        }
    }

    fn answer(&self, query: &[u8]) -> Vec<u8> {
        let end = question_end(query);
        let kind = u16::from_be_bytes([query[end - 4], query[end - 3]]);
        {
            let names = &mut self.queries.lock().expect("a lock").names;
            names.push((name(query), kind));
            let extra = names.len().saturating_sub(1_000);
            names.drain(..extra);
        }
        let zone = *self.zone.lock().expect("a lock");
        let (code, count) = match (zone.fault, kind) {
            (Some(Fault::ServerFailure), _) | (Some(Fault::OnlyV4), AAAA) => (2, 0),
            (_, A) => (0, zone.v4),
            (_, AAAA) => (0, zone.v6),
            _ => (0, 0),
        };
        let mut answer = query[..2].to_vec();
        // QR, RD and RA; the code; one question.
        answer.extend([0x81, 0x80 | code, 0, 1]);
        answer.extend(u16::try_from(count).expect("few").to_be_bytes());
        answer.extend([0; 4]);
        answer.extend(&query[12..end]);
        for host in 1..=count {
            // The name of the question, the type, the class IN, and a time to live of 5 s.
            answer.extend([0xc0, 12]);
            answer.extend(kind.to_be_bytes());
            answer.extend([0, 1, 0, 0, 0, 5]);
            let address = match kind {
                A => Ipv4Addr::from(0x0a00_0000 + host).octets().to_vec(),
                _ => Ipv6Addr::from((0xfd00 << 112) + u128::from(host))
                    .octets()
                    .to_vec(),
            };
            answer.extend([0, address.len() as u8]);
            answer.extend(address);
        }
        answer
    }
}

/// Where the question ends: after its name, type and class.
fn question_end(query: &[u8]) -> usize {
    let mut at = 12;
    while query[at] > 0 {
        at += 1 + usize::from(query[at]);
    }
    at + 5
}

fn name(query: &[u8]) -> String {
    let mut labels = Vec::new();
    let mut at = 12;
    while query[at] > 0 {
        let next = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..next]).into_owned());
        at = next;
    }
    labels.join(".")
}

/// The longest datagram that the client takes: what its EDNS record says, which is the only one
/// after the question.
fn datagram(query: &[u8]) -> usize {
    match query[question_end(query)..] {
        [0, 0, 41, high, low, ..] => usize::from(u16::from_be_bytes([high, low])).max(DATAGRAM),
        _ => DATAGRAM,
    }
}
