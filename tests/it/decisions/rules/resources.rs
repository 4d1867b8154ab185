//! Limits of a control plane mean what the same limits in a file mean.

use proptest::prelude::*;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use serde_json::json;
use weir::core::proto::xds::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};
use weir::core::time::Unit;
use weir::limits::rules::Rules;
use weir::limits::rules::diff::Difference;
use weir::limits::rules::domains::{Applied, Domains, XdsOptions};

use super::{find, rules_of, show};

fn apply(resources: Vec<RateLimitConfig>) -> Applied {
    Domains::default().apply(
        resources,
        &XdsOptions {
            merge_domains: true,
            ..XdsOptions::default()
        },
    )
}

/// A node of a random tree, as far as files and messages can both say it.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) limit: Option<Limit>,
    flags: [bool; 3],
    pub(super) below: Vec<Branch>,
}

#[derive(Clone, Debug)]
pub(super) struct Limit {
    requests: u32,
    unit: Unit,
    unlimited: bool,
    name: Option<String>,
    /// An option of each kind, which stands in the metadata of a message.
    options: [bool; 4],
}

fn limit() -> impl Strategy<Value = Limit> {
    // Those of Envoy's protocol.
    let unit = proptest::sample::select(
        Unit::NAMED
            .map(|(_, unit)| unit)
            .into_iter()
            .filter(|unit| *unit != Unit::Quarter)
            .collect::<Vec<_>>(),
    );
    let name = proptest::option::of(proptest::sample::select(vec![
        "one".to_owned(),
        "two".to_owned(),
    ]));
    (0..50u32, unit, any::<bool>(), name, any::<[bool; 4]>()).prop_map(
        |(requests, unit, unlimited, name, options)| Limit {
            requests,
            unit,
            unlimited: unlimited && options == [false; 4],
            name,
            options,
        },
    )
}

/// Trees that are small enough that requests often hit them.
pub(super) fn trees() -> impl Strategy<Value = Vec<Branch>> {
    let word = || proptest::string::string_regex("[ab_*]{1,4}").expect("a pattern");
    let value = move || prop_oneof![Just(String::new()), word()];
    let limits = || proptest::option::of(limit());
    let branch = move |below: BoxedStrategy<Vec<Branch>>| {
        let fields = (word(), value(), limits(), any::<[bool; 3]>(), below);
        fields.prop_map(|(key, value, limit, flags, below)| Branch {
            key,
            value,
            limit,
            flags,
            below,
        })
    };
    let leaf = proptest::collection::vec(branch(Just(Vec::new()).boxed()), 1..2);
    let tree = leaf.prop_recursive(3, 24, 4, move |below| {
        proptest::collection::vec(branch(below), 0..4)
    });
    tree.prop_map(distinct)
}

/// Two branches of one key and value at one level are refused; that is tested elsewhere.
fn distinct(branches: Vec<Branch>) -> Vec<Branch> {
    let mut kept: Vec<Branch> = Vec::new();
    for mut branch in branches {
        if !kept
            .iter()
            .any(|other| (&other.key, &other.value) == (&branch.key, &branch.value))
        {
            branch.below = distinct(branch.below);
            kept.push(branch);
        }
    }
    kept
}

impl Limit {
    /// In the metadata of a message.
    fn options(&self) -> Struct {
        let [burst, policy, multiplier, count_denied] = self.options;
        let text = |text: &str| Kind::StringValue(text.to_owned());
        let all = [
            (burst, "algorithm", text("token_bucket")),
            (burst, "burst", Kind::NumberValue(7.0)),
            (policy, "on_store_failure", text("deny")),
            (multiplier, "unit_multiplier", Kind::NumberValue(3.0)),
            (count_denied, "count_denied", Kind::BoolValue(burst)),
        ];
        let written = all.into_iter().filter(|(is_written, ..)| *is_written);
        fields(written.map(|(_, name, kind)| (name, kind)))
    }
}

fn fields<'n>(all: impl IntoIterator<Item = (&'n str, Kind)>) -> Struct {
    let field = |(name, kind): (&str, _)| (name.to_owned(), Value { kind: Some(kind) });
    Struct {
        fields: all.into_iter().map(field).collect(),
    }
}

impl Branch {
    /// JSON is YAML, but for the whole numbers, which are doubles in a message.
    pub(super) fn yaml(&self) -> serde_json::Value {
        let below: Vec<_> = self.below.iter().map(Self::yaml).collect();
        let mut node = json!({"key": self.key, "value": self.value, "descriptors": below});
        if let Some(limit) = &self.limit {
            let mut policy = if limit.unlimited {
                json!({"unlimited": true})
            } else {
                json!({"unit": limit.unit.name(), "requests_per_unit": limit.requests})
            };
            if let Some(name) = &limit.name {
                policy["name"] = json!(name);
            }
            node["rate_limit"] = policy;
            node["metadata"] = json!({"team": "x"});
        }
        for (flag, is_set) in ["shadow_mode", "quota_mode", "detailed_metric"]
            .iter()
            .zip(self.flags)
        {
            node[*flag] = json!(is_set);
        }
        node
    }

