//! The one walk over the frames that arrive: how far they may be given to HTTP/2, and what is
//! rewritten in them before.
//!
//! A header block that is continued in CONTINUATION frames is unfinished until its last frame has
//! arrived. Blocks of one frame pass as they arrive; but as long as the authorities of a connection
//! are looked at (see `authority`), they are unfinished too when the end of a reading cuts them.
//!
//! Violations of the protocol pass: h2 answers them.
//!
//! Sources: RFC 9113, sections 4.3 (a header block is contiguous) and 6.10 (CONTINUATION).
//!
//! Follows the frames of one direction of a connection, through bytes that arrive in pieces of any
//! length.
//!
//! A walker knows where frames begin and end, of the blocks of headers that arrive and of the resets
//! that are sent. It judges no frame, and keeps nothing of it but its header.
//!
//! Source: RFC 9113, sections 4.1 (frames) and 6 (their types and flags).

use std::ops::Range;

use super::authority::Authorities;

/// The largest frame that a client may send: HTTP/2's default. Source: RFC 9113, section 6.5.2,
/// SETTINGS_MAX_FRAME_SIZE.
pub(crate) const MAX_FRAME_BYTES: u32 = 16 * 1_024;

/// The unfinished CONTINUATION frames of one block, at most. With one more than this, h2 closes the
/// connection: its bound is 20 at the header list size of `connection` and this frame size.
pub(crate) const MAX_CONTINUATIONS: u32 = 21;

/// The frames of a connection as they arrive.
#[derive(Debug, Default)]
pub(super) struct HeaderBlocks {
    frames: FrameWalker,
    unfinished: Option<Block>,
    /// Looks at the authorities of this connection. `None`: nothing is to be rewritten.
    authorities: Option<Box<Authorities>>,
    /// h2 closes the connection: nothing is held any more.
    is_violated: bool,
    /// The calls that the client has reset, until they are taken.
    pub(super) resets: Vec<u32>,
}

/// A block that has begun.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Its CONTINUATION frames, but the last one.
    continuations: u32,
    /// The frame that is arriving ends it.
    ends: bool,
}

impl HeaderBlocks {
    pub(super) fn new(authorities: Option<Authorities>) -> Self {
        Self {
            authorities: authorities.map(Box::new),
            ..Self::default()
        }
    }

    /// Follows `bytes[from..]`, which have arrived now, and rewrites the blocks that end there. A
    /// block that was unfinished before begins with `bytes`. Returns how many of them precede the
    /// block that is unfinished at their end.
    #[inline]
    pub(super) fn follow(&mut self, bytes: &mut [u8], from: usize) -> usize {
        let (mut start, mut at) = (0, from);
        while at < bytes.len() && !self.is_violated {
            let frame_start = at;
            let Some(piece) = self.frames.next(bytes, &mut at) else {
                break;
            };
            if piece.begins {
                if self.unfinished.is_none() {
                    start = frame_start;
                }
                self.begin_frame();
            }
            if piece.ends && self.unfinished.is_some() {
                self.end_frame(&mut bytes[start..at]);
            } else if piece.ends && self.frames.kind() == RST_STREAM {
                // Not before: h2 may answer the call while a part of the frame is missing.
                self.resets.push(self.frames.stream());
            }
        }
        if self.unfinished.is_some() {
            start
        } else {
            bytes.len()
        }
    }

    fn begin_frame(&mut self) {
        let ends = self.frames.has_flag(END_HEADERS);
        self.is_violated = self.frames.length() > MAX_FRAME_BYTES as usize;
        self.unfinished = match (self.unfinished, self.frames.kind()) {
            _ if self.is_violated => None,
            (None, HEADERS) => (!ends || self.authorities.is_some()).then_some(Block {
                continuations: 0,
                ends,
            }),
            (None, _) => None,
            (Some(Block { continuations, .. }), CONTINUATION)
                if ends || continuations < MAX_CONTINUATIONS =>
            {
                Some(Block {
                    continuations: continuations + u32::from(!ends),
                    ends,
                })
            }
            (Some(_), _) => {
                self.is_violated = true;
                None
            }
        };
    }

