//! G11 and G12: counts are exact, and a request counts whole or not at all.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ::weir::core::proto::rate_limit_response::Code;

use super::*;
use crate::support::load::{BlockingClient, Record};
use crate::support::proxy::Proxy;

/// Clients that send requests for one key at the same time.
const CLIENTS: usize = 64;

/// The amount of the limit.
const LIMIT: usize = 300;

/// The time until the next window starts, by the clock of this machine, which is Redis's too.
fn until_window_starts(window: Duration) -> Duration {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    let rest = now.as_nanos() % window.as_nanos();
    window - Duration::from_nanos(rest as u64)
}

/// How many requests each window admitted, and how many were sent.
async fn admitted(services: &[Weir], window: Duration, windows: u32) -> (Vec<usize>, usize) {
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        clients.push(services[number % services.len()].client().await);
    }
    // The end is inside a window, so that no window is observed in part.
    tokio::time::sleep(until_window_starts(window)).await;
    let begin = Instant::now();
    let end = begin + window * windows - window / 5;
    let mut tasks = tokio::task::JoinSet::new();
    for mut client in clients {
        tasks.spawn(async move {
            let mut admitted = Vec::new();
            let mut asked = 0;
            while Instant::now() < end {
                let answer = client
                    .should_rate_limit(request("faults", vec![descriptor(&[("one", "key")])]))
                    .await
                    .expect("an answer");
                if answer.into_inner().overall_code() == Code::Ok {
                    admitted.push(begin.elapsed().as_nanos() / window.as_nanos());
                }
                asked += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            (admitted, asked)
        });
    }
    let (mut by_window, mut all) = (vec![0; windows as usize + 1], 0);
    for (admitted, asked) in tasks.join_all().await {
        all += asked;
        for window in admitted {
            by_window[window as usize] += 1;
        }
    }
    (by_window, all)
}

/// Many clients of two replicas share one key, with the denial cache on: each window admits exactly
/// its limit.
#[test]
fn g11_each_window_admits_its_limit() {
    let (_exclusive, mut goal) = (exclusive(), Goal::of("G11"));
    let (seconds, windows) = Pace::here().pick((2, 2), (6, 9));
    let limits = format!(
        "domain: faults\ndescriptors: [{{ key: one, rate_limit: {{ unit: second, unit_multiplier: \
         {seconds}, requests_per_unit: {LIMIT} }} }}]\n"
    );
    let redis = RedisServer::start();
    let url = redis.url();
    let start = || {
        Weir::start(
            &[("limits.yaml", &limits)],
            &[("REDIS_URL", &url), ("STORE_TIMEOUT", "5s")],
        )
    };
    let services = [start(), start()];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let (by_window, asked) =
        runtime.block_on(admitted(&services, Duration::from_secs(seconds), windows));
    let (all, expected) = (by_window.iter().sum::<usize>(), LIMIT * windows as usize);
    // A request that is admitted at the end of a window may be answered in the next one; the sum is
    // exact.
    goal.must(all == expected, format!("admitted {by_window:?}"));
    goal.must_expire(&redis);
    goal.end(format!(
        "{CLIENTS} clients, {asked} requests, {windows} windows: admitted {all} of {expected}"
    ));
}

/// Limits of one domain, of which a request counts all or none.
const GROUPS: &str = "
domain: faults
commit: all_or_none
descriptors:
  - key: left
    rate_limit: { unit: year, requests_per_unit: 1000 }
  - key: right
    rate_limit: { unit: year, requests_per_unit: 1000 }
  - key: narrow
    rate_limit: { unit: year, requests_per_unit: 1 }
";

/// A refused request left its other limit unchanged. The first call may be the last one whose reply
/// is lost.
fn must_have_left_unchanged(goal: &mut Goal, weir: &Weir) {
    let mut client = BlockingClient::new(weir);
    client.ask_until_ok(&request("faults", vec![descriptor(&[("left", "warm")])]));
    let left = client.call(request("faults", vec![descriptor(&[("left", "n0")])]));
    goal.must(
        left.remaining == 998,
        format!("{} left of 1000 after one hit and this one", left.remaining),
    );
}

