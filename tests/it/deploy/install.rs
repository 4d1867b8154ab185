//! `deploy/install.md` and `RELEASING.md`: their commands run as they stand there, as far as no
//! container, no service and no long build is needed; the others name what exists. docker is a
//! script that keeps the list of its calls.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::release;
use crate::form::docs::{Shown, assert_shows, console};
use crate::support::tools;

const IMAGE: &str = concat!("weir:", env!("CARGO_PKG_VERSION"));

/// A folder with a program `docker` that writes its arguments to `calls`, and shows `123456789` as
/// the size of any image.
struct Docker {
    folder: tempfile::TempDir,
}

impl Docker {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let calls = folder.path().join("calls");
        // `--output type=oci,dest=FILE` must leave a file.
        let script = format!(
            "#!/bin/sh\nset -eu\necho \"$*\" >>'{}'\ncase $1 in image) echo 123456789 ;; esac
for word; do case $word in type=oci,dest=*) echo archive >\"${{word#type=oci,dest=}}\" ;; esac; done\n",
            calls.display()
        );
        let program = folder.path().join("docker");
        fs::write(&program, script).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
        Self { folder }
    }

    /// Runs deploy/build-image.sh in the folder of the repository.
    fn build(&self, arguments: &[&str]) -> Output {
        let mut script = Command::new(tools::repository().join("deploy/build-image.sh"));
        script
            .args(arguments)
            .env_clear()
            .env("HOME", "/root")
            .env("WEIR_SOURCE", "https://example.org/weir");
        script
            .env(
                "PATH",
                format!(
                    "{}:/usr/sbin:/usr/bin:/sbin:/bin",
                    self.folder.path().display()
                ),
            )
            .output()
            .expect("it runs")
    }

    /// The calls so far, and forgets them.
    fn calls(&self) -> Vec<String> {
        let file = self.folder.path().join("calls");
        let calls = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(&file);
        calls.lines().map(str::to_owned).collect()
    }
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn build_image_sh_writes_an_archive_and_refuses_what_excludes_each_other() {
    let docker = Docker::new();
    let archive = docker.folder.path().join("weir.tar");
    let output = docker.build(&[
        "--output",
        &archive.to_string_lossy(),
        "--platforms",
        "linux/arm64",
    ]);
    assert!(
        output.status.success() && archive.is_file(),
        "{}",
        printed(&output)
    );
    assert!(docker.calls()[0].contains("--platform linux/arm64 --output type=oci,dest="));

    for (wrong, says) in [
        (&["--tag"][..], "usage:"),
        (&["--loud"], "usage:"),
        (&["a", "b"], "usage:"),
        (&["--push", "--output", "x"], "exclude each other"),
    ] {
        let output = docker.build(wrong);
        assert!(
            !output.status.success() && printed(&output).contains(says),
            "{wrong:?}: {}",
            printed(&output)
        );
    }
    assert_eq!(docker.calls(), Vec::<String>::new(), "nothing was built");
}

/// Each argument of the build is one that the Dockerfile declares.
fn assert_arguments_are_declared(call: &str) {
    for argument in call
        .split(' ')
        .skip_while(|word| *word != "--build-arg")
        .filter_map(|word| word.split_once('='))
    {
        if argument.0.starts_with("WEIR_") {
            assert!(
                tools::file("deploy/Dockerfile").contains(&format!("\nARG {}=\n", argument.0)),
                "{argument:?}"
            );
        }
    }
}

