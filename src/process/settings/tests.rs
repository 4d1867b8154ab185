//! Settings as flags and variables give them.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Parser;

use super::*;
use crate::limiter::replicas::Source;
use crate::limits::rules::Commit;
use crate::limits::rules::limit::OnStoreFailure;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    flags: Flags,
}

/// Reads flags; each variable that a test depends on is given as a flag, so that the machine's
/// environment does not matter.
fn read(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Settings, SettingError> {
    let flags = Cli::try_parse_from([&["weir"], arguments].concat())
        .expect("flags")
        .flags;
    Settings::from_flags(
        flags,
        &environment
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect::<Vec<_>>(),
    )
}

#[test]
fn limits_are_where_the_reference_has_them() {
    let istio = [
        "--runtime-root",
        "/data",
        "--runtime-subdirectory",
        "ratelimit",
    ];
    assert_eq!(
        read(&istio, &[]).expect("settings").files.path,
        PathBuf::from("/data/ratelimit/config")
    );
    assert_eq!(
        read(&[], &[]).expect("settings").files.path,
        PathBuf::from("config")
    );
    let slashes = [
        "--runtime-root",
        "/data",
        "--runtime-subdirectory",
        "/ratelimit",
        "--runtime-appdirectory",
        "/config",
    ];
    assert_eq!(
        read(&slashes, &[]).expect("settings").files.path,
        PathBuf::from("/data/ratelimit/config")
    );
    // As in a manifest that leaves the root to the image of envoyproxy/ratelimit.
    for (argument, path) in [
        ("--runtime-subdirectory=ratelimit", "ratelimit/config"),
        ("--runtime-appdirectory=limits", "limits"),
    ] {
        let path = PathBuf::from("/srv/runtime_data/current").join(path);
        assert_eq!(read(&[argument], &[]).expect("settings").files.path, path);
        assert_eq!(
            read(&[argument, "--runtime-root="], &[])
                .expect("settings")
                .files
                .path,
            path
        );
    }
    assert_eq!(
        read(&["--config", "x.yaml"], &[])
            .expect("settings")
            .files
            .path,
        PathBuf::from("x.yaml")
    );
}

#[test]
fn the_backend_follows_the_url() {
    assert!(matches!(
        read(&[], &[]).expect("settings").backend,
        Backend::Memory(_)
    ));
    assert!(matches!(
        read(&["--redis-url", "r:6379"], &[])
            .expect("settings")
            .backend,
        Backend::Redis { .. }
    ));
    assert!(matches!(
        read(&["--redis-url", "r:6379", "--backend-type", "memory"], &[])
            .expect("settings")
            .backend,
        Backend::Memory(_)
    ));
    assert!(
        read(&["--backend-type", "redis"], &[])
            .expect_err("no URL")
            .to_string()
            .contains("REDIS_URL=host:6379")
    );
    assert!(read(&["--backend-type", "memcache"], &[]).is_err());
    assert!(read(&["--redis-type", ""], &[]).is_ok());
    assert!(
        read(&["--redis-health-check-active-connection"], &[])
            .expect("settings")
            .redis_health
    );
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
        ["--redis-socket-type=tcp", "REDIS_SOCKET_TYPE"],
        ["--redis-auth=hunter2", "REDIS_AUTH"],
        ["--redis-auth-file=/auth", "REDIS_AUTH_FILE"],
        ["--redis-tls", "REDIS_TLS"],
        ["--redis-tls-cacert=/ca", "REDIS_TLS_CACERT"],
        ["--redis-tls-client-cert=/cert", "REDIS_TLS_CLIENT_CERT"],
        ["--redis-persecond", "REDIS_PERSECOND"],
        ["--redis-persecond-url=r:6379", "REDIS_PERSECOND_URL"],
    ];
    for [argument, name] in settings {
        let error = read(&[argument], &[]).expect_err(argument).to_string();
        assert_eq!(
            error,
            format!(
                "{name} needs REDIS_URL; write REDIS_URL=host:6379, or BACKEND_TYPE=memory to \
                 count in memory"
            )
        );
        assert!(
            read(&[argument, "--backend-type=memory"], &[]).is_ok(),
            "{argument}"
        );
    }
    assert!(read(&["--redis-auth="], &[]).is_ok(), "empty is not set");
}

