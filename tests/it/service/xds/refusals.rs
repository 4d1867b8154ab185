//! Configurations that cannot be used: each domain is refused by itself, and refusals do not keep
//! the control plane busy.

use prost::Message;
use weir::core::proto::xds::RateLimitConfig;

use super::{amount, start, users, wait_for_amount, without_unit};
use crate::support::control_plane::{ControlPlane, Sent};
use crate::support::wait::eventually_async;

/// The message with a byte of its key that is no UTF-8.
fn not_utf8(config: &RateLimitConfig) -> Sent {
    let mut message = config.encode_to_vec();
    let at = message
        .windows(4)
        .position(|part| part == b"user")
        .expect("the key");
    message[at] = 0xff;
    Sent::raw(&config.name, message)
}

#[tokio::test]
async fn a_bad_domain_keeps_its_last_good_version_and_the_others_apply() {
    let control = ControlPlane::start();
    control.set("1", [users("a", 1), users("b", 1), users("c", 1)]);
    let weir = start(&control.url(), &[]);
    let client = &mut weir.client().await;
    wait_for_amount(client, "c", 1).await;

    control.set(
        "2",
        [
            Sent::from(users("a", 2)),
            without_unit("b").into(),
            not_utf8(&users("c", 3)),
            without_unit("d").into(),
        ],
    );
    wait_for_amount(client, "a", 2).await;
    assert_eq!(
        (amount(client, "b").await, amount(client, "c").await),
        (Some(1), Some(1)),
        "their last good versions"
    );
    assert_eq!(amount(client, "d").await, Some(0), "it never had one");
    let message = control.wait_for_nack().await;
    for part in ["resource b", "resource c", "UTF-8", "resource d", "unit"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let nack = control.wait_for(|asked| asked.error.is_some()).await;
    assert_eq!(
        (nack.version.as_str(), nack.error.expect("a refusal").0),
        ("1", 3)
    );
    assert_eq!(
        weir.metric("weir_xds_refused_domains{limits=\"kept\"}"),
        Some(2.0)
    );
    assert_eq!(
        weir.metric("weir_xds_refused_domains{limits=\"absent\"}"),
        Some(1.0)
    );
    assert_eq!(weir.metric("weir_config_last_load_successful"), Some(0.0));
    let state = eventually_async(|| {
        weir.metric("weir_xds_state{state=\"nacked\"}")
            .filter(|state| *state > 0.0)
    })
    .await;
    assert_eq!(state, Some(1.0));
    weir.wait_for_log("resource d").await;

    // The repaired ones apply, and one that is removed while it is refused is gone.
    control.set("3", [users("a", 2), users("b", 4), users("d", 5)]);
    wait_for_amount(client, "d", 5).await;
    assert_eq!(
        (amount(client, "b").await, amount(client, "c").await),
        (Some(4), Some(0))
    );
    control.wait_for_ack("3").await;
    assert_eq!(
        weir.metric("weir_xds_refused_domains{limits=\"kept\"}"),
        Some(0.0)
    );
    assert_eq!(weir.metric("weir_config_last_load_successful"), Some(1.0));
    weir.wait_for_log("in force again").await;
}

#[tokio::test]
async fn nothing_is_in_force_while_no_domain_at_all_can_be_used() {
    let control = ControlPlane::start();
    control.set("1", [without_unit("a")]);
    let weir = start(
        &control.url(),
        &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")],
    );
    control.wait_for_nack().await;
    let client = &mut weir.client().await;
    assert_eq!(
        amount(client, "a").await,
        None,
        "UNAVAILABLE, so that Envoy decides"
    );
    control.set("2", [users("a", 2)]);
    wait_for_amount(client, "a", 2).await;
}
