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

use super::authority::Authorities;
use super::frames::{CONTINUATION, END_HEADERS, FrameWalker, HEADERS, RST_STREAM};

/// The largest frame that a client may send: HTTP/2's default. Source: RFC 9113, section 6.5.2,
/// SETTINGS_MAX_FRAME_SIZE.
pub(crate) const MAX_FRAME_BYTES: u32 = 16 * 1_024;

/// The unfinished CONTINUATION frames of one block, at most. With one more than this, h2 closes the
/// connection: its bound is 20 at the header list size of `connection` and this frame size.
pub(crate) const MAX_CONTINUATIONS: u32 = 21;

/// The frames of a connection as they arrive.
#[derive(Debug)]
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
            frames: FrameWalker::default(),
            unfinished: None,
            authorities: authorities.map(Box::new),
            is_violated: false,
            resets: Vec::new(),
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
