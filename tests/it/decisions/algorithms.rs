//! The tables in `tests/vectors/algorithms/*.txt`, `all_or_none.txt`, `changed_amounts.txt`,
//! `answers.txt` and `hits.txt`, run on the pure step of each algorithm and on the memory store;
//! `redis/algorithms.rs` runs all of them on the script. They are written from the algorithms'
//! definitions.

use weir::core::algorithm::{Algorithm, AlgorithmKind, Arrival, Options, State};
use weir::core::time::{Micros, PeriodKind, Rate, Span, Unit, WEEKDAYS, Zone};
use weir::core::verdict::{Verdict, Wait};
use weir::limits::plan::{AllOrNone, Check, CheckIndex, Checks, Modes};
use weir::limits::rules::Commit;
use weir::store::{Memory, memory};

use crate::support::tools;

/// The time at which every line starts, in microseconds. A minute, an hour and a day begin at it.
const START: u64 = 1_800_057_600_000_000;

/// One line of a table: a sequence of checks on one key.
pub struct Sequence {
    pub name: String,
    pub modes: Modes,
    pub commit: Commit,
    pub asks: Vec<Ask>,
}

/// One request of a line: the limit at this time, the hits of its checks, and the verdicts that the
/// line expects.
pub struct Ask {
    pub algorithm: Algorithm,
    pub at: Arrival,
    pub hits: Vec<i64>,
    /// The id that each check is asked by, where that matters.
    pub ids: Vec<String>,
    pub expected: Vec<Expected>,
}

impl Sequence {
    /// The checks of a request on the one key of the line.
    pub fn checks(&self, key: &str, ask: &Ask) -> Checks {
        let check = |&hits| {
            let check = Check::new(ask.algorithm, hits, self.modes);
            (key.as_bytes(), check)
        };
        let mut checks = Checks::of(ask.hits.iter().map(check));
        for (index, id) in ask.ids.iter().enumerate() {
            checks = checks.with_holder(CheckIndex(index), id.as_bytes());
        }
        checks.commit = self.commit;
        checks
    }

    /// Asserts that these are the verdicts on request `index`.
    pub fn compare(&self, index: usize, verdicts: &[Verdict]) {
        let Self { name, asks, .. } = self;
        assert_eq!(verdicts.len(), asks[index].expected.len(), "{name}");
        for (check, (expected, verdict)) in asks[index].expected.iter().zip(verdicts).enumerate() {
            expected.compare(
                verdict,
                &format!("{name}, request {}, check {}", index + 1, check + 1),
            );
        }
    }
}

/// The fields of a verdict that a line states; `None` for a field that it does not state.
#[derive(Debug)]
pub struct Expected {
    allowed: bool,
    remaining: u64,
    used: Option<u64>,
    retry: Option<Wait>,
    reset: Option<Span>,
    delay: Option<Span>,
}

impl Expected {
    /// Asserts that the verdict has the stated fields; `what` names the check in the message.
    pub fn compare(&self, verdict: &Verdict, what: &str) {
        assert_eq!(
            (verdict.allowed, verdict.remaining),
            (self.allowed, self.remaining),
            "{what}: {verdict:?}"
        );
        assert_eq!(
            self.used.unwrap_or(verdict.used),
            verdict.used,
            "{what}: used"
        );
        assert_eq!(
            self.retry.unwrap_or(verdict.retry_after),
            verdict.retry_after,
            "{what}: retry"
        );
        assert_eq!(
            self.reset.unwrap_or(verdict.reset_after),
            verdict.reset_after,
            "{what}: reset"
        );
        assert_eq!(
            self.delay.unwrap_or_default(),
            verdict.delay,
            "{what}: delay"
        );
    }
}

/// Tables of `tests/vectors` that are named for no algorithm; theirs is a fixed window, or an
/// option.
const TABLES: [&str; 5] = [
    "algorithms/calendar",
    "all_or_none",
    "changed_amounts",
    "answers",
    HITS,
];

/// The table whose lines also run through sockets.
pub const HITS: &str = "hits";

/// All lines of all tables.
pub fn tables() -> Vec<Sequence> {
    let of_algorithms = AlgorithmKind::NAMED
        .into_iter()
        .map(|(name, kind)| (format!("algorithms/{name}"), kind));
    let others = TABLES.map(|name| (name.to_owned(), AlgorithmKind::FixedWindow));
    let lines = |(table, kind): (String, AlgorithmKind)| {
        lines(&table)
            .into_iter()
            .map(move |line| sequence(kind, &line))
    };
    of_algorithms.chain(others).flat_map(lines).collect()
}

