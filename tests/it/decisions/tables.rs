//! `table` and `plans`: what rows inherit, what operators see, and any bytes as a table.

use std::fs;
use std::process::Command;

use weir::limits::rules::compile::{Options, SourceText, compile};
use weir::limits::rules::diff::fields;
use weir::limits::rules::limit::{LimitId, LimitInForce};

use crate::support::{Weir, http_client};

/// Limits per year, so that no window ends while a test runs.
const LIMITS: &str = "
domain: shop
plans:
  free: { unit: year, requests_per_unit: 2 }
  pro: { unit: year, requests_per_unit: 5, name: professional }
  bucket: { unit: year, requests_per_unit: 3, algorithm: token_bucket, burst: 7 }
  open: { unlimited: true }
descriptors:
  - key: tenant
    rate_limit: { plan: free, track_usage: true }
    table: tenants.csv
  - key: only
    table: tenants.csv
  - key: mailbox
    descriptors:
      - { key: folder, table: tenants.csv, table_key: mailbox }
  - { key: other, rate_limit: { unit: year, requests_per_unit: 100, \
      replaces: [{ name: the big one }] } }
";

const TENANTS: &str = "value,plan,requests_per_unit,name,shadow_mode
acme,pro,,,
big,pro,9,the big one,
watched,free,1,,true
bucket,bucket,,,
open,open,,,
small,free,1,,
";

fn files(tenants: &str) -> [(&'static str, &str); 2] {
    [("limits.yaml", LIMITS), ("tenants.csv", tenants)]
}

#[test]
fn a_check_counts_rows_and_names_the_first_that_differ() {
    let (old, new) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    );
    let changed = TENANTS
        .replace("acme,pro,,,", "acme,free,,,")
        .replace("small,free,1,,\n", "new,free,8,,\n")
        .replace(",9,", ",10,");
    for (folder, tenants) in [(&old, TENANTS), (&new, &changed)] {
        for (name, text) in files(tenants) {
            fs::write(
                folder.path().join(name),
                text.replace("  - key: only\n    table: tenants.csv\n", ""),
            )
            .expect("written");
        }
    }
    let check = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_weir"))
            .env_clear()
            .arg("check")
            .args(arguments)
            .current_dir(new.path())
            .output();
        let output = output.expect("the binary runs");
        (
            output.status.success(),
            String::from_utf8(output.stdout).expect("UTF-8"),
        )
    };
    let (ok, text) = check(&[
        ".",
        "--strict",
        "--diff",
        old.path().to_str().expect("UTF-8"),
    ]);
    let rows = "rows of ./tenants.csv: 1 added, 1 removed, 2 changed: acme: 5 per year, plan pro \
        -> 2 per year, plan free; big: 9 per year, plan pro, name the big one -> 10 per year, plan \
        pro, name the big one; new: added (8 per year, plan free); small: removed (1 per year, \
        plan free)\n";
    assert!(
        ok && text.contains(&format!("changed: shop.tenant: {rows}")),
        "{text}"
    );
    assert!(
        text.contains(", 12 rows in 2 tables, 4 plans; 0 added, 0 removed, "),
        "{text}"
    );
    let (_, json) = check(&[
        ".",
        "--format",
        "json",
        "--diff",
        old.path().to_str().expect("UTF-8"),
    ]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["summary"]["rows"], 12);
    assert_eq!(
        (
            &json["diff"]["rows"][0]["changed"],
            &json["diff"]["rows"][0]["first"][3]
        ),
        (&2.into(), &"small: removed (1 per year, plan free)".into())
    );
}

/// Everything that a plan may say, from the message about a key that is none of it.
fn keys_of_plans() -> Vec<String> {
    let yaml = "domain: d\nplans: { p: { zzzzzzzz: 1, unit: day, requests_per_unit: 1 } }\n";
    let files = [SourceText {
        name: "l.yaml".to_owned(),
        text: yaml.into(),
    }];
    let problems = compile(&files, &Options::default()).expect_err("an unknown key");
    let all = problems[0]
        .message
        .remedy
        .split_once("one of ")
        .expect("a list of keys")
        .1;
    all.split(", ").map(str::to_owned).collect()
}

