//! The limits of every server, a hundred on three levels, and the requests, which match all of
//! them.
//!
//! The same limits are written in the format of Weir and envoyproxy/ratelimit, and in that of
//! limitador. A further limit of three hits a year serves to check that servers refuse.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use weir::core::proto::rate_limit_descriptor::Entry;
use weir::core::proto::{RateLimitDescriptor, RateLimitRequest};

use super::load::{EncodedRequest, RequestSequence};

/// Distinct users, and so the number of counters for each kind of descriptor.
pub const KEYS: usize = 10_000;

/// Hits a minute, more than the load sends.
pub const PER_MINUTE: u32 = 1_000_000;

/// Hits a minute for a log, whose amount must not exceed 100,000. A key gets about ten hits a
/// second.
const PER_MINUTE_OF_A_LOG: u32 = 1_000;

/// The amount of the limit that is exceeded.
pub const NARROW: u32 = 3;

/// The amount of the limit whose admitted hits are counted.
pub const THOUSAND: u32 = 1_000;

const ROUTES: usize = 11;
const PLANS: [&str; 4] = ["free", "bronze", "silver", "gold"];

/// The limits of every user of each route, of each plan, and of every user of each plan; and one
/// for addresses.
pub const LIMITS: usize = 1 + ROUTES * (1 + 2 * PLANS.len());

/// The length of the drawn order of keys, which is repeated.
const DRAWS: usize = 1 << 17;

/// The amount per minute for this algorithm.
pub fn per_minute(algorithm: &str) -> u32 {
    if algorithm == "sliding_window_log" {
        PER_MINUTE_OF_A_LOG
    } else {
        PER_MINUTE
    }
}

/// Writes `config/*.yaml` and `limitador*.yaml` into a folder.
pub fn write(folder: &Path, algorithm: &str) {
    let config = folder.join("config");
    fs::create_dir_all(&config).expect("a folder of our own");
    let files = [
        (config.join("bench.yaml"), tree(algorithm)),
        (config.join("exact.yaml"), exact(algorithm)),
        (folder.join("limitador.yaml"), for_limitador()),
        (
            folder.join("limitador-one.yaml"),
            ONE_FOR_LIMITADOR.to_owned() + NARROW_FOR_LIMITADOR,
        ),
    ];
    for (path, text) in files {
        fs::write(path, text).expect("a folder of our own");
    }
}

/// A fixed window whose busy keys are answered with hits drawn ahead.
pub const WITH_LEASE: &str = "fixed_window, lease: true";

/// The rate in YAML. `algorithm` is written only when it is not the default, because other servers
/// do not know this key.
fn rate(algorithm: &str, unit: &str, hits: u32) -> String {
    let algorithm = if algorithm == "fixed_window" {
        String::new()
    } else {
        format!(", algorithm: {algorithm}")
    };
    format!("rate_limit: {{ unit: {unit}, requests_per_unit: {hits}{algorithm} }}")
}

fn tree(algorithm: &str) -> String {
    let rate = rate(algorithm, "minute", per_minute(algorithm));
    let mut text = format!("domain: bench\ndescriptors:\n  - key: remote_address\n    {rate}\n");
    for route in 0..ROUTES {
        let _ = writeln!(
            text,
            "  - key: route\n    value: /api/v1/{route}\n    descriptors:\n      - key: \
             user\n        {rate}"
        );
        for plan in PLANS {
            let _ = writeln!(
                text,
                "      - key: plan\n        value: {plan}\n        {rate}"
            );
            let _ = writeln!(
                text,
                "        descriptors:\n          - key: user\n            {rate}"
            );
        }
    }
    assert_eq!(text.matches("rate_limit").count(), LIMITS);
    text
}

fn exact(algorithm: &str) -> String {
    let (narrow, thousand) = (
        rate("fixed_window", "year", NARROW),
        rate(algorithm, "day", THOUSAND),
    );
    format!(
        "domain: exact\ndescriptors:\n  - key: narrow\n    {narrow}\n  - key: thousand\n    \
         {thousand}\n"
    )
}