/// The four columns of each line of a table.
pub fn lines(table: &str) -> Vec<[String; 4]> {
    let text = tools::file(&format!("tests/vectors/{table}.txt"));
    let columns = |line: &str| {
        let columns: Vec<_> = line
            .split('|')
            .map(|column| column.trim().to_owned())
            .collect();
        columns
            .try_into()
            .unwrap_or_else(|_| panic!("four columns: {line}"))
    };
    let lines: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(columns)
        .collect();
    assert!(lines.len() >= 6, "{table} was not read");
    lines
}

/// `REQUESTS/WINDOW`: seconds, or a unit whose window follows the calendar.
fn rate_of(text: &str) -> (Rate, Option<Unit>) {
    let (requests, window) = text.split_once('/').expect("a rate");
    let calendar = Unit::named(window);
    let (unit, unit_multiplier) = match calendar {
        Some(unit) => (unit, 1),
        None => {
            let secs = window.strip_suffix('s').expect("seconds");
            let secs: u64 = secs.parse().expect("a window");
            if secs.is_multiple_of(31_536_000) {
                (Unit::Year, secs / 31_536_000)
            } else {
                (Unit::Second, secs)
            }
        }
    };
    let rate = Rate {
        requests_per_unit: requests.parse().expect("a limit"),
        unit,
        unit_multiplier: unit_multiplier.try_into().expect("a window"),
    };
    (rate, calendar)
}

/// An option of an algorithm, and whether there is one of this name.
fn set_option(options: &mut Options, name: &str, text: &str) -> bool {
    match name {
        "max_debt" => options.max_debt = Some(text.parse().expect("a number")),
        "scale" => options.scale = Some(text.parse().expect("a number")),
        "burst" => options.burst = Some(text.parse().expect("a number")),
        "bucket_interval" => options.bucket_interval = Some(span(text)),
        "bucket_span" => options.bucket_span = Some(span(text)),
        "max_delay" => options.max_delay = Some(span(text)),
        "max_duration" => options.max_duration = Some(span(text)),
        "timezone" => options.timezone = Some(Zone::named(text).expect("a zone")),
        "week_starts" => {
            options.week_starts = WEEKDAYS
                .iter()
                .find(|(day, _)| *day == text)
                .map(|(_, day)| *day);
        }
        "anchor" => options.anchor = Some(text.parse().expect("an anchor")),
        "count_denied" => options.count_denied = Some(text == "true"),
        "algorithm" => {
            let named = AlgorithmKind::NAMED
                .into_iter()
                .find(|(known, _)| *known == text);
            options.kind = named.expect("an algorithm").1;
        }
        _ => return false,
    }
    true
}

/// Hits, joined by `+`, each with an id behind `:` where it has one.
fn hits_and_ids(word: &str) -> (Vec<i64>, Vec<String>) {
    let hits = |text: &str| {
        if text == "back" {
            return weir::core::algorithm::concurrency::TAKE_BACK;
        }
        let amount = match text.trim_start_matches('-') {
            "max" => u64::MAX,
            amount => amount.parse().expect("hits"),
        };
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        if text.starts_with('-') {
            -amount
        } else {
            amount
        }
    };
    word.split('+')
        .map(|one| one.split_once(':').unwrap_or((one, "")))
        .map(|(text, id)| (hits(text), id.to_owned()))
        .unzip()
}

/// `AMOUNT`, or `AMOUNT/MAX_DURATION`.
fn change_amount(rate: &mut Rate, options: &mut Options, text: &str) {
    let (amount, duration) = text.split_once('/').unwrap_or((text, ""));
    rate.requests_per_unit = amount.parse().expect("a limit");
    if !duration.is_empty() {
        options.max_duration = Some(span(duration));
    }
}

/// How checks of a limit are decided.
struct Deciding {
    modes: Modes,
    commit: Commit,
    max_wait: Span,
}

/// Reads the options of a limit; those of its algorithm into `options`.
fn limit_of<'a>(words: impl Iterator<Item = &'a str>, options: &mut Options) -> Deciding {
    let mut limit = Deciding {
        modes: Modes::default(),
        commit: Commit::Each,
        max_wait: Span::from_secs(3_600),
    };
    for word in words {
        match word.split_once('=').expect("an option") {
            ("patience", text) => limit.max_wait = span(text),
            ("commit", "all_or_none") => limit.commit = Commit::AllOrNone,
            ("mode", mode) => {
                limit.modes = Modes {
                    shadow: mode == "shadow",
                    quota: mode == "quota",
                }
            }
            (name, text) => assert!(set_option(options, name, text), "no option: {name}"),
        }
    }
    limit
}

