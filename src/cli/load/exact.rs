//! Checks whether a limit is exact: the client counts the hits that each distinct descriptor was
//! granted in each clock-aligned window.
//!
//! A request that was under way at the edge of a window may count before or after it, and one
//! without an answer may count or not. Such hits excuse a shortfall, and never an excess.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use prost::Message;
use serde::Serialize;

use super::super::amount;
use super::super::print;
use super::client::Answered;
use crate::core::proto::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use crate::core::proto::{RateLimitDescriptor, RateLimitResponse};
use crate::core::request::notation::entry;
use crate::core::time::{Micros, Span, Unit};

/// Maximum memory of all counters in bytes, and the memory of one counter without its entries: a
/// slot in a table that may be half empty.
const MAX_BYTES: usize = 256 << 20;
const COUNTER_BYTES: usize = 160;

/// Longest delay until the client notices that the timeout of a request has passed.
const STALL: Duration = Duration::from_secs(1);

/// The longest window, in seconds: a year.
const MAX_WINDOW_SECS: u64 = 366 * 86_400;

/// The hits of each distinct descriptor that are granted in each window of the clock. Windows have
/// `multiplier` units, and are counted from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpectedHits {
    /// The descriptor of each request that is compared, from 1 on; `None` for all.
    pub(super) descriptor: Option<usize>,
    hits: u64,
    unit: Unit,
    multiplier: u64,
}

impl ExpectedHits {
    /// Reads `100/minute`, `20/30 seconds`, or `2=5/minute`.
    ///
    /// # Errors
    /// The form of valid hits.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (number, rate) = match text.split_once('=') {
            Some((number, rate)) => (Some(number.trim().parse()), rate),
            None => (None, text),
        };
        let parsed = rate.split_once('/').and_then(|(hits, unit)| {
            let (multiplier, unit) = amount::multiple(unit.trim())?;
            let unit = Unit::named(&unit).filter(|unit| unit.secs() <= Unit::Day.secs())?;
            let multiplier = u64::from(multiplier);
            let secs = multiplier * unit.secs();
            (1..=MAX_WINDOW_SECS).contains(&secs).then_some(Self {
                descriptor: number.transpose().ok()?,
                hits: amount::whole(hits.trim()).ok()?,
                unit,
                multiplier,
            })
        });
        parsed.ok_or_else(|| {
            "write hits and a unit, such as 100/minute, 20/30 seconds or, of the second descriptor, \
             2=5/hour; units are second, minute, hour and day, together at most 366 days"
                .to_owned()
        })
    }

    const fn secs(self) -> u64 {
        self.unit.secs() * self.multiplier
    }
}

/// A descriptor in a window.
#[derive(Clone, Copy, Debug, Default)]
struct ExactCounter {
    /// Hits that were surely granted in this window.
    granted: u64,
    /// Hits that may have been granted in it.
    possible: u64,
    /// The most hits of a request that was surely refused in it.
    refused: Option<u64>,
    /// All hits that were requested.
    asked: u64,
}

/// The counts of all descriptors.
pub(super) struct Exactness {
    expected: ExpectedHits,
    patience: Span,
    /// The window in which the load began.
    first: Option<u64>,
    windows: BTreeMap<u64, HashMap<Box<[u8]>, ExactCounter>>,
    bytes: usize,
    max_bytes: usize,
    report: ExactnessReport,
}

/// Result of the check.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ExactnessReport {
    /// The only descriptor of each request that is compared, from 1 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) descriptor: Option<usize>,
    /// The unit of the windows.
    pub(super) unit: &'static str,
    /// Units of a window.
    pub(super) unit_multiplier: u64,
    /// Descriptors in windows that were compared with the expected hits.
    pub(super) checked: u64,
    /// Checked descriptors with more or fewer hits.
    pub(super) wrong: u64,
    /// The descriptor with the largest difference.
    pub(super) worst: Option<Offender>,
    /// Descriptors of requests that were under way at the edge of a window.
    pub(super) at_edges: u64,
    /// Descriptors of requests that were not checked, because too many were distinct.
    pub(super) unchecked: u64,
    /// Checked descriptors that requested more than is expected: others show nothing.
    pub(super) exceeding: u64,
    /// A limit of another window that an answer named, as `20/minute` and `5/30 seconds`.
    pub(super) other_limit: Option<String>,
    /// An answer named no limit for a descriptor that was compared.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) without_limit: bool,
}

