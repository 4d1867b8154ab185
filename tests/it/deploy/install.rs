//! The commands of `deploy/README.md`, `deploy/envoy/README.md`, `deploy/install.md` and
//! `RELEASING.md`, as far as no container, no cluster and no long build is needed; the scripts that
//! build, with programs that only note their calls; and the unit of systemd.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use super::{printed, release, shell};
use crate::form::docs::{Shown, assert_shows, console};
use crate::support::{Weir, envoy, tools, weir};

const BINARY: &str = env!("CARGO_BIN_EXE_weir");

/// The architecture of a release that is not this machine's, and its name in triples.
const FOREIGN: (&str, &str) = if cfg!(target_arch = "aarch64") {
    ("amd64", "x86_64")
} else {
    ("arm64", "aarch64")
};

/// A folder of programs that take the place of those that build something. Each adds its arguments
/// to the file `calls`.
struct Programs(tempfile::TempDir);

impl Programs {
    /// Programs with these names, and the rest of their scripts.
    fn new(programs: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, rest) in programs {
            let path = folder.path().join(name);
            let script = format!("#!/bin/sh\nset -eu\necho \"{name} $*\" >>\"$CALLS\"\n{rest}\n");
            let text = path.with_extension("text");
            fs::write(&text, script).expect("written");
            copy_program(&text, &path);
        }
        Self(folder)
    }

    /// Runs a script with these programs before those of the system. Returns its output, and the
    /// calls.
    fn run(&self, script: &Path, arguments: &[&str]) -> (Output, String) {
        let calls = self.0.path().join("calls");
        fs::write(&calls, "").expect("written");
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.0.path().display());
        let output = Command::new(script)
            .args(arguments)
            .env_clear()
            .envs([("HOME", "/root"), ("PATH", &path)])
            .env("CALLS", &calls)
            .output()
            .expect("it runs");
        (output, fs::read_to_string(&calls).expect("a file"))
    }
}

/// Makes an executable copy in another process: a program that this one has open for writing, which
/// processes that other tests start inherit, cannot be run (ETXTBSY).
fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("install")
        .args(["-m", "755"])
        .args([from, to])
        .status();
    assert!(copied.expect("install runs").success(), "{}", to.display());
}

/// Runs deploy/build-image.sh, which must succeed, and returns its calls of docker.
fn build_image(arguments: &[&str]) -> String {
    // `--output type=oci,dest=FILE` must leave a file.
    let archive =
        "for word; do case $word in type=oci,dest=*) : >\"${word#type=oci,dest=}\" ;; esac; done";
    let docker = format!("case $1 in image) echo 123456789 ;; esac\n{archive}");
    let script = tools::repository().join("deploy/build-image.sh");
    let (output, calls) = Programs::new(&[("docker", &docker)]).run(&script, arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        printed(&output)
    );
    assert!(
        calls.starts_with("docker buildx build --file deploy/Dockerfile --tag "),
        "{calls}"
    );
    calls
}

