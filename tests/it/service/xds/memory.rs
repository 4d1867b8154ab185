//! Resources that are small and would take much memory.

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use weir::core::proto::xds::RateLimitConfig;

use super::{amount, config, leaf, start, users, wait_for_amount, yearly};
use crate::support::control_plane::{ControlPlane, Sent};
use crate::support::wait::eventually_async;

/// A field with this content.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut out);
    encode_varint(content.len() as u64, &mut out);
    out.extend(content);
    out
}

/// The resource z with a descriptor of these fields.
fn descriptor(fields: &[u8]) -> Vec<u8> {
    let head = RateLimitConfig {
        name: "z".to_owned(),
        domain: "z".to_owned(),
        descriptors: Vec::new(),
    }
    .encode_to_vec();
    [
        head,
        field(3, &[field(1, b"user"), fields.to_vec()].concat()),
    ]
    .concat()
}

/// Decoded and compiled, the first ones took 1,045, 924 and 1,370 MiB.
#[tokio::test]
async fn resources_that_would_take_too_much_memory_are_refused_by_name() {
    const EMPTY: usize = 4 << 20;
    let limits = config(
        "z",
        (0..400_000)
            .map(|number| leaf("user", &format!("u{number}"), yearly(1)))
            .collect(),
    );
    let refused = [
        descriptor(&field(
            8,
            &field(1, &field(2, &field(6, &field(1, &[]).repeat(EMPTY)))),
        )),
        descriptor(&field(3, &field(5, &[]).repeat(EMPTY))),
        limits.encode_to_vec(),
        descriptor(&field(4, &[]).repeat(EMPTY)),
    ];
    let control = ControlPlane::start();
    control.set("0", [users("a", 1), users("z", 7)]);
    let weir = start(&control.url(), &[("MEMORY_LIMIT", "512Mi")]);
    let client = &mut weir.client().await;
    wait_for_amount(client, "z", 7).await;
    for (number, message) in (2..).zip(refused) {
        let refusals = || {
            control
                .requests()
                .into_iter()
                .filter_map(|asked| asked.error)
                .map(|(_, message)| message)
                .collect::<Vec<_>>()
        };
        let before = refusals().len();
        control.set(
            &number.to_string(),
            [
                Sent::raw("z", message),
                users("a", number).into(),
                users("zz", number).into(),
            ],
        );
        wait_for_amount(client, "a", number).await;
        assert_eq!(
            amount(client, "zz").await,
            Some(number),
            "the refused one takes nothing"
        );
        assert_eq!(amount(client, "z").await, Some(7), "its last good version");
        let found = eventually_async(|| refusals().get(before).cloned())
            .await
            .expect("a refusal");
        assert!(
            found.contains("resource z: error: it does not fit into the 64 MiB of memory"),
            "{found}"
        );
        println!("peak {} MiB", weir.peak_resident_kib() >> 10);
    }
    assert!(
        weir.peak_resident_kib() < 512 << 10,
        "{} KiB",
        weir.peak_resident_kib()
    );
    assert_eq!(weir.metric("weir_panics_total"), Some(0.0));
}
