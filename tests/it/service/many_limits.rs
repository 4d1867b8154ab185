//! Many limits in files: their memory, which is part of `MEMORY_LIMIT`, and comes back when they are
//! replaced.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::support::wait::eventually;
use crate::support::{Weir, ask, descriptor};

/// Bytes of a limit with a name, as deploy/capacity.md promises.
const MOST_OF_A_LIMIT: f64 = 1_536.0;

/// A file of limits, the first of which has this amount.
fn limits(count: usize, first: usize) -> String {
    let mut text = "domain: many\ndescriptors:\n".to_owned();
    for limit in 0..count {
        let amount = if limit == 0 { first } else { 1_000 + limit };
        let _ = write!(
            text,
            "- key: route\n  value: /orders/{limit:08}\n  rate_limit:\n    unit: hour\n    \
             requests_per_unit: {amount}\n    name: orders-{limit:08}\n"
        );
    }
    text
}

/// Renames a new file over the old one.
fn publish(folder: &Path, name: &str, text: &str) {
    let new = folder.join(format!("{name}~"));
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, folder.join(name)))
        .expect("written");
}

fn wait_for(weir: &Weir, series: &str, value: f64) {
    let is_reached = eventually(|| (weir.metric(series) == Some(value)).then_some(()));
    assert!(
        is_reached.is_some(),
        "{series} is {:?} and not {value}",
        weir.metric(series)
    );
}

fn bytes(kib: u64) -> f64 {
    kib as f64 * 1_024.0
}

#[tokio::test]
async fn limits_take_the_memory_that_is_promised_and_give_it_back() {
    const LIMITS: usize = 10_000;
    let weir = Weir::start(&[("limits.yaml", &limits(1, 1))], &[("WORKERS", "2")]);
    let client = &mut weir.client().await;
    let config = weir.config_dir().to_path_buf();
    let start = bytes(weir.resident_kib());
    for (generation, first) in (2..8).zip(5..) {
        publish(&config, "limits.yaml", &limits(LIMITS, first));
        // Not by metrics: a scrape of so many series takes more memory than they do.
        let line = weir
            .wait_for_log(&format!("\"generation\":{generation},"))
            .await;
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        let of_limits = bytes(line["memory_kib"].as_u64().expect("a number"));
        let most = LIMITS as f64 * MOST_OF_A_LIMIT;
        let mut least = f64::MAX;
        let is_back = eventually(|| {
            let taken = bytes(weir.resident_kib()) - start;
            least = least.min(taken);
            (taken < most).then_some(())
        });
        let peak = bytes(weir.peak_resident_kib()) - start;
        println!("weighed {of_limits}, least {least}, peak {peak}");
        assert!(is_back.is_some(), "{least} bytes");
        assert!(
            of_limits < most && most < 2.5 * of_limits,
            "{least} bytes were weighed as {of_limits}"
        );
        assert!(peak < 2.0 * most, "{peak} bytes");
        // The counter of a limit that is the same goes on.
        let hit = descriptor(&[("route", "/orders/00000009")]);
        let answer = ask(client, "many", vec![hit]).await;
        let left = 1_009 - (generation - 1);
        assert_eq!(answer.statuses[0].limit_remaining, left);
    }
    let series = "weir_decisions_total{domain=\"many\",limit=\"route_/orders/00000009\",\
        name=\"orders-00000009\",outcome=\"ok\"}";
    assert_eq!(weir.metric(series), Some(6.0));
    let unused = series.replace("09", "10");
    assert_eq!(weir.metric(&unused), Some(0.0), "an unused limit is shown");
    publish(&config, "limits.yaml", &limits(1, 1));
    wait_for(&weir, "weir_config_limits", 1.0);
    assert_eq!(weir.metric(series), None, "it is gone with its limit");
    let is_back = eventually(|| {
        let taken = bytes(weir.resident_kib()) - start;
        (taken < LIMITS as f64 * MOST_OF_A_LIMIT / 2.0).then_some(())
    });
    assert!(is_back.is_some(), "{} KiB", weir.resident_kib());
}

