//! Files of limits: they load or are refused with a reason at a place in the file; strictness adds
//! refusals only; and each limit that loads answers the requests that it is written for.

use std::sync::{Arc, LazyLock};

use futures_util::FutureExt;
use prost::Message;

use crate::core::proto::rate_limit_descriptor::Entry as WireEntry;
use crate::core::proto::rate_limit_response::Code;
use crate::core::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use crate::core::request::Entry;
use crate::limiter::Limiter;
use crate::limits::plan;
use crate::limits::rules::Rules;
use crate::limits::rules::compile::{Compiled, Options, Problem, Severity, SourceText, compile};
use crate::limits::rules::limit::Limit;
use crate::live::Live;
use crate::observe::metrics::{Core, Metrics};
use crate::observe::subjects::Subjects;
use crate::observe::traces::TraceSpan;
use crate::service::rls::{self, Rls};
use crate::store::{Memory, Store, memory};

/// Separates the files of one input.
const SEPARATOR: &[u8] = b"\n%%%\n";

/// The longest problem in characters, whatever the file is.
const MAX_PROBLEM_CHARS: usize = 1_000;

/// Limits of one input that are asked.
const MAX_ASKED: usize = 50;

pub(super) fn check(input: &[u8]) {
    let files = split(input);
    for merge_domains in [false, true] {
        let loaded = compile(
            &files,
            &Options {
                merge_domains,
                ..Options::default()
            },
        );
        let strict = compile(
            &files,
            &Options {
                merge_domains,
                strict: true,
                ..Options::default()
            },
        );
        let for_check = compile(
            &files,
            &Options {
                merge_domains,
                for_check: true,
                ..Options::default()
            },
        );
        for compiled in [&loaded, &strict, &for_check] {
            check_problems(&files, compiled);
        }
        let warnings = loaded
            .as_ref()
            .map_or(usize::MAX, |loaded| loaded.warnings.len());
        assert_eq!(
            strict.is_ok(),
            warnings == 0,
            "strict loads what has no warning"
        );
        assert!(
            loaded.is_ok() || for_check.is_err(),
            "a check passes only what loads"
        );
        if let Ok(Compiled { rules, .. }) = loaded {
            check_served(rules);
        }
    }
}

/// At most three files.
fn split(mut input: &[u8]) -> Vec<SourceText> {
    let mut files = Vec::new();
    for name in ["a.yaml", "b.yaml", "c.yaml"] {
        let end = input
            .windows(SEPARATOR.len())
            .position(|window| window == SEPARATOR);
        let (text, rest) = end.map_or((input, None), |end| {
            (&input[..end], Some(&input[end + SEPARATOR.len()..]))
        });
        files.push(SourceText {
            name: name.to_owned(),
            text: text.to_vec(),
        });
        let Some(rest) = rest else { break };
        input = rest;
    }
    files
}

fn check_problems(files: &[SourceText], compiled: &Result<Compiled, Vec<Problem>>) {
    let problems = match compiled {
        Ok(compiled) => &compiled.warnings,
        Err(problems) => problems,
    };
    let errors = problems
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .count();
    assert_eq!(errors > 0, compiled.is_err(), "{problems:?}");
    for problem in problems {
        let file = files
            .iter()
            .find(|file| file.name == problem.file)
            .expect("one of the files");
        let shown = problem.to_string();
        assert!(!shown.contains(char::is_control), "{shown:?}");
        let length = shown.chars().count();
        assert!(
            length <= MAX_PROBLEM_CHARS,
            "{length} characters: {}...",
            shown.chars().take(200).collect::<String>()
        );
        assert!(
            !problem.message.what.is_empty() && !problem.message.remedy.is_empty(),
            "{problem:?}"
        );
        if problem.line == 0 {
            assert!(
                problem.column == 0 && problem.message.what.contains("file"),
                "{problem:?}"
            );
            continue;
        }
        // Only \n and \r end lines.
        let text = String::from_utf8_lossy(&file.text);
        let lines = text.split(['\n', '\r']).count() + 1;
        assert!(
            problem.line <= lines && (1..=text.chars().count() + 1).contains(&problem.column),
            "{lines} lines: {problem:?}"
        );
        if !text.contains('\r') {
            let columns = text
                .split('\n')
                .nth(problem.line - 1)
                .map_or(0, |line| line.chars().count())
                + 1;
            assert!(problem.column <= columns, "{columns} columns: {problem:?}");
        }
    }
}

