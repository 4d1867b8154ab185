//! The file of the last good limits, and starts without a control plane.

use std::time::Duration;

use super::{amount, hit, start, users, wait_for_amount, without_unit};
use crate::support::certificates::Files;
use crate::support::control_plane::{ControlPlane, NODE, Sent};
use crate::support::wait::eventually_async;
use crate::support::{descriptor, ports, request};

#[tokio::test]
async fn a_start_waits_for_the_first_limits_unless_it_is_forced() {
    let address = ports::free();
    let waiting = start(&address.to_string(), &[]);
    let forced = start(
        &address.to_string(),
        &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")],
    );
    waiting
        .wait_for_log("no connection to the control plane")
        .await;
    assert_eq!(
        (waiting.get("/healthcheck").0, forced.get("/healthcheck").0),
        (500, 200)
    );
    for weir in [&waiting, &forced] {
        let error = weir
            .client()
            .await
            .should_rate_limit(request("a", vec![descriptor(&[("user", "u")])]))
            .await
            .expect_err("no limits");
        assert_eq!(error.code(), tonic::Code::Unavailable, "{error}");
        assert_eq!(
            weir.metric("weir_xds_state{state=\"connecting\"}"),
            Some(1.0)
        );
    }
    let control = ControlPlane::start_at(address);
    control.set("1", [users("a", 3)]);
    for weir in [&waiting, &forced] {
        wait_for_amount(&mut weir.client().await, "a", 3).await;
    }
    assert!(
        eventually_async(|| (waiting.get("/healthcheck").0 == 200).then_some(()))
            .await
            .is_some()
    );
}

#[tokio::test]
async fn a_process_that_starts_while_the_control_plane_is_away_has_the_last_good_limits() {
    let files = Files::new();
    let path = files.text("limits");
    let environment = [("CONFIG_GRPC_XDS_CACHE_FILE", &*path)];
    let control = ControlPlane::start();
    let url = control.url();
    control.set("1", [users("a", 4), users("b", 5)]);
    {
        let weir = start(&url, &environment);
        let client = &mut weir.client().await;
        wait_for_amount(client, "b", 5).await;
        // What is in force is saved, and not what was refused.
        control.set("2", [users("a", 6).into(), Sent::from(without_unit("b"))]);
        wait_for_amount(client, "a", 6).await;
        assert!(
            eventually_async(|| weir
                .metric("weir_xds_cache_writes_total{result=\"written\"}")
                .filter(|it| *it >= 2.0))
            .await
            .is_some()
        );
    }
    drop(control);
    let weir = start(&url, &environment);
    assert_eq!(weir.get("/healthcheck").0, 200, "it is ready at once");
    let client = &mut weir.client().await;
    assert_eq!(
        (amount(client, "a").await, amount(client, "b").await),
        (Some(6), Some(5)),
        "from the first request"
    );
    weir.wait_for_log("limits restored").await;

    // The control plane returns; a domain that is gone is gone.
    let control = ControlPlane::start_at(url.parse().expect("an address"));
    control.set("1", [users("a", 7)]);
    wait_for_amount(client, "a", 7).await;
    assert_eq!(amount(client, "b").await, Some(0));
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_ignored_with_a_line_and_replaced() {
    let files = Files::new();
    let path = files.text("limits");
    let control = ControlPlane::start();
    control.set("1", [users("a", 4)]);
    for (content, why) in [
        ("", "no file of limits"),
        ("weir limits 1 abc", "no file of limits"),
        ("weir limits 9 ", "no file of limits"),
    ] {
        files.write("limits", content);
        let weir = start(&control.url(), &[("CONFIG_GRPC_XDS_CACHE_FILE", &path)]);
        assert!(
            weir.wait_for_log("ignoring CONFIG_GRPC_XDS_CACHE_FILE")
                .await
                .contains(why),
            "{content:?}"
        );
        wait_for_amount(&mut weir.client().await, "a", 4).await;
        let saved = || {
            std::fs::read(files.path("limits"))
                .ok()
                .filter(|saved| saved.len() > 80)
        };
        let mut saved = eventually_async(saved).await.expect("it is replaced");
        drop(weir);
        let last = saved.len() - 1;
        saved[last] ^= 1;
        std::fs::write(files.path("limits"), saved).expect("written");
        let weir = start(&control.url(), &[("CONFIG_GRPC_XDS_CACHE_FILE", &path)]);
        weir.wait_for_log("digest").await;
        let written = || {
            weir.metric("weir_xds_cache_writes_total{result=\"written\"}")
                .filter(|written| *written > 0.0)
        };
        assert!(eventually_async(written).await.is_some());
    }
    // The saved limits of another node are not those of this one.
    let weir = start(
        &control.url(),
        &[
            ("CONFIG_GRPC_XDS_CACHE_FILE", &path),
            ("CONFIG_GRPC_XDS_NODE_ID", "other"),
        ],
    );
    assert!(
        weir.wait_for_log("ignoring CONFIG_GRPC_XDS_CACHE_FILE")
            .await
            .contains(NODE)
    );
    assert_eq!(amount(&mut weir.client().await, "a").await, None);
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_one_warning() {
    let control = ControlPlane::start();
    control.set("1", [users("a", 1)]);
    let weir = start(
        &control.url(),
        &[("CONFIG_GRPC_XDS_CACHE_FILE", "/proc/none/limits")],
    );
    let client = &mut weir.client().await;
    for amount in 1..4 {
        control.set(&amount.to_string(), [users("a", amount)]);
        wait_for_amount(client, "a", amount).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(hit(client, "a", &[("user", "u")]).await);
    assert_eq!(
        weir.logs()
            .iter()
            .filter(|line| line.contains("cannot be written"))
            .count(),
        1
    );
    assert!(
        weir.metric("weir_xds_cache_writes_total{result=\"failed\"}")
            .expect("a counter")
            >= 3.0
    );
}

/// The control plane sends nothing more.
#[tokio::test]
async fn limits_that_could_not_be_saved_are_saved_later() {
    let (files, control) = (Files::new(), ControlPlane::start());
    control.set("1", [users("a", 1)]);
    let path = files.text("later/limits");
    let weir = start(&control.url(), &[("CONFIG_GRPC_XDS_CACHE_FILE", &path)]);
    wait_for_amount(&mut weir.client().await, "a", 1).await;
    weir.wait_for_log("cannot be written").await;
    let folder = std::path::Path::new(&path).parent().expect("a folder");
    std::fs::create_dir(folder).expect("a new folder");
    let is_saved = || std::fs::exists(&path).expect("readable").then_some(());
    assert!(eventually_async(is_saved).await.is_some());
}
