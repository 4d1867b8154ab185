//! What clients leave unfinished: messages in part, streams that stay open, and calls that wait.
//! Each takes bounded memory for a bounded time, and none takes what other calls need.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use tokio::time::timeout;
use tonic::Code;
use weir::service::server::ClientBounds;

use super::frames::{METHOD, begin, call, connect, connect_to, framed, head, read, send};
use super::raw::{
    self, END_HEADERS, HEADERS, LIMITS, MIB, PREFACE, RST_STREAM, SETTINGS, SETTINGS_ACK, frame,
};
use super::{Options, Server};
use crate::support::wait::{TIMEOUT, eventually};
use crate::support::{DEMO, Weir, descriptor, request};

const CHECK: &str = "/grpc.health.v1.Health/Check";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const REFLECTION_ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

const WINDOW: u32 = 65_535;

/// A message of which the announced length is true, and this many bytes are sent.
fn part(announced: usize, sent: usize) -> Bytes {
    let mut message = BytesMut::from(&[0][..]);
    message.put_u32(u32::try_from(announced).expect("short"));
    message.put_bytes(7, sent);
    message.freeze()
}

/// A call with the start of a message. It is sent as far as the server's window allows.
async fn unfinished(
    client: &mut SendRequest<Bytes>,
    path: &str,
    start: Bytes,
) -> (ResponseFuture, SendStream<Bytes>) {
    let (answer, mut stream) = begin(client, head(path, &[]), false).await;
    stream.send_data(start, false).expect("an open stream");
    (answer, stream)
}

/// The message of a call that the limits of `DEMO` allow.
fn usual() -> Bytes {
    framed(&prost::Message::encode_to_vec(&request(
        "demo",
        vec![descriptor(&[("other", "v")])],
    )))
}

/// Waits until the memory of the service no longer grows. Returns its growth in MiB.
async fn grown(weir: &Weir, before: u64) -> u64 {
    let mut last = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = weir.resident_kib();
        if now <= last + MIB {
            return now.saturating_sub(before) / MIB;
        }
        last = now;
    }
}

/// Leaves messages unfinished, so many of them on each of so many connections. Whole calls of
/// others are answered all the while. Returns the open connections and calls, and the growth of the
/// service in MiB.
async fn leave_unfinished(
    weir: &Weir,
    [connections, calls]: [usize; 2],
    start: Bytes,
) -> (
    Vec<SendRequest<Bytes>>,
    Vec<(ResponseFuture, SendStream<Bytes>)>,
    u64,
) {
    assert_eq!(split_call(weir.grpc_addr()).await, Code::Ok);
    let before = weir.resident_kib();
    let (mut clients, mut open) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        let mut client = connect_to(weir.grpc_addr(), WINDOW).await;
        for _ in 0..calls {
            open.push(unfinished(&mut client, METHOD, start.clone()).await);
        }
        clients.push(client);
        assert_eq!(
            split_call(weir.grpc_addr()).await,
            Code::Ok,
            "whatever others leave unfinished"
        );
    }
    let grown = grown(weir, before).await;
    (clients, open, grown)
}

/// How many of these calls were refused with RESOURCE_EXHAUSTED, and how many ended with their
/// time.
async fn refused_and_late(open: Vec<(ResponseFuture, SendStream<Bytes>)>) -> (u32, u32) {
    let (mut refused, mut late) = (0, 0);
    for (answer, _stream) in open {
        match timeout(TIMEOUT, read(answer)).await.expect("an answer").2 {
            Code::ResourceExhausted => refused += 1,
            Code::DeadlineExceeded => late += 1,
            code => panic!("{code:?}"),
        }
    }
    (refused, late)
}

/// A call in two parts, as HTTP/2 under load may split any.
async fn split_call(address: SocketAddr) -> Code {
    let mut client = connect_to(address, WINDOW).await;
    let message = usual();
    let pieces = [&message[..4], &message[4..]];
    timeout(TIMEOUT, call(&mut client, head(METHOD, &[]), &pieces))
        .await
        .expect("an answer")
        .2
}

