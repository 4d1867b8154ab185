//! The last descriptors that no limit matched, by domain, for the question why a limit is not
//! applied.
//!
//! They are samples. Each second a thread samples a few descriptors of each kind, which is a domain
//! with the keys of a descriptor: a frequent kind must not hide a rare one. All others cost a
//! count. Domains of the configuration and unknown domains have separate bounds, because only the
//! configuration bounds its own. The domain that was seen longest ago makes room.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use hashbrown::HashMap;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::core::fingerprint::Fingerprint;
use crate::core::request::{DecodedRequest, Entry};
use crate::core::text::{MARK, cut};
use crate::core::time::Micros;
use crate::core::{lock, try_lock};
use crate::limits::plan::key::{self, EntryText};
use crate::limits::plan::{Disposition, Plan};

/// Maximum number of domains that are kept, separately for domains of the rules and unknown ones.
pub(crate) const MAX_DOMAINS: usize = 100;

/// Descriptors of a domain.
pub(crate) const MAX_DESCRIPTORS: usize = 20;

/// Bytes that are kept of a domain, a key or a value, and entries of a descriptor.
const LONGEST_TEXT: usize = 128;
const MAX_ENTRIES: usize = 16;

/// Bytes of all texts of a descriptor; longer ones are cut. With [`MAX_DOMAINS`] of both and all
/// descriptors, that is about 2.5 MiB.
pub(crate) const MAX_DESCRIPTOR_BYTES: usize = 512;

/// Kinds of descriptors that have a number of samples of their own; some share one by chance.
const KINDS: usize = 64;

/// Samples of a kind in a second, for each thread.
const SAMPLES: u8 = 4;

/// How many samples one thread has taken in this second, by the fingerprint of a kind. Only its
/// thread counts.
#[derive(Debug)]
pub(super) struct Quota([AtomicU8; KINDS]);

impl Default for Quota {
    fn default() -> Self {
        Self([const { AtomicU8::new(0) }; KINDS])
    }
}

impl Quota {
    /// Begins the next second.
    pub(super) fn renew(&self) {
        for taken in &self.0 {
            taken.store(0, Ordering::Relaxed);
        }
    }

    /// Takes one sample; false: there were enough in this second.
    fn take(&self, kind: u64) -> bool {
        let taken = &self.0[kind as usize % KINDS];
        let count = taken.load(Ordering::Relaxed);
        if count < SAMPLES {
            taken.store(count + 1, Ordering::Relaxed);
        }
        count < SAMPLES
    }
}

/// The samples of all threads.
#[derive(Debug, Default)]
pub(super) struct Unmatched {
    kept: Mutex<KeptSample>,
    /// Seconds since 1970, renewed every second: no sample reads a clock.
    time: AtomicU64,
}

#[derive(Debug, Default)]
struct KeptSample {
    domains: HashMap<Box<[u8]>, Samples>,
    /// The texts of the sample that is being added. A sample that is there already allocates
    /// nothing.
    texts: Vec<u8>,
}

/// The samples of a domain.
#[derive(Debug, Default)]
struct Samples {
    is_known: bool,
    seen: u64,
    /// The newest last.
    descriptors: VecDeque<Sample>,
}

#[derive(Debug)]
struct Sample {
    /// The fingerprint of the keys.
    kind: u64,
    seen: u64,
    /// Nothing was cut.
    is_whole: bool,
    /// Keys and values in turn, each after its length.
    texts: Vec<u8>,
}

/// A domain with descriptors that no limit matched.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct UnmatchedDomain {
    /// Name of the domain; truncated if it is long.
    pub domain: String,
    /// Whether the limits in force had the domain when it was last seen.
    #[serde(rename = "known")]
    pub is_known: bool,
    /// Descriptors, newest first.
    pub descriptors: Vec<UnmatchedDescriptor>,
}

/// A descriptor that no limit matched.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct UnmatchedDescriptor {
    /// Keys and values. Long ones are truncated and end with `…`.
    pub entries: Vec<EntryText>,
    /// Exact name of the subject, which calls accept instead of domain and entries; null if a text
    /// was truncated.
    pub subject: Option<String>,
    /// Time of the latest such request, to about a second.
    pub seen_at: Timestamp,
}

impl Unmatched {
    /// Sets the time of the samples that follow.
    pub(super) fn set_time(&self, now: Micros) {
        self.time.store(now.0 / 1_000_000, Ordering::Relaxed);
    }

