//! The graph of imports between the files of src/, and its circles.
//!
//! A file imports another one if it names an item of it: in a `use`, or by a path in its code that
//! begins with `crate::`, `super::` or `self::`. Two kinds of imports are left out, because a reader
//! takes them as one unit: those between a module and the modules below it, and those of unit tests.

use std::collections::{BTreeMap, BTreeSet};

/// A module by its path below the crate: `store::redis::lane`; empty for the crate itself.
pub type Module = String;

/// Which modules a module imports.
pub type Graph = BTreeMap<Module, BTreeSet<Module>>;

/// The imports between `files`, which are the texts of modules.
pub fn graph(files: &BTreeMap<Module, String>) -> Graph {
    let edges = |(module, text): (&Module, &String)| {
        let paths = paths(&code_of(text)).into_iter();
        let targets = paths.map(|path| target(files, module, &path));
        let is_apart = |target: &Module| !is_within(target, module) && !is_within(module, target);
        (module.clone(), targets.filter(is_apart).collect())
    };
    files.iter().map(edges).collect()
}

/// The modules that import each other in a circle, one list for each.
pub fn circles(graph: &Graph) -> BTreeSet<Vec<&Module>> {
    let reached = graph
        .keys()
        .map(|module| (module, reachable(graph, module)));
    let reached: BTreeMap<_, _> = reached.collect();
    let circle = |module| {
        let both = reached[module].iter().copied();
        both.filter(|other| reached[other].contains(module))
            .collect()
    };
    let in_circle = graph
        .keys()
        .filter(|module| reached[module].contains(module));
    in_circle.map(circle).collect()
}

fn reachable<'g>(graph: &'g Graph, from: &Module) -> BTreeSet<&'g Module> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Module> = graph[from].iter().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(&graph[module]);
        }
    }
    reached
}

/// Whether `inner` is `outer` or below it.
fn is_within(inner: &str, outer: &str) -> bool {
    let below = |rest: &str| rest.is_empty() || rest.starts_with("::");
    outer.is_empty() || inner.strip_prefix(outer).is_some_and(below)
}

/// The module that a path of `module` leads to.
fn target(files: &BTreeMap<Module, String>, module: &str, path: &str) -> Module {
    let mut at: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    for part in path.split("::").filter(|part| !part.is_empty()) {
        match part {
            "crate" => at.clear(),
            "super" => drop(at.pop()),
            "self" => {}
            name => at.push(name),
        }
    }
    let mut modules = (0..=at.len()).rev().map(|length| at[..length].join("::"));
    let known = modules.find(|module| files.contains_key(module));
    known.expect("the crate is a module")
}

/// Without comments and without the unit tests at the end.
fn code_of(text: &str) -> String {
    let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..tests].lines();
    let code = lines.filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| [line, "\n"]).collect()
}

/// All paths that the code names. A path of a `use` without `crate`, `super` or `self` is one of a
/// module below, or of another crate.
fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for start in [
        "\nuse ",
        "\npub use ",
        "\npub(super) use ",
        "\npub(crate) use ",
    ] {
        for statement in code.split(start).skip(1) {
            let tree = &statement[..statement.find(';').expect("a use ends")];
            expand(tree, "", &mut found);
        }
    }
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let path: String = code[at..].chars().take_while(|c| is_name(*c)).collect();
            if !code[..at].ends_with(is_name) && !path.ends_with("::") {
                found.push(path);
            }
        }
    }
    found
}

/// The paths of a `use` tree.
fn expand(tree: &str, before: &str, found: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        if !tree.is_empty() {
            found.push(format!("{before}{tree}"));
        }
        return;
    };
    let before = format!("{before}{prefix}");
    let mut depth = 0;
    let outermost = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    };
    let group = group.strip_suffix('}').expect("a group ends");
    let parts = group.split(outermost);
    parts.for_each(|part| expand(part, &before, found));
}
