//! Clients that do not finish their handshakes.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;

use super::*;
use crate::support::wait::eventually_async;

/// The begin of a ClientHello: a record of 512 bytes of which five arrive.
const BEGIN: &[u8] = &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03];

/// A connection whose client sends these bytes and then nothing.
fn silent(secured: &Secured, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(secured.weir.grpc_addr()).expect("a connection");
    stream.write_all(sent).expect("written");
    stream
}

/// More clients than there is memory for unfinished handshakes, all at once; a client that speaks
/// TLS is served meanwhile.
#[tokio::test]
async fn unfinished_handshakes_are_bounded_in_number_and_in_time() {
    let secured = Secured::start(&[("MEMORY_LIMIT", "512Mi")]);
    let (tls, before) = (secured.tls(), secured.weir.resident_kib());
    let began = std::time::Instant::now();
    let flood: Vec<_> = (0..1_200)
        .map(|index| silent(&secured, if index % 2 == 0 { b"" } else { BEGIN }))
        .collect();
    assert!(accepts(&tls).await, "a client in the middle of it");
    let open = || {
        secured
            .weir
            .metric("weir_tls_handshakes_open")
            .expect("a gauge")
    };
    assert!(
        eventually_async(|| (secured.handshakes("displaced") > 0.0).then_some(()))
            .await
            .is_some(),
        "the oldest end"
    );
    assert!(open() <= 820.0, "{} handshakes are open", open());
    assert!(
        secured.weir.peak_resident_kib() < before + (64 << 10),
        "{} KiB",
        secured.weir.peak_resident_kib()
    );
    // All end in time.
    assert!(
        eventually_async(|| (open() == 0.0).then_some(()))
            .await
            .is_some()
    );
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(
        secured.handshakes("late") + secured.handshakes("displaced"),
        1_200.0
    );
    for mut stream in flood {
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a socket");
        let closed = stream.read(&mut [0; 16]);
        assert!(
            matches!(closed, Ok(0))
                || closed.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset),
            "closed"
        );
    }
    assert!(accepts(&tls).await);
}

/// Hellos come faster than they are answered, and their clients never go on. Those for which the
/// queue of handshakes had no space were closed, and new good clients among them.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_hellos_closes_no_new_client() {
    let secured = Secured::start(&[("MEMORY_LIMIT", "512Mi"), ("WORKERS", "1")]);
    let (tls, hello, ends) = (secured.tls(), secured.tls().hello(), AtomicBool::new(false));
    let flood = || {
        let mut open = VecDeque::new();
        while !ends.load(Ordering::Relaxed) {
            open.push_back(silent(&secured, &hello));
            open.drain(..open.len().saturating_sub(1_500));
        }
    };
    std::thread::scope(|threads| {
        (0..2).for_each(|_| drop(threads.spawn(flood)));
        let good = tokio::task::block_in_place(|| {
            Handle::current().block_on(async {
                let mut good = 0;
                for _ in 0..15 {
                    good += u32::from(accepts(&tls).await);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                good
            })
        });
        ends.store(true, Ordering::Relaxed);
        let [displaced, refused] = [
            secured.handshakes("displaced"),
            secured
                .weir
                .metric("weir_connections_refused_total")
                .expect("a counter"),
        ];
        println!(
            "{good} good, {displaced} displaced, {refused} refused, {} completed",
            secured.handshakes("completed")
        );
        assert!(
            good == 15 && displaced > 1_000.0 && refused == 0.0,
            "{good} good, {displaced} displaced, {refused} refused"
        );
    });
}

/// A client that finishes its handshake and then sends nothing, or half a preface.
#[tokio::test]
async fn a_connection_after_its_handshake_has_to_speak_http2() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let secured = Secured::start(&[]);
    for (sent, answer) in [
        (&b"PRI * HT"[..], &b""[..]),
        (
            b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n",
            b"HTTP/1.1 400 ",
        ),
    ] {
        let mut stream = secured.tls().connect().await.expect("a handshake");
        stream.write_all(sent).await.expect("written");
        let mut read = Vec::new();
        let ended =
            tokio::time::timeout(Duration::from_secs(15), stream.read_to_end(&mut read)).await;
        assert!(
            ended.is_ok() && read.starts_with(answer),
            "{:?}",
            String::from_utf8_lossy(&read)
        );
    }
}