impl ExactnessReport {
    /// Whether there was something to compare, and all of it is as expected.
    pub(super) const fn is_exact(&self) -> bool {
        self.wrong == 0 && self.exceeding > 0 && self.other_limit.is_none() && !self.without_limit
    }
}

/// The unit of the limit in an answer.
pub(in crate::cli) fn unit_of(limit: &RateLimit) -> Option<Unit> {
    limit.unit.try_into().ok().and_then(Unit::from_number)
}

/// The length of a window, as in `minute` and `30 seconds`.
pub(in crate::cli) fn window(multiplier: u64, unit: &str) -> String {
    match multiplier {
        1 => unit.to_owned(),
        _ => format!("{multiplier} {unit}s"),
    }
}

/// A descriptor that got more or less than is expected.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Offender {
    pub(super) descriptor: String,
    /// When the window began, in seconds since 1970.
    pub(super) window: u64,
    pub(super) granted: u64,
    /// Of these hits that may belong to the window, none excuses the difference.
    pub(super) possible: u64,
    #[serde(rename = "threshold")]
    pub(super) expected: u64,
    /// The window began before the load: hits of other clients may count in it.
    pub(super) began_before: bool,
}

/// The answer to a descriptor; `None` if its hits may count or not: the descriptor is within its
/// limit, but another one refuses the request. Then its hits are not granted, and they count only
/// with `commit: each`.
fn code_of(response: &RateLimitResponse, index: usize) -> Option<Code> {
    let overall = response.overall_code();
    let code = response.statuses.get(index).map(DescriptorStatus::code);
    let code = code.filter(|code| *code != Code::Unknown);
    let code = code.unwrap_or(overall);
    (code != Code::Ok || overall == Code::Ok).then_some(code)
}

/// The entries of a descriptor, by which it is counted.
fn encoded(descriptor: &RateLimitDescriptor) -> Vec<u8> {
    let mut only_entries = RateLimitDescriptor::default();
    only_entries.entries.clone_from(&descriptor.entries);
    only_entries.encode_to_vec()
}

/// The same, as operators write them.
fn display(entries: &[u8]) -> String {
    let decoded = RateLimitDescriptor::decode(entries).unwrap_or_default();
    let entries = decoded.entries.iter();
    print::words(entries.map(|own| entry(&own.key, &own.value)))
}

impl Exactness {
    /// One for each rule.
    pub(super) fn all(all: &[ExpectedHits], timeout: Duration) -> impl Iterator<Item = Self> {
        all.iter().map(move |&expected| Self {
            expected,
            patience: timeout.saturating_add(STALL).into(),
            first: None,
            windows: BTreeMap::new(),
            bytes: 0,
            max_bytes: MAX_BYTES / all.len(),
            report: ExactnessReport {
                descriptor: expected.descriptor,
                unit: expected.unit.name(),
                unit_multiplier: expected.multiplier,
                ..ExactnessReport::default()
            },
        })
    }

    /// Counts an answer.
    pub(super) fn take(&mut self, answered: &Answered) {
        let [sent, at] = answered.between;
        // An answer that arrives later than this has been given up.
        let last = self.window(Micros(at.0.saturating_sub(self.patience.micros())));
        self.judge_before(last);
        let descriptors = answered.request.descriptors.iter().enumerate();
        let only = self.expected.descriptor;
        let is_compared = |index: usize| only.is_none_or(|number| number == index + 1);
        for (index, descriptor) in descriptors.filter(|(index, _)| is_compared(*index)) {
            let response = answered.result.as_ref().ok();
            let code = response.and_then(|response| code_of(response, index));
            let hits = descriptor.hits_addend.unwrap_or(1);
            if let Some(status) = response.and_then(|response| response.statuses.get(index)) {
                self.compare_window(status, answered.between);
                let is_free = status.current_limit.is_none() && status.code() == Code::Ok;
                self.report.without_limit |= is_free;
            }
            if hits > 0 {
                self.count(&encoded(descriptor), hits, code, [sent, at]);
            }
        }
    }