/// 100 streams with 4 MiB each took 400 MiB, for ever.
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_health_and_reflection_are_small() {
    for path in [CHECK, REFLECTION, REFLECTION_ALPHA] {
        let weir = Weir::start(DEMO, &[]);
        let mut client = connect_to(weir.grpc_addr(), WINDOW).await;
        assert_eq!(split_call(weir.grpc_addr()).await, Code::Ok);
        let before = weir.resident_kib();
        let mut open = Vec::new();
        for _ in 0..100 {
            open.push(unfinished(&mut client, path, part(4 << 20, (4 << 20) - 1)).await);
        }
        let grown = grown(&weir, before).await;
        assert!(
            grown < 20,
            "{path}: 100 unfinished messages take {grown} MiB"
        );
        for (answer, _stream) in open {
            let (_, _, code) = timeout(TIMEOUT, read(answer)).await.expect("an answer");
            // tonic's reflection ends the stream, whatever is wrong with a message.
            assert_eq!(
                code,
                if path == CHECK {
                    Code::OutOfRange
                } else {
                    Code::Ok
                },
                "{path}"
            );
        }
    }
}

/// tonic's reflection reads messages in a task of its own, which kept each stream for its minute:
/// 900 connections took 2.8 GiB.
#[test]
fn streams_of_reflection_end_when_others_need_their_memory() {
    let weir = Weir::start(LIMITS, &[("MEMORY_LIMIT", "64Mi"), ("WORKERS", "1")]);
    let mut socket = raw::connect(weir.grpc_addr());
    let fields = raw::fields_of(REFLECTION, "a");
    let calls = (0..20).flat_map(|call| frame(HEADERS, END_HEADERS, 2 * call + 1, &fields));
    let calls: Vec<u8> = calls.collect();
    socket.write_all(&calls).expect("a server");
    // Half of the 9 MiB for unfinished work has room for 4. The newest of a flood end too.
    let mut ended = HashSet::new();
    while ended.len() < 16 {
        let (kind, _, stream, _) = raw::read_frame(&mut socket).expect("a frame");
        assert!(kind != RST_STREAM || ended.insert(stream), "{stream}");
    }
}

/// The time limits, made short: of a message, and of a stream of reflection.
fn short() -> ClientBounds {
    let mut budget = ClientBounds::new(128 << 20);
    budget.arrives_within = Duration::from_millis(200);
    budget.streams_within = Duration::from_millis(200);
    budget
}

#[tokio::test]
async fn no_service_waits_for_ever_for_its_message() {
    let server = Server::start_with(Options::default(), short());
    let mut client = connect(&server, WINDOW).await;
    for (path, start, expected) in [
        (METHOD, Bytes::new(), Code::DeadlineExceeded),
        (METHOD, part(9, 3), Code::DeadlineExceeded),
        (METHOD, part(1 << 20, 3), Code::DeadlineExceeded),
        (CHECK, Bytes::new(), Code::DeadlineExceeded),
        (CHECK, part(9, 3), Code::DeadlineExceeded),
        (
            "/grpc.health.v1.Health/Watch",
            part(9, 3),
            Code::DeadlineExceeded,
        ),
        // As when the client ends its stream: reflection answers what was asked until then.
        (REFLECTION, Bytes::new(), Code::Ok),
        (REFLECTION, part(9, 3), Code::Ok),
        (REFLECTION_ALPHA, part(9, 3), Code::Ok),
    ] {
        let (answer, _stream) = unfinished(&mut client, path, start.clone()).await;
        let (_, body, code) = timeout(TIMEOUT, read(answer))
            .await
            .unwrap_or_else(|_| panic!("{path} waits after {start:?}"));
        assert_eq!((body.len(), code), (0, expected), "{path} after {start:?}");
    }
    // Bytes that come slowly, or that follow the message, prolong nothing.
    for start in [part(1_000, 0), framed(b"long 9")] {
        let (answer, mut stream) = unfinished(&mut client, METHOD, start).await;
        let drips = async {
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let _ = stream.send_data(Bytes::from_static(b"x"), false);
            }
        };
        let answer = tokio::select! {
            answer = read(answer) => answer,
            () = drips => unreachable!("it drips for ever"),
        };
        assert_eq!(answer.2, Code::DeadlineExceeded);
    }
    assert_eq!(
        call(&mut client, head(METHOD, &[]), &[&framed(b"long 9")])
            .await
            .2,
        Code::Ok,
        "others are served"
    );
}

