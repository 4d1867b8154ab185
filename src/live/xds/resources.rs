//! Resources as they arrive: unpacking and decoding them, each by itself: an invalid one
//! does not affect the others.
//!
//! `build.rs` makes bytes of the packed messages and of their text: prost refuses a message with
//! text that is not UTF-8, and tonic then ends the stream. One resource would take all others away.

use bytes::Bytes;
use prost::Message;

use crate::core::proto::xds::RateLimitConfig;

/// The type of the resources.
pub(super) const TYPE_URL: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The type of the wrapper that carries the time to live of a resource.
const WRAPPER_TYPE: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";

/// The longest name of a resource, in bytes. Both gateways use the domain as the name.
const MAX_NAME_BYTES: usize = 4_096;

/// A `google.protobuf.Any` whose type may be any bytes.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Any {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) type_url: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

/// The fields of `RateLimitConfig` that identify it. It can be decoded where the whole cannot.
#[derive(Clone, PartialEq, Message)]
struct Head {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    domain: Bytes,
}

/// The fields of `envoy.service.discovery.v3.Resource` that are read. A list among the others, of
/// which each element takes memory, is not decoded.
#[derive(Clone, PartialEq, Message)]
struct Wrapper {
    #[prost(bytes = "bytes", tag = "2")]
    resource: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    name: Bytes,
}

/// The control plane's version of a resource: an encoded `RateLimitConfig`, or why it cannot be
/// unpacked.
pub(super) type Wanted = Result<Bytes, String>;

/// A resource with its name. `None` if the server only prolongs its time to live: its content
/// stays.
pub(super) type Named = (String, Option<Wanted>);

/// Unpacks an element of a state of the world: an `Any` that is a resource, or a wrapper around
/// one.
///
/// # Errors
/// What is wrong with it, if it is not even known which one it is.
pub(super) fn unpack(packed: &Bytes) -> Result<Named, String> {
    let any: Any = message(packed)?;
    match any.type_url == WRAPPER_TYPE.as_bytes() {
        true => unpack_wrapper(&any.value),
        false => unpack_plain(any),
    }
}

/// Unpacks a wrapper, which servers with times to live use. A wrapper inside a wrapper is not
/// valid.
fn unpack_wrapper(packed: &Bytes) -> Result<Named, String> {
    let Wrapper { name, resource } = message(packed)?;
    let has_content = !resource.is_empty();
    if name.is_empty() && has_content {
        return unpack_plain(message(&resource)?);
    }
    let wanted = has_content.then(|| message(&resource).and_then(config));
    Ok((text(&name)?, wanted))
}

fn unpack_plain(any: Any) -> Result<Named, String> {
    let config = config(any)?;
    let Head { name, domain } = message(&config)?;
    let name = text(if name.is_empty() { &domain } else { &name })?;
    Ok((name, Some(Ok(config))))
}

/// The limits of a resource.
///
/// # Errors
/// What is wrong with the message.
pub(super) fn decode(name: &str, config: &Bytes) -> Result<RateLimitConfig, String> {
    let name = name.to_owned();
    Ok(RateLimitConfig {
        name,
        ..message(config)?
    })
}

/// Packs a resource as a server does.
#[cfg(test)]
pub(super) fn pack(config: &Bytes) -> Any {
    Any {
        type_url: Bytes::from_static(TYPE_URL.as_bytes()),
        value: config.clone(),
    }
}

/// Decodes a message. prost bounds the depth of messages: a deep one is an error.
fn message<M: Message + Default>(bytes: &Bytes) -> Result<M, String> {
    M::decode(bytes.clone()).map_err(|error| format!("the message is not valid: {error}"))
}

fn config(any: Any) -> Result<Bytes, String> {
    if any.type_url == TYPE_URL.as_bytes() {
        return Ok(any.value);
    }
    let shown = String::from_utf8_lossy(&any.type_url);
    let shown: String = shown.chars().take(200).collect();
    Err(format!("it is of the type {shown:?}, not {TYPE_URL}"))
}

