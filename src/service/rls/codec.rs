//! A codec for tonic's generated service that passes messages as their encoded bytes.
//!
//! [`super::decode`] decodes them later and borrows from them. A tonic codec must own what it
//! decodes, and its errors become INTERNAL. Only unusual calls come this way: `server` reads the
//! usual ones itself.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Response, Status};

use super::ShouldRateLimit;
use super::timeout::grpc_timeout;
use crate::observe::traces::TraceSpan;

/// The server's trait as `build.rs` declares it, with this codec.
#[allow(missing_docs, clippy::pedantic, clippy::all, reason = "generated")]
mod generated {
    include!(concat!(
        env!("OUT_DIR"),
        "/server/envoy.service.ratelimit.v3.RateLimitService.rs"
    ));
}

use generated::rate_limit_service_server::RateLimitService;
pub use generated::rate_limit_service_server::RateLimitServiceServer;

/// One encoded message.
#[derive(Clone, Debug, Default)]
pub struct Frame(pub Bytes);

/// The codec of [`Frame`]: copies bytes in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameCodec;

impl Codec for FrameCodec {
    type Encode = Frame;
    type Decode = Frame;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for FrameCodec {
    type Item = Frame;
    type Error = Status;

    fn encode(&mut self, answer: Frame, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(answer.0);
        Ok(())
    }
}

impl Decoder for FrameCodec {
    type Item = Frame;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Frame>, Status> {
        Ok(Some(Frame(buffer.copy_to_bytes(buffer.remaining()))))
    }
}

/// Adapts a [`ShouldRateLimit`] to the generated service.
#[derive(Debug)]
pub struct Generated<T>(pub Arc<T>);

#[tonic::async_trait]
impl<T: ShouldRateLimit> RateLimitService for Generated<T> {
    async fn should_rate_limit(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let timeout = grpc_timeout(request.metadata().as_ref());
        // The listener puts it there before it drops the headers that the generated service does
        // not read.
        let span = request
            .extensions()
            .get::<TraceSpan>()
            .cloned()
            .unwrap_or_default();
        let answer = self
            .0
            .should_rate_limit(&request.get_ref().0, timeout, span)
            .await?;
        Ok(Response::new(Frame(answer.message())))
    }
}
