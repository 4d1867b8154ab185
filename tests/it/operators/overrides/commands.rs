//! The commands of the support desk: what they print, what they refuse, and what answers are like.

use std::path::Path;

use weir::core::proto::RateLimitResponse;
use weir::core::proto::rate_limit_response::Code;

use super::{Desk, LIMITS, call, code, id_of, in_seconds};
use crate::service::special_files;
use crate::support::{Weir, http_client};

/// Orders that would change nothing, or not what is meant, are refused or warned of.
fn order_what_no_limit_has(desk: &Desk, weir: &Weir) {
    let mistyped = desk.fails(weir, &["block", "-d", "shopp", "user=1"]);
    assert!(
        mistyped.contains(
            "no limit in force has the domain shopp (did you mean shop?); to set it anyway"
        ),
        "{mistyped}"
    );
    let mistyped = desk.fails(weir, &["block", "-d", "shop", "usr=1"]);
    assert!(
        mistyped.contains("no limit of the domain shop has the key usr (did you mean user?)"),
        "{mistyped}"
    );
    let unknown = desk.ok(
        weir,
        &["block", "-d", "shop", "remote_address=10.0.0.*", "--force"],
    );
    assert!(
        unknown.contains(
            "\nwarning: no limit in force matches these entries; the block works anyway\n"
        ),
        "{unknown}"
    );
    let elsewhere = desk.ok(weir, &["exempt", "-d", "elsewhere", "user=1", "--force"]);
    assert!(
        elsewhere.contains("warning: no limit in force has this domain: it changes nothing yet"),
        "{elsewhere}"
    );
}

/// Commands that would do more than they say, or less, are refused.
fn assert_mistakes_are_named(desk: &Desk, one: &Weir) {
    let no_token = [
        "block",
        "-d",
        "shop",
        "user=a",
        "--admin-token-file",
        "/dev/null",
    ];
    let cases: [(&[&str], &str); 4] = [
        (
            &["block", "-d", "shop", "user"],
            "this blocks every user: write a value, as in user=VALUE, or --all if all are meant",
        ),
        (
            &["raise", "-d", "shop", "user=*", "--to", "9/year"],
            "this raises the limit of every user",
        ),
        (
            &["block", "-d", "shop", "user=a,vip=/x"],
            "if vip is the next entry, write it separately",
        ),
        (&no_token, "--admin-token-file: /dev/null cannot be used"),
    ];
    for (arguments, error) in cases {
        let failed = desk.fails(one, arguments);
        assert!(failed.contains(error), "{arguments:?}: {failed}");
    }
}

/// `unblock`, `unexempt` and `unraise` take what `block` took; all values of a key are asked for;
/// and two replicas that keep their own are both told.
#[tokio::test]
async fn what_was_ordered_is_undone_by_its_entries_and_in_every_replica() {
    let desk = Desk::new();
    let (one, other) = (desk.start(LIMITS, &[]), desk.start(LIMITS, &[]));
    let both = format!("{},{}", one.listener("debug"), other.listener("debug"));
    let at_both = |arguments: &[&str]| desk.ok(&one, &[arguments, &["--admin", &both]].concat());
    at_both(&["block", "-d", "shop", "user=42"]);
    for weir in [&one, &other] {
        assert_eq!(
            code(&mut weir.client().await, "user", "42", 1).await,
            Code::OverLimit
        );
    }
    let wrong = desk.fails(&one, &["unexempt", "-d", "shop", "user=42"]);
    assert!(
        wrong.contains(
            "no exempt of user=42 in shop is in force; `weir overrides --domain shop` lists what is"
        ),
        "{wrong}"
    );
    assert_eq!(
        at_both(&["unblock", "-d", "shop", "user=42"]),
        "removed: block user=42 in shop, until it is removed\n"
    );
    for weir in [&one, &other] {
        assert_eq!(
            code(&mut weir.client().await, "user", "42", 1).await,
            Code::Ok
        );
    }
    // A replica that is away is named, and reads go to the next one.
    let away = format!("127.0.0.1:1,{}", one.listener("debug"));
    let output = desk.weir(
        &one,
        &[
            "block", "-d", "shop", "user=7", "--until", "tomorrow", "--admin", &away,
        ],
    );
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) || error.contains("changed by"),
        "{error}"
    );
    assert!(error.contains("no service at 127.0.0.1:1"), "{error}");
    assert!(
        desk.ok(&one, &["overrides", "--admin", &away])
            .contains("user=7")
    );
    assert!(
        desk.ok(&one, &["explain", "--admin", &away, "-d", "shop", "user=7"])
            .contains("blocked by the override")
    );
    assert_mistakes_are_named(&desk, &one);
}

