//! Clients of the HTTP listener that send or read slowly: what they leave unfinished takes bounded
//! memory for a bounded time.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{BODY, post};
use crate::service::server::raw::is_closed;
use crate::support::wait::{TIMEOUT, eventually, eventually_within};
use crate::support::{DEMO, Weir};

/// The resident memory of a service, in MiB.
fn resident_mib(weir: &Weir) -> u64 {
    weir.resident_kib() / 1_024
}

/// Connections that each send this.
fn connections(weir: &Weir, count: usize, sent: &[u8]) -> Vec<TcpStream> {
    let connect = |_| {
        let mut socket = TcpStream::connect(weir.http_addr()).expect("a connection");
        socket.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        socket.set_write_timeout(Some(TIMEOUT)).expect("a socket");
        // Weir may refuse it before it has read all.
        let _ = socket.write_all(sent);
        socket
    };
    (0..count).map(connect).collect()
}

/// What Weir sends until it closes the connection.
fn read_all(socket: &mut TcpStream) -> String {
    let mut read = Vec::new();
    if let Err(error) = socket.read_to_end(&mut read) {
        assert_eq!(
            error.kind(),
            ErrorKind::ConnectionReset,
            "the connection stays open"
        );
    }
    String::from_utf8_lossy(&read).into_owned()
}

/// 100 bodies of 4 MiB without their last byte took 412 MiB.
#[test]
fn unfinished_bodies_share_a_budget() {
    for head in [
        "content-length: 4194304\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n400000\r\n",
    ] {
        let weir = Weir::start(DEMO, &[("MEMORY_LIMIT", "144Mi")]);
        assert_eq!(post(&weir, "/json", BODY).status, 200);
        let before = resident_mib(&weir);
        let mut sent = format!("POST /json HTTP/1.1\r\nhost: weir\r\n{head}").into_bytes();
        sent.resize(sent.len() + (4 << 20) - 1, b' ');
        let mut slow = connections(&weir, 100, &sent);
        let grown = resident_mib(&weir).saturating_sub(before);
        assert!(grown < 50, "100 unfinished bodies take {grown} MiB");
        assert_eq!(post(&weir, "/json", BODY).status, 200, "others are served");
        let answers: Vec<_> = slow.iter_mut().map(read_head).collect();
        let count = |status: &str| {
            answers
                .iter()
                .filter(|answer| answer.starts_with(&format!("HTTP/1.1 {status} ")))
                .count()
        };
        assert_eq!(count("503") + count("408"), 100, "{answers:?}");
        assert!(
            count("503") > 90,
            "the oldest are refused, and {} were late",
            count("408")
        );
    }
}

/// The first line of an answer.
fn read_head(socket: &mut TcpStream) -> String {
    let mut read = [0; 30];
    match socket.read(&mut read) {
        Ok(count) => String::from_utf8_lossy(&read[..count]).into_owned(),
        Err(error) => format!("{error}"),
    }
}

#[test]
fn a_body_that_comes_slowly_is_refused_in_time() {
    let weir = Weir::start(DEMO, &[]);
    let mut slow = connections(
        &weir,
        1,
        b"POST /json HTTP/1.1\r\nhost: weir\r\ncontent-length: 100000\r\n\r\n",
    )
    .remove(0);
    let begun = Instant::now();
    slow.set_read_timeout(Some(Duration::from_millis(200)))
        .expect("a socket");
    let answer = eventually(|| {
        let _ = slow.write_all(b" ");
        Some(read_head(&mut slow)).filter(|answer| answer.starts_with("HTTP"))
    });
    assert!(answer.expect("an answer").starts_with("HTTP/1.1 408 "));
    assert!(
        (9..15).contains(&begun.elapsed().as_secs()),
        "{:?}",
        begun.elapsed()
    );
}

