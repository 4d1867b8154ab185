//! Overrides in Redis: one hash, with a field for each of them and one for the version. Replicas
//! poll the version.
//!
//! One key is one hash slot, and is lost or kept as a whole. The version is a random text that each
//! change sets anew in the same atomic step: no two states have the same one, also after a flush or
//! a failover. A field that a person adds by hand changes the number of fields, which is polled
//! too. There is no expiry on the key, because overrides are no counters. The records of ended
//! overrides are in a second hash in the same slot, which no older version reads.
//!
//! There is no pub/sub: a poll also finds changes that were missed. The key begins with a separator
//! after the brace, which no counter key has, because `overrides` may be the name of a domain. A
//! missing hash is a loss and not an order, because one from which everything was removed has its
//! version: the replicas write the overrides that they have.

use bb8_redis::redis::Value;
use serde_json::json;
use tokio::time::{Duration, Instant};

use super::versioned::{
    Change, ENDED_KEPT, MAX_ENDED, StoredOverride, Version, Versioned, keep_ended, oldest_end,
    read_record, too_long,
};
use crate::core::verdict::StoreError;
use crate::limits::overrides::{MAX_OVERRIDES, MAX_RECORD_BYTES, Record, instant};
use crate::store::redis::Direct;
use crate::store::redis::wire::commands::CommandBuffer;

/// The field of the version. No id is written so.
const VERSION: &str = "version";

/// The version of the reset of a counter begins so. It changes no override, and later versions end
/// with it: other replicas may not have seen it yet.
const RESET: &str = "reset";

/// The longest wait for one page of a reading, or for a change. The pages have no common deadline:
/// a process that is slow to decode thousands of overrides has to read all of them too.
const DEADLINE: Duration = Duration::from_secs(2);

/// The bytes of one page, more or less; a reply may have a megabyte.
const PAGE_BYTES: usize = 256 << 10;

/// Maximum number of times that a reading begins again because a change came between its parts.
const ATTEMPTS: usize = 3;

/// A page of a hash: the cursor of the next one, and fields, each with its text, or with nothing if
/// that is too long. KEYS: the hash. ARGV: the cursor, the longest text, and the bytes of a page.
const PAGE: &str = include_str!("../../../lua/overrides_page.lua");

/// Applies a change in one step. KEYS: the hash of overrides, and the hash of ended ones. ARGV: the
/// next version, the most fields, what to do, the id, the text; for the ended ones the oldest
/// field, the most, and their time in ms. Then four for each that ended: its id, its text, unless
/// which it was changed meanwhile and stays (empty: it is removed in any case), its field and its
/// record; or id, text and nothing twice for each that is restored. Returns 0 if there is no room,
/// else 1.
const SCRIPT: &str = include_str!("../../../lua/overrides_change.lua");

/// Takes a field of a hash with its text, or with the problem with it.
type Take<'t> = &'t mut (dyn FnMut(&str, Result<&str, String>) + Send);

/// Overrides in a hash of the Redis that counts.
#[derive(Debug)]
pub struct RedisHash {
    direct: Direct,
    key: Vec<u8>,
    /// The key of those that have ended.
    ended: Vec<u8>,
}

impl Version {
    /// Whether there is no hash at all. One whose overrides were removed has its version.
    pub(super) fn is_lost(&self) -> bool {
        self.0 == [0, b'0']
    }

    /// The part that changes with the reset of a counter; empty before the first one.
    pub(super) fn last_reset(&self) -> &[u8] {
        let version = self.0.split(|&byte| byte == 0).next().unwrap_or_default();
        let last = version.rsplit(|&byte| byte == b' ').next();
        last.filter(|last| last.starts_with(RESET.as_bytes()))
            .unwrap_or_default()
    }
}

impl RedisHash {
    pub(super) fn new(direct: Direct, key: Vec<u8>) -> Self {
        let ended = [&key[..], b"ended"].concat();
        Self { direct, key, ended }
    }

    /// See [`OverrideStore::load`](super::OverrideStore).
    pub(super) async fn load(&self, seen: &Version) -> Result<Option<Versioned>, String> {
        for _ in 0..ATTEMPTS {
            let before = self.version().await?;
            if before == *seen {
                return Ok(None);
            }
            let mut loaded = Versioned::default();
            let mut add = |id: &str, text: Result<&str, String>| {
                let read = text.and_then(|text| {
                    let one = read_record(Some(id), text, MAX_RECORD_BYTES)?;
                    Ok(StoredOverride::new(one, text))
                });
                loaded.add(|| id.to_owned(), read);
            };
            self.read_all(&self.key, &mut add).await?;
            loaded.keep_newest();
            let ended = &mut loaded.ended;
            let mut add = |_: &str, text: Result<&str, String>| {
                ended.extend(text.ok().and_then(|text| serde_json::from_str(text).ok()));
                if ended.len() >= 2 * MAX_ENDED {
                    keep_ended(ended, []);
                }
            };
            // An error in ended overrides must not keep those in force from being read.
            let _ = self.read_all(&self.ended, &mut add).await;
            if self.version().await? == before {
                loaded.version = before;
                return Ok(Some(loaded));
            }
        }
        Err("Redis: they changed while they were read; they are read again".to_owned())
    }

