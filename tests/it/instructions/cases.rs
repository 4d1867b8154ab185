//! What is counted: the steps of a request in memory, one algorithm's step, and matching in few and in many limits.

use std::collections::VecDeque;
use std::fmt::Write;
use std::hint::black_box;
use std::sync::Arc;

use futures_util::FutureExt;
use prost::Message;
use weir::algorithm::{Algorithm, Kind, Moment, Options, State};
use weir::ask::Entry;
use weir::limiter::{self, Limiter, Outage, outage};
use weir::live::Live;
use weir::metrics::{Core, Metrics};
use weir::plan::{self, Plan};
use weir::proto::rate_limit_descriptor::Entry as WireEntry;
use weir::proto::{RateLimitDescriptor, RateLimitRequest};
use weir::rls::decode::decode;
use weir::rls::{self, Rls};
use weir::rules::Rules;
use weir::rules::compile::{self, SourceText, compile};
use weir::store::{AnyStore, Memory, memory};
use weir::time::{Micros, Rate, Span, Unit};

/// Begins the line of a case: then come the calls, a space and the name.
pub const COUNTED: &str = "counted: ";

/// Calls that are counted of each case, after as many that warm it up.
const CALLS: usize = 1_000;

/// Customers in turn; more than a few, so that no single place in a hash map decides.
const CUSTOMERS: usize = 500;

/// Equal rules that are asked in turn: how long a look-up searches depends a little on the random key of each hash map.
const SETS: usize = 8;

const START: Micros = Micros(1_800_000_000_000_000);

/// What callgrind counts. Its name is all that it is told.
#[inline(never)]
pub fn counted_by_callgrind(call: &mut dyn FnMut()) {
    for _ in 0..CALLS {
        call();
    }
}

/// The end of what callgrind counts.
#[inline(never)]
pub fn no_more_counted_by_callgrind() {
    black_box(());
}

fn count(name: &str, mut call: impl FnMut()) {
    (0..CALLS).for_each(|_| call());
    counted_by_callgrind(black_box(&mut call));
    no_more_counted_by_callgrind();
    println!("{COUNTED}{CALLS} {name}");
}

#[test]
#[ignore = "run under callgrind by its neighbour"]
fn counted() {
    // The line of the test runner ends here.
    println!();
    for descriptors in [1, 3, 10] {
        request(descriptors);
    }
    for (name, kind) in Kind::NAMED {
        step(name, kind);
    }
    for count in [10, 100, 1_000] {
        matching(count);
    }
}

fn rules(limits: &str) -> Rules {
    let text = format!("domain: shop\ndescriptors:\n{limits}").into_bytes();
    compile(&[SourceText { name: "shop.yaml".to_owned(), text }], &compile::Options::default()).expect("good limits").rules
}

/// A hundred limits on three levels.
fn usual() -> Rules {
    let mut text = String::new();
    for product in 0..10 {
        let _ = write!(text, "- key: product\n  value: p-{product}\n  descriptors:\n  - key: customer\n    descriptors:\n");
        for path in 0..10 {
            let _ = writeln!(text, "    - {{key: path, value: /{path}, rate_limit: {{unit: hour, requests_per_unit: 4000000000}}}}");
        }
    }
    rules(&text)
}

/// An encoded request of so many descriptors, each for a limit of its own.
fn message(descriptors: usize, customer: usize) -> Vec<u8> {
    let entry = |key: &str, value: String| WireEntry { key: key.into(), value: value.into() };
    let descriptor = |path| RateLimitDescriptor {
        entries: vec![
            entry("product", format!("p-{}", customer % 10)),
            entry("customer", format!("c-{customer:08}")),
            entry("path", format!("/{path}")),
        ],
        ..Default::default()
    };
    RateLimitRequest { domain: "shop".to_owned(), descriptors: (0..descriptors).map(descriptor).collect(), hits_addend: 0 }.encode_to_vec()
}

/// A service that decides in memory by the usual rules.
fn service() -> Rls {
    let metrics = Metrics::new(1, 0.8);
    let live = Arc::new(Live::new(Arc::clone(&metrics)));
    live.replace(usual());
    let store = AnyStore::Memory(Memory::new(memory::Options::default()));
    let limiter = Limiter::new(None, store, Outage::new(outage::Options::default()), limiter::Options::default());
    Rls::new(live, limiter, metrics, Core(0), rls::Options::default())
}

fn request(descriptors: usize) {
    let messages = || -> VecDeque<Vec<u8>> { (0..CUSTOMERS).map(|customer| message(descriptors, customer)).collect() };
    let of = |what: &str| format!("{what}, {descriptors} descriptors");
    let mut all = messages();
    count(&of("decode"), || {
        all.rotate_left(1);
        drop(black_box(decode(black_box(&all[0])).expect("a request")));
    });
    let (mut all, rules, options) = (messages(), Arc::new(usual()), plan::Options::default());
    count(&of("decode and plan"), || {
        all.rotate_left(1);
        drop(black_box(Plan::new(&rules, &decode(&all[0]).expect("a request"), &options)));
    });
    let (mut all, service) = (messages(), service());
    count(&of("from request to answer in memory"), || {
        all.rotate_left(1);
        let answer = service.answer(&all[0], None).now_or_never().expect("memory does not wait").expect("an answer");
        drop(black_box(answer));
    });
}

fn step(name: &str, kind: Kind) {
    let requests_per_unit = if kind == Kind::SlidingWindowLog { 100 } else { 4_000_000 };
    let rate = Rate { requests_per_unit, unit: Unit::Minute, unit_multiplier: 1 };
    let algorithm = Algorithm::try_new(&rate, &Options { kind, ..Options::default() }).expect("options that belong together");
    let (mut state, mut now): (Option<State>, _) = (None, START);
    count(&format!("step of {name}"), || {
        now = now + Span::from_micros(100_000);
        state = black_box(algorithm.step(state.take(), Moment { now, patience: Span::ZERO }, 1)).state;
    });
}

fn matching(limits: usize) {
    let written = |value: &dyn Fn(usize) -> String| {
        let limit = |place| format!("- {{key: path, value: '{}', rate_limit: {{unit: hour, requests_per_unit: 9}}}}\n", value(place));
        let text = (0..limits).map(limit).collect::<String>();
        (0..SETS).map(|_| rules(&text)).collect::<VecDeque<Rules>>()
    };
    let find = |name: &str, mut sets: VecDeque<Rules>, value: &dyn Fn(usize) -> String| {
        let mut values: VecDeque<String> = (0..CUSTOMERS).map(|place| value(place % limits)).collect();
        count(&format!("match one of {limits} {name}"), || {
            values.rotate_left(1);
            sets.rotate_left(1);
            black_box(sets[0].find(b"shop", &[Entry { key: b"path", value: black_box(values[0].as_bytes()) }]));
        });
    };
    find("values", written(&|place| format!("/{place:04}")), &|place| format!("/{place:04}"));
    find("prefixes", written(&|place| format!("/{place:04}/*")), &|place| format!("/{place:04}/x"));
}
