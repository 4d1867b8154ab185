//! Tests without an Envoy that the generated actions send the descriptors of the limits: a small
//! interpreter of the actions, with random limits and requests.

use hashbrown::HashMap;
use proptest::prelude::*;

use super::descriptors::{Descriptors, Protocol, descriptors};
use super::reservations::by_levels;
use super::source::KeySource;
use super::sources::{Sources, key_source};
use super::*;
use crate::core::request::Entry;
use crate::limits::rules::compile::outline::DescriptorTree;
use crate::limits::rules::compile::{Problem, SourceText};
use crate::limits::rules::source::any::{Value as Yaml, read};

fn compiled(text: &str) -> (Rules, Vec<SourceText>) {
    let files = vec![SourceText {
        name: "f.yaml".to_owned(),
        text: text.into(),
    }];
    let compiled = compile::compile(&files, &compile::Options::default());
    let compiled = compiled.unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
    (compiled.rules, files)
}

fn generate(text: &str, from: &[&str], protocol: Protocol) -> Result<Descriptors, String> {
    let (rules, files) = compiled(text);
    let source = |from: &&str| {
        let read = key_source(from);
        read.unwrap_or_else(|error| panic!("{from}: {error}"))
    };
    let given: Vec<_> = from.iter().map(source).collect();
    let join_lines = |problems: Vec<Problem>| {
        let lines = problems.iter().map(ToString::to_string);
        lines.collect::<Vec<_>>().join("\n")
    };
    let sources = Sources::try_new(&given, &[]).map_err(join_lines)?;
    let expiries = by_levels(rules.limits());
    descriptors(&outline(&files, "d"), &sources, &expiries, protocol).map_err(join_lines)
}

fn field<'y>(yaml: &'y Yaml, name: &str) -> Option<&'y Yaml> {
    yaml.get(name)
}

fn text<'y>(yaml: &'y Yaml, name: &str) -> Option<&'y str> {
    field(yaml, name)?.as_str()
}

/// A HeaderMatcher of Envoy: config.route.v3.HeaderMatcher.
fn header_matches(matcher: &Yaml, headers: &HashMap<String, String>) -> bool {
    let value = text(matcher, "name").and_then(|name| headers.get(name));
    let inverted = field(matcher, "invert_match") == Some(&Yaml::Bool(true));
    if field(matcher, "present_match").is_some() {
        return value.is_some() != inverted;
    }
    // Without the header, only a matcher of its absence can match, inverted or not.
    let (Some(value), Some(string)) = (value, field(matcher, "string_match")) else {
        return false;
    };
    let is_match = match (text(string, "exact"), text(string, "prefix")) {
        (Some(exact), None) => value == exact,
        (None, Some(prefix)) => !prefix.is_empty() && value.starts_with(prefix),
        other => panic!("{other:?}"),
    };
    is_match != inverted
}

/// The entry that an action makes of a request; `None`: Envoy does not send the descriptor.
fn entry(action: &str, headers: &HashMap<String, String>) -> Option<(String, String)> {
    let action = read(action);
    let fields = action.as_mapping().expect("a map");
    let (name, own) = fields.iter().next().expect("a field");
    let key = text(own, "descriptor_key").map(str::to_owned);
    let fixed = || text(own, "descriptor_value").map(str::to_owned);
    let value = match name.as_str().expect("a name") {
        "request_headers" => headers.get(text(own, "header_name")?).cloned(),
        "generic_key" => fixed(),
        "extension" => {
            let config = field(own, "typed_config").expect("a config");
            let path = headers.get(":path").expect("a path").split('?').next();
            let key = text(config, "descriptor_key");
            return key.map(str::to_owned).zip(path.map(str::to_owned));
        }
        "header_value_match" => {
            let Some(Yaml::Sequence(matchers)) = field(own, "headers") else {
                panic!("{own:?}")
            };
            let expected = field(own, "expect_match") != Some(&Yaml::Bool(false));
            let mut matchers = matchers.iter();
            let is_match = matchers.all(|matcher| header_matches(matcher, headers));
            (is_match == expected).then(fixed).flatten()
        }
        other => panic!("{other}"),
    };
    key.zip(value)
}

