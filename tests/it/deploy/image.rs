//! The image, without a container: the binary runs as the image's user in the root folder that
//! `deploy/rootfs.sh` makes, with the examples that `deploy/Dockerfile` adds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::dockerfile::last_stage;
use super::{at, items, kubernetes, text};
use crate::support::http_client::post;
use crate::support::wait::eventually;
use crate::support::{RedisServer, Weir, config_map, tools};

fn rootfs(binary: &Path, root: &Path) -> Output {
    Command::new(tools::repository().join("deploy/rootfs.sh"))
        .arg(binary)
        .arg(root)
        .output()
        .expect("rootfs.sh runs")
}

/// The binary in the image.
fn binary() -> PathBuf {
    tools::image_binary().unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_weir")))
}

/// A folder, and in it the files of the image.
pub(super) fn image() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    let output = rootfs(&binary(), &root);
    assert!(output.status.success(), "{output:?}");
    let config = root.join("config");
    fs::create_dir(&config).expect("a folder");
    for entry in fs::read_dir(tools::repository().join("config")).expect("the examples") {
        let file = entry.expect("an entry").path();
        let name = file.file_name().expect("a name");
        fs::copy(&file, config.join(name)).expect("copied");
    }
    (folder, root)
}

/// Runs the image's entry point in `root`.
fn enter(root: &Path) -> Command {
    run_in(root, &entry_point())
}

/// Runs a program in `root` as the image's user, or as the current user where `chroot` is not
/// permitted.
fn run_in(root: &Path, program: &[String]) -> Command {
    let mut command = if is_root() {
        let mut chroot = Command::new("chroot");
        chroot.arg(format!("--userspec={}", user()));
        chroot
    } else {
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "chroot"]);
        unshare
    };
    // PATH is for `chroot` and `unshare`. Free ports replace the exposed ones.
    command
        .arg(root)
        .args(program)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.envs([
        ("HOST", "127.0.0.1"),
        ("PORT", "0"),
        ("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", "0"),
    ]);
    command
}

pub(super) fn entry_point() -> Vec<String> {
    serde_json::from_str(&last_stage("ENTRYPOINT")).expect("a list")
}

/// The user and the group, as `ID:ID`.
pub(super) fn user() -> String {
    last_stage("USER")
}

/// The ports, in ascending order.
pub(super) fn ports() -> Vec<String> {
    let mut ports: Vec<_> = last_stage("EXPOSE").split(' ').map(str::to_owned).collect();
    ports.sort();
    ports
}

/// The command of the health check.
pub(super) fn health_check() -> Vec<String> {
    let check = last_stage("HEALTHCHECK");
    let (_, command) = check.split_once(" CMD ").expect("a command");
    serde_json::from_str(command).expect("a list")
}

pub(super) fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("id runs");
    output.stdout.trim_ascii() == b"0"
}

/// The HTTP status of a request and the amount of the limit that decided it; 0 when no limit
/// matched.
fn limit(weir: &Weir, request: &Value) -> (u16, u64) {
    let response = post(weir.http_addr(), "/json", request.to_string().as_bytes());
    let answer: Value = serde_json::from_str(&response.body)
        .unwrap_or_else(|error| panic!("{error} in {response:?}"));
    (
        response.status,
        answer["statuses"][0]["currentLimit"]["requestsPerUnit"]
            .as_u64()
            .unwrap_or(0),
    )
}

#[test]
fn the_image_serves_its_examples_and_its_health_check_says_so() {
    let (folder, root) = image();
    assert_eq!(last_stage("WORKDIR"), "/", "so that ./config is /config");
    assert!(!root.join("bin/sh").exists(), "no shell");
    let mut command = enter(&root);
    command.env("DRAIN_DELAY", "10s");
    let mut weir = Weir::spawn(command, folder);
    assert_eq!(weir.get("/healthcheck").0, 200);
    let client = json!({"domain": "demo", "descriptors": [{"entries": [{"key": "remote_address", "value": "1.2.3.4"}]}]});
    assert_eq!(
        limit(&weir, &client),
        (200, 20),
        "the examples are in force"
    );

    let check = || {
        let mut check = run_in(&root, &health_check());
        let output = check
            .env("PORT", weir.http_addr().port().to_string())
            .output()
            .expect("it runs");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    assert_eq!(check(), (true, "healthy\n".to_owned()));
    weir.signal("TERM");
    assert!(
        eventually(|| (!check().0).then_some(())).is_some(),
        "unhealthy while it drains"
    );
    weir.signal("KILL");
    assert!(!weir.wait().success());
}

#[test]
fn the_image_has_what_manifests_for_the_reference_start() {
    let (_folder, root) = image();
    let output = run_in(
        &root,
        &["/bin/ratelimit".to_owned(), "--version".to_owned()],
    )
    .output()
    .expect("it runs");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        concat!("weir ", env!("CARGO_PKG_VERSION")),
        "{output:?}"
    );
}

