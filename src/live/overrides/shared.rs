//! Overrides in Redis: one hash, with a field for each of them and one for the version. Replicas
//! poll the version.
//!
//! One key is one hash slot, and is lost or kept as a whole. The version is a random text that each
//! change sets anew in the same atomic step, so that no two states have the same one, also after a
//! flush or a failover. A field that a person adds by hand changes the number of fields, which is
//! polled too. There is no expiry on the key, because overrides are no counters. The records of
//! those that have ended are in a second hash, beside it in the same slot, which no older version
//! reads.
//!
//! There is no pub/sub: a poll also finds what was missed. The key begins with a separator behind
//! the brace, which no counter key has, because `overrides` may be the name of a domain. A missing
//! hash is a loss and not an order, because one from which everything was removed has its version:
//! the replicas write what they know.

use bb8_redis::redis::Value;
use serde_json::json;
use tokio::time::Instant;

use super::kept::{
    Change, ENDED_KEPT, Kept, MAX_ENDED, Mark, RESET, Reading, oldest_end, read_record, too_long,
};
use crate::core::verdict::StoreError;
use crate::limits::overrides::{MAX_OVERRIDES, MAX_RECORD_BYTES, Record, instant};
use crate::store::redis::Direct;
use crate::store::redis::wire::commands::CommandBuffer;

/// The field of the version. No id is written so.
const VERSION: &str = "version";

/// Fields of one HMGET at most, and their bytes together: a reply may have a megabyte.
const MAX_FIELDS: usize = 500;
const MAX_BYTES: usize = 512 << 10;

/// How often a reading begins again because a change came between its parts.
const ATTEMPTS: usize = 3;

/// Fields that are read at most: all overrides, and as many that have ended or cannot be read.
const MOST_FIELDS: usize = 2 * MAX_OVERRIDES;

/// Applies a change in one step. KEYS: the hash, and that of those that have ended. ARGV: the next
/// version, the most fields, what to do, the id, the text; of those that have ended the oldest
/// field, the most, and their time in ms. Then four for each that ended: its id, its text, unless
/// which it was changed meanwhile and stays (empty: it is removed in any case), its field and its
/// record; or id, text and nothing twice for each that is restored. Returns 0 if there is no room,
/// else 1.
const SCRIPT: &str = "
local key, ended, version, most, change, id, text = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
if change == 'restore' then
  if redis.call('HLEN', key) > 0 then
    return 1
  end
  for index = 9, #ARGV, 4 do
    redis.call('HSET', key, ARGV[index], ARGV[index + 1])
  end
end
for index = 9, change == 'restore' and 0 or #ARGV, 4 do
  local found = redis.call('HGET', key, ARGV[index])
  if found and (found == ARGV[index + 1] or ARGV[index + 1] == '') then
    redis.call('HDEL', key, ARGV[index])
    redis.call('HSET', ended, ARGV[index + 2], ARGV[index + 3])
    redis.call('PEXPIRE', ended, ARGV[8])
  end
end
local fields = redis.call('HKEYS', ended)
table.sort(fields)
for index, field in ipairs(fields) do
  if field < ARGV[6] or index <= #fields - ARGV[7] then
    redis.call('HDEL', ended, field)
  end
end
if change == 'set' then
  if redis.call('HLEN', key) > most and redis.call('HEXISTS', key, id) == 0 then
    return 0
  end
  redis.call('HSET', key, id, text)
end
redis.call('HSET', key, 'version', version)
return 1
";

/// Fields of a hash, each with its text, or with what is wrong with it.
type Fields = Vec<(String, Result<String, String>)>;

/// The hash.
#[derive(Debug)]
pub(super) struct Shared {
    direct: Direct,
    key: Vec<u8>,
    /// The key of those that have ended.
    ended: Vec<u8>,
}

impl Shared {
    pub(super) fn new(direct: Direct, key: Vec<u8>) -> Self {
        let ended = [&key[..], b"ended"].concat();
        Self { direct, key, ended }
    }

    /// Whether there is no hash at all. One whose overrides were removed has its version.
    pub(super) fn is_missing(mark: &Mark) -> bool {
        mark.0 == [0, b'0']
    }

