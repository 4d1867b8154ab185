//! Overrides that have ended: who removed them and when, kept for a week over a restart, and never
//! in force.

use serde_json::Value;
use weir::core::proto::rate_limit_response::Code;

use super::{Desk, LIMITS, code, id_of, in_seconds};
use crate::support::wait::eventually;
use crate::support::{RedisServer, Weir};

const KEY: &str = "w1{|overrides}";
const ENDED: &str = "w1{|overrides}ended";

/// Value, and by whom it ended, of all that the API lists.
fn ended(desk: &Desk, weir: &Weir) -> Vec<(String, String)> {
    let listed: Value =
        serde_json::from_str(&desk.ok(weir, &["overrides", "--ended", "--format", "json"]))
            .expect("JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let pair = |one: &Value| (text(&one["entries"][0]["value"]), text(&one["ended"]["by"]));
    listed["overrides"]
        .as_array()
        .expect("a list")
        .iter()
        .map(pair)
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected
        .iter()
        .map(|(value, by)| ((*value).to_owned(), (*by).to_owned()))
        .collect()
}

/// Redis has the raise and the version, and what ended for a week.
fn assert_expires_in_redis(redis: &RedisServer) {
    assert_eq!(
        (
            redis.run::<i64>(&["HLEN", KEY]),
            redis.run::<i64>(&["HLEN", ENDED])
        ),
        (2, 4),
        "the raise and the version"
    );
    assert!((604_000..=604_800).contains(&redis.run::<i64>(&["TTL", ENDED])));
}

/// The table has one override, a block that alice made and removed.
fn assert_listed(text: &str, id: &str) {
    let words = |line: &str| {
        line.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let rows: Vec<_> = text.lines().map(words).collect();
    assert_eq!(
        rows[0],
        [
            "ID", "ORDER", "DOMAIN", "ENTRIES", "ENDED", "ENDED BY", "MADE", "BY", "REASON"
        ],
        "{text}"
    );
    let row: Vec<_> = [0, 1, 2, 3, 5, 7, 8]
        .iter()
        .map(|&column| rows[1][column].as_str())
        .collect();
    assert_eq!(
        row,
        [id, "block", "shop", "vip=1", "alice", "alice", "scraper"],
        "{text}"
    );
}

#[tokio::test]
async fn what_ended_is_listed_for_a_week_wherever_overrides_are_kept() {
    for store in ["process", "file", "redis"] {
        let (desk, redis) = (Desk::new(), RedisServer::start());
        let (file, url) = (desk.path("overrides.json"), redis.url());
        let environment = match store {
            "process" => vec![],
            "file" => vec![("OVERRIDES_FILE", file.to_str().expect("UTF-8"))],
            _ => vec![("REDIS_URL", &*url)],
        };
        let weir = desk.start(LIMITS, &environment);
        assert_eq!(
            desk.ok(&weir, &["overrides", "--ended"]),
            "no overrides ended within the last week\n"
        );
        let gone = desk.ok(
            &weir,
            &["block", "-d", "shop", "vip=1", "--reason", "scraper"],
        );
        desk.ok(&weir, &["raise", "-d", "shop", "vip=2", "--to", "9/year"]);
        desk.ok(&weir, &["overrides", "remove", &id_of(&gone)]);
        assert_eq!(ended(&desk, &weir), pairs(&[("1", "alice")]), "{store}");
        assert_listed(&desk.ok(&weir, &["overrides", "--ended"]), &id_of(&gone));
        // One that ends by itself, and is ordered again before it was swept.
        desk.ok(
            &weir,
            &["block", "-d", "shop", "vip=3", "--until", &in_seconds(2)],
        );
        let has_ended = || (ended(&desk, &weir).len() == 2).then_some(());
        assert!(eventually(has_ended).is_some(), "{store}");
        desk.ok(&weir, &["block", "-d", "shop", "vip=3"]);
        desk.ok(
            &weir,
            &[
                "overrides",
                "remove",
                &id_of(&desk.ok(&weir, &["exempt", "-d", "shop", "vip=4"])),
            ],
        );
        let mut all = vec![("4", "alice"), ("3", "expired"), ("1", "alice")];
        assert_eq!(
            ended(&desk, &weir),
            pairs(&all),
            "{store}: the last one first"
        );
        assert_eq!(
            desk.ok(&weir, &["overrides", "--ended", "-d", "shop"])
                .lines()
                .count(),
            4
        );
        if store == "process" {
            continue;
        }
        drop(weir);
        let weir = desk.start(LIMITS, &environment);
        assert_eq!(ended(&desk, &weir), pairs(&all), "{store}: after a restart");
        let client = &mut weir.client().await;
        for (value, expected) in [("1", Code::Ok), ("3", Code::OverLimit), ("4", Code::Ok)] {
            assert_eq!(
                code(client, "vip", value, 0).await,
                expected,
                "{store}: {value}"
            );
        }
        desk.ok(&weir, &["unblock", "-d", "shop", "vip=3"]);
        all.insert(0, ("3", "alice"));
        assert_eq!(ended(&desk, &weir), pairs(&all), "{store}");
        if store == "redis" {
            assert_expires_in_redis(&redis);
        }
    }
}
