//! Configurations that cannot be used: each domain is refused by itself, and refusals do not keep
//! the control plane busy.

use std::time::{Duration, Instant};

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
async fn a_refused_configuration_is_refused_once_per_wait() {
    let control = ControlPlane::start();
    control.set("1", [users("a", 1)]);
    let weir = start(&control.url(), &[]);
    let client = &mut weir.client().await;
    wait_for_amount(client, "a", 1).await;
    control.wait_for_ack("1").await;
    let begin = Instant::now();
    control.set("2", [users("a", 2).into(), Sent::from(without_unit("b"))]);
    wait_for_amount(client, "a", 2).await;
    let nacks = eventually_async(|| {
        let refused = control.requests().into_iter();
        let refused = refused.filter(|asked| asked.error.is_some());
        let at: Vec<_> = refused.map(|asked| asked.at).collect();
        Some(at).filter(|at| at.len() >= 3)
    })
    .await
    .expect("three refusals");
    let waits: Vec<_> = nacks
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs_f64())
        .collect();
    println!(
        "refusals {:.2} s after the change, then after {waits:.2?} s",
        (nacks[0] - begin).as_secs_f64()
    );
    // At once, after 1 s and 2 s; later ones are tested with given time.
    assert!(nacks[0] - begin < Duration::from_secs(2));
    for (wait, least) in waits.iter().zip([1.0, 2.0]) {
        assert!((least - 0.01..least + 1.5).contains(wait), "{waits:?}");
    }
    assert!(
        control.sent().len() <= nacks.len() + 2,
        "the control plane sent {} responses",
        control.sent().len()
    );
    let generations = weir.metric("weir_config_generation");
    assert_eq!(
        generations,
        Some(2.0),
        "the same content is not loaded again"
    );
    let lines = weir
        .logs()
        .iter()
        .filter(|line| line.contains("limits of the control plane rejected"))
        .count();
    assert_eq!(lines, 1, "and not logged again");
    let streams = control.requests().iter().map(|asked| asked.stream).max();
    assert_eq!(streams, Some(0), "a bad configuration ends no stream");

    // A change is refused or accepted at once when it arrives: with the next answer.
    control.set("3", [users("a", 3)]);
    wait_for_amount(client, "a", 3).await;
    control.wait_for_ack("3").await;
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
