//! The commands of the support desk: what they print, what they refuse, and what answers are like.

use std::path::Path;

use weir::core::proto::RateLimitResponse;
use weir::core::proto::rate_limit_response::Code;

use super::{Desk, LIMITS, call, code, id_of, in_seconds};
use crate::service::special_files;
use crate::support::Weir;

/// Both blocks are removed, metrics count the changes, and the log names what was replaced.
async fn assert_undone(desk: &Desk, weir: &Weir, block_id: &str, unknown_id: &str) {
    let removed = desk.ok(weir, &["unblock", block_id, unknown_id]);
    let expected = "\
removed: block user=42 in shop, until 2100-01-31 16:00 UTC
removed: block 'remote_address=10.0.0.*' in shop, until it is removed
";
    assert_eq!(removed, expected);
    assert_eq!(
        desk.fails(weir, &["overrides", "remove", block_id]),
        format!("no override has the id {block_id}; `weir overrides` lists them\n")
    );
    for (change, count) in [("set", 6.0), ("removed", 2.0), ("ended", 0.0)] {
        assert_eq!(
            weir.metric(&format!(
                "weir_override_changes_total{{change=\"{change}\"}}"
            )),
            Some(count),
            "{change}"
        );
    }
    let line = weir.wait_for_log("\"replaced_until\":\"removed\"").await;
    for field in [
        "\"@message\":\"override set\"",
        "\"by\":\"alice\"",
        "\"entries\":\"vip\"",
        "\"until\":\"2100-01-31T16:00:00Z\"",
    ] {
        assert!(line.contains(field), "{field}: {line}");
    }
}

/// The cells of a table of overrides. When each was made is NOW if it was today.
fn cells(table: &str) -> Vec<Vec<String>> {
    let of_line = |line: &str| {
        let cells = line.split("  ").map(str::trim);
        cells
            .filter(|cell| !cell.is_empty())
            .map(|cell| {
                if cell.starts_with(&made_today()) {
                    "NOW".to_owned()
                } else {
                    cell.to_owned()
                }
            })
            .collect()
    };
    table.lines().map(of_line).collect()
}