fn sequence(kind: AlgorithmKind, line: &[String; 4]) -> Sequence {
    let [name, written, hits, expected] = line;
    let mut words = written.split_whitespace();
    let (mut rate, calendar) = rate_of(words.next().expect("a rate"));
    let mut options = Options {
        kind,
        period: calendar.map(|_| PeriodKind::Calendar),
        ..Options::default()
    };
    if kind == AlgorithmKind::Concurrency {
        options.max_duration = rate.window();
        rate = Rate {
            unit: Unit::None,
            unit_multiplier: 1,
            ..rate
        };
    }
    let limit = limit_of(words, &mut options);
    let made = |rate: &Rate, options: &Options| {
        Algorithm::try_new(rate, options).unwrap_or_else(|mistake| panic!("{line:?}: {mistake:?}"))
    };
    let mut algorithm = made(&rate, &options);
    let mut expected = expected.split(',').map(|text| answer(text.trim()));
    let mut now = START;
    let mut asks = Vec::new();
    for word in hits.split_whitespace() {
        match (word.strip_prefix('@'), word.strip_prefix("limit=")) {
            (Some(time), _) if time.ends_with('Z') => {
                let instant: jiff::Timestamp = time.parse().expect("an instant");
                now = instant.as_microsecond().try_into().expect("since 1970");
            }
            (Some(time), _) => now = START.checked_add_signed(micros(time)).expect("a time"),
            (_, Some(amount)) => {
                change_amount(&mut rate, &mut options, amount);
                algorithm = made(&rate, &options);
            }
            (None, None) => {
                let (hits, ids) = hits_and_ids(word);
                let expected: Vec<Expected> = expected.by_ref().take(hits.len()).collect();
                assert_eq!(
                    hits.len(),
                    expected.len(),
                    "as many answers as hits: {line:?}"
                );
                let at = Arrival {
                    now: Micros(now),
                    max_wait: limit.max_wait,
                };
                asks.push(Ask {
                    algorithm,
                    at,
                    hits,
                    ids,
                    expected,
                });
            }
        }
    }
    assert!(
        expected.next().is_none() && !asks.is_empty(),
        "as many answers as hits: {line:?}"
    );
    Sequence {
        name: format!("{:?}: {name}", options.kind),
        modes: limit.modes,
        commit: limit.commit,
        asks,
    }
}

fn answer(text: &str) -> Expected {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [word, remaining, fields @ ..] = &words[..] else {
        panic!("a word and a number: {text}")
    };
    assert!(["ok", "over"].contains(word), "{text}");
    let mut expected = Expected {
        allowed: *word == "ok",
        remaining: remaining.parse().expect("a number"),
        used: None,
        retry: None,
        reset: None,
        delay: None,
    };
    for field in fields.chunks(2) {
        match field {
            ["used", used] => expected.used = Some(used.parse().expect("a number")),
            ["retry", "never"] => expected.retry = Some(Wait::Never),
            ["retry", time] => expected.retry = Some(Wait::For(span(time))),
            ["reset", time] => expected.reset = Some(span(time)),
            ["delay", time] => expected.delay = Some(span(time)),
            _ => panic!("no answer: {text}"),
        }
    }
    expected
}

fn span(text: &str) -> Span {
    Span::from_micros(micros(text).try_into().expect("no time below zero"))
}

/// Seconds with up to six decimals.
fn micros(text: &str) -> i64 {
    let (sign, digits) = text
        .strip_prefix('-')
        .map_or((1, text), |digits| (-1, digits));
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    sign * format!("{whole}{part:0<6}")
        .parse::<i64>()
        .unwrap_or_else(|_| panic!("seconds: {text}"))
}

#[test]
fn the_pure_steps_match_the_tables() {
    for sequence in tables() {
        let mut state: Option<State> = None;
        for (index, ask) in sequence.asks.iter().enumerate() {
            let checks = sequence.checks("key", ask);
            let verdicts: Vec<Verdict> = match sequence.commit {
                Commit::AllOrNone => {
                    let group = AllOrNone::decide(&checks, ask.at, |_| state.clone(), |_, _| true);
                    state = group
                        .writes
                        .into_iter()
                        .next()
                        .map(|(_, state, _)| state)
                        .or(state);
                    group.verdicts.to_vec()
                }
                Commit::Each => {
                    let mut verdict = |index| {
                        let (step, _) = checks.step(index, state.take(), ask.at);
                        state = step.state;
                        step.verdict
                    };
                    checks.indices().into_iter().map(&mut verdict).collect()
                }
            };
            sequence.compare(index, &verdicts);
        }
    }
}

#[test]
fn the_memory_store_matches_the_tables() {
    for sequence in tables() {
        let memory = Memory::new(memory::Options::default());
        for (index, ask) in sequence.asks.iter().enumerate() {
            let checks = sequence.checks("key", ask);
            let answers = memory.decide_at(&checks, &checks.indices(), ask.at);
            let verdicts: Vec<Verdict> = answers
                .verdicts()
                .into_iter()
                .map(|answer| answer.expect("a verdict"))
                .collect();
            sequence.compare(index, &verdicts);
        }
    }
}
