//! The order of the house: a file imports only from rooms above its own, no files import in a
//! circle, and the core knows no edge.

mod circles;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// All rooms, lowest first; rooms of one row do not import each other.
const RANKS: &[&[&str]] = &[
    &["time"],
    &["ask"],
    &["verdict"],
    &["algorithm"],
    &["usage"],
    &["rules"],
    &["overrides"],
    &["plan"],
    &["breaker"],
    // Edges.
    &["proto"],
    &[
        "metrics",
        "health",
        "telemetry",
        "background",
        "bounds",
        "tls",
    ],
    &["traces", "subjects"],
    &["store"],
    &["limiter", "live"],
    &["rls"],
    &["http"],
    &["server", "exporters"],
    &["admin"],
    &["debug"],
    &["settings"],
    &["app"],
    &["cli"],
    // For tests and fuzz targets only.
    &["fuzzing"],
    &["main", "lib"],
];

/// The first rooms: plain data and pure functions.
const CORE: usize = 7;

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

fn rank(room: &str) -> Option<usize> {
    RANKS.iter().position(|row| row.contains(&room))
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

/// The room that a file belongs to: the first part of its path below src/.
fn room(file: &Path) -> String {
    let below = file.strip_prefix(source_folder()).expect("a file of src/");
    let first = below
        .components()
        .next()
        .expect("a name")
        .as_os_str()
        .to_string_lossy()
        .into_owned();
    first.trim_end_matches(".rs").to_owned()
}

fn source_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The rooms named by `crate::room` and `crate::{room, room}` in code, not in comments.
fn imports(text: &str) -> Vec<String> {
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect();
    let word = |text: &str| {
        text.trim()
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect::<String>()
    };
    let names = |path: &str| match path.strip_prefix('{') {
        None => vec![word(path)],
        Some(group) => {
            let mut depth = 0;
            let outermost = |c: char| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                c == ',' && depth == 0
            };
            let end = closing_brace(group).expect("a group ends");
            group[..end]
                .split(outermost)
                .map(word)
                .filter(|word| !word.is_empty())
                .collect()
        }
    };
    code.split("crate::").skip(1).flat_map(names).collect()
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
        let from = room(&file);
        let own = rank(&from).unwrap_or_else(|| {
            panic!("{from} is not in RANKS; add it here and to ARCHITECTURE.md")
        });
        for to in imports(&fs::read_to_string(&file).expect("readable")) {
            let Some(other) = rank(&to) else {
                panic!("{}: crate::{to} is not in RANKS", file.display())
            };
            if to != from && other >= own {
                wrong.push(format!(
                    "{} (rank {own}) imports crate::{to} (rank {other})",
                    file.display()
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
        let path = file
            .strip_prefix(source_folder())
            .expect("a file of src/")
            .with_extension("");
        let parts: Vec<_> = path
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .filter(|part| part != "lib")
            .collect();
        parts.join("::")
    };
    let texts: BTreeMap<_, _> = files
        .iter()
        .map(|file| (module(file), fs::read_to_string(file).expect("readable")))
        .collect();
    let graph = circles::graph(&texts);
    assert!(
        graph
            .values()
            .map(std::collections::BTreeSet::len)
            .sum::<usize>()
            > texts.len(),
        "imports are found: {graph:?}"
    );
    let circles = circles::circles(&graph).into_iter().map(|circle| {
        let imports = |from: &String| {
            format!(
                "{from} imports {:?}",
                graph[from]
                    .iter()
                    .filter(|to| circle.contains(to))
                    .collect::<Vec<_>>()
            )
        };
        circle.iter().map(imports).collect::<Vec<_>>().join(", ")
    });
    assert_eq!(
        circles.collect::<Vec<_>>(),
        Vec::<String>::new(),
        "files that import in a circle"
    );
}

#[test]
fn the_core_knows_no_edge() {
    let mut files = Vec::new();
    sources(&source_folder(), &mut files);
    let core = files
        .iter()
        .filter(|file| rank(&room(file)).is_some_and(|rank| rank < CORE));
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
    assert_eq!(named, [&source_folder().join("rules/source.rs")]);
}

#[test]
fn imports_are_found() {
    assert_eq!(
        imports(
            "use crate::time::Span;\nuse crate::{ask::Ask, plan::{self, Plan}};\n// \
             crate::comment\n"
        ),
        ["time", "ask", "plan"]
    );
    assert_eq!(imports("fn f() -> crate::verdict::Verdict {}"), ["verdict"]);
}
