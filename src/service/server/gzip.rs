//! Messages that their client has compressed with gzip: decompressed before anything else reads
//! them, within a bound and a memory budget.
//!
//! Envoy does not compress its calls, but other clients of envoyproxy/ratelimit may. tonic could
//! decompress, but has no bound on what comes out: a thousandth of 4 GiB is a message of usual
//! size. The end of a gzip member says how long its content is. That is refused or charged before
//! anything is decompressed, and no more is.
//!
//! Sources: gRPC, "Compression"; gRPC over HTTP/2, Message-Encoding; RFC 1952, section 2.3.1
//! (ISIZE).

use std::io::Read;

use flate2::read::GzDecoder;
use http::header::HeaderMap;
use http::{HeaderName, HeaderValue};
use tokio::task::yield_now;
use tonic::Status;
use tonic::metadata::MetadataValue;

use super::body::{Budget, Message, SMALL_BYTES};
use crate::service::rls::respond::PREFIX_BYTES;

pub(super) const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// The encodings that Weir reads.
const ACCEPTED: &str = "identity,gzip";

/// Decompressed at a time; then other calls have their turn. It takes some tens of microseconds.
const STEP_BYTES: usize = 16 << 10;

/// The smallest gzip member: head, an empty block, and the sum and length of the content.
const MIN_MEMBER_BYTES: usize = 18;

/// How the client has encoded the messages of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
    Unknown,
}

impl Encoding {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        match headers.get(GRPC_ENCODING).map(HeaderValue::as_bytes) {
            None | Some(b"identity") => Self::Identity,
            Some(b"gzip") => Self::Gzip,
            Some(_) => Self::Unknown,
        }
    }
}

/// Replaces a compressed message by what it says, of at most `max_bytes`. What is not compressed
/// stays as it is.
///
/// # Errors
/// `UNIMPLEMENTED` for another encoding than gzip, with those that are accepted; `OUT_OF_RANGE`
/// when the message is too long; `RESOURCE_EXHAUSTED` when the memory of large messages is used up;
/// `INTERNAL`, as gRPC prescribes, for what is no gzip.
pub(super) async fn decompress(
    encoding: Encoding,
    message: &mut Message,
    budget: &Budget,
    max_bytes: usize,
) -> Result<(), Status> {
    match encoding {
        Encoding::Identity => return Ok(()),
        Encoding::Gzip => {}
        Encoding::Unknown => {
            let mut refusal =
                Status::unimplemented("the encoding of the message is unknown; use gzip or none");
            refusal
                .metadata_mut()
                .insert("grpc-accept-encoding", MetadataValue::from_static(ACCEPTED));
            return Err(refusal);
        }
    }
    let bytes = message.bytes();
    let Some((&[1, a, b, c, d], rest)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
        return Ok(());
    };
    let member = rest
        .get(..u32::from_be_bytes([a, b, c, d]) as usize)
        .ok_or_else(|| Status::internal("the message is incomplete"))?;
    let length = content_bytes(member).ok_or_else(|| malformed("too short"))?;
    if length > max_bytes {
        return Err(Status::out_of_range(format!(
            "a message of more than {max_bytes} bytes when it is decompressed"
        )));
    }
    let memory = if length > SMALL_BYTES {
        Some(budget.large_now(PREFIX_BYTES + length)?)
    } else {
        None
    };
    let mut decompressed = Vec::with_capacity(PREFIX_BYTES + length);
    decompressed.push(0);
    decompressed.extend((length as u32).to_be_bytes());
    let mut decoder = GzDecoder::new(member);
    loop {
        let before = decompressed.len();
        let step = STEP_BYTES.min(PREFIX_BYTES + length - before);
        // One byte more than there should be shows that the length is not true.
        decoder
            .by_ref()
            .take(step.max(1) as u64)
            .read_to_end(&mut decompressed)
            .map_err(malformed)?;
        if decompressed.len() == before {
            break;
        }
        if decompressed.len() > PREFIX_BYTES + length {
            return Err(malformed("it is longer than it says"));
        }
        yield_now().await;
    }
    (message.first, message.memory) = (decompressed.into(), memory);
    Ok(())
}

/// The length of the content of a gzip member, modulo 4 GiB.
fn content_bytes(member: &[u8]) -> Option<usize> {
    let length = member
        .last_chunk()
        .filter(|_| member.len() >= MIN_MEMBER_BYTES)?;
    Some(u32::from_le_bytes(*length) as usize)
}

fn malformed(why: impl std::fmt::Display) -> Status {
    Status::internal(format!("the message is no gzip: {why}"))
}
