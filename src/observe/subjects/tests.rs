//! Subjects of decisions: what is counted, what is shown, and how many bytes it takes.

use std::sync::Arc;

use super::*;
use crate::core::answer::{Decision, Decisions};
use crate::core::request::{Descriptor, Entry};
use crate::core::time::Span;
use crate::core::verdict::{StoreError, Verdict, Wait};
use crate::limits::plan::Options;
use crate::limits::rules::Rules;
use crate::limits::rules::compile::rules_of;

const LIMITS: &str = "
domain: shop
descriptors:
- key: user
  rate_limit: { unit: minute, requests_per_unit: 5 }
- key: trial
  rate_limit: { unit: minute, requests_per_unit: 5 }
  shadow_mode: true
- key: path
  value: /a*
  share_threshold: true
  rate_limit: { unit: minute, requests_per_unit: 5 }
";

fn verdict(allowed: bool) -> Verdict {
    Verdict {
        allowed,
        remaining: 0,
        used: 1,
        reset_after: Span::ZERO,
        retry_after: Wait::For(Span::ZERO),
        delay: Span::ZERO,
    }
}

/// A request of one descriptor with one entry.
fn one<'a>(domain: &'a str, key: &'a str, value: &'a [u8], hits: u64) -> DecodedRequest<'a> {
    let mut request = DecodedRequest::default();
    request.domain = domain.as_bytes();
    let key = key.as_bytes();
    request.push(Entry { key, value });
    let mut descriptor = Descriptor::default();
    descriptor.hits_addend = Some(hits);
    request.close(descriptor);
    request
}

fn query(window: Recent, by: Ranking, count: usize) -> Query {
    Query {
        window,
        by,
        count,
        domain: None,
        limit: None,
        subjects: hashbrown::HashSet::default(),
    }
}

fn allowed() -> Decision {
    Decision::Store(verdict(true))
}

fn refused() -> Decision {
    Decision::Store(verdict(false))
}

/// A process with one thread that decides.
struct Process {
    subjects: Arc<Subjects>,
    rules: Arc<Rules>,
}

impl Process {
    fn new() -> Self {
        Self {
            subjects: Subjects::new(1),
            rules: Arc::new(rules_of(LIMITS)),
        }
    }

    fn decide(&self, key: &str, value: &[u8], hits: u64, decision: Decision) {
        let request = one("shop", key, value, hits);
        let plan = Plan::new(&self.rules, &request, &Options::default());
        observe(
            &self.subjects,
            Core(0),
            &request,
            &plan,
            &Decisions::from_iter([decision]),
        );
    }

    fn top(&self, by: Ranking) -> Heaviest {
        self.subjects.heaviest(&query(Recent::Minute, by, 100))
    }
}

fn observe(
    subjects: &Subjects,
    core: Core,
    request: &DecodedRequest<'_>,
    plan: &Plan,
    decisions: &Decisions,
) {
    subjects.observe(core, request, plan, &plan.outcomes(decisions));
}

/// A subject as one line: limit, entries, hits, refused hits, and the error of hits.
fn lines(heaviest: &Heaviest) -> Vec<String> {
    let line = |ranked: &Ranked| {
        let entries = ranked.subject.entries.iter();
        let entries: Vec<_> = entries
            .map(|entry| format!("{}={}", entry.key, entry.value))
            .collect();
        let (limit, entries) = (&ranked.subject.limit, entries.join(" "));
        let (hits, refused, error) = (ranked.hits, ranked.refused, ranked.hits_error);
        format!("{limit} {entries} {hits} {refused} {error}")
    };
    heaviest.subjects.iter().map(line).collect()
}

