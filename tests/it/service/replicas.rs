//! `REPLICAS=dns:NAME`: the number of replicas follows the addresses of a name, and with it the
//! share of `on_store_failure: local`.

use weir::core::proto::rate_limit_response::Code;

use crate::deploy::stores::isolated;
use crate::support::weir::ARGUMENTS;
use crate::support::{Client, RedisServer, Weir, ask, descriptor};

/// A limit per year, so that no window ends while a test runs.
const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 12, on_store_failure: local }
",
)];

/// Asks for a hit of this user. Returns whether it is within the limit, the limit that is shown,
/// and what remains of it.
async fn call(client: &mut Client, user: &str) -> (bool, u32, u32) {
    let answer = ask(client, "shop", vec![descriptor(&[("user", user)])]).await;
    let status = &answer.statuses[0];
    let limit = status
        .current_limit
        .as_ref()
        .expect("a limit")
        .requests_per_unit;
    (
        answer.overall_code == i32::from(Code::Ok),
        limit,
        status.limit_remaining,
    )
}

/// Addresses of `ratelimit.test`: so many of each family, the first one twice.
fn hosts(v4: u32, v6: u32) -> String {
    let v4 = (1..=v4).map(|host| format!("10.0.0.{host} ratelimit.test\n"));
    let v6 = (1..=v6).map(|host| format!("fd00::{host} ratelimit.test\n"));
    let all: String = v4.chain(v6).collect();
    format!("127.0.0.1 localhost\n10.0.0.1 ratelimit.test\n{all}")
}

#[tokio::test]
async fn shares_follow_the_addresses_of_a_name_and_counts_stay() {
    let names = tempfile::tempdir().expect("a folder");
    let write = |name, text: &str| {
        std::fs::write(names.path().join(name), text).expect("a file of names");
    };
    write("hosts", &hosts(1, 0));
    // No server listens there: a name that is not in the file of names fails at once.
    write("resolv.conf", "nameserver 127.0.0.1\n");
    let mut command = isolated();
    let script = "mount --bind hosts /etc/hosts && mount --bind resolv.conf /etc/resolv.conf && \
        exec \"$0\" \"$@\"";
    command.args(["sh", "-ec", script, env!("CARGO_BIN_EXE_weir")]);
    let config = tempfile::tempdir().expect("a folder for limits");
    std::fs::write(config.path().join(LIMITS[0].0), LIMITS[0].1).expect("a file of limits");
    command.args(ARGUMENTS).arg("--config").arg(config.path());
    command.current_dir(names.path()).env_clear().envs([
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        ("REPLICAS", "dns:ratelimit.test"),
        ("REDIS_URL", &RedisServer::absent().url()),
    ]);
    let weir = Weir::spawn(command, config);
    weir.wait_for_log(
        "REPLICAS: name resolved; on_store_failure: local admits this replica's share of each \
         limit",
    )
    .await;
    let client = &mut weir.client().await;
    for remaining in [11, 10, 9] {
        assert_eq!(
            call(client, "a").await,
            (true, 12, remaining),
            "the only replica has the whole limit"
        );
    }

    let started = weir.id();
    write("hosts", &hosts(3, 4));
    let line = weir
        .wait_for_log("REPLICAS: number of replicas changed")
        .await;
    assert!(
        line.contains(r#""replicas":4"#) && line.contains(r#""before":1"#),
        "{line}"
    );
    assert_eq!(weir.metric("weir_replicas"), Some(4.0));
    // Three hits were counted before: with a share of 3, nothing is left. A lost count would admit
    // them.
    assert_eq!(call(client, "a").await, (false, 3, 0));
    assert_eq!(call(client, "b").await, (true, 3, 2));
    assert_eq!(weir.id(), started);

    write("hosts", "127.0.0.1 localhost\n");
    let line = weir
        .wait_for_log("REPLICAS: cannot resolve the name; keeping the number of replicas")
        .await;
    assert!(
        line.contains(r#""level":"warn""#) && line.contains(r#""replicas":4"#),
        "{line}"
    );
    assert_eq!(
        call(client, "b").await,
        (true, 3, 1),
        "the last number stays"
    );
    assert!(weir.metric(r#"weir_replicas_lookups_total{result="answered"}"#) >= Some(2.0));
    assert!(weir.metric(r#"weir_replicas_lookups_total{result="failed"}"#) >= Some(1.0));
}

#[tokio::test]
async fn without_a_name_there_are_no_lookups() {
    let weir = Weir::start(
        LIMITS,
        &[
            ("REPLICAS", "3"),
            ("REDIS_URL", &RedisServer::absent().url()),
        ],
    );
    assert_eq!(weir.metric("weir_replicas"), Some(3.0));
    assert_eq!(
        weir.metric(r#"weir_replicas_lookups_total{result="answered"}"#),
        None
    );
    assert_eq!(call(&mut weir.client().await, "a").await, (true, 4, 3));
}
