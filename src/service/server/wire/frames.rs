//! Follows the frames of one direction of a connection, through bytes that arrive in pieces of any
//! length.
//!
//! What stands under HTTP/2 needs to know where frames begin and end: the blocks of headers that
//! arrive (`blocks`, `authority`), and the resets that are sent (`resets`). Nothing here judges a
//! frame, and nothing is kept of it but its header.
//!
//! Source: RFC 9113, sections 4.1 (frames) and 6 (their types and flags).

use std::ops::Range;

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
mod tests {
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
