//! The order of layers and modules: a file imports only from modules above its own, no files import
//! in a circle, and the core knows no edge.

mod circles;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// All layers and their modules, lowest first; modules of one row do not import each other. A layer
/// of one module has no rows.
const LAYERS: &[(&str, &[&[&str]])] = &[
    // For tests only; all of them import it.
    ("testing", &[]),
    (
        "core",
        &[
            &["digest", "fingerprint", "lock", "message", "text", "time"],
            &["request"],
            &["verdict"],
            &["algorithm"],
            &["answer"],
            &["usage"],
            &["breaker"],
            &["proto"],
        ],
    ),
    ("limits", &[&["rules"], &["overrides"], &["plan"]]),
    (
        "net",
        &[
            &[
                "background",
                "bounded",
                "clock",
                "random",
                "rare",
                "throttle",
            ],
            &["heap"],
            &["bounds", "tls"],
            &["dial"],
            &["http"],
        ],
    ),
    (
        "observe",
        &[
            &["logged_values", "metrics", "health", "telemetry"],
            &["traces", "subjects", "history"],
            &["exporters"],
        ],
    ),
    ("store", &[]),
    ("live", &[]),
    ("limiter", &[]),
    ("service", &[&["rls"], &["kuadrant", "pages"], &["server"]]),
    ("admin", &[&["api"], &["debug"]]),
    ("process", &[&["settings"], &["app"]]),
    ("cli", &[]),
    // For tests and fuzz targets only.
    ("fuzzing", &[]),
    ("main", &[]),
    ("lib", &[]),
];

/// The layers of plain data and pure functions. The generated messages name tonic.
const PURE: [&str; 2] = ["core", "limits"];

/// What no file of the core may name.
const EDGES: &[&str] = &[
    "tokio::",
    "tonic::",
    "hyper::",
    "bb8",
    "redis::",
    "std::env",
    "SystemTime",
    "Instant::now",
    "std::fs",
    "std::net",
];

/// The position of a layer in `LAYERS`, and of a module in its layer.
fn rank(layer: &str, module: &str) -> Option<(usize, usize)> {
    let position = LAYERS.iter().position(|(name, _)| *name == layer)?;
    let rows = LAYERS[position].1;
    if rows.is_empty() || module.is_empty() {
        return Some((position, rows.len()));
    }
    let row = rows.iter().position(|row| row.contains(&module))?;
    Some((position, row))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
    {
        if entry.is_dir() {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push(entry);
        }
    }
}

/// The layer and the module of a file: the first parts of its path below src/. The file of
/// a layer itself has no module.
fn place(file: &Path) -> (String, String) {
    let below = file.strip_prefix(source_folder()).expect("a file of src/");
    let mut parts = below.iter().map(|part| {
        let name = part.to_string_lossy();
        name.trim_end_matches(".rs").to_owned()
    });
    (
        parts.next().expect("a name"),
        parts.next().unwrap_or_default(),
    )
}

fn source_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The layers and modules named by `crate::layer::module` in code, not in comments.
fn imports(text: &str) -> Vec<(String, String)> {
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect();
    let first = |path: &str| {
        path.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect::<String>()
    };
    let mut found = Vec::new();
    for path in code.split("crate::").skip(1) {
        let layer = first(path);
        let below = path[layer.len()..].strip_prefix("::").unwrap_or_default();
        match below.strip_prefix('{') {
            None => found.push((layer, first(below))),
            Some(group) => {
                let end = closing_brace(group).expect("a group ends");
                let mut depth = 0;
                let outermost = |c: char| {
                    depth += i32::from(c == '{') - i32::from(c == '}');
                    c == ',' && depth == 0
                };
                let names = group[..end].split(outermost).map(str::trim);
                found.extend(
                    names
                        .filter(|name| !name.is_empty())
                        .map(|name| (layer.clone(), first(name))),
                );
            }
        }
    }
    found
}

/// Where the brace that was opened before `text` is closed.
fn closing_brace(text: &str) -> Option<usize> {
    let mut depth = 1;
    text.find(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0
    })
}

#[test]
fn imports_go_one_way() {
    let mut files = Vec::new();
    sources(&source_folder(), &mut files);
    assert!(files.len() > 20, "src/ was not found");
    let mut wrong = Vec::new();
    for file in files {
        let from = place(&file);
        let own = rank(&from.0, &from.1)
            .unwrap_or_else(|| panic!("{from:?} is not in LAYERS; add it here and to src/lib.rs"));
        for to in imports(&fs::read_to_string(&file).expect("readable")) {
            // Tests with a generator of their own call the properties.
            if to.0 == "fuzzing" && file.ends_with("tests.rs") {
                continue;
            }
            let is_module = LAYERS
                .iter()
                .any(|(layer, rows)| *layer == to.0 && rows.concat().contains(&to.1.as_str()));
            let module = if is_module { to.1.as_str() } else { "" };
            let Some(other) = rank(&to.0, module) else {
                panic!("{}: crate::{} is not in LAYERS", file.display(), to.0)
            };
            let same = to.0 == from.0 && (module == from.1 || LAYERS[own.0].1.is_empty());
            if !same && other >= own {
                wrong.push(format!(
                    "{} {own:?} imports crate::{}::{} {other:?}",
                    file.display(),
                    to.0,
                    to.1
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_files_import_in_a_circle() {
    let mut files = Vec::new();
    sources(&source_folder(), &mut files);
    let module = |file: &PathBuf| {
        let path = file.strip_prefix(source_folder()).expect("in src/");
        let path = path.with_extension("");
        let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
        let parts: Vec<_> = parts.filter(|part| part != "lib").collect();
        parts.join("::")
    };
    let text = |file: &PathBuf| fs::read_to_string(file).expect("readable");
    let texts: BTreeMap<_, _> = files
        .iter()
        .map(|file| (module(file), text(file)))
        .collect();
    let graph = circles::graph(&texts);
    let imports: usize = graph.values().map(BTreeSet::len).sum();
    assert!(imports > texts.len(), "imports are found: {graph:?}");
    let circles = circles::circles(&graph);
    assert!(circles.is_empty(), "{circles:?}");
}

#[test]
fn the_core_knows_no_edge() {
    let mut files = Vec::new();
    sources(&source_folder(), &mut files);
    let core = files.iter().filter(|file| {
        let (layer, module) = place(file);
        PURE.contains(&layer.as_str()) && module != "proto"
    });
    for file in core {
        for (number, line) in fs::read_to_string(file)
            .expect("readable")
            .lines()
            .enumerate()
        {
            let named = EDGES
                .iter()
                .find(|edge| line.contains(**edge) && !line.trim_start().starts_with("//"));
            assert!(
                named.is_none(),
                "{}:{}: the core names {}",
                file.display(),
                number + 1,
                named.unwrap_or(&"")
            );
        }
    }
}

#[test]
fn one_file_names_the_unmaintained_crate() {
    let mut files = Vec::new();
    sources(&source_folder(), &mut files);
    let names = |file: &&PathBuf| {
        fs::read_to_string(file)
            .expect("readable")
            .contains("serde_yaml::")
    };
    let named: Vec<_> = files.iter().filter(names).collect();
    assert_eq!(named, [&source_folder().join("limits/rules/source.rs")]);
}
