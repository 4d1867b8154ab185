//! Reads of files with a bound: a wrong path, such as a log or a device, must not fill the memory,
//! and a pipe, which may never have a writer, must not stop the process.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// The content of a regular file; `None` if it has more than `most` bytes.
///
/// # Errors
/// The file cannot be read, or is a folder, a pipe, a socket or a device.
pub fn read(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    // Before it is opened, because that may act on a device.
    regular(&fs::metadata(path)?)?;
    // A pipe in its place is found without waiting for a writer.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    regular(&file.metadata()?)?;
    content(file, most)
}

/// The content of a file or pipe that a person gives to a command; `None` if it has more than
/// `most` bytes. Waits for the writer of a pipe.
///
/// # Errors
/// It cannot be read.
pub fn read_input(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    content(File::open(path)?, most)
}

/// [`read`], of text.
///
/// # Errors
/// As [`read`] and [`text`].
pub fn read_text(path: &Path, most: u64) -> io::Result<Option<String>> {
    read(path, most)?.map(text).transpose()
}

/// The text in the content of a file.
///
/// # Errors
/// It is not UTF-8. The error does not contain its bytes, which may be secret.
pub fn text(content: Vec<u8>) -> io::Result<String> {
    let text = String::from_utf8(content);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not valid UTF-8"))
}

fn content(file: File, most: u64) -> io::Result<Option<Vec<u8>>> {
    // One that grows would take twice as much.
    let mut bytes = Vec::with_capacity(file.metadata()?.len().min(most) as usize + 1);
    file.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// # Errors
/// It is not a regular file.
pub fn regular(file: &Metadata) -> io::Result<()> {
    let kind = file.file_type();
    let kind = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    let what = format!("it is {kind}; replace it with a regular file, or set another path");
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}
