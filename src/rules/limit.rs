//! One compiled limit: everything that a request needs to know about it, worked out when the rules are loaded.

use crate::algorithm::Algorithm;
use crate::time::Rate;

/// The place of a limit in its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitId(pub u32);

/// A JSON object: what `metadata` may hold.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// A limit and the way to it.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Its place in the rules.
    pub id: LimitId,
    /// The domain that it belongs to.
    pub domain: Box<str>,
    /// The nodes from the root to the limit, one per entry of a descriptor that finds it.
    pub levels: Box<[Level]>,
    /// Comes back as `current_limit.name`, and is what other limits may replace.
    pub name: Option<Box<str>>,
    /// How much, and how it is decided; `None` = unlimited.
    pub amount: Option<Amount>,
    /// Over it, the status still says OK.
    pub shadow_mode: bool,
    /// Over it, the request fails only if all quota descriptors are over.
    pub quota_mode: bool,
    /// What answers while the store cannot, as the limit or its domain says; `None`: as the process does.
    pub on_store_failure: Option<OnStoreFailure>,
    /// Metrics carry the values of the request at all levels.
    pub detailed_metric: bool,
    /// Names of limits that this one switches off within a request.
    pub replaces: Box<[Box<str>]>,
    /// Returned in `dynamic_metadata` when asked for.
    pub metadata: Option<Metadata>,
}

/// `on_store_failure`: what answers for a limit while its store cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// The request is an error (UNAVAILABLE), so that Envoy's `failure_mode_deny` decides.
    #[default]
    Error,
    /// The limit passes.
    Allow,
    /// The limit refuses.
    Deny,
    /// The memory store decides, with this replica's share of the limit.
    Local,
}

impl OnStoreFailure {
    /// All of them with the names that files and settings use.
    pub const NAMED: [(&'static str, Self); 4] =
        [("error", Self::Error), ("allow", Self::Allow), ("deny", Self::Deny), ("local", Self::Local)];
}

/// How much, and how it is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// As the answer shows it.
    pub rate: Rate,
    /// Made of the rate and of what else the limit says.
    pub algorithm: Algorithm,
}

/// One node on the way to a limit, as it was written.
#[derive(Clone, Debug)]
pub struct Level {
    /// The key.
    pub key: Box<str>,
    /// The value or pattern; `None` = any value.
    pub value: Option<Box<str>>,
    /// The counter takes the pattern in place of the request's value, so that all values share it.
    pub share_threshold: bool,
    /// Metrics carry the request's value of this level.
    pub value_to_metric: bool,
}

impl Level {
    /// `key` or `key_value`, as the names of metrics have it.
    #[must_use]
    pub fn text(&self) -> String {
        match &self.value {
            Some(value) => format!("{}_{value}", self.key),
            None => self.key.to_string(),
        }
    }
}

impl Limit {
    /// The full key: the domain and all levels as written, joined by dots. Names the limit in metrics and messages, over reloads too.
    #[must_use]
    pub fn path(&self) -> String {
        self.levels.iter().fold(self.domain.to_string(), |path, level| path + "." + &level.text())
    }
}