#[test]
fn settings_without_effect_are_warnings() {
    assert_eq!(
        read(&[], &[("MEMCACHE_SRV", "x")])
            .expect("settings")
            .warnings
            .len(),
        1
    );
    assert!(
        read(&[], &[("USE_STATSD", "false"), ("REDIS_TYPE", "SINGLE")])
            .expect("settings")
            .warnings
            .is_empty()
    );
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

/// The costs are said where there are any.
#[test]
fn stop_increment_is_a_default_of_commit() {
    let flag = "--stop-cache-key-increment-when-overlimit";
    let of = |arguments: &[&str]| read(arguments, &[]).expect("settings");
    assert_eq!(of(&[]).files.compile.process.commit, Commit::Each);
    for (arguments, costs) in [
        (&[][..], &[][..]),
        (&["--redis-url=a:1"], &[]),
        (
            &["--redis-url=a:1", "--redis-type=cluster"],
            &["one hash slot"],
        ),
        (
            &[
                "--redis-url=a:1",
                "--redis-persecond",
                "--redis-persecond-url=b:1",
            ],
            &["not in that of REDIS_PERSECOND_URL"],
        ),
        (
            &[
                "--redis-url=a:1",
                "--redis-type=cluster",
                "--redis-persecond",
                "--redis-persecond-url=b:1",
            ],
            &["one hash slot", "REDIS_PERSECOND_URL"],
        ),
    ] {
        let settings = of(&[arguments, &[flag]].concat());
        assert_eq!(settings.files.compile.process.commit, Commit::AllOrNone);
        assert_eq!(
            settings.warnings.len(),
            usize::from(!costs.is_empty()),
            "{:?}",
            settings.warnings
        );
        assert!(
            costs.iter().all(|cost| settings.warnings[0].contains(cost)),
            "{:?}",
            settings.warnings
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
        (["--workers", "0"], "1 to 1024"),
        (["--near-limit-ratio", "NaN"], "0 to 1"),
        (["--redis-type", "cluster"], "REDIS_URL=host:6379"),
        (["--host", "no such host"], "0.0.0.0"),
        (
            ["--grpc-client-tls-cacert", "/ca"],
            "GRPC_SERVER_USE_TLS=true",
        ),
    ] {
        assert!(
            read(&arguments, &[])
                .expect_err("invalid")
                .to_string()
                .contains(hint),
            "{arguments:?}"
        );
    }
}

#[test]
fn outages_and_denied_keys_are_set_by_four_flags() {
    let default = read(&[], &[]).expect("settings");
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
        assert_eq!(
            read(&["--on-store-failure", name], &[])
                .expect("settings")
                .rls
                .plan
                .on_store_failure,
            policy
        );
    }
    let set = [
        "--on-store-failure",
        "LOCAL",
        "--replicas",
        "3",
        "--local-max-keys",
        "5000",
        "--local-cache-size-in-bytes",
        "0",
    ];
    let set = read(&set, &[]).expect("settings");
    assert_eq!(
        (set.outage.replicas, set.outage.max_keys, set.denials.bytes),
        (fixed(3), 5_000, 0)
    );
    let by_name = [
        "--replicas",
        "dns:ratelimit-headless",
        "--redis-url",
        "127.0.0.1:6379",
    ];
    let followed = read(&by_name, &[]).expect("settings");
    assert!(
        matches!(&followed.outage.replicas, Source::Dns(name) if name.to_string() == "dns:ratelimit-headless")
    );
    assert!(followed.warnings.is_empty(), "{:?}", followed.warnings);
    let in_memory = read(&by_name[..2], &[]).expect("settings").warnings;
    assert!(
        in_memory[0].starts_with("REPLICAS has no effect: counters are in memory"),
        "{in_memory:?}"
    );
}

#[test]
fn values_out_of_bounds_are_refused_with_the_bounds() {
    for (arguments, hint) in [
        (["--store-timeout", "0"], "1ms to 1h"),
        (["--store-timeout", "2h"], "1ms to 1h"),
        (["--memory-max-keys", "999"], "1000..=4000000000"),
        (
            ["--memory-max-keys", "18446744073709551615"],
            "1000..=4000000000",
        ),
        (["--drain-delay", "25h"], "0 to 1h"),
        (
            ["--on-store-failure", "pass"],
            "error, allow, deny or local",
        ),
        (["--replicas", "0"], "write a number from 1 on, or dns:"),
        (["--replicas", "dns:10.0.0.1"], "is an address"),
        (["--local-max-keys", "10"], "1000..=4000000000"),
        (["--local-cache-size-in-bytes", "8MiB"], "whole number"),
        (["--grpc-port", "65536"], "0 to 65535"),
        (["--redis-pool-size", "many"], "1 or more"),
    ] {
        let refused = Cli::try_parse_from([&["weir"], &arguments[..]].concat())
            .map(|_| ())
            .expect_err("out of bounds");
        assert!(
            refused.to_string().contains(hint),
            "{arguments:?}: {refused}"
        );
    }
    let never = read(
        &[
            "--grpc-max-connection-age",
            "0",
            "--grpc-max-connection-age-grace",
            "2540400h",
        ],
        &[],
    )
    .expect("settings")
    .server;
    assert_eq!(
        (never.max_connection_age, never.max_connection_age_grace),
        (parse::NEVER, parse::NEVER)
    );
}

#[test]
fn header_names_are_validated() {
    let named = |name: &str| {
        read(
            &[
                "--limit-response-headers-enabled",
                "--limit-reset-header",
                name,
            ],
            &[],
        )
    };
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
    assert!(
        read(&["--limit-reset-header", ""], &[]).is_ok(),
        "no such header is sent"
    );
}

#[test]
fn a_switch_may_stand_alone_or_have_a_value() {
    let merges = |arguments: &[&str]| {
        read(arguments, &[])
            .expect("settings")
            .files
            .compile
            .merge_domains
    };
    assert!(!merges(&[]));
    assert!(
        merges(&["--merge-domain-config"])
            && merges(&["--merge-domain-config=1"])
            && merges(&["--merge_domain_configs"])
    );
    assert!(!merges(&["--merge-domain-config=false"]));
}