/// A head has 10 seconds and 64 KiB, however slowly it comes.
#[test]
fn heads_that_come_slowly_end_in_time() {
    let weir = Weir::start(DEMO, &[]);
    assert_eq!(post(&weir, "/json", BODY).status, 200);
    let before = resident_mib(&weir);
    let sent = format!(
        "GET / HTTP/1.1\r\nhost: weir\r\nx: {}",
        "x".repeat(63 << 10)
    );
    let begun = Instant::now();
    let mut slow = connections(&weir, 500, sent.as_bytes());
    let grown = resident_mib(&weir).saturating_sub(before);
    assert!(grown < 100, "500 unfinished heads take {grown} MiB");
    assert_eq!(weir.get("/healthcheck").0, 200, "others are served");
    for socket in &mut slow {
        let _ = socket.write_all(b"x");
    }
    for socket in &mut slow {
        assert_eq!(read_all(socket), "");
    }
    assert!(
        (9..15).contains(&begun.elapsed().as_secs()),
        "{:?}",
        begun.elapsed()
    );
    let mut long = connections(&weir, 1, format!("{sent}{sent}").as_bytes()).remove(0);
    assert!(
        read_all(&mut long).starts_with("HTTP/1.1 431 "),
        "a longer head is refused at once"
    );
}

/// 512 heads of each listener took 32 MiB in no budget.
#[test]
fn heads_that_are_not_whole_take_memory_of_unfinished_work() {
    let weir = Weir::start(DEMO, &[("MEMORY_LIMIT", "64Mi")]);
    let idle = connections(
        &weir,
        1,
        b"GET /healthcheck HTTP/1.1\r\nhost: localhost\r\n\r\n",
    );
    let sent = format!("GET / HTTP/1.1\r\nx: {}", "x".repeat(60 << 10));
    let heads = connections(&weir, 200, sent.as_bytes());
    let closed = || heads.iter().map(is_closed).collect::<Vec<_>>();
    // Half of the 9 MiB for unfinished work has room for 77.
    let is_bounded = eventually(|| (closed()[..120] == [true; 120]).then_some(()));
    assert!(is_bounded.is_some(), "{:?}", closed());
    assert_eq!(closed()[130..], [false; 70], "the newest have room");
    assert!(!idle.iter().any(is_closed), "between two requests");
    assert_eq!(post(&weir, "/json", BODY).status, 200);
}

/// A head of exactly this many bytes.
fn head(bytes: usize) -> Vec<u8> {
    let start = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: ";
    format!("{start}{}\r\n\r\n", "x".repeat(bytes - start.len() - 4)).into_bytes()
}

/// A longer head was served if it arrived with its last bytes in one read.
#[test]
fn every_listener_refuses_heads_of_more_than_64_kib() {
    let weir = Weir::start(
        DEMO,
        &[
            ("PROMETHEUS_ADDR", "127.0.0.1:0"),
            ("USE_PROMETHEUS", "true"),
        ],
    );
    for listener in ["http", "debug", "prometheus"] {
        let status = |bytes| {
            let mut socket = TcpStream::connect(weir.listener(listener)).expect("a connection");
            // Weir may answer before it has read all.
            let _ = socket.write_all(&head(bytes));
            let mut status = [0; 13];
            socket.read_exact(&mut status).expect("an answer");
            String::from_utf8_lossy(&status[9..12]).into_owned()
        };
        assert_ne!(status(64 << 10), "431", "{listener}");
        for bytes in [(64 << 10) + 1, 70_000, 100_000, 200_000] {
            assert_eq!(status(bytes), "431", "{bytes} bytes to {listener}");
        }
    }
}

/// A client that asks on and on, and reads no answer.
#[test]
fn a_client_that_does_not_read_is_closed_in_time() {
    let weir = Weir::start(DEMO, &[]);
    let before = resident_mib(&weir);
    let mut socket = connections(&weir, 1, b"").remove(0);
    socket.set_nonblocking(true).expect("a socket");
    let asked = b"GET /metrics HTTP/1.1\r\nhost: weir\r\n\r\n".repeat(1_000);
    let begun = Instant::now();
    let closed = eventually_within(3 * TIMEOUT, || {
        let mut written = socket.write(&asked);
        while written.is_ok() {
            written = socket.write(&asked);
        }
        written
            .err()
            .filter(|error| error.kind() != ErrorKind::WouldBlock)
    });
    closed.expect("it is closed");
    let seconds = begun.elapsed().as_secs();
    assert!((29..45).contains(&seconds), "after {seconds} s");
    let grown = resident_mib(&weir).saturating_sub(before);
    assert!(grown < 40, "it took {grown} MiB");
}
