//! A large configuration that changes ten times a second while requests run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir::core::proto::xds::RateLimitConfig;

use super::{config, leaf, named_route, node, start, yearly};
use crate::support::control_plane::{ControlPlane, Sent};
use crate::support::{Client, Weir, descriptor, exclusive, request};

const DOMAINS: usize = 1_000;

/// Each domain has a route with 49 rules of two nodes: 100,000 nodes together.
const RULES: usize = 49;

/// How long requests are measured with and without changes.
const MEASURED: Duration = Duration::from_secs(8);

fn domain(number: usize, amount: u32) -> RateLimitConfig {
    let rule = |rule: usize| {
        let (key, second) = (
            format!("rule-{rule}-match-0"),
            format!("rule-{rule}-match-1"),
        );
        node(&key, &key, vec![leaf(&second, &second, yearly(amount))])
    };
    config(
        &name(number),
        vec![
            node(
                &named_route(number),
                &named_route(number),
                (0..RULES).map(rule).collect(),
            ),
            node("other", "", vec![]),
        ],
    )
}

fn name(number: usize) -> String {
    format!("default/gateway-{number}/http")
}

/// Response times of requests that follow each other until `until`, sorted.
async fn measure(client: &mut Client, until: impl Fn() -> bool) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut number = 0;
    while !until() {
        number = (number + 1) % DOMAINS;
        let route = named_route(number);
        let entries = [
            (route.as_str(), route.as_str()),
            ("rule-7-match-0", "rule-7-match-0"),
            ("rule-7-match-1", "rule-7-match-1"),
        ];
        let ask = request(&name(number), vec![descriptor(&entries)]);
        let begin = Instant::now();
        let answer = client
            .should_rate_limit(ask)
            .await
            .expect("no request fails")
            .into_inner();
        times.push(begin.elapsed());
        assert!(
            answer.statuses[0].current_limit.is_some(),
            "domain {number} is limited"
        );
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    times.sort_unstable();
    times
}

fn percentile(times: &[Duration], share: f64) -> Duration {
    times[((times.len() - 1) as f64 * share) as usize]
}

fn print_memory(weir: &Weir) {
    println!(
        "resident {} MiB, peak {} MiB",
        weir.resident_kib() / 1024,
        weir.peak_resident_kib() / 1024
    );
}

/// Changes one domain with each push, until the time is up. Returns the number of pushes, and when
/// the last one was accepted.
async fn push(
    control: ControlPlane,
    mut resources: Vec<Sent>,
    done: Arc<AtomicBool>,
) -> (ControlPlane, u32, Instant) {
    let (begin, mut version) = (Instant::now(), 0_u32);
    while begin.elapsed() < MEASURED {
        version += 1;
        let number = version as usize % DOMAINS;
        resources[number] = domain(number, 1_000_000 + version).into();
        control.set(&version.to_string(), resources.clone());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    done.store(true, Ordering::Relaxed);
    let ack = control.wait_for_ack(&version.to_string()).await;
    (control, version, ack.at)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_nodes_change_ten_times_a_second_while_requests_run() {
    let _exclusive = exclusive();
    let resources: Vec<Sent> = (0..DOMAINS)
        .map(|number| domain(number, 1_000_000).into())
        .collect();
    let control = ControlPlane::start();
    let begin = Instant::now();
    control.set("0", resources.clone());
    let weir = start(&control.url(), &[("WORKERS", "1")]);
    let ack = control.wait_for_ack("0").await;
    let sent = control.sent()[0];
    println!(
        "first configuration: {:?} from the start, {:?} from response to ACK",
        begin.elapsed(),
        ack.at - sent
    );
    assert_eq!(
        weir.metric("weir_config_limits"),
        Some((DOMAINS * RULES) as f64)
    );
    print_memory(&weir);

    let client = &mut weir.client().await;
    let until = Instant::now() + MEASURED;
    let quiet = measure(client, || Instant::now() >= until).await;

    let done = Arc::new(AtomicBool::new(false));
    let pushing = tokio::spawn(push(control, resources, Arc::clone(&done)));
    let changing = measure(client, || done.load(Ordering::Relaxed)).await;
    let (control, pushes, last_ack) = pushing.await.expect("no panic");

    let loads = weir.metric("weir_config_generation").expect("a gauge") - 1.0;
    let times: Vec<_> = control
        .sent()
        .into_iter()
        .zip(control.requests().into_iter().skip(1))
        .map(|(sent, asked)| asked.at - sent)
        .collect();
    println!("{pushes} changes, {loads} configurations; response to ACK: {times:.0?}");
    for (what, times) in [("quiet", &quiet), ("changing", &changing)] {
        let [median, p99, most] = [0.5, 0.99, 1.0].map(|share| percentile(times, share));
        println!(
            "{what}: {} requests, median {median:?}, p99 {p99:?}, longest {most:?}",
            times.len()
        );
    }
    print_memory(&weir);
    assert!(pushes > 20 && last_ack > begin);
    assert!(
        loads >= 2.0,
        "changes are in force while more arrive: {loads}"
    );
    assert!(
        loads <= MEASURED.as_secs_f64() + 3.0,
        "{loads} configurations"
    );
    assert!(
        weir.peak_resident_kib() < 1 << 20,
        "{} KiB",
        weir.peak_resident_kib()
    );
    // Bounds that only a stalled worker exceeds; the figures are in the pages.
    assert!(
        percentile(&changing, 0.99) < Duration::from_millis(50),
        "{:?}",
        percentile(&changing, 0.99)
    );
}
