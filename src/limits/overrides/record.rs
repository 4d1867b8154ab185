//! The serialized form of overrides: in requests of operators, in Redis and in a file.
//! [`Record::read`] validates a record and returns an [`Override`].
//!
//! An id is a digest of kind, domain and entries: a repeated order replaces the first, even if two
//! replicas receive them at once. Expiry uses the clock of the machine and not the time of Redis,
//! which would need a round trip: overrides have to expire while Redis is unavailable.
//!
//! A version that does not know a field ignores the whole record and logs it. So a replica without
//! `add` leaves the limit as it is, and never takes an addition for the amount.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Kind, Override, Pattern, RaiseRate, Value};
use crate::core::digest;
use crate::core::request::MAX_ENTRIES;
use crate::core::request::notation::WildcardText;
use crate::core::time::{Micros, Rate, Unit, people};
use crate::limits::rules::limit::{Amount, Units};

/// Maximum bytes of the domain and all entries together.
pub(crate) const MAX_TEXT_BYTES: usize = 2 << 10;

/// Maximum number of wildcards of one override. It bounds the time of a comparison.
pub(crate) const MAX_WILDCARDS: usize = 16;

/// Maximum characters of a reason.
const MAX_REASON: usize = 300;

/// Maximum characters of a name.
const MAX_NAME: usize = 64;

/// Maximum bytes of a record in JSON, with every character escaped. Weir does not write a longer
/// one, and does not read it.
pub const MAX_RECORD_BYTES: usize = 16 << 10;

/// Bytes of the digest in an id, enough that no client can find two values with the same digest.
const ID_BYTES: usize = 16;

/// An override as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "Override")]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Id for changes; the same for the same kind, domain and entries. Optional in a file that is
    /// written by hand.
    #[serde(default)]
    pub id: String,
    /// block, exempt or raise.
    #[schemars(extend("enum" = ["block", "exempt", "raise"]))]
    pub kind: String,
    pub domain: String,
    /// Entries in the order of the descriptor.
    pub entries: Vec<EntryRecord>,
    /// The amount of a raise; null for other kinds, and with `add`.
    #[serde(default)]
    pub to: Option<RateRecord>,
    /// The amount that a raise adds to the amount of the limit, instead of `to`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add: Option<RateRecord>,
    /// The amount of the limit with `add`, in answers about one descriptor. Not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<RateRecord>,
    /// Expiry as in RFC 3339; null: until removed.
    #[serde(default)]
    pub until: Option<String>,
    /// A human-readable reason in one line.
    #[serde(default)]
    pub reason: String,
    /// The name of the token that set it.
    #[serde(default)]
    pub by: String,
    /// Time of creation as in RFC 3339.
    #[serde(default)]
    pub created_at: Option<String>,
    /// End of the override, if it is no longer in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
}

/// The end of an override as JSON.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ended {
    /// Time of the end as in RFC 3339.
    pub at: String,
    /// Name of the token that removed the override; `expired` if it ended by itself.
    pub by: String,
}

/// An entry as JSON.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "OverrideEntry")]
#[serde(deny_unknown_fields)]
pub struct EntryRecord {
    /// The key. Each `*` matches any text; `\*` is a star, `\\` a backslash, and `\u{2e}` the
    /// character with this hexadecimal number.
    pub key: String,
    /// The value, in the syntax of the key; null: any value.
    #[serde(default)]
    pub value: Option<String>,
    /// The SHA-256 of the value in hexadecimal digits, instead of the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^[0-9a-fA-F]{64}$"))]
    pub value_sha256: Option<String>,
}

/// An amount as JSON, with the field names of limit files. The amount of a limit of requests in
/// flight has no unit.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "OverrideRate")]
#[serde(deny_unknown_fields)]
pub struct RateRecord {
    /// Hits per window, or requests in flight. With `scale` an amount of a raise may have decimals.
    #[schemars(range(min = 0))]
    pub requests_per_unit: Units,
    /// The unit of the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = [
        "second", "minute", "hour", "day", "week", "month", "quarter", "year", null,
    ]))]
    pub unit: Option<String>,
    /// Length of the window in units; default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub unit_multiplier: Option<u32>,
}