    /// Keeps samples of the descriptors of a request that no limit matched.
    #[cold]
    pub(super) fn observe(&self, quota: &Quota, request: &DecodedRequest<'_>, plan: &Plan) {
        for ((descriptor, entries), slot) in request.descriptors().zip(&plan.slots) {
            if !matches!(slot.disposition, Disposition::Free) || descriptor.limit.is_some() {
                continue;
            }
            let keys = Fingerprint::of_all(entries.iter().map(|entry| entry.key)).half();
            let kind = keys ^ Fingerprint::of(request.domain).half();
            // A limit that was matched is switched off in this request.
            if quota.take(kind) && plan.rules.find(request.domain, entries).is_none() {
                self.add(request.domain, !plan.unknown_domain, entries, keys);
            }
        }
    }

    /// Adds a sample, unless another thread adds one or a reader has them.
    fn add(&self, domain: &[u8], is_known: bool, entries: &[Entry<'_>], kind: u64) {
        let Some(mut kept) = try_lock(&self.kept) else {
            return;
        };
        let KeptSample { domains, texts } = &mut *kept;
        let is_whole = write(texts, entries) && domain.len() <= LONGEST_TEXT;
        let seen = self.time.load(Ordering::Relaxed);
        let domain = cut(domain, LONGEST_TEXT);
        let known = domains.get(domain);
        if known.is_none_or(|samples| samples.is_known != is_known) {
            make_room(domains, is_known);
            domains.entry(domain.into()).or_default().is_known = is_known;
        }
        if let Some(samples) = domains.get_mut(domain) {
            samples.seen = seen;
            samples.add(kind, texts, is_whole);
        }
    }

    /// All samples, or the samples of one domain. The domain that was seen last comes first.
    pub(super) fn by_domain(&self, only: Option<&str>) -> Vec<UnmatchedDomain> {
        let kept = lock(&self.kept);
        let only = only.map(|only| cut(only.as_bytes(), LONGEST_TEXT));
        let is_asked = |domain: &[u8]| only.is_none_or(|only| only == domain);
        let domains = kept.domains.iter().filter(|(domain, _)| is_asked(domain));
        let mut domains: Vec<_> = domains.collect();
        domains.sort_by(|(one, a), (other, b)| b.seen.cmp(&a.seen).then_with(|| one.cmp(other)));
        let domains = domains.into_iter();
        domains
            .map(|(domain, samples)| samples.report(domain))
            .collect()
    }
}

/// Makes room for one more domain.
fn make_room(domains: &mut HashMap<Box<[u8]>, Samples>, is_known: bool) {
    let all = domains.iter();
    let alike = all.filter(|(_, samples)| samples.is_known == is_known);
    if alike.clone().count() < MAX_DOMAINS {
        return;
    }
    let oldest = alike.min_by_key(|(_, samples)| samples.seen);
    if let Some(oldest) = oldest.map(|(domain, _)| domain.clone()) {
        domains.remove(&oldest);
    }
}

impl Samples {
    /// Adds a sample. It replaces an equal one or, if there are enough, the oldest of the kind that
    /// has most.
    fn add(&mut self, kind: u64, texts: &[u8], is_whole: bool) {
        let mut known = self.descriptors.iter();
        let equal = known.position(|known| known.texts == texts);
        let is_full = self.descriptors.len() >= MAX_DESCRIPTORS;
        let dropped = equal.or_else(|| is_full.then(|| self.oldest_of_most(kind))?);
        let dropped = dropped.and_then(|index| self.descriptors.remove(index));
        let mut kept = dropped.map_or_else(Vec::new, |dropped| dropped.texts);
        kept.clear();
        kept.extend_from_slice(texts);
        self.descriptors.push_back(Sample {
            kind,
            seen: self.seen,
            is_whole,
            texts: kept,
        });
    }

    /// The oldest sample of the kind with most samples, where `next` is going to have one more.
    fn oldest_of_most(&self, next: u64) -> Option<usize> {
        let count = |kind: u64| {
            let alike = self.descriptors.iter().filter(|sample| sample.kind == kind);
            alike.count() + usize::from(kind == next)
        };
        // Of several, the first.
        let all = (0..self.descriptors.len()).rev();
        all.max_by_key(|&index| count(self.descriptors[index].kind))
    }