/// Paths of the limits that the descriptors of a request find. A limit that is found twice is
/// listed twice.
fn found(rules: &Rules, sent: &[Vec<(String, String)>]) -> Vec<String> {
    let limit = |entries: &Vec<(String, String)>| {
        let entries = entries.iter().map(|(key, value)| Entry {
            key: key.as_bytes(),
            value: value.as_bytes(),
        });
        let entries: Vec<_> = entries.collect();
        let found = rules.find(b"d", &entries);
        found.map(|limit| limit.limit.path())
    };
    let mut paths: Vec<_> = sent.iter().filter_map(limit).collect();
    paths.sort_unstable();
    paths
}

/// The descriptors that the file means: every list of keys that leads to a limit, with the values
/// of the request.
fn meant(
    level: &[DescriptorTree],
    request: &HashMap<String, String>,
) -> Vec<Vec<(String, String)>> {
    fn add(
        level: &[DescriptorTree],
        request: &HashMap<String, String>,
        before: &[(String, String)],
        all: &mut Vec<Vec<(String, String)>>,
    ) {
        for own in level {
            let Some(value) = request.get(&*own.key) else {
                continue;
            };
            let list = [before, &[(own.key.to_string(), value.clone())]].concat();
            if own.has_limit && !all.contains(&list) {
                all.push(list.clone());
            }
            add(&own.children, request, &list, all);
        }
    }
    let mut all = Vec::new();
    add(level, request, &[], &mut all);
    all
}

fn value() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["/a", "/ab", "/b", "/abc", "/", "/a*"])
}

/// A descriptor: its key, its value or pattern, whether it has a limit, and its children.
#[derive(Clone, Debug)]
struct Node(&'static str, Option<&'static str>, bool, Vec<Node>);

fn node() -> impl Strategy<Value = Node> {
    let key = || prop_oneof![Just("a"), Just("b")];
    let value_or_pattern = || {
        let pattern = prop_oneof![Just("/a*"), Just("/*"), Just("*"), Just("/ab*"), Just("*b")];
        prop_oneof![3 => value().prop_map(Some), 3 => pattern.prop_map(Some), 1 => Just(None)]
    };
    let node = |(key, value, limited, below)| Node(key, value, limited, below);
    let leaf = (key(), value_or_pattern(), any::<bool>(), Just(Vec::new())).prop_map(node);
    leaf.prop_recursive(2, 8, 4, move |inner| {
        let below = prop::collection::vec(inner, 0..4);
        (key(), value_or_pattern(), any::<bool>(), below).prop_map(node)
    })
}

/// The nodes as YAML. Of two with the same key and value, the second is left out.
fn yaml(nodes: &[Node], indent: usize, text: &mut String) {
    let mut seen = Vec::new();
    for Node(key, value, limited, below) in nodes {
        if seen.contains(&(key, value)) {
            continue;
        }
        seen.push((key, value));
        let pad = " ".repeat(indent);
        *text += &format!("{pad}- key: {key}\n");
        if let Some(value) = value {
            *text += &format!("{pad}  value: \"{value}\"\n");
            if value.contains('*') {
                *text += &format!("{pad}  share_threshold: true\n");
            }
        }
        if *limited {
            *text += &format!("{pad}  rate_limit: {{ unit: day, requests_per_unit: 1 }}\n");
        }
        if !below.is_empty() {
            *text += &format!("{pad}  descriptors:\n");
            yaml(below, indent + 4, text);
        }
    }
}

/// Checks that the descriptors which Envoy sends find the limits of the file for a request. The
/// request has a value for `a`, and may have a value or a default for `b`.
fn check(
    rules: &Rules,
    outline: &[DescriptorTree],
    generated: &Descriptors,
    (a, sent_b, default_b): (&str, Option<&str>, Option<&str>),
) -> Result<(), TestCaseError> {
    let value = |value: &str| value.to_owned();
    let b = sent_b.or(default_b).map(|b| (value("b"), value(b)));
    let request = std::iter::once((value("a"), value(a))).chain(b).collect();
    // `/a*` as the text of a request is its literal value.
    let path = (value(":path"), format!("{a}?/a*"));
    let b = sent_b.map(|b| (value("x-b"), value(b)));
    let headers = [(value("x-a"), value(a)), path].into_iter().chain(b);
    let headers = headers.collect();
    let sent = generated.all.iter().filter_map(|list| {
        let actions = list.actions.iter();
        actions.map(|action| entry(action, &headers)).collect()
    });
    let sent: Vec<Vec<_>> = sent.collect();
    let expected = found(rules, &meant(outline, &request));
    prop_assert_eq!(found(rules, &sent), expected, "{:?} {:?}", request, sent);
    Ok(())
}