    /// See `Place::read`.
    pub(super) async fn read(
        &self,
        mark: Option<&Mark>,
        deadline: Instant,
    ) -> Result<Option<Reading>, String> {
        for _ in 0..ATTEMPTS {
            let before = self.mark(deadline).await?;
            if Some(&before) == mark {
                return Ok(None);
            }
            let (mut all, mut unreadable) = (Vec::new(), Vec::new());
            for (id, text) in self.read_all(&self.key, deadline).await? {
                match text.and_then(|text| read_record(Some(&id), &text)) {
                    Ok(kept) => all.push(kept),
                    Err(error) => unreadable.push((id, error)),
                }
            }
            // What is over keeps nothing that is in force from being read.
            let ended = self
                .read_all(&self.ended, deadline)
                .await
                .unwrap_or_default();
            let ended = ended
                .into_iter()
                .filter_map(|(_, text)| serde_json::from_str(&text.ok()?).ok())
                .collect();
            if self.mark(deadline).await? == before {
                return Ok(Some(Reading {
                    mark: before,
                    all,
                    unreadable,
                    ended,
                }));
            }
        }
        Err("Redis: they changed while they were read; they are read again".to_owned())
    }

    /// The version and the number of fields.
    async fn mark(&self, deadline: Instant) -> Result<Mark, String> {
        let replies = self
            .query(
                deadline,
                &[
                    &[b"HGET", &self.key, VERSION.as_bytes()],
                    &[b"HLEN", &self.key],
                ],
            )
            .await?;
        let [version, length] = &replies[..] else {
            return Err(no_reply());
        };
        let mut mark = bytes(version).unwrap_or_default().to_vec();
        mark.push(0);
        if let Value::Int(length) = length {
            mark.extend_from_slice(length.to_string().as_bytes());
        }
        Ok(Mark(mark))
    }

    /// The fields of a hash, each with its text, or with what is wrong with it.
    async fn read_all(&self, key: &[u8], deadline: Instant) -> Result<Fields, String> {
        let replies = self.query(deadline, &[&[b"HKEYS", key]]).await?;
        let Some(Value::Array(fields)) = replies.first() else {
            return Err(no_reply());
        };
        let fields: Vec<&[u8]> = fields
            .iter()
            .filter_map(bytes)
            .filter(|field| *field != VERSION.as_bytes())
            .collect();
        if fields.len() > MOST_FIELDS {
            return Err(format!(
                "Redis: the hash has {} fields, and {MOST_FIELDS} is the most; remove some with \
                 HDEL",
                fields.len()
            ));
        }
        let lengths: Vec<[&[u8]; 3]> = fields
            .iter()
            .map(|field| [&b"HSTRLEN"[..], key, *field])
            .collect();
        let lengths: Vec<&[&[u8]]> = lengths.iter().map(|command| &command[..]).collect();
        if lengths.is_empty() {
            return Ok(Vec::new());
        }
        let lengths = self.query(deadline, &lengths).await?;
        let mut all = Vec::new();
        let mut group: Vec<&[u8]> = Vec::new();
        let mut group_bytes = 0;
        for (&field, length) in fields.iter().zip(&lengths) {
            let Value::Int(length) = length else {
                return Err(no_reply());
            };
            let length = usize::try_from(*length).unwrap_or(usize::MAX);
            if length > MAX_RECORD_BYTES {
                all.push((String::from_utf8_lossy(field).into_owned(), Err(too_long())));
                continue;
            }
            if group.len() == MAX_FIELDS || group_bytes + length > MAX_BYTES {
                self.read_group(deadline, key, &group, &mut all).await?;
                (group, group_bytes) = (Vec::new(), 0);
            }
            group.push(field);
            group_bytes += length;
        }
        if !group.is_empty() {
            self.read_group(deadline, key, &group, &mut all).await?;
        }
        Ok(all)
    }

