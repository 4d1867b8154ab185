//! Commands and bytes that a decision costs Redis. They are totals and not timed, so that a busy
//! machine does not change the result.

use std::num::NonZero;

use futures_util::future::join_all;
use weir::core::algorithm::{AlgorithmKind, Options};
use weir::core::time::{Rate, Unit};

use super::*;
use crate::support::redis::{RedisServer, connect};

/// Requests that are sent at the same time, so that they go to Redis in one batch.
const REQUESTS: usize = 64;

/// Totals since Redis was started.
#[derive(Clone, Copy, Debug)]
struct Totals {
    commands: usize,
    received: usize,
    sent: usize,
}

fn totals(connection: &mut bb8_redis::redis::Connection) -> Totals {
    let info: String = bb8_redis::redis::cmd("INFO")
        .arg("ALL")
        .query(connection)
        .expect("Redis is well");
    let number = |text: &str| text.trim().parse::<usize>().expect("a number");
    let of = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name))
            .map(number)
            .expect("a total")
    };
    let calls = |line: &str| {
        Some(number(
            line.strip_prefix("cmdstat_")?
                .split_once("calls=")?
                .1
                .split_once(',')?
                .0,
        ))
    };
    let commands = info
        .lines()
        .filter(|line| !line.starts_with("cmdstat_info"))
        .filter_map(calls)
        .sum();
    Totals {
        commands,
        received: of("total_net_input_bytes:"),
        sent: of("total_net_output_bytes:"),
    }
}

/// Sends one request for each customer, all at the same time.
async fn ask_all(redis: &Redis, algorithm: Algorithm) {
    let keys: Vec<String> = (0..REQUESTS)
        .map(|customer| format!("w1{{shop|customer=c-{customer:08}|path=/checkout}}xx60"))
        .collect();
    let hit = |key| async move {
        decide_all(redis, &[(key, Check::new(algorithm, 1, Modes::default()))]).await
    };
    let answers = join_all(keys.iter().map(|key| hit(key.as_str()))).await;
    assert!(
        answers
            .iter()
            .all(|answers| answers.verdicts()[0].is_ok_and(|verdict| verdict.allowed)),
        "{:?}",
        answers[0]
    );
}

#[tokio::test]
async fn commands_and_bytes_of_a_batch() {
    // For each algorithm: the most commands for all requests together, including those that the
    // script calls, and the most bytes of one request, to Redis and back. Counters that are known
    // to have a TTL take one TIME, and an INCRBY per request. The script takes EVALSHA, TIME, one
    // MGET for all requests, and a write per request. A packed log is read and written in parts,
    // with one more for a new bucket. The script gets each number as eight bytes, those of
    // consecutive checks of one limit only once, and returns the states that it found.
    let table = [
        (AlgorithmKind::FixedWindow, 1 + REQUESTS, 86, 6),
        (AlgorithmKind::SlidingWindowLog, 2 + 6 * REQUESTS, 71, 25),
        (AlgorithmKind::SlidingWindowCounter, 3 + REQUESTS, 71, 33),
        (
            AlgorithmKind::SlidingWindowBuckets,
            2 + 6 * REQUESTS,
            71,
            25,
        ),
        (AlgorithmKind::TokenBucket, 3 + REQUESTS, 71, 25),
        (AlgorithmKind::LeakyBucket, 3 + REQUESTS, 71, 25),
    ];
    let mut wrong = Vec::new();
    for (kind, commands, most_received, most_sent) in table {
        let server = RedisServer::start();
        // Each connection learns by itself which counters have a TTL.
        let redis = connect(weir::store::redis::Options {
            pool_size: NonZero::<u32>::MIN,
            ..server.options()
        });
        // An amount so large that nothing is refused, not even by a leaky bucket. A long window,
        // because counters of a new one need a TTL first.
        let unit = if kind == AlgorithmKind::FixedWindow {
            Unit::Week
        } else {
            Unit::Minute
        };
        let rate = Rate {
            requests_per_unit: 60_000,
            unit,
            unit_multiplier: 1,
        };
        let algorithm = Algorithm::try_new(
            &rate,
            &Options {
                kind,
                ..Options::default()
            },
        )
        .expect("options that belong together");
        // Opens the connection, loads the script and creates the keys.
        for _ in 0..2 {
            ask_all(&redis, algorithm).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let mut connection = server.connection();
        let (first, begin) = (totals(&mut connection), totals(&mut connection));
        ask_all(&redis, algorithm).await;
        let end = totals(&mut connection);
        // The INFO command itself costs about the same each time.
        let each = |begin: usize, own: usize, end: usize| (end - begin - own) / REQUESTS;
        let received = each(
            begin.received,
            begin.received - first.received,
            end.received,
        );
        let sent = each(begin.sent, begin.sent - first.sent, end.sent);
        let own = end.commands - begin.commands;
        if own > commands
            || received > most_received
            || sent > most_sent
            || most_received > received + 8
            || most_sent > sent + 8
        {
            wrong.push(format!(
                "{kind:?}: {own} commands, {received} bytes to Redis and {sent} back, expected \
                 {commands}, {most_received}, {most_sent}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