    fn report(&self, domain: &[u8]) -> UnmatchedDomain {
        let descriptor = |sample: &Sample| {
            let subject = key::Subject::new(domain, entries(&sample.texts));
            UnmatchedDescriptor {
                entries: subject.texts(),
                subject: sample.is_whole.then(|| subject.to_string()),
                seen_at: Timestamp::from_second(sample.seen.cast_signed()).unwrap_or_default(),
            }
        };
        let descriptors = self.descriptors.iter().rev().map(descriptor).collect();
        UnmatchedDomain {
            domain: String::from_utf8_lossy(domain).into_owned(),
            is_known: self.is_known,
            descriptors,
        }
    }
}

/// The texts of entries, and whether nothing was cut.
fn write(texts: &mut Vec<u8>, entries: &[Entry<'_>]) -> bool {
    texts.clear();
    let mut is_whole = entries.len() <= MAX_ENTRIES;
    let mut left = MAX_DESCRIPTOR_BYTES;
    let mut add = |text: &[u8]| {
        let kept = cut(text, left.min(LONGEST_TEXT - MARK.len()));
        left -= kept.len();
        let is_cut = kept.len() < text.len();
        is_whole &= !is_cut;
        let mark = if is_cut { MARK.as_bytes() } else { &[] };
        texts.push((kept.len() + mark.len()) as u8);
        texts.extend_from_slice(kept);
        texts.extend_from_slice(mark);
    };
    for entry in entries.iter().take(MAX_ENTRIES) {
        add(entry.key);
        add(entry.value);
    }
    if entries.len() > MAX_ENTRIES {
        add(MARK.as_bytes());
        add(b"");
    }
    is_whole
}

/// The keys and values that [`write`] wrote.
fn entries(texts: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    let mut rest = texts;
    let mut next = move || {
        let (&length, after) = rest.split_first()?;
        let (text, after) = after.split_at_checked(length.into())?;
        rest = after;
        Some(text)
    };
    std::iter::from_fn(move || {
        Some(Entry {
            key: next()?,
            value: next().unwrap_or_default(),
        })
    })
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::core::request::Descriptor;

    fn add(
        unmatched: &Unmatched,
        seconds: u64,
        domain: &str,
        is_known: bool,
        entries: &[(&str, &str)],
    ) {
        unmatched.set_time(Micros(seconds * 1_000_000));
        let entries: Vec<_> = entries
            .iter()
            .map(|(key, value)| Entry {
                key: key.as_bytes(),
                value: value.as_bytes(),
            })
            .collect();
        let kind = entries.iter().map(|entry| u64::from(entry.key[0])).sum();
        unmatched.add(domain.as_bytes(), is_known, &entries, kind);
    }

    fn values(unmatched: &Unmatched, domain: &str) -> Vec<String> {
        let shown = unmatched.by_domain(Some(domain));
        shown
            .first()
            .map(|shown| {
                shown
                    .descriptors
                    .iter()
                    .map(|one| one.entries[0].value.clone())
                    .collect()
            })
            .unwrap_or_default()
    }

    #[test]
    fn an_equal_descriptor_is_kept_once_with_its_last_time() {
        let unmatched = Unmatched::default();
        for (seconds, user) in [(1, "ann"), (2, "bob"), (3, "ann")] {
            add(&unmatched, seconds, "shop", true, &[("user", user)]);
        }
        let shown = unmatched.by_domain(None);
        assert_eq!(
            (shown.len(), &*shown[0].domain, shown[0].is_known),
            (1, "shop", true)
        );
        let seen: Vec<_> = shown[0]
            .descriptors
            .iter()
            .map(|one| (one.entries[0].value.as_str(), one.seen_at))
            .collect();
        let at = |seconds| Timestamp::from_second(seconds).expect("an instant");
        assert_eq!(seen, [("ann", at(3)), ("bob", at(2))]);
    }

    #[test]
    fn a_frequent_kind_does_not_push_out_a_rare_one() {
        let unmatched = Unmatched::default();
        add(&unmatched, 1, "shop", true, &[("path", "/rare")]);
        for user in 0..1_000 {
            add(
                &unmatched,
                2,
                "shop",
                true,
                &[("user", &format!("u{user}"))],
            );
        }
        let values = values(&unmatched, "shop");
        assert_eq!(values.len(), MAX_DESCRIPTORS);
        assert_eq!(
            (values[0].as_str(), values.last().map(String::as_str)),
            ("u999", Some("/rare")),
            "{values:?}"
        );
        assert!(values.contains(&"u981".to_owned()) && !values.contains(&"u980".to_owned()));
    }

    #[test]
    fn domains_have_a_bound_and_unknown_ones_do_not_push_out_known_ones() {
        let unmatched = Unmatched::default();
        for number in 0..MAX_DOMAINS as u64 {
            add(
                &unmatched,
                number,
                &format!("known-{number}"),
                true,
                &[("k", "v")],
            );
        }
        for number in 0..5_000 {
            add(
                &unmatched,
                1_000 + number,
                &format!("unknown-{number}"),
                false,
                &[("k", "v")],
            );
        }
        let shown = unmatched.by_domain(None);
        assert_eq!(
            shown.iter().filter(|domain| domain.is_known).count(),
            MAX_DOMAINS
        );
        assert_eq!(shown.len(), 2 * MAX_DOMAINS);
        assert_eq!(shown[0].domain, "unknown-4999", "the last one first");
        assert!(
            shown.iter().any(|domain| domain.domain == "unknown-4900")
                && !shown.iter().any(|domain| domain.domain == "unknown-4899")
        );
        // A domain that is added to the rules makes room there.
        add(&unmatched, 9_000, "unknown-4999", true, &[("k", "v")]);
        let shown = unmatched.by_domain(None);
        assert_eq!(
            shown.iter().filter(|domain| domain.is_known).count(),
            MAX_DOMAINS
        );
        assert!(
            !shown.iter().any(|domain| domain.domain == "known-0"),
            "it was seen longest ago"
        );
    }

    #[test]
    fn texts_are_cut_between_characters_and_bounded_in_bytes() {
        let long = "é".repeat(100_000);
        let many = vec![("key", long.as_str()); 60];
        let unmatched = Unmatched::default();
        add(&unmatched, 1, &long, false, &many);
        let shown = &unmatched.by_domain(None)[0];
        assert_eq!(shown.domain, "é".repeat(LONGEST_TEXT / 2));
        assert_eq!(shown.domain, unmatched.by_domain(Some(&long))[0].domain);
        let entries = &shown.descriptors[0].entries;
        assert_eq!(
            entries[0],
            EntryText {
                key: "key".to_owned(),
                value: format!("{}…", "é".repeat(62)),
            }
        );
        assert_eq!(
            (entries.len(), &*entries[MAX_ENTRIES].key),
            (MAX_ENTRIES + 1, "…")
        );
        let bytes: usize = entries
            .iter()
            .map(|entry| entry.key.len() + entry.value.len())
            .sum();
        assert!(
            bytes <= MAX_DESCRIPTOR_BYTES + 2 * (MAX_ENTRIES + 1) * MARK.len(),
            "{bytes}"
        );
        add(&unmatched, 2, "b", false, &[("bytes", "x")]);
        unmatched.add(
            b"b",
            false,
            &[Entry {
                key: b"k",
                value: b"a\xffb",
            }],
            7,
        );
        assert_eq!(values(&unmatched, "b")[0], "a\u{fffd}b");
    }

    #[test]
    fn a_kind_has_so_many_samples_in_a_second() {
        let quota = Quota::default();
        assert_eq!(
            (0..100).filter(|_| quota.take(7)).count(),
            usize::from(SAMPLES)
        );
        assert!(quota.take(8), "another kind");
        quota.renew();
        assert!(quota.take(7));
    }

    #[test]
    fn what_a_limit_matches_is_no_sample() {
        use crate::limits::rules::compile::rules_of;
        let text = "domain: d\ndescriptors:\n- { key: a, rate_limit: { name: first, unit: day, \
            requests_per_unit: 1 } }\n- { key: b, rate_limit: { unit: day, requests_per_unit: 1, \
            replaces: [{ name: first }] } }\n";
        let rules = std::sync::Arc::new(rules_of(text));
        let (unmatched, quota) = (Unmatched::default(), Quota::default());
        for domain in ["d", "e"] {
            let mut request = DecodedRequest::default();
            request.domain = domain.as_bytes();
            for (key, value) in [("a", "replaced"), ("b", "checked"), ("c", "free")] {
                request.push(Entry {
                    key: key.as_bytes(),
                    value: value.as_bytes(),
                });
                request.close(Descriptor::default());
            }
            let plan = Plan::new(&rules, &request, &crate::limits::plan::Options::default());
            unmatched.observe(&quota, &request, &plan);
        }
        assert_eq!(values(&unmatched, "d"), ["free"]);
        assert_eq!(
            values(&unmatched, "e"),
            ["free", "checked", "replaced"],
            "an unknown domain has no limit"
        );
        assert_eq!(
            unmatched
                .by_domain(None)
                .iter()
                .map(|domain| domain.is_known)
                .collect::<Vec<_>>(),
            [true, false]
        );
    }
}