    /// The version and the number of fields.
    async fn version(&self) -> Result<Version, String> {
        let version: [&[u8]; 3] = [b"HGET", &self.key, VERSION.as_bytes()];
        let replies = self.query(&[&version, &[b"HLEN", &self.key]]).await?;
        let [version, length] = &replies[..] else {
            return Err(no_reply());
        };
        let mut version = bytes(version).unwrap_or_default().to_vec();
        version.push(0);
        if let Value::Int(length) = length {
            version.extend_from_slice(length.to_string().as_bytes());
        }
        Ok(Version(version))
    }

    /// Reads the fields of a hash page by page. A field may come twice.
    async fn read_all(&self, key: &[u8], take: Take<'_>) -> Result<(), String> {
        let numbers = [MAX_RECORD_BYTES, PAGE_BYTES].map(|number| number.to_string());
        let [longest, page_bytes] = numbers.each_ref().map(String::as_bytes);
        let mut cursor = b"0".to_vec();
        loop {
            let page = PAGE.as_bytes();
            let command = [b"EVAL", page, b"1", key, &cursor, longest, page_bytes];
            let replies = self.query(&[&command]).await?;
            let [Value::Array(page)] = &replies[..] else {
                return Err(no_reply());
            };
            let [next, Value::Array(fields)] = &page[..] else {
                return Err(no_reply());
            };
            for [field, text] in fields.as_chunks().0 {
                let field = bytes(field).ok_or_else(no_reply)?;
                if field == VERSION.as_bytes() {
                    continue;
                }
                let text = bytes(text).map(String::from_utf8_lossy);
                let text = text.as_deref().ok_or_else(too_long);
                take(&String::from_utf8_lossy(field), text);
            }
            cursor = bytes(next).ok_or_else(no_reply)?.to_vec();
            if cursor == b"0" {
                return Ok(());
            }
        }
    }

    /// See [`OverrideStore::apply`](super::OverrideStore).
    pub(super) async fn apply(&self, change: &Change) -> Result<(), String> {
        let mut version = Version::random();
        if change.is_reset {
            version.insert_str(0, RESET);
        }
        let (name, id, text) = match &change.set {
            Some(one) => {
                let text = serde_json::to_string(&Record::from(one));
                ("set", &*one.id, text.map_err(|error| error.to_string())?)
            }
            None if change.restored.is_empty() => ("sweep", "", String::new()),
            None => ("restore", "", String::new()),
        };
        let numbers = [
            MAX_OVERRIDES.to_string(),
            instant(oldest_end()),
            MAX_ENDED.to_string(),
            (ENDED_KEPT.micros() / 1_000).to_string(),
        ];
        let [most, oldest, most_ended, life] = numbers.each_ref().map(String::as_str);
        let arguments = [&version, most, name, id, &text, oldest, most_ended, life];
        let mut command: Vec<&[u8]> =
            vec![b"EVAL", SCRIPT.as_bytes(), b"2", &self.key, &self.ended];
        command.extend(arguments.map(str::as_bytes));
        let field = |record: &Record| {
            let at = record.ended.as_ref().map_or("", |ended| &ended.at);
            format!("{at} {}", record.id)
        };
        let row = |(record, text): &(Record, Box<str>)| {
            let (field, record_text) = (field(record), json!(record).to_string());
            [record.id.clone(), text.to_string(), field, record_text]
        };
        let ended: Vec<_> = change.ended.iter().map(row).collect();
        let ended = ended.iter().map(|row| row.each_ref().map(String::as_bytes));
        let restored = change.restored.iter();
        let restored = restored.map(|it| [it.one.id.as_bytes(), it.text.as_bytes(), b"", b""]);
        command.extend(restored.chain(ended).flatten());
        match &self.query(&[&command]).await?[..] {
            [Value::Int(1)] => Ok(()),
            [Value::Int(0)] => {
                let what = format!("Redis has {MAX_OVERRIDES} overrides, which is the most");
                Err(what + "; remove some")
            }
            _ => Err(no_reply()),
        }
    }

    /// Replies without errors.
    async fn query(&self, commands: &[&[&[u8]]]) -> Result<Vec<Value>, String> {
        let write = |out: &mut CommandBuffer| {
            for command in commands {
                out.begin().arg(*command);
                out.end();
            }
        };
        let until = Instant::now() + DEADLINE;
        let replies = self.direct.query(&self.key, until, write).await;
        let replies = replies.map_err(|error| {
            let what = match error {
                StoreError::NotExecuted(_) => "does not answer",
                StoreError::Unknown(_) | StoreError::Data(_) => {
                    "did not answer in time; look whether it was changed"
                }
            };
            format!("Redis {what} ({error})")
        })?;
        let refused = replies.iter().find_map(|reply| match reply {
            Value::ServerError(error) => {
                let details = error.details().unwrap_or_default();
                Some(format!("{} {details}", error.code()))
            }
            _ => None,
        });
        match refused {
            None if replies.len() == commands.len() => Ok(replies),
            None => Err(no_reply()),
            // The second one is about a command that a script calls.
            Some(error)
                if error.starts_with("NOPERM") || error.contains("can't run this command") =>
            {
                let commands = "HGET HLEN HSCAN HMGET HSET HDEL HKEYS HEXISTS EVAL";
                Err(format!(
                    "Redis refuses a command ({error}); give the user the rights to {commands}"
                ))
            }
            // Its text may have anything in it, and is logged.
            Some(error) => {
                let code = error.split(' ').next().unwrap_or_default();
                Err(format!("Redis refuses a command: {code}"))
            }
        }
    }
}

fn no_reply() -> String {
    "Redis sends another reply than a hash has; is the key of the overrides used by something else?"
        .to_owned()
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}