const ONE_FOR_LIMITADOR: &str = "\
- namespace: bench
  max_value: 1000000
  seconds: 60
  conditions: []
  variables: [\"descriptors[0]['route']\", \"descriptors[0]['user']\"]
";

const NARROW_FOR_LIMITADOR: &str = "\
- namespace: exact
  max_value: 3
  seconds: 31536000
  conditions: []
  variables: [\"descriptors[0]['narrow']\"]
";

/// A limit of limitador applies when its conditions hold and its variables exist, also when the
/// descriptor has further entries; `!(x in y)` excludes descriptors of other levels.
fn for_limitador() -> String {
    let mut text = NARROW_FOR_LIMITADOR.to_owned();
    let mut limit = |conditions: &[String], variable: &str| {
        let conditions: Vec<String> = conditions
            .iter()
            .map(|condition| format!("\"{condition}\""))
            .collect();
        let variables = if variable.is_empty() {
            String::new()
        } else {
            format!("\"descriptors[0]['{variable}']\"")
        };
        let _ = writeln!(
            text,
            "- namespace: bench\n  max_value: {PER_MINUTE}\n  seconds: 60"
        );
        let _ = writeln!(
            text,
            "  conditions: [{}]\n  variables: [{variables}]",
            conditions.join(", ")
        );
    };
    let (has, lacks) = (
        |key: &str| format!("'{key}' in descriptors[0]"),
        |key: &str| format!("!('{key}' in descriptors[0])"),
    );
    let is = |key: &str, value: &str| {
        format!("'{key}' in descriptors[0] && descriptors[0]['{key}'] == '{value}'")
    };
    limit(&[has("remote_address")], "remote_address");
    for route in 0..ROUTES {
        let route = is("route", &format!("/api/v1/{route}"));
        limit(&[route.clone(), lacks("plan"), has("user")], "user");
        for plan in PLANS {
            limit(&[route.clone(), is("plan", plan), lacks("user")], "");
            limit(&[route.clone(), is("plan", plan), has("user")], "user");
        }
    }
    text
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |&(key, value): &(&str, &str)| Entry {
        key: key.into(),
        value: value.into(),
    };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..Default::default()
    }
}

/// The request of Envoy for one call of one user, with one descriptor or with three.
pub fn request(key: usize, descriptors: usize) -> RateLimitRequest {
    let (user, route, plan) = (
        format!("user-{key:05}"),
        format!("/api/v1/{}", key % ROUTES),
        PLANS[key % PLANS.len()],
    );
    let address = format!("10.0.{}.{}", key / 256, key % 256);
    let of_user = descriptor(&[("route", &route), ("user", &user)]);
    let all = match descriptors {
        1 => vec![of_user],
        _ => vec![
            of_user,
            descriptor(&[("remote_address", &address)]),
            descriptor(&[("route", &route), ("plan", plan), ("user", &user)]),
        ],
    };
    RateLimitRequest {
        domain: "bench".to_owned(),
        descriptors: all,
        hits_addend: 0,
    }
}

/// A request for one key of the domain `exact`.
pub fn exact_request(key: &str, value: &str) -> RateLimitRequest {
    RateLimitRequest {
        domain: "exact".to_owned(),
        descriptors: vec![descriptor(&[(key, value)])],
        hits_addend: 0,
    }
}

/// How often each key is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Keys {
    /// All equally often.
    Uniform,
    /// The n-th most frequent key 1/n times as often as the first.
    Zipf,
    /// Always the same one.
    One,
}

/// The requests of a load.
pub fn requests(keys: Keys, descriptors: usize) -> RequestSequence {
    let all = (0..KEYS)
        .map(|key| EncodedRequest::new(&request(key, descriptors)))
        .collect();
    // A fixed seed, so that every server gets the same requests.
    let mut random = fastrand::Rng::with_seed(7);
    let order = match keys {
        Keys::Uniform => (0..DRAWS).map(|_| random.u32(..KEYS as u32)).collect(),
        Keys::One => vec![0],
        Keys::Zipf => {
            let mut sum = 0.0;
            let sums: Vec<f64> = (1..=KEYS)
                .map(|rank| (sum += 1.0 / rank as f64, sum).1)
                .collect();
            (0..DRAWS)
                .map(|_| {
                    sums.partition_point(|&below| below < random.f64() * sum)
                        .min(KEYS - 1) as u32
                })
                .collect()
        }
    };
    RequestSequence::new(all, order)
}

/// The first keys in turn, each exactly as often as the others.
pub fn in_turn(keys: usize) -> RequestSequence {
    RequestSequence::new(
        (0..keys)
            .map(|key| EncodedRequest::new(&request(key, 1)))
            .collect(),
        (0..keys as u32).collect(),
    )
}

/// The same request each time.
pub fn always(request: &RateLimitRequest) -> RequestSequence {
    RequestSequence::new(vec![EncodedRequest::new(request)], vec![0])
}