/// Asks limits for what they are written for, each as if nothing had been asked before.
fn check_served(rules: Rules) {
    let limits: Vec<Limit> = rules.limits().take(MAX_ASKED).cloned().collect();
    let live = Arc::new(live(rules));
    for (number, limit) in limits.iter().enumerate() {
        let texts: Vec<_> = limit
            .levels
            .iter()
            .map(|level| {
                (
                    level.key.replace('*', "x"),
                    level
                        .value
                        .as_deref()
                        .unwrap_or("any value")
                        .replace('*', "x"),
                )
            })
            .collect();
        let entries: Vec<_> = texts
            .iter()
            .map(|(key, value)| Entry {
                key: key.as_bytes(),
                value: value.as_bytes(),
            })
            .collect();
        let snapshot = live.load().expect("rules");
        let domain = limit.domain.as_bytes();
        assert!(snapshot.rules.commit(domain).is_some(), "{limit:?}");
        let found = snapshot.rules.find(domain, &entries);
        let is_exact = limit.levels.iter().all(|level| {
            !level.key.contains('*')
                && level
                    .value
                    .as_ref()
                    .is_some_and(|value| !value.contains('*'))
        });
        assert!(
            !is_exact || found.is_some_and(|found| found.limit.id == limit.id),
            "{limit:?} is written exactly so, but {found:?} is found"
        );
        // Each has counters of its own: an earlier input may have asked for the same.
        let service = service(&live, format!("{number}:{}:", fastrand::u64(..)));
        let expected = found.is_none_or(|found| {
            found.shadow_mode()
                || found
                    .amount()
                    .is_none_or(|amount| amount.algorithm.capacity() > 0)
        });
        let answer = decide(&service, &limit.domain, &entries);
        assert_eq!(
            answer,
            if expected { Code::Ok } else { Code::OverLimit },
            "{limit:?}: {found:?}"
        );
    }
}

/// Asks for one hit.
fn decide(service: &Rls, domain: &str, entries: &[Entry<'_>]) -> Code {
    let entries = entries
        .iter()
        .map(|entry| WireEntry {
            key: entry.key.to_vec(),
            value: entry.value.to_vec(),
        })
        .collect();
    let descriptors = vec![RateLimitDescriptor {
        entries,
        ..Default::default()
    }];
    let request = RateLimitRequest {
        domain: domain.to_owned(),
        descriptors,
        hits_addend: 0,
    }
    .encode_to_vec();
    let answer = service
        .answer(&request, None, &TraceSpan::default())
        .now_or_never()
        .expect("the first request is not held")
        .expect("a valid request");
    let response = RateLimitResponse::decode(answer.message()).expect("a response");
    assert_eq!(response.statuses.len(), 1);
    response.overall_code()
}

pub(super) fn live(rules: Rules) -> Live {
    let live = Live::new(Arc::clone(&METRICS));
    live.replace(rules);
    live
}

/// A service in memory, whose keys begin with `key_prefix`.
pub(super) fn service(live: &Arc<Live>, key_prefix: String) -> Rls {
    let plan = plan::Options {
        key_prefix,
        ..plan::Options::default()
    };
    let options = rls::Options {
        plan,
        ..rls::Options::default()
    };
    Rls::builder(Arc::clone(live))
        .limiter(LIMITER.clone())
        .worker(Core(0), Arc::clone(&SUBJECTS))
        .options(options)
        .build()
}

static METRICS: LazyLock<Arc<Metrics>> = LazyLock::new(|| Metrics::new(1, 0.8));

static SUBJECTS: LazyLock<Arc<Subjects>> = LazyLock::new(|| Subjects::new(1));

static LIMITER: LazyLock<Limiter> = LazyLock::new(|| {
    let store = Store::Memory(Memory::new(memory::Options {
        max_keys: 10_000,
        ..Default::default()
    }));
    Limiter::of(store)
});