/// Messages up to 64 KiB share 64 MiB with everything else that is unfinished. The oldest ends, so
/// that others are served.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_messages_share_a_budget() {
    let weir = Weir::start(DEMO, &[("WORKERS", "2"), ("MEMORY_LIMIT", "512Mi")]);
    let (clients, open, grown) = leave_unfinished(&weir, [20, 250], part(65_000, 40_000)).await;
    assert!(
        (30..130).contains(&grown),
        "5,000 messages of 40 KB take {grown} MiB"
    );
    assert_eq!(split_call(weir.grpc_addr()).await, Code::Ok);
    let (oldest, late) = refused_and_late(open).await;
    drop(clients);
    assert!(
        oldest > 2_000,
        "{oldest} were the oldest, and {late} were late"
    );
    assert_eq!(
        weir.metric("weir_calls_refused_total"),
        Some(f64::from(oldest))
    );
}

/// 17 connections with 1,024 calls without a message made every call that waits RESOURCE_EXHAUSTED.
#[tokio::test(flavor = "multi_thread")]
async fn half_messages_take_no_permits_of_calls_that_wait() {
    let server = Server::start(Options::default());
    let (mut clients, mut open) = (Vec::new(), Vec::new());
    for _ in 0..17 {
        let mut client = connect(&server, WINDOW).await;
        for _ in 0..1_000 {
            open.push(begin(&mut client, head(METHOD, &[]), false).await);
        }
        clients.push(client);
    }
    let mut client = connect(&server, WINDOW).await;
    let whole = framed(b"wait long 9");
    for pieces in [vec![&whole[..]], vec![&whole[..7], &whole[7..]]] {
        let (_, body, code) = timeout(TIMEOUT, call(&mut client, head(METHOD, &[]), &pieces))
            .await
            .expect("an answer");
        assert_eq!(
            (body.len(), code),
            (5 + 9, Code::Ok),
            "{} pieces",
            pieces.len()
        );
    }
    assert_eq!(server.metric("weir_waiting_calls{worker=\"0\"}"), Some(0.0));
    drop(open);
}

const SHAPER: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: shaped
descriptors:
  - key: slow
    rate_limit: { unit: second, requests_per_unit: 1, algorithm: leaky_bucket, max_delay: 1000s }
",
)];

/// A client that sends each call in one write, as far as the window of the connection allows.
struct Whole {
    socket: TcpStream,
    window: usize,
    next_stream: u32,
}

impl Whole {
    fn connect(address: SocketAddr) -> Self {
        let mut socket = TcpStream::connect(address).expect("a connection");
        socket
            .set_read_timeout(Some(Duration::from_secs(3)))
            .expect("a socket");
        let hello = [
            PREFACE,
            &frame(SETTINGS, 0, 0, &[]),
            &frame(SETTINGS, SETTINGS_ACK, 0, &[]),
        ]
        .concat();
        socket.write_all(&hello).expect("a server");
        Self {
            socket,
            window: 65_535,
            next_stream: 1,
        }
    }

    /// Sends a call, in frames of at most 16 KiB. False: the connection has no window for it.
    fn call(&mut self, message: &[u8]) -> bool {
        while self.window < message.len() {
            let mut header = [0; 9];
            if self.socket.read_exact(&mut header).is_err() {
                return false;
            }
            let mut payload =
                vec![0; u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize];
            self.socket.read_exact(&mut payload).expect("a whole frame");
            // Source: RFC 9113, section 6.9.
            if header[3] == 8 && header[5..] == [0; 4] {
                self.window += u32::from_be_bytes(payload.try_into().expect("four bytes")) as usize;
            }
        }
        let literal = |name: &str, value: &str| {
            [
                &[0, name.len() as u8],
                name.as_bytes(),
                &[value.len() as u8],
                value.as_bytes(),
            ]
            .concat()
        };
        let headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", METHOD),
            ("content-type", "application/grpc"),
        ];
        let mut sent = frame(
            1,
            4,
            self.next_stream,
            &headers.map(|(name, value)| literal(name, value)).concat(),
        );
        let pieces = message.chunks(16_384).count();
        for (index, piece) in message.chunks(16_384).enumerate() {
            sent.extend(frame(
                0,
                u8::from(index + 1 == pieces),
                self.next_stream,
                piece,
            ));
        }
        self.socket.write_all(&sent).expect("an open connection");
        self.window -= message.len();
        self.next_stream += 2;
        true
    }
}