    /// Notes a limit of another window, or one whose window ends at another time.
    fn compare_window(&mut self, status: &DescriptorStatus, between: [Micros; 2]) {
        let (Some(limit), secs) = (&status.current_limit, self.expected.secs()) else {
            return;
        };
        let reset = status.duration_until_reset.as_ref();
        // Both clocks round seconds.
        let [most, least] = between.map(|at| (secs - at.0 / 1_000_000 % secs) as i64);
        let is_inside = least <= most;
        let ends = |reset: i64| (least - 2..=most + 1).contains(&reset);
        let ends_elsewhere = reset.is_some_and(|reset| is_inside && !ends(reset.seconds));
        let (multiplier, unit) = (limit.unit_multiplier.unwrap_or(1).into(), unit_of(limit));
        let is_other = unit.is_none_or(|unit| unit.secs().saturating_mul(multiplier) != secs);
        if self.report.other_limit.is_none() && (is_other || ends_elsewhere) {
            let name = limit.unit().as_str_name().to_lowercase();
            let until = reset.map_or(0, |reset| reset.seconds);
            let (hits, unit) = (limit.requests_per_unit, window(multiplier, &name));
            let text = format!("{hits}/{unit}, which ends in {until}s");
            self.report.other_limit = Some(text);
        }
    }

    fn count(&mut self, entries: &[u8], hits: u64, code: Option<Code>, between: [Micros; 2]) {
        // A clock that went back makes an empty range.
        let [first, last] = between.map(|at| self.window(at));
        self.first.get_or_insert(first);
        self.report.at_edges += u64::from(first != last);
        for window in first..=last {
            let Some(counter) = self.counter(window, entries) else {
                self.report.unchecked += 1;
                return;
            };
            let add = |sum: &mut u64| *sum = sum.saturating_add(hits);
            add(&mut counter.asked);
            match code {
                Some(Code::Ok) if first == last => add(&mut counter.granted),
                Some(Code::Ok) | None => add(&mut counter.possible),
                Some(_) if first == last => counter.refused = counter.refused.max(Some(hits)),
                Some(_) => {}
            }
        }
    }

    fn window(&self, at: Micros) -> u64 {
        at.0 / Span::from_secs(self.expected.secs()).micros()
    }

    fn counter(&mut self, window: u64, entries: &[u8]) -> Option<&mut ExactCounter> {
        let counters = self.windows.entry(window).or_default();
        if !counters.contains_key(entries) {
            let bytes = self.bytes + COUNTER_BYTES + entries.len();
            if bytes > self.max_bytes {
                return None;
            }
            self.bytes = bytes;
            counters.insert(entries.into(), ExactCounter::default());
        }
        counters.get_mut(entries)
    }

    /// Compares the windows before this one, and forgets them.
    fn judge_before(&mut self, window: u64) {
        while let Some(oldest) = self.windows.first_entry()
            && *oldest.key() < window
        {
            let (window, counters) = oldest.remove_entry();
            for (entries, counter) in counters {
                self.bytes -= COUNTER_BYTES + entries.len();
                self.judge(window, &entries, counter);
            }
        }
    }

    fn judge(&mut self, window: u64, entries: &[u8], counter: ExactCounter) {
        let (granted, possible) = (counter.granted, counter.possible);
        let expected = self.expected.hits;
        self.report.checked += 1;
        self.report.exceeding += u64::from(counter.asked > expected);
        // There was room for whatever was refused. Where refused hits count, the first refused
        // request had no room, and smaller ones after it are refused though they had.
        let taken = granted.saturating_add(possible);
        let is_less = (counter.refused).is_some_and(|most| taken.saturating_add(most) <= expected);
        if granted <= expected && !is_less {
            return;
        }
        self.report.wrong += 1;
        let difference = |granted: u64| granted.abs_diff(expected);
        let worst = self.report.worst.as_ref();
        if worst.is_none_or(|worst| difference(worst.granted) < difference(granted)) {
            self.report.worst = Some(Offender {
                descriptor: display(entries),
                window: window * self.expected.secs(),
                granted,
                possible,
                expected,
                began_before: self.first.is_some_and(|first| window <= first),
            });
        }
    }

