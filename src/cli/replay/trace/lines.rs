//! Lines of a file or of a pipe, as they are or in gzip, read as a stream: one line is in memory.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

/// The longest line in bytes. A request of Envoy has at most 4 MiB, and usual ones a few hundred
/// bytes.
pub(super) const MAX_LINE_BYTES: usize = 1 << 20;

/// What a stream reads at once.
const BUFFER_BYTES: usize = 64 << 10;

/// The first bytes of a file in gzip. Source: RFC 1952, section 2.3.1.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Lines of a trace.
pub(super) struct Lines {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    /// The number of the last line that was read, from 1 on.
    pub(super) number: u64,
}

impl Lines {
    /// The lines of this stream, which may be compressed.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn new(stream: impl Read + 'static) -> io::Result<Self> {
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, stream);
        let is_gzip = reader.fill_buf()?.starts_with(&GZIP);
        Ok(Self {
            reader: match is_gzip {
                true => Box::new(BufReader::with_capacity(
                    BUFFER_BYTES,
                    MultiGzDecoder::new(reader),
                )),
                false => Box::new(reader),
            },
            line: Vec::new(),
            number: 0,
        })
    }

    /// The next line, without its end; `None` after the last one. The inner error is that of a line
    /// which is too long, behind which the next one follows.
    ///
    /// # Errors
    /// The stream cannot be read.
    pub(super) fn next(&mut self) -> io::Result<Option<Result<&[u8], String>>> {
        self.line.clear();
        let most = MAX_LINE_BYTES as u64 + 1;
        let mut part = self.reader.by_ref().take(most);
        if part.read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        if self.line.len() > MAX_LINE_BYTES && self.line.last() != Some(&b'\n') {
            self.reader.skip_until(b'\n')?;
            return Ok(Some(Err("it is longer than 1 MiB".to_owned())));
        }
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        Ok(Some(Ok(line.strip_suffix(b"\r").unwrap_or(line))))
    }
}
