//! An entry of a descriptor, as all answers have it.

use serde::{Deserialize, Serialize};

use crate::core::ask::written;

/// A key and a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value as it was sent, whatever it contains. One of more than 128 bytes is `sha256:` with
    /// its digest, where Weir knows it by that only.
    pub value: String,
}

impl From<(String, String)> for Entry {
    fn from((key, value): (String, String)) -> Self {
        Self { key, value }
    }
}

impl Entry {
    /// `key=value` as operators write it in commands, which then mean this value and no other.
    #[must_use]
    pub fn written(&self) -> String {
        written::entry(self.key.as_bytes(), self.value.as_bytes())
    }
}
