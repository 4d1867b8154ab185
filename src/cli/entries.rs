//! Descriptors as arguments: `key=value ...`, with a `,` between two descriptors.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use super::{UsageError, print};
use crate::core::proto::RateLimitDescriptor;
use crate::core::proto::rate_limit_descriptor::Entry;
pub(super) use crate::core::request::notation::read_exact;
use crate::limits::plan::key::EntryText;

/// An entry, as lists show it.
pub(super) fn text(entry: &Entry) -> EntryText {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    EntryText {
        key: text(&entry.key),
        value: text(&entry.value),
    }
}

/// Prints a hint if a value contains what looks like the next entry, as in `path=/login,user=42`.
fn hint_at_commas(argument: &[u8]) {
    let text = String::from_utf8_lossy(argument);
    let is_entry = |part: &&str| {
        let key = part.split_once('=').map(|(key, _)| key);
        key.is_some_and(|key| !key.contains('/'))
    };
    if let Some(next) = text.split(',').skip(1).find(is_entry) {
        let (text, next) = (text.escape_debug(), next.escape_debug());
        print::error(format_args!(
            "weir: hint: `{text}` is one entry; if `{next}` is the next one, write a space and no \
             comma"
        ));
    }
}

/// The descriptors of these arguments. `read` reads keys and values, which may be any bytes:
/// [`read_exact`] as commands print them and as overrides are written, where `\*` is a star, as `*`
/// is.
///
/// # Errors
/// An argument is no entry, or a descriptor has none.
pub(super) fn descriptors(
    arguments: &[OsString],
    read: fn(&[u8]) -> Vec<u8>,
) -> Result<Vec<RateLimitDescriptor>, UsageError> {
    let entry = |text: &OsString| {
        let bytes = text.as_bytes();
        let Some(equals) = bytes.iter().position(|&byte| byte == b'=') else {
            let what = format!("`{}` is not an entry; write key=value", text.display());
            return Err(UsageError(what));
        };
        hint_at_commas(bytes);
        let (key, value) = (read(&bytes[..equals]), read(&bytes[equals + 1..]));
        Ok(Entry { key, value })
    };
    let descriptor = |arguments: &[OsString]| {
        if arguments.is_empty() {
            let what = "a descriptor has no entries; write key=value on both sides of `,`";
            return Err(UsageError(what.to_owned()));
        }
        Ok(RateLimitDescriptor {
            entries: arguments.iter().map(entry).collect::<Result<_, _>>()?,
            ..RateLimitDescriptor::default()
        })
    };
    let all = arguments.split(|text| text == ",");
    all.map(descriptor).collect()
}
