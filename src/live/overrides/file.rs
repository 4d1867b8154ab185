//! Overrides in a file, for a process with the memory store: `{"overrides": [...]}`, for people
//! too. It is watched, and replaced as a whole. Those that have ended are in a list of their own,
//! `ended`, which versions that do not know it leave out.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::versioned::{Change, StoredOverride, Version, Versioned, keep_ended, read_record};
use crate::limits::overrides::{MAX_RECORD_BYTES, Override, Record};
use crate::live::replaced::replace;
use crate::net::bounded;

/// The largest file in bytes: 10,000 usual overrides have three megabytes.
pub(crate) const MAX_BYTES: u64 = 32 << 20;

/// The longest text of one override, with the spaces between its words.
const MAX_TEXT_BYTES: usize = 4 * MAX_RECORD_BYTES;

/// See [`OverrideStore::load`](super::OverrideStore).
pub(super) async fn load(path: &Path, seen: &Version) -> Result<Option<Versioned>, String> {
    let (path, seen) = (path.to_owned(), seen.clone());
    let work = move || {
        let version = version(&path)?;
        let is_new = version != seen;
        is_new.then(|| read(&path, version)).transpose()
    };
    blocking(work).await
}

/// See [`OverrideStore::apply`](super::OverrideStore). Unreadable records stay as they are.
pub(super) async fn apply(path: &Path, change: Change) -> Result<(), String> {
    let path = path.to_owned();
    let work = move || {
        let text = text(&path)?;
        let mut file = document(&path, &text)?;
        file.overrides.retain(|text| {
            let read = read_record(None, text.get(), MAX_TEXT_BYTES);
            !read.is_ok_and(|one| change.replaces(&one.id))
        });
        let added = change.set.as_ref().map(indented).transpose();
        let added = added.map_err(|error| error.to_string())?;
        file.overrides.extend(added.as_deref());
        let ended = change.ended.into_iter().map(|(record, _)| record);
        keep_ended(&mut file.ended, ended);
        let mut new = Vec::with_capacity(text.len() + 2 * MAX_RECORD_BYTES);
        serde_json::to_writer_pretty(&mut new, &file).map_err(|error| error.to_string())?;
        if new.len() as u64 >= MAX_BYTES {
            return Err(unreadable(&path, &too_large()));
        }
        replace(&path, &[&new, b"\n"]).map_err(|error| {
            let path = path.display();
            format!("OVERRIDES_FILE: {path} cannot be written: {error}")
        })
    };
    blocking(work).await
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(error.to_string()))
}

/// The file. The texts of overrides stay as they are; each of them is read alone, because all as
/// values take ten times as much.
#[derive(Serialize, Deserialize)]
struct Document<'t> {
    #[serde(borrow)]
    overrides: Vec<&'t RawValue>,
    #[serde(default, deserialize_with = "readable")]
    ended: Vec<Record>,
}

/// The readable elements of a list.
fn readable<'t, D: Deserializer<'t>>(value: D) -> Result<Vec<Record>, D::Error> {
    let list = <&RawValue>::deserialize(value)?.get();
    let list: Vec<&RawValue> = serde_json::from_str(list).unwrap_or_default();
    let records = list.iter().map(|text| serde_json::from_str(text.get()));
    Ok(records.filter_map(Result::ok).collect())
}

/// The text of an override in the list of a file for people.
fn indented(one: &Override) -> serde_json::Result<Box<RawValue>> {
    let text = serde_json::to_string_pretty(&Record::from(one))?;
    RawValue::from_string(text.replace('\n', "\n    "))
}

/// Everything in the file, which has this version.
fn read(path: &Path, version: Version) -> Result<Versioned, String> {
    let text = text(path)?;
    let file = document(path, &text)?;
    let mut all = Versioned {
        version,
        ended: file.ended,
        ..Versioned::default()
    };
    for (number, text) in (1..).zip(file.overrides) {
        let read = read_record(None, text.get(), MAX_TEXT_BYTES);
        let read = read.map(|one| StoredOverride::new(one, ""));
        all.add(|| format!("number {number} in {}", path.display()), read);
    }
    all.keep_newest();
    Ok(all)
}

/// The overrides in a file as a service would read it, whether or not they have ended.
///
/// # Errors
/// There is no file, it cannot be read, or one of the overrides cannot be.
pub(crate) fn read_overrides(path: &Path) -> Result<Vec<Override>, String> {
    fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    let Versioned { all, errors, .. } = read(path, Version::default())?;
    match errors.first() {
        Some((which, error)) => Err(format!("{which}: {error}")),
        None => Ok(all.iter().map(|stored| (*stored.one).clone()).collect()),
    }
}

/// Changes with each replacement of the file, and with each change of its length or time.
fn version(path: &Path) -> Result<Version, String> {
    match fs::metadata(path) {
        Ok(found) => {
            let (inode, length) = (found.ino(), found.len());
            let modified = format!("{} {}", found.mtime(), found.mtime_nsec());
            let changed = format!("{} {}", found.ctime(), found.ctime_nsec());
            let version = format!("{inode} {length} {modified} {changed}");
            Ok(Version(version.into_bytes()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Version::default()),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// The text of the file, or of an empty list if there is none.
fn text(path: &Path) -> Result<String, String> {
    match bounded::read_text(path, MAX_BYTES) {
        Ok(text) => text.ok_or_else(|| unreadable(path, &too_large())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(r#"{"overrides": []}"#.to_owned()),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn document<'t>(path: &Path, text: &'t str) -> Result<Document<'t>, String> {
    serde_json::from_str(text).map_err(|error| match error.is_data() {
        true => unreadable(path, &"it is no JSON object with a list `overrides`"),
        false => unreadable(path, &error),
    })
}

fn too_large() -> String {
    format!("it is larger than {} MiB", MAX_BYTES >> 20)
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> String {
    let path = path.display();
    format!("OVERRIDES_FILE: {path}: {error}; mend the file, or remove it")
}
