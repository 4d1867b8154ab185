//! Where overrides are kept, and how they are read and changed there.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::file::File;
use super::kept::{Change, Keeping, Kept, Mark, Reading, keep_ended};
use super::shared::Shared;
use crate::core::lock;
use crate::limits::overrides::Record;

/// The longest wait for one reading or one change.
const DEADLINE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) enum Place {
    Process(Mutex<(u64, Vec<Kept>, Vec<Record>)>),
    File(File),
    Redis(Shared),
}

impl Place {
    pub(super) fn new(keeping: Keeping) -> Self {
        match keeping {
            Keeping::Process => Self::Process(Mutex::default()),
            Keeping::File(path) => Self::File(File::new(path)),
            Keeping::Redis(direct, key) => Self::Redis(Shared::new(direct, key)),
        }
    }

    /// Whether overrides were there, in `mark`, and are gone although no operator removed them.
    pub(super) fn has_lost(&self, mark: &Mark) -> bool {
        matches!(self, Self::Redis(_)) && Shared::is_missing(mark)
    }

    /// Reads all overrides; `None` if their mark is still this one.
    ///
    /// # Errors
    /// Why they cannot be read, and how to mend it.
    pub(super) async fn read(&self, mark: Option<&Mark>) -> Result<Option<Reading>, String> {
        match self {
            Self::Process(all) => {
                let (version, all, ended) = &*lock(all);
                let current = Mark(version.to_be_bytes().to_vec());
                let reading = || Reading {
                    mark: current.clone(),
                    all: all.clone(),
                    ended: ended.clone(),
                    ..Reading::default()
                };
                Ok((mark != Some(&current)).then(reading))
            }
            Self::File(file) => file.read(mark).await,
            Self::Redis(shared) => shared.read(mark, Instant::now() + DEADLINE).await,
        }
    }

    /// Makes a change, and moves those that have ended to the records of such, unless they were
    /// changed meanwhile.
    ///
    /// # Errors
    /// Why it was not made, or may not have been, and what to do.
    pub(super) async fn change(&self, change: &Change, ended: &[Kept]) -> Result<(), String> {
        match self {
            Self::Process(all) => {
                let (version, all, ended_before) = &mut *lock(all);
                *version += 1;
                let past = change.past(ended);
                all.retain(|kept| past.iter().all(|record| *record.id != *kept.one.id));
                keep_ended(ended_before, past);
                if let Change::Set(record) = change {
                    let one = record.read().map_err(|error| error.0)?;
                    all.retain(|kept| kept.one.id != one.id);
                    all.push(Kept {
                        one: one.into(),
                        text: Box::default(),
                    });
                }
                Ok(())
            }
            Self::File(file) => file.change(change, ended).await,
            Self::Redis(shared) => {
                shared
                    .change(change, ended, Instant::now() + DEADLINE)
                    .await
            }
        }
    }
}
