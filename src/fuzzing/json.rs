//! The body of `POST /json`: what it is converted to is a `RateLimitRequest` that says the same in
//! JSON; an error is one line of bounded length.

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};

use crate::core::proto::{self, RateLimitRequest};
use crate::service::pages::json;

/// The longest error in bytes. A body may have megabytes, and is not repeated.
const MAX_ERROR_BYTES: usize = 1_000;

pub(super) fn check(body: &[u8]) {
    let bytes = match json::request(body) {
        Ok(bytes) => bytes,
        Err(error) => {
            assert!(
                !error.is_empty() && error.len() <= MAX_ERROR_BYTES,
                "{} bytes: {error:?}",
                error.len()
            );
            assert!(!error.contains(char::is_control), "{error:?}");
            return;
        }
    };
    let value: serde_json::Value = serde_json::from_slice(body).expect("what is converted is JSON");
    let request = RateLimitRequest::decode(&bytes[..]).expect("a message");
    // A few fields by their names, without the descriptors.
    let field = |name: &str| value.get(name).filter(|value| !value.is_null());
    assert_eq!(
        field("domain")
            .and_then(|domain| domain.as_str())
            .unwrap_or_default(),
        request.domain
    );
    assert_eq!(
        field("descriptors")
            .and_then(|list| list.as_array())
            .map_or(0, Vec::len),
        request.descriptors.len()
    );

    let pool =
        DescriptorPool::decode(proto::DESCRIPTORS).expect("build.rs encoded the descriptors");
    let descriptor = pool
        .get_message_by_name("envoy.service.ratelimit.v3.RateLimitRequest")
        .expect("it was compiled");
    let message = DynamicMessage::decode(descriptor, &bytes[..]).expect("a message");
    let again = serde_json::to_vec(&message).expect("JSON");
    let again = json::request(&again).expect("its own JSON");
    assert_eq!(RateLimitRequest::decode(&again[..]), Ok(request));
}
