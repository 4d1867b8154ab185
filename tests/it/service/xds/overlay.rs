//! The overlay file and the defaults: what the messages of a control plane have no field for.

use std::time::Duration;

use weir::core::proto::rate_limit_response::Code;

use super::{config, leaf, start, users, wait_for_amount, yearly};
use crate::support::certificates::Files;
use crate::support::control_plane::ControlPlane;
use crate::support::{Client, ask, descriptor_with_hits, request};

/// The code of a request for this many hits, and what is left.
async fn call(client: &mut Client, domain: &str, key: &str, hits: i64) -> (Code, u32) {
    let answer = ask(
        client,
        domain,
        vec![descriptor_with_hits(&[(key, "u")], hits)],
    )
    .await;
    (answer.overall_code(), answer.statuses[0].limit_remaining)
}

const DEBT: &str = "
domains:
- domain: a*
  descriptors:
  - key: user
    rate_limit: { count_denied: false }
";

#[tokio::test]
async fn the_overlay_adds_options_and_is_read_again_when_it_changes() {
    let files = Files::new();
    files.write("overlay.yaml", DEBT);
    let control = ControlPlane::start();
    control.set(
        "1",
        [
            users("a", 10),
            config("b", vec![leaf("user", "", yearly(10))]),
        ],
    );
    let weir = start(
        &control.url(),
        &[("CONFIG_GRPC_XDS_OVERLAY_FILE", &files.text("overlay.yaml"))],
    );
    let client = &mut weir.client().await;
    wait_for_amount(client, "b", 10).await;
    for domain in ["a", "b"] {
        assert_eq!(call(client, domain, "user", 20).await.0, Code::OverLimit);
    }
    assert_eq!(
        call(client, "a", "user", 10).await.0,
        Code::Ok,
        "the overlay lets refused hits count for nothing"
    );
    assert_eq!(
        call(client, "b", "user", 10).await.0,
        Code::OverLimit,
        "it does not match this domain"
    );

    // A mistake changes nothing, and is shown until it is corrected.
    let is_loaded = || weir.metric("weir_config_last_load_successful");
    assert_eq!(is_loaded(), Some(1.0));
    files.write("overlay.yaml", "domains: 7\n");
    weir.wait_for_log("overlay file rejected").await;
    control.set("2", [users("a", 11)]);
    wait_for_amount(client, "a", 11).await;
    assert_eq!(is_loaded(), Some(0.0));
    // The limits have another algorithm as soon as the overlay says so, although the control plane
    // sends nothing.
    files.write(
        "overlay.yaml",
        &DEBT.replace("count_denied: false", "algorithm: token_bucket, burst: 3"),
    );
    weir.wait_for_log("overlay file loaded").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(call(client, "a", "user", 0).await, (Code::Ok, 3));
    assert_eq!(is_loaded(), Some(1.0));
}

/// Limits that are not known yet are not the same as none.
#[tokio::test]
async fn an_overlay_alone_puts_no_limits_in_force() {
    let files = Files::new();
    files.write("overlay.yaml", DEBT);
    let weir = start(
        "http://127.0.0.1:1",
        &[("CONFIG_GRPC_XDS_OVERLAY_FILE", &files.text("overlay.yaml"))],
    );
    files.write("overlay.yaml", &DEBT.replace("a*", "b*"));
    weir.wait_for_log("overlay file loaded").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let descriptors = vec![descriptor_with_hits(&[("user", "u")], 1)];
    let answer = weir.client().await;
    let answer = { answer }
        .should_rate_limit(request("a", descriptors))
        .await;
    let status = answer.expect_err("no limits are known");
    assert_eq!(status.code(), tonic::Code::Unavailable);
}

#[tokio::test]
async fn defaults_of_the_process_hold_for_limits_that_say_nothing() {
    let control = ControlPlane::start();
    control.set("1", [users("a", 10)]);
    let weir = start(
        &control.url(),
        &[(
            "CONFIG_GRPC_XDS_DEFAULTS",
            "algorithm: token_bucket, burst: 4",
        )],
    );
    let client = &mut weir.client().await;
    wait_for_amount(client, "a", 10).await;
    assert_eq!(call(client, "a", "user", 0).await, (Code::Ok, 4));
}

#[tokio::test]
async fn an_overlay_that_cannot_be_used_stops_the_start_unless_it_is_forced() {
    let files = Files::new();
    files.write("overlay.yaml", "domains: 7\n");
    let path = files.text("overlay.yaml");
    let environment = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_OVERLAY_FILE", path.as_str()),
    ];
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_weir"))
        .arg("serve")
        .env_clear()
        .envs(environment)
        .output()
        .expect("it runs");
    assert!(!output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("overlay.yaml:1:"),
        "{output:?}"
    );
    let control = ControlPlane::start();
    control.set("1", [users("a", 10)]);
    let weir = start(
        &control.url(),
        &[
            ("CONFIG_GRPC_XDS_OVERLAY_FILE", &path),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ],
    );
    wait_for_amount(&mut weir.client().await, "a", 10).await;
    weir.wait_for_log("overlay.yaml:1:").await;
}
