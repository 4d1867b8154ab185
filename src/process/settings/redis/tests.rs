//! The settings of Redis: flags with their options, errors and warnings.

use super::super::setting;
use super::*;

fn parse_flags(arguments: &[&str]) -> (Result<Backend, SettingError>, Vec<String>) {
    let (flags, mut warnings) = setting::read::<RedisFlags>(arguments).expect("flags");
    (flags.backend("", &mut warnings), warnings.all)
}

/// The options of the main deployment and of the deployment for limits per second.
fn options(arguments: &[&str]) -> (Options, Option<Options>) {
    match parse_flags(arguments) {
        (Ok(Backend::Redis { main, per_second }), warnings) if warnings.is_empty() => {
            (main, per_second)
        }
        other => panic!("{arguments:?}: {other:?}"),
    }
}

#[test]
fn limits_per_second_have_a_redis_of_their_own_if_it_is_set() {
    let one = [
        "--redis-url=a:1",
        "--redis-pool-size=3",
        "--fixed-windows-by-script",
    ];
    let (main, per_second) = options(&one);
    let (topology, pool_size) = (main.topology.to_string(), main.pool_size.get());
    assert_eq!(
        (&*topology, pool_size, main.expiry_jitter_secs),
        ("a:1", 3, 300)
    );
    assert!(main.fixed_windows_by_script && main.tls.is_none() && per_second.is_none());
    let two_deployments = "--redis-url=a:1 --redis-auth=x --redis-persecond \
        --redis-persecond-url=m,b:2 --redis-persecond-type=SENTINEL --redis-persecond-pool-size=4 \
        --redis-persecond-auth=u:y --redis-persecond-sentinel-auth=z --redis-persecond-tls \
        --redis-persecond-socket-type=tcp --expiration-jitter-max-seconds=7";
    let (main, per_second) = options(&two_deployments.split_whitespace().collect::<Vec<_>>());
    let per_second = per_second.expect("two");
    assert_eq!(
        (
            per_second.topology.to_string().as_str(),
            per_second.pool_size.get()
        ),
        ("m, known to b:2", 4)
    );
    assert_eq!(
        (
            main.pool_size.get(),
            main.expiry_jitter_secs,
            per_second.expiry_jitter_secs
        ),
        (10, 7, 7)
    );
    assert_eq!(
        (
            main.login.username.as_deref(),
            per_second.login.username.as_deref()
        ),
        (None, Some("u"))
    );
    assert!(main.login.password.is_some() && per_second.sentinel_login.password.is_some());
    assert!(main.tls.is_none() && per_second.tls.is_some());
}

#[test]
fn tls_is_a_scheme_or_a_setting() {
    let (by_scheme, _) = options(&["--redis-url", "rediss://a:1"]);
    let flags = "--redis-url a:1 --redis-tls --redis-tls-skip-hostname-verification";
    let (by_setting, _) = options(&flags.split(' ').collect::<Vec<_>>());
    assert!(by_scheme.tls.is_some() && by_setting.tls.is_some());
}

#[test]
fn errors_name_the_setting() {
    for (arguments, start) in [
        ("--redis-url a", "REDIS_URL: "),
        ("", "BACKEND_TYPE=redis needs REDIS_URL"),
        ("--redis-type s3cret --redis-url a:1", "REDIS_TYPE: "),
        (
            "--redis-url a:1 --redis-auth s3cret --redis-auth-file /f",
            "REDIS_AUTH_FILE: ",
        ),
        ("--redis-url /run/redis.sock --redis-tls", "REDIS_TLS: "),
        (
            "--redis-url rediss://a:1 --redis-tls-client-key /no/such/file",
            "REDIS_TLS_CLIENT_KEY needs ",
        ),
        (
            "--redis-url a:1 --redis-persecond",
            "REDIS_PERSECOND needs REDIS_PERSECOND_URL",
        ),
        (
            "--redis-url a:1 --redis-persecond --redis-persecond-url s3cret",
            "REDIS_PERSECOND_URL: ",
        ),
    ] {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        let error = parse_flags(&arguments)
            .0
            .expect_err("an invalid setting")
            .to_string();
        assert!(
            error.starts_with(start) && !error.contains("s3cret"),
            "{error}"
        );
    }
}

#[test]
fn settings_without_effect_are_reported_once() {
    let warnings = |more: &[&str]| {
        let (backend, warnings) = parse_flags(&[&["--redis-url", "a:1"], more].concat());
        assert!(backend.is_ok(), "{more:?}");
        warnings
    };
    assert!(warnings(&["--redis-tls-cacert", "", "--redis-persecond-type", "single"]).is_empty());
    let reported = warnings(&[
        "--redis-tls-cacert",
        "/ca",
        "--redis-tls-client-key",
        "/key",
    ]);
    assert_eq!(reported.len(), 1);
    assert!(
        reported[0].starts_with("REDIS_TLS_CACERT, REDIS_TLS_CLIENT_KEY have no effect: "),
        "{reported:?}"
    );
    assert_eq!(
        warnings(&["--redis-sentinel-auth", "s3cret"]),
        ["REDIS_SENTINEL_AUTH has no effect: REDIS_TYPE is not sentinel"]
    );
    let reported = warnings(&[
        "--redis-persecond-url",
        "redis://:s3cret@b:2",
        "--redis-persecond-auth",
        "s3cret",
    ]);
    assert_eq!(
        reported,
        ["REDIS_PERSECOND_URL, REDIS_PERSECOND_AUTH have no effect: REDIS_PERSECOND is not true"]
    );
}