#[test]
fn build_image_sh_builds_for_this_machine_or_for_both_architectures() {
    let docker = Docker::new();
    let output = docker.build(&[]);
    assert!(output.status.success(), "{}", printed(&output));
    let calls = docker.calls();
    assert!(
        calls[0].starts_with("buildx build --file deploy/Dockerfile --tag weir:")
            && calls[0].contains(IMAGE),
        "{calls:?}"
    );
    assert!(
        calls[0].ends_with("--load .") && !calls[0].contains("--platform"),
        "{calls:?}"
    );
    assert!(
        calls[0].contains("--build-arg WEIR_SOURCE=https://example.org/weir"),
        "{calls:?}"
    );
    assert_eq!(
        calls[1],
        format!("image inspect --format {{{{.Size}}}} {IMAGE}")
    );
    assert!(
        printed(&output).contains(&format!("120563 KiB {IMAGE}")),
        "the size is printed: {}",
        printed(&output)
    );

    assert_arguments_are_declared(&calls[0]);

    let output = docker.build(&[
        "--push",
        "--tag",
        "1.2.3",
        "--tag",
        "latest",
        "registry.example/team/weir",
    ]);
    assert!(output.status.success(), "{}", printed(&output));
    let calls = docker.calls();
    for part in [
        "--tag registry.example/team/weir:1.2.3 --tag registry.example/team/weir:latest ",
        "--platform linux/amd64,linux/arm64 --push ",
        "--provenance=mode=max --sbom=true",
    ] {
        assert!(calls[0].contains(part), "{part} is not in {calls:?}");
    }
    assert_eq!(
        calls[1..],
        ["1.2.3", "latest"]
            .map(|tag| format!("buildx imagetools inspect registry.example/team/weir:{tag}"))
    );
}

#[test]
fn build_binary_sh_names_the_problem() {
    let script = tools::repository().join("deploy/build-binary.sh");
    let run = |arguments: &[&str], path: &str| {
        Command::new(&script)
            .args(arguments)
            .env_clear()
            .env("PATH", path)
            .env("HOME", "/root")
            .output()
            .expect("it runs")
    };
    for wrong in [&[][..], &["sparc"], &["--static"], &["--fast", "amd64"]] {
        let output = run(wrong, "/usr/bin:/bin");
        assert_eq!(
            output.status.code(),
            Some(2),
            "{wrong:?}: {}",
            printed(&output)
        );
        assert!(printed(&output).contains("usage:"));
    }
    // In the repository there is a folder src, which this option would replace.
    let refused = run(
        &[
            "--dependencies",
            if cfg!(target_arch = "aarch64") {
                "arm64"
            } else {
                "amd64"
            },
        ],
        "/usr/bin:/bin",
    );
    assert!(
        !refused.status.success() && printed(&refused).contains("there is a folder src"),
        "{}",
        printed(&refused)
    );
    // A folder with the few programs that it needs, and without a cross compiler.
    let folder = tempfile::tempdir().expect("a folder");
    for program in ["dirname", "uname", "sh"] {
        std::os::unix::fs::symlink(tools::on_the_path(program), folder.path().join(program))
            .expect("a link");
    }
    let foreign = if cfg!(target_arch = "aarch64") {
        "amd64"
    } else {
        "arm64"
    };
    let refused = run(&[foreign], &folder.path().to_string_lossy());
    assert!(
        !refused.status.success()
            && printed(&refused)
                .contains("-linux-gnu-gcc is not installed. Install it (Debian package: "),
        "{}",
        printed(&refused)
    );
}

/// Scripts in the place of programs that build or install something: each adds its call to `calls`
/// beside their folder. The one of cargo leaves an empty binary, and writes the variables of its
/// target.
fn builders(folder: &Path) {
    let programs = folder.join("programs");
    fs::create_dir(&programs).expect("a folder");
    let cargo = "target= previous=
for word; do [ \"$previous\" != --target ] || target=$word; previous=$word; done
case $* in
*--version | install\\ *) ;;
*build\\ *)
    env | grep ^CARGO_TARGET_ | sort >>\"$CALLS\"
    for file in src/lib.rs src/main.rs build.rs; do [ -f $file ]; done
    ls benches | sed 's/^/bench /' >>\"$CALLS\"
    mkdir -p \"target/$target/release\"
    echo binary >\"target/$target/release/weir\"
    ;;
