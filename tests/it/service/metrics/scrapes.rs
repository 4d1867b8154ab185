//! What a scrape of `/metrics` costs: readers that do not read, and gzip.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::support::wait::{TIMEOUT, eventually_async};
use crate::support::{Weir, ask, descriptor, http_client};

const KIB: u64 = 1 << 10;

/// So many limits, whose metrics have more than a kilobyte each.
fn many_limits(count: usize) -> String {
    let limits = (0..count).map(|index| {
        format!("  - {{ key: key_{index}, rate_limit: {{ unit: hour, requests_per_unit: 10 }} }}\n")
    });
    format!("domain: many\ndescriptors:\n{}", limits.collect::<String>())
}

/// A connection that has asked for the metrics and read the first bytes of the answer, which is all
/// that it reads. Its socket buffers little.
fn unread(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket
        .set_recv_buffer_size(4 << 10)
        .expect("a small buffer");
    socket.connect(&address.into()).expect("a connection");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: weir\r\n\r\n")
        .expect("a request");
    let mut status = [0; 12];
    stream.read_exact(&mut status).expect("a response in time");
    assert_eq!(&status, b"HTTP/1.1 200");
    stream
}

/// At most two texts are in memory, whatever the number of readers. A reader that reads gets a
/// whole and recent one.
#[tokio::test(flavor = "multi_thread")]
async fn readers_that_do_not_read_share_the_text() {
    let weir = Weir::start(&[("limits.yaml", &many_limits(5_000))], &[]);
    let client = &mut weir.client().await;
    let mut call = async || {
        ask(client, "many", vec![descriptor(&[("key_7", "x")])]).await;
    };
    let hits =
        || weir.metric("ratelimit_service_rate_limit_total_hits{domain=\"many\",key1=\"key_7\"}");
    let text_kib = weir.get("/metrics").1.len() as u64 / KIB;
    assert!(text_kib > 4_000, "{text_kib} KiB");
    let before = weir.resident_kib();
    // They come over more than two seconds.
    let readers: Vec<_> = (0..50)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(60));
            unread(weir.http_addr())
        })
        .collect();
    let grown = weir.resident_kib().saturating_sub(before);
    assert!(
        grown < 5 * text_kib,
        "50 readers take {grown} KiB, and a text has {text_kib} KiB"
    );
    let page = weir.get("/metrics").1;
    assert!(
        page.len() as u64 / KIB >= text_kib && page.contains("\nweir_worker_busy_seconds_total"),
        "the whole text"
    );
    // Without slow readers a scrape shows what happened before it.
    drop(readers);
    call().await;
    let shown = eventually_async(|| (hits() == Some(1.0)).then_some(())).await;
    assert!(
        shown.is_some(),
        "the text of readers that have left is kept"
    );
    for count in 2..=20 {
        call().await;
        if count > 10 {
            assert_eq!(hits(), Some(f64::from(count)));
        }
    }
}

/// A text is made to its end when its reader has left; further ones wait for it.
#[test]
fn readers_that_leave_at_once_do_not_have_texts_made_side_by_side() {
    let weir = Weir::start(&[("limits.yaml", &many_limits(5_000))], &[]);
    let text_kib = weir.get("/metrics").1.len() as u64 / KIB;
    let before = weir.peak_resident_kib();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(weir.http_addr()).expect("a connection");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: weir\r\n\r\n")
            .expect("a request");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(weir.get("/metrics").1.len() as u64 / KIB >= text_kib);
    let grown = weir.peak_resident_kib() - before;
    assert!(
        grown < 5 * text_kib,
        "{grown} KiB at the peak, and a text has {text_kib} KiB"
    );
}

/// Head and body of the answer to a request for the metrics.
fn scraped(address: SocketAddr, accept_encoding: &str) -> (String, Vec<u8>) {
    let message = format!(
        "GET /metrics HTTP/1.1\r\nhost: weir\r\nconnection: close\r\naccept-encoding: \
         {accept_encoding}\r\n\r\n"
    );
    let mut received =
        http_client::exchange(Ipv4Addr::LOCALHOST, address, message.as_bytes()).expect("an answer");
    let head = received
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .expect("a head")
        + 4;
    let body = received.split_off(head);
    (
        String::from_utf8(received)
            .expect("text")
            .to_ascii_lowercase(),
        body,
    )
}

#[test]
fn a_scraper_that_accepts_gzip_gets_gzip() {
    let weir = Weir::start(&[("limits.yaml", &many_limits(500))], &[]);
    let plain = weir.get("/metrics").1;
    // What Prometheus sends.
    let (head, body) = scraped(weir.http_addr(), "gzip");
    assert!(
        head.contains("\r\ncontent-encoding: gzip\r\n")
            && head.contains("\r\nvary: accept-encoding\r\n"),
        "{head}"
    );
    assert!(
        head.contains("\r\ncontent-type: text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(
        body.len() * 10 < plain.len(),
        "{} of {} bytes",
        body.len(),
        plain.len()
    );
    let mut text = String::new();
    flate2::read::GzDecoder::new(&*body)
        .read_to_string(&mut text)
        .expect("gzip");
    // Series may have come between the two; families are always the same.
    let families = |text: &str| text.matches("# HELP ").count();
    assert_eq!(families(&text), families(&plain));
    let (head, body) = scraped(weir.http_addr(), "gzip;q=0");
    assert!(!head.contains("content-encoding") && body.starts_with(b"# HELP "));
}