/// 69 shaped calls of 15 KB used up the window of their connection.
#[test]
fn calls_that_wait_keep_no_window() {
    for bytes in [15_000, 30_000] {
        let weir = Weir::start(SHAPER, &[("WORKERS", "2")]);
        let long = "x".repeat(bytes);
        let asked = request(
            "shaped",
            vec![
                descriptor(&[("slow", "a")]),
                descriptor(&[("other", &long)]),
            ],
        );
        let message = framed(&prost::Message::encode_to_vec(&asked));
        let mut client = Whole::connect(weir.grpc_addr());
        let sent = (0..500).take_while(|_| client.call(&message)).count();
        assert_eq!(
            sent, 500,
            "calls of {bytes} bytes until the window is used up"
        );
        let waiting = || {
            (0..2)
                .filter_map(|worker| {
                    weir.metric(&format!("weir_waiting_calls{{worker=\"{worker}\"}}"))
                })
                .sum::<f64>()
        };
        eventually(|| (waiting() > 400.0).then_some(()))
            .unwrap_or_else(|| panic!("{} calls wait", waiting()));
    }
}

/// A call that waits with a large message takes permits by its size.
#[tokio::test]
async fn permits_count_the_bytes_of_waiting_messages() {
    let server = Server::start(Options {
        max_waiting_calls: 30,
        ..Options::default()
    });
    let mut client = connect(&server, WINDOW).await;
    let refusal = async |client: &mut SendRequest<Bytes>, bytes: usize| {
        let message = format!("wait{}", " ".repeat(bytes));
        read(send(client, message.as_bytes()).await).await.2
    };
    assert_eq!(refusal(&mut client, 100_000).await, Code::Ok, "25 permits");
    assert_eq!(
        refusal(&mut client, 125_000).await,
        Code::ResourceExhausted,
        "31 permits"
    );
    assert_eq!(refusal(&mut client, 15_000).await, Code::Ok);
}

/// Messages that need more memory together than there is are read in turn, on one connection as on
/// many. They waited for each other until all were late.
#[tokio::test(flavor = "multi_thread")]
async fn forty_large_messages_at_a_time_are_all_answered() {
    // 160 MiB take some seconds without optimization.
    let mut budget = ClientBounds::new(128 << 20);
    budget.arrives_within = TIMEOUT;
    let server = Server::start_with(Options::default(), budget);
    let message = framed(format!("long 9 {}", " ".repeat((4 << 20) - 10)).as_bytes());
    for connections in [1, 40] {
        let mut clients = Vec::new();
        for _ in 0..connections {
            clients.push(connect(&server, WINDOW).await);
        }
        let begun = Instant::now();
        let mut open = Vec::new();
        for index in 0..40 {
            let (answer, stream) = unfinished(
                &mut clients[index % connections],
                METHOD,
                message.slice(..1 << 20),
            )
            .await;
            open.push((answer, stream));
        }
        for (_, stream) in &mut open {
            stream
                .send_data(message.slice(1 << 20..), true)
                .expect("an open stream");
        }
        let answers = open
            .into_iter()
            .map(|(answer, _stream)| tokio::spawn(read(answer)));
        for answer in answers.collect::<Vec<_>>() {
            let (_, body, code) = timeout(TIMEOUT, answer)
                .await
                .expect("an answer")
                .expect("no panic");
            assert_eq!(
                (body.len(), code),
                (5 + 9, Code::Ok),
                "{connections} connections"
            );
        }
        println!("{connections} connections: {:?}", begun.elapsed());
    }
}

/// Large messages take their whole memory before they are read, and a bounded number waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_large_messages_have_a_budget_of_their_own() {
    let weir = Weir::start(DEMO, &[("MEMORY_LIMIT", "512Mi")]);
    let (clients, open, grown) =
        leave_unfinished(&weir, [10, 10], part((4 << 20) - 5, (4 << 20) - 10)).await;
    assert!(grown < 110, "100 large messages take {grown} MiB");
    assert_eq!(
        split_call(weir.grpc_addr()).await,
        Code::Ok,
        "small messages need not wait for large ones"
    );
    let (refused, late) = refused_and_late(open).await;
    drop(clients);
    assert!(
        (45..=60).contains(&refused),
        "16 have memory, 32 wait, and {refused} were refused at once; {late} were late"
    );
}