clean\\ *) rm \"target/$target/release/weir\" ;;
*) exit 1 ;;
esac";
    for (name, script) in [
        ("apt-get", ""),
        ("rustup", ""),
        ("x86_64-linux-gnu-gcc", ""),
        ("aarch64-linux-gnu-gcc", ""),
        ("readelf", ""),
        ("cargo", cargo),
    ] {
        let path = programs.join(name);
        let text = format!("#!/bin/sh\nset -eu\necho \"{name} $*\" >>\"$CALLS\"\n{script}\n");
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    }
}

/// A copy of deploy/build-binary.sh, in a folder with the manifest and nothing else; and what its
/// calls of programs were.
fn build_binary(folder: &Path, arguments: &[&str]) -> Vec<String> {
    let calls = folder.join("calls");
    let output = Command::new(folder.join("deploy/build-binary.sh"))
        .args(arguments)
        .env_clear()
        .env("CALLS", &calls)
        .env("HOME", "/root")
        .env(
            "PATH",
            format!(
                "{}:/usr/sbin:/usr/bin:/sbin:/bin",
                folder.join("programs").display()
            ),
        )
        .output()
        .expect("it runs");
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        printed(&output)
    );
    let made = fs::read_to_string(&calls).unwrap_or_default();
    let _ = fs::remove_file(&calls);
    made.lines().map(str::to_owned).collect()
}

fn has(calls: &[String], start: &str, part: &str) -> bool {
    calls
        .iter()
        .any(|call| call.starts_with(start) && call.contains(part))
}

/// After the layer of the dependencies: what stood in the place of Weir's own files is gone, and
/// `cargo build` read no manifest that names a missing file.
fn assert_only_dependencies(folder: &Path, triple: &str, calls: &[String]) {
    let manifest = tools::file("Cargo.toml");
    let benches = manifest.split("[[bench]]\nname = \"").skip(1);
    let benches: Vec<_> = benches.filter_map(|rest| rest.split('"').next()).collect();
    assert!(benches.len() > 2);
    for bench in benches {
        assert!(calls.contains(&format!("bench {bench}.rs")), "{bench}");
    }
    for gone in ["src", "build.rs", &format!("target/{triple}/release/weir")] {
        assert!(!folder.join(gone).exists(), "{gone}");
    }
}