#[test]
fn what_an_override_blocks_is_refused() {
    use crate::core::time::Micros;
    use crate::limits::overrides::{EntryRecord, Overrides, Record};
    let process = Process::new();
    process.decide("user", b"ann", 2, allowed());
    process.decide("path", b"/ab", 1, allowed());
    let block = |(domain, key): (&str, &str)| {
        let record = Record {
            kind: "block".to_owned(),
            domain: domain.to_owned(),
            entries: vec![EntryRecord {
                key: key.to_owned(),
                value: None,
                value_sha256: None,
            }],
            ..Record::default()
        };
        record.read().expect("an override")
    };
    let blocked = [
        ("shop", "user"),
        ("shop", "path"),
        ("shop", "none"),
        ("other", "user"),
    ];
    let overrides = Overrides::new(blocked.map(block).to_vec());
    let observe_blocked =
        |domain: &'static str, key: &'static str, value: &'static [u8], hits: u64| {
            let (request, overrides) = (one(domain, key, value, hits), overrides.at(Micros(1)));
            let plan = Plan::with_overrides(
                &process.rules,
                Some(overrides),
                &request,
                &Options::default(),
            );
            observe(
                &process.subjects,
                Core(0),
                &request,
                &plan,
                &Decisions::default(),
            );
        };
    observe_blocked("shop", "user", b"ann", 3);
    observe_blocked("shop", "path", b"/ac", 4);
    observe_blocked("shop", "none", b"x", 5);
    observe_blocked("other", "user", b"ann", 1);
    // A peek counts nothing.
    observe_blocked("shop", "user", b"bob", 0);
    let by_hits = process.top(Ranking::Hits);
    assert_eq!(
        lines(&by_hits),
        [
            "(none) none=x 5 5 0",
            "shop.path_/a* path=/a* 5 4 0",
            "shop.user user=ann 5 3 0",
            "(none) user=ann 1 1 0"
        ],
        "a blocked subject is the one that it was before"
    );
    assert_eq!(by_hits.total, 16);
    assert_eq!(process.top(Ranking::Refusals).total, 13);
    assert_eq!(
        by_hits.subjects[3].subject.name.as_deref(),
        Some("other|user=ann")
    );
}

#[test]
fn hits_and_refusals_are_counted_by_subject() {
    let process = Process::new();
    let (allowed, refused) = (allowed(), refused());
    let error = StoreError::NotExecuted("test");
    for _ in 0..3 {
        process.decide("user", b"ann", 2, allowed);
        process.decide("user", b"bob", 1, Decision::DenialCache(verdict(false)));
    }
    process.decide("user", b"bob", 1, allowed);
    process.decide("user", b"carl", 4, Decision::PolicyRefuses(error));
    process.decide("user", b"carl", 3, Decision::Fails(error));
    // A peek counts nothing, and a limit in shadow mode refuses nothing.
    process.decide("user", b"dora", 0, refused);
    process.decide("trial", b"ann", 1, refused);
    // Values that match a pattern share a counter.
    process.decide("path", b"/ab", 1, allowed);
    process.decide("path", b"/ac", 1, refused);
    let top = process.top(Ranking::Hits);
    let expected = [
        "shop.user user=carl 7 4 0",
        "shop.user user=ann 6 0 0",
        "shop.user user=bob 4 3 0",
        "shop.path_/a* path=/a* 2 1 0",
        "shop.trial trial=ann 1 0 0",
    ];
    assert_eq!(lines(&top), expected);
    assert_eq!((top.total, top.error_at_most), (20, 0));
    let top = process.top(Ranking::Refusals);
    assert_eq!(
        lines(&top),
        [
            "shop.user user=carl 7 4 0",
            "shop.user user=bob 4 3 0",
            "shop.path_/a* path=/a* 2 1 0"
        ]
    );
    assert_eq!((top.total, top.error_at_most), (8, 0));
    let mut domains = top.subjects.iter().map(|ranked| &ranked.subject.domain);
    assert!(domains.all(|domain| domain == "shop"));
    // A second answer has the same: reading takes nothing away.
    assert_eq!(process.top(Ranking::Refusals).subjects, top.subjects);
    let hour = query(Recent::Hour, Ranking::Refusals, 2);
    let hour = process.subjects.heaviest(&hour);
    assert_eq!(hour.subjects, top.subjects[..2]);
}

