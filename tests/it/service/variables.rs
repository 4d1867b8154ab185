//! Every variable of envoyproxy/ratelimit, through the start of the real binary: it acts, is named
//! in the log, or stops the start with a reason. The table is
//! `tests/vectors/reference_variables.txt`.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use weir::core::proto::RateLimitResponse;
use weir::core::proto::rate_limit_response::Code;

use crate::support::wait::eventually_async;
use crate::support::{Client, RedisServer, Weir, ask, descriptor, ports, tools};

/// What Weir does with a value of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The file of the test of its effect, and the function or the line in it.
    Acts(&'static str, &'static str),
    Warns,
    Refuses,
    Accepted,
}

struct Variable {
    name: &'static str,
    default: &'static str,
    other: &'static str,
    effect: Effect,
}

fn variables() -> Vec<Variable> {
    let text = include_str!("../../vectors/reference_variables.txt");
    let empty = |text: &'static str| if text == "-" { "" } else { text };
    let row = |line: &'static str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let effect = match words[3..] {
            ["warns"] => Effect::Warns,
            ["refuses"] => Effect::Refuses,
            ["accepted"] => Effect::Accepted,
            [file, function] => Effect::Acts(file, function),
            _ => panic!("{line}"),
        };
        Variable {
            name: words[0],
            default: empty(words[1]),
            other: words[2],
            effect,
        }
    };
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(row)
        .collect()
}

/// Settings, or the beginnings of their names, that need another listener or another kind of Redis
/// than those of `all_at_once`. The tests that the table names start them.
const ELSEWHERE: &[&str] = &[
    "GRPC_UDS",
    "GRPC_SERVER_USE_TLS",
    "GRPC_SERVER_TLS_",
    "GRPC_CLIENT_TLS_",
    "REDIS_TLS",
    "REDIS_PERSECOND_TLS",
    "REDIS_SENTINEL_AUTH",
    "REDIS_PERSECOND_SENTINEL_AUTH",
];

fn run(environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .env_clear()
        .envs(environment.iter().copied())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("the binary runs")
}

#[test]
fn the_named_tests_exist() {
    for Variable { name, effect, .. } in variables() {
        if let Effect::Acts(file, function) = effect {
            let text = if function == "all_at_once" {
                include_str!("variables.rs").to_owned()
            } else {
                tools::file(file)
            };
            assert!(
                text.contains(&format!("fn {function}("))
                    || text.lines().any(|line| line == function),
                "{name}: no {function} in {file}"
            );
        }
    }
}

/// Each is refused alone, and all are refused together, with one line for each.
#[test]
fn what_is_refused_is_named_with_a_reason() {
    let refused: Vec<_> = variables()
        .into_iter()
        .filter(|variable| variable.effect == Effect::Refuses)
        .collect();
    for Variable { name, other, .. } in &refused {
        // Were it not refused, the start would end at the folder that is missing.
        let output = run(&[(name, other), ("RUNTIME_ROOT", "/no/such")]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name}: {text}");
        let reason = text
            .trim()
            .strip_prefix(&format!("weir: {name}={other}: "))
            .unwrap_or_else(|| panic!("{name} is not named: {text}"));
        assert!(
            reason.split_whitespace().count() > 4 && !reason.contains('\n'),
            "{name}: {reason}"
        );
    }
}

/// The variables whose empty text means something else than no variable, and the folder of limits
/// that they lead to.
const EMPTY_IS_A_VALUE: [(&str, &str); 1] = [("RUNTIME_APPDIRECTORY", "/srv/runtime_data/current")];

/// Manifests set variables to nothing. None stops the start, alone or with all others, and each
/// means its default. The starts end at a folder that is missing.
#[test]
fn empty_variables_are_as_none() {
    let here = tempfile::tempdir().expect("a folder without limits");
    let start = |command: &str, environment: &[(&str, &str)]| {
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        weir.arg(command)
            .env_clear()
            .envs(environment.iter().copied())
            .current_dir(here.path());
        let output = weir.output().expect("the binary runs");
        // Without the times of lines of the log.
        let text = [output.stdout, output.stderr]
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .concat();
        let lines: Vec<_> = text
            .lines()
            .map(|line| {
                line.split_once("Z ")
                    .map_or(line, |(_, line)| line)
                    .to_owned()
            })
            .collect();
        (output.status.code(), lines)
    };
    let table =
        <weir::process::settings::Flags as clap::Args>::augment_args(clap::Command::new("weir"));
    let variables: Vec<_> = table
        .get_arguments()
        .filter_map(|argument| argument.get_env()?.to_str())
        .collect();
    assert!(variables.len() > 120, "{}", variables.len());
    for command in ["serve", "check"] {
        let none = start(command, &[]);
        assert!(
            none.0 == Some(1) && none.1.iter().any(|line| line.contains("config")),
            "{none:?}"
        );
        for variable in &variables {
            let empty = start(command, &[(variable, "")]);
            match EMPTY_IS_A_VALUE.iter().find(|(name, _)| name == variable) {
                None => assert_eq!(empty, none, "{command} {variable}="),
                Some((_, folder)) => assert!(
                    empty.0 == Some(1) && empty.1.iter().any(|line| line.contains(folder)),
                    "{empty:?}"
                ),
            }
        }
        let mut all: Vec<_> = table
            .get_arguments()
            .filter_map(|argument| argument.get_env()?.to_str())
            .map(|name| (name, ""))
            .collect();
        all.retain(|(name, _)| {
            EMPTY_IS_A_VALUE
                .iter()
                .all(|(exception, _)| exception != name)
        });
        assert_eq!(start(command, &all), none, "{command}");
    }
}