/// Orders that would change nothing, or not what is meant, are refused or warned of. Returns what
/// was printed for an unknown key.
fn order_what_no_limit_has(desk: &Desk, weir: &Weir) -> String {
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
    let joined = desk.fails(weir, &["block", "-d", "shop", "user=1,vip=2"]);
    assert!(
        joined.contains("if vip is the next entry, write it separately"),
        "{joined}"
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
    unknown
}

/// What `explain` says of a blocked, an exempt and a raised one.
fn assert_explained(desk: &Desk, weir: &Weir, [block_id, raise_id, exempt_id]: [&str; 3]) {
    let explained = desk.ok(
        weir,
        &[
            "explain", "-d", "shop", "user=42", ",", "vip=1", ",", "user=43",
        ],
    );
    for line in [
        format!(
            "user=42: REFUSED NOW: blocked by the override {block_id} of alice until 2100-01-31 \
             16:00 UTC: scrapes the catalogue\n"
        ),
        format!("vip=1: exempt by the override {exempt_id} of alice until 2100-01-31 16:00 UTC\n"),
        format!(
            "user=43: 2 per year, raised to 500/year by the override {raise_id} of alice: ticket \
             4711\n"
        ),
    ] {
        assert!(explained.contains(&line), "{line}: {explained}");
    }
}

fn block_until(desk: &Desk, weir: &Weir, until: &str) -> String {
    let block = desk.ok(
        weir,
        &[
            "block",
            "--domain",
            "shop",
            "user=42",
            "--until",
            until,
            "--reason",
            "scrapes the catalogue",
        ],
    );
    let expected = "\
block user=42 in shop, until 2100-01-31 16:00 UTC
  ends    in SPAN, Sunday 2100-01-31 16:00 UTC
  limits  shop.user
  undo    weir unblock 43a0b5d3f4fb
";
    assert_eq!(
        spanless(&block).replace(&id_of(&block), "43a0b5d3f4fb"),
        expected
    );
    block
}

#[tokio::test]
async fn every_command_prints_what_it_did_and_how_to_undo_it() {
    let (desk, far) = (Desk::new(), "2100-01-31T18:00:00+02:00");
    let file = desk.path("overrides.json");
    let weir = desk.start(LIMITS, &[("OVERRIDES_FILE", file.to_str().expect("UTF-8"))]);
    assert_eq!(
        desk.ok(&weir, &["overrides"]),
        "no overrides are in force; `weir overrides --ended` lists those of the last week\n"
    );
    let block = block_until(&desk, &weir, far);
    let raised = ["raise", "-d", "shop", "user=4*", "--to", "500/year"];
    let raise = desk.ok(&weir, &[&raised[..], &["--reason", "ticket 4711"]].concat());
    let expected = "\
raise to 500/year 'user=4*' in shop, until it is removed
  limits  shop.user
  count   kept: hits that were counted still count
  undo    weir unraise 43a0b5d3f4fb
";
    assert_eq!(raise.replace(&id_of(&raise), "43a0b5d3f4fb"), expected);
    let exempt = desk.ok(&weir, &["exempt", "-d", "shop", "vip", "--all"]);
    let again = desk.ok(
        &weir,
        &["exempt", "-d", "shop", "vip", "--all", "--until", far],
    );
    let expected = "\
exempt vip in shop, until 2100-01-31 16:00 UTC
  ends    in SPAN, Sunday 2100-01-31 16:00 UTC
  limits  shop.vip
  before  exempt vip in shop, until it is removed
  undo    weir unexempt 43a0b5d3f4fb
";
    assert_eq!(
        spanless(&again).replace(&id_of(&exempt), "43a0b5d3f4fb"),
        expected,
        "the same override is replaced"
    );
    let unknown = order_what_no_limit_has(&desk, &weir);

    let listed = desk.ok(&weir, &["overrides", "-d", "shop"]);
    let [block_id, raise_id, exempt_id, unknown_id] =
        [&block, &raise, &exempt, &unknown].map(|text| id_of(text));
    let expected = format!(
        "\
ID            ORDER              DOMAIN  ENTRIES                    UNTIL                 MADE  BY     REASON
{block_id}  block              shop    user=42                    2100-01-31 16:00 UTC  NOW   alice  scrapes the catalogue
{unknown_id}  block              shop    'remote_address=10.0.0.*'  -                     NOW   alice  -
{exempt_id}  exempt             shop    vip                        2100-01-31 16:00 UTC  NOW   alice  -
{raise_id}  raise to 500/year  shop    'user=4*'                  -                     NOW   alice  ticket 4711
"
    );
    assert_eq!(cells(&listed), cells(&expected));
    let json: serde_json::Value =
        serde_json::from_str(&desk.ok(&weir, &["overrides", "--format", "json"])).expect("JSON");
    assert_eq!(json["overrides"].as_array().map(Vec::len), Some(5));

    assert_explained(&desk, &weir, [&block_id, &raise_id, &exempt_id]);

    assert_undone(&desk, &weir, &block_id, &unknown_id).await;
}

/// The date of today, as lists begin an instant with it.
fn made_today() -> String {
    jiff::Timestamp::now().strftime("%F ").to_string()
}

/// An answer without the span until its end.
fn spanless(text: &str) -> String {
    let line = |line: &str| match line
        .strip_prefix("  ends    in ")
        .and_then(|rest| rest.split_once(", "))
    {
        Some((_, at)) => format!("  ends    in SPAN, {at}\n"),
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
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

/// What a row's client has counted. Returns the value that it sent.
fn assert_counted_once(shell: &impl Fn(&str, &str) -> String, row: &str) -> String {
    let json: serde_json::Value =
        serde_json::from_str(&shell("usage --format json", row)).expect("JSON");
    let value = json["entries"][0]["value"].as_str().expect("a value");
    assert_eq!(json["hits"], 1, "{row} is the client that sent {value:?}");
    let explained = shell("explain", row);
    assert!(
        explained.starts_with(&format!("{row}: 2 per year\n"))
            && explained.contains("1 used, 1 left"),
        "{row}: {explained}"
    );
    assert!(
        shell("count --since 10m", row).contains("  hits     1, over the limit 0"),
        "{row}"
    );
    value.to_owned()
}

/// The subjects of a list: the last column, which has no two spaces.
fn subjects(output: &str) -> Vec<String> {
    output
        .lines()
        .filter(|line| line.contains("user="))
        .filter_map(|line| Some(line.rsplit_once("  ")?.1.to_owned()))
        .collect()
}

/// Values that are special to Weir, to a terminal or to a shell.
const PASTED: [&str; 16] = [
    "*",
    "\\",
    "\\*",
    "**",
    "a b",
    "it's $(echo) `x` \"y\"",
    "-x",
    "",
    "#",
    "~",
    "\u{1b}[2J\n\u{202e}",
    "\\u{2a}",
    "4*",
    "42",
    "=",
    "é",
];

/// A row of a list, pasted into a command, is the client that sent it and no other: also one that
/// sends what is special to Weir or to a shell.
#[tokio::test]
async fn a_row_that_is_pasted_means_its_own_client() {
    let desk = Desk::new();
    let limits = LIMITS.replace(
        "requests_per_unit: 2 }",
        "requests_per_unit: 2, track_usage: true }",
    );
    let weir = desk.start(&limits, &[]);
    let client = &mut weir.client().await;
    let sent = PASTED;
    for value in sent {
        assert_eq!(code(client, "user", value, 1).await, Code::Ok, "{value:?}");
    }
    let shell = |command: &str, row: &str| {
        let line = format!("{} {command} -d shop {row}", env!("CARGO_BIN_EXE_weir"));
        let mut shell = std::process::Command::new("sh");
        shell
            .args(["-c", &line])
            .env("WEIR_ADMIN", weir.listener("debug").to_string())
            .env("WEIR_ADMIN_TOKEN_FILE", desk.path("token"));
        let output = shell.output().expect("a shell");
        assert!(
            output.status.success(),
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let top = subjects(&desk.ok(&weir, &["top", "--limit", "shop.user"]));
    let usage = subjects(&desk.ok(&weir, &["usage", "--top", "20", "--limit", "shop.user"]));
    assert_eq!(
        (top.len(), usage.len()),
        (sent.len(), sent.len()),
        "{top:?} {usage:?}"
    );
    let mut left = sent.to_vec();
    for row in &top {
        assert!(usage.contains(row), "{row}: {usage:?}");
        let value = assert_counted_once(&shell, row);
        let block = shell("block", row);
        assert!(
            block.starts_with(&format!(
                "block {row} in shop, until it is removed\n  limits  shop.user\n"
            )),
            "{row}: {block}"
        );
        let mut blocked = Vec::new();
        for other in sent {
            // A peek counts nothing.
            if code(client, "user", other, 0).await == Code::OverLimit {
                blocked.push(other);
            }
        }
        assert_eq!(blocked, [value.as_str()], "{row}");
        desk.ok(&weir, &["overrides", "remove", &id_of(&block)]);
        assert!(
            shell("reset", row).starts_with("shop.user counts from zero"),
            "{row}"
        );
        assert!(shell("explain", row).contains("0 used, 2 left"), "{row}");
        left.retain(|one| *one != value);
    }
    assert_eq!(left, [""; 0], "no row is that of these");
}

/// The key with = by its name and by what is printed; the pattern, and a token, by their names.
async fn assert_keys_and_patterns_have_names(desk: &Desk, weir: &Weir, names: &[String]) {
    let client = &mut weir.client().await;
    let named =
        |command: &[&str], name: &str| desk.ok(weir, &[command, &["--subject", name]].concat());
    assert!(named(&["usage"], "shop|a%3db=c%3dd").contains("  hits        1, over the limit 0"));
    assert!(
        desk.ok(weir, &["usage", "-d", "shop", "a\\u{3d}b=c=d"])
            .contains("  hits        1, over the limit 0")
    );
    let explained = desk.ok(weir, &["explain", "--subject", "shop|region~eu-*"]);
    assert!(explained.contains("1 used, 1 left"), "{explained}");
    let block = named(&["block"], "shop|region~eu-*");
    assert!(block.starts_with("block 'region=eu-*' in shop"), "{block}");
    assert_eq!(
        [
            code(client, "region", "eu-2", 0).await,
            code(client, "region", "us", 0).await
        ],
        [Code::OverLimit, Code::Ok]
    );
    assert!(named(&["reset"], "shop|region~eu-*").contains("it is reset for all of them"));

    // Two limits may count a token of which the digest is known.
    let token = names
        .iter()
        .find(|name| name.starts_with("shop|token#"))
        .expect("a name");
    let failure = desk.fails(weir, &["reset", "--subject", token]);
    assert!(
        failure.contains(
            "these limits may count it: shop.token_Bearer *, shop.token; write one of them as limit"
        ),
        "{failure}"
    );
    assert!(
        named(&["reset", "--limit", "shop.token_Bearer *"], token)
            .starts_with("shop.token_Bearer * counts from zero")
    );
    assert!(
        desk.fails(weir, &["block", "--subject", "shop"])
            .contains("subject: it has no entries")
    );
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

    assert_keys_and_patterns_have_names(&desk, &weir, &names).await;
}

/// The API says the same of what the command refuses itself.
fn assert_api_says_the_same(weir: &Weir) {
    // The API says the same of what the command refuses itself.
    let body = |body: &str| {
        let address = weir.listener("debug");
        let message = format!(
            "POST /api/v1/reset HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer \
             0123456789abcdef0123\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let answer = crate::support::http_client::exchange(
            std::net::Ipv4Addr::LOCALHOST,
            address,
            message.as_bytes(),
        )
        .expect("an answer");
        String::from_utf8(answer).expect("UTF-8")
    };
    let answer = body(r#"{"domain": "shop", "entries": [{"key": "user", "value": "4*"}]}"#);
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("instead of `user=4*`"),
        "{answer}"
    );
    let answer = body(r#"{"domain": "shop", "entries": [{"key": "user", "value": "4"}], "x": 1}"#);
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("unknown field `x`"),
        "{answer}"
    );
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
    assert_api_says_the_same(&weir);
}

#[test]
fn nothing_is_changed_without_a_token() {
    let desk = Desk::new();
    let weir = desk.start(LIMITS, &[]);
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .env_clear()
            .args(arguments)
            .args(["--admin", &weir.listener("debug").to_string()]);
        command.output().expect("it runs")
    };
    for arguments in [
        &["block", "-d", "shop", "user=1"][..],
        &["reset", "-d", "shop", "user=1"],
        &["overrides", "remove", "x"],
    ] {
        let output = run(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && error.contains("token"),
            "{arguments:?}: {error}"
        );
    }
    assert!(
        run(&["overrides"]).status.success(),
        "reading is free on loopback"
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