/// Why a record is not an override, and the correction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

pub(super) fn invalid<T>(text: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid(text.into()))
}

impl Record {
    /// The override of this record. Its id follows from the rest.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn read(&self) -> Result<Override, Invalid> {
        let kind = self.kind()?;
        if self.ended.is_some() {
            return invalid("ended: this override is no longer in force; remove the field");
        }
        let pattern = |entry: &EntryRecord| entry.pattern().map(Pattern::canonical);
        let entries: Result<Box<[Pattern]>, _> = self.entries.iter().map(pattern).collect();
        let entries = entries?;
        let wildcards: usize = entries.iter().map(Pattern::wildcards).sum();
        let bytes = |entry: &Pattern| entry.literal_bits().div_ceil(8);
        let text_bytes = self.domain.len() + wildcards + entries.iter().map(bytes).sum::<usize>();
        if self.domain.is_empty() {
            let remedy = "name the domain of the descriptors, as Envoy sends it";
            return invalid(format!("domain is empty: {remedy}"));
        }
        if self.entries.is_empty() || self.entries.len() > MAX_ENTRIES {
            return invalid(format!(
                "entries: write 1 to {MAX_ENTRIES} entries, one for each entry of the descriptor"
            ));
        }
        if self.entries.iter().any(|entry| entry.key.is_empty()) {
            let remedy = "write the key of the descriptor's entry, or * for any";
            return invalid(format!("entries: a key is empty; {remedy}"));
        }
        if text_bytes > MAX_TEXT_BYTES {
            return invalid(format!(
                "domain and entries have {text_bytes} bytes: {MAX_TEXT_BYTES} at most; shorten a \
                 value with *"
            ));
        }
        if wildcards > MAX_WILDCARDS {
            return invalid(format!(
                "entries have {wildcards} wildcards: {MAX_WILDCARDS} at most; leave the value out \
                 for any value"
            ));
        }
        one_line("reason", &self.reason, MAX_REASON)?;
        one_line("by", &self.by, MAX_NAME)?;
        let instant = |text: &Option<String>| text.as_deref().map(parse_instant).transpose();
        Ok(Override {
            id: id(kind, &self.domain, &entries),
            kind,
            domain: self.domain.as_str().into(),
            entries,
            until: instant(&self.until)?,
            reason: self.reason.as_str().into(),
            by: self.by.as_str().into(),
            created_at: instant(&self.created_at)?.unwrap_or_default(),
        })
    }

    /// The record of an override that has ended: by itself, or now, because someone removes it.
    pub fn ended(one: &Override, now: Micros, by: &str) -> Self {
        let expired = one.until.filter(|until| *until <= now);
        let (at, by) = expired.map_or((now, by), |until| (until, "expired"));
        let (at, by) = (instant(at), by.to_owned());
        Self {
            ended: Some(Ended { at, by }),
            ..Self::from(one)
        }
    }

    /// Adds the amount of the raised limit to the record of a raise with `add`.
    #[must_use]
    pub fn with_total(mut self, raised: Option<&Amount>) -> Self {
        let raised = self.add.as_ref().and(raised);
        self.total = raised.map(|amount| RateRecord {
            requests_per_unit: amount.whole_units(),
            ..RateRecord::new(&amount.whole_rate())
        });
        self
    }

    fn kind(&self) -> Result<Kind, Invalid> {
        let raise = |field: &str, raise: Result<RaiseRate, Invalid>| {
            let raise = raise.map(Kind::Raise);
            raise.or_else(|Invalid(error)| invalid(format!("{field}: {error}")))
        };
        match (&*self.kind, &self.to, &self.add) {
            ("block", None, None) => Ok(Kind::Block),
            ("exempt", None, None) => Ok(Kind::Exempt),
            ("raise", Some(to), None) => raise("to", RaiseRate::to(to)),
            ("raise", None, Some(add)) => raise("add", RaiseRate::by(add)),
            ("raise", None, None) => {
                invalid("to is missing: a raise needs an amount, such as 500/minute, or add")
            }
            ("raise", Some(_), Some(_)) => invalid("to and add: write only one of them"),
            ("block" | "exempt", to, _) => {
                let (field, kind) = (to.as_ref().map_or("add", |_| "to"), &self.kind);
                invalid(format!("{field} has no meaning for {kind}; leave it out"))
            }
            _ => invalid(format!("kind: write one of {}", Kind::NAMES.join(", "))),
        }
    }
}

