//! The number of allocations of a request, as exact figures: a change that adds an allocation fails
//! here, without any measurement of time.
//!
//! A change that saves an allocation lowers the figure. A change that adds one explains it here.

use allocation_counter::measure;
use futures_util::FutureExt;
use prost::Message;

use super::*;
use crate::core::proto::rate_limit_descriptor::Entry;
use crate::core::proto::{RateLimitDescriptor, RateLimitRequest};
use crate::limits::rules::compile::rules_of;
use crate::observe::metrics::Metrics;

/// Gives limits a name, as in a configuration that uses `replaces`.
const NAMED: &str = "name: some-limit, ";

/// Gives limits a trial.
const TRIED: &str = "trial: {requests_per_unit: 5}, ";

/// A service with ten limits at the second level, without a network.
fn service(name: &str) -> Rls {
    let limit = |path: usize| {
        format!(
            "      - key: path\n        value: /{path}\n        rate_limit: {{{name}unit: hour, \
             requests_per_unit: 4000000000}}\n"
        )
    };
    let limits: String = (0..10).map(limit).collect();
    let text = format!("domain: shop\ndescriptors:\n  - key: customer\n    descriptors:\n{limits}");
    let live = Arc::new(Live::new(Metrics::new(1, 0.8)));
    live.replace(rules_of(&text));
    Rls::builder(live).build()
}

/// An encoded request with so many descriptors of two entries each.
fn request(descriptors: usize) -> Vec<u8> {
    let entry = |key: &str, value: String| Entry {
        key: key.into(),
        value: value.into(),
    };
    let descriptor = |path| RateLimitDescriptor {
        entries: vec![
            entry("customer", "c-0123456789".to_owned()),
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

/// Allocations of a request that is decided in memory, from its bytes to the bytes of the response.
fn decided(name: &str, descriptors: usize) -> u64 {
    let (service, request) = (service(name), request(descriptors));
    let decide = || {
        drop(
            service
                .answer(&request, None, &TraceSpan::default())
                .now_or_never()
                .expect("memory does not wait")
                .expect("an answer"),
        );
    };
    decide();
    measure(decide).count_total
}

/// One for the checks, one for their keys, one for the response. Requests of more than four
/// descriptors or sixteen entries need more.
#[test]
fn a_usual_request_costs_three_allocations() {
    for name in ["", NAMED] {
        assert_eq!(
            [1, 3, 10].map(|descriptors| decided(name, descriptors)),
            [3, 3, 12],
            "{name:?}"
        );
    }
}

/// Trials are checks of the same request: there are more of them, and their keys are longer.
#[test]
fn only_requests_with_trials_cost_more() {
    assert_eq!(
        [1, 3, 10].map(|descriptors| decided(TRIED, descriptors)),
        [4, 7, 14]
    );
}

/// While tracing is on, a call that its caller does not record costs what it costs without, and the
/// box of its future.
#[tokio::test]
async fn a_call_that_is_not_traced_costs_no_allocation() {
    let options = crate::observe::traces::Options {
        service_name: "weir".to_owned(),
        service_namespace: String::new(),
        service_instance_id: "1".to_owned(),
        sampling_rate: 1.0,
        protocol: crate::observe::traces::Protocol::Http,
        endpoint: http::Uri::from_static("http://127.0.0.1:1/v1/traces"),
        headers: http::HeaderMap::new(),
        timeout: Duration::from_secs(1),
        tls: crate::net::tls::ClientOptions::default(),
    };
    let traces = crate::observe::traces::start(options).expect("a thread");
    let mut service = service("");
    service.options.tracer = Some(traces.tracer.clone());
    let service = Arc::new(service);
    let cost = |flags: &str| {
        let traceparent = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
        let mut call = tonic::Request::new(EncodedRequest {
            message: request(1).into(),
            time_left: None,
        });
        let parent = traceparent.parse().expect("a header");
        call.metadata_mut().insert("traceparent", parent);
        let decide = || {
            let answer = Arc::clone(&service).should_rate_limit(call).now_or_never();
            answer.expect("memory does not wait").expect("an answer")
        };
        measure(|| drop(decide())).count_total
    };
    cost("00");
    assert_eq!(cost("00"), 4);
    assert!(cost("01") > 4, "this one is recorded");
}

/// Entries are borrowed from the request, whatever their length.
#[test]
fn no_entry_costs_an_allocation() {
    let (service, mut allocations) = (service(""), Vec::new());
    for length in [1, 100, 10_000] {
        let entry = |index| Entry {
            key: "key".into(),
            value: vec![b'a' + index; length],
        };
        let descriptor = RateLimitDescriptor {
            entries: (0..16).map(entry).collect(),
            ..Default::default()
        };
        let request = RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: vec![descriptor],
            hits_addend: 0,
        }
        .encode_to_vec();
        let decide = || {
            drop(
                service
                    .answer(&request, None, &TraceSpan::default())
                    .now_or_never()
                    .expect("memory does not wait")
                    .expect("an answer"),
            );
        };
        decide();
        allocations.push(measure(decide).count_total);
    }
    assert_eq!(allocations, [3; 3]);
}

/// A larger future would be copied and would miss the cache with each call that waits for Redis.
#[test]
fn the_future_of_a_call_is_small() {
    let (service, request, span) = (service(""), request(1), TraceSpan::default());
    let bytes = size_of_val(&service.answer(&request, None, &span));
    assert!(bytes <= 2_880, "{bytes} bytes");
}
