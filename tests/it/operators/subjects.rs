//! Who is limited, asked of real processes: the admin API, `weir top` and `weir unmatched`.

mod terminal;

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::cli::weir;
use crate::support::{Client, Weir, ask, descriptor, http_client};

const LIMITS: &[(&str, &str)] = &[(
    "shop.yaml",
    "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 3 }
  - key: path
    value: /a*
    rate_limit: { unit: year, requests_per_unit: 100 }
  - key: free
",
)];

/// Asks for one hit so many times.
async fn hit(client: &mut Client, domain: &str, entries: &[(&str, &str)], times: usize) {
    for _ in 0..times {
        ask(client, domain, vec![descriptor(entries)]).await;
    }
}

fn api(address: SocketAddr, call: &str) -> Value {
    let page = http_client::get(address, &format!("/api/v1/{call}"));
    assert_eq!(page.status, 200, "{call}: {}", page.body);
    serde_json::from_str(&page.body).expect("JSON")
}

/// The output of a command, with services to ask.
fn stdout(arguments: &[&str], admin: &str) -> String {
    let output = weir(arguments, &[("WEIR_ADMIN", admin)]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The first line without its number of seconds, and the others as they are.
fn table(text: &str) -> String {
    let (head, rest) = text.split_once('\n').expect("lines");
    let (before, after) = head.split_once(" in the last ").expect("a time");
    let (seconds, after) = after.split_once(' ').expect("more");
    assert!(
        seconds.parse::<u32>().is_ok_and(|seconds| seconds < 60),
        "{head}"
    );
    format!("{before} in the last N {after}\n{rest}")
}

/// An unknown name is suggested a known one, and a number is in its range.
fn assert_mistakes_are_refused(address: SocketAddr) {
    let domain = "no limit in force has the domain shopp (did you mean shop?)";
    let limit = "no limit in force is named shop.usre (did you mean shop.user?)";
    for (unknown, error) in [
        ("top?domain=shopp", domain),
        ("top?limit=shop.usre", limit),
        ("unmatched?domain=shopp", domain),
        ("usage/top?domain=shopp", domain),
    ] {
        let answer = http_client::get(address, &format!("/api/v1/{unknown}"));
        assert_eq!(
            (answer.status, answer.body.contains(error)),
            (404, true),
            "{unknown}: {}",
            answer.body
        );
    }
    for wrong in ["top?by=size", "top?count=1001"] {
        assert_eq!(
            http_client::get(address, &format!("/api/v1/{wrong}")).status,
            400,
            "{wrong}"
        );
    }
}

/// `weir top`, but for the seconds.
fn assert_tables(admin: &str) {
    let expected = "\
16 hits in the last N s of 1 replica
HITS  REFUSED  LIMIT          SUBJECT
   8        0  shop.path_/a*  'path=/a b'
   6        3  shop.user      user=bob
   2        0  shop.user      user=ann
";
    assert_eq!(table(&stdout(&["top"], admin)), expected);
    let expected = "\
3 refused hits in the last N s of 1 replica
HITS  REFUSED  LIMIT      SUBJECT
   6        3  shop.user  user=bob
";
    let refused = ["top", "--by", "refused", "--since", "1h", "--once"];
    assert_eq!(table(&stdout(&refused, admin)), expected);
}

#[tokio::test]
async fn the_heaviest_subjects_are_shown_by_hits_and_by_refusals() {
    let weir = Weir::start(LIMITS, &[("WORKERS", "2")]);
    let address = weir.listener("debug");
    let client = &mut weir.client().await;
    hit(client, "shop", &[("user", "ann")], 2).await;
    hit(client, "shop", &[("user", "bob")], 5).await;
    hit(client, "shop", &[("path", "/a b")], 8).await;
    // Another connection has another worker.
    hit(&mut weir.client().await, "shop", &[("user", "bob")], 1).await;
    let top = api(address, "top");
    let subject = |limit: &str, key: &str, value: &str, hits: u32, refused: u32| {
        json!({
            "limit": limit,
            "domain": "shop",
            "entries": [{ "key": key, "value": value }],
            "subject": format!("shop|{key}={}", value.replace(' ', "%20")),
            "hits": hits,
            "hits_error": 0,
            "refused": refused,
            "refused_error": 0,
        })
    };
    let (path, bob, ann) = (
        subject("shop.path_/a*", "path", "/a b", 8, 0),
        subject("shop.user", "user", "bob", 6, 3),
        subject("shop.user", "user", "ann", 2, 0),
    );
    assert_eq!(top["subjects"], json!([path, bob, ann]));
    assert_eq!(
        (
            &top["window"],
            &top["by"],
            &top["total"],
            &top["error_at_most"]
        ),
        (&json!("minute"), &json!("hits"), &json!(16), &json!(0))
    );
    assert!(
        top["seconds"].as_u64().is_some_and(|seconds| seconds < 60),
        "{top}"
    );
    assert_eq!(
        api(address, "top?by=refused&window=hour")["subjects"],
        json!([bob])
    );
    assert_eq!(
        api(address, "top?count=1&limit=shop.user")["subjects"],
        json!([bob])
    );
    assert_mistakes_are_refused(address);

    let admin = address.to_string();
    assert_tables(&admin);
    let report: Value = serde_json::from_str(&stdout(
        &["top", "--format", "json", "--top", "1", "--domain", "shop"],
        &admin,
    ))
    .expect("JSON");
    assert_eq!(
        (&report["subjects"], &report["replicas"]),
        (
            &json!([path]),
            &json!([{ "address": admin, "error": null }])
        )
    );
}

/// A replica has also the subjects that another one ranks: no number of them is unsure.
#[tokio::test]
async fn replicas_are_asked_for_the_subjects_of_each_other() {
    let (one, other) = (Weir::start(LIMITS, &[]), Weir::start(LIMITS, &[]));
    let (long, longer) = ("k".repeat(300), "k".repeat(301));
    for (weir, paths, tokens) in [(&one, 60, 2), (&other, 105, 5)] {
        let client = &mut weir.client().await;
        hit(client, "shop", &[("path", "/a")], paths).await;
        hit(client, "shop", &[("user", &long)], tokens).await;
        hit(client, "shop", &[("user", &longer)], tokens).await;
        hit(client, "shop", &[("user", "ann")], 1).await;
    }
    let admin = format!("{},{}", one.listener("debug"), other.listener("debug"));
    let text = stdout(&["top", "--by", "refused"], &admin);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip(2)
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .take(3)
                .collect()
        })
        .collect();
    let user = ["7", "2", "shop.user"];
    assert_eq!(rows, [["165", "5", "shop.path_/a*"], user, user], "{text}");
    // By the limit's path as well, and the answer to names alone.
    let text = stdout(
        &["top", "--by", "refused", "--limit", "shop.path_/a*"],
        &admin,
    );
    assert!(text.contains("\n 165        5  shop"), "{text}");
    let named = api(
        one.listener("debug"),
        "top?by=refused&subject=shop%7Cpath%3D/a&subject=x",
    );
    assert_eq!(
        (
            &named["subjects"][0]["hits"],
            &named["subjects"][0]["refused"],
            &named["hits_at_most"]
        ),
        (&json!(60), &json!(0), &json!(0)),
        "{named}"
    );
    assert_eq!(named["subjects"].as_array().map(Vec::len), Some(1));
}

