//! What `deploy/` promises: manifests that fit Kubernetes' schemas and each other, an image that holds all it needs, filters that Envoy takes.

mod image;
mod istio;
mod kubernetes;

use serde::Deserialize;
use serde_json::Value;

use crate::support::tools;

/// The documents of a YAML file of the repository.
fn documents(path: &str) -> Vec<Value> {
    documents_in(&tools::file(path))
}

fn documents_in(text: &str) -> Vec<Value> {
    let read = serde_yaml::Deserializer::from_str(text).map(Value::deserialize);
    read.map(|document| document.unwrap_or_else(|error| panic!("{error} in\n{text}"))).collect()
}

/// What `pointer` (`/spec/ports/0`) leads to; it must be there.
fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {value:#}"))
}

/// As [`at`], a text.
fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    at(value, pointer).as_str().unwrap_or_else(|| panic!("{pointer} is no text in {value:#}"))
}

/// As [`at`], the items of a list.
fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    at(value, pointer).as_array().unwrap_or_else(|| panic!("{pointer} is no list in {value:#}"))
}
