//! What operators and callers read when Redis fails: few lines in the log, the cause, and totals at
//! the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use tonic::Code;

use crate::support::certificates::{Authority, Files};
use crate::support::proxy::{Forwarding, Proxy};
use crate::support::wait::eventually_async;
use crate::support::{DEMO, RedisServer, Weir, descriptor, ports, request};

/// A limit for each policy; per year, so that no window ends while a test runs.
const POLICIES: &[(&str, &str)] = &[(
    "policies.yaml",
    "
domain: policies
descriptors:
  - key: error
    rate_limit: { unit: year, requests_per_unit: 1000000, on_store_failure: error }
  - key: allow
    rate_limit: { unit: year, requests_per_unit: 1000000, on_store_failure: allow }
  - key: deny
    rate_limit: { unit: year, requests_per_unit: 1000000, on_store_failure: deny }
  - key: local
    rate_limit: { unit: year, requests_per_unit: 1000000, on_store_failure: local }
",
)];

/// The lines of the log as JSON.
fn lines(weir: &Weir) -> Vec<Value> {
    weir.logs()
        .iter()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

fn is_at(line: &Value, level: &str) -> bool {
    line["level"] == level
}

/// The error and the totals are all that the log says of an outage, after `well` other lines.
fn assert_two_lines(log: &[Value], well: usize, url: &str) {
    let [error] = &log
        .iter()
        .filter(|line| is_at(line, "error"))
        .collect::<Vec<_>>()[..]
    else {
        panic!("{log:#?}")
    };
    assert!(
        error["@message"]
            .as_str()
            .is_some_and(|text| text.starts_with("Redis outage: no connection to Redis")),
        "{error}"
    );
    assert_eq!(
        (&error["redis"], &error["error"]),
        (&Value::from(url), &Value::from("connect")),
        "{error}"
    );
    assert!(
        error["cause"]
            .as_str()
            .is_some_and(|cause| cause.contains("refused")),
        "{error}"
    );
    let about_the_outage = log[well..]
        .iter()
        .filter(|line| {
            line["@message"]
                .as_str()
                // An empty Redis after it has a line of its own.
                .is_some_and(|text| text.contains("Redis") && !text.contains("lost its counters"))
        })
        .count();
    assert_eq!(about_the_outage, 2, "{:#?}", &log[well..]);
}

#[tokio::test]
async fn an_outage_has_one_error_line_and_one_line_with_totals() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let weir = Weir::start(POLICIES, &[("REDIS_URL", &url)]);
    let mut client = weir.client().await;
    let keys = ["error", "allow", "deny", "local"];
    let call = async |client: &mut crate::support::Client, key| {
        let answer = client
            .should_rate_limit(request("policies", vec![descriptor(&[(key, "x")])]))
            .await;
        answer.map(|answer| answer.into_inner().overall_code)
    };
    for key in keys {
        assert_eq!(
            call(&mut client, key).await.expect("Redis is well"),
            1,
            "{key}"
        );
    }
    weir.wait_for_log("Redis answers").await;
    let well = lines(&weir).len();
    redis.kill();
    let began = Instant::now();
    let mut asked = 0_u64;
    while began.elapsed() < Duration::from_millis(3_500) {
        for (key, expected) in keys
            .into_iter()
            .zip([Err(Code::Unavailable), Ok(1), Ok(2), Ok(1)])
        {
            assert_eq!(
                call(&mut client, key).await.map_err(|status| status.code()),
                expected,
                "{key}"
            );
        }
        asked += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    redis.start_again();
    let ended: Value =
        serde_json::from_str(&weir.wait_for_log("Redis outage ended").await).expect("JSON");
    let lasted = ended["lasted_secs"].as_f64().expect("seconds");
    assert!(
        (3.0..20.0).contains(&lasted) && ended["redis"] == url,
        "{ended}"
    );
    for count in ["failed", "allowed", "denied", "counted_locally"] {
        assert_eq!(ended[count], asked, "{count}: {ended}");
    }
    assert_two_lines(&lines(&weir), well, &url);
}

/// A network that has become 80 ms longer: the lines have the time that Redis takes, the time that
/// a request has for it, the caller's deadline, and the remedy.
#[tokio::test]
async fn lines_of_a_slow_redis_have_numbers_and_the_remedy() {
    let redis = RedisServer::start();
    let proxy = Proxy::before(redis.port());
    for (store_timeout, allowed, deadline) in [("500ms", None, 20), ("5ms", Some(5.0), 40)] {
        let environment = [
            ("REDIS_URL", &*proxy.url()),
            ("STORE_TIMEOUT", store_timeout),
        ];
        let weir = Weir::start(POLICIES, &environment);
        weir.wait_for_log("Redis answers").await;
        proxy.to_client(Forwarding::Delay {
            by: Duration::from_millis(80),
            jitter: Duration::ZERO,
        });
        let mut client = weir.client().await;
        let told = async {
            loop {
                let mut request =
                    tonic::Request::new(request("policies", vec![descriptor(&[("deny", "x")])]));
                request.set_timeout(Duration::from_millis(deadline));
                let _ = client.should_rate_limit(request).await;
                let log = lines(&weir);
                if let Some(line) = log.into_iter().find(|line| is_at(line, "error")) {
                    return line;
                }
            }
        };
        let line = tokio::time::timeout(Duration::from_secs(20), told).await;
        let line = line.expect("an ERROR line");
        let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        assert_eq!(text("error"), "timeout", "{line}");
        let millis = |field: &str| -> f64 {
            let text = text(field);
            let number = text.strip_suffix("ms").expect("milliseconds");
            number.parse().expect("a number")
        };
        // On a busy machine a part of the caller's time has passed when a call begins. 3 ms are for
        // the way back.
        let left = millis("deadline");
        let whole = deadline as f64;
        assert!((whole - 5.0..=whole).contains(&left), "{line}");
        let allowed = allowed.unwrap_or(left - 3.0);
        assert!((millis("allowed") - allowed).abs() < 0.15, "{line}");
        assert!((80.0..1_000.0).contains(&millis("round_trip")), "{line}");
        let message = text("@message");
        for remedy in ["SLOWLOG GET", "Envoy", "STORE_TIMEOUT"] {
            assert!(message.contains(remedy), "{line}");
        }
        proxy.to_client(Forwarding::Pass);
    }
}

/// Variables with their values.
type Environment<'e> = &'e [(&'e str, &'e str)];

/// A service with these settings: the first ERROR line, which has to come without any request, and
/// the message that a caller gets.
async fn first_error(environment: Environment<'_>) -> (Value, String) {
    let weir = Weir::start(DEMO, environment);
    let line =
        eventually_async(|| lines(&weir).into_iter().find(|line| is_at(line, "error"))).await;
    let line =
        line.unwrap_or_else(|| panic!("{environment:?}: no ERROR line in {:#?}", weir.logs()));
    let answer = weir
        .client()
        .await
        .should_rate_limit(request("demo", vec![descriptor(&[("year", "x")])]))
        .await;
    let status = answer.expect_err("Redis fails");
    assert_eq!(status.code(), Code::Unavailable);
    (line, status.message().to_owned())
}

/// A server without a password, with a port for TLS; one with a password; and one that hangs.
struct Servers {
    plain: RedisServer,
    tls_port: String,
    secured: RedisServer,
    hanging: RedisServer,
    _files: Files,
}

impl Servers {
    fn start() -> Self {
        let (authority, files) = (Authority::new("first"), Files::new());
        let tls_port = ports::free().port().to_string();
        files.write("ca.crt", &authority.pem());
        files.write_issued("redis", &authority.issue(&["localhost"]));
        let tls = [
            "--tls-port",
            &tls_port,
            "--tls-cert-file",
            &files.text("redis.crt"),
            "--tls-key-file",
            &files.text("redis.key"),
            "--tls-ca-cert-file",
            &files.text("ca.crt"),
        ];
        let servers = Self {
            plain: RedisServer::start_with(&tls),
            secured: RedisServer::start_with(&["--requirepass", "s3cret"]),
            hanging: RedisServer::start(),
            tls_port,
            _files: files,
        };
        servers.hanging.pause();
        servers
    }
}

/// The error line of an outage with these settings, after what callers read is checked.
async fn assert_told(
    environment: Environment<'_>,
    error: &str,
    cause: &str,
    message: &str,
) -> Value {
    let (line, status) = first_error(environment).await;
    assert_eq!(line["error"], error, "{environment:?}: {line}");
    assert!(
        cause.is_empty()
            || line["cause"]
                .as_str()
                .is_some_and(|text| text.contains(cause)),
        "{environment:?}: {line}"
    );
    assert_eq!(
        status,
        format!("{message}; on_store_failure is error"),
        "{environment:?}: {line}"
    );
    let text = line.to_string();
    assert!(
        !text.contains("s3cret") && !text.contains("wr0ng") && !text.contains("needless"),
        "{text}"
    );
    line
}

#[tokio::test]
async fn the_log_tells_causes_apart_and_callers_read_what_is_safe() {
    let servers = Servers::start();
    let rediss = format!("rediss://{}", servers.plain.url());
    let (plain, secured, hanging) = (
        servers.plain.url(),
        servers.secured.url(),
        servers.hanging.url(),
    );
    let absent = RedisServer::absent().url();
    let tls_as_plaintext = format!("localhost:{}", servers.tls_port);
    let (unreachable, refused) = (
        "Redis cannot be reached",
        "Redis refuses the requests of Weir",
    );
    // The settings; the name of the error, what its cause contains, and what callers read.
    let cases: &[(Environment<'_>, &str, &str, &str)] = &[
        (
            &[("REDIS_URL", "nosuch.invalid:6379")],
            "dns",
            "nosuch.invalid: ",
            unreachable,
        ),
        (&[("REDIS_URL", &absent)], "connect", "refused", unreachable),
        (
            &[("REDIS_URL", &hanging)],
            "timeout",
            "",
            "Redis did not answer in time",
        ),
        (
            &[("REDIS_URL", &rediss)],
            "tls",
            "does not speak TLS",
            unreachable,
        ),
        (
            &[("REDIS_URL", &tls_as_plaintext)],
            "io",
            "REDIS_TLS=true",
            unreachable,
        ),
        (
            &[("REDIS_URL", &secured)],
            "auth",
            "Redis wants a password, and no password was sent",
            refused,
        ),
        (
            &[("REDIS_URL", &secured), ("REDIS_AUTH", "wr0ng")],
            "auth",
            "the user name or the password is wrong",
            refused,
        ),
        (
            &[("REDIS_URL", &plain), ("REDIS_AUTH", "needless")],
            "auth",
            "Redis has no password",
            refused,
        ),
    ];
    let mut told = BTreeMap::new();
    for (environment, error, cause, message) in cases {
        let line = assert_told(environment, error, cause, message).await;
        told.insert(format!("{} {}", line["error"], line["cause"]), environment);
    }
    assert_eq!(
        told.len(),
        cases.len(),
        "each cause reads differently: {told:#?}"
    );
}
