//! The stores of overrides: this process, a file, or Redis.

use std::path::PathBuf;
use std::sync::Mutex;

use super::file;
use super::redis::RedisHash;
use super::versioned::{Change, Version, Versioned};
use crate::core::lock;
use crate::store::redis::Direct;

/// A store of overrides.
#[derive(Debug)]
pub enum OverrideStore {
    /// In this process, until it ends.
    Process(Mutex<Versioned>),
    /// In a file (`OVERRIDES_FILE`).
    File(PathBuf),
    /// In Redis, in one hash.
    Redis(RedisHash),
}

impl OverrideStore {
    /// Overrides of this process alone, which end with it.
    pub fn process() -> Self {
        Self::Process(Mutex::default())
    }

    /// In Redis, under `key`.
    pub fn redis(direct: Direct, key: Vec<u8>) -> Self {
        Self::Redis(RedisHash::new(direct, key))
    }

    /// Loads all overrides; `None` if their version is still `seen`.
    ///
    /// # Errors
    /// Why they cannot be read, and how to fix it.
    pub(super) async fn load(&self, seen: &Version) -> Result<Option<Versioned>, String> {
        match self {
            Self::Process(state) => {
                let state = lock(state);
                Ok((state.version != *seen).then(|| state.clone()))
            }
            Self::File(path) => file::load(path, seen).await,
            Self::Redis(hash) => hash.load(seen).await,
        }
    }

    /// Makes a change.
    ///
    /// # Errors
    /// Why it was not made, or may not have been, and what to do.
    pub(super) async fn apply(&self, change: Change) -> Result<(), String> {
        match self {
            Self::Process(state) => {
                lock(state).apply(change);
                Ok(())
            }
            Self::File(path) => file::apply(path, change).await,
            Self::Redis(hash) => hash.apply(&change).await,
        }
    }
}
