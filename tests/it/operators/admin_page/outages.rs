//! What the page says when something is down: a server of Redis, or Weir itself.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{Desk, LIMITS};
use crate::support::certificates::{Authority, Files};
use crate::support::{RedisServer, descriptor, http_client, request};

#[tokio::test(flavor = "multi_thread")]
async fn redis_and_its_circuit_are_shown_and_so_is_their_outage() {
    let mut redis = RedisServer::start();
    let desk = Desk::start(&[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "200ms")]);
    assert_eq!(
        desk.hit("shop", &[("user", "42")], 5).await,
        [1, 1, 1, 2, 2]
    );
    desk.open("overview");
    let row = "[...document.querySelectorAll('tbody tr')].find((row) => \
        row.textContent.includes('127.0.0.1:'))";
    desk.browser.wait_for(&format!(
        "({row})?.innerText.includes('closed') && ({row}).innerText.includes('up')"
    ));
    redis.kill();
    // A circuit opens when calls fail for a while.
    let mut client = desk.weir.client().await;
    let asking = tokio::spawn(async move {
        loop {
            let _ = client
                .should_rate_limit(request("shop", vec![descriptor(&[("user", "42")])]))
                .await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    desk.browser.wait_for(&format!(
        "({row})?.querySelector('.bad')?.textContent === 'open'"
    ));
    asking.abort();
    desk.browser.wait_for(
        "document.getElementById('health').textContent.includes('Redis is down: 127.0.0.1:')",
    );
    assert_eq!(
        desk.browser
            .run("return document.querySelector('.top.outage .health.bad') !== null"),
        true,
        "the header has the colour of an outage"
    );
    desk.browser
        .wait_for("document.querySelector('main .panel h3').textContent === 'Redis'");
    for place in ["#health", "main .panel .notice"] {
        desk.browser.wait_for(&format!(
            "/Outage since .* UTC \\(.*\\); checks answered by on_store_failure: error \\d/\
             .test(document.querySelector('{place}').textContent)"
        ));
    }
    desk.check_clean();
}

/// A refused file is a banner with the place, the remedy and the age. Fields suggest what there is,
/// and only limits that record usage have a button for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_file_is_a_banner_and_fields_suggest_what_there_is() {
    let desk = Desk::start(&[]);
    let answers = desk.hit("shop", &[("user", "42")], 5).await;
    assert_eq!(answers, [1, 1, 1, 2, 2]);
    desk.hit("shop", &[("path", "/log")], 1).await;
    desk.open("overview");
    desk.browser.wait_for(
        "['known-domains', 'known-limits', 'known-keys'].every((id) => \
         document.getElementById(id)?.options.length > 1)",
    );
    let buttons = |label: &str| {
        format!("document.querySelectorAll('button[aria-label^=\"{label}\"]').length > 0")
    };
    desk.browser.wait_for(&buttons("Usage: user=42"));
    desk.browser.wait_for(&format!(
        "{} && !({})",
        buttons("Explain: path="),
        buttons("Usage: path=")
    ));
    desk.browser
        .click("//button[starts-with(@aria-label, 'Explain: user=42')]");
    desk.browser.wait_for(
        "[...document.querySelectorAll('.tag.block')].some((tag) => tag.textContent === 'Refused \
         now')",
    );
    let file = desk.weir.config_dir().join("blog.yaml");
    std::fs::write(&file, "domain: blog\ndescriptors:\n  - { kye: all }\n").expect("written");
    desk.browser.wait_for(
        "/rejected .* ago.*blog.yaml:3:/s.test(document.getElementById('banner').innerText)",
    );
    std::fs::write(&file, LIMITS[1].1).expect("written");
    desk.browser
        .wait_for("document.getElementById('banner').hidden");
    desk.check_clean();
}

#[tokio::test]
#[ignore = "weekly: tests/faults.sh --all"]
async fn a_service_that_does_not_answer_is_said_and_the_page_recovers() {
    let desk = Desk::start(&[]);
    desk.open("overview");
    desk.weir.signal("STOP");
    desk.browser
        .wait_for_text("Weir does not answer (no answer within 8 s). The data is from ");
    assert_eq!(
        desk.browser
            .run("return document.getElementById('announcements').textContent"),
        "Weir does not answer (no answer within 8 s)."
    );
    desk.weir.signal("CONT");
    desk.browser.press_button("Try now");
    desk.browser.wait_for(
        "document.getElementById('banner').hidden && document.getElementById('health').textContent \
         === 'Healthy'",
    );
}

/// What is not turned on says how to turn it on.
#[tokio::test]
#[ignore = "weekly: tests/faults.sh --all"]
async fn a_process_without_tokens_says_how_to_allow_changes() {
    let desk = Desk::start(&[("ADMIN_TOKEN_FILE", "")]);
    desk.open("overrides");
    desk.browser
        .wait_for_text("This process accepts no changes. Set ADMIN_TOKEN_FILE");
    assert_eq!(
        desk.browser
            .run("return document.querySelector('main form').checkVisibility()"),
        false
    );
}

/// The certificate that has expired, and handshakes that fail, are a banner and in the status.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_and_failed_handshakes_are_a_banner() {
    let files = Files::new();
    files.write_issued("tls", &Authority::new("ours").issue_expired(&["localhost"]));
    let path = |name| files.path(name).to_string_lossy().into_owned();
    let (certificate, key) = (path("tls.crt"), path("tls.key"));
    let desk = Desk::start(&[
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &certificate),
        ("GRPC_SERVER_TLS_KEY", &key),
    ]);
    desk.open("overview");
    let banner = "document.getElementById('banner').textContent";
    desk.browser.wait_for(&format!(
        "/certificate of the gRPC port expired \\d+d .*ago: Envoy refuses it\\.$/.test({banner})"
    ));
    for _ in 0..5 {
        let mut client = TcpStream::connect(desk.weir.grpc_addr()).expect("a connection");
        client
            .write_all(b"\x16\x03\x01\x00\x05hello")
            .expect("written");
        // Until Weir closes the connection.
        let _ = client.read_to_end(&mut Vec::new());
    }
    desk.browser.wait_for(&format!(
        "{banner}.includes('5 of 5 TLS handshakes failed in the last minute')"
    ));
    let status = http_client::get(desk.address, "/api/v1/status").body;
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["certificate_expires_at"], "2002-01-01T00:00:00Z");
    assert_eq!(
        [&status["tls_handshakes"], &status["failed_tls_handshakes"]],
        [5, 5]
    );
    desk.check_clean();
}
