//! `match: set`, `cidr` and `regex` through the real socket, with each store; and the reload of a
//! file of values.

use std::fs;
use std::time::Duration;

use weir::core::proto::rate_limit_response::Code;

use crate::support::{Client, RedisServer, Weir, descriptor, descriptor_with_hits, request};

const LIMITS: &str = "
domain: d
descriptors:
- { key: user, match: set, values_file: vips.txt, rate_limit: { unit: year, requests_per_unit: 3 } }
- { key: user, match: set, values: [x, y], share_threshold: true, rate_limit: { unit: year, requests_per_unit: 2 } }
- { key: user, rate_limit: { unit: year, requests_per_unit: 1 } }
- { key: ip, match: cidr, value: 10.0.0.0/8, rate_limit: { unit: year, requests_per_unit: 2 } }
- { key: ip, match: cidr, value: 10.9.0.0/16, share_threshold: true, rate_limit: { unit: year, requests_per_unit: 2 } }
- { key: ip, match: cidr, value: '2001:db8::/32', prefix: 64, rate_limit: { unit: year, requests_per_unit: 2 } }
- { key: path, match: regex, value: '/v[0-9]+/.*', rate_limit: { unit: year, requests_per_unit: 1 } }
- { key: path, match: regex, value: '/static/.*', share_threshold: true, rate_limit: { unit: year, requests_per_unit: 2 } }
";

/// The code, and the limit and what it has left; 0 without a limit.
async fn ask(client: &mut Client, key: &str, value: &str) -> (bool, u32, u32) {
    let response = client
        .should_rate_limit(request("d", vec![descriptor(&[(key, value)])]))
        .await
        .expect("an answer")
        .into_inner();
    let status = &response.statuses[0];
    (
        response.overall_code() == Code::Ok,
        status
            .current_limit
            .as_ref()
            .map_or(0, |limit| limit.requests_per_unit),
        status.limit_remaining,
    )
}

async fn each_kind(weir: &Weir) {
    let client = &mut weir.client().await;
    for (key, value, expected) in [
        // Each value of a set counts alone, unless they share.
        ("user", "alice", (true, 3, 2)),
        ("user", "bob", (true, 3, 2)),
        ("user", "alice", (true, 3, 1)),
        ("user", "carol", (true, 1, 0)),
        ("user", "x", (true, 2, 1)),
        ("user", "y", (true, 2, 0)),
        ("user", "x", (false, 2, 0)),
        // All spellings of an address count together.
        ("ip", "10.0.0.1", (true, 2, 1)),
        ("ip", "::ffff:10.0.0.1", (true, 2, 0)),
        ("ip", "::FFFF:a00:1", (false, 2, 0)),
        ("ip", "10.0.0.2", (true, 2, 1)),
        // The longest prefix, and a counter for all of it.
        ("ip", "10.9.0.1", (true, 2, 1)),
        ("ip", "10.9.200.1", (true, 2, 0)),
        ("ip", "10.9.0.3", (false, 2, 0)),
        // Groups of IPv6.
        ("ip", "2001:db8:1:2::1", (true, 2, 1)),
        ("ip", "2001:0DB8:1:2:ffff::9", (true, 2, 0)),
        ("ip", "2001:db8:1:2::3", (false, 2, 0)),
        ("ip", "2001:db8:1:3::1", (true, 2, 1)),
        ("ip", "no address", (true, 0, 0)),
        ("ip", "11.0.0.1", (true, 0, 0)),
        // Whole values.
        ("path", "/v1/a", (true, 1, 0)),
        ("path", "/v1/a", (false, 1, 0)),
        ("path", "/v2/a", (true, 1, 0)),
        ("path", "x/v1/a", (true, 0, 0)),
        ("path", "/static/a", (true, 2, 1)),
        ("path", "/static/b", (true, 2, 0)),
        ("path", "/static/c", (false, 2, 0)),
    ] {
        assert_eq!(ask(client, key, value).await, expected, "{key}={value}");
    }
}

fn files() -> [(&'static str, &'static str); 2] {
    [
        ("limits.yaml", LIMITS),
        ("vips.txt", "# who pays most\nalice\nbob\n"),
    ]
}

#[tokio::test]
async fn each_kind_counts_in_memory() {
    each_kind(&Weir::start(&files(), &[])).await;
}

#[tokio::test]
async fn each_kind_counts_in_redis() {
    let redis = RedisServer::start();
    each_kind(&Weir::start(&files(), &[("REDIS_URL", &redis.url())])).await;
    redis.assert_every_key_expires();
}

/// The limit in force for a user; it counts nothing.
async fn limit_of(client: &mut Client, user: &str) -> u32 {
    let look = descriptor_with_hits(&[("user", user)], 0);
    let response = client
        .should_rate_limit(request("d", vec![look]))
        .await
        .expect("an answer")
        .into_inner();
    response.statuses[0]
        .current_limit
        .as_ref()
        .map_or(0, |limit| limit.requests_per_unit)
}

async fn wait_for(client: &mut Client, user: &str, expected: u32) {
    for _ in 0..200 {
        if limit_of(client, user).await == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the limit of {user} did not become {expected} within 10 s");
}

#[tokio::test]
async fn a_changed_file_of_values_is_reloaded_and_counts_stay() {
    let weir = Weir::start(&files(), &[]);
    let client = &mut weir.client().await;
    let file = weir.config_dir().join("vips.txt");
    assert_eq!(ask(client, "user", "alice").await, (true, 3, 2));
    assert_eq!(limit_of(client, "carol").await, 1);

    fs::write(&file, "alice\ncarol\n").expect("written");
    wait_for(client, "carol", 3).await;
    assert_eq!(limit_of(client, "bob").await, 1, "he is no longer in it");
    assert_eq!(
        ask(client, "user", "alice").await,
        (true, 3, 1),
        "her count is kept"
    );

    // A file with a mistake changes nothing, and a right one is read again.
    fs::write(&file, b"dave\n\xff\n").expect("written");
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(
        (
            limit_of(client, "carol").await,
            limit_of(client, "dave").await
        ),
        (3, 1)
    );
    fs::write(&file, "dave\n").expect("written");
    wait_for(client, "dave", 3).await;
    assert_eq!(limit_of(client, "carol").await, 1);

    // So is one that is missing.
    fs::remove_file(&file).expect("removed");
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(limit_of(client, "dave").await, 3);
}