impl From<&Override> for Record {
    fn from(one: &Override) -> Self {
        let (to, add) = one.kind.rates();
        Self {
            id: one.id.to_string(),
            kind: one.kind.name().to_owned(),
            domain: one.domain.to_string(),
            entries: one.entries.iter().map(EntryRecord::from).collect(),
            to,
            add,
            until: one.until.map(instant),
            reason: one.reason.to_string(),
            by: one.by.to_string(),
            created_at: Some(instant(one.created_at)),
            ..Self::default()
        }
    }
}

impl Kind {
    /// The fields `to` and `add` of a record.
    pub fn rates(&self) -> (Option<RateRecord>, Option<RateRecord>) {
        let Self::Raise(raise) = self else {
            return (None, None);
        };
        let rate = Some(RateRecord {
            requests_per_unit: raise.units,
            ..RateRecord::new(&raise.rate)
        });
        match raise.is_added {
            true => (None, rate),
            false => (rate, None),
        }
    }
}

impl RaiseRate {
    /// The raise to this rate.
    ///
    /// # Errors
    /// The rate is not valid.
    pub fn to(record: &RateRecord) -> Result<Self, Invalid> {
        Ok(Self {
            rate: record.read()?,
            units: record.requests_per_unit,
            is_added: false,
        })
    }

    /// The raise by this rate.
    ///
    /// # Errors
    /// The rate is not valid, or 0.
    pub fn by(record: &RateRecord) -> Result<Self, Invalid> {
        let raise = Self::to(record)?;
        if raise.units == Units(0.0) {
            return invalid("0 adds nothing; write 1 or more");
        }
        Ok(Self {
            is_added: true,
            ..raise
        })
    }
}

impl From<&Pattern> for EntryRecord {
    fn from(pattern: &Pattern) -> Self {
        let (key, value) = (pattern.key.to_string(), &pattern.value);
        let (value, value_sha256) = match value {
            Value::Any => (None, None),
            Value::Text(text) => (Some(text.to_string()), None),
            Value::Network(network) => (Some(network.to_string()), None),
            Value::Digest(digest) => (None, Some(digest::hex(digest))),
        };
        Self {
            key,
            value,
            value_sha256,
        }
    }
}

impl EntryRecord {
    /// Reads the pattern of this entry.
    ///
    /// # Errors
    /// The digest is invalid, or is combined with a value or a wildcard.
    pub fn pattern(&self) -> Result<Pattern, Invalid> {
        let key = WildcardText::read(&self.key);
        let value = match (&self.value, &self.value_sha256) {
            (None, None) => Value::Any,
            (Some(value), None) => Value::Text(WildcardText::read(value)),
            (None, Some(digits)) if key.as_literal().is_some() => {
                Value::Digest(read_digits(digits)?)
            }
            (_, Some(_)) => {
                let what = "value_sha256 replaces a value, after a key without wildcards";
                return invalid(format!("entries: {what}"));
            }
        };
        Ok(Pattern { key, value })
    }
}

impl RateRecord {
    /// The record of a rate.
    pub fn new(rate: &Rate) -> Self {
        let has_unit = rate.unit != Unit::None;
        Self {
            requests_per_unit: Units(rate.requests_per_unit as f64),
            unit: has_unit.then(|| rate.unit.name().to_owned()),
            unit_multiplier: has_unit.then_some(rate.unit_multiplier),
        }
    }