/// For any file, and for sent and matched values, a request finds each limit that the file has for
/// it, once.
#[test]
fn a_request_finds_what_the_file_limits() {
    let [checked, refused] = [0, 0].map(std::cell::Cell::new);
    let ways_of_a = [
        "a=header:x-a",
        "a=header-match:x-a",
        "a=path",
        "a=path-match",
    ];
    let ways_of_b = ["b=header:x-b", "b=header-match:x-b", "b=header:x-b or /ab"];
    let ways = ways_of_a.map(|a| ways_of_b.map(|b| [a, b])).concat();
    let requests = prop::collection::vec((value(), prop::option::of(value())), 8);
    let config = crate::testing::property(400);
    let cases = config.cases;
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let result = runner.run(
        &(prop::collection::vec(node(), 1..5), requests),
        |(nodes, requests)| {
            let mut text = "domain: d\ndescriptors:\n".to_owned();
            yaml(&nodes, 2, &mut text);
            let (rules, files) = compiled(&text);
            let outline = outline(&files, "d");
            for way in &ways {
                let is_used = |from: &&str| text.contains(&format!("key: {}\n", &from[..1]));
                let from: Vec<_> = way.iter().copied().filter(is_used).collect();
                let Ok(generated) = generate(&text, &from, Protocol::Http) else {
                    refused.set(refused.get() + 1);
                    continue;
                };
                checked.set(checked.get() + 1);
                let default = from
                    .iter()
                    .any(|from| from.contains(" or "))
                    .then_some("/ab");
                for &(a, b) in &requests {
                    check(&rules, &outline, &generated, (a, b, default))?;
                }
            }
            Ok(())
        },
    );
    result.unwrap_or_else(|error| panic!("{error}"));
    let (checked, refused) = (checked.get(), refused.get());
    assert!(
        checked > 2 * cases && 4 * refused > cases,
        "{checked} files were checked, and {refused} could not be sent in some way"
    );
}

const LIMIT: &str = "rate_limit: { unit: day, requests_per_unit: 1 }";

fn file(descriptors: &[&str]) -> String {
    let lines = descriptors
        .iter()
        .map(|descriptor| format!("- {{ {} }}\n", descriptor.replace('!', LIMIT)));
    format!("domain: d\ndescriptors:\n{}", lines.collect::<String>())
}

/// Limits of a file, sources, and a part of the problem that they have.
const PROBLEMS: &str = r#"
key: a, ! | | f.yaml:3:10: error: the key 'a' has no source; name its source, such as --from a=header:NAME
key: path, ! | | such as --from path=path;
key: a, descriptors: [{ key: b, ! }] | a=header:x | f.yaml:3:34: error: the key 'b' has no source
key: a, ! + key: "b*", ! | a=header:x | f.yaml:4:10: error: the key 'b*' is a pattern
key: ip, ! | ip=remote-address | f.yaml:3:10: error: Envoy sends remote-address under the key 'remote_address' only; rename
key: a, ! | a=header:x b=path | --from: error: no limit of the domain has the key 'b'; remove its source, or write one of the keys a
key: a, ! + key: b | a=header:x b=path | --from: error: no limit of the domain has the key 'b'
key: a, ! | a=header:x a=path | --from: error: the key 'a' has two sources
key: a, ! | a=generic-key | generic-key sends fixed values, and the limit of 'a' is for any; name them: --from a=generic-key:VALUE,VALUE
key: a, value: x, ! | a=generic-key:y | no limit of the domain has the key 'a' with the value 'y'
key: a, value: x, ! | a=path | path never sends 'x'; a path begins with `/`
key: a, value: get, ! | a=method | method never sends 'get'; methods are in capital letters; write GET
key: a, ! | a=header-match:x | header-match:x only sends values that the file writes; write a source that sends what the request has, such as --from a=header:x
key: a, match: set, values: [x, y], ! | a=header-match:x | header-match:x only sends values that the file writes, and 'set:x,y' matches others; write a source that sends what the request has, such as --from a=header:x
key: a, match: regex, value: "x.*", ! | a=generic-key:y | no limit of the domain has the key 'a' with the value 'y'
key: a, match: cidr, value: 10.0.0.0/8, ! | a=generic-key | generic-key sends fixed values, and the limit of 'a=cidr:10.0.0.0/8' is for any
key: a, value: "x*", ! | a=header-match:x | 'x*' counts each value by itself
key: a, value: "x*y", share_threshold: true, ! | a=header-match:x | header-match:x cannot match 'x*y'
key: a, value: "x*", share_threshold: true, ! + key: b, descriptors: [{ key: a, value: "xy*", share_threshold: true, ! }] | a=header-match:x b=path | f.yaml:4:34: error: 'xy*' and 'x*', in another list of descriptors, may match the same request
key: a, ! + key: a, value: x, rate_limit: { unit: day, requests_per_unit: 9, reservations: { ttl: 60s } } | a=header:x | f.yaml:4:10: error: Envoy would send the same entries for limits with 'reservations' and for limits without; write
key: a, ! | a=server-name | server-name exists for TCP connections only
"#;

