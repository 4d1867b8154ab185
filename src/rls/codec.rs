//! How requests and answers cross tonic: the request as the bytes that were received, the answer as a prost message.
//!
//! Decoding is left to [`super::decode`], which borrows from the bytes; a codec could only fail with INTERNAL and would have to own
//! everything.

use bytes::{Buf, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::proto::RateLimitResponse;

/// One message as it came.
#[derive(Clone, Debug, Default)]
pub struct Frame(pub Bytes);

/// Frames in, answers out.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameCodec;

impl Codec for FrameCodec {
    type Encode = RateLimitResponse;
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
    type Item = RateLimitResponse;
    type Error = Status;

    fn encode(&mut self, answer: RateLimitResponse, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        answer.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for FrameCodec {
    type Item = Frame;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Frame>, Status> {
        Ok(Some(Frame(buffer.copy_to_bytes(buffer.remaining()))))
    }
}
