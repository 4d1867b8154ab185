//! What TLS costs on the gRPC port: CPU time per call on open connections, and per connection with
//! its handshake and first call.
//!
//! One thread asks over a few connections, one after the other, with the same client for all
//! transports, so that their figures differ by the transport alone.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use prost::Message;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tokio_rustls::rustls;

use super::scenarios::Times;
use super::servers::{CpuPlacement, Server};
use super::tables::spread;
use super::workload;

/// What the port speaks: its name in the table, and the algorithm of the key.
const TRANSPORTS: [(&str, Option<Key>); 3] = [
    ("plaintext", None),
    ("TLS 1.3, P-256", Some(Key::P256)),
    ("TLS 1.3, RSA 2048", Some(Key::Rsa)),
];

/// Calls that are on their way at a time on the open connection; as many answers are read before
/// the next.
const BATCH: usize = 16;

#[derive(Clone, Copy)]
enum Key {
    P256,
    /// The key of the tests, because ring makes none.
    Rsa,
}

/// The figures of a transport, a value per round, in microseconds of the server's CPU.
pub struct Costs {
    name: &'static str,
    call: Vec<f64>,
    connection: Vec<f64>,
}

trait Wire: Read + Write {}
impl<W: Read + Write> Wire for W {}

/// Measures all transports in turn, in each round.
pub fn rounds(times: Times, is_wanted: impl Fn(&str) -> bool) -> Vec<Costs> {
    let wanted: Vec<_> = TRANSPORTS
        .into_iter()
        .filter(|(name, _)| is_wanted(name))
        .collect();
    let mut costs: Vec<_> = wanted
        .iter()
        .map(|&(name, _)| Costs {
            name,
            call: Vec::new(),
            connection: Vec::new(),
        })
        .collect();
    for round in 1..=times.rounds {
        for (&(name, key), costs) in wanted.iter().zip(&mut costs) {
            let (call, connection) = measure(key, times);
            eprintln!(
                "round {round}: {name:20} {call:6.2} us per call, {connection:8.1} us per \
                 connection"
            );
            costs.call.push(call);
            costs.connection.push(connection);
        }
    }
    costs
}

/// The table.
pub fn report(costs: &[Costs]) -> String {
    let rows = costs.iter().map(|costs| {
        format!(
            "| {} | {} | {} |\n",
            costs.name,
            spread(&costs.call, 2),
            spread(&costs.connection, 0)
        )
    });
    format!(
        "| gRPC port | server, µs CPU per call | server, µs CPU per connection with its first call \
         |\n|---|---|---|\n{}",
        rows.collect::<String>()
    )
}

fn measure(key: Option<Key>, times: Times) -> (f64, f64) {
    let folder = tempfile::tempdir().expect("a folder");
    workload::write(folder.path(), "fixed_window");
    let (variables, config) = match key {
        None => (Vec::new(), None),
        Some(key) => certify(folder.path(), key),
    };
    let server = Server::weir(folder, &variables, CpuPlacement::FirstCore);
    let connect = || connect(server.address, config.as_ref());
    let mut open = connect();
    let mut stream = 1;
    let mut ask_for = |window, count: &mut u64| {
        let began = Instant::now();
        while began.elapsed() < window {
            exchange(&mut *open, &mut stream, BATCH);
            *count += BATCH as u64;
        }
    };
    ask_for(times.warm_up, &mut 0);
    let (before, mut calls) = (server.cpu_micros(), 0);
    ask_for(times.window, &mut calls);
    let call = (server.cpu_micros() - before) / calls as f64;
    let (before, began, mut connections) = (server.cpu_micros(), Instant::now(), 0_u64);
    while began.elapsed() < times.window {
        exchange(&mut *connect(), &mut 1, 1);
        connections += 1;
    }
    (call, (server.cpu_micros() - before) / connections as f64)
}

/// Writes a certificate for localhost; returns the variables of the server, and what clients trust.
fn certify(folder: &Path, key: Key) -> (Vec<(&'static str, String)>, Option<Arc<ClientConfig>>) {
    let text = match key {
        Key::P256 => KeyPair::generate().expect("a key").serialize_pem(),
        Key::Rsa => include_str!("../../tests/vectors/tls/rsa.pkcs8.pem").to_owned(),
    };
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let certificate = params
        .self_signed(&KeyPair::from_pem(&text).expect("a key"))
        .expect("a certificate")
        .pem();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a folder of our own");
        path.display().to_string()
    };
    let variables = vec![
        ("GRPC_SERVER_USE_TLS", "true".to_owned()),
        ("GRPC_SERVER_TLS_CERT", write("tls.crt", &certificate)),
        ("GRPC_SERVER_TLS_KEY", write("tls.key", &text)),
    ];
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM"))
        .expect("a certificate");
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring has TLS 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
    (variables, Some(Arc::new(config)))
}

/// The preface, empty settings, and a window for more than a run receives.
const BEGIN: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0";

/// Connects and begins HTTP/2.
fn connect(address: SocketAddr, config: Option<&Arc<ClientConfig>>) -> Box<dyn Wire> {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_nodelay(true).expect("a TCP socket");
    let mut wire: Box<dyn Wire> = match config {
        None => Box::new(stream),
        Some(config) => {
            let name = ServerName::try_from("localhost").expect("a name");
            Box::new(StreamOwned::new(
                ClientConnection::new(Arc::clone(config), name).expect("a client"),
                stream,
            ))
        }
    };
    wire.write_all(BEGIN).expect("the server reads");
    wire
}

/// The frames of a call: HEADERS without entries of a table (RFC 7541, section 6.2.2), and DATA.
fn call(stream: u32) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (
            ":path",
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        ),
        (":authority", "ratelimit"),
        ("te", "trailers"),
        ("grpc-timeout", "10S"),
        ("content-type", "application/grpc"),
    ] {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    let message = workload::request(stream as usize / 2 % workload::KEYS, 1).encode_to_vec();
    let mut data = vec![0];
    data.extend_from_slice(&(message.len() as u32).to_be_bytes());
    data.extend_from_slice(&message);
    let frame = |kind: u8, flags: u8, payload: &[u8]| {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    [frame(1, 4, &block), frame(0, 1, &data)].concat()
}

/// Sends calls on streams from `stream` on in one write, and reads until all are answered.
fn exchange(wire: &mut dyn Wire, stream: &mut u32, calls: usize) {
    let mut sent = Vec::new();
    for _ in 0..calls {
        sent.extend(call(*stream));
        *stream += 2;
    }
    wire.write_all(&sent).expect("the server reads");
    let (mut answered, mut received) = (0, Vec::new());
    while answered < calls {
        let mut head = [0; 9];
        wire.read_exact(&mut head).expect("an answer");
        received.resize(
            u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize,
            0,
        );
        wire.read_exact(&mut received).expect("an answer");
        // HEADERS with END_STREAM.
        answered += usize::from(head[3] == 1 && head[4] & 1 == 1);
        if head[3] == 4 && head[4] & 1 == 0 {
            wire.write_all(b"\0\0\0\x04\x01\0\0\0\0")
                .expect("the server reads");
        }
        if head[3] == 6 && head[4] & 1 == 0 {
            head[4] |= 1;
            wire.write_all(&[&head[..], &received].concat())
                .expect("the server reads");
        }
    }
}