    /// The rate of this record.
    ///
    /// # Errors
    /// The unit is unknown, or the window is impossible.
    pub fn read(&self) -> Result<Rate, Invalid> {
        if !(0.0..1e19).contains(&self.requests_per_unit.0) {
            return invalid("requests_per_unit: write a number from 0 to 9007199254740991");
        }
        let mut rate = Rate {
            requests_per_unit: self.requests_per_unit.0 as u64,
            unit: Unit::None,
            unit_multiplier: self.unit_multiplier.unwrap_or(1),
        };
        if self.unit.is_none() && self.unit_multiplier.is_none() {
            return Ok(rate);
        }
        let unit = self.unit.as_deref().unwrap_or_default();
        let Some(known) = Unit::named(unit) else {
            let units: Vec<_> = Unit::NAMED.iter().map(|(name, _)| *name).collect();
            let (unit, units) = (unit.escape_debug(), units.join(", "));
            return invalid(format!("`{unit}` is no unit; write one of {units}"));
        };
        rate.unit = known;
        if rate.window().is_none() {
            return invalid(
                "the window is zero or longer than 100 years; write a unit_multiplier from 1 \
                 on that makes it shorter",
            );
        }
        Ok(rate)
    }
}

/// Reads a SHA-256 in hexadecimal digits.
pub(crate) fn read_digits(digits: &str) -> Result<[u8; 32], Invalid> {
    let is_digest = digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = |at| u8::from_str_radix(&digits[2 * at..][..2], 16).unwrap_or_default();
    match is_digest {
        true => Ok(std::array::from_fn(byte)),
        false => invalid("entries: value_sha256 is no SHA-256; write its 64 hexadecimal digits"),
    }
}

fn one_line(field: &str, text: &str, most: usize) -> Result<(), Invalid> {
    if text.chars().nth(most).is_some() {
        let what = format!("{field} has more than {most} characters");
        return invalid(what + "; shorten it");
    }
    if text.chars().any(char::is_control) {
        let what = format!("{field} has a line break or another control character");
        return invalid(what + "; write one line of text");
    }
    Ok(())
}

/// The id is the same in all replicas: a second block of one descriptor replaces the first.
fn id(kind: Kind, domain: &str, entries: &[Pattern]) -> Box<str> {
    let mut parts = Vec::new();
    let mut add = |(length, text): (u64, Vec<u8>)| {
        parts.extend([length.to_be_bytes().to_vec(), text]);
    };
    let of = |text: &str| (text.len() as u64, text.as_bytes().to_vec());
    add(of(kind.name()));
    add(of(domain));
    for Pattern { key, value } in entries {
        add(of(&key.to_string()));
        // Lengths that no text has.
        match value {
            Value::Any => add((u64::MAX, Vec::new())),
            Value::Text(text) => add(of(&text.to_string())),
            Value::Network(network) => add(of(&network.to_string())),
            Value::Digest(value) => add((u64::MAX - 1, value.to_vec())),
        }
    }
    digest::hex(&digest::sha256_of_all(parts)[..ID_BYTES]).into()
}

/// An instant as it is shown: RFC 3339, in UTC.
pub fn instant(at: Micros) -> String {
    people::timestamp(at).to_string()
}

/// Reads an instant in RFC 3339, with any offset.
///
/// # Errors
/// The text is not such an instant, or the instant is before 1970.
pub fn parse_instant(text: &str) -> Result<Micros, Invalid> {
    let at: Option<Timestamp> = text.parse().ok();
    match at.and_then(|at| u64::try_from(at.as_microsecond()).ok()) {
        Some(micros) => Ok(Micros(micros)),
        None => {
            let (text, remedy) = (text.escape_debug(), "write RFC 3339");
            invalid(format!(
                "`{text}` is no instant; {remedy}, such as 2030-01-31T18:00:00Z"
            ))
        }
    }
}
