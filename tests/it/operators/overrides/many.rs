//! As many overrides as there may be, and more: bounded memory, and the newest are in force.

use weir::core::proto::rate_limit_response::Code;

use super::redis::{KEY, becomes};
use super::{Desk, LIMITS, code, id_of, in_seconds};
use crate::support::wait::eventually;
use crate::support::{RedisServer, Weir};

/// The share of the process itself in deploy/bounds.md, in KiB.
const MOST_KIB: u64 = 64 << 10;

/// A block of this value, ordered as many seconds after the first one, with more members.
fn block(number: usize, more: &str) -> String {
    let (minutes, seconds) = (number / 60, number % 60);
    let created = format!(
        "2026-01-01T{:02}:{:02}:{seconds:02}Z",
        minutes / 60,
        minutes % 60
    );
    format!(
        r#"{{
      "id": "{number:032}",
      "kind": "block",
      "domain": "shop",
      "entries": [{{ "key": "vip", "value": "{number}" }}],{more}
      "reason": "a scraper from the network of a partner, ticket {number}",
      "by": "alice",
      "created_at": "{created}"
    }}"#
    )
}

fn blocks(weir: &Weir) -> Option<f64> {
    weir.metric("weir_overrides{kind=\"block\"}")
}

fn has_blocks(weir: &Weir, count: f64) {
    let is_reached = eventually(|| (blocks(weir) == Some(count)).then_some(()));
    assert!(is_reached.is_some(), "{:?} and not {count}", blocks(weir));
}

/// Blocks a value, and returns the answer. A command waits 10 s, in which a busy machine may not
/// write ten thousand overrides with unoptimized code.
fn ordered(desk: &Desk, weir: &Weir, value: &str) -> String {
    let order = || Some(desk.weir(weir, &["block", "-d", "shop", value]));
    let set = eventually(|| order().filter(|output| output.status.success()));
    String::from_utf8(set.expect("a block").stdout).expect("UTF-8")
}

#[tokio::test]
async fn ten_thousand_in_a_file_take_the_memory_that_is_promised() {
    let desk = Desk::new();
    let file = desk.path("overrides.json");
    let weir = desk.start(LIMITS, &[("OVERRIDES_FILE", file.to_str().expect("UTF-8"))]);
    desk.ok(&weir, &["block", "-d", "shop", "vip=first"]);
    let before = weir.resident_kib();

    let all: Vec<_> = (0..9_999).map(|number| block(number, "")).collect();
    let text = format!("{{\"overrides\": [{}]}}", all.join(","));
    let beside = desk.path("overrides.json~");
    std::fs::write(&beside, text)
        .and_then(|()| std::fs::rename(&beside, &file))
        .expect("saved");
    has_blocks(&weir, 9_999.0);
    for value in ["vip=a", "vip=b"] {
        let id = id_of(&ordered(&desk, &weir, value));
        let removed = eventually(|| {
            desk.weir(&weir, &["overrides", "remove", &id]);
            (blocks(&weir) == Some(9_999.0)).then_some(())
        });
        assert!(removed.is_some(), "{value}");
    }
    ordered(&desk, &weir, "vip=last");
    let refused = eventually(|| {
        let refused = desk.fails(&weir, &["block", "-d", "shop", "vip=more"]);
        refused.contains("10000 overrides already").then_some(())
    });
    assert!(refused.is_some(), "there is room for one more");
    let client = &mut weir.client().await;
    for value in ["0", "9998", "last"] {
        let answer = code(client, "vip", value, 0).await;
        assert_eq!(answer, Code::OverLimit, "{value}");
    }
    let grown = weir.peak_resident_kib() - before;
    println!("grown by {grown} KiB");
    assert!(grown < MOST_KIB, "{grown} KiB");

    // More than there may be, written by hand: the newest are in force.
    let all: Vec<_> = (0..25_000).map(|number| block(number, "")).collect();
    std::fs::write(&beside, format!("{{\"overrides\": [{}]}}", all.join(",")))
        .and_then(|()| std::fs::rename(&beside, &file))
        .expect("saved");
    becomes(&weir, "vip", "24999", Code::OverLimit).await;
    has_blocks(&weir, 10_000.0);
    assert_eq!(code(client, "vip", "14999", 0).await, Code::Ok);
}

#[tokio::test]
async fn of_more_than_there_may_be_in_redis_the_newest_are_in_force() {
    let (desk, redis) = (Desk::new(), RedisServer::start());
    // The newest of all have ended: they leave room for all that are in force.
    let ended = format!(r#""until": "{}","#, in_seconds(-5));
    for begin in (0..27_000).step_by(1_000) {
        let more = if begin < 25_000 { "" } else { &ended };
        let fields = (begin..begin + 1_000)
            .flat_map(|number| [format!("{number:032}"), block(number, more)]);
        let command: Vec<_> = ["HSET", KEY]
            .map(str::to_owned)
            .into_iter()
            .chain(fields)
            .collect();
        redis.run::<i64>(&command.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let weir = desk.start(LIMITS, &[("REDIS_URL", &redis.url())]);
    becomes(&weir, "vip", "24999", Code::OverLimit).await;
    has_blocks(&weir, 10_000.0);
    let client = &mut weir.client().await;
    for (value, expected) in [
        ("15000", Code::OverLimit),
        ("14999", Code::Ok),
        ("26999", Code::Ok),
    ] {
        assert_eq!(code(client, "vip", value, 0).await, expected, "{value}");
    }
    let line = weir.wait_for_log("overrides: too many").await;
    assert!(line.contains("\"left_out\":16000"), "{line}");

    // One less, and the next newest is in force.
    desk.weir(&weir, &["overrides", "remove", &format!("{:032}", 24_999)]);
    becomes(&weir, "vip", "14999", Code::OverLimit).await;
    assert_eq!(code(client, "vip", "24999", 0).await, Code::Ok);
}