    fn message(&self) -> RateLimitDescriptor {
        let metadata = self.limit.as_ref().map(|limit| {
            let options = limit.options();
            // It has no effect.
            let weir = (!options.fields.is_empty()).then_some(("weir", Kind::StructValue(options)));
            let team = ("team", Kind::StringValue("x".to_owned()));
            fields(weir.into_iter().chain([team]))
        });
        let policy = |limit: &Limit| RateLimitPolicy {
            unit: if limit.unlimited {
                0
            } else {
                limit.unit.number()
            },
            requests_per_unit: limit.requests,
            unlimited: limit.unlimited,
            name: limit.name.clone().unwrap_or_default(),
            replaces: Vec::new(),
        };
        let [shadow_mode, quota_mode, detailed_metric] = self.flags;
        RateLimitDescriptor {
            key: self.key.clone(),
            value: self.value.clone(),
            rate_limit: self.limit.as_ref().map(policy),
            descriptors: self.below.iter().map(Self::message).collect(),
            shadow_mode,
            detailed_metric,
            quota_mode,
            metadata,
        }
    }
}

/// The paths of all nodes, with texts that their patterns match.
fn paths(
    branches: &[Branch],
    above: &[(Vec<u8>, Vec<u8>)],
    found: &mut Vec<Vec<(Vec<u8>, Vec<u8>)>>,
) {
    for branch in branches {
        let entry = (
            branch.key.replace('*', "a").into_bytes(),
            branch.value.replace('*', "b").into_bytes(),
        );
        let path = [above, &[entry]].concat();
        found.push(path.clone());
        paths(&branch.below, &path, found);
    }
}

/// Cuts lists of descriptors in two at `cut`, each with its path from the root: the same tree in
/// duplicates.
fn cut_in_two(descriptors: &[RateLimitDescriptor], cut: usize) -> Vec<RateLimitDescriptor> {
    let mut parts = Vec::new();
    for descriptor in descriptors {
        let below = cut_in_two(&descriptor.descriptors, cut);
        let (first, second) = below.split_at(cut.min(below.len()));
        parts.push(RateLimitDescriptor {
            descriptors: first.to_vec(),
            ..descriptor.clone()
        });
        if !second.is_empty() {
            let bare = RateLimitDescriptor {
                key: descriptor.key.clone(),
                value: descriptor.value.clone(),
                ..RateLimitDescriptor::default()
            };
            parts.push(RateLimitDescriptor {
                descriptors: second.to_vec(),
                ..bare
            });
        }
    }
    parts
}

proptest! {
    #![proptest_config(crate::testing::property(300))]

    #[test]
    fn a_resource_means_what_the_same_file_means(
        tree in trees(),
        random in proptest::collection::vec(
            proptest::collection::vec(("[ab*]{0,3}", "[ab*]{0,3}"), 0..4),
            8,
        ),
        cut in 0..3usize,
        by_resource in any::<bool>(),
    ) {
        let yaml: Vec<_> = tree.iter().map(Branch::yaml).collect();
        let from_file = rules_of(&json!({"domain": "d", "descriptors": yaml}).to_string());
        let descriptors: Vec<_> = tree.iter().map(Branch::message).collect();
        let cut_up = cut_in_two(&descriptors, cut);
        let (first, second) = cut_up.split_at(if by_resource {
            cut.min(cut_up.len())
        } else {
            cut_up.len()
        });
        let part = |name: &str, part: &[RateLimitDescriptor]| RateLimitConfig {
            name: name.into(),
            domain: "d".into(),
            descriptors: part.to_vec(),
        };
        // In the wrong order: names sort them.
        let duplicated = vec![part("2", second), part("1", first)];
        let mut requests: Vec<Vec<(Vec<u8>, Vec<u8>)>> = random
            .into_iter()
            .map(|entries| {
                entries
                    .into_iter()
                    .map(|(key, value)| (key.into(), value.into()))
                    .collect()
            })
            .collect();
        paths(&tree, &[], &mut requests);
        for resources in [vec![part("1", &descriptors)], duplicated] {
            let applied = apply(resources);
            prop_assert!(applied.refused.is_empty(), "{:?}", applied);
            let rules = applied.rules.expect("rules");
            let difference = Difference::new(&from_file, &rules);
            prop_assert_eq!(difference, Difference::default());
            let limits = |rules: &Rules| {
                rules
                    .limits()
                    .map(show)
                    .collect::<std::collections::BTreeSet<_>>()
            };
            prop_assert_eq!(limits(&from_file), limits(&rules));
            for entries in &requests {
                prop_assert_eq!(
                    find(&from_file, b"d", entries),
                    find(&rules, b"d", entries),
                    "{:?}",
                    entries
                );
            }
        }
    }
}