    /// A frame of a block has arrived, the last one of `block`.
    fn end_frame(&mut self, block: &mut [u8]) {
        if let Some(authorities) = &mut self.authorities
            && !authorities.follow(&self.frames, block)
        {
            self.authorities = None;
        }
        self.unfinished = self.unfinished.filter(|unfinished| !unfinished.ends);
    }
}

/// The length of a frame header.
pub(super) const FRAME_HEADER_BYTES: usize = 9;

pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const PRIORITY: u8 = 0x20;

/// Where a direction of a connection is: between two frames, in the header of one, or in its
/// payload.
#[derive(Debug, Default)]
pub(super) struct FrameWalker {
    /// The header as far as it has arrived, and the bytes of the payload that are still to come.
    header: [u8; FRAME_HEADER_BYTES],
    header_bytes: usize,
    payload_left: usize,
}

/// A piece of one frame.
#[derive(Debug)]
pub(super) struct Piece {
    /// The frame's header is complete with this piece.
    pub begins: bool,
    /// The part of the payload, among the bytes that were followed.
    pub payload: Range<usize>,
    /// The payload is complete with this piece.
    pub ends: bool,
}

impl FrameWalker {
    /// Follows `bytes` from `at` on to the end of a frame or of the bytes, and moves `at` there.
    /// `None`: they end within a header.
    #[inline]
    pub(super) fn next(&mut self, bytes: &[u8], at: &mut usize) -> Option<Piece> {
        let begins = self.payload_left == 0;
        if begins {
            let arrived = (FRAME_HEADER_BYTES - self.header_bytes).min(bytes.len() - *at);
            self.header[self.header_bytes..][..arrived].copy_from_slice(&bytes[*at..][..arrived]);
            self.header_bytes += arrived;
            *at += arrived;
            if self.header_bytes < FRAME_HEADER_BYTES {
                return None;
            }
            self.header_bytes = 0;
            self.payload_left = self.length();
        }
        let arrived = self.payload_left.min(bytes.len() - *at);
        self.payload_left -= arrived;
        let payload = *at..*at + arrived;
        *at = payload.end;
        Some(Piece {
            begins,
            payload,
            ends: self.payload_left == 0,
        })
    }

    /// The length of the payload of the frame that began last.
    pub(super) fn length(&self) -> usize {
        let [a, b, c, ..] = self.header;
        u32::from_be_bytes([0, a, b, c]) as usize
    }

    /// The type of the frame that began last.
    pub(super) fn kind(&self) -> u8 {
        self.header[3]
    }

    /// The stream of the frame that began last.
    pub(super) fn stream(&self) -> u32 {
        let [.., a, b, c, d] = self.header;
        u32::from_be_bytes([a, b, c, d]) & (u32::MAX >> 1)
    }

    pub(super) fn has_flag(&self, flag: u8) -> bool {
        self.header[4] & flag != 0
    }
}

#[cfg(test)]
mod frames_tests {
    use super::*;

    /// Kinds and lengths of the frames that end, and the pieces of their payloads put together.
    fn frames(chunks: &[&[u8]]) -> Vec<(u8, usize, Vec<u8>)> {
        let (mut walker, mut ended, mut payload) = (FrameWalker::default(), Vec::new(), Vec::new());
        for chunk in chunks {
            let mut at = 0;
            while at < chunk.len() {
                let Some(piece) = walker.next(chunk, &mut at) else {
                    break;
                };
                if piece.begins {
                    payload.clear();
                }
                payload.extend_from_slice(&chunk[piece.payload]);
                if piece.ends {
                    ended.push((walker.kind(), walker.length(), payload.clone()));
                }
            }
        }
        ended
    }

    #[test]
    fn frames_are_the_same_however_they_are_cut() {
        let sent = [
            &b"\0\0\x03\x01\x04\x80\0\0\x07abc"[..],
            b"\0\0\0\x04\x01\0\0\0\0",
            b"\0\0\x01\0\x01\0\0\x01\x02x",
        ]
        .concat();
        let expected = vec![
            (1, 3, b"abc".to_vec()),
            (4, 0, Vec::new()),
            (0, 1, b"x".to_vec()),
        ];
        for length in 1..=sent.len() {
            assert_eq!(
                frames(&sent.chunks(length).collect::<Vec<_>>()),
                expected,
                "in chunks of {length}"
            );
        }
    }
}
