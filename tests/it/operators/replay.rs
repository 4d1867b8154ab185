//! `weir replay` as its users see it: traces of every format, its result, its errors and exit
//! codes, and the report in a real browser.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use crate::service::envoy::example_configuration;
use crate::support::browser::Browser;
use crate::support::envoy::{Envoy, with};
use crate::support::http_client::{self, request_from};
use crate::support::{Weir, exclusive, tools, wait};

const LIMITS: &str = "domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: path
    value: /login
    rate_limit: { unit: hour, requests_per_unit: 2, algorithm: sliding_window_log }
";

/// A text of a client that would change the title of a page if any of it became markup.
const HOSTILE: &str =
    "\"'><script>document.title=1</script><img src=x onerror=\"document.title=1\">";

/// A folder with limits of 3 a minute in `old`, of 2 a minute in `new`, and these files.
struct Site(tempfile::TempDir);

impl Site {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let site = Self(folder);
        for (name, limits) in [
            ("old", LIMITS.to_owned()),
            ("new", LIMITS.replace("unit: 3", "unit: 2")),
        ] {
            fs::create_dir(site.path(name)).expect("a folder");
            fs::write(site.path(name).join("d.yaml"), limits).expect("written");
        }
        for (name, text) in files {
            fs::write(site.path(name), text).expect("written");
        }
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `weir replay` with these arguments in the folder, which reads `input`.
    fn replay(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .env_clear()
            .current_dir(self.0.path())
            .arg("replay")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut stdin = child.stdin.take().expect("a pipe");
        // It ends before it has read all where something is wrong.
        let _ = stdin.write_all(input);
        drop(stdin);
        child.wait_with_output().expect("it ends")
    }

