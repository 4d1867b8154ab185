//! Overrides in a file, for a process with the memory store: `{"overrides": [...]}`, for people
//! too. It is watched, and replaced as a whole. Those that have ended are in a list of their own,
//! `ended`, which versions that do not know it leave out.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use super::kept::{Change, Kept, Mark, Reading, keep_ended, read_record};
use crate::limits::overrides::{Override, Record};
use crate::live::replaced::replace;

/// The largest file in bytes: 10,000 usual overrides have three megabytes.
const MAX_BYTES: u64 = 32 << 20;

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
            let (mut all, mut ended) = elements(&path)?;
            let is_out = |id: &str| past.iter().chain(&added).any(|record| record.id == id);
            all.retain(|value| {
                read_record(None, &value.to_string()).map_or(true, |kept| !is_out(&kept.one.id))
            });
            all.extend(added.as_ref().map(|record| json!(record)));
            keep_ended(&mut ended, past);
            let text = serde_json::to_string_pretty(&json!({ "overrides": all, "ended": ended }))
                .map_err(|error| error.to_string())?
                + "\n";
            replace(&path, &[text.as_bytes()]).map_err(|error| {
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

/// Everything in the file, which is in the state of `mark`.
fn reading(path: &Path, mark: Mark) -> Result<Reading, String> {
    let (mut all, mut unreadable) = (Vec::new(), Vec::new());
    let (values, ended) = elements(path)?;
    for (index, value) in values.iter().enumerate() {
        match read_record(None, &value.to_string()) {
            Ok(kept) => all.push(kept),
            Err(error) => {
                unreadable.push((format!("number {} in {}", index + 1, path.display()), error));
            }
        }
    }
    Ok(Reading {
        mark,
        all,
        unreadable,
        ended,
    })
}

/// The overrides in a file as a service would read it, whether or not they have ended.
///
/// # Errors
/// There is no file, it cannot be read, or one of the overrides cannot be.
pub(crate) fn read_overrides(path: &Path) -> Result<Vec<Override>, String> {
    fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    let reading = reading(path, Mark::default())?;
    match reading.unreadable.first() {
        Some((which, error)) => Err(format!("{which}: {error}")),
        None => Ok(reading.all.into_iter().map(|kept| kept.one).collect()),
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

/// The elements of the list in the file, and the records of those that have ended; none if there is
/// no file.
fn elements(path: &Path) -> Result<(Vec<Value>, Vec<Record>), String> {
    let mut text = String::new();
    match fs::File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text)) {
        Ok(_) if text.len() as u64 > MAX_BYTES => {
            return Err(unreadable(
                path,
                &format_args!("it is larger than {} MiB", MAX_BYTES >> 20),
            ));
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Default::default()),
        Err(error) => return Err(unreadable(path, &error)),
    }
    let mut file: Value = serde_json::from_str(&text).map_err(|error| unreadable(path, &error))?;
    let ended = file["ended"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| Record::deserialize(one).ok())
        .collect();
    match file.get_mut("overrides").map(Value::take) {
        Some(Value::Array(all)) => Ok((all, ended)),
        _ => Err(unreadable(
            path,
            &"it is no JSON object with a list `overrides`",
        )),
    }
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!(
        "OVERRIDES_FILE: {}: {error}; mend the file, or remove it",
        path.display()
    )
}
