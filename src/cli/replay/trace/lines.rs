//! Lines of a file or of a pipe, as they are or in gzip, read as a stream: one line is in memory.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;

/// The longest line in bytes. A request of Envoy has at most 4 MiB, and usual ones a few hundred
/// bytes.
pub(super) const MAX_LINE_BYTES: usize = 1 << 20;

/// Bytes of one read.
const BUFFER_BYTES: usize = 64 << 10;

/// The first bytes of a file in gzip. Source: RFC 1952, section 2.3.1.
const GZIP: [u8; 2] = [0x1f, 0x8b];

fn buffered<R: Read>(stream: R) -> BufReader<R> {
    BufReader::with_capacity(BUFFER_BYTES, stream)
}

/// Lines of a trace.
pub(super) struct LineReader {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    /// The number of the last line that was read, from 1 on.
    pub(super) number: u64,
}

impl LineReader {
    /// The lines of this stream, which may be compressed.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn new(mut stream: impl Read + 'static) -> io::Result<Self> {
        // A pipe may give one byte at a time.
        let mut head = Vec::new();
        let most = GZIP.len() as u64;
        stream.by_ref().take(most).read_to_end(&mut head)?;
        let is_gzip = head == GZIP;
        let reader = buffered(Cursor::new(head).chain(stream));
        Ok(Self {
            reader: match is_gzip {
                true => Box::new(buffered(MultiGzDecoder::new(reader))),
                false => Box::new(reader),
            },
            line: Vec::new(),
            number: 0,
        })
    }

    /// The next line, without its end; `None` after the last one. The inner error is
    /// about a line that is too long; the next one follows.
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// A pipe that gives a byte at a time.
    struct Slow(Cursor<Vec<u8>>);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = buffer.len().min(1);
            self.0.read(&mut buffer[..most])
        }
    }

    fn lines(bytes: Vec<u8>) -> Vec<String> {
        let mut lines = LineReader::new(Slow(Cursor::new(bytes))).expect("a stream");
        let mut all = Vec::new();
        while let Some(line) = lines.next().expect("a stream") {
            let line = line.map(|line| String::from_utf8_lossy(line).into_owned());
            all.push(line.unwrap_or_else(|error| error));
        }
        all
    }

    #[test]
    fn pipes_are_read_as_files_are() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(b"one\r\ntwo\n\nlast").expect("compressed");
        let gzip = gzip.finish().expect("compressed");
        let expected = ["one", "two", "", "last"];
        assert_eq!(lines(gzip), expected);
        assert_eq!(lines(b"one\r\ntwo\n\nlast".to_vec()), expected);
        assert_eq!(lines(Vec::new()), [""; 0]);
        assert_eq!(lines(b"x".to_vec()), ["x"]);
    }
}
