//! Finds out why a server closes a connection: the GOAWAY frame (RFC 9113, section 6.8) among the
//! bytes that arrive.
//!
//! A Go server that finds PINGs too many sends GOAWAY for a stream that is not there yet and closes
//! the connection. h2 then gives the open stream no reason but a broken pipe.
//!
//! Go's gRPC servers (Envoy Gateway has their defaults) close a connection with PINGs more often
//! than every five minutes. Weir sends one every 30 s until a server does so, and from then on one
//! in 310 s. TCP keepalive, which no server limits, finds a dead peer within 40 s in any case.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const HEADER_BYTES: usize = 9;
const GOAWAY: u8 = 7;

/// ENHANCE_YOUR_CALM. Source: RFC 9113, section 7; for PINGs gRPC proposal A8.
const ENHANCE_YOUR_CALM: u32 = 0xb;

/// The beginning of a GOAWAY's payload: the last stream and the error code.
const GOAWAY_BYTES: usize = 8;

/// Whether the server asked for fewer PINGs; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct FewerPings(Arc<AtomicBool>);

impl FewerPings {
    pub(super) fn are_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reads the frames that a server sends.
#[derive(Debug, Default)]
struct Frames {
    /// The header of the current frame, and what of a GOAWAY follows it.
    begin: [u8; HEADER_BYTES + GOAWAY_BYTES],
    len: usize,
    /// Bytes of the current frame that do not matter.
    skip: usize,
}

impl Frames {
    /// Takes the next bytes. Returns whether they complete a GOAWAY that asks for calm.
    fn read(&mut self, mut bytes: &[u8]) -> bool {
        let mut is_found = false;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let Some((&byte, rest)) = bytes.split_first() else {
                return is_found;
            };
            bytes = rest;
            self.begin[self.len] = byte;
            self.len += 1;
            if self.len == HEADER_BYTES {
                let payload =
                    u32::from_be_bytes([0, self.begin[0], self.begin[1], self.begin[2]]) as usize;
                if self.begin[3] != GOAWAY || payload < GOAWAY_BYTES {
                    (self.len, self.skip) = (0, payload);
                }
            } else if self.len == HEADER_BYTES + GOAWAY_BYTES {
                let [.., a, b, c, d] = self.begin;
                is_found |= u32::from_be_bytes([a, b, c, d]) == ENHANCE_YOUR_CALM;
                let payload =
                    u32::from_be_bytes([0, self.begin[0], self.begin[1], self.begin[2]]) as usize;
                (self.len, self.skip) = (0, payload - GOAWAY_BYTES);
            }
        }
        is_found
    }
}

/// A byte stream whose frames are read on the way.
pub(super) struct Watched<T> {
    io: T,
    frames: Frames,
    fewer_pings: FewerPings,
}

impl<T> Watched<T> {
    pub(super) fn new(io: T, fewer_pings: FewerPings) -> Self {
        Self {
            io,
            frames: Frames::default(),
            fewer_pings,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        if self.frames.read(&buffer.filled()[before..]) {
            self.fewer_pings.0.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 0], payload].concat()
    }

    #[test]
    fn a_goaway_is_found_among_other_frames_however_they_are_cut() {
        let settings = frame(4, &[0; 12]);
        let data = frame(0, &[7; 300]);
        let goaway = |code: u8| {
            frame(
                GOAWAY,
                &[
                    &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, code],
                    &b"too_many_pings"[..],
                ]
                .concat(),
            )
        };
        for (code, is_calm) in [(ENHANCE_YOUR_CALM as u8, true), (0, false)] {
            let bytes = [
                &settings[..],
                &data,
                &frame(6, &[0; 8]),
                &goaway(code),
                &data,
            ]
            .concat();
            for piece in [1, 2, 7, 9, 100, bytes.len()] {
                let mut frames = Frames::default();
                let found = bytes
                    .chunks(piece)
                    .map(|piece| frames.read(piece))
                    .filter(|found| *found)
                    .count();
                assert_eq!(found, usize::from(is_calm), "{code} in pieces of {piece}");
                assert!(
                    frames.read(&goaway(ENHANCE_YOUR_CALM as u8)),
                    "the reader is at the beginning of a frame again"
                );
            }
        }
        assert!(
            !Frames::default().read(&frame(GOAWAY, &[0; 3])),
            "too short to be valid"
        );
    }
}