/// What `weir serve` refuses in its environment, `weir check` refuses too, with the same words.
#[test]
fn check_sees_the_mistakes_of_the_settings() {
    for (environment, named) in [
        (&[("NEAR_LIMIT_RATIO", "-1")][..], "NEAR_LIMIT_RATIO: "),
        (&[("REDIS_TYPE", "cluster")], "REDIS_TYPE needs REDIS_URL"),
        (
            &[
                ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
                ("CONFIG_GRPC_XDS_DEFAULTS", "algorithm: none"),
            ],
            "CONFIG_GRPC_XDS_DEFAULTS: ",
        ),
    ] {
        let [serve, check] = ["serve", "check"].map(|command| {
            let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
            let output = weir
                .arg(command)
                .env_clear()
                .envs(environment.iter().copied())
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .output();
            let output = output.expect("the binary runs");
            (
                output.status.code(),
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )
        });
        assert_eq!(check, serve);
        assert!(check.0 == Some(2) && check.1.contains(named), "{check:?}");
    }
}

async fn call(client: &mut Client, domain: &str, key: &str) -> RateLimitResponse {
    ask(client, domain, vec![descriptor(&[(key, "x")])]).await
}

/// Limits by the second are in the second Redis, keys begin as they were told to, and live without
/// jitter.
async fn assert_counted_apart(redis: &RedisServer, second: &RedisServer, client: &mut Client) {
    let (keys, seconds) = (redis.keys(), second.keys());
    assert!(
        keys.iter().all(|key| key.starts_with("mine:w1{merged}|")) && keys.len() == 2,
        "{keys:?}"
    );
    assert!(
        seconds.len() == 1 && seconds[0].starts_with("mine:w1{seconds|"),
        "{seconds:?}"
    );
    let day = keys
        .iter()
        .find(|key| key.contains("|b=x"))
        .expect("counted");
    let (ttl, answer): (u64, _) = (redis.run(&["TTL", day]), call(client, "merged", "b").await);
    let left = answer.statuses[0]
        .duration_until_reset
        .expect("a reset")
        .seconds
        .unsigned_abs();
    assert!(
        (left..=left + 6).contains(&ttl),
        "without jitter: {ttl} s for a window of {left} s"
    );
}

/// Four files, of which two are of one domain and one is hidden.
fn write_limits(folder: &Path) {
    let limits = folder.join("ratelimit/limits");
    fs::create_dir_all(&limits).expect("a folder");
    let limit = |domain: &str, key: &str, unit: &str| {
        format!(
            "domain: {domain}\ndescriptors: [{{ key: {key}, rate_limit: {{ unit: {unit}, \
             unit_multiplier: 9, requests_per_unit: 4 }} }}]\n"
        )
    };
    for (name, text) in [
        ("a.yaml", limit("merged", "a", "year")),
        ("b.yaml", limit("merged", "b", "day")),
        (
            "c.yaml",
            "commit: each\n".to_owned() + &limit("seconds", "c", "second"),
        ),
        (".d.yaml", "domain: [".to_owned()),
    ] {
        fs::write(limits.join(name), text).expect("written");
    }
}

/// Those that do not stop the start and have no test of their own.
fn variables_that_start() -> Vec<Variable> {
    let set: Vec<_> = variables()
        .into_iter()
        .filter(|variable| variable.effect != Effect::Refuses && variable.name != "CONFIG_TYPE")
        .filter(|variable| {
            !ELSEWHERE
                .iter()
                .any(|start| variable.name.starts_with(start))
        })
        .collect();
    assert!(set.len() > 90, "{}", set.len());
    set
}