/// A plan that says this beside an amount; `None`: no plan can.
fn plan_with(key: &str) -> Option<&'static str> {
    Some(match key {
        "shadow_mode" => "unit: minute, requests_per_unit: 10, shadow_mode: true",
        "unit" => "unit: hour, requests_per_unit: 10",
        "unit_multiplier" => "unit: minute, requests_per_unit: 10, unit_multiplier: 3",
        "requests_per_unit" => "unit: minute, requests_per_unit: 7",
        "unlimited" => "unlimited: true",
        "name" => "unit: minute, requests_per_unit: 10, name: leaked",
        "algorithm" => "unit: minute, requests_per_unit: 10, algorithm: token_bucket",
        "on_store_failure" => "unit: minute, requests_per_unit: 10, on_store_failure: deny",
        "notify" => "unit: minute, requests_per_unit: 10, notify: [80%]",
        "burst" => "unit: minute, requests_per_unit: 10, algorithm: token_bucket, burst: 20",
        "scale" => "unit: minute, requests_per_unit: 10, scale: 1000",
        "default_cost" => "unit: minute, requests_per_unit: 10, default_cost: 7",
        "bucket_interval" => {
            "unit: minute, requests_per_unit: 10, algorithm: sliding_window_buckets, \
             bucket_interval: 5s"
        }
        "bucket_span" => {
            "unit: minute, requests_per_unit: 10, algorithm: sliding_window_buckets, bucket_span: \
             90s"
        }
        "subject_expiry" => {
            "unit: minute, requests_per_unit: 10, algorithm: sliding_window_buckets, \
             subject_expiry: 1h"
        }
        "max_delay" => {
            "unit: minute, requests_per_unit: 10, algorithm: leaky_bucket, max_delay: 1s"
        }
        // Beside the track_usage of these defaults no limit has a lease; shares need the name of a
        // region, and tests/vectors/decisions/regions.txt has plans with them.
        "max_duration" | "lease" | "region_shares" => return None,
        "count_denied" => "unit: minute, requests_per_unit: 10, count_denied: false",
        "reservations" => "unit: minute, requests_per_unit: 10, reservations: {ttl: 60s}",
        "max_debt" => {
            "unit: minute, requests_per_unit: 10, algorithm: token_bucket, count_denied: true, \
             max_debt: 5"
        }
        "period" => "unit: month, requests_per_unit: 10, period: calendar",
        "timezone" => "unit: month, requests_per_unit: 10, period: calendar, timezone: Asia/Tokyo",
        "week_starts" => "unit: week, requests_per_unit: 10, period: calendar, week_starts: sunday",
        "anchor" => "unit: month, requests_per_unit: 10, period: calendar, anchor: 2026-03-31",
        other => panic!("a key of plans that this test does not know: {other}"),
    })
}

