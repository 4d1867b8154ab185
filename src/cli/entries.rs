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
        part.split_once('=')
            .is_some_and(|(key, _)| !key.contains('/'))
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
    let all = arguments.split(|text| text == ",");
    all.map(|arguments| descriptor(arguments, read)).collect()
}

fn descriptor(
    arguments: &[OsString],
    read: fn(&[u8]) -> Vec<u8>,
) -> Result<RateLimitDescriptor, UsageError> {
    let mut descriptor = RateLimitDescriptor::default();
    for text in arguments {
        let bytes = text.as_bytes();
        let Some(equals) = bytes.iter().position(|&byte| byte == b'=') else {
            let text = text.to_string_lossy();
            return Err(UsageError(format!(
                "`{text}` is not an entry; write key=value"
            )));
        };
        hint_at_commas(bytes);
        descriptor.entries.push(Entry {
            key: read(&bytes[..equals]),
            value: read(&bytes[equals + 1..]),
        });
    }
    if descriptor.entries.is_empty() {
        let what = "a descriptor has no entries; write key=value on both sides of `,`";
        return Err(UsageError(what.to_owned()));
    }
    Ok(descriptor)
}
