//! `deploy/Dockerfile`, executed without containers: each instruction in a folder of its own stage,
//! with the files that the context holds.
//!
//! `cargo`, `rustup` and `apt-get` are scripts here: they keep the list of their calls, and the
//! build is a copy of a binary that exists. All other commands are real. What this cannot see is
//! the base image.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

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

/// Copies a file, or all files of a folder, and its permissions.
fn copy(from: &Path, to: &Path, is_wanted: &dyn Fn(&Path) -> bool) -> usize {
    if from.is_dir() && !from.is_symlink() {
        let entries =
            fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        return entries
            .map(|entry| entry.expect("an entry"))
            .map(|entry| copy(&entry.path(), &to.join(entry.file_name()), is_wanted))
            .sum();
    }
    if !is_wanted(from) {
        return 0;
    }
    fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
    if from.is_symlink() {
        std::os::unix::fs::symlink(fs::read_link(from).expect("a link"), to).expect("a link");
    } else {
        fs::copy(from, to)
            .unwrap_or_else(|error| panic!("{} to {}: {error}", from.display(), to.display()));
    }
    1
}

/// A stage that is being built.
struct Stage {
    root: PathBuf,
    folder: String,
    variables: BTreeMap<String, String>,
}

impl Stage {
    /// A path of the stage, on this machine.
    fn path(&self, path: &str) -> PathBuf {
        let absolute = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("{}/{path}", self.folder)
        };
        self.root.join(absolute.trim_start_matches('/'))
    }

    fn run(&self, command: &str, programs: &Path) {
        let folder = self.path("");
        let mut shell = Command::new("sh");
        shell
            .args(["-ec", command])
            .current_dir(&folder)
            .env_clear()
            .envs(&self.variables);
        // Docker's shell finds the scripts in the place of cargo and others first.
        shell
            .env(
                "PATH",
                format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", programs.display()),
            )
            .env("HOME", "/root");
        let output = shell.output().expect("a shell");
        assert!(
            output.status.success(),
            "RUN {command}\n{}",
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat())
        );
    }
}

/// The file system of the image for an architecture, and the calls of cargo, rustup and apt-get.
pub(super) struct Built {
    pub(super) folder: TempDir,
    pub(super) root: PathBuf,
    pub(super) calls: Vec<String>,
}

/// Executes the Dockerfile. `binary` is what cargo builds, and `is_static` whether readelf says so.
pub(super) fn build(binary: &Path, architecture: &str) -> Built {
    let folder = tempfile::tempdir().expect("a folder");
    let programs = folder.path().join("programs");
    let log = folder.path().join("calls");
    write_programs(&programs, &log, binary);
    let ignored = tools::file("deploy/Dockerfile.dockerignore");
    let mut built: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut last = PathBuf::new();
    for (index, instructions) in stages().into_iter().enumerate() {
        let root = folder.path().join(format!("stage-{index}"));
        fs::create_dir(&root).expect("a folder");
        let mut stage = Stage {
            root: root.clone(),
            folder: "/".to_owned(),
            variables: BTreeMap::new(),
        };
        for (name, arguments) in instructions {
            let words: Vec<&str> = arguments.split(' ').collect();
            match (name.as_str(), &words[..]) {
                ("FROM", [.., "AS", name]) => drop(built.insert((*name).to_owned(), root.clone())),
                ("FROM", ["scratch"]) => {}
                ("WORKDIR", [path]) => {
                    stage.folder = (*path).to_owned();
                    fs::create_dir_all(stage.path("")).expect("a folder");
                }
                ("ARG", [variable]) => {
                    let (name, default) = variable.split_once('=').unwrap_or((variable, ""));
                    let value = if name == "TARGETARCH" {
                        architecture
                    } else {
                        default
                    };
                    stage.variables.insert(name.to_owned(), value.to_owned());
                }
                ("COPY", [from, source, target]) if from.starts_with("--from=") => {
                    let other = Stage {
                        root: built[from.trim_start_matches("--from=")].clone(),
                        folder: "/".to_owned(),
                        variables: BTreeMap::new(),
                    };
                    assert!(
                        copy(&other.path(source), &stage.path(target), &|_| true) > 0,
                        "COPY {arguments} copies nothing"
                    );
                }
                ("COPY", [sources @ .., target]) => {
                    for source in sources {
                        let from = tools::repository().join(source);
                        let is_wanted = |path: &Path| {
                            is_in_context(
                                &ignored,
                                &path
                                    .strip_prefix(tools::repository())
                                    .expect("in the repository")
                                    .to_string_lossy(),
                            )
                        };
                        let into = stage.path(target);
                        let to = if target.ends_with('/') {
                            into.join(from.file_name().expect("a name"))
                        } else {
                            into
                        };
                        assert!(
                            copy(&from, &to, &is_wanted) > 0,
                            "COPY {arguments}: the context has no {source}"
                        );
                    }
                }
                ("RUN", _) => stage.run(&arguments, &programs),
                ("LABEL" | "USER" | "EXPOSE" | "HEALTHCHECK" | "ENTRYPOINT", _) => {}
                _ => panic!("this test knows no {name} {arguments}"),
            }
        }
        last = root;
    }
    let calls = fs::read_to_string(&log)
        .expect("calls")
        .lines()
        .map(str::to_owned)
        .collect();
    Built {
        folder,
        root: last,
        calls,
    }
}