/// A row's plan stands alone: nothing that the plan of the `rate_limit` says reaches rows of other
/// plans. What the `rate_limit` and the domain say does.
#[test]
fn what_a_row_inherits_is_not_of_another_plan() {
    let fields_of_row = |free: &str, value: &str| {
        let yaml = format!(
            "domain: d\nplans: {{ free: {{ {free} }}, paid: {{ unit: minute, requests_per_unit: \
             100 }}, part: {{ unit: day }} }}\n\
             defaults: {{ track_usage: true, on_store_failure: local }}\ndescriptors:\n  - {{ key: \
             k, table: t.csv, rate_limit: {{ plan: free, default_cost: 3 }} }}\n"
        );
        let rows = "value,plan,requests_per_unit\nsilent,paid,\nnumber,paid,50\npart,part,5\n";
        let files = [("l.yaml", &*yaml), ("t.csv", rows)].map(|(name, text)| SourceText {
            name: name.to_owned(),
            text: text.into(),
        });
        let rules = compile(&files, &Options::default())
            .unwrap_or_else(|problems| panic!("{}\n{yaml}", problems[0]))
            .rules;
        let owner = rules
            .limits()
            .find(|limit| limit.own_table().is_some())
            .expect("a table");
        let table = owner.own_table().expect("a table");
        let row = table.rows.find(value.as_bytes());
        let of_row = row
            .and_then(|row| table.rows.meaning(row))
            .map_or(owner.id.limit, |meaning| meaning.limit);
        fields(
            &rules,
            LimitInForce {
                limit: rules.limit(LimitId::new(owner.id.domain, of_row)),
                row,
            },
        )
    };
    let plain = "unit: minute, requests_per_unit: 10";
    for key in keys_of_plans() {
        let Some(free) = plan_with(&key) else {
            continue;
        };
        // The rate_limit has a default_cost of its own.
        let is_hidden = key == "default_cost";
        assert_eq!(
            fields_of_row(free, "default") == fields_of_row(plain, "default"),
            is_hidden,
            "{key} has an effect where it is written"
        );
        for value in ["silent", "number", "part"] {
            assert_eq!(
                fields_of_row(free, value),
                fields_of_row(plain, value),
                "{key} of the plan 'free' for the row {value}"
            );
        }
    }
    let inherited = fields_of_row(plain, "silent");
    for field in [
        ("default_cost", "3"),
        ("on_store_failure", "local"),
        ("track_usage", "true"),
    ] {
        assert!(
            inherited.contains(&(field.0, field.1.to_owned())),
            "{field:?} of the rate_limit or the domain: {inherited:?}"
        );
    }
}

proptest::proptest! {
    #![proptest_config(crate::testing::property(256))]

    /// Whatever stands in a table, it is compiled, or refused at a place of it in one line.
    #[test]
    fn any_bytes_are_a_table_or_are_refused_with_their_place(
        cells in proptest::collection::vec("[a-c0-9\",#\r\n \u{e9}-]{0,12}", 0..12),
        bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..40),
    ) {
        let text = [
            b"value,plan,requests_per_unit,unit,burst,name,anchor\n".to_vec(),
            cells.join(",").into_bytes(),
            bytes,
        ]
        .concat();
        let lines = text.split(|&byte| byte == b'\n').count();
        let limits = "domain: d\nplans: { a: { unit: day, requests_per_unit: 1 } }\ndescriptors: \
            [{ key: k, table: t.csv }]\n";
        let files =
            [("l.yaml", limits.as_bytes()), ("t.csv", &text)].map(|(name, text)| SourceText {
                name: name.to_owned(),
                text: text.to_vec(),
            });
        match compile(&files, &Options::default()) {
            Ok(compiled) => proptest::prop_assert!(compiled.rules.limit_count() > 0),
            Err(problems) => {
                for problem in problems {
                    let is_in_table = problem.file == "t.csv"
                        && (1..=lines).contains(&problem.line)
                        && problem.column >= 1;
                    let is_without_rows = problem.severity
                        == weir::limits::rules::compile::Severity::Warning
                        && problem.message.what.contains("has no rows");
                    proptest::prop_assert!(
                        (is_in_table || is_without_rows)
                            && problem.to_string().lines().count() == 1,
                        "{problem}"
                    );
                }
            }
        }
    }
}

#[test]
fn operators_see_rows() {
    let weir = Weir::start(&files(TENANTS), &[]);
    for (subject, expected) in [
        (
            "tenant=big",
            "tenant=big: 9 per year, plan pro, row tenants.csv:3\n",
        ),
        ("tenant=big", "name the big one"),
        ("tenant=new", "tenant=new: 2 per year, plan free\n"),
        (
            "only=new",
            "only=new: not limited: the table tenants.csv has no row for only=new, and there is no \
             'rate_limit'",
        ),
    ] {
        let text = weir.command(&["explain", "-d", "shop", subject]);
        assert!(text.contains(expected), "{subject}: {text}");
    }
    let page = http_client::get(weir.listener("debug"), "/rlconfig").body;
    for expected in [
        "shop.tenant: unit=YEAR requests_per_unit=5",
        "plan: pro, table: tenants.csv, rows: 2",
        "shop.only: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, \
         table: tenants.csv, rows: 0, from: limits.yaml:12\n",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
}