/// Sources of limits, each of which needs more than the 4.5 MiB of `MEMORY_LIMIT=64Mi`.
fn too_large() -> Vec<(&'static str, Vec<(&'static str, String)>)> {
    let one = |text: String| vec![("limits.yaml", text)];
    let begin = "domain: many\ndescriptors:\n";
    let limit = "rate_limit: {unit: hour, requests_per_unit: 5}";
    let nested: String = (0..10_000)
        .map(|number| format!("  - {{key: b, value: v{number}, {limit}}}\n"))
        .collect();
    let fields: String = (0..1_000).map(|_| "    - {a: {b: {c: 1}}}\n").collect();
    let metadata: String = (0..30)
        .map(|number| format!("- key: k{number}\n  {limit}\n  metadata:\n    x:\n{fields}"))
        .collect();
    let rows: String = (0..100_000).map(|row| format!("u{row},{row}\n")).collect();
    let table = format!("{begin}- {{key: user, table: t.csv}}\n");
    let values: String = (0..100_000).map(|value| format!("v{value}\n")).collect();
    let set = format!("{begin}- key: user\n  match: set\n  values_file: v.txt\n  {limit}\n");
    let long: String = (0..400)
        .map(|number| format!("- {{key: '{number:05000}', {limit}}}\n"))
        .collect();
    let trials: String = (0..3_000)
        .map(|number| {
            format!(
                "- key: k{number}\n  rate_limit: {{unit: hour, requests_per_unit: 5, \
                 track_usage: true, notify: [50%], trial: {{requests_per_unit: 3}}}}\n"
            )
        })
        .collect();
    vec![
        ("limits", one(limits(10_000, 1))),
        (
            "nested",
            one(format!("{begin}- key: a\n  descriptors:\n{nested}")),
        ),
        ("metadata", one(format!("{begin}{metadata}"))),
        ("trials", one(format!("{begin}{trials}"))),
        (
            "long keys",
            one(format!("{begin}{}", long.repeat(2).replace("'0", "'00"))),
        ),
        (
            "rows",
            vec![
                ("limits.yaml", table),
                (
                    "t.csv",
                    format!(
                        "value,requests_per_unit,unit\n{}",
                        rows.replace('\n', ",day\n")
                    ),
                ),
            ],
        ),
        ("values", vec![("limits.yaml", set), ("v.txt", values)]),
    ]
}

#[tokio::test]
async fn limits_that_do_not_fit_are_refused_and_the_old_ones_stay() {
    let small = limits(1, 1);
    let weir = Weir::start(&[("limits.yaml", &small)], &[("MEMORY_LIMIT", "64Mi")]);
    let config = weir.config_dir().to_path_buf();
    for (number, (what, files)) in (1..).zip(too_large()) {
        for (name, text) in files.iter().rev() {
            publish(&config, name, text);
        }
        wait_for(
            &weir,
            "ratelimit_service_config_load_error",
            f64::from(number),
        );
        let log = weir.wait_for_log("MEMORY_LIMIT leaves them").await;
        println!("{what}: {log}");
        assert_eq!(weir.metric("weir_config_limits"), Some(1.0), "{what}");
        assert_eq!(weir.metric("weir_config_last_load_successful"), Some(0.0));
        for (name, _) in &files[1..] {
            fs::remove_file(config.join(name)).expect("removed");
        }
        publish(&config, "limits.yaml", &limits(1, number as usize));
        wait_for(&weir, "weir_config_last_load_successful", 1.0);
    }
    let peak = weir.peak_resident_kib() >> 10;
    assert!(peak < 64, "{peak} MiB with MEMORY_LIMIT=64Mi");
}

#[test]
fn a_start_with_limits_that_do_not_fit_ends_with_what_where_and_how() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("limits.yaml"), limits(10_000, 1)).expect("written");
    let output = Weir::serve()
        .args(["--config", folder.path().to_str().expect("UTF-8")])
        .env("MEMORY_LIMIT", "64Mi")
        .output()
        .expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    for part in [
        "limits.yaml:",
        "need more than the ",
        "MiB that MEMORY_LIMIT leaves",
        "raise MEMORY_LIMIT",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}