#[test]
fn a_filter_selects_by_domain_and_by_limit() {
    let process = Process::new();
    process.decide("user", b"ann", 1, allowed());
    process.decide("trial", b"ann", 1, allowed());
    for (domain, limit, found) in [
        (None, None, 2),
        (Some("shop"), None, 2),
        (Some("sho"), None, 0),
        (None, Some("shop.user"), 1),
        (Some("shop"), Some("shop.other"), 0),
    ] {
        let top = process.subjects.heaviest(&Query {
            domain: domain.map(str::to_owned),
            limit: limit.map(str::to_owned),
            ..query(Recent::Minute, Ranking::Hits, 10)
        });
        assert_eq!(
            (top.subjects.len(), top.total),
            (found, 2),
            "{domain:?} {limit:?}"
        );
    }
}

#[test]
fn a_request_of_a_locked_pane_is_an_error_of_all_and_waits_for_nothing() {
    let process = Process::new();
    process.decide("user", b"ann", 5, allowed());
    {
        let _reader = lock(&process.subjects.parts[0].pane);
        process.decide("user", b"ann", 3, refused());
    }
    let top = process.top(Ranking::Hits);
    assert_eq!(
        (lines(&top), top.total, top.error_at_most),
        (vec!["shop.user user=ann 5 0 3".to_owned()], 8, 3)
    );
    let top = process.top(Ranking::Refusals);
    assert_eq!(
        (top.subjects.len(), top.total, top.error_at_most),
        (0, 3, 3)
    );
}

#[test]
fn limits_of_requests_and_long_texts_are_shown_too() {
    let mut texts = Vec::new();
    let key = format!("prefix:w1{{shop|user={}|path=/}}fw60", "%7b".repeat(100));
    let (head, tail) = text::write(&mut texts, Path::Request, key.as_bytes());
    assert!(texts.len() <= text::MAX_BYTES && head + tail == texts.len());
    let subject = text::read(&texts[..head], &texts[head..]);
    assert_eq!((&*subject.limit, &*subject.domain), (REQUEST_LIMIT, "shop"));
    let crate::limits::plan::key::EntryText { key, value } = &subject.entries[0];
    let (start, digest) = value.split_once('…').expect("a mark");
    let are_braces = start.chars().all(|c| c == '{') && start.len() > 50;
    let digits = digest.strip_prefix("sha256:").expect("a digest");
    assert!(key == "user" && are_braces && digits.len() == 32, "{value}");
    // Keys of any bytes and lengths are read without a panic, and stay apart.
    let mut seen = std::collections::HashSet::new();
    for length in 180..420 {
        let key =
            format!("w1{{shop|user={}}}", "%41x".repeat(length)).into_bytes()[..length].to_vec();
        let mut texts = Vec::new();
        let (head, tail) = text::write(&mut texts, Path::Request, &key);
        let is_whole = texts.len() <= text::MAX_BYTES && head + tail == texts.len();
        let is_new = seen.insert(text::read(&texts[..head], &texts[head..]).entries);
        assert!(is_whole && is_new, "{length}");
    }
}

#[test]
fn a_long_path_is_cut_between_characters() {
    let long = "ü".repeat(200);
    let rules = rules_of(&format!(
        "domain: d\ndescriptors:\n- key: k\n  value: {long}\n  rate_limit: {{ unit: day, \
         requests_per_unit: 1 }}\n"
    ));
    let limit = rules.limits().next().expect("a limit");
    let mut texts = Vec::new();
    let (head, _) = text::write(&mut texts, Path::Limit(limit), b"w1{d|k=v}");
    let path = str::from_utf8(&texts[..head]).expect("whole characters");
    assert!(
        path.starts_with("d.k_üü") && path.ends_with("ü…") && path.len() <= 128,
        "{path}"
    );
    assert_eq!(
        text::path(&limit.path()),
        path.as_bytes(),
        "a filter is cut alike"
    );
    assert_eq!(text::path("d.k"), b"d.k");
}

