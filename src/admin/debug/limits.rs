//! `/rlconfig`: the limits in force. A line begins as in envoyproxy/ratelimit and continues with
//! Weir's own fields; JSON has all of it.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Format, View};
use crate::admin::api::limits;
use crate::admin::api::status::first_of;
use crate::core::time::{Micros, Unit};
use crate::limits::rules::Rules;
use crate::limits::rules::compile::OneLine;
use crate::limits::rules::limit::Limit;
use crate::live::{Live, RejectedConfig};
use crate::net::clock;

/// Problems of a refused configuration that are shown; the log and `weir check` have all.
const MAX_PROBLEMS: usize = 50;

/// The content of the page.
struct Shown<'l> {
    rules: &'l Rules,
    generation: u64,
    rejected: Option<&'l RejectedConfig>,
    /// In the order of the domains.
    all: Vec<(&'l str, &'l [Limit])>,
    max_bytes: usize,
}

/// The text of the page, cut after `max_bytes`.
pub(super) fn page(live: &Live, view: &View, max_bytes: usize) -> String {
    let (snapshot, rejected) = (live.load(), live.rejected());
    let none = Rules::default();
    let rules = snapshot.as_ref().map_or(&none, |snapshot| &snapshot.rules);
    let shown = Shown {
        rules,
        generation: snapshot.as_ref().map_or(0, |snapshot| snapshot.generation),
        rejected: rejected.as_deref(),
        all: limits::in_order(rules, view.domain.as_deref()),
        max_bytes,
    };
    match view.format {
        Format::Text => shown.lines(),
        Format::Json => shown.object(),
    }
}

impl Shown<'_> {
    fn lines(&self) -> String {
        let (mut text, generation) = (String::new(), self.generation);
        for limit in self.all.iter().flat_map(|(_, limits)| *limits) {
            if text.len() >= self.max_bytes {
                text.push_str("# cut; ?domain=NAME shows one domain\n");
                break;
            }
            line(self.rules, limit, &mut text);
        }
        // Writing to a string does not fail.
        let count: usize = self.all.iter().map(|(_, limits)| limits.len()).sum();
        let domains = self.all.len();
        let _ = writeln!(
            text,
            "# generation {generation}: {count} limits in {domains} domains"
        );
        if let Some(RejectedConfig { at, problems }) = self.rejected {
            let (secs, count) = (secs_since(*at), problems.len());
            let _ = write!(text, "# a later configuration was refused {secs} s ago, ");
            let _ = writeln!(text, "with {count} problems:");
            for problem in problems.iter().take(MAX_PROBLEMS) {
                let _ = writeln!(text, "# {problem}");
            }
        }
        text
    }

    fn object(&self) -> String {
        let (generation, rejected) = (self.generation, rejected_object(self.rejected));
        let mut text =
            format!("{{\"generation\":{generation},\"rejected\":{rejected},\"domains\":[");
        let mut is_cut = false;
        'all: for (number, (name, limits)) in self.all.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            let name = Value::from(*name);
            let _ = write!(text, "{comma}{{\"domain\":{name},\"limits\":[");
            for (number, limit) in limits.iter().enumerate() {
                if text.len() >= self.max_bytes {
                    is_cut = true;
                    text.push_str("]}");
                    break 'all;
                }
                let comma = if number == 0 { "" } else { "," };
                let _ = write!(text, "{comma}{}", limits::object(self.rules, limit));
            }
            text.push_str("]}");
        }
        let _ = writeln!(text, "],\"cut\":{is_cut}}}");
        text
    }
}

/// One line. Fields that are not in the format of envoyproxy/ratelimit follow as `, name: value` if
/// they are not as usual, and last the place where the limit is written.
fn line(rules: &Rules, limit: &Limit, text: &mut String) {
    let rate = limit.amount.as_ref().map(|amount| amount.rate);
    let unit = rate.filter(|rate| rate.unit != Unit::None);
    let unit = unit.map_or("unknown", |rate| rate.unit.name());
    let (unit, path) = (unit.to_ascii_uppercase(), limit.path());
    let amount = rate.map_or(0, |rate| rate.requests_per_unit);
    let _ = write!(
        text,
        "{}: unit={unit} requests_per_unit={amount}",
        OneLine(&path)
    );
    let (shadow, quota) = (limit.shadow_mode, limit.quota_mode);
    let _ = write!(text, ", shadow_mode: {shadow}, quota_mode: {quota}");
    if let Some(rate) = rate.filter(|rate| rate.unit_multiplier != 1) {
        let _ = write!(text, ", unit_multiplier: {}", rate.unit_multiplier);
    }
    if limit.is_unlimited() {
        text.push_str(", unlimited: true");
    }
    for (name, value) in limits::further_fields(rules, limit) {
        let usual = [
            ("commit", "each"),
            ("algorithm", "fixed_window"),
            ("count_denied", "true"),
        ];
        if value != "false" && !usual.contains(&(name, &value)) {
            let _ = write!(text, ", {name}: {}", OneLine(&value));
        }
    }
    let origin = limit.origin.to_string();
    let _ = writeln!(text, ", from: {}", OneLine(&origin));
}

fn rejected_object(rejected: Option<&RejectedConfig>) -> Value {
    let Some(RejectedConfig { at, problems }) = rejected else {
        return Value::Null;
    };
    let shown = first_of(problems, MAX_PROBLEMS);
    json!({ "seconds_ago": secs_since(*at), "problems": problems.len(), "first_problems": shown })
}

