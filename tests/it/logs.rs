//! The log of reloads.

use serde_json::Value;

use crate::support::Weir;

/// The lines of the log as JSON whose message begins with `start`.
fn lines(weir: &Weir, start: &str) -> Vec<Value> {
    let all = weir.logs().into_iter().map(|line| serde_json::from_str::<Value>(&line).unwrap_or_else(|error| panic!("{line}: {error}")));
    all.filter(|line| message(line).starts_with(start)).collect()
}

fn message(line: &Value) -> &str {
    line["@message"].as_str().expect("text")
}

fn limits(per_day: &[(&str, u32)]) -> String {
    let limit = |(key, count): &(&str, u32)| format!("- key: \"{key}\"\n  rate_limit: {{ unit: day, requests_per_unit: {count} }}\n");
    format!("domain: d\ndescriptors:\n{}", per_day.iter().map(limit).collect::<String>())
}

#[tokio::test]
async fn a_reload_tells_which_limits_it_changed() {
    let many: Vec<String> = (0..25).map(|number| format!("many{number:02}")).collect();
    let weir = Weir::start(&[("a.yaml", &limits(&[("kept", 1), ("changed", 1), ("removed", 1)]))], &[]);
    assert_eq!(lines(&weir, "limits ").len(), 1, "the first limits are all new");
    let replace = |text: &str| std::fs::write(weir.config_dir().join("a.yaml"), text).expect("written");
    replace(&limits(&[("kept", 1), ("changed", 2), ("ad\\nded", 1)]));
    weir.wait_for_log("limits changed").await;
    let told: Vec<_> = lines(&weir, "limits ");
    let counts = |line: &Value| ["generation", "added", "removed", "changed"].map(|name| line[name].as_u64());
    assert_eq!((message(&told[0]), counts(&told[0])), ("limits loaded", [Some(1), None, None, None]));
    assert_eq!((message(&told[1]), counts(&told[1])), ("limits loaded", [Some(2), Some(1), Some(1), Some(1)]));
    let texts: Vec<_> = told[2..].iter().map(message).collect();
    let expected = [
        "limits added: d.ad\\nded (1 per day)",
        "limits removed: d.removed (1 per day)",
        "limits changed: d.changed: rate 1 per day -> 2 per day",
    ];
    assert_eq!(texts, expected);
    // The lines are bounded, and a change that concerns no limit has none.
    let all: Vec<_> = many.iter().map(|key| (key.as_str(), 1)).collect();
    replace(&limits(&all));
    let line = weir.wait_for_log("limits added: d.many00").await;
    assert!(line.contains("d.many09 (1 per day); and 15 more") && !line.contains("many10"), "{line}");
    let before = lines(&weir, "limits ").len();
    replace(&format!("# a comment\n{}", limits(&all)));
    weir.wait_for_log(r#""generation":4,"added":0,"removed":0,"changed":0"#).await;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(lines(&weir, "limits ").len(), before + 1);
}