/// Usage, counts and a block of the subject of a digest, and the error of `explain`. Returns what
/// the block printed.
fn assert_digest_is_addressed(desk: &Desk, weir: &Weir, file: &Path, name: &str) -> String {
    let named = |command: &[&str]| desk.ok(weir, &[command, &["--subject", name]].concat());
    let usage = named(&["usage"]);
    assert!(
        usage.starts_with(&format!("--subject '{name}' of shop.user\n  now  "))
            && usage.contains("\n  hits        1, over the limit 0"),
        "{usage}"
    );
    assert!(named(&["count", "--since", "10m"]).contains("  hits     1, over the limit 0"));
    let failure = desk.fails(weir, &["explain", "--subject", name]);
    assert!(
        failure.contains("by its digest only; write the entries with the whole value"),
        "{failure}"
    );
    let block = named(&["block"]);
    assert!(
        block.contains("  limits  shop.user\n")
            && std::fs::read_to_string(file)
                .expect("a file")
                .contains(&format!("\"value_sha256\": \"{}\"", &name[10..])),
        "{block}"
    );
    block
}

/// Limits whose subjects have no value that can be written: long ones, and one that values share.
const NAMED: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 2, track_usage: true }
  - key: \"a=b\"
    rate_limit: { unit: year, requests_per_unit: 2, track_usage: true }
  - key: region
    value: \"eu-*\"
    share_threshold: true
    rate_limit: { unit: year, requests_per_unit: 2, track_usage: true }
  - { key: token, value: \"Bearer *\", rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: token, rate_limit: { unit: year, requests_per_unit: 2 } }
";

/// Only what its entries do not say is printed by its name.
fn assert_printed_by_names(text: &str, spoofed: &str) {
    assert_eq!(text.matches("--subject 'shop|").count(), 4, "{text}");
    assert!(
        text.contains(&format!("  user={spoofed}\n"))
            && text.contains("  'a\\u{3d}b=c=d'\n")
            && text.contains("--subject 'shop|region~eu-*'"),
        "{text}"
    );
}

/// Of a long value Weir knows the digest, and of values that share a counter the pattern: every
/// command takes the name of such a subject.
#[tokio::test]
async fn a_subject_without_its_value_is_addressed_by_its_name() {
    let desk = Desk::new();
    let file = desk.path("overrides.json");
    let weir = desk.start(NAMED, &[("OVERRIDES_FILE", file.to_str().expect("UTF-8"))]);
    let client = &mut weir.client().await;
    let long = |begin: &str| format!("{begin}{}", "x".repeat(300));
    let (ann, bob, token) = (long("ann"), long("bob"), long("Bearer "));
    let spoofed = format!("sha256:{}", "0".repeat(64));
    let sent = [
        ("user", &*ann),
        ("user", &*bob),
        ("user", &*spoofed),
        ("a=b", "c=d"),
        ("region", "eu-1"),
        ("token", &*token),
    ];
    for (key, value) in sent {
        assert_eq!(code(client, key, value, 1).await, Code::Ok);
    }
    let top: serde_json::Value =
        serde_json::from_str(&desk.ok(&weir, &["top", "--format", "json"])).expect("JSON");
    let names: Vec<String> = top["subjects"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["subject"].as_str().expect("a name").to_owned())
        .collect();
    let digests = names
        .iter()
        .filter(|name| name.starts_with("shop|user#"))
        .collect::<Vec<_>>();
    assert_eq!((names.len(), digests.len()), (6, 2), "{names:?}");
    assert_printed_by_names(&desk.ok(&weir, &["top"]), &spoofed);

    let mut blocked_alone = Vec::new();
    for name in digests {
        let block = assert_digest_is_addressed(&desk, &weir, &file, name);
        for (key, value) in sent {
            if code(client, key, value, 0).await == Code::OverLimit {
                blocked_alone.push(value);
            }
        }
        assert!(
            desk.ok(&weir, &["overrides"])
                .contains(&format!("'user#{}'", &name[10..]))
        );
        desk.ok(&weir, &["overrides", "remove", &id_of(&block)]);
        // One hit is counted, and one fits; after the reset two fit.
        let named = |command: &[&str]| desk.ok(&weir, &[command, &["--subject", name]].concat());
        assert!(named(&["reset"]).starts_with("shop.user counts from zero"));
        let raise = named(&["raise", "--to", "9/year"]);
        assert!(raise.contains("  limits  shop.user\n"), "{raise}");
    }
    blocked_alone.sort_unstable();
    assert_eq!(blocked_alone, [&*ann, &*bob], "each by its own name");
    for (value, codes) in [
        (&*ann, [Code::Ok, Code::OverLimit]),
        (&*spoofed, [Code::OverLimit, Code::OverLimit]),
    ] {
        assert_eq!(
            [
                code(client, "user", value, 9).await,
                code(client, "user", value, 2).await
            ],
            codes,
            "{value}: raised to 9, or as it was"
        );
    }

    // Two limits may count a token of which the digest is known.
    let token = names.iter().find(|name| name.starts_with("shop|token#"));
    let failure = desk.fails(&weir, &["reset", "--subject", token.expect("a name")]);
    assert!(failure.contains("write one of them as limit"), "{failure}");
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let desk = Desk::new();
    let weir = desk.start(LIMITS, &[]);
    let raise =
        |entry: &str, to: &str| desk.fails(&weir, &["raise", "-d", "shop", entry, "--to", to]);
    assert_eq!(
        raise("user=1", "500/minute"),
        "to: the limit shop.user is 2/year, and can be raised in its own unit only; write an \
         amount per year, such as 2/year\n"
    );
    assert_eq!(
        raise("user=1", "2/year"),
        "to: the limit shop.user is 2/year already; write a larger amount\n"
    );
    assert_eq!(
        raise("log=1", "100001/hour"),
        "to: the limit shop.log is a sliding_window_log, which holds at most 100000; write 100000 \
         or less\n"
    );
    assert_eq!(
        raise("free=1", "5/year"),
        "to: the limit of these descriptors is unlimited: there is nothing to raise\n"
    );
    let block =
        |arguments: &[&str]| desk.fails(&weir, &[&["block", "-d", "shop"], arguments].concat());
    assert!(block(&["user=1", "--reason", "a\nb"]).starts_with("reason has a line break"));
    assert!(
        block(&["user=1", "--until", "someday"])
            .contains("--until: `someday` is no time; write a duration such as 2h")
    );
    assert!(block(&["user=1", "--for", "2001-01-01"]).contains("is in the past"));
    assert!(block(&["=1"]).contains("`=1` has no key"));
    let reset = |entry: &str| desk.fails(&weir, &["reset", "-d", "shop", entry]);
    assert!(reset("user=4*").contains("a reset takes one exact descriptor, without wildcards"));
    assert!(reset("user").contains("a reset takes one exact descriptor, without wildcards"));
    assert_eq!(
        reset("free=1"),
        "the limit shop.free is unlimited: it counts nothing\n"
    );
    assert_eq!(
        reset("none=1"),
        "no limit of the domain shop has the key none\n"
    );
    assert_eq!(
        desk.fails(&weir, &["reset", "-d", "none", "user=1"]),
        "no limit in force has the domain none\n"
    );
    // What is kept in a process only says so.
    let text = desk.ok(&weir, &["block", "-d", "shop", "user=1"]);
    assert!(
        text.contains("warning: it is kept in this process only: it ends with the process"),
        "{text}"
    );
    order_what_no_limit_has(&desk, &weir);
    // The API says the same of what the command refuses itself.
    let body = br#"{"domain": "shop", "entries": [{"key": "user", "value": "4*"}]}"#;
    let token = ("authorization", "Bearer 0123456789abcdef0123");
    let address = weir.listener("debug");
    let answer = http_client::call(address, "POST", "/api/v1/reset", &[token], body);
    assert!(
        answer.status == 400 && answer.body.contains("instead of `user=4*`"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn a_file_keeps_them_over_a_restart_and_may_be_edited() {
    let desk = Desk::new();
    let file = desk.path("overrides.json");
    // As editors do: half a file would be found out too early.
    let save = |text: &str| {
        let beside = desk.path("overrides.json~");
        std::fs::write(&beside, text)
            .and_then(|()| std::fs::rename(&beside, &file))
            .expect("saved");
    };
    let environment = [("OVERRIDES_FILE", file.to_str().expect("UTF-8"))];
    let weir = desk.start(LIMITS, &environment);
    desk.ok(
        &weir,
        &["block", "-d", "shop", "user=1", "--reason", "first"],
    );
    desk.ok(&weir, &["block", "-d", "shop", "user=2"]);
    drop(weir);
    let text = std::fs::read_to_string(&file).expect("it is there");
    assert!(
        text.starts_with("{\n") && text.contains("\"reason\": \"first\""),
        "for people: {text}"
    );

    let weir = desk.start(LIMITS, &environment);
    let client = &mut weir.client().await;
    assert_eq!(
        code(client, "user", "1", 1).await,
        Code::OverLimit,
        "with the first request"
    );
    // An editor replaces the value of one, and makes a mistake in another.
    let edited = text.replacen("\"value\": \"1\"", "\"value\": \"3\"", 1);
    let at = edited.rfind("\"block\"").expect("the second");
    let edited = format!("{}\"blok\"{}", &edited[..at], &edited[at + 7..]);
    save(&edited);
    weir.wait_for_log("kind: write one of block, exempt, raise")
        .await;
    assert_eq!(code(client, "user", "3", 1).await, Code::OverLimit);
    assert_eq!(code(client, "user", "1", 1).await, Code::Ok);
    // A change by a command leaves what cannot be read as it is.
    desk.ok(&weir, &["exempt", "-d", "shop", "user=9"]);
    assert!(
        std::fs::read_to_string(&file)
            .expect("it is there")
            .contains("\"blok\"")
    );
    // Half a file changes nothing, and is not written over.
    save("{\"overrides\": [");
    weir.wait_for_log("mend the file, or remove it").await;
    assert_eq!(code(client, "user", "3", 1).await, Code::OverLimit);
    assert!(
        desk.fails(&weir, &["block", "-d", "shop", "user=5"])
            .contains("nothing was changed: OVERRIDES_FILE: ")
    );
    assert_eq!(
        std::fs::read_to_string(&file).expect("it is there"),
        "{\"overrides\": ["
    );
    std::fs::remove_file(&file).expect("removed");
    weir.wait_for_log("overrides: read again").await;
    assert_eq!(code(client, "user", "3", 0).await, Code::Ok);
}

#[tokio::test]
async fn a_pipe_in_the_place_of_the_file_is_an_error_and_waits_for_nothing() {
    let desk = Desk::new();
    let file = desk.path("overrides.json");
    special_files::pipe(&file);
    let weir = desk.start(LIMITS, &[("OVERRIDES_FILE", file.to_str().expect("UTF-8"))]);
    weir.wait_for_log("it is a pipe").await;
    let refused = desk.fails(&weir, &["block", "-d", "shop", "user=1"]);
    assert!(
        refused.contains("nothing was changed: OVERRIDES_FILE: "),
        "{refused}"
    );
    std::fs::remove_file(&file).expect("removed");
    weir.wait_for_log("overrides: read again").await;
    desk.ok(&weir, &["block", "-d", "shop", "user=1"]);
    // In its place while Weir serves: what is in force stays.
    special_files::pipe(&desk.path("pipe"));
    std::fs::rename(desk.path("pipe"), &file).expect("renamed");
    let refused = desk.fails(&weir, &["block", "-d", "shop", "user=2"]);
    assert!(refused.contains("it is a pipe"), "{refused}");
    let client = &mut weir.client().await;
    assert_eq!(code(client, "user", "1", 1).await, Code::OverLimit);
    assert_eq!(code(client, "user", "2", 1).await, Code::Ok);
}

fn header(answer: &RateLimitResponse, key: &str) -> Option<String> {
    answer
        .response_headers_to_add
        .iter()
        .find(|header| header.key == key)
        .map(|header| header.value.clone())
}

fn assert_orders_are_counted(weir: &Weir) {
    for (kind, count) in [("block", 3.0), ("exempt", 5.0), ("raise", 1.0)] {
        assert_eq!(
            weir.metric(&format!("weir_override_decisions_total{{kind=\"{kind}\"}}")),
            Some(count),
            "{kind}"
        );
    }
    for (outcome, count) in [("blocked", 2.0), ("exempt", 5.0)] {
        let series = format!(
            "weir_decisions_total{{domain=\"shop\",limit=\"vip\",name=\"vip\",\
             outcome=\"{outcome}\"}}"
        );
        assert_eq!(weir.metric(&series), Some(count), "{outcome}");
    }
}

#[tokio::test]
async fn answers_are_what_envoy_and_clients_can_use() {
    let desk = Desk::new();
    let headers = [
        ("RETRY_AFTER_HEADER_ENABLED", "true"),
        ("REFUSED_BY_HEADER", "x-refused-by"),
    ];
    let weir = desk.start(LIMITS, &headers);
    let client = &mut weir.client().await;
    let until = in_seconds(1_000);
    desk.ok(&weir, &["block", "-d", "shop", "vip=1", "--until", &until]);
    desk.ok(&weir, &["block", "-d", "shop", "vip=2"]);
    desk.ok(&weir, &["block", "-d", "shop", "none=1", "--force"]);
    desk.ok(&weir, &["exempt", "-d", "shop", "vip=3"]);
    desk.ok(&weir, &["raise", "-d", "shop", "vip=4", "--to", "500/year"]);

    let answer = call(client, "shop", "vip", "1", 1).await;
    let status = &answer.statuses[0];
    let limit = status.current_limit.as_ref().expect("a limit");
    let reset = status
        .duration_until_reset
        .as_ref()
        .expect("a time")
        .seconds;
    assert_eq!(
        (
            status.code(),
            status.limit_remaining,
            limit.requests_per_unit,
            &*limit.name
        ),
        (Code::OverLimit, 0, 2, "vip")
    );
    assert!(
        (900..=1_001).contains(&reset),
        "until the block ends: {reset}"
    );
    assert!(
        header(&answer, "retry-after")
            .is_some_and(|secs| (900..=1_001).contains(&secs.parse::<i64>().expect("seconds")))
    );
    assert_eq!(header(&answer, "x-refused-by").as_deref(), Some("\"vip\""));

    // Without an end there is no time to come back at, and no limit beside which Envoy would show
    // one.
    for (key, value) in [("vip", "2"), ("none", "1")] {
        let answer = call(client, "shop", key, value, 1).await;
        let status = &answer.statuses[0];
        assert_eq!(
            (
                status.code(),
                status.current_limit.is_some(),
                status.duration_until_reset.is_some()
            ),
            (Code::OverLimit, false, false)
        );
        assert_eq!(header(&answer, "retry-after"), None);
    }
    for _ in 0..5 {
        let answer = call(client, "shop", "vip", "3", 9).await;
        assert_eq!(
            (answer.overall_code(), answer.statuses[0].limit_remaining),
            (Code::Ok, u32::MAX)
        );
    }
    let answer = call(client, "shop", "vip", "4", 9).await;
    let limit = answer.statuses[0].current_limit.as_ref().expect("a limit");
    assert_eq!(
        (
            answer.overall_code(),
            limit.requests_per_unit,
            answer.statuses[0].limit_remaining
        ),
        (Code::Ok, 500, 491)
    );

    assert_orders_are_counted(&weir);
}
