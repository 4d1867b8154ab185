//! Connections and what clients leave unfinished stay within the memory and the file descriptors of
//! the process, and others are served meanwhile.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

use weir::core::proto::RateLimitDescriptor;
use weir::core::proto::rate_limit_response::Code;

use super::raw::{
    DATA, END_HEADERS, END_STREAM, HEADERS, LIMITS, MIB, answered, connect, fields, frame, message,
    wait_until_read,
};
use crate::support::wait::{TIMEOUT, eventually_within};
use crate::support::{Client, Weir, ask, descriptor, exclusive};

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

/// The headers of so many calls, whose messages do not arrive, or all of them whole.
fn calls(count: u32, is_whole: bool) -> Vec<u8> {
    let one = |stream| match (frame(HEADERS, END_HEADERS, stream, &fields("a")), is_whole) {
        (head, false) => head,
        (head, true) => [head, frame(DATA, END_STREAM, stream, &message())].concat(),
    };
    (0..count).flat_map(|index| one(2 * index + 1)).collect()
}

/// A connection kept 1.3 MiB for 1,024 such calls, outside of all bounds, until the process ended.
#[test]
fn calls_without_messages_stay_within_the_memory_limit_which_comes_back() {
    let _alone = exclusive();
    let weir = Weir::start(LIMITS, &[("MEMORY_LIMIT", "256Mi"), ("WORKERS", "2")]);
    assert!(is_served(&weir));
    let before = weir.resident_kib();
    let all = calls(1_024, false);
    let mut sockets = Vec::new();
    for number in 0..480 {
        let mut socket = connect(weir.grpc_addr());
        // Weir may close it before it has read all.
        let _ = socket.write_all(&all);
        sockets.push(socket);
        if number % 120 == 119 {
            assert!(is_served(&weir), "with {number} connections");
        }
    }
    let peak = weir.peak_resident_kib().saturating_sub(before) / MIB;
    // A share of 64 MiB for connections, and half of another for messages.
    assert!(peak < 112, "{peak} MiB");
    let envoys: Vec<_> = (0..8)
        .map(|_| {
            let mut socket = connect(weir.grpc_addr());
            socket.write_all(&calls(100, true)).expect("a server");
            socket
        })
        .collect();
    for mut socket in envoys {
        let streams: [u32; 100] = std::array::from_fn(|index| 2 * index as u32 + 1);
        assert!(!answered(&mut socket, streams).contains(&false));
    }
    drop(sockets);
    let left = || weir.resident_kib().saturating_sub(before) / MIB;
    let returned = eventually_within(3 * TIMEOUT, || (left() < 24).then_some(()));
    assert!(returned.is_some(), "{} of {peak} MiB are left", left());
    assert!(is_served(&weir));
}

/// HTTP/2 read all that had arrived before it answered anything, and kept 0.2 MiB for that.
#[test]
fn a_connection_that_has_made_many_calls_keeps_little() {
    let _alone = exclusive();
    let weir = Weir::start(LIMITS, &[("MEMORY_LIMIT", "1Gi"), ("WORKERS", "2")]);
    // Of few connections, each may read more at a time.
    let others: Vec<_> = (0..512).map(|_| connect(weir.grpc_addr())).collect();
    assert!(is_served(&weir));
    let (before, all) = (weir.resident_kib(), calls(1_000, true));
    // On a busy machine the process takes 2 MiB more, however many they are; and more of them than
    // these would take longer than the others, which answer no ping, are open.
    let sockets: Vec<_> = (0..75)
        .map(|_| {
            let mut socket = connect(weir.grpc_addr());
            socket.write_all(&all).expect("a server");
            assert_eq!(answered(&mut socket, [1_999]), [true]);
            socket
        })
        .collect();
    assert_eq!(weir.metric("weir_connections"), Some(587.0));
    drop(others);
    let each = weir.resident_kib().saturating_sub(before) / sockets.len() as u64;
    println!("{each} KiB each");
    assert!(each < 90, "{each} KiB");
}

/// Envoy has few connections with many calls each.
#[test]
fn a_few_connections_have_a_thousand_calls_each() {
    let weir = Weir::start(LIMITS, &[("MEMORY_LIMIT", "512Mi"), ("WORKERS", "2")]);
    let mut sockets: Vec<_> = (0..8).map(|_| connect(weir.grpc_addr())).collect();
    for socket in &mut sockets {
        socket.write_all(&calls(1_000, false)).expect("a server");
    }
    wait_until_read(&weir);
    let messages = (0..1_000).flat_map(|index| frame(DATA, END_STREAM, 2 * index + 1, &message()));
    let messages: Vec<u8> = messages.collect();
    for socket in &mut sockets {
        socket.write_all(&messages).expect("a server");
        let streams: [u32; 1_000] = std::array::from_fn(|index| 2 * index as u32 + 1);
        assert!(!answered(socket, streams).contains(&false));
    }
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
        open <= 330.0,
        "{open} connections, where two sevenths of 64 MiB are enough for 292 and those that are \
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
    ask(client, "values", descriptors).await.overall_code()
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