/// What has no effect, or not the one of the reference, has a warning that names it.
fn assert_warned(log: &[String], set: &[Variable]) {
    let warned = |name: &str| {
        let is_named = |line: &String| {
            line.contains(r#""level":"warn""#)
                && line
                    .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .any(|word| word == name)
        };
        log.iter().any(is_named)
    };
    for Variable { name, effect, .. } in set {
        // This setting names another one in the line about its cost.
        let is_named_elsewhere = [
            "REDIS_URL",
            "REDIS_PERSECOND_URL",
            "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        ]
        .contains(name);
        // Here the limits come from files.
        let warns = *effect == Effect::Warns || name.contains("XDS_");
        assert!(
            is_named_elsewhere || warned(name) == warns,
            "{name} {effect:?}:\n{}",
            log.join("\n")
        );
    }
}

/// Files of one domain are merged, headers have their names, and nothing is refused.
async fn assert_limits_are_in_force(weir: &Weir, client: &mut Client) {
    for (count, key) in [(1, "a"), (2, "a"), (3, "a"), (1, "b")] {
        let answer = call(client, "merged", key).await;
        assert_eq!(
            answer.statuses[0].limit_remaining,
            4 - count,
            "{key}: files of one domain are merged, and `.d.yaml` is ignored"
        );
        let headers: Vec<_> = answer
            .response_headers_to_add
            .iter()
            .map(|header| header.key.as_str())
            .collect();
        assert_eq!(headers[..3], ["X-Limit", "X-Remaining", "X-Reset"]);
        let upstream = answer.request_headers_to_add.iter();
        let upstream: Vec<_> = upstream.map(|header| header.key.as_str()).collect();
        assert_eq!(upstream, ["X-Up-Limit", "X-Up-Remaining", "X-Up-Reset"]);
        assert!(answer.dynamic_metadata.is_some());
    }
    let series = |name: &str| {
        weir.metric(&format!(
            "ratelimit_service_rate_limit_{name}{{domain=\"merged\",key1=\"a\"}}"
        ))
    };
    assert_eq!(
        (series("total_hits"), series("near_limit")),
        (Some(3.0), Some(1.0)),
        "above half of the limit"
    );
    call(client, "merged", "a").await;
    let last = call(client, "merged", "a").await;
    assert_eq!(
        (last.overall_code(), last.statuses[0].code()),
        (Code::Ok, Code::OverLimit),
        "in shadow mode"
    );
}

/// The variables that do not stop the start, all with other values than their defaults.
#[tokio::test]
async fn all_at_once() {
    let (redis, second) = (
        RedisServer::start_with(&["--requirepass", "first"]),
        RedisServer::start_with(&["--requirepass", "second"]),
    );
    let folder = tempfile::tempdir().expect("a folder");
    write_limits(folder.path());
    let root = folder.path().to_string_lossy().into_owned();
    let (http_port, grpc_port) = (
        ports::free().port().to_string(),
        ports::free().port().to_string(),
    );
    let (redis_url, second_url) = (redis.url(), second.url());
    let filled = HashMap::from([
        ("$ROOT", root.as_str()),
        ("$HTTP_PORT", &http_port),
        ("$GRPC_PORT", &grpc_port),
        ("$REDIS", &redis_url),
        ("$PERSECOND", &second_url),
    ]);
    let set = variables_that_start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .env_clear()
        .envs([("DRAIN_DELAY", "0s"), ("STORE_TIMEOUT", "5s")]);
    for Variable {
        name,
        default,
        other,
        ..
    } in &set
    {
        assert!(
            other != default || *name == "USE_STATSD",
            "{name}: another value"
        );
        command.env(name, filled.get(other).unwrap_or(other));
    }
    let weir = Weir::spawn(command, folder);

    let addresses = [
        (weir.grpc_addr(), grpc_port.clone()),
        (weir.http_addr(), http_port.clone()),
    ];
    assert!(
        addresses
            .iter()
            .all(|(address, port)| address.to_string() == format!("127.0.0.1:{port}")),
        "{addresses:?}"
    );
    assert_warned(&weir.logs(), &set);
    // With REDIS_HEALTH_CHECK_ACTIVE_CONNECTION it is ready once both servers have answered.
    let ready =
        eventually_async(|| (weir.get("/healthcheck") == (200, "OK".to_owned())).then_some(()))
            .await;
    assert!(ready.is_some(), "{:?}", weir.get("/healthcheck"));

    let client = &mut weir.client().await;
    assert_limits_are_in_force(&weir, client).await;
    call(client, "seconds", "c").await;
    assert_counted_apart(&redis, &second, client).await;
}
