use std::net::UdpSocket;

use super::*;

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

#[test]
fn packets_have_a_bound_and_whole_lines() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let metrics = Metrics::new(1, 0.8);
    metrics.register(|| {
        (0..99)
            .map(|number| {
                crate::observe::metrics::families::DOMAIN_NOT_FOUND
                    .count(&[&format!("{number}{}", "d".repeat(100))], number)
            })
            .collect::<Vec<_>>()
    });
    metrics.register(|| {
        vec![
            crate::observe::metrics::families::DOMAIN_NOT_FOUND
                .count(&[&"long".repeat(MAX_LINE_BYTES)], 1),
        ]
    });
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