fn text(bytes: &Bytes) -> Result<String, String> {
    if bytes.len() > MAX_NAME_BYTES {
        return Err(format!("its name is longer than {MAX_NAME_BYTES} bytes"));
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| "its name is not valid UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::proto::xds;

    fn config() -> xds::RateLimitConfig {
        let rate_limit = xds::RateLimitPolicy {
            unit: 2,
            requests_per_unit: 7,
            name: "n".to_owned(),
            replaces: vec![xds::RateLimitReplace {
                name: "r".to_owned(),
            }],
            ..Default::default()
        };
        let leaf = xds::RateLimitDescriptor {
            key: "k".to_owned(),
            rate_limit: Some(rate_limit),
            shadow_mode: true,
            ..Default::default()
        };
        let top = xds::RateLimitDescriptor {
            key: "t".to_owned(),
            value: "v".to_owned(),
            descriptors: vec![leaf],
            ..Default::default()
        };
        xds::RateLimitConfig {
            name: "res".to_owned(),
            domain: "dom".to_owned(),
            descriptors: vec![top],
        }
    }

    fn encoded(config: &xds::RateLimitConfig) -> Bytes {
        config.encode_to_vec().into()
    }

    fn any(type_url: &str, value: Bytes) -> Bytes {
        Any {
            type_url: type_url.to_owned().into(),
            value,
        }
        .encode_to_vec()
        .into()
    }

    #[test]
    fn resources_are_unpacked_with_and_without_a_wrapper() {
        let config = encoded(&config());
        let plain: Bytes = pack(&config).encode_to_vec().into();
        let named = |name: &str, config: Option<&Bytes>| {
            Ok((name.to_owned(), config.map(|config| Ok(config.clone()))))
        };
        assert_eq!(unpack(&plain), named("res", Some(&config)));
        let wrapper = |name: &'static str, resource: &Bytes| {
            xds::Resource {
                name: name.into(),
                resource: resource.clone(),
                ..Default::default()
            }
            .encode_to_vec()
        };
        assert_eq!(
            unpack(&any(WRAPPER_TYPE, wrapper("outer", &plain).into())),
            named("outer", Some(&config))
        );
        assert_eq!(
            unpack_wrapper(&wrapper("", &plain).into()),
            named("res", Some(&config)),
            "the wrapper may have no name"
        );
        assert_eq!(
            unpack_wrapper(&wrapper("outer", &Bytes::new()).into()),
            named("outer", None),
            "only a longer time to live"
        );
    }

    #[test]
    fn a_resource_without_a_name_has_its_domain_as_its_name() {
        let config = encoded(&xds::RateLimitConfig {
            name: String::new(),
            ..config()
        });
        assert_eq!(
            unpack(&pack(&config).encode_to_vec().into())
                .expect("valid")
                .0,
            "dom"
        );
    }

    #[test]
    fn limits_are_decoded_under_the_name_of_their_resource() {
        let resource = decode("res", &encoded(&config())).expect("valid");
        assert_eq!(
            (resource.name.as_str(), resource.domain.as_str()),
            ("res", "dom")
        );
        let (top, leaf) = (
            &resource.descriptors[0],
            &resource.descriptors[0].descriptors[0],
        );
        assert_eq!(
            (top.key.as_str(), top.value.as_str(), top.shadow_mode),
            ("t", "v", false)
        );
        assert_eq!(
            (leaf.key.as_str(), leaf.value.as_str(), leaf.shadow_mode),
            ("k", "", true)
        );
        let policy = leaf.rate_limit.as_ref().expect("a limit");
        assert_eq!(
            (
                policy.unit,
                policy.requests_per_unit,
                policy.unlimited,
                policy.name.as_str()
            ),
            (2, 7, false, "n")
        );
        assert_eq!(policy.replaces[0].name, "r");
    }

    #[test]
    fn what_is_not_valid_names_itself_as_far_as_it_can() {
        let mut broken = encoded(&config()).to_vec();
        let at = broken
            .iter()
            .position(|byte| *byte == b'k')
            .expect("the key");
        broken[at] = 0xff;
        let broken = Bytes::from(broken);
        let (name, _) = unpack(&pack(&broken).encode_to_vec().into()).expect("the name is valid");
        assert_eq!(name, "res");
        let error = decode("res", &broken).expect_err("a key that is not UTF-8");
        assert!(error.contains("key") && error.contains("UTF-8"), "{error}");

        for (packed, what) in [
            (
                any("type.googleapis.com/other.Type", Bytes::new()),
                "other.Type",
            ),
            (Bytes::from_static(b"\xff\xff"), "not valid"),
            (any(TYPE_URL, Bytes::from_static(b"\x0a\x01\xff")), "UTF-8"),
            (any(TYPE_URL, Bytes::from_static(b"\x0a\x7f")), "not valid"),
        ] {
            let unnamed = unpack(&packed).expect_err(what);
            assert!(unnamed.contains(what), "{unnamed:?}");
        }
        let wrapped = xds::Resource {
            name: "outer".into(),
            resource: any("x", Bytes::new()),
            ..Default::default()
        };
        let (name, wanted) = unpack_wrapper(&wrapped.encode_to_vec().into()).expect("a name");
        assert_eq!(name, "outer");
        assert!(wanted.is_some_and(|wanted| wanted.is_err()), "its type");
    }

    #[test]
    fn a_deep_tree_is_an_error() {
        let mut tree = xds::RateLimitDescriptor::default();
        for _ in 0..200 {
            tree = xds::RateLimitDescriptor {
                descriptors: vec![tree],
                ..Default::default()
            };
        }
        let config = encoded(&xds::RateLimitConfig {
            descriptors: vec![tree],
            ..config()
        });
        assert!(decode("res", &config).is_err());
    }

    #[test]
    fn wrappers_inside_of_wrappers_are_not_followed() {
        let mut packed: Bytes = pack(&encoded(&config())).encode_to_vec().into();
        for _ in 0..1_000 {
            packed = any(
                WRAPPER_TYPE,
                xds::Resource {
                    resource: packed,
                    ..Default::default()
                }
                .encode_to_vec()
                .into(),
            );
        }
        assert!(
            unpack(&packed)
                .expect_err("a wrapper")
                .contains("discovery.v3.Resource")
        );
    }
}
