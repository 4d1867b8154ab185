//! Reads of files with a bound: a wrong path, such as a log or a device, must not fill the memory.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The content of a file; `None` if it has more than `most` bytes.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let file = File::open(path)?;
    // One that grows would take twice as much.
    let mut bytes = Vec::with_capacity(file.metadata()?.len().min(most) as usize + 1);
    file.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// [`read`], of text.
///
/// # Errors
/// The file cannot be read, or is not UTF-8. The error does not contain its bytes, which may be
/// secret.
pub fn read_text(path: &Path, most: u64) -> io::Result<Option<String>> {
    let text = read(path, most)?.map(String::from_utf8).transpose();
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not valid UTF-8"))
}
