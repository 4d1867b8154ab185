//! Descriptors as arguments: `key=value ...`, with a `,` between two descriptors.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::UsageError;
use crate::core::ask::written::read_exact;
use crate::core::proto::RateLimitDescriptor;
use crate::core::proto::rate_limit_descriptor::Entry;

/// The descriptors of these arguments as commands print them, and as overrides are written: `\*` is
/// a star, as `*` is.
///
/// # Errors
/// As [`descriptors`].
pub(super) fn written_descriptors(
    arguments: &[OsString],
) -> Result<Vec<RateLimitDescriptor>, UsageError> {
    let mut descriptors = descriptors(arguments)?;
    for Entry { key, value } in descriptors
        .iter_mut()
        .flat_map(|descriptor| &mut descriptor.entries)
    {
        (*key, *value) = (read_exact(key), read_exact(value));
    }
    Ok(descriptors)
}

/// The descriptors of these arguments, whose values are as they are, and may be any bytes.
///
/// # Errors
/// An argument is no entry, or a descriptor has none.
pub(super) fn descriptors(arguments: &[OsString]) -> Result<Vec<RateLimitDescriptor>, UsageError> {
    let mut descriptors = vec![RateLimitDescriptor::default()];
    for text in arguments {
        let bytes = text.clone().into_vec();
        if bytes == b"," {
            descriptors.push(RateLimitDescriptor::default());
            continue;
        }
        let equals = bytes.iter().position(|&byte| byte == b'=');
        let equals = equals.ok_or_else(|| {
            UsageError(format!(
                "`{}` is not an entry; write key=value",
                text.to_string_lossy()
            ))
        })?;
        if let Some(descriptor) = descriptors.last_mut() {
            descriptor.entries.push(Entry {
                key: bytes[..equals].to_vec(),
                value: bytes[equals + 1..].to_vec(),
            });
        }
    }
    if descriptors
        .iter()
        .any(|descriptor| descriptor.entries.is_empty())
    {
        return Err(UsageError(
            "a descriptor has no entries; write key=value on both sides of `,`".to_owned(),
        ));
    }
    Ok(descriptors)
}