/// The workflow `tests` builds the image of its machine. Others are built by releases only.
#[test]
fn build_image_sh_pushes_or_writes_images_of_both_architectures() {
    let image = "registry.example/team/weir";
    let calls = build_image(&["--push", "--tag", "1.2.3", "--tag", "latest", image]);
    for part in [
        "--tag registry.example/team/weir:1.2.3 --tag registry.example/team/weir:latest ",
        "--platform linux/amd64,linux/arm64 --push --provenance=mode=max --sbom=true .\n",
        "docker buildx imagetools inspect registry.example/team/weir:1.2.3\n",
        "docker buildx imagetools inspect registry.example/team/weir:latest\n",
    ] {
        assert!(calls.contains(part), "{part} is not in {calls}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let archive = folder.path().join("weir.tar").display().to_string();
    let calls = build_image(&["--output", &archive, "--platforms", "linux/arm64"]);
    let expected = format!("--platform linux/arm64 --output type=oci,dest={archive} .\n");
    assert!(calls.contains(&expected), "{calls}");

    let script = tools::repository().join("deploy/build-image.sh");
    for (wrong, says) in [
        (&["--tag"][..], "usage:"),
        (&["--loud"], "usage:"),
        (&["a", "b"], "usage:"),
        (&["--push", "--output", "x"], "exclude each other"),
    ] {
        let (output, calls) = Programs::new(&[("docker", "")]).run(&script, wrong);
        let says = !output.status.success() && printed(&output).contains(says);
        assert!(says && calls.is_empty(), "{wrong:?}: {}", printed(&output));
    }
}

/// Runs a copy of deploy/build-binary.sh in a folder without sources. Returns its output and its
/// calls.
fn build_binary(arguments: &[&str]) -> (Output, String) {
    let cargo = "case $* in *build*) env | grep ^CARGO_TARGET_ >>\"$CALLS\"
        mkdir -p target/TRIPLE/dist && : >target/TRIPLE/dist/weir ;; esac";
    let (architecture, machine) = FOREIGN;
    let cargo = cargo.replace("TRIPLE", &format!("{machine}-unknown-linux-gnu"));
    let compiler = format!("{machine}-linux-gnu-gcc");
    let mut programs = vec![
        ("cargo", &*cargo),
        ("rustup", ""),
        ("apt-get", ""),
        ("readelf", ""),
    ];
    if arguments.contains(&architecture) {
        programs.push((&compiler, ""));
    }
    let programs = Programs::new(&programs);
    let copy = programs.0.path().join("deploy/build-binary.sh");
    fs::create_dir(copy.with_file_name("")).expect("a folder");
    copy_program(&tools::repository().join("deploy/build-binary.sh"), &copy);
    programs.run(&copy, arguments)
}

/// As a release and the Dockerfile call it for the other architecture. The workflow `tests` builds
/// for its own one.
#[test]
fn build_binary_sh_compiles_for_the_other_architecture() {
    let (architecture, machine) = FOREIGN;
    let triple = format!("{machine}-unknown-linux-gnu");
    let (output, calls) = build_binary(&["--tools", architecture]);
    assert!(output.status.success(), "{}", printed(&output));
    let package = format!("libc6-dev-{architecture}-cross");
    let target = format!("rustup target add {triple}\n");
    for part in [&*package, &target, "cargo install --locked --version "] {
        assert!(calls.contains(part), "{part} is not in {calls}");
    }
    let (output, calls) = build_binary(&["--static", architecture]);
    assert!(output.status.success(), "{}", printed(&output));
    let variable = format!("CARGO_TARGET_{}_UNKNOWN_LINUX_GNU", machine.to_uppercase());
    for part in [
        format!("cargo auditable build --locked --profile dist --target {triple} --bin weir\n"),
        format!("{variable}_LINKER={machine}-linux-gnu-gcc\n"),
        format!("{variable}_RUSTFLAGS=--remap-path-prefix="),
        " -C target-feature=+crt-static\n".to_owned(),
    ] {
        assert!(calls.contains(&part), "{part} is not in {calls}");
    }
}

#[test]
fn build_binary_sh_names_the_problem() {
    for wrong in [&[][..], &["sparc"], &["--static"], &["--fast", "amd64"]] {
        let (output, _) = build_binary(wrong);
        let is_explained = output.status.code() == Some(2) && printed(&output).contains("usage:");
        assert!(is_explained, "{wrong:?}: {}", printed(&output));
    }
    // The repository has a folder src, which the option would replace; and PATH has no compiler.
    let own = if FOREIGN.0 == "arm64" {
        "amd64"
    } else {
        "arm64"
    };
    let script = tools::repository().join("deploy/build-binary.sh");
    for (path, arguments, says) in [
        (
            "/usr/bin:/bin",
            &["--dependencies", own][..],
            "there is a folder src",
        ),
        (
            "",
            &[FOREIGN.0],
            "-linux-gnu-gcc is not installed. Install it (Debian package: ",
        ),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        for program in ["dirname", "uname", "sh"] {
            let link = folder.path().join(program);
            std::os::unix::fs::symlink(tools::on_the_path(program), link).expect("a link");
        }
        let path = format!("{}:{path}", folder.path().display());
        let mut command = Command::new(&script);
        command
            .args(arguments)
            .env_clear()
            .envs([("HOME", "/root"), ("PATH", &path)]);
        let output = command.output().expect("it runs");
        let says = !output.status.success() && printed(&output).contains(says);
        assert!(says, "{arguments:?}: {}", printed(&output));
    }
}

/// Runs one command of a page. `release` is a folder with the files of a release.
fn run(shown: &Shown, release: &Path) {
    let command = &*shown.command;
    let exists = |path: &str, folder: &Path| {
        let path = path.trim_end_matches("/*");
        assert!(folder.join(path).exists(), "{path} of `{command}`");
    };
    let exists_here = |path: &str| exists(path, tools::repository());
    // What needs containers or a long build is run by the workflow.
    let in_workflow = |part: &str| {
        let workflow = tools::file(".github/workflows/tests.yaml");
        assert!(
            workflow.contains(part),
            "no step of the workflow runs `{part}`"
        );
    };
    let words: Vec<_> = command.split_whitespace().collect();
    match words[..] {
        ["weir", ..] => {
            let line = command.replacen("weir", BINARY, 1);
            assert_shows(shown, &shell(tools::repository(), &line));
        }
        ["sha256sum" | "tar", ..] => assert_shows(shown, &shell(release, command)),
        [program, "--version"] if program.starts_with("weir-") => {
            assert_shows(shown, &shell(release, command));
        }
        ["gh", "attestation", "verify", archive, "--repo", _] => exists(archive, release),
        ["cargo", "install", ..]
        | ["docker", "compose", ..]
        | ["curl", ..]
        | ["deploy/build-image.sh"] => in_workflow(command),
        ["docker", "run", ref options @ .., image] => {
            assert_eq!(image, concat!("weir:", env!("CARGO_PKG_VERSION")));
            in_workflow(&format!("docker run {} ", options.join(" ")));
        }
        ["deploy/build-image.sh", "--output", _] => drop(build_image(&["--output", "/dev/null"])),
        ["deploy/build-image.sh", ref arguments @ ..] => drop(build_image(arguments)),
        [
            "deploy/build-binary.sh",
            ref options @ ..,
            "amd64" | "arm64",
        ] => {
            let (output, _) = build_binary(&[options, &[FOREIGN.0]].concat());
            assert!(output.status.success(), "{command}: {}", printed(&output));
        }
        ["install", "-m", "755", source, _] | ["install", "-D", "-m", "644", "-t", _, source] => {
            exists(source, release);
        }
        ["systemctl", "enable", "--now", "weir"] => exists_here("deploy/systemd/weir.service"),
        // tests/deploy/chart.py renders what helm gets, and builds what kubectl gets.
        ["helm", "install", _, path, ..]
        | ["helm", "upgrade", "--install", _, path, ..]
        | ["kubectl", "apply", "-k" | "-f", path]
        | ["install", "-m", "644", path, _]
        | [path @ ("tests/run.sh" | "tests/deploy.sh")]
        | [path @ "tests/faults.sh", "--all"] => exists_here(path),
        ["envoy", "-c", file] => envoy::validate(&tools::file(file)),
        // tests/it/deploy/release.rs runs these.
        ["deploy/release.sh", name, ..] => assert!(release::COMMANDS.contains(&name), "{name}"),
        ["helm", "test", _] | ["git", "commit" | "tag" | "push", ..] => {}
        _ => panic!("no test runs `{command}`"),
    }
}

#[test]
fn every_command_of_the_pages_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = release::program(folder.path());
    let release = folder.path().join("release");
    let files = release.display().to_string();
    for arguments in [
        &["package", &program, "amd64", &files][..],
        &["checksums", &files],
    ] {
        release::run(tools::repository(), arguments);
    }
    for page in [
        "deploy/README.md",
        "deploy/envoy/README.md",
        "deploy/install.md",
        "RELEASING.md",
    ] {
        // Commands of a list are indented.
        let text: String = tools::file(page)
            .lines()
            .map(|line| format!("{}\n", line.strip_prefix("   ").unwrap_or(line)))
            .collect();
        let commands = console(&text);
        assert!(commands.len() > 6, "{page}: {}", commands.len());
        for shown in &commands {
            run(shown, &release);
        }
    }
}

#[test]
fn the_tables_of_files_name_what_is_there() {
    for folder in ["deploy", "deploy/envoy"] {
        let page = tools::file(&format!("{folder}/README.md"));
        for row in page.lines().filter_map(|line| line.strip_prefix("| `")) {
            let (cell, _) = row.split_once('|').expect("a first cell");
            for name in cell.split(", ").map(|name| name.trim().trim_matches('`')) {
                let path = tools::repository().join(folder).join(name);
                assert!(path.exists(), "{folder} has no {name}");
            }
        }
    }
}

/// A setting of the unit.
fn of_unit(name: &str) -> String {
    let unit = tools::file("deploy/systemd/weir.service");
    let mut values = unit
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    values.next().expect("a value").to_owned()
}

/// The paths that the support desk's page sets are those that the unit and its addition give.
#[test]
fn the_unit_of_systemd_keeps_what_the_support_desk_writes() {
    let page = tools::file("deploy/support-desk.md");
    for text in [
        format!("OVERRIDES_FILE=/var/lib/{}/", of_unit("StateDirectory")),
        "install -m 600 tokens /etc/weir-tokens\n".to_owned(),
        "LoadCredential=tokens:/etc/weir-tokens\\n".to_owned(),
        "ADMIN_TOKEN_FILE=/run/credentials/weir.service/tokens\\n".to_owned(),
    ] {
        assert!(page.contains(&text), "the page has no {text}");
    }
}

/// The unit starts what the page installs, with a command line that Weir accepts.
#[test]
fn the_unit_of_systemd_starts_weir() {
    let start = of_unit("ExecStart");
    let words: Vec<_> = start.split(' ').collect();
    let (program, arguments) = words.split_first().expect("a program");
    let installed = format!("/weir {}/\n", program.trim_end_matches("/weir"));
    assert!(
        tools::file("deploy/install.md").contains(&installed),
        "{installed}"
    );
    let config = tools::repository().join("config").display().to_string();
    let here = arguments
        .iter()
        .map(|word| if *word == "/etc/weir" { &*config } else { word });
    let mut command = Command::new(BINARY);
    // Free ports, after the command.
    command.args(here).args(&weir::ARGUMENTS[1..]).env_clear();
    let mut weir = Weir::spawn(command, tempfile::tempdir().expect("a folder"));
    assert_eq!(weir.get("/healthcheck").0, 200);
    weir.signal("KILL");
    weir.wait();
    // DRAIN_DELAY and 10 s for requests in flight.
    let grace = of_unit("TimeoutStopSec").parse::<u32>();
    assert!(grace.is_ok_and(|seconds| seconds >= 15));
}
