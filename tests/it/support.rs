//! Shared by the tests: real processes on free ports, each with its own folder, which end with the
//! test; and requests.

pub mod browser;
pub mod certificates;
pub mod cluster;
pub mod config_map;
pub mod control_plane;
pub mod envoy;
pub mod http_client;
pub mod load;
pub mod log;
pub mod ports;
pub mod proxy;
pub mod redis;
pub mod relay;
pub mod sentinel;
pub mod terminal;
pub mod tls_client;
pub mod tools;
pub mod wait;
pub mod weir;
pub mod workload;

use std::sync::{Mutex, MutexGuard, PoisonError};

use ::weir::core::proto::rate_limit_descriptor::Entry;
use ::weir::core::proto::{
    RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitServiceClient,
};
use prost_types::value::Kind;
use serde_json::Value;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Status};

pub use self::redis::RedisServer;
pub use self::weir::Weir;

/// The client that `build.rs` makes.
pub type Client = RateLimitServiceClient<Channel>;

/// Paths of the tests that run one at a time. `tests/run.sh` runs them in a process of their own,
/// so that none of them holds a thread while it waits for another one.
const ALONE: &str = include_str!("alone.txt");

/// The turn of a test that runs alone; it ends when this is dropped.
pub struct Turn {
    _guard: MutexGuard<'static, ()>,
}

/// Waits until no other test runs that starts many servers or loads the machine. Panics in a test
/// that `tests/it/alone.txt` does not list.
pub fn exclusive() -> Turn {
    static TURN: Mutex<()> = Mutex::new(());
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    let is_listed = |path: &str| !path.starts_with('#') && test.starts_with(path);
    assert!(
        ALONE.lines().any(is_listed),
        "{test} runs alone: add its path to tests/it/alone.txt"
    );
    Turn {
        // A test that failed leaves no state behind.
        _guard: TURN.lock().unwrap_or_else(PoisonError::into_inner),
    }
}

/// Limits of the domain `demo`; per year, so that no window ends while a test runs.
pub const DEMO: &[(&str, &str)] = &[(
    "demo.yaml",
    "
domain: demo
descriptors:
  - key: year
    rate_limit: { unit: year, requests_per_unit: 2, name: yearly }
",
)];

/// A descriptor with these entries.
pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |&(key, value): &(&str, &str)| Entry {
        key: key.into(),
        value: value.into(),
    };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..Default::default()
    }
}

/// A descriptor with these entries that asks for these hits; negative hits are given back.
pub fn descriptor_with_hits(entries: &[(&str, &str)], hits: i64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        hits_addend: Some(hits.unsigned_abs()),
        is_negative_hits: hits < 0,
        ..descriptor(entries)
    }
}

/// A request without `hits_addend`: each descriptor asks for one hit, or for its own `hits_addend`.
pub fn request(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors,
        hits_addend: 0,
    }
}

/// The answer to a request.
pub async fn ask(
    client: &mut Client,
    domain: &str,
    descriptors: Vec<RateLimitDescriptor>,
) -> RateLimitResponse {
    let answer = client.should_rate_limit(request(domain, descriptors)).await;
    answer.expect("an answer").into_inner()
}

/// Dynamic metadata as JSON.
pub fn json(fields: &prost_types::Struct) -> Value {
    Value::Object(
        fields
            .fields
            .iter()
            .map(|(name, value)| (name.clone(), json_value(value)))
            .collect(),
    )
}

fn json_value(value: &prost_types::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => (*number).into(),
        Some(Kind::StringValue(text)) => text.clone().into(),
        Some(Kind::BoolValue(flag)) => (*flag).into(),
        Some(Kind::StructValue(fields)) => json(fields),
        Some(Kind::ListValue(list)) => Value::Array(list.values.iter().map(json_value).collect()),
    }
}

/// Calls `ShouldRateLimit` with these bytes as its message, valid or not. Returns the bytes of the
/// answer.
pub async fn raw_call(weir: &Weir, message: &[u8]) -> Result<Vec<u8>, Status> {
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    raw_call_of(weir, path, message).await
}

/// [`raw_call`] of the method at this path.
pub async fn raw_call_of(
    weir: &Weir,
    path: &'static str,
    message: &[u8],
) -> Result<Vec<u8>, Status> {
    let mut client = tonic::client::Grpc::new(weir.channel().await);
    client.ready().await.expect("a new connection is ready");
    let path = http::uri::PathAndQuery::from_static(path);
    Ok(client
        .unary(Request::new(message.to_vec()), path, Raw)
        .await?
        .into_inner())
}

/// A codec that passes bytes unchanged in both directions.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(buffer, &item);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        use bytes::Buf;
        let mut item = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut item);
        Ok(Some(item))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}
