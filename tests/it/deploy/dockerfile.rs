//! `deploy/Dockerfile`: its stages, and that what they copy, run and name exists. The workflow
//! `tests` builds the image and runs it in a container.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::support::tools;

/// An instruction and its arguments, on one line.
type Instruction = (String, String);

/// The Dockerfile's stages, each with its instructions; the first is FROM.
pub(super) fn stages() -> Vec<Vec<Instruction>> {
    let text = tools::file("deploy/Dockerfile");
    let code: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect();
    let joined = code.join("\n").replace("\\\n", " ");
    let mut stages: Vec<Vec<Instruction>> = Vec::new();
    for line in joined.lines().filter(|line| !line.trim().is_empty()) {
        let (name, arguments) = line
            .split_once(' ')
            .unwrap_or_else(|| panic!("{line} has no arguments"));
        if name == "FROM" {
            stages.push(Vec::new());
        }
        let arguments = arguments.split_whitespace().collect::<Vec<_>>().join(" ");
        stages
            .last_mut()
            .expect("FROM comes first")
            .push((name.to_owned(), arguments));
    }
    stages
}

/// The arguments of an instruction that stands once in the final stage.
pub(super) fn last_stage(instruction: &str) -> String {
    let stage = stages().pop().expect("a stage");
    let mut found = stage.into_iter().filter(|(name, _)| name == instruction);
    let (_, arguments) = found.next().unwrap_or_else(|| panic!("no {instruction}"));
    assert_eq!(found.next(), None, "{instruction} once");
    arguments
}

/// The labels of the image, with the build's arguments as they stand there.
pub(super) fn labels() -> BTreeMap<String, String> {
    let text = last_stage("LABEL");
    let mut labels = BTreeMap::new();
    let mut rest = text.as_str();
    while let Some((name, after)) = rest.split_once("=\"") {
        let (value, after) = after.split_once('"').expect("the end of the value");
        labels.insert(name.trim().to_owned(), value.to_owned());
        rest = after;
    }
    labels
}

/// Whether the context holds a file. The last pattern that fits decides, and a folder's patterns
/// are those of all in it. Source: Docker, "Build context", .dockerignore files.
fn is_in_context(patterns: &str, path: &str) -> bool {
    let mut is_ignored = false;
    for pattern in patterns
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let (is_exception, pattern) = pattern
            .strip_prefix('!')
            .map_or((false, pattern), |pattern| (true, pattern));
        assert!(
            !pattern.contains('*') || pattern == "*",
            "{pattern}: this test knows no such pattern"
        );
        if pattern == "*"
            || path == pattern
            || path
                .strip_prefix(pattern)
                .is_some_and(|rest| rest.starts_with('/'))
        {
            is_ignored = !is_exception;
        }
    }
    !is_ignored
}

#[test]
fn its_bases_are_pinned_and_its_labels_are_those_of_the_package() {
    let stages = stages();
    for instructions in &stages {
        let (_, from) = &instructions[0];
        let image = from
            .split(' ')
            .find(|word| !word.starts_with("--"))
            .expect("an image");
        let digest = image.split_once("@sha256:").map(|(_, digest)| digest);
        let is_pinned = image == "scratch"
            || digest.is_some_and(|digest| {
                digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
            });
        assert!(is_pinned, "{from}");
    }
    let labels = labels();
    let label = |name: &str| {
        labels
            .get(&format!("org.opencontainers.image.{name}"))
            .map(String::as_str)
    };
    assert_eq!(label("version"), Some(env!("CARGO_PKG_VERSION")));
    assert_eq!(label("licenses"), Some(env!("CARGO_PKG_LICENSE")));
    assert_eq!(label("description"), Some(env!("CARGO_PKG_DESCRIPTION")));
    assert_eq!(label("title"), Some("Weir"));
    for (name, argument) in [
        ("revision", "WEIR_COMMIT"),
        ("created", "WEIR_CREATED"),
        ("source", "WEIR_SOURCE"),
    ] {
        assert_eq!(label(name), Some(&*format!("${argument}")));
        let declared = stages
            .last()
            .expect("a stage")
            .iter()
            .any(|(name, value)| name == "ARG" && value == &format!("{argument}="));
        assert!(declared, "{argument} is not an ARG of the final stage");
    }
    let check = last_stage("HEALTHCHECK");
    for option in ["--interval=", "--timeout=", "--start-period=", "--retries="] {
        assert!(check.contains(option), "{check} leaves {option} to Docker");
    }
}

/// The files of a folder of the repository.
fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(tools::repository().join(folder))
        .expect("a folder")
        .map(|entry| entry.expect("an entry"))
    {
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() {
            list(&path, files);
        } else {
            files.push(path);
        }
    }
}

/// A path without `..`.
fn without_parents(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        if part == Component::ParentDir {
            path.pop();
        } else {
            path.push(part);
        }
        path
    })
}

