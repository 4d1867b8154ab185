//! Settings as flags and variables give them.

use std::num::NonZeroU32;
use std::path::PathBuf;

use super::*;
use crate::limiter::replicas::Source;
use crate::limits::rules::Commit;
use crate::limits::rules::limit::OnStoreFailure;

/// Reads flags; each variable that a test depends on is given as a flag, because the machine's
/// environment must not matter.
fn read(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Settings, SettingError> {
    let (flags, warnings) = setting::read(arguments).expect("flags");
    let variable = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    let variables: Vec<_> = environment.iter().map(variable).collect();
    Settings::from_flags(flags, warnings, &variables)
}

fn settings(arguments: &[&str]) -> Settings {
    read(arguments, &[]).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

fn error(arguments: &[&str]) -> String {
    read(arguments, &[]).expect_err("invalid").to_string()
}

#[test]
fn limits_are_where_the_reference_has_them() {
    let istio = ["--runtime-root=/data", "--runtime-subdirectory=ratelimit"];
    let slashes = [
        "--runtime-root=/data",
        "--runtime-subdirectory=/ratelimit",
        "--runtime-appdirectory=/config",
    ];
    let subdirectory = ["--runtime-subdirectory=ratelimit", "--runtime-root="];
    let appdirectory = ["--runtime-appdirectory=limits", "--runtime-root="];
    for (arguments, path) in [
        (&istio[..], "/data/ratelimit/config"),
        (&[], "config"),
        (&slashes, "/data/ratelimit/config"),
        // As in a manifest that leaves the root to the image of envoyproxy/ratelimit.
        (
            &subdirectory[..1],
            "/srv/runtime_data/current/ratelimit/config",
        ),
        (&subdirectory, "/srv/runtime_data/current/ratelimit/config"),
        (&appdirectory[..1], "/srv/runtime_data/current/limits"),
        (&appdirectory, "/srv/runtime_data/current/limits"),
        (&["--config=x.yaml"], "x.yaml"),
    ] {
        let found = settings(arguments).files.path;
        assert_eq!(found, PathBuf::from(path), "{arguments:?}");
    }
    for (arguments, beside) in [
        (&istio[..], true),
        (&[], false),
        (&[&istio[..], &["--config=c"]].concat(), false),
        (
            &[&istio[..], &["--runtime-watch-root=false"]].concat(),
            false,
        ),
        (&[&istio[..], &["--runtime-appdirectory="]].concat(), false),
        (&["--runtime-subdirectory=ratelimit"], true),
    ] {
        let found = settings(arguments).files.beside;
        assert_eq!(found, beside, "{arguments:?}");
    }
}

#[test]
fn the_backend_follows_the_url() {
    let redis = ["--redis-url=r:6379", "--backend-type=memory"];
    assert!(matches!(settings(&[]).backend, Backend::Memory(_)));
    let backend = settings(&redis[..1]).backend;
    assert!(matches!(backend, Backend::Redis { .. }));
    assert!(matches!(settings(&redis).backend, Backend::Memory(_)));
    assert!(error(&["--backend-type=redis"]).contains("REDIS_URL=host:6379"));
    assert!(read(&["--backend-type", "memcache"], &[]).is_err());
    assert!(read(&["--redis-type", ""], &[]).is_ok());
    assert!(settings(&["--redis-health-check-active-connection"]).redis_health);
    let warned = read(
        &["--redis-url", "r:6379", "--redis-tls-cacert", "/ca"],
        &[("MEMCACHE_TLS", "true")],
    )
    .expect("settings")
    .warnings;
    assert_eq!(warned.len(), 2, "{warned:?}");
}

#[test]
fn a_setting_of_redis_without_its_url_is_refused() {
    let settings = [
        ["--redis-auth=hunter2", "REDIS_AUTH"],
        ["--redis-sentinel-auth=hunter2", "REDIS_SENTINEL_AUTH"],
        ["--redis-tls", "REDIS_TLS"],
        ["--redis-persecond", "REDIS_PERSECOND"],
        ["--redis-persecond-url=r:6379", "REDIS_PERSECOND_URL"],
    ];
    for [argument, name] in settings {
        let remedy = "write REDIS_URL=host:6379, or BACKEND_TYPE=memory to count in memory";
        assert_eq!(
            error(&[argument]),
            format!("{name} needs REDIS_URL; {remedy}")
        );
        assert!(
            read(&[argument, "--backend-type=memory"], &[]).is_ok(),
            "{argument}"
        );
    }
    assert!(read(&["--redis-auth="], &[]).is_ok(), "empty is not set");
}

#[test]
fn any_log_format_but_json_is_text() {
    for (format, is_json, warnings) in [
        ("text", false, 0),
        ("TEXT", false, 0),
        ("", false, 0),
        ("JSON", true, 0),
        ("plain", false, 1),
    ] {
        let settings = read(&["--log-format", format], &[]).expect("a format");
        assert_eq!(
            (settings.log_format == Format::Json, settings.warnings.len()),
            (is_json, warnings),
            "{format}"
        );
    }
}

#[test]
fn sizes_that_the_reference_accepts_are_accepted() {
    for (bytes, used, warnings) in [
        ("0", 0, 0),
        ("67108864", 64 << 20, 0),
        ("10000000000", 256 << 20, 1),
        ("0x100000", 1 << 20, 0),
    ] {
        let settings = read(&["--local-cache-size-in-bytes", bytes], &[]).expect("a size");
        assert_eq!(
            (settings.denials.bytes, settings.warnings.len()),
            (used, warnings),
            "{bytes}"
        );
    }
    let negative = read(&["--local-cache-size-in-bytes=-1"], &[]).expect("a size");
    assert_eq!((negative.denials.bytes, negative.warnings.len()), (0, 1));
}

/// A warning names the costs if there are any.
#[test]
fn stop_increment_is_a_default_of_commit() {
    let flag = "--stop-cache-key-increment-when-overlimit";
    let of = settings;
    let per_second = [
        "--redis-url=a:1",
        "--redis-persecond",
        "--redis-persecond-url=b:1",
        "--redis-type=cluster",
    ];
    assert_eq!(of(&[]).files.compile.process.commit, Commit::Each);
    for (arguments, costs) in [
        (&[][..], &[][..]),
        (&["--redis-url=a:1"], &[]),
        (
            &["--redis-url=a:1", "--redis-type=cluster"],
            &["one hash slot"],
        ),
        (&per_second[..3], &["not in that of REDIS_PERSECOND_URL"]),
        (&per_second, &["one hash slot", "REDIS_PERSECOND_URL"]),
    ] {
        let settings = of(&[arguments, &[flag]].concat());
        assert_eq!(settings.files.compile.process.commit, Commit::AllOrNone);
        let warnings = settings.warnings;
        let are_said = costs.iter().all(|cost| warnings[0].contains(cost));
        assert!(
            warnings.len() == usize::from(!costs.is_empty()) && are_said,
            "{warnings:?}"
        );
        assert_eq!(of(arguments).warnings, Vec::<String>::new());
    }
    let months = of(&["--use-calendar-month-rate-limit"]);
    assert!(months.files.compile.process.calendar_months && months.rls.plan.calendar_months);
}

#[test]
fn invalid_values_are_refused_with_a_remedy() {
    for (arguments, hint) in [
        (["--cache-key-prefix", "{x}"], "leave them out"),
        (["--redis-type", "cluster"], "REDIS_URL=host:6379"),
        (["--host", "no such host"], "0.0.0.0"),
        (
            ["--grpc-client-tls-cacert", "/ca"],
            "GRPC_SERVER_USE_TLS=true",
        ),
    ] {
        assert!(error(&arguments).contains(hint), "{arguments:?}");
    }
    for (argument, hint) in [
        ("--workers=0", "1 to 1024"),
        ("--near-limit-ratio=NaN", "0 to 1"),
    ] {
        let error = setting::read::<Flags>(&[argument]).err();
        assert!(error.is_some_and(|error| error.to_string().contains(hint)));
    }
}

#[test]
fn outages_and_denied_keys_are_set_by_four_flags() {
    let default = settings(&[]);
    assert_eq!(default.rls.plan.on_store_failure, OnStoreFailure::Error);
    let fixed = |count| Source::Fixed(NonZeroU32::new(count).expect("not 0"));
    assert_eq!(
        (
            default.outage.replicas,
            default.outage.max_keys,
            default.denials.bytes
        ),
        (fixed(1), 100_000, 8 << 20)
    );
    for (name, policy) in OnStoreFailure::NAMED {
        let plan = settings(&["--on-store-failure", name]).rls.plan;
        assert_eq!(plan.on_store_failure, policy);
    }
    let set = settings(&[
        "--on-store-failure=LOCAL",
        "--replicas=3",
        "--local-max-keys=5000",
        "--local-cache-size-in-bytes=0",
    ]);
    assert_eq!(
        (set.outage.replicas, set.outage.max_keys, set.denials.bytes),
        (fixed(3), 5_000, 0)
    );
    let by_name = [
        "--replicas=dns:ratelimit-headless",
        "--redis-url=127.0.0.1:6379",
    ];
    let followed = settings(&by_name);
    assert!(
        matches!(&followed.outage.replicas, Source::Dns(name) if name.to_string() == "dns:ratelimit-headless")
    );
    assert!(followed.warnings.is_empty(), "{:?}", followed.warnings);
    let in_memory = settings(&by_name[..1]).warnings;
    assert!(
        in_memory[0].starts_with("REPLICAS has no effect: counters are in memory"),
        "{in_memory:?}"
    );
}

#[test]
fn values_out_of_bounds_are_refused_with_the_bounds() {
    for (arguments, hint) in [
        (["--store-timeout", "0"], "1ms to 1h"),
        (["--memory-max-keys", "999"], "1000 to 4000000000"),
        (["--drain-delay", "25h"], "0 to 1h"),
        (
            ["--on-store-failure", "pass"],
            "error, allow, deny or local",
        ),
        (["--replicas", "0"], "write a number from 1 on, or dns:"),
        (["--replicas", "dns:10.0.0.1"], "is an address"),
        (["--local-cache-size-in-bytes", "8MiB"], "whole number"),
        (["--grpc-port", "65536"], "0 to 65535"),
        (["--redis-pool-size", "many"], "1 or more"),
    ] {
        let refused = setting::read::<Flags>(&arguments)
            .map(|_| ())
            .expect_err("out of bounds");
        assert!(
            refused.to_string().contains(hint),
            "{arguments:?}: {refused}"
        );
    }
    let never = settings(&[
        "--grpc-max-connection-age=0",
        "--grpc-max-connection-age-grace=2540400h",
    ])
    .server;
    assert_eq!(
        (never.max_connection_age, never.max_connection_age_grace),
        (parse::NEVER, parse::NEVER)
    );
}

#[test]
fn header_names_are_validated() {
    let enabled = "--limit-response-headers-enabled";
    let named = |name| read(&[enabled, "--limit-reset-header", name], &[]);
    assert!(named("X-RateLimit-Reset").is_ok());
    for invalid in ["", "x y", "x:", "x\r\ny", "\u{e4}"] {
        assert!(
            named(invalid)
                .expect_err("an invalid name")
                .to_string()
                .starts_with("LIMIT_RESET_HEADER: "),
            "{invalid:?}"
        );
    }
    let enabled = "--limit-request-headers-enabled";
    for header in ["limit", "remaining", "reset"] {
        let flag = format!("--limit-request-{header}-header");
        let refused = read(&[enabled, &flag, "x y"], &[]).expect_err("an invalid name");
        let variable = flag[2..].to_uppercase().replace('-', "_");
        assert!(refused.to_string().starts_with(&variable), "{refused}");
    }
    for unused in ["--limit-reset-header", "--limit-request-reset-header"] {
        assert!(read(&[unused, ""], &[]).is_ok(), "no such header is sent");
    }
}

#[test]
fn a_switch_may_stand_alone_or_have_a_value() {
    let merges = |arguments: &[&str]| settings(arguments).files.compile.merge_domains;
    assert!(!merges(&[]));
    assert!(
        merges(&["--merge-domain-config"])
            && merges(&["--merge-domain-config=1"])
            && merges(&["--merge_domain_configs"])
    );
    assert!(!merges(&["--merge-domain-config=false"]));
    let omits = |arguments: &[&str]| settings(arguments).metrics.omits_unused_limits;
    assert!(!omits(&[]) && omits(&["--metrics-omit-unused-limits"]));
}