    /// Compares all that is left.
    pub(super) fn finish(mut self) -> ExactnessReport {
        self.judge_before(u64::MAX);
        self.report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn exactness(text: &str) -> Exactness {
        let expected = ExpectedHits::parse(text).expect("hits");
        let mut all = Exactness::all(std::slice::from_ref(&expected), Duration::from_secs(1));
        all.next().expect("one")
    }

    /// Counts answers of one hit; instants are in seconds.
    fn counted(expected: &str, answers: &[(Option<Code>, u64, u64, usize)]) -> ExactnessReport {
        let mut exactness = exactness(expected);
        for &(code, sent, at, times) in answers {
            for _ in 0..times {
                exactness.count(b"", 1, code, [Micros(sent * SECOND), Micros(at * SECOND)]);
            }
        }
        exactness.finish()
    }

    const OK: Option<Code> = Some(Code::Ok);
    const OVER: Option<Code> = Some(Code::OverLimit);

    #[test]
    fn one_more_and_one_less_are_found() {
        for (granted, refused, wrong) in [
            (10, 5, 0),
            (11, 5, 1),
            (9, 5, 1),
            (9, 0, 0),
            (10, 0, 0),
            (0, 1, 1),
        ] {
            let report = counted(
                "10/minute",
                &[(OK, 60, 61, granted), (OVER, 62, 63, refused)],
            );
            assert_eq!(report.wrong, wrong, "{granted} {refused}: {report:?}");
            let worst = report.worst.map(|worst| (worst.granted, worst.window));
            assert_eq!(worst, (wrong > 0).then_some((granted as u64, 60)));
        }
    }

    #[test]
    fn only_the_first_window_may_have_hits_from_before() {
        for (before, after, expected) in [(9, 10, Some(true)), (10, 9, Some(false)), (10, 10, None)]
        {
            let answers = [
                (OK, 1, 2, before),
                (OVER, 3, 4, 1),
                (OK, 61, 62, after),
                (OVER, 63, 64, 1),
            ];
            let worst = counted("10/minute", &answers).worst;
            assert_eq!(worst.map(|worst| worst.began_before), expected);
        }
    }

    #[test]
    fn requests_at_an_edge_belong_to_either_side_and_excuse_no_excess() {
        let at_edge = (OK, 59, 60, 1);
        for (before, after, wrong) in [(9, 10, 0), (10, 9, 0), (11, 9, 1), (9, 9, 0), (8, 10, 1)] {
            let answers = [
                (OK, 1, 2, before),
                (OVER, 3, 4, 1),
                at_edge,
                (OK, 61, 62, after),
                (OVER, 63, 64, 1),
            ];
            let report = counted("10/minute", &answers);
            assert_eq!(
                (report.wrong, report.at_edges),
                (wrong, 1),
                "{before} {after}"
            );
        }
        // One without an answer may have counted.
        let report = counted(
            "10/minute",
            &[(None, 1, 2, 1), (OK, 1, 2, 9), (OVER, 3, 4, 1)],
        );
        assert_eq!((report.wrong, report.at_edges), (0, 0));
    }

    #[test]
    fn windows_are_judged_when_no_answer_can_belong_to_them() {
        let mut exactness = exactness("1/second");
        for second in 0..100 {
            let between = [Micros(second * SECOND), Micros(second * SECOND + 1)];
            exactness.judge_before(exactness.window(between[0]).saturating_sub(1));
            exactness.count(b"", 1, OK, between);
            exactness.count(b"", 1, OVER, between);
            assert!(exactness.windows.len() <= 2);
        }
        let report = exactness.finish();
        assert_eq!((report.checked, report.wrong), (100, 0));
    }

    #[test]
    fn memory_is_bounded_and_the_bound_is_reported() {
        let mut exactness = exactness("1/day");
        exactness.max_bytes = 3 * (COUNTER_BYTES + 1);
        for name in [b"a", b"b", b"c", b"d", b"d", b"a"] {
            exactness.count(name, 1, OK, [Micros(0), Micros(1)]);
        }
        let report = exactness.finish();
        assert_eq!((report.checked, report.unchecked, report.wrong), (3, 2, 1));
    }

    #[test]
    fn memory_of_judged_windows_is_free_again() {
        let mut exactness = exactness("1/second");
        exactness.max_bytes = 2 * (COUNTER_BYTES + 1);
        for second in 0..10 {
            exactness.judge_before(second);
            for name in [b"a", b"b", b"c"] {
                exactness.count(name, 1, OK, [Micros(second * SECOND); 2]);
            }
        }
        let report = exactness.finish();
        assert_eq!((report.checked, report.unchecked), (20, 10));
    }

    #[test]
    fn small_requests_behind_a_large_one_that_was_refused_are_no_shortfall() {
        for (granted, refused, wrong) in [
            (90, &[11, 1][..], 0),
            (90, &[10, 1], 1),
            (100, &[1], 0),
            (101, &[50], 1),
            (0, &[200], 0),
        ] {
            let mut exactness = exactness("100/minute");
            exactness.count(b"", granted, OK, [Micros(0); 2]);
            for &hits in refused {
                exactness.count(b"", hits, OVER, [Micros(0); 2]);
            }
            assert_eq!(exactness.finish().wrong, wrong, "{granted} {refused:?}");
        }
    }

    #[test]
    fn hits_of_a_request_that_another_descriptor_refuses_are_not_granted() {
        let code = |overall: Code, statuses: &[Code], index| {
            let status = |code: &Code| DescriptorStatus {
                code: (*code).into(),
                ..Default::default()
            };
            let response = RateLimitResponse {
                overall_code: overall.into(),
                statuses: statuses.iter().map(status).collect(),
                ..Default::default()
            };
            code_of(&response, index)
        };
        let (ok, over) = (Code::Ok, Code::OverLimit);
        assert_eq!(code(ok, &[ok, ok], 1), OK);
        assert_eq!(
            [0, 1].map(|index| code(over, &[ok, over], index)),
            [None, OVER]
        );
        // In a quota mode a descriptor is over its limit, and the request passes.
        assert_eq!([0, 1].map(|index| code(ok, &[ok, over], index)), [OK, OVER]);
        assert_eq!([ok, over].map(|overall| code(overall, &[], 0)), [OK, OVER]);
        assert_eq!(code(over, &[Code::Unknown], 0), OVER);
    }

    #[test]
    fn any_number_of_hits_can_be_counted() {
        let mut exactness = exactness("1/minute");
        for code in [OK, OK, None, None, OVER] {
            exactness.count(b"", u64::MAX, code, [Micros(0); 2]);
        }
        let worst = exactness.finish().worst.expect("it was granted more");
        assert_eq!((worst.granted, worst.possible), (u64::MAX, u64::MAX));
    }

    #[test]
    fn expected_hits_are_read() {
        let expected = |descriptor, hits, multiplier, unit| ExpectedHits {
            descriptor,
            hits,
            unit,
            multiplier,
        };
        for (text, hits) in [
            ("100/Minute", expected(None, 100, 1, Unit::Minute)),
            ("2k/30 seconds", expected(None, 2_000, 30, Unit::Second)),
            ("3 = 5 / 2hours", expected(Some(3), 5, 2, Unit::Hour)),
            ("1/366 days", expected(None, 1, 366, Unit::Day)),
        ] {
            assert_eq!(ExpectedHits::parse(text), Ok(hits), "{text}");
        }
        for text in [
            "",
            "100",
            "/minute",
            "100/",
            "-1/day",
            "100/week",
            "1/none",
            "1.5/second",
            "1/0 minutes",
            "1/367 days",
            "1/99999999999 seconds",
            "x=1/minute",
            "=1/minute",
            "1=2=3/minute",
        ] {
            let error = ExpectedHits::parse(text).expect_err(text);
            assert!(error.contains("100/minute"), "{error}");
        }
    }
}
