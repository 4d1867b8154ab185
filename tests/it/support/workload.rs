//! The workload with which the steps of a request are counted and timed: a hundred limits, requests
//! that match them, and a service without a network. Used by the instruction counts and by
//! `benches/path.rs`.

use std::fmt::Write;
use std::sync::Arc;

use prost::Message;
use weir::core::proto::rate_limit_descriptor::Entry;
use weir::core::proto::{RateLimitDescriptor, RateLimitRequest};
use weir::limits::rules::Rules;
use weir::limits::rules::compile::{self, SourceText, compile};
use weir::live::Live;
use weir::observe::metrics::Metrics;
use weir::service::rls::Rls;

/// The rules of the domain `shop` with these limits.
pub fn rules(limits: &str) -> Rules {
    let text = format!("domain: shop\ndescriptors:\n{limits}").into_bytes();
    compile(
        &[SourceText {
            name: "shop.yaml".to_owned(),
            text,
        }],
        &compile::Options::default(),
    )
    .expect("good limits")
    .rules
}

/// A hundred limits on three levels.
pub fn typical_rules() -> Rules {
    let mut text = String::new();
    for product in 0..10 {
        let _ = write!(
            text,
            "- key: product\n  value: p-{product}\n  descriptors:\n  - key: customer\n    \
             descriptors:\n"
        );
        for path in 0..10 {
            let _ = writeln!(
                text,
                "    - {{key: path, value: /{path}, rate_limit: {{unit: hour, requests_per_unit: \
                 4000000000}}}}"
            );
        }
    }
    rules(&text)
}

/// An encoded request with this number of descriptors, at most ten; each matches another limit of
/// the typical rules.
pub fn message(descriptors: usize, customer: usize) -> Vec<u8> {
    let entry = |key: &str, value: String| Entry {
        key: key.into(),
        value: value.into(),
    };
    let descriptor = |path| RateLimitDescriptor {
        entries: vec![
            entry("product", format!("p-{}", customer % 10)),
            entry("customer", format!("c-{customer:08}")),
            entry("path", format!("/{path}")),
        ],
        ..Default::default()
    };
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: (0..descriptors).map(descriptor).collect(),
        hits_addend: 0,
    }
    .encode_to_vec()
}

/// A service with the typical rules and the memory store.
pub fn service() -> Rls {
    let live = Arc::new(Live::new(Metrics::new(1, 0.8)));
    live.replace(typical_rules());
    Rls::builder(live).build()
}
