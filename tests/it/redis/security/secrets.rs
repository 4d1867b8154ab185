//! The messages when a login or TLS fails: they have a cause and a hint, and no password.

use super::*;
use crate::support::{DEMO, Weir, descriptor, http_client, request};

const PASSWORD: &str = "hunter2-s3cret";

/// All output of a service: the answers to a request over gRPC and over HTTP, its HTTP pages and
/// its log. Returns once the log has `hint`.
async fn all_output(environment: &[(&str, &str)], hint: &str) -> String {
    let weir = Weir::start(
        DEMO,
        &[
            environment,
            &[("LOG_LEVEL", "trace"), ("STORE_TIMEOUT", "2s")],
        ]
        .concat(),
    );
    let mut output = String::new();
    let answer = weir
        .client()
        .await
        .should_rate_limit(request("demo", vec![descriptor(&[("year", "x")])]))
        .await;
    output += &format!("{answer:?}");
    let json = r#"{"domain":"demo","descriptors":[{"entries":[{"key":"year","value":"x"}]}]}"#;
    let response = http_client::post(weir.http_addr(), "/json", json.as_bytes());
    output += &format!("{response:?}");
    for page in ["/healthcheck", "/metrics", "/"] {
        output += &format!("{:?}", weir.get(page));
    }
    weir.wait_for_log(hint).await;
    output + &weir.logs().join("\n")
}

async fn assert_shows_no_password(environment: &[(&str, &str)], hint: &str) {
    let output = all_output(environment, hint).await;
    assert!(
        !output.contains(PASSWORD) && !output.contains("hunter2"),
        "{environment:?}:\n{output}"
    );
    assert!(
        output.contains("weir_redis_errors_total") == (hint != "keeping counters in Redis"),
        "{environment:?}:\n{output}"
    );
}

#[tokio::test]
async fn no_error_shows_a_password() {
    let secured = Secured::start(&["--requirepass", PASSWORD]);
    let files = &secured.files;
    let (plain, tls) = (
        format!("127.0.0.1:{}", secured.server.port()),
        format!("localhost:{}", secured.tls_port),
    );
    let (ca, stranger) = (
        files.text("ca.crt"),
        files.write("stranger.crt", &Authority::new("stranger").pem()),
    );
    let stranger = stranger.to_str().expect("UTF-8");
    let wrong = format!("{PASSWORD}-wrong");
    let file = files.write("password", &format!("{PASSWORD}\n"));
    let wrong_file = files.write("wrong", &wrong);
    let (file, wrong_file) = (
        file.to_str().expect("UTF-8"),
        wrong_file.to_str().expect("UTF-8"),
    );
    let (right_url, wrong_url) = (
        format!("rediss://:{PASSWORD}@{tls}"),
        format!("redis://default:{wrong}@{plain}"),
    );
    let (elsewhere, to_plaintext) = (
        format!("rediss://:{PASSWORD}@127.1.1.1:{}", secured.tls_port),
        format!("rediss://:{PASSWORD}@{plain}"),
    );
    let cases: &[(&[(&str, &str)], &str)] = &[
        (
            &[("REDIS_URL", &plain), ("REDIS_AUTH", PASSWORD)],
            "keeping counters in Redis",
        ),
        (
            &[("REDIS_URL", &plain), ("REDIS_AUTH", &wrong)],
            "a password was sent, no user name",
        ),
        (&[("REDIS_URL", &plain)], "no password was sent"),
        (
            &[("REDIS_URL", &wrong_url)],
            "a user name and a password were sent",
        ),
        (
            &[("REDIS_URL", &plain), ("REDIS_AUTH_FILE", file)],
            "keeping counters in Redis",
        ),
        (
            &[("REDIS_URL", &plain), ("REDIS_AUTH_FILE", wrong_file)],
            "a password out of a file was sent",
        ),
        (
            &[("REDIS_URL", &right_url), ("REDIS_TLS_CACERT", &ca)],
            "keeping counters in Redis",
        ),
        (
            &[("REDIS_URL", &right_url), ("REDIS_TLS_CACERT", stranger)],
            "set REDIS_TLS_CACERT to its certificate",
        ),
        (
            &[("REDIS_URL", &elsewhere), ("REDIS_TLS_CACERT", &ca)],
            "no connection to Redis",
        ),
        (&[("REDIS_URL", &to_plaintext)], "TLS"),
        (
            &[("REDIS_URL", &tls), ("REDIS_AUTH", PASSWORD)],
            "set REDIS_TLS=true, or write rediss://",
        ),
    ];
    for (environment, hint) in cases {
        assert_shows_no_password(environment, hint).await;
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_is_reported_with_both_names() {
    let secured = Secured::start(&[]);
    secured.files.write_issued(
        "elsewhere",
        &secured.authority.issue(&["elsewhere.example"]),
    );
    secured.use_certificate("elsewhere");
    let (url, ca) = (
        format!("localhost:{}", secured.tls_port),
        secured.files.text("ca.crt"),
    );
    let environment = [
        ("REDIS_URL", url.as_str()),
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CACERT", ca.as_str()),
    ];
    let output = all_output(&environment, "for another name than REDIS_URL").await;
    assert!(
        output.contains("localhost") && output.contains("elsewhere.example"),
        "{output}"
    );
    let unchecked = [
        &environment[..],
        &[("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true")],
    ]
    .concat();
    assert!(
        !all_output(&unchecked, "keeping counters in Redis")
            .await
            .contains("weir_redis_errors_total")
    );
}
