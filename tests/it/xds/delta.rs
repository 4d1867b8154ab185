//! Limits by delta: changes, removals, and new streams that name what is in force.

use super::{amount, initial, start, users, wait_for_amount, without_unit};
use crate::support::Weir;
use crate::support::certificates::Files;
use crate::support::control_plane::{ControlPlane, Sent};
use crate::support::wait::eventually_async;

fn start_delta(url: &str, more: &[(&str, &str)]) -> Weir {
    start(url, &[&[("CONFIG_TYPE", "GRPC_XDS_DELTA")], more].concat())
}

#[tokio::test]
async fn changes_and_removals_apply_and_each_is_acknowledged() {
    let control = ControlPlane::start();
    control.set("1", [users("a", 1), users("b", 1), users("c", 1)]);
    let weir = start_delta(&control.url(), &[]);
    let client = &mut weir.client().await;
    wait_for_amount(client, "c", 1).await;
    let first = &control.asked()[0];
    assert_eq!(
        (
            first.subscribe.as_slice(),
            first.initial.len(),
            first.nonce.as_str()
        ),
        (&["*".to_owned()][..], 0, "")
    );
    for (version, amounts) in [("2", (2, 1)), ("3", (2, 3)), ("4", (4, 4))] {
        control.set(version, [users("a", amounts.0), users("c", amounts.1)]);
        wait_for_amount(client, "a", amounts.0).await;
        wait_for_amount(client, "c", amounts.1).await;
        assert_eq!(amount(client, "b").await, Some(0), "it was removed");
    }
    control
        .wait_for(|asked| asked.nonce == "4" && asked.error.is_none())
        .await;
    control.set::<Sent>("5", []);
    wait_for_amount(client, "a", 0).await;
    assert_eq!(control.ignored(), 0);
}

#[tokio::test]
async fn a_refused_resource_keeps_its_last_good_version() {
    let control = ControlPlane::start();
    control.set("1", [users("a", 1), users("b", 1)]);
    let weir = start_delta(&control.url(), &[]);
    let client = &mut weir.client().await;
    wait_for_amount(client, "b", 1).await;
    control.set("2", [users("a", 2), without_unit("b")]);
    wait_for_amount(client, "a", 2).await;
    assert_eq!(amount(client, "b").await, Some(1));
    assert!(control.wait_for_nack().await.contains("resource b"));
    // A response without the refused resource is accepted, and the refused one stays refused.
    control.set("3", [users("a", 3), without_unit("b")]);
    wait_for_amount(client, "a", 3).await;
    control
        .wait_for(|asked| asked.nonce == "3" && asked.error.is_none())
        .await;
    assert_eq!(
        weir.metric("weir_xds_refused_domains{limits=\"kept\"}"),
        Some(1.0)
    );
    control.set("4", [users("a", 3), users("b", 4)]);
    wait_for_amount(client, "b", 4).await;
    assert_eq!(
        weir.metric("weir_xds_refused_domains{limits=\"kept\"}"),
        Some(0.0)
    );
}

#[tokio::test]
async fn a_new_stream_names_what_is_in_force_also_from_the_cache() {
    let files = Files::new();
    let path = files.text("limits");
    let control = ControlPlane::start();
    let url = control.url();
    control.set("1", [users("a", 1), users("b", 1)]);
    let weir = start_delta(&url, &[("CONFIG_GRPC_XDS_CACHE_FILE", &path)]);
    let client = &mut weir.client().await;
    wait_for_amount(client, "b", 1).await;
    control.wait_for(|asked| asked.nonce == "1").await;
    drop(control);
    weir.wait_for_log("no connection to the control plane")
        .await;
    // While it was away, b was removed and c was added; a is not sent again.
    let control = ControlPlane::start_at(url.parse().expect("an address"));
    control.set("7", [users("a", 1), users("c", 3)]);
    wait_for_amount(client, "c", 3).await;
    assert_eq!(
        (amount(client, "a").await, amount(client, "b").await),
        (Some(1), Some(0))
    );
    assert_eq!(initial(&control.asked()[0].initial), ["a", "b"]);
    let writes = || {
        weir.metric("weir_xds_cache_writes_total{result=\"written\"}")
            .filter(|writes| *writes >= 2.0)
    };
    assert!(eventually_async(writes).await.is_some());
    drop((weir, control));

    let control = ControlPlane::start_at(url.parse().expect("an address"));
    control.set("9", [users("c", 3), users("d", 4)]);
    let weir = start_delta(&url, &[("CONFIG_GRPC_XDS_CACHE_FILE", &path)]);
    let client = &mut weir.client().await;
    wait_for_amount(client, "d", 4).await;
    assert_eq!(initial(&control.asked()[0].initial), ["a", "c"]);
    assert_eq!(
        (amount(client, "a").await, amount(client, "c").await),
        (Some(0), Some(3))
    );
}
