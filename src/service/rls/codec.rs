//! `RateLimitService` as tonic generates it from Envoy's proto, with messages that stay encoded:
//! [`decode`](super::decode) reads a request without copying it and names the field of a mistake,
//! where prost's decoder answers INTERNAL, and text that is not UTF-8 is no mistake.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::respond::Framed;

#[allow(clippy::pedantic, clippy::all, reason = "generated")]
mod generated {
    include!(concat!(
        env!("OUT_DIR"),
        "/service/envoy.service.ratelimit.v3.rs"
    ));
}

pub use generated::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};

/// An encoded `RateLimitRequest`.
#[derive(Clone, Debug, Default)]
pub struct EncodedRequest {
    pub message: Bytes,
    /// Time until the caller's deadline. `None`: the `grpc-timeout` of the metadata counts.
    pub time_left: Option<Duration>,
}

/// The codec of encoded messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncodedCodec;

impl Codec for EncodedCodec {
    type Encode = Framed;
    type Decode = EncodedRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for EncodedCodec {
    type Item = Framed;
    type Error = Status;

    fn encode(&mut self, answer: Framed, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(answer.message());
        Ok(())
    }
}

impl Decoder for EncodedCodec {
    type Item = EncodedRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<EncodedRequest>, Status> {
        let message = buffer.copy_to_bytes(buffer.remaining());
        Ok(Some(EncodedRequest {
            message,
            time_left: None,
        }))
    }
}
