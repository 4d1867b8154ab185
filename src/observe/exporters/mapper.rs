//! `PROMETHEUS_MAPPER_YAML`: rules by which envoyproxy/ratelimit makes Prometheus's names of
//! StatsD's. Weir's names and labels are fixed, so that it does not follow such a file; it only
//! finds out whether the file asks for anything else.
//!
//! Dashboards depend on names and labels. So a file says the same if each of its mappings makes one
//! of the known names with its known labels, whatever patterns it uses. The files of
//! envoyproxy/ratelimit and of Envoy Gateway do.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser};

/// Bytes of a file that is read; both known files have less than 4 KiB.
pub const MAX_BYTES: u64 = 1 << 20;

/// A name, and the labels of the mappings that make it.
type Known = (
    &'static str,
    &'static [&'static [(&'static str, &'static str)]],
);

const OF_LIMITS: &[&[(&str, &str)]] = &[
    &[("domain", "$1"), ("key1", "$2")],
    &[("domain", "$1"), ("key1", "$2"), ("key2", "$3")],
];
const BY_METHOD: &[&[(&str, &str)]] = &[&[("grpc_method", "$1")]];

/// The names of both known files.
const KNOWN: &[Known] = &[
    ("ratelimit_service_rate_limit_total_hits", OF_LIMITS),
    ("ratelimit_service_rate_limit_within_limit", OF_LIMITS),
    ("ratelimit_service_rate_limit_near_limit", OF_LIMITS),
    ("ratelimit_service_rate_limit_over_limit", OF_LIMITS),
    ("ratelimit_service_rate_limit_shadow_mode", OF_LIMITS),
    (
        "ratelimit_service_should_rate_limit_error",
        &[&[("err_type", "$1")]],
    ),
    ("ratelimit_service_total_requests", BY_METHOD),
    ("ratelimit_service_response_time_seconds", BY_METHOD),
    ("ratelimit_service_config_load_success", &[&[]]),
    ("ratelimit_service_config_load_error", &[&[]]),
];

/// The fields of one mapping, by their path (`labels.domain`).
type Mapping = BTreeMap<String, String>;

/// What the file asks for that Weir's page does not show, in a few words; `None` if it asks for
/// nothing else.
#[must_use]
pub fn difference(text: &str) -> Option<String> {
    let mappings = match mappings(text) {
        Ok(mappings) => mappings,
        Err(error) => return Some(format!("it is not YAML ({error})")),
    };
    mappings.iter().find_map(|mapping| {
        let field = |name: &str| mapping.get(name).map_or("", String::as_str);
        let what = shown(field("match"));
        if field("action") == "drop" {
            return Some(format!("it drops {what}"));
        }
        let Some((_, known)) = KNOWN.iter().find(|(name, _)| *name == field("name")) else {
            return Some(format!("it maps {what} to {}", shown(field("name"))));
        };
        let labels: Vec<_> = mapping
            .iter()
            .filter_map(|(path, value)| Some((path.strip_prefix("labels.")?, value.as_str())))
            .collect();
        (!known.contains(&labels.as_slice()))
            .then(|| format!("it gives {} other labels", field("name")))
    })
}

/// A text of the file, on one line and of bounded length.
fn shown(text: &str) -> String {
    format!(
        "'{}'",
        text.chars()
            .take(80)
            .flat_map(char::escape_debug)
            .collect::<String>()
    )
}

/// A list or a map that is open.
enum Open {
    List,
    /// With the key whose value comes next.
    Map(Option<String>),
}

/// The elements of the list `mappings`.
fn mappings(text: &str) -> Result<Vec<Mapping>, String> {
    /// Both known files have four levels.
    const DEEPEST: usize = 16;
    let mut parser = Parser::new_from_str(text);
    let mut open: Vec<Open> = Vec::new();
    let mut found = Vec::new();
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| format!("line {}", error.marker().line()))?;
        match event {
            Event::MappingStart(..) | Event::SequenceStart(..) if open.len() >= DEEPEST => {
                return Err(format!("line {} is too deep", span.start.line()));
            }
            Event::MappingStart(..) => {
                if let [Open::Map(Some(key)), Open::List] = open.as_slice()
                    && key == "mappings"
                {
                    found.push(Mapping::new());
                }
                open.push(Open::Map(None));
            }
            Event::SequenceStart(..) => open.push(Open::List),
            Event::MappingEnd | Event::SequenceEnd => {
                open.pop();
                end_of_value(&mut open);
            }
            Event::Scalar(text, ..) => match open.last_mut() {
                Some(Open::Map(key @ None)) => *key = Some(text.into_owned()),
                _ => {
                    if let [Open::Map(Some(root)), Open::List, fields @ ..] = open.as_slice()
                        && root == "mappings"
                        && let Some(mapping) = found.last_mut()
                    {
                        let keys = fields.iter().filter_map(|field| {
                            if let Open::Map(Some(key)) = field {
                                Some(key.as_str())
                            } else {
                                None
                            }
                        });
                        mapping.insert(keys.collect::<Vec<_>>().join("."), text.into_owned());
                    }
                    end_of_value(&mut open);
                }
            },
            Event::Alias(_) => end_of_value(&mut open),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => {}
        }
    }
    Ok(found)
}

fn end_of_value(open: &mut [Open]) {
    if let Some(Open::Map(key)) = open.last_mut() {
        *key = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with all known names and labels.
    fn known() -> String {
        let mut text = "# A comment.\nmappings:\n".to_owned();
        for (name, labels) in KNOWN {
            for labels in *labels {
                text += &format!(
                    "  - match: \"a.*.{name}\"\n    name: \"{name}\"\n    match_metric_type: \
                     counter\n"
                );
                if !labels.is_empty() {
                    text += "    labels:\n";
                    for (label, value) in labels.iter().rev() {
                        text += &format!("      {label}: \"{value}\"\n");
                    }
                }
            }
        }
        text
    }

    #[test]
    fn a_file_with_the_known_names_and_labels_asks_for_nothing_else() {
        assert_eq!(difference(&known()), None);
        assert_eq!(difference(""), None);
        assert_eq!(difference("defaults: { timer_type: histogram }\n"), None);
    }

    #[test]
    fn other_names_other_labels_and_dropped_metrics_are_reported() {
        for (file, expected) in [
            (
                known() + "  - { match: \".\", match_type: regex, action: drop, name: dropped }\n",
                "it drops '.'",
            ),
            (
                known().replace("name: \"ratelimit_service_total_requests\"", "name: rps"),
                "it maps 'a.*.ratelimit_service_total_requests' to 'rps'",
            ),
            (
                known().replace("key2: \"$3\"", "rule: \"$3\""),
                "it gives ratelimit_service_rate_limit_total_hits other labels",
            ),
            (
                known().replace("grpc_method: \"$1\"", "grpc_method: \"$2\""),
                "it gives ratelimit_service_total_requests other labels",
            ),
            ("mappings: a: b".to_owned(), "it is not YAML (line 1)"),
            ("[".repeat(50), "it is not YAML (line 1 is too deep)"),
            (
                "mappings: [{ match: \"a\\nb\" }]".to_owned(),
                "it maps 'a\\nb' to ''",
            ),
        ] {
            assert_eq!(difference(&file).as_deref(), Some(expected), "{file}");
        }
    }
}
