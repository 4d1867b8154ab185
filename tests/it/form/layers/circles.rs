//! The graph of imports between the files of src/, and its circles.
//!
//! A file imports another one if it names an item of it: in a `use`, or by a path in its code that
//! begins with `crate::`, `super::` or `self::`. A name that a module only re-exports counts as an
//! import of the file that defines it. Two kinds of imports are left out, because a reader takes
//! them as one unit: those between a module and the modules below it, and those of unit tests.

use std::collections::{BTreeMap, BTreeSet};

/// A module by its path below the crate: `store::redis::lane`; empty for the crate itself.
pub type Module = String;

/// Which modules a module imports.
pub type Graph = BTreeMap<Module, BTreeSet<Module>>;

/// The imports between `files`, which are the texts of modules.
pub fn graph(files: &BTreeMap<Module, String>) -> Graph {
    let code: BTreeMap<&Module, String> = files
        .iter()
        .map(|(module, text)| (module, code_of(text)))
        .collect();
    let named: BTreeMap<&Module, Vec<Import>> = code
        .iter()
        .map(|(module, code)| (*module, imports(module, code)))
        .collect();
    let resolver = Resolver {
        files,
        named: &named,
    };
    let edges = |module: &Module| {
        let targets = named[module]
            .iter()
            .map(|import| resolver.resolve(&import.path, 0));
        targets
            .filter(|target| !is_within(target, module) && !is_within(module, target))
            .collect()
    };
    files
        .keys()
        .map(|module| (module.clone(), edges(module)))
        .collect()
}

/// The modules that import each other in a circle, one list for each.
pub fn circles(graph: &Graph) -> Vec<Vec<Module>> {
    let reached: BTreeMap<_, _> = graph
        .keys()
        .map(|module| (module, reachable(graph, module)))
        .collect();
    let mut found = BTreeSet::new();
    for module in graph
        .keys()
        .filter(|module| reached[module].contains(*module))
    {
        let both = reached[module]
            .iter()
            .filter(|other| reached[other].contains(module));
        found.insert(both.cloned().collect::<Vec<_>>());
    }
    found.into_iter().collect()
}

fn reachable(graph: &Graph, from: &Module) -> BTreeSet<Module> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Module> = graph[from].iter().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module.clone()) {
            next.extend(&graph[module]);
        }
    }
    reached
}

/// Whether `inner` is `outer` or below it.
fn is_within(inner: &str, outer: &str) -> bool {
    outer.is_empty()
        || inner
            .strip_prefix(outer)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// A path that a module names, from the crate on.
struct Import {
    path: Vec<String>,
    /// The name that a `use` gives it in this module.
    alias: Option<String>,
}

struct Resolver<'a> {
    files: &'a BTreeMap<Module, String>,
    named: &'a BTreeMap<&'a Module, Vec<Import>>,
}

impl Resolver<'_> {
    /// The module that defines the item at `path`.
    fn resolve(&self, path: &[String], depth: usize) -> Module {
        let modules = (0..=path.len())
            .rev()
            .map(|length| (length, path[..length].join("::")));
        let (length, module) = modules
            .into_iter()
            .find(|(_, module)| self.files.contains_key(module))
            .expect("the crate is a module");
        let Some(name) = path.get(length).filter(|_| depth < 8) else {
            return module;
        };
        let forwards = |import: &&Import| {
            import.alias.as_ref() == Some(name) && import.path != path[..=length]
        };
        match self.named[&module].iter().find(forwards) {
            Some(import) => {
                self.resolve(&[&import.path[..], &path[length + 1..]].concat(), depth + 1)
            }
            None => module,
        }
    }
}

/// Without comments and without the unit tests at the end.
fn code_of(text: &str) -> String {
    let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..tests]
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// All paths that the code of `module` names. A path of a `use` without `crate`, `super` or `self`
/// is one of a module below, or of another crate.
fn imports(module: &str, code: &str) -> Vec<Import> {
    let mut found = Vec::new();
    for statement in code
        .split("\nuse ")
        .skip(1)
        .chain(code.split("\npub use ").skip(1))
        .chain(code.split("\npub(super) use ").skip(1))
    {
        let tree = &statement[..statement.find(';').expect("a use ends")];
        expand(
            &tree.split_whitespace().collect::<Vec<_>>().join(" "),
            &[],
            &mut |path, alias| {
                found.push(Import {
                    path: absolute(module, path),
                    alias: Some(alias),
                });
            },
        );
    }
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let is_start =
                !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            let path: String = code[at..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || matches!(c, '_' | ':'))
                .collect();
            if is_start && !path.ends_with("::") {
                found.push(Import {
                    path: absolute(
                        module,
                        &path.split("::").map(ToOwned::to_owned).collect::<Vec<_>>(),
                    ),
                    alias: None,
                });
            }
        }
    }
    found
}

/// The paths of a `use` tree and the name that each gets.
fn expand(tree: &str, before: &[String], each: &mut dyn FnMut(&[String], String)) {
    let tree = tree.trim();
    if let Some((prefix, group)) = tree.split_once('{') {
        let prefix = prefix
            .trim_end_matches("::")
            .split("::")
            .filter(|part| !part.is_empty())
            .map(ToOwned::to_owned);
        let before: Vec<_> = before.iter().cloned().chain(prefix).collect();
        let mut depth = 0;
        let outermost = |c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        };
        let group = group.trim_end().strip_suffix('}').expect("a group ends");
        group
            .split(outermost)
            .filter(|part| !part.trim().is_empty())
            .for_each(|part| expand(part, &before, each));
        return;
    }
    let (path, alias) = tree
        .split_once(" as ")
        .map_or((tree, None), |(path, alias)| {
            (path, Some(alias.trim().to_owned()))
        });
    let mut path: Vec<_> = before
        .iter()
        .cloned()
        .chain(path.split("::").map(|part| part.trim().to_owned()))
        .collect();
    if path
        .last()
        .is_some_and(|last| last == "self" || last == "*")
    {
        path.pop();
    }
    let alias = alias.or_else(|| path.last().cloned()).unwrap_or_default();
    each(&path, alias);
}

/// `path`, as it stands in `module`, from the crate on.
fn absolute(module: &str, path: &[String]) -> Vec<String> {
    let mut at: Vec<String> = module
        .split("::")
        .filter(|part| !part.is_empty())
        .map(ToOwned::to_owned)
        .collect();
    for part in path {
        match part.as_str() {
            "crate" => at.clear(),
            "super" => drop(at.pop()),
            "self" => {}
            name => at.push(name.to_owned()),
        }
    }
    at
}