/// The bound of all of it, for one worker and for very many.
#[test]
fn all_panes_take_at_most_their_bytes() {
    for cores in [1, 2, 3, 9, 17, 65, 1_025] {
        let mut made = None;
        let info = allocation_counter::measure(|| made = Some(Subjects::new(cores)));
        assert!(
            info.bytes_max <= (WINDOW_BYTES + WORKER_BYTES) as u64,
            "{cores}: {} bytes",
            info.bytes_max
        );
        let subjects = made.expect("made");
        assert!(subjects.parts.len() == cores);
    }
    const { assert!(MAX_BYTES <= 8 << 20) };
}

/// A hostile client sends new values only, each as long as it is of use to it.
#[test]
fn endless_new_values_take_no_memory_and_a_ranking_of_them_is_bounded() {
    let process = Process::new();
    let refuse = |number: u32| {
        let value = format!("{number:0>120}");
        process.decide("user", value.as_bytes(), 1, refused());
    };
    // Memory that a request takes until it is answered is freed, and does not count.
    let info = allocation_counter::measure(|| {
        for number in 0..60_000 {
            refuse(number);
            if number % 10 == 0 {
                refuse(u32::MAX);
            }
            // Ten minutes pass, to fill all panes of the hour.
            if number % 8_000 == 7_999 {
                let mut collected = lock(&process.subjects.collected);
                process.subjects.collect(&mut collected);
                collected
                    .windows
                    .advance(Duration::from_secs(600) * (number / 8_000 + 1));
            }
        }
    });
    assert_eq!(info.bytes_current, 0, "nothing is kept");
    for by in [Ranking::Hits, Ranking::Refusals] {
        let mut top = None;
        let query = query(Recent::Hour, by, 20);
        let heaviest = || top = Some(process.subjects.heaviest(&query));
        let bytes = allocation_counter::measure(heaviest).bytes_max;
        assert!(bytes <= RANKING_BYTES as u64, "{bytes} bytes");
        let top = top.expect("a ranking");
        assert_eq!(top.total, 66_000 - 8_800, "the first ten minutes are over");
        let heaviest = &top.subjects[0];
        let expected = format!("{:0>120}", u32::MAX);
        assert_eq!(heaviest.subject.entries[0].value, expected);
        let hits = heaviest.hits..=heaviest.hits + heaviest.hits_error;
        assert!(hits.contains(&5_200), "{heaviest:?}");
        let error = top.error_at_most;
        assert!(error <= 2 * 66_000 / 500, "{error}");
    }
}

/// One subject whose first hits went to the sums of light subjects in one sketch only.
#[test]
fn both_rankings_show_one_subject_alike() {
    let process = Process::new();
    let (allowed, refused) = (allowed(), refused());
    for number in 0..20_000_u32 {
        process.decide("user", number.to_string().as_bytes(), 1, allowed);
    }
    for number in 0..120 {
        let decision = if number < 5 { allowed } else { refused };
        process.decide("user", b"ann", 1, decision);
    }
    let entry = |by| {
        let mut subjects = process.top(by).subjects.into_iter();
        let ann = subjects.find(|ranked| ranked.subject.entries[0].value == "ann");
        ann.expect("ann")
    };
    let ann = entry(Ranking::Hits);
    assert_eq!(ann, entry(Ranking::Refusals));
    assert_eq!((ann.refused, ann.refused_error), (115, 0));
    assert!(
        (115..=120).contains(&ann.hits) && 120 <= ann.hits + ann.hits_error,
        "{ann:?}"
    );
}