#[test]
fn what_cannot_be_sent_is_an_error_at_its_place() {
    for row in PROBLEMS.lines().filter(|row| !row.is_empty()) {
        let [limits, from, expected] = row.split('|').collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let limits: Vec<_> = limits.split(" + ").map(str::trim).collect();
        let from: Vec<_> = from.split_whitespace().collect();
        let problems = generate(&file(&limits), &from, Protocol::Http).expect_err("a problem");
        assert!(problems.contains(expected.trim()), "{row}: {problems}");
    }
    let problems = generate(&file(&["key: a, !"]), &["a=header:x"], Protocol::Tcp);
    let problems = problems.expect_err("a problem");
    let expected = "a TCP connection has no header:x";
    assert!(problems.contains(expected), "{problems}");
}

#[test]
fn the_values_of_generic_keys_choose_the_limits() {
    let limits = file(&[
        "key: a, value: x, !",
        "key: a, value: y, descriptors: [{ key: b, ! }]",
        "key: a, value: \"z*\", !",
        "key: a, value: free",
    ]);
    let sent = |from: &str| {
        let found = generate(&limits, &[from, "b=header:x-b"], Protocol::Http);
        found.map(|found| {
            let value = |list: &descriptors::ActionList| {
                let action = read(&list.actions[0]);
                let value = text(field(&action, "generic_key")?, "descriptor_value")?;
                Some(value.to_owned())
            };
            let values: Vec<_> = found.all.iter().filter_map(value).collect();
            (values, found.left_out)
        })
    };
    let (values, left_out) = sent("a=generic-key:y,z1").expect("two");
    assert_eq!(values, ["y", "z1"]);
    assert_eq!(left_out, ["a=x (f.yaml:3)"]);
    let pattern = sent("a=generic-key").expect_err("a pattern");
    assert!(pattern.contains("generic-key sends fixed values"));
}

#[test]
fn too_many_descriptors_are_refused() {
    let limit = |number: u32| format!("key: a, value: v{number}, !");
    let limits: Vec<String> = (0..300).map(limit).collect();
    let limits = file(&limits.iter().map(String::as_str).collect::<Vec<_>>());
    for (from, sent) in [
        ("a=generic-key", None),
        ("a=header-match:x", Some(300)),
        ("a=header:x", Some(1)),
    ] {
        match (generate(&limits, &[from], Protocol::Http), sent) {
            (Ok(descriptors), Some(sent)) => assert_eq!(descriptors.all.len(), sent, "{from}"),
            (Err(problems), None) => assert!(problems.contains("more than 256 descriptors")),
            (generated, _) => panic!("{from}: {generated:?}"),
        }
    }
}

#[test]
fn names_of_resources_are_labels() {
    for (domain, expected) in [
        ("demo", "weir-demo"),
        ("Shop/A_b", "weir-shop-a-b"),
        ("/é/", "weir"),
        (&*"x".repeat(90), &*format!("weir-{}", "x".repeat(58))),
    ] {
        assert_eq!(name_of_resource(domain), expected);
    }
}

#[test]
fn sources_of_a_file_are_weaker_than_flags() {
    let file = SourceText {
        name: "s".to_owned(),
        text: b"a: header:x\nb: nothing\n".to_vec(),
    };
    let pairs = read_pairs(&file).expect("pairs");
    let wrong = Sources::try_new(&[], &pairs).expect_err("b is wrong")[0].to_string();
    let expected = "s:2:1: error: the source of 'b' cannot be used; `nothing` is no source";
    assert!(wrong.starts_with(expected), "{wrong}");
    let given = key_source("a=path").expect("a source");
    let sources = Sources::try_new(&[given], &pairs[..1]).expect("sources");
    assert_eq!(sources.get("a"), "path".parse::<KeySource>().ok().as_ref());
}