/// As the Dockerfile calls it, for both architectures: the tools, the dependencies, and Weir with
/// cross compilers and flags.
#[test]
fn build_binary_sh_builds_dependencies_and_weir() {
    for (architecture, triple) in [
        ("amd64", "x86_64-unknown-linux-gnu"),
        ("arm64", "aarch64-unknown-linux-gnu"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        builders(root);
        fs::create_dir(root.join("deploy")).expect("a folder");
        for file in ["deploy/build-binary.sh", "Cargo.toml", "Cargo.lock"] {
            fs::copy(tools::repository().join(file), root.join(file)).expect("copied");
        }
        let is_foreign = !triple.starts_with(std::env::consts::ARCH);
        let calls = build_binary(root, &["--tools", architecture]);
        let cross = format!("libc6-dev-{architecture}-cross");
        assert_eq!(has(&calls, "apt-get install", &cross), is_foreign);
        assert!(has(&calls, "rustup target add", triple), "{calls:#?}");
        assert!(
            has(&calls, "cargo install", "cargo-auditable"),
            "{calls:#?}"
        );

        let build =
            format!("cargo auditable build --locked --release --target {triple} --bin weir");
        let name = triple.to_uppercase().replace('-', "_");
        let assert_built = |calls: &[String]| {
            assert!(calls.contains(&build), "{calls:#?}");
            let flags = format!("CARGO_TARGET_{name}_RUSTFLAGS=");
            let is_static = has(calls, &flags, "target-feature=+crt-static");
            assert!(is_static, "{calls:#?}");
            let linker = format!("CARGO_TARGET_{name}_LINKER=");
            assert_eq!(has(calls, &linker, "-linux-gnu-gcc"), is_foreign);
        };
        let calls = build_binary(root, &["--static", "--dependencies", architecture]);
        assert_built(&calls);
        assert_only_dependencies(root, triple, &calls);

        fs::create_dir(root.join("src")).expect("a folder");
        for file in ["src/lib.rs", "src/main.rs", "build.rs"] {
            fs::write(root.join(file), "").expect("written");
        }
        assert_built(&build_binary(root, &["--static", architecture]));
        let binary = format!("target/{triple}/release/weir");
        assert!(root.join(binary).is_file());
    }
}

fn assert_builds_an_image(arguments: &[&str]) {
    let docker = Docker::new();
    let arguments: Vec<_> = arguments
        .iter()
        .map(|word| {
            if *word == "weir.tar" {
                "/dev/null"
            } else {
                word
            }
        })
        .collect();
    let output = docker.build(&arguments);
    assert!(
        output.status.success() && docker.calls()[0].starts_with("buildx build"),
        "{}",
        printed(&output)
    );
}

/// Runs one command of a page. `release` is a folder with the files of a release.
fn run(shown: &Shown, release: &Path) {
    let binary = env!("CARGO_BIN_EXE_weir");
    let exists = |path: &str| {
        assert!(
            tools::repository().join(path).exists(),
            "{path} of `{}`",
            shown.command
        );
    };
    let here = |command: &str| shell(tools::repository(), command);
    match shown.command.split_whitespace().collect::<Vec<_>>()[..] {
        // .github/workflows/tests.yaml runs it: a release build takes minutes.
        ["cargo", "install", "--locked", "--path", "."] => {
            assert!(tools::file(".github/workflows/tests.yaml").contains(&shown.command));
        }
        ["weir", ..] => assert_shows(shown, &here(&shown.command.replacen("weir", binary, 1))),
        ["sha256sum" | "tar", ..] => assert_shows(shown, &shell(release, &shown.command)),
        [program, "--version"] if program.starts_with("weir-") => {
            assert_shows(shown, &shell(release, &shown.command));
        }
        ["gh", "attestation", "verify", archive, "--repo", _] => {
            assert!(release.join(archive).is_file(), "{archive}");
        }
        // build_image_sh_builds_for_this_machine_or_for_both_architectures and
        // build_binary_sh_builds_dependencies_and_weir run these scripts.
        ["deploy/build-image.sh", ref arguments @ ..] => assert_builds_an_image(arguments),
        [
            "deploy/build-binary.sh",
            ref options @ ..,
            "amd64" | "arm64",
        ] => {
            let script = tools::file("deploy/build-binary.sh");
            assert!(
                options
                    .iter()
                    .all(|option| script.contains(&format!("#   {option} "))),
                "{options:?} are not explained in the script"
            );
        }
        ["docker", "run", .., image] => assert_eq!(image, IMAGE),
        [
            "docker",
            "compose",
            "-f",
            file,
            "up",
            "--build",
            "--detach",
            "--wait",
        ] => exists(file),
        // The workflow `tests` asks it.
        ["curl", "-i", "localhost:10000/"] => {}
        ["install", "-m", "755", source, _] | ["install", "-D", "-m", "644", "-t", _, source] => {
            assert!(
                release.join(source.trim_end_matches("/*")).exists(),
                "{source}"
            );
        }
        ["install", "-m", "644", source, _] => exists(source),
        ["systemctl", "enable", "--now", "weir"] => exists("deploy/systemd/weir.service"),
        ["tests/run.sh" | "tests/deploy.sh"] => exists(&shown.command),
        // tests/it/deploy/release.rs runs these.
        ["deploy/release.sh", command, ..] => {
            assert!(release::COMMANDS.contains(&command), "{command}");
        }
        ["git", "commit" | "tag" | "push", ..] => {}
        _ => panic!("no test runs `{}`", shown.command),
    }
}

/// What a shell line prints in a folder; it must succeed.
fn shell(folder: &Path, line: &str) -> String {
    let output = Command::new("sh")
        .args(["-c", line])
        .current_dir(folder)
        .output()
        .expect("a shell");
    assert!(output.status.success(), "`{line}`: {}", printed(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn every_command_of_the_pages_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_weir"));
    release::run(
        tools::repository(),
        &[
            "package",
            &binary.to_string_lossy(),
            "amd64",
            &folder.path().to_string_lossy(),
        ],
    );
    release::run(
        tools::repository(),
        &["checksums", &folder.path().to_string_lossy()],
    );
    for page in ["deploy/install.md", "RELEASING.md"] {
        // Commands of a list are indented.
        let text: String = tools::file(page)
            .lines()
            .map(|line| format!("{}\n", line.strip_prefix("   ").unwrap_or(line)))
            .collect();
        let commands = console(&text);
        assert!(commands.len() > 8, "{page}: {}", commands.len());
        for shown in &commands {
            run(shown, folder.path());
        }
    }
}

/// What the page says of the image is what the Dockerfile says.
#[test]
fn the_page_describes_the_image() {
    let page = tools::file("deploy/install.md");
    let user = super::image::user();
    let ports = super::dockerfile::last_stage("EXPOSE");
    let ports: Vec<_> = ports.split(' ').collect();
    assert!(page.contains(&format!(
        "| user | {}, ",
        user.split(':').next().expect("a user")
    )));
    assert!(page.contains(&format!(
        "| ports | {} (HTTP), {} (gRPC) |",
        ports[0], ports[1]
    )));
    assert!(page.contains(&format!(
        "`HEALTHCHECK` runs `{}`",
        super::image::health_check().join(" ")
    )));
}

/// The paths that the support desk's page sets are those that the unit and its addition give.
#[test]
fn the_unit_of_systemd_keeps_what_the_support_desk_writes() {
    let (unit, page) = (
        tools::file("deploy/systemd/weir.service"),
        tools::file("deploy/support-desk.md"),
    );
    let value = |name: &str| {
        page.split(&format!("{name}="))
            .nth(1)
            .expect(name)
            .split(['\\', '\'', ' ', '`', '\n'])
            .next()
            .expect("a value")
    };
    let state = unit
        .lines()
        .find_map(|line| line.strip_prefix("StateDirectory="))
        .expect("a folder to write in");
    assert!(
        page.contains(&format!("OVERRIDES_FILE=/var/lib/{state}/")),
        "what the process may write"
    );
    let (credential, path) = value("LoadCredential")
        .split_once(':')
        .expect("a name and a path");
    assert!(
        page.contains(&format!(
            "ADMIN_TOKEN_FILE=/run/credentials/weir.service/{credential}\\n"
        )),
        "the copy of systemd"
    );
    assert!(
        page.contains(&format!("install -m 600 tokens {path}\n")),
        "where the page puts it"
    );
}

/// The unit starts what the page installs, with a command line that Weir accepts.
#[test]
fn the_unit_of_systemd_starts_weir() {
    let unit = tools::file("deploy/systemd/weir.service");
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="))
        .expect("a command");
    let words: Vec<_> = start.split(' ').collect();
    let (program, arguments) = words.split_first().expect("a program");
    assert!(
        tools::file("deploy/install.md")
            .contains(&format!("/weir {}/\n", program.trim_end_matches("/weir"))),
        "where the page installs it"
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let config = tools::repository().join("config").display().to_string();
    command.args(arguments.iter().map(|word| {
        if *word == "/etc/weir" {
            config.as_str()
        } else {
            word
        }
    }));
    command
        .args([
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--grpc-host",
            "127.0.0.1",
            "--grpc-port",
            "0",
            "--debug-port",
            "0",
        ])
        .env_clear();
    let mut weir = crate::support::Weir::spawn(command, tempfile::tempdir().expect("a folder"));
    assert_eq!(weir.get("/healthcheck").0, 200);
    weir.signal("KILL");
    weir.wait();
    let grace = unit
        .lines()
        .find_map(|line| line.strip_prefix("TimeoutStopSec="))
        .and_then(|value| value.parse::<u32>().ok());
    assert!(
        grace.is_some_and(|seconds| seconds >= 15),
        "DRAIN_DELAY and 10 s for requests in flight"
    );
}