/// What is counted, by the value of the only entry: the key, and its hits.
fn groups(redis: &RedisServer) -> BTreeMap<String, BTreeMap<String, i64>> {
    let mut counted: BTreeMap<String, BTreeMap<String, i64>> = BTreeMap::new();
    for (key, count) in counters(redis, "=") {
        let (limit, value) = key.split_once('=').expect("a key");
        let limit = limit.rsplit('|').next().expect("a limit").to_owned();
        let value = value.split('}').next().expect("a value").to_owned();
        counted.entry(value).or_default().insert(limit, count);
    }
    counted
}

/// One hit for both limits of a request.
fn is_whole(value: &str, counts: &BTreeMap<String, i64>) -> bool {
    let other = if value.starts_with('n') {
        "narrow"
    } else {
        "right"
    };
    counts.len() == 2 && counts.get("left") == Some(&1) && counts.get(other) == Some(&1)
}

/// The limits of one request count together or not at all, also when replies are lost; one that is
/// over leaves the others unchanged.
#[test]
#[ignore = "weekly: tests/faults.sh --all"]
fn g12_a_request_counts_whole_or_not_at_all() {
    let (_exclusive, mut goal, pace) = (exclusive(), Goal::of("G12"), Pace::here());
    let redis = RedisServer::start();
    let proxy = Proxy::before(redis.port());
    let environment = [
        ("REDIS_URL", &proxy.url()[..]),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "0"),
        ("STORE_TIMEOUT", "1s"),
    ];
    let services = [Weir::start(&[("limits.yaml", GROUPS)], &environment)];
    let group = |keys: &[&str], value: &str| {
        request(
            "faults",
            keys.iter().map(|key| descriptor(&[(key, value)])).collect(),
        )
    };
    // Most requests have a pair of keys of their own. Every third one repeats a pair with a limit
    // of 1, which is over by then.
    let load_request = move |number: u64| match number % 3 {
        0 => LoadRequest {
            label: "pair",
            request: group(&["left", "right"], &format!("p{number}")),
        },
        1 => LoadRequest {
            label: "narrow",
            request: group(&["narrow", "left"], &format!("n{}", number / 30)),
        },
        _ => LoadRequest {
            label: "pair",
            request: group(&["right", "left"], &format!("q{number}")),
        },
    };
    let load = Load::start(Options {
        timeout: Duration::from_secs(2),
        ..Options::new(&services, load_request)
    });
    let end = Instant::now() + Duration::from_secs(pace.pick(2, 20));
    while Instant::now() < end {
        sleep(Duration::from_millis(100));
        proxy.lose_one_reply();
    }
    let report = load.stop();
    let counted = groups(&redis);
    let partial: Vec<_> = counted
        .iter()
        .filter(|(value, counts)| !is_whole(value, counts))
        .take(3)
        .collect();
    goal.must(
        partial.is_empty(),
        format!("counted in part or twice: {partial:?}"),
    );
    let (good, refused) = (
        report.count(Record::is_ok),
        report.count(|record| record.outcome == Outcome::Over),
    );
    let failed = report.count(Record::is_failed);
    goal.must(
        good <= counted.len() && counted.len() <= good + failed,
        format!("{good} good answers, {} groups counted", counted.len()),
    );
    goal.must(
        good > 100 && refused > 20 && failed > 0,
        format!("too few of one outcome: {:?}", report.outcomes()),
    );
    must_have_left_unchanged(&mut goal, &services[0]);
    goal.must_expire(&redis);
    goal.end(format!(
        "{good} requests admitted, {refused} refused, {failed} unanswered: {} counted, 0 of them \
         in part",
        counted.len()
    ));
}
