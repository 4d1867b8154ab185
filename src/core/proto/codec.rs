//! The codec of xDS: prost's, for messages of a bounded number of elements. An empty element is two
//! bytes of a message, and 32 of a list.

use bytes::Buf;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use prost::{DecodeError, Message};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Maximum number of fields in a message, with each element of a list: as many resources as are
/// allowed, and as many removed ones.
pub(crate) const MAX_ELEMENTS: usize = 200_000;

/// The codec of messages `T` that are sent, and `U` that are received.
#[derive(Debug)]
pub struct BoundedCodec<T, U>(ProstCodec<T, U>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(ProstCodec::default())
    }
}

impl<T: Message + Send + 'static, U: Message + Default + Send + 'static> Codec
    for BoundedCodec<T, U>
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        self.0.encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(self.0.decoder())
    }
}

/// The decoder of [`BoundedCodec`].
#[derive(Debug)]
pub struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // tonic has the message in one piece.
        if has_too_many_elements(buffer.chunk()).unwrap_or(false) {
            return Err(Status::resource_exhausted(format!(
                "its response has more than {MAX_ELEMENTS} elements"
            )));
        }
        self.0.decode(buffer)
    }
}

fn has_too_many_elements(mut message: &[u8]) -> Result<bool, DecodeError> {
    for _ in 0..MAX_ELEMENTS {
        if message.is_empty() {
            return Ok(false);
        }
        let (number, wire_type) = decode_key(&mut message)?;
        skip_field(wire_type, number, &mut message, DecodeContext::default())?;
    }
    Ok(!message.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_counted_before_they_are_decoded() {
        let many = [0x12, 0].repeat(MAX_ELEMENTS);
        assert_eq!(has_too_many_elements(&many), Ok(false));
        assert_eq!(
            has_too_many_elements(&[&many[..], &[0x12, 0]].concat()),
            Ok(true)
        );
        assert!(
            has_too_many_elements(&[0x12, 1]).is_err(),
            "the decoder explains it"
        );
    }
}