    async fn read_group(
        &self,
        deadline: Instant,
        key: &[u8],
        fields: &[&[u8]],
        all: &mut Fields,
    ) -> Result<(), String> {
        let mut command: Vec<&[u8]> = vec![b"HMGET", key];
        command.extend_from_slice(fields);
        let replies = self.query(deadline, &[&command]).await?;
        let Some(Value::Array(texts)) = replies.first() else {
            return Err(no_reply());
        };
        for (field, text) in fields.iter().zip(texts) {
            // It was removed meanwhile; the version says so.
            let Some(text) = bytes(text) else { continue };
            all.push((
                String::from_utf8_lossy(field).into_owned(),
                Ok(String::from_utf8_lossy(text).into_owned()),
            ));
        }
        Ok(())
    }

    /// See `Place::change`.
    pub(super) async fn change(
        &self,
        change: &Change,
        ended: &[Kept],
        deadline: Instant,
    ) -> Result<(), String> {
        let mut version = format!("{:032x}", fastrand::u128(..));
        if matches!(change, Change::Reset) {
            version.insert_str(0, RESET);
        }
        let most = MAX_OVERRIDES.to_string();
        let (name, id, text) = match change {
            Change::Set(record) => {
                let text = serde_json::to_string(record).map_err(|error| error.to_string())?;
                ("set", record.id.as_str(), text)
            }
            Change::Remove(_) | Change::Sweep | Change::Reset => ("sweep", "", String::new()),
            Change::Restore(_) => ("restore", "", String::new()),
        };
        let numbers = [
            instant(oldest_end()),
            MAX_ENDED.to_string(),
            (ENDED_KEPT.micros() / 1_000).to_string(),
        ];
        let mut command: Vec<&[u8]> =
            vec![b"EVAL", SCRIPT.as_bytes(), b"2", &self.key, &self.ended];
        command.extend([&*version, &*most, name, id, &*text].map(str::as_bytes));
        command.extend(numbers.iter().map(String::as_bytes));
        if let Change::Restore(all) = change {
            command.extend(
                all.iter()
                    .flat_map(|kept| [kept.one.id.as_bytes(), kept.text.as_bytes(), b"", b""]),
            );
        }
        let field = |record: &Record| {
            format!(
                "{} {}",
                record.ended.as_ref().map_or("", |ended| &ended.at),
                record.id
            )
        };
        let past: Vec<_> = change
            .past(ended)
            .into_iter()
            .map(|record| (field(&record), json!(record).to_string(), record.id))
            .collect();
        for (field, record, id) in &past {
            let text = ended
                .iter()
                .find(|kept| *kept.one.id == **id)
                .map_or("", |kept| &kept.text);
            command.extend([
                id.as_bytes(),
                text.as_bytes(),
                field.as_bytes(),
                record.as_bytes(),
            ]);
        }
        match &self.query(deadline, &[&command]).await?[..] {
            [Value::Int(1)] => Ok(()),
            [Value::Int(0)] => Err(format!(
                "Redis has {MAX_OVERRIDES} overrides, which is the most; remove some"
            )),
            _ => Err(no_reply()),
        }
    }

    /// Replies without errors.
    async fn query(&self, deadline: Instant, commands: &[&[&[u8]]]) -> Result<Vec<Value>, String> {
        let write = |out: &mut CommandBuffer| {
            for command in commands {
                let encoded = out.begin();
                for argument in *command {
                    encoded.arg(*argument);
                }
                out.end();
            }
        };
        let replies = self
            .direct
            .query(&self.key, deadline, write)
            .await
            .map_err(|error| {
                let what = match error {
                    StoreError::NotExecuted(_) => "does not answer",
                    StoreError::Unknown(_) | StoreError::Data(_) => {
                        "did not answer in time; look whether it was changed"
                    }
                };
                format!("Redis {what} ({error})")
            })?;
        let refused = replies.iter().find_map(|reply| match reply {
            Value::ServerError(error) => Some(format!(
                "{} {}",
                error.code(),
                error.details().unwrap_or_default()
            )),
            _ => None,
        });
        match refused {
            None if replies.len() == commands.len() => Ok(replies),
            None => Err(no_reply()),
            Some(error) if error.starts_with("NOPERM") => {
                let commands = "HGET HLEN HKEYS HSTRLEN HMGET HSET HDEL HEXISTS EVAL";
                Err(format!(
                    "Redis refuses a command ({error}); give the user the rights to {commands}"
                ))
            }
            Some(error) => Err(format!("Redis refuses a command: {error}")),
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