/// The scripts in the place of programs that build or install something.
fn write_programs(programs: &Path, log: &Path, binary: &Path) {
    fs::create_dir_all(programs).expect("a folder");
    let write = |name: &str, script: &str| {
        let path = programs.join(name);
        fs::write(
            &path,
            format!(
                "#!/bin/sh\nset -eu\necho \"{name} $*\" >>'{}'\n{script}\n",
                log.display()
            ),
        )
        .expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    };
    for name in [
        "apt-get",
        "rustup",
        "x86_64-linux-gnu-gcc",
        "aarch64-linux-gnu-gcc",
    ] {
        write(name, "");
    }
    // The real cargo reads manifest and lock, and the copy stands where the real one is built.
    let cargo = format!(
        "target= previous=
for word; do [ \"$previous\" != --target ] || target=$word; previous=$word; done
case $* in
*--version | install\\ *) ;;
*build\\ *)
    '{}' metadata --offline --locked --no-deps --format-version 1 >/dev/null
    env | grep ^CARGO_TARGET_ | sort >>'{}'
    mkdir -p \"target/$target/release\"
    cp '{}' \"target/$target/release/weir\"
    ;;
clean\\ *) rm \"target/$target/release/weir\" ;;
*) exit 1 ;;
esac",
        env!("CARGO"),
        log.display(),
        binary.display()
    );
    write("cargo", &cargo);
    // The binary of the tests is not static, unless tests/deploy.sh gives one that is.
    if tools::image_binary().is_none() {
        write("readelf", "");
    }
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
        Some(
            file.parent()
                .expect("a folder")
                .join(rest.split('"').next()?),
        )
    };
    lines.iter().enumerate().filter_map(path).collect()
}

/// For both architectures: cross compilers and flags, the layer of the dependencies, and everything
/// that the binary is made of.
#[test]
fn its_instructions_build_the_image() {
    let binary = Path::new(env!("CARGO_BIN_EXE_weir"));
    for (architecture, triple) in [
        ("amd64", "x86_64-unknown-linux-gnu"),
        ("arm64", "aarch64-unknown-linux-gnu"),
    ] {
        let built = build(binary, architecture);
        let builds: Vec<_> = built
            .calls
            .iter()
            .filter(|call| call.contains("auditable build"))
            .collect();
        let expected =
            format!("cargo auditable build --locked --release --target {triple} --bin weir");
        assert_eq!(
            builds,
            [&expected, &expected],
            "the dependencies, then Weir"
        );
        let name = triple.to_uppercase().replace('-', "_");
        let has = |start: &str, part: &str| {
            built
                .calls
                .iter()
                .any(|call| call.starts_with(start) && call.contains(part))
        };
        assert!(
            has(
                &format!("CARGO_TARGET_{name}_RUSTFLAGS="),
                "target-feature=+crt-static"
            ),
            "{:#?}",
            built.calls
        );
        let is_foreign = !triple.starts_with(std::env::consts::ARCH);
        assert_eq!(
            has(&format!("CARGO_TARGET_{name}_LINKER="), "-linux-gnu-gcc"),
            is_foreign,
            "{:#?}",
            built.calls
        );
        assert_eq!(
            has(
                "apt-get install",
                &format!("libc6-dev-{architecture}-cross")
            ),
            is_foreign
        );
        assert!(has("rustup target add", triple) && has("cargo install", "cargo-auditable"));

        // Everything that the binary is made of is in the stage.
        let source = built.folder.path().join("stage-0/src");
        let mut files = vec![PathBuf::from("build.rs"), PathBuf::from("Cargo.lock")];
        for folder in ["src", "lua", "proto"] {
            list(Path::new(folder), &mut files);
        }
        // The tables that unit tests read are not part of the binary.
        let is_test = |file: &&PathBuf| file.components().any(|part| part.as_os_str() == "tests");
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
                source.join(file).exists(),
                "{} is not in the stage that builds",
                file.display()
            );
        }
        // `cargo build` reads no manifest that names a missing file.
        let manifest = tools::file("Cargo.toml");
        let benches: Vec<_> = manifest
            .split("[[bench]]\nname = \"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        assert!(benches.len() > 2);
        for bench in benches {
            assert!(
                source.join(format!("benches/{bench}.rs")).is_file(),
                "{bench}"
            );
        }
        // The files of the layer are gone: Weir's own came after them.
        assert_eq!(
            fs::read(source.join("build.rs")).expect("a file"),
            fs::read(tools::repository().join("build.rs")).expect("a file")
        );
        assert!(
            built.root.join("config/basic.yaml").is_file() && built.root.join("weir").is_file()
        );
        assert!(!built.root.join("bin/sh").exists(), "no shell");
    }
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