/// Runs the image as the pod would: with the Deployment's settings, a ConfigMap in the layout of
/// Kubernetes, and Redis found by its name.
#[test]
fn the_image_serves_with_the_settings_of_the_deployment_and_reloads() {
    let (folder, root) = image();
    let deployment = kubernetes::manifest("Deployment", "ratelimit");
    let container = at(&deployment, "/spec/template/spec/containers/0");
    let config = root.join(text(container, "/volumeMounts/0/mountPath").trim_start_matches('/'));
    fs::create_dir_all(&config).expect("a folder");
    let limits = tools::file("deploy/kubernetes/limits/ratelimit.yaml");
    let publish = |version: &str, limits: &str| {
        config_map::publish(&config, version, "ratelimit.yaml", limits);
    };
    publish("..2026_01", &limits);

    let redis = RedisServer::start();
    fs::write(root.join("etc/hosts"), "127.0.0.1 ratelimit-redis\n").expect("written");
    let mut command = enter(&root);
    for (name, value) in kubernetes::environment(container) {
        let value = if name == "REDIS_URL" {
            value.replace("6379", &redis.port().to_string())
        } else {
            value.to_owned()
        };
        command.env(name, if name == "DRAIN_DELAY" { "0s" } else { &value });
    }
    command.env("STORE_TIMEOUT", "10s");
    let mut weir = Weir::spawn(command, folder);
    if is_root() {
        assert_eq!(format!("{0}:{0}", user_of(&weir)), user());
    }
    assert_eq!(weir.get("/healthcheck").0, 200);

    let entries =
        json!([{"key": "path", "value": "/login"}, {"key": "remote_address", "value": "1.2.3.4"}]);
    assert_eq!(
        limit(
            &weir,
            &json!({"domain": "ratelimit", "descriptors": [{"entries": entries}]})
        ),
        (200, 5)
    );
    assert!(
        !redis.keys().is_empty(),
        "counted in the Redis of that name"
    );
    publish(
        "..2026_02",
        &limits.replace("requests_per_unit: 5", "requests_per_unit: 50"),
    );
    let look =
        json!({"domain": "ratelimit", "descriptors": [{"entries": entries, "hitsAddend": 0}]});
    assert_eq!(
        eventually(|| Some(limit(&weir, &look)).filter(|limit| limit.1 != 5)),
        Some((200, 50)),
        "reloaded"
    );
    assert!(weir.terminate().success());
}

pub(super) fn user_of(weir: &Weir) -> u32 {
    let status = fs::read_to_string(format!("/proc/{}/status", weir.id())).expect("a process");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .expect("a user");
    line.split_whitespace()
        .next()
        .and_then(|user| user.parse().ok())
        .expect("a number")
}

#[test]
fn the_image_and_the_deployment_agree() {
    let deployment = kubernetes::manifest("Deployment", "ratelimit");
    let pod = at(&deployment, "/spec/template/spec");
    let id = |field| at(pod, "/securityContext")[field].to_string();
    assert_eq!(user(), format!("{}:{}", id("runAsUser"), id("runAsGroup")));
    let named = items(pod, "/containers/0/ports")
        .iter()
        .map(|port| port["containerPort"].to_string());
    let mut named: Vec<_> = named.collect();
    named.sort();
    assert_eq!(ports(), named);
}

/// The entry point and the health check are programs of the image.
#[test]
fn the_programs_that_the_image_names_are_in_it() {
    let (_folder, root) = image();
    for command in [entry_point(), health_check()] {
        let program = root.join(command[0].trim_start_matches('/'));
        assert!(program.is_file(), "{command:?}");
    }
}

#[test]
fn rootfs_sh_names_the_problem() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = rootfs(&folder.path().join("missing"), &folder.path().join("root"));
    assert!(
        !refused.status.success()
            && String::from_utf8_lossy(&refused.stderr).contains("build it first")
    );
    fs::write(folder.path().join("something"), "").expect("written");
    let refused = rootfs(Path::new(env!("CARGO_BIN_EXE_weir")), folder.path());
    assert!(
        !refused.status.success()
            && String::from_utf8_lossy(&refused.stderr).contains("is not empty")
    );
}
