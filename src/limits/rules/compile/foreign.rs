//! Files that are no files of limits: manifests of Kubernetes, configurations of Envoy and others
//! that are kept in the same folders. One line says so, instead of one for each of their keys.

use super::fields::nearest;
use super::problem::quoted;
use super::sections::Section;
use crate::limits::rules::source::{Content, Node};

/// What a file is that has another purpose, and the remedy.
pub(super) fn foreign(root: &Node) -> Option<(String, String)> {
    let Content::Mapping(entries) = &root.content else {
        return None;
    };
    let names = || entries.iter().filter_map(|(key, _)| key.text());
    let own = ["domain", "descriptors"];
    if names().any(|name| nearest(name, own.into_iter()).is_some()) {
        return None;
    }
    let limits = "limits are in files that begin with 'domain:' and 'descriptors:'";
    if let (Some(_), Some(kind)) = (root.get("apiVersion"), root.get("kind")) {
        let kind = quoted(kind.text().unwrap_or_default());
        let what =
            format!("this is a manifest of Kubernetes, of kind {kind}, and no file of limits");
        let remedy = match root.get("data") {
            Some(_) => "write what is below 'data' into files, as a mount of it does".to_owned(),
            None => format!("{limits}, which a ConfigMap has below 'data'"),
        };
        return Some((what, remedy));
    }
    let is_own = |name: &str| {
        Section::Root
            .keys()
            .chain(["key", "rate_limit"])
            .any(|own| own == name)
    };
    let first = names().next().filter(|_| !names().any(is_own))?;
    let what = format!(
        "this is no file of limits: it has {} and others, and neither 'domain' nor 'descriptors'",
        quoted(first)
    );
    Some((what, limits.to_owned()))
}