/// The files that a file of Rust includes as text, except in its tests.
fn included(file: &Path) -> Vec<PathBuf> {
    if file.extension().is_none_or(|extension| extension != "rs") {
        return Vec::new();
    }
    let text = tools::file(&file.to_string_lossy());
    let lines: Vec<&str> = text.lines().collect();
    let path = |(index, line): (usize, &&str)| {
        let is_of_tests = index > 0 && lines[index - 1] == "#[cfg(test)]";
        let (_, rest) = line
            .split_once("include_str!(\"")
            .filter(|_| !is_of_tests)?;
        let named = file.parent().expect("a folder");
        Some(without_parents(&named.join(rest.split('"').next()?)))
    };
    lines.iter().enumerate().filter_map(path).collect()
}

/// The arguments of a stage's instructions of one name, in order.
fn arguments<'a>(stage: &'a [Instruction], instruction: &str) -> Vec<&'a str> {
    let named = stage.iter().filter(|(name, _)| name == instruction);
    named.map(|(_, arguments)| arguments.as_str()).collect()
}

/// The files of the context that a stage copies, as `COPY` names them.
fn sources(stage: &[Instruction]) -> Vec<&str> {
    let copies = arguments(stage, "COPY");
    let from_context = copies.iter().filter(|copy| !copy.starts_with("--from="));
    from_context
        .flat_map(|copy| {
            let (sources, _) = copy.rsplit_once(' ').expect("a target");
            sources.split(' ')
        })
        .collect()
}

/// The stage that compiles copies everything that the binary is made of, and the scripts that it
/// runs.
#[test]
fn the_stage_that_builds_has_what_the_binary_is_made_of() {
    let build = &stages()[0];
    let copied = sources(build);
    let ignored = tools::file("deploy/Dockerfile.dockerignore");
    let is_copied = |file: &Path| {
        copied.iter().any(|source| file.starts_with(source))
            && is_in_context(&ignored, &file.to_string_lossy())
    };
    let mut files = ["Cargo.toml", "Cargo.lock", "build.rs"]
        .map(PathBuf::from)
        .to_vec();
    for folder in ["src", "lua", "proto"] {
        list(Path::new(folder), &mut files);
    }
    // The tables and pages that unit tests read are not part of the binary.
    let is_test = |file: &&PathBuf| {
        file.with_extension("")
            .components()
            .any(|part| part.as_os_str() == "tests")
    };
    let included: Vec<_> = files
        .iter()
        .filter(|file| !is_test(file))
        .flat_map(|file| included(file))
        .collect();
    assert!(
        files.len() > 100 && included.len() > 5,
        "{} files, {included:?}",
        files.len()
    );
    for file in files.iter().chain(&included) {
        assert!(
            is_copied(file),
            "{} is not in the stage that builds",
            file.display()
        );
    }
    for source in &copied {
        assert!(
            tools::repository().join(source).exists(),
            "COPY of {source}, which does not exist"
        );
    }
    for run in arguments(build, "RUN") {
        let script = run.split(' ').next().expect("a command");
        assert!(is_copied(Path::new(script)), "RUN {run}");
    }
}

/// A change of Weir's own files leaves the layer of the dependencies as it is: that layer knows the
/// manifest alone, and Weir is built after all its files are there.
#[test]
fn the_layer_of_dependencies_comes_before_the_sources() {
    let build = &stages()[0];
    let position = |instruction: &str, part: &str| {
        let found = build
            .iter()
            .position(|(name, arguments)| name == instruction && arguments.contains(part));
        found.unwrap_or_else(|| panic!("no {instruction} of {part}"))
    };
    let dependencies = position("RUN", "--static --dependencies \"$TARGETARCH\"");
    let weir = position("RUN", "build-binary.sh --static \"$TARGETARCH\"");
    assert!(position("RUN", "--tools \"$TARGETARCH\"") < dependencies);
    assert!(position("COPY", "Cargo.toml Cargo.lock") < dependencies);
    for source in ["build.rs", "proto", "lua", "src src"] {
        let copied = position("COPY", source);
        assert!(dependencies < copied && copied < weir, "{source}");
    }
    assert!(position("ARG", "TARGETARCH") < dependencies);
    assert!(
        weir < position(
            "RUN",
            "rootfs.sh target/*-unknown-linux-gnu/release/weir rootfs"
        )
    );
}

/// The image is what rootfs.sh gathers, and the examples; no shell of a base.
#[test]
fn the_image_is_the_rootfs_and_the_examples() {
    let stages = stages();
    let (_, from) = &stages[0][0];
    assert!(from.ends_with(" AS build"), "{from}");
    let image = stages.last().expect("a stage");
    assert_eq!(arguments(image, "FROM"), ["scratch"]);
    assert_eq!(
        arguments(image, "COPY"),
        ["--from=build /src/rootfs /", "config /config"]
    );
    assert_eq!(arguments(&stages[0], "WORKDIR"), ["/src"]);
    assert_eq!(arguments(image, "RUN"), Vec::<&str>::new());
}

#[test]
fn the_context_has_what_its_patterns_say() {
    let patterns = tools::file("deploy/Dockerfile.dockerignore");
    for (path, expected) in [
        ("src/main.rs", true),
        ("Cargo.lock", true),
        ("deploy/rootfs.sh", true),
        ("deploy/README.md", false),
        ("target/debug/weir", false),
        (".git/HEAD", false),
        ("srcs", false),
    ] {
        assert_eq!(is_in_context(&patterns, path), expected, "{path}");
    }
}
