//! Connections and what clients leave unfinished stay within the memory and the file descriptors of
//! the process, and others are served meanwhile.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

use weir::core::proto::RateLimitDescriptor;
use weir::core::proto::rate_limit_response::Code;

use super::raw::{
    DATA, END_HEADERS, END_STREAM, HEADERS, LIMITS, MIB, answered, connect, fields, frame, message,
};
use crate::support::{Client, Weir, descriptor, request};

/// A connection with an answered call, half a message and half a header block.
fn unfinished(weir: &Weir) -> Option<TcpStream> {
    let mut socket = TcpStream::connect(weir.grpc_addr()).ok()?;
    let head = frame(HEADERS, END_HEADERS, 1, &fields("a"));
    let call = [head, frame(DATA, END_STREAM, 1, &message())].concat();
    let half_message = [&b"\0\0\0\x60\0"[..], &[7; 15_000]].concat();
    let half_message = [
        frame(HEADERS, END_HEADERS, 3, &fields("a")),
        frame(DATA, 0, 3, &half_message),
    ]
    .concat();
    let half_block = frame(
        HEADERS,
        0,
        5,
        &[
            fields("a"),
            b"\0\x01a\x7f\x81\x7f".to_vec(),
            vec![b'v'; 7_000],
        ]
        .concat(),
    );
    let settings = [super::raw::PREFACE, &frame(super::raw::SETTINGS, 0, 0, &[])].concat();
    // Weir may close it before it has read all.
    let _ = socket.write_all(&[settings, call, half_message, half_block].concat());
    Some(socket)
}

/// A call on a new connection.
fn is_served(weir: &Weir) -> bool {
    let mut socket = connect(weir.grpc_addr());
    let call = [
        frame(HEADERS, END_HEADERS, 1, &fields("a")),
        frame(DATA, END_STREAM, 1, &message()),
    ]
    .concat();
    socket.write_all(&call).is_ok() && answered(&mut socket, [1]) == [true]
}

/// Such connections took 62 KiB each, as many as there were.
#[test]
fn clients_that_attack_do_not_exceed_the_memory_limit() {
    let weir = Weir::start(LIMITS, &[("MEMORY_LIMIT", "96Mi"), ("WORKERS", "2")]);
    let mut sockets = Vec::new();
    for number in 0..900 {
        sockets.extend(unfinished(&weir));
        if number % 100 == 99 {
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
    }
    assert!(sockets.len() > 800, "{} connections", sockets.len());
    std::thread::sleep(std::time::Duration::from_secs(2));
    let open = weir.metric("weir_connections").expect("a metric");
    // Half-sent header blocks end the oldest connections too.
    assert!(
        open <= 610.0,
        "{open} connections, where two sevenths of 64 MiB are enough for 585 and those that are \
         ending"
    );
    let peak = weir.peak_resident_kib() / MIB;
    // With the pages of the binary, 27 MiB in this profile.
    assert!(peak < 72, "{peak} MiB");
    assert!(
        is_served(&weir),
        "the one that was idle for longest ends in favour of a new one"
    );
}

/// A limit of each algorithm for each value of a client.
const PER_VALUE: &[(&str, &str)] = &[(
    "values.yaml",
    "
domain: values
descriptors:
  - { key: fixed_window, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: token_bucket, rate_limit: { algorithm: token_bucket, unit: day, requests_per_unit: 1 } }
  - { key: sliding_window_buckets, rate_limit: { algorithm: sliding_window_buckets, unit: day, \
      requests_per_unit: 1 } }
  - { key: sliding_window_log, rate_limit: { algorithm: sliding_window_log, unit: day, \
      requests_per_unit: 1 } }
  - key: concurrency
    descriptors:
      - { key: request, rate_limit: { algorithm: concurrency, requests_per_unit: 1, \
          max_duration: 60s } }
",
)];

fn of_value(algorithm: &str, value: usize, id: &str) -> RateLimitDescriptor {
    let value = format!("{value:0120}");
    let entries = [(algorithm, &*value), ("request", id)];
    descriptor(if algorithm == "concurrency" {
        &entries
    } else {
        &entries[..1]
    })
}

async fn code(client: &mut Client, descriptors: Vec<RateLimitDescriptor>) -> Code {
    client
        .should_rate_limit(request("values", descriptors))
        .await
        .expect("an answer")
        .into_inner()
        .overall_code()
}

/// A store of keys was bounded in keys only: with requests in flight, 200,000 of a million took 190
/// MiB.
#[tokio::test]
async fn clients_that_choose_values_do_not_exceed_the_memory_limit() {
    let weir = Weir::start(PER_VALUE, &[("MEMORY_LIMIT", "64Mi"), ("WORKERS", "1")]);
    let client = &mut weir.client().await;
    let before = weir.peak_resident_kib();
    for algorithm in [
        "fixed_window",
        "token_bucket",
        "sliding_window_buckets",
        "sliding_window_log",
        "concurrency",
    ] {
        let evicted = weir.metric("weir_memory_evicted_total").expect("a metric");
        for first in (0..200_000).step_by(256) {
            if first % 4_096 == 0
                && weir
                    .metric("weir_memory_evicted_total")
                    .is_some_and(|now| now > evicted + 40_000.0)
            {
                break;
            }
            code(
                client,
                (first..first + 256)
                    .map(|value| of_value(algorithm, value, "a"))
                    .collect(),
            )
            .await;
        }
        let [bytes, now] = ["weir_memory_bytes", "weir_memory_evicted_total"]
            .map(|name| weir.metric(name).expect("a metric"));
        println!(
            "{algorithm}: {bytes} bytes, {now} evicted, VmHWM {} KiB after {before}",
            weir.peak_resident_kib()
        );
        assert!(
            bytes < 6.9 * 1_048_576.0 && now > evicted,
            "{algorithm}: {bytes} bytes, {now} evicted"
        );
        let new = [
            code(client, vec![of_value(algorithm, 999_999, "a")]).await,
            code(client, vec![of_value(algorithm, 999_999, "b")]).await,
        ];
        assert_eq!(
            new,
            [Code::Ok, Code::OverLimit],
            "{algorithm}: the newest key counts"
        );
    }
    let peak = weir.peak_resident_kib();
    assert!(
        peak < 64 * MIB && peak - before < 20 * MIB,
        "{peak} KiB after {before}"
    );
}

/// All descriptors were for clients, so that health was unreachable.
#[test]
fn few_file_descriptors_leave_some_for_operators() {
    let config = tempfile::tempdir().expect("a folder for limits");
    std::fs::write(config.path().join(LIMITS[0].0), LIMITS[0].1).expect("a file of limits");
    let mut command = Command::new("sh");
    let serve = "ulimit -n 256 && exec \"$0\" serve --host 127.0.0.1 --port 0 --grpc-host \
        127.0.0.1 --grpc-port 0 --debug-port 0 --config \"$1\"";
    command
        .args(["-c", serve, env!("CARGO_BIN_EXE_weir")])
        .arg(config.path())
        .env_clear()
        .env("WORKERS", "2");
    let weir = Weir::spawn(command, config);
    let sockets: Vec<_> = (0..400)
        .filter_map(|_| TcpStream::connect(weir.grpc_addr()).ok())
        .collect();
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(
        weir.get("/healthcheck").0,
        200,
        "with {} connections",
        sockets.len()
    );
    let log = weir.logs().concat();
    assert!(log.contains("few file descriptors"), "{log}");
}
