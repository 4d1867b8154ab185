//! Overrides in a file, for a process with the memory store: `{"overrides": [...]}`, for people
//! too. It is watched, and replaced as a whole. Those that have ended are in a list of their own,
//! `ended`, which versions that do not know it leave out.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::kept::{Change, Kept, Mark, Reading, keep_ended, read_record};
use crate::limits::overrides::{MAX_RECORD_BYTES, Override, Record};
use crate::live::replaced::replace;

/// The largest file in bytes: 10,000 usual overrides have three megabytes.
pub(crate) const MAX_BYTES: u64 = 32 << 20;

/// The longest text of one override, with the spaces between its words.
const MAX_TEXT_BYTES: usize = 4 * MAX_RECORD_BYTES;

/// The file.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
}

impl File {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// See `Place::read`.
    pub(super) async fn read(&self, mark: Option<&Mark>) -> Result<Option<Reading>, String> {
        let (path, mark) = (self.path.clone(), mark.cloned());
        let read = move || {
            let current = mark_of(&path)?;
            if mark.as_ref() == Some(&current) {
                return Ok(None);
            }
            Ok(Some(reading(&path, current)?))
        };
        tokio::task::spawn_blocking(read)
            .await
            .unwrap_or_else(|error| Err(error.to_string()))
    }

    /// See `Place::change`. What cannot be read stays as it is.
    pub(super) async fn change(&self, change: &Change, ended: &[Kept]) -> Result<(), String> {
        let path = self.path.clone();
        let past = change.past(ended);
        let added = match change {
            Change::Set(record) => Some((**record).clone()),
            _ => None,
        };
        let write = move || {
            let text = text(&path)?;
            let mut file = document(&path, &text)?;
            let is_out = |id: &str| past.iter().chain(&added).any(|record| record.id == id);
            file.overrides.retain(|text| {
                read_record(None, text.get(), MAX_TEXT_BYTES).map_or(true, |one| !is_out(&one.id))
            });
            let added = added.as_ref().map(indented).transpose();
            let added = added.map_err(|error| error.to_string())?;
            file.overrides.extend(added.as_deref());
            keep_ended(&mut file.ended, past);
            let mut new = Vec::with_capacity(text.len() + 2 * MAX_RECORD_BYTES);
            serde_json::to_writer_pretty(&mut new, &file).map_err(|error| error.to_string())?;
            if new.len() as u64 >= MAX_BYTES {
                return Err(unreadable(&path, &too_large()));
            }
            replace(&path, &[&new, b"\n"]).map_err(|error| {
                format!(
                    "OVERRIDES_FILE: {} cannot be written: {error}",
                    path.display()
                )
            })
        };
        tokio::task::spawn_blocking(write)
            .await
            .unwrap_or_else(|error| Err(error.to_string()))
    }
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

/// Those of a list that can be read.
fn readable<'t, D: Deserializer<'t>>(value: D) -> Result<Vec<Record>, D::Error> {
    let list = <&RawValue>::deserialize(value)?.get();
    let list: Vec<&RawValue> = serde_json::from_str(list).unwrap_or_default();
    let records = list.iter().map(|text| serde_json::from_str(text.get()));
    Ok(records.filter_map(Result::ok).collect())
}

/// The text of a record in the list of a file for people.
fn indented(record: &Record) -> serde_json::Result<Box<RawValue>> {
    let text = serde_json::to_string_pretty(record)?;
    RawValue::from_string(text.replace('\n', "\n    "))
}

/// Everything in the file, which is in the state of `mark`.
fn reading(path: &Path, mark: Mark) -> Result<Reading, String> {
    let text = text(path)?;
    let file = document(path, &text)?;
    let mut reading = Reading {
        mark,
        ended: file.ended,
        ..Reading::default()
    };
    for (number, text) in (1..).zip(file.overrides) {
        let read = read_record(None, text.get(), MAX_TEXT_BYTES).map(|one| Kept {
            one: one.into(),
            text: Box::default(),
        });
        reading.add(|| format!("number {number} in {}", path.display()), read);
    }
    reading.keep_newest();
    Ok(reading)
}

/// The overrides in a file as a service would read it, whether or not they have ended.
///
/// # Errors
/// There is no file, it cannot be read, or one of the overrides cannot be.
pub(crate) fn read_overrides(path: &Path) -> Result<Vec<Override>, String> {
    fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    let reading = reading(path, Mark::default())?;
    match reading.errors.first() {
        Some((which, error)) => Err(format!("{which}: {error}")),
        None => Ok(reading
            .all
            .into_iter()
            .map(|kept| (*kept.one).clone())
            .collect()),
    }
}

/// Changes with each replacement of the file, and with each change of its length or time.
fn mark_of(path: &Path) -> Result<Mark, String> {
    match fs::metadata(path) {
        Ok(found) => Ok(Mark(
            format!(
                "{} {} {} {}",
                found.ino(),
                found.len(),
                found.mtime(),
                found.mtime_nsec()
            )
            .into_bytes(),
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Mark::default()),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// The text of the file; that of an empty list if there is none.
fn text(path: &Path) -> Result<String, String> {
    let length = fs::metadata(path).map_or(0, |found| found.len().min(MAX_BYTES));
    // One that grows would take twice as much.
    let mut text = String::with_capacity(usize::try_from(length).unwrap_or(0) + 1);
    match fs::File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text)) {
        Ok(_) if text.len() as u64 > MAX_BYTES => Err(unreadable(path, &too_large())),
        Ok(_) => Ok(text),
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
    format!(
        "OVERRIDES_FILE: {}: {error}; mend the file, or remove it",
        path.display()
    )
}
