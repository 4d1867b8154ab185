//! `grpc-timeout` against the grammar of "gRPC over HTTP2", and what a request makes of any
//! timeout: an answer.

use std::sync::{Arc, LazyLock};

use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue};
use prost::Message;
use tokio::runtime::{self, Runtime};

use super::yaml;
use crate::core::proto::rate_limit_descriptor::Entry;
use crate::core::proto::{RateLimitDescriptor, RateLimitRequest};
use crate::limits::rules::compile::{Options, SourceText, compile};
use crate::observe::traces::TraceSpan;
use crate::service::rls::Rls;
use crate::service::rls::grpc_timeout;

/// One limit of each kind of algorithm, of which one may hold its requests for a day.
const LIMITS: &str = "
domain: d
descriptors:
  - {key: fixed_window, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: token_bucket, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: token_bucket}}
  - {key: leaky_bucket, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: leaky_bucket, \
      max_delay: 24h}}
";

static SERVICE: LazyLock<(Rls, Vec<u8>)> = LazyLock::new(|| {
    let file = SourceText {
        name: "limits.yaml".to_owned(),
        text: LIMITS.into(),
    };
    let rules = compile(&[file], &Options::default())
        .expect("good limits")
        .rules;
    let descriptor = |key: &str| RateLimitDescriptor {
        entries: vec![Entry {
            key: key.into(),
            value: "v".into(),
        }],
        ..Default::default()
    };
    let descriptors = ["fixed_window", "token_bucket", "leaky_bucket"]
        .map(descriptor)
        .to_vec();
    let request = RateLimitRequest {
        domain: "d".to_owned(),
        descriptors,
        hits_addend: 0,
    };
    (
        yaml::service(&Arc::new(yaml::live(rules)), String::new()),
        request.encode_to_vec(),
    )
});

/// A request that is held needs a timer.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
});

pub(super) fn check(value: &[u8]) {
    let Ok(header) = HeaderValue::from_bytes(value) else {
        return;
    };
    let timeout = grpc_timeout(&HeaderMap::from_iter([(
        http::HeaderName::from_static("grpc-timeout"),
        header,
    )]));
    assert_eq!(
        timeout.map(|timeout| timeout.as_nanos()),
        nanoseconds(value),
        "{:?}",
        value.escape_ascii().to_string()
    );

    let _runtime = RUNTIME.enter();
    let (service, request) = &*SERVICE;
    if let Some(answer) = service
        .answer(request, timeout, &TraceSpan::default())
        .now_or_never()
    {
        assert!(answer.is_ok(), "{timeout:?}: {answer:?}");
    }
}

/// `TimeoutValue TimeoutUnit`, where the value is a positive integer as ASCII string of at most 8
/// digits.
fn nanoseconds(value: &[u8]) -> Option<u128> {
    let (&unit, digits) = value.split_last()?;
    let unit = match unit {
        b'n' => 1,
        b'u' => 1_000,
        b'm' => 1_000_000,
        b'S' => 1_000_000_000,
        b'M' => 60_000_000_000,
        b'H' => 3_600_000_000_000,
        _ => return None,
    };
    if !(1..=8).contains(&digits.len()) {
        return None;
    }
    digits
        .iter()
        .try_fold(0, |number, &digit| {
            digit
                .is_ascii_digit()
                .then(|| number * 10 + u128::from(digit - b'0'))
        })
        .map(|number| number * unit)
}