fn secs_since(at: Micros) -> u64 {
    clock::now().0.saturating_sub(at.0) / 1_000_000
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limits::rules::compile::{self, SourceText, compile};
    use crate::observe::metrics::Metrics;

    fn live(files: &[(&str, &str)]) -> Live {
        let files: Vec<_> = files
            .iter()
            .map(|(name, text)| SourceText {
                name: (*name).to_owned(),
                text: (*text).into(),
            })
            .collect();
        let live = Live::new(Arc::clone(&Metrics::new(1, 0.8)));
        live.replace(
            compile(&files, &compile::Options::default())
                .expect("good limits")
                .rules,
        );
        live
    }

    const SHOP: &str = "
domain: shop
descriptors:
  - key: user
    value: \"a\\nb\"
    rate_limit: { unit: minute, requests_per_unit: 5 }
  - key: path
    shadow_mode: true
    descriptors:
      - key: method
        rate_limit: { name: m, unit: second, unit_multiplier: 30, requests_per_unit: 7, \
            algorithm: token_bucket, on_store_failure: local }
        quota_mode: true
        metadata: { secret: hunter2 }
  - key: free
    rate_limit: { unlimited: true }
";

    #[test]
    fn lines_begin_as_in_the_reference() {
        let live = live(&[
            ("b/shop.yaml", SHOP),
            (
                "a.yaml",
                "domain: blog\ndescriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: \
                 1 } }]",
            ),
        ]);
        let text = page(&live, &View::default(), 1 << 20);
        let expected = "\
blog.k: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false, from: a.yaml:2
shop.user_a\\nb: unit=MINUTE requests_per_unit=5, shadow_mode: false, quota_mode: false, \
    from: b/shop.yaml:4
shop.path.method: unit=SECOND requests_per_unit=7, shadow_mode: false, quota_mode: true, \
    unit_multiplier: 30, algorithm: token_bucket, burst: 7, name: m, on_store_failure: local, \
    from: b/shop.yaml:10
shop.free: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, \
    unlimited: true, from: b/shop.yaml:14
# generation 1: 4 limits in 2 domains
";
        assert_eq!(text, expected);
        let blog = page(
            &live,
            &View {
                domain: Some("blog".to_owned()),
                ..View::default()
            },
            1 << 20,
        );
        assert_eq!(
            blog,
            expected.lines().next().expect("a line").to_owned()
                + "\n# generation 1: 1 limits in 1 domains\n"
        );
    }

    #[test]
    fn json_says_the_same_and_no_metadata() {
        let live = live(&[("shop.yaml", SHOP)]);
        let view = View {
            format: Format::Json,
            domain: None,
        };
        let text = page(&live, &view, 1 << 20);
        assert!(!text.contains("hunter2"));
        let page: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (&page["generation"], &page["rejected"], &page["cut"]),
            (&json!(1), &Value::Null, &json!(false))
        );
        let limits = page["domains"][0]["limits"].as_array().expect("limits");
        assert_eq!(limits.len(), 3);
        let limit = &limits[1];
        assert_eq!(
            limit["path"],
            json!([{ "key": "path", "value": null }, { "key": "method", "value": null }])
        );
        assert_eq!(
            (
                &limit["unit"],
                &limit["requests_per_unit"],
                &limit["quota_mode"]
            ),
            (&json!("second"), &json!(7), &json!(true))
        );
        assert_eq!(
            limit["from"],
            json!({ "document": "shop.yaml", "line": 10 })
        );
        assert_eq!(
            (&limit["further"]["algorithm"], &limit["further"]["name"]),
            (&json!("token_bucket"), &json!("m"))
        );
        assert_eq!(limits[2]["unlimited"], json!(true));
    }

    #[test]
    fn a_long_page_is_cut_and_says_so() {
        let limits: String = (0..1_000)
            .map(|number| {
                format!(
                    "  - {{ key: k{number}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n"
                )
            })
            .collect();
        let live = live(&[("a.yaml", &format!("domain: d\ndescriptors:\n{limits}"))]);
        let text = page(&live, &View::default(), 10_000);
        assert!(
            (10_000..11_000).contains(&text.len()) && text.contains("\n# cut; ?domain=NAME"),
            "{}",
            text.len()
        );
        let text = page(
            &live,
            &View {
                format: Format::Json,
                domain: None,
            },
            10_000,
        );
        assert!((10_000..11_000).contains(&text.len()), "{}", text.len());
        let page: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(page["cut"], json!(true));
        assert!(
            page["domains"][0]["limits"]
                .as_array()
                .expect("limits")
                .len()
                > 10
        );
    }

    #[test]
    fn what_was_refused_is_shown_beside_what_is_in_force() {
        let live = Live::new(Arc::clone(&Metrics::new(1, 0.8)));
        assert_eq!(
            page(&live, &View::default(), 1_000),
            "# generation 0: 0 limits in 0 domains\n"
        );
        let wrong = [SourceText {
            name: "x.yaml".to_owned(),
            text: b"domain: d\ndescriptors: [{ key: k, rate_limit: { unit: fortnight } }]".into(),
        }];
        live.reject(compile(&wrong, &compile::Options::default()).expect_err("a mistake"));
        let text = page(&live, &View::default(), 1_000);
        assert!(
            text.contains("# a later configuration was refused 0 s ago, with ")
                && text.contains("\n# x.yaml:2:"),
            "{text}"
        );
        let page: Value = serde_json::from_str(&page(
            &live,
            &View {
                format: Format::Json,
                domain: None,
            },
            1_000,
        ))
        .expect("JSON");
        assert!(
            page["rejected"]["first_problems"][0]
                .as_str()
                .is_some_and(|problem| problem.starts_with("x.yaml:2:")),
            "{page}"
        );
    }
}