/// `weir unmatched`, but for the times. Either domain may be first.
fn assert_unmatched_as_text(admin: &str) {
    let text = stdout(&["unmatched"], admin);
    let timeless: String = text
        .lines()
        .map(|line| {
            line.split_once(" UTC").map_or_else(
                || format!("{line}\n"),
                |(_, rest)| format!("  TIME{rest}\n"),
            )
        })
        .collect();
    let (shop, shoop) = (
        "shop\n  TIME  user=ann path=/x\n  TIME  'free=x\\u{1b}[2J'\n",
        "shoop: no file defines this domain\n  TIME  user=ann\n",
    );
    assert!(
        [format!("{shop}{shoop}"), format!("{shoop}{shop}")].contains(&timeless),
        "{timeless}"
    );
}

#[tokio::test]
async fn descriptors_that_no_limit_matches_are_kept_by_domain() {
    let weir = Weir::start(LIMITS, &[]);
    let address = weir.listener("debug");
    assert_eq!(api(address, "unmatched"), json!({ "domains": [] }));
    assert_eq!(
        stdout(&["unmatched"], &address.to_string()),
        "every descriptor found a limit so far\n"
    );
    let client = &mut weir.client().await;
    hit(client, "shop", &[("user", "ann")], 1).await;
    hit(client, "shop", &[("free", "x\u{1b}[2J")], 1).await;
    hit(client, "shoop", &[("user", "ann")], 1).await;
    // Several in a second are samples; the first of each kind is one. Kinds may share a number of
    // samples, so that the frequent one comes last.
    hit(client, "shop", &[("user", "ann"), ("path", "/x")], 100).await;
    let unmatched = api(address, "unmatched");
    let domains = unmatched["domains"].as_array().expect("domains");
    assert_eq!(domains.len(), 2, "{unmatched}");
    let of = |name: &str| {
        domains
            .iter()
            .find(|domain| domain["domain"] == name)
            .expect("a domain")
    };
    assert_eq!(
        (&of("shop")["known"], &of("shoop")["known"]),
        (&json!(true), &json!(false))
    );
    let entries = |domain: &Value| -> Vec<Value> {
        domain["descriptors"]
            .as_array()
            .expect("descriptors")
            .iter()
            .map(|descriptor| descriptor["entries"].clone())
            .collect()
    };
    let pair = |key: &str, value: &str| json!({ "key": key, "value": value });
    assert_eq!(
        entries(of("shop")),
        [
            json!([pair("user", "ann"), pair("path", "/x")]),
            json!([pair("free", "x\u{1b}[2J")])
        ]
    );
    assert_eq!(entries(of("shoop")), [json!([pair("user", "ann")])]);
    assert_eq!(of("shoop")["descriptors"][0]["subject"], "shoop|user=ann");
    assert_eq!(of("shop")["descriptors"][1]["subject"], "shop|free=x%1b[2J");
    assert_eq!(
        api(address, "unmatched?domain=shoop")["domains"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    // Times are those of the machine, to about a second.
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs() as i64;
    let seen: jiff::Timestamp = of("shop")["descriptors"][0]["seen_at"]
        .as_str()
        .expect("an instant")
        .parse()
        .expect("RFC 3339");
    assert!((now - 5..=now).contains(&seen.as_second()), "{seen}");

    assert_unmatched_as_text(&address.to_string());
    let report: Value = serde_json::from_str(&stdout(
        &["unmatched", "--domain", "shoop", "--format", "json"],
        &address.to_string(),
    ))
    .expect("JSON");
    assert_eq!(
        report["domains"],
        api(address, "unmatched?domain=shoop")["domains"]
    );
}
