use std::io::Read;
use std::net::{TcpListener, UdpSocket};

use tonic::Code;

use super::*;
use crate::observe::metrics::Core;

fn options(port: u16, protocol: Protocol) -> Options {
    let tags = vec![
        ("env".to_owned(), "test".to_owned()),
        ("zone".to_owned(), "b".to_owned()),
    ];
    Options {
        host: "127.0.0.1".to_owned(),
        port,
        protocol,
        flavour: Flavour::Statsd,
        tags,
        interval: Duration::from_secs(3_600),
    }
}

fn answered(metrics: &Metrics, count: usize) {
    for _ in 0..count {
        metrics
            .process
            .request(Core(0), Code::Ok, Duration::from_micros(70));
    }
}

#[test]
fn what_an_unreachable_server_missed_is_sent_later() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let metrics = Metrics::new(1, 0.8);
    let mut sender = Sender::new(Arc::clone(&metrics), options(port, Protocol::Tcp));
    answered(&metrics, 3);
    for _ in 0..3 {
        sender.flush();
        assert!(sender.failing.is_some());
    }
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    answered(&metrics, 4);
    sender.flush();
    assert!(sender.failing.is_none());
    let (mut first, _) = listener.accept().unwrap();
    // The server closes the connection; the next flush opens another one.
    let mut received = [0; 4096];
    let length = first.read(&mut received).unwrap();
    let text = String::from_utf8_lossy(&received[..length]).into_owned();
    assert!(
        text.contains("ratelimit_server.ShouldRateLimit.total_requests.__env=test.__zone=b:7|c\n"),
        "{text}"
    );
    assert!(
        text.contains(
            "ratelimit_server.ShouldRateLimit.response_time.__env=test.__zone=b:0.075|ms\
             |@0.142857142857\n"
        ),
        "{text}"
    );
    drop(first);
    answered(&metrics, 1);
    let mut text = String::new();
    // The kernel may need a moment to report that the peer has closed.
    for _ in 0..100 {
        sender.flush();
        listener.set_nonblocking(true).unwrap();
        if let Ok((mut second, _)) = listener.accept() {
            drop(sender);
            second.set_nonblocking(false).unwrap();
            second.read_to_string(&mut text).unwrap();
            break;
        }
        answered(&metrics, 1);
    }
    assert!(text.contains("total_requests"), "{text}");
}

#[test]
fn packets_have_a_bound_and_whole_lines() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let metrics = Metrics::new(1, 0.8);
    metrics.register(Box::new(|| {
        (0..99)
            .map(|number| {
                crate::observe::metrics::families::DOMAIN_NOT_FOUND
                    .count(&[&format!("{number}{}", "d".repeat(100))], number)
            })
            .collect()
    }));
    metrics.register(Box::new(|| {
        vec![
            crate::observe::metrics::families::DOMAIN_NOT_FOUND
                .count(&[&"long".repeat(MAX_LINE_BYTES)], 1),
        ]
    }));
    let mut sender = Sender::new(
        Arc::clone(&metrics),
        options(server.local_addr().unwrap().port(), Protocol::Udp),
    );
    sender.flush();
    assert!(sender.warned_of_long_lines);
    let (mut lines, mut packets) = (0, 0);
    while lines < 98 {
        let mut packet = vec![0; 65_536];
        let length = server.recv(&mut packet).unwrap();
        assert!(length <= 1_432, "{length}");
        packets += 1;
        for line in std::str::from_utf8(&packet[..length]).unwrap().lines() {
            let (name, value) = line.rsplit_once(':').unwrap();
            assert!(
                name.starts_with("ratelimit.service.") && value.ends_with("|c"),
                "{line}"
            );
            lines += 1;
        }
    }
    assert!((8..20).contains(&packets), "{packets}");
}

#[test]
fn a_sample_rate_stands_for_all_observations() {
    for count in [1_u64, 2, 3, 7, 10, 49, 1_000, 99_999, 1_000_003] {
        assert_eq!((1.0 / rate(count)) as u64, count, "{count}");
    }
}