    /// The result for programs.
    fn json(&self, arguments: &[&str], input: &[u8]) -> Value {
        let output = self.replay(&[arguments, &["--format", "json"]].concat(), input);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The exit code and the error of a run that fails.
    fn fails(&self, arguments: &[&str], input: &[u8]) -> (Option<i32>, String) {
        let output = self.replay(arguments, input);
        assert_eq!(
            output.stdout,
            b"",
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
        (output.status.code(), stderr(&output))
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A row of a user at a second.
fn row(second: u64, user: &str) -> String {
    let entries = serde_json::json!([{ "entries": [{ "key": "user", "value": user }] }]);
    format!(
        "{}\n",
        serde_json::json!({ "time": 1_795_428_000 + second, "domain": "d", "descriptors": entries })
    )
}

/// Five requests of `ann` and two of `bob` in a minute, one more of `ann` in the next.
fn usual() -> String {
    let rows = [
        (0, "ann"),
        (1, "bob"),
        (2, "ann"),
        (3, "ann"),
        (4, "ann"),
        (5, "ann"),
        (6, "bob"),
        (61, "ann"),
    ];
    rows.iter()
        .map(|(second, user)| row(*second, user))
        .collect()
}

#[test]
fn two_configurations_are_compared() {
    let site = Site::new(&[("trace.jsonl", &usual())]);
    let both = ["trace.jsonl", "--config", "old", "--config", "new"];
    let result = site.json(&both, b"");
    assert_eq!(result["rows"], 8);
    let [old, new] = [0, 1].map(|index| &result["configurations"][index]);
    assert_eq!((&old["ok"], &old["over_limit"]), (&6.into(), &2.into()));
    assert_eq!((&new["ok"], &new["over_limit"]), (&5.into(), &3.into()));
    let limit = &new["limits"][0];
    for (name, value) in [
        ("limit", Value::from("d.user")),
        ("amount", "2/minute".into()),
        ("asked", 8.into()),
        ("admitted", 5.into()),
        ("subjects", 2.into()),
        ("subjects_refused", 1.into()),
        ("first_refused", "2026-11-23T10:00:03Z".into()),
        ("most_in_window", 2.into()),
    ] {
        assert_eq!(limit[name], value, "{name} of {limit}");
    }
    let difference = &result["difference"];
    assert_eq!(
        (
            &difference["newly_refused"]["requests"],
            &difference["newly_admitted"]["requests"]
        ),
        (&1.into(), &0.into())
    );
    assert_eq!(
        difference["newly_refused"]["most"][0]["subject"],
        "d|user=ann"
    );

    // One row of eight is newly refused.
    let code = |most: &str| {
        let arguments = [&both[..], &["--fail-if-newly-refused", most]].concat();
        site.replay(&arguments, b"").status.code()
    };
    assert_eq!(
        [code("12.4%"), code("12.5%"), code("0%")],
        [Some(3), Some(0), Some(3)]
    );
    let back = [
        "trace.jsonl",
        "--config",
        "new",
        "--config",
        "old",
        "--fail-if-newly-refused",
        "0%",
    ];
    assert_eq!(site.replay(&back, b"").status.code(), Some(0));
    assert_eq!(
        site.json(&back, b"")["difference"]["newly_admitted"]["requests"],
        1
    );

    let text = String::from_utf8(site.replay(&both, b"").stdout).expect("UTF-8");
    for line in [
        "8 rows from 2026-11-23T10:00:00Z to 2026-11-23T10:01:01Z (1m 1s)",
        "old: 6 OK, 2 OVER_LIMIT (25.00 %)",
        "      8         5        3  37.50 %  1 of 2    2 of 2/minute  2026-11-23T10:00:03Z  d.user",
        "old -> new: newly refused 1 (12.50 %) of 1 subject, newly admitted 0 (0.00 %) of 0 \
         subjects",
    ] {
        assert!(
            text.lines().any(|own| own == line),
            "no `{line}` in\n{text}"
        );
    }
}

#[test]
fn a_trace_comes_by_a_pipe_in_gzip_and_a_little_out_of_order() {
    let site = Site::new(&[]);
    let mut rows: Vec<_> = usual().lines().map(|line| format!("{line}\r\n")).collect();
    rows.swap(1, 6);
    rows.insert(3, "\n".to_owned());
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(rows.concat().as_bytes()).expect("in memory");
    let result = site.json(
        &["-", "--config", "old"],
        &gzip.finish().expect("in memory"),
    );
    assert_eq!(result["configurations"][0]["over_limit"], 2);
    assert!(result["difference"].is_null());
}

#[test]
fn rows_that_cannot_be_read_are_counted_and_named() {
    let site = Site::new(&[]);
    let good: String = (0..1_188).map(|second| row(second, "ann")).collect();
    let bad: String = (0..12)
        .map(|number| format!("{{\"bad\": {number}}}\n"))
        .collect();
    let long = format!("{{\"x\": \"{}\"}}\n", "y".repeat(1 << 20));
    let result = site.json(&["-", "--config", "old"], format!("{bad}{good}").as_bytes());
    assert_eq!(
        (&result["bad_rows"]["count"], &result["rows"]),
        (&12.into(), &1_188.into())
    );
    let first = result["bad_rows"]["first"].as_array().expect("a list");
    assert_eq!((first.len(), &first[9]["line"]), (10, &10.into()));
    // One more is above 1 %.
    let (code, error) = site.fails(
        &["-", "--config", "old"],
        format!("{long}{bad}{good}").as_bytes(),
    );
    assert_eq!(code, Some(1));
    assert!(
        error.contains("13 of 1201 rows cannot be read, which is more than 1 %"),
        "{error}"
    );
    assert!(
        error.contains("line 1: it is longer than 1 MiB")
            && error.contains("line 2: it has no `time`"),
        "{error}"
    );
    // An error does not repeat a text of a megabyte.
    let time = format!("{{\"time\": \"{}\"}}\n", "y".repeat(1 << 19));
    let (_, error) = site.fails(&["-", "--config", "old"], time.as_bytes());
    assert!(error.contains("`yyy") && error.len() < 1_000);
    // What the service would refuse is a bad row too.
    let (code, error) = site.fails(
        &["-", "--config", "old"],
        br#"{"time": 1, "domain": "", "descriptors": []}"#,
    );
    assert_eq!(code, Some(1));
    assert!(
        error.contains("line 1: rate limit domain must not be empty"),
        "{error}"
    );
}

/// A site with traces of which each has something wrong.
fn mistakes() -> Site {
    let late = row(100, "ann") + &row(0, "bob");
    let site = Site::new(&[
        ("late.jsonl", &late),
        ("t.csv", "time,user\n1,ann\n"),
        ("cut.csv", "time,user\n1,ann\n2"),
        ("usual.jsonl", &usual()),
        ("domain.jsonl", &usual().replace("\"d\"", "\"dd\"")),
        ("empty", "\n"),
        (
            "weir.log",
            "{\"@timestamp\":\"1970-01-01T00:00:05Z\",\"@message\":\"x\"}\n",
        ),
        (
            "access.json",
            "{\"start_time\": \"2026-11-23T10:00:00Z\", \"who\": \"ann\"}\n",
        ),
    ]);
    fs::hard_link(site.path("usual.jsonl"), site.path("link")).expect("a link");
    fs::create_dir(site.path("other")).expect("a folder");
    let other = LIMITS.replace("domain: d", "domain: e");
    fs::write(site.path("other/e.yaml"), other).expect("written");
    site
}

/// Arguments, with limits in `old`, their exit codes, and a part of each error.
const MISTAKES: &[(&[&str], i32, &str)] = &[
    (&["late.jsonl"], 1, "line 2 is 1m 40s before line 1"),
    (
        &["cut.csv", "--domain", "d", "--descriptor", "user={user}"],
        1,
        "line 3: it has 1 column, and the first line has 2",
    ),
    (&["none.jsonl"], 1, "none.jsonl cannot be read"),
    (&["t.csv"], 1, "CSV and access logs need --descriptor"),
    (
        &["t.csv", "--descriptor", "user={who}"],
        1,
        "{who}, which no record has; there are: time, user",
    ),
    (
        &["late.jsonl", "--fail-if-newly-refused", "1%"],
        2,
        "write --config twice",
    ),
    (
        &["late.jsonl", "--algorithms", "d.users"],
        2,
        "no limit is `d.users`; write a path, such as d.user, d.path_/login",
    ),
    (&["empty"], 1, "no row is a request: the trace is empty"),
    (&["weir.log"], 1, "its lines are about other things"),
    (
        &[
            "access.json",
            "--domain",
            "d",
            "--descriptor",
            "user={who} if {who}=b*",
        ],
        1,
        "no row is a request: no record has all fields of a --descriptor and matches its `if`",
    ),
    (
        &["domain.jsonl"],
        1,
        "no row finds a limit of old; the first one:\n  user=ann: not limited: no file defines \
             the domain dd; there are: d (did you mean d?)",
    ),
    (
        &["usual.jsonl", "--algorithms", "d.path_/login"],
        1,
        "no row asks the limit d.path_/login",
    ),
    (
        &["usual.jsonl", "--html", "usual.jsonl"],
        2,
        "usual.jsonl is read; write another file",
    ),
    (&["usual.jsonl", "--html", "link"], 2, "link is read"),
];

#[test]
fn what_cannot_be_done_is_said() {
    let (site, old) = (mistakes(), ["--config", "old"]);
    for &(arguments, code, what) in MISTAKES {
        let (exit, error) = site.fails(&[arguments, &old].concat(), b"");
        assert_eq!(exit, Some(code), "{arguments:?}: {error}");
        assert!(
            error.contains(what) && error.lines().count() < 20,
            "{arguments:?}: {error}"
        );
    }
    assert_eq!(
        fs::read_to_string(site.path("usual.jsonl")).expect("there"),
        usual()
    );
    let sorted = site.json(&["late.jsonl", "--sort", "--config", "old"], b"");
    assert_eq!(
        (&sorted["rows"], &sorted["seconds"]),
        (&2.into(), &100.0.into())
    );
}

/// Trace, second configuration, templates, and the reason for which the comparison shows nothing.
const GATES: &[(&str, &str, &[&str], Option<&str>)] = &[
    ("t.csv", "new", &["user={user}"], None),
    (
        "t.csv",
        "old",
        &["user={user}"],
        Some("the two configurations do not differ"),
    ),
    (
        "t.csv",
        "without",
        &["user={user}"],
        Some("no row asks d.path_/login, which differs"),
    ),
    (
        "t.csv",
        "shadow",
        &["user={user}"],
        Some("d.user, which differs, is in shadow mode"),
    ),
    (
        "peeks.csv",
        "new",
        &["user={user}"],
        Some("d.user, which differs, is only asked with 0 hits"),
    ),
    (
        "t.csv",
        "flight",
        &["user={user}", "held={user},id={path}"],
        Some("d.held.id, which differs, is left out: durations are unknown"),
    ),
    (
        "t.csv",
        "new",
        &["user={user}", "user={user} if {path}=/c"],
        Some("no record makes a descriptor of user={user} if {path}=/c"),
    ),
];

/// Gates were green where the rows asked nothing of what differs.
#[test]
fn a_gate_is_not_passed_by_rows_that_show_nothing() {
    let trace = "time,user,path,hits\n1,ann,/a,1\n2,bob,/b,1\n";
    let peeks = trace.replace(",1\n", ",0\n");
    let site = Site::new(&[("t.csv", trace), ("peeks.csv", &peeks)]);
    let (user, path) = LIMITS.split_at(LIMITS.find("  - key: path").expect("a limit"));
    let in_flight = "  - key: held\n    descriptors:\n      - key: id\n        rate_limit: \
        { algorithm: concurrency, requests_per_unit: 1, max_duration: 60s }\n";
    for (name, limits) in [
        ("shadow", format!("{user}    shadow_mode: true\n{path}")),
        ("flight", format!("{LIMITS}{in_flight}")),
        ("without", user.to_owned()),
    ] {
        fs::create_dir(site.path(name)).expect("a folder");
        fs::write(site.path(name).join("d.yaml"), limits).expect("written");
    }
    let gate = "--domain d --fail-if-newly-refused 50% --config old --config";
    for &(trace, config, templates, reason) in GATES {
        let templates = templates
            .iter()
            .flat_map(|template| ["--descriptor", template]);
        let arguments = [trace].into_iter().chain(gate.split(' ')).chain([config]);
        let arguments: Vec<_> = arguments.chain(templates).collect();
        let output = site.replay(&arguments, b"");
        let error = stderr(&output);
        let code = i32::from(reason.is_some());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(
            error.contains(reason.unwrap_or_default()),
            "{arguments:?}: {error}"
        );
        assert_eq!(error.is_empty(), reason.is_none(), "{arguments:?}: {error}");
    }
}

/// Two patterns that both match `/az`.
const PATTERNS: [&str; 2] = [
    "- { key: path, value: /a*, rate_limit: { unit: day, requests_per_unit: 3 } }\n",
    "- { key: path, value: /*z, rate_limit: { unit: day, requests_per_unit: 5 } }\n",
];

const TABLE: &str =
    "- { key: user, table: t.csv, rate_limit: { unit: day, requests_per_unit: 9 } }\n";
const ROWS: &str = "value,unit,requests_per_unit,shadow_mode\nann,day,3,false\nzed,day,3,false\n";

const REPLACING: &str = "- { key: user, rate_limit: { unit: day, requests_per_unit: 3, replaces: \
    [{ name: p }] } }\n- { key: path, rate_limit: { unit: day, requests_per_unit: 3, name: p } }\n";

/// A row of [`DIFFERENCES`].
type Case = (
    &'static [&'static str],
    &'static str,
    (&'static str, &'static str),
    &'static [&'static str],
    Option<&'static str>,
);

/// Limits and rows of a table, what the second configuration has in the place of a text of them,
/// the templates, and the reason for which the comparison shows nothing. All that `weir check
/// --diff` reports is here.
#[rustfmt::skip]
const DIFFERENCES: &[Case] = &[
    (&[TABLE], ROWS, ("ann,day,3", "ann,day,2"), &["user={user}"], None),
    (&[TABLE], ROWS, ("ann,day,3", "ann,hour,3"), &["user={user}"], None),
    (&[TABLE], ROWS, ("zed,day,3", "zed,day,2"), &["user={user}"],
        Some("no row asks d.user for zed, which differs")),
    (&[TABLE], ROWS, ("zed,day", "zoe,day,3,false\nzed,day"), &["user={user}"],
        Some("no row asks d.user for zoe, which differs")),
    (&[TABLE], ROWS, ("zed,day,3,false\n", ""), &["user={user}"],
        Some("no row asks d.user for zed, which differs")),
    (&[TABLE], ROWS, ("ann,day,3,false", "ann,day,2,true"), &["user={user}"],
        Some("d.user for ann, which differs, is in shadow mode")),
    (&[TABLE], ROWS, ("unit: 9", "unit: 8"), &["user={user} if {user}=ann"],
        Some("no row asks d.user for values without a row, which differs")),
    (&[TABLE], ROWS, ("unit: 9", "unit: 8"), &["user={user}"], None),
    (&[TABLE], ROWS, ("table: t.csv, ", ""), &["user={user} if {user}=bob"],
        Some("no row asks a row of the table of d.user, which differs")),
    (&[TABLE], ROWS, ("table: t.csv, ", ""), &["user={user}"], None),
    (&[REPLACING], "", (", replaces: [{ name: p }]", ""), &["user={user}"],
        Some("d.user, which differs, replaces `p` in no row")),
    (&[REPLACING], "", (", replaces: [{ name: p }]", ""), &["user={user} , path={path}"], None),
    (&[REPLACING], "", ("3, name: p", "3, name: q"), &["user={user}", "path={path} if {user}=x"],
        Some("no record makes a descriptor of path={path} if {user}=x")),
    (&[REPLACING], "", ("3, name: p", "3, name: q"), &["path={path}"],
        Some("d.path, whose name differs, is replaced in no row")),
    (&[REPLACING], "", ("3, name: p", "3, name: q"), &["user={user} , path={path}"], None),
    (&[REPLACING], "", ("3, name: p", "2, name: p"), &["user={user} , path={path}"],
        Some("d.path, which differs, is replaced in all rows")),
    (&PATTERNS, "", ("[0][1]", "[1][0]"), &["path={path}"],
        Some("no row finds another limit of d, which differs")),
    (&PATTERNS, "", ("[0][1]", "[1][0]"), &["path={path}z"], None),
    (&PATTERNS, "", ("[0][1]", "[1][0]- { key: user, rate_limit: { unlimited: true } }\n"),
        &["path={path} , user={user}"], Some("no row finds another limit of d, which differs")),
    (&PATTERNS, "", ("[0][1]", "[1][0]- { key: user, rate_limit: { unlimited: true } }\n"),
        &["path={path}z , user={user}"], None),
    (&[LIMITED], "", ("[0]", "[0]- { key: user, value: x }\n"), &["user={user}"],
        Some("no row finds another limit of d, which differs")),
    (&[LIMITED], "", ("[0]", "[0]- { key: user, value: ann }\n"), &["user={user}"], None),
    (&[LIMITED], "", ("3 }", "3, on_store_failure: deny }"), &["user={user}"],
        Some("d.user differs in on_store_failure, and no row has an outage")),
    (&[LIMITED], "", ("day", "month, period: calendar"), &["user={user}"], None),
    (&[LIMITED], "", ("{ unit: day, requests_per_unit: 3 }", "{ unlimited: true }"),
        &["user={user}"], None),
];

const LIMITED: &str = "- { key: user, rate_limit: { unit: day, requests_per_unit: 3 } }\n";

/// A difference that no row asked is named, of whichever kind it is.
#[test]
fn a_gate_is_only_passed_by_rows_that_ask_all_that_differs() {
    let trace = "time,user,path,hits\n1,ann,/a,1\n2,bob,/b,1\n";
    let site = Site::new(&[("t.csv", trace)]);
    let all = "{ \"overrides\": [{ \"kind\": \"exempt\", \"domain\": \"d\", \"entries\": \
        [{ \"key\": \"user\", \"value\": \"*\" }] }] }";
    fs::write(site.path("overrides.json"), all).expect("written");
    let gate = "t.csv --domain d --fail-if-newly-refused 99% --config before --config after";
    for &(limits, rows, (from, to), templates, reason) in DIFFERENCES {
        let usual = limits.concat();
        let changed = match from.starts_with('[') {
            true => (0..limits.len()).fold(to.to_owned(), |text, index| {
                text.replace(&format!("[{index}]"), limits[index])
            }),
            false => usual.replace(from, to),
        };
        for (name, limits, rows) in [
            ("before", usual, rows.to_owned()),
            ("after", changed, rows.replace(from, to)),
        ] {
            let _ = fs::remove_dir_all(site.path(name));
            fs::create_dir(site.path(name)).expect("a folder");
            let text = format!("domain: d\ndescriptors:\n{limits}");
            fs::write(site.path(name).join("d.yaml"), text).expect("written");
            if limits.contains("t.csv") {
                fs::write(site.path(name).join("t.csv"), rows).expect("written");
            }
        }
        let templates = templates
            .iter()
            .flat_map(|template| ["--descriptor", template]);
        let arguments: Vec<_> = gate.split(' ').chain(templates).collect();
        let what = (from, to, &arguments);
        let output = site.replay(&arguments, b"");
        let error = stderr(&output);
        let code = i32::from(reason.is_some());
        assert_eq!(output.status.code(), Some(code), "{what:?}: {error}");
        assert!(
            error.contains(reason.unwrap_or_default()),
            "{what:?}: {error}"
        );
        assert_eq!(error.is_empty(), reason.is_none(), "{what:?}: {error}");
    }
    // The last case is conclusive, unless an override decides.
    let arguments = format!("{gate} --descriptor user={{user}} --overrides overrides.json");
    let arguments: Vec<_> = arguments.split(' ').collect();
    let output = site.replay(&arguments, b"");
    let reason = "d.user, which differs, is only asked by subjects with an override";
    assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    // A lower limit refuses others than those that a log of refusals has.
    let log = r#"{"@timestamp":"2026-11-23T10:00:00Z","@message":"refused","domain":"d","descriptor":
        "user=\"ann\"","hits":1}"#;
    let arguments = gate.replace("t.csv --domain d", "-");
    let arguments: Vec<_> = arguments.split(' ').collect();
    let output = site.replay(&arguments, log.replace("\n        ", "").as_bytes());
    let reason = "inconclusive: the trace has refused requests only";
    assert!(stderr(&output).contains(reason), "{}", stderr(&output));
}

/// The access log of the example of Envoy: 22 requests of one client, of which two are refused, and
/// seven logins of another one, of which two are refused.
fn log_of_the_example(limits: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let weir = Weir::start(&[("basic.yaml", limits)], &[]);
    let configuration = with(
        &example_configuration(weir.grpc_addr()),
        "stream.v3.StdoutAccessLog",
        &format!(
            "file.v3.FileAccessLog\n{}path: {}",
            " ".repeat(22),
            log.display()
        ),
    );
    let envoy = Envoy::start(&configuration);
    let front = envoy.listener("front");
    wait::away_from_the_end_of_a_minute();
    let lying: &[(&str, &[u8])] = &[("x-forwarded-for", b"10.9.8.7, 10.9.8.6")];
    let paths = [
        "/login?x=1",
        "//login",
        "/login",
        "/x/../login",
        "/login?y=2",
        "/login",
        "/login?z",
    ];
    let all = ["/"; 22].map(|path| (2, path, &[][..])).into_iter();
    let all: Vec<_> = all.chain(paths.map(|path| (3, path, lying))).collect();
    let status = |&(host, path, headers): &(u8, &str, _)| {
        request_from(Ipv4Addr::new(127, 0, 0, host), front, path, headers).status
    };
    let refused = all
        .iter()
        .map(status)
        .filter(|status| *status == 429)
        .count();
    assert_eq!(refused, 4, "two of each");
    let whole = || {
        let text = fs::read_to_string(&log).ok()?;
        (text.lines().count() == all.len()).then_some(text)
    };
    wait::eventually(whole).expect("a line for each request")
}

/// The replay refuses what the service refused.
#[test]
fn the_log_of_the_example_of_envoy_is_a_trace() {
    let limits = tools::file("config/basic.yaml");
    let text = log_of_the_example(&limits);
    let site = Site::new(&[("access.log", &text), ("basic.yaml", &limits)]);
    let descriptors = [
        "remote_address={x_forwarded_for}",
        "generic_key=whole-site",
        "path=/login,remote_address={x_forwarded_for} if {path}=/login",
    ];
    let descriptors = descriptors.iter().flat_map(|text| ["--descriptor", text]);
    let arguments = ["access.log", "--domain", "demo", "--config", "basic.yaml"];
    let arguments: Vec<_> = arguments.into_iter().chain(descriptors).collect();
    let result = site.json(&arguments, b"");
    let limits = &result["configurations"][0]["limits"];
    let counts: Vec<_> = limits
        .as_array()
        .expect("a list")
        .iter()
        .map(|limit| {
            (
                limit["limit"].as_str(),
                limit["asked"].as_u64(),
                limit["refused"].as_u64(),
            )
        })
        .collect();
    assert_eq!(
        counts,
        [
            (Some("demo.remote_address"), Some(29), Some(2)),
            (Some("demo.path_/login.remote_address"), Some(7), Some(2)),
            (Some("demo.generic_key_whole-site"), Some(29), Some(0)),
        ],
        "{text}"
    );
    let warning = result["warnings"][0].as_str().unwrap_or_default();
    assert!(
        warning.starts_with("7 values are lists of addresses"),
        "{warning}"
    );
    // With a proxy in front, all of them would have come from another address.
    let result = site.json(
        &[&arguments[..], &["--xff-num-trusted-hops", "1"]].concat(),
        b"",
    );
    assert_eq!(result["warnings"], serde_json::json!([]));
    let most = result["configurations"][0]["most_refused"].to_string();
    assert!(most.contains("remote_address=10.9.8.6"), "{most}");
}

/// Settings with which a service logs each decision.
const LOGS: [(&str, &str); 4] = [
    ("LOG_FORMAT", "json"),
    ("LOG_LEVEL", "debug"),
    ("LOG_DECISIONS", "*"),
    ("LOG_REFUSALS", "9"),
];

/// The result of `weir load` with these arguments against a service.
fn load(weir: &Weir, arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .env_clear()
        .args(["load", &weir.grpc_addr().to_string(), "--domain", "d"])
        .args(["--format", "json"])
        .args(arguments)
        .output()
        .expect("the binary runs");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The log of a service, once it has so many decisions.
fn log(weir: &Weir, decisions: usize) -> String {
    let whole = || {
        let lines = weir.logs();
        let own = lines.iter().filter(|line| line.contains("\"decision\""));
        (own.count() == decisions).then(|| lines.join("\n"))
    };
    crate::support::wait::eventually(whole).expect("a line for each decision")
}

/// The result of the replay of a log through these limits.
fn replayed(log: &str, limits: &str) -> Value {
    let site = Site::new(&[("weir.log", log)]);
    fs::write(site.path("old").join("d.yaml"), limits).expect("written");
    site.json(&["weir.log", "--config", "old"], b"")
}

/// What a service logged is replayed, and refused as by the service.
#[tokio::test]
async fn the_log_of_a_service_is_a_trace() {
    let yearly = LIMITS.replace("minute", "year");
    let weir = Weir::start(&[("d.yaml", &yearly)], &LOGS);
    for number in 0..12 {
        let value = if number % 3 == 0 { "bob \"x\"" } else { "ann" };
        let entries = serde_json::json!([{ "entries": [{ "key": "user", "value": value }] }]);
        let body = serde_json::json!({ "domain": "d", "descriptors": entries }).to_string();
        http_client::post(weir.http_addr(), "/json", body.as_bytes());
    }
    let users = "user={uniform:1..40}";
    let arguments = [
        "--descriptor",
        users,
        "--iterations",
        "400",
        "--concurrency",
        "8",
    ];
    let load = load(&weir, &arguments);
    let result = replayed(&log(&weir, 412), &yearly);
    let outcome = &result["configurations"][0];
    // 8 of ann and 4 of bob, of whom each may send 3; and the same of each as the service answered.
    let count = |name: &str| load[name].as_u64().expect("a number");
    assert!(count("ok") >= 100 && count("over_limit") >= 200, "{load}");
    assert_eq!(result["rows"], 412);
    assert_eq!(outcome["ok"], 6 + count("ok"));
    assert_eq!(outcome["over_limit"], 6 + count("over_limit"));
    assert_eq!(result["bad_rows"]["count"], 0);
}

#[test]
fn one_limit_is_run_by_each_algorithm() {
    let site = Site::new(&[("trace.jsonl", &usual())]);
    let result = site.json(
        &["trace.jsonl", "--config", "old", "--algorithms", "d.user"],
        b"",
    );
    let names = [
        "fixed_window",
        "sliding_window_log",
        "sliding_window_counter",
        "sliding_window_buckets",
        "token_bucket",
        "leaky_bucket",
    ];
    let outcomes = result["configurations"].as_array().expect("a list");
    let refused = |name: &str| {
        let outcome = outcomes.iter().find(|outcome| outcome["config"] == name);
        outcome.and_then(|outcome| outcome["limits"][0]["refused"].as_u64())
    };
    // The log has hits of the last minute still; strict spacing of 20 s admits one of each at most
    // in the first six seconds.
    assert_eq!(
        names.map(refused),
        [Some(2), Some(2), Some(3), Some(2), Some(2), Some(5)]
    );
    let text = site
        .replay(
            &["trace.jsonl", "--config", "old", "--algorithms", "d.user"],
            b"",
        )
        .stdout;
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(
        names
            .iter()
            .all(|name| text.lines().any(|line| line.ends_with(name))),
        "{text}"
    );
}

/// A trace of a hostile client, in a browser: nothing of it is markup, and the page asks for
/// nothing.
#[test]
fn the_report_shows_hostile_values_as_text() {
    let rows: String = (0..600)
        .map(|second| row(second, if second % 2 == 0 { HOSTILE } else { "bob" }))
        .collect();
    let site = Site::new(&[("trace.jsonl", &rows)]);
    let file = site.path("report.html");
    let second = "<img src=x onerror=document.title=1>";
    fs::rename(site.path("new"), site.path(second)).expect("renamed");
    let output = site.replay(
        &[
            "trace.jsonl",
            "--config",
            "old",
            "--config",
            second,
            "--html",
            "report.html",
        ],
        b"",
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let _alone = exclusive();
    let browser = Browser::start();
    let address = format!("file://{}", file.display());
    browser.open(&address);
    browser.wait_for_text("Newly refused requests a second");
    let first = "return document.querySelector('figcaption').textContent";
    assert_eq!(browser.run(first), "Newly refused requests a second");
    let ticks = "return JSON.stringify([...new Set([...document.querySelectorAll('svg')]\
        .map(svg => [...svg.querySelectorAll('text:not([x=\"54.0\"])')]\
        .map(text => text.textContent).join(' ')))])";
    assert_eq!(
        browser.run(ticks),
        "[\"10:00 10:02 10:04 10:06 10:08 10:10\"]",
        "all pictures have one axis"
    );
    assert_eq!(browser.run("return document.title"), "weir replay");
    assert_eq!(
        browser.run("return document.querySelectorAll('script, img, link, iframe').length"),
        0
    );
    let text = browser.text();
    assert!(
        text.contains("<script>document.title=1</script>") && text.contains(second),
        "{text}"
    );
    assert!(
        browser
            .run("return document.querySelectorAll('svg polyline').length")
            .as_u64()
            >= Some(5)
    );
    // The policy refuses a script although the page would have one.
    browser.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')",
    );
    assert_eq!(browser.run("return document.title"), "weir replay");
    let asked: Vec<_> = browser
        .requests()
        .into_iter()
        .filter(|(_, url)| *url != address)
        .collect();
    assert!(
        asked.iter().all(|(_, url)| url.ends_with("/x")),
        "{asked:?}"
    );
}
