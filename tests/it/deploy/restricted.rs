//! The image as Envoy Gateway and Envoy AI Gateway start it: as `/bin/ratelimit`, by user 65534, in
//! a root that nothing can write to, without a folder of limits, a home or a temporary folder.

use std::path::Path;
use std::process::Command;

use super::image::{image, is_root, user_of};
use crate::support::Weir;

/// The user of both gateways' manifests.
pub(super) const USER: u32 = 65534;

/// Runs `/bin/ratelimit` with these arguments in a read-only `root` with `/proc`, as the gateways'
/// user, or as the current user where that is not permitted.
pub(super) fn restricted(root: &Path, arguments: &[&str]) -> Command {
    // The mount is of a namespace of its own, so that it ends with the process.
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$0\" \"$0\" && mount --rbind /proc \"$0/proc\" && mount -o \
        remount,bind,ro \"$0\" && exec chroot \"$@\"";
    // Runtimes of containers mount it where the image has none.
    std::fs::create_dir(root.join("proc")).expect("a folder");
    if !is_root() {
        command.arg("--map-root-user");
    }
    command.args(["--mount", "sh", "-ec", script]).arg(root);
    if is_root() {
        command.arg(format!("--userspec={USER}:{USER}"));
    }
    command.arg(root).arg("/bin/ratelimit").args(arguments);
    // PATH is for `unshare` and `chroot`. Free ports replace those of the image.
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.envs([
        ("HOST", "127.0.0.1"),
        ("PORT", "0"),
        ("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", "0"),
        ("DRAIN_DELAY", "0s"),
    ]);
    command
}

#[test]
fn it_serves_as_ratelimit_and_writes_nothing() {
    let (folder, root) = image();
    let mut command = restricted(
        &root,
        &["--quotaRateLimitServiceAddr=a.b:8081", "--token", "hunter2"],
    );
    command.envs([
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_WATCH_ROOT", "false"),
    ]);
    command.envs([
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("USE_STATSD", "false"),
    ]);
    let mut weir = Weir::spawn(command, folder);
    assert_eq!(weir.get("/healthcheck"), (200, "OK".to_owned()));
    if is_root() {
        assert_eq!(user_of(&weir), USER);
    }
    let log = weir.logs().join("\n");
    let ignored = "started as `ratelimit`, Weir ignores arguments that it does not know: \
        --quotaRateLimitServiceAddr, --token";
    assert!(log.contains(ignored) && !log.contains("hunter2"), "{log}");
    assert!(
        !root.join("data").exists() && !root.join("tmp").exists(),
        "there is no folder that could be written to"
    );
    // What is open for writing is neither a file nor a folder.
    for descriptor in std::fs::read_dir(format!("/proc/{}/fd", weir.id())).expect("a process") {
        let target = std::fs::read_link(descriptor.expect("an entry").path()).unwrap_or_default();
        assert!(!target.starts_with(&root), "{} is open", target.display());
    }
    assert!(weir.terminate().success());
}

#[test]
fn under_its_own_name_it_is_strict() {
    let (_folder, root) = image();
    let mut command = restricted(&root, &["--no-such-flag"]);
    command.envs([
        ("RUNTIME_ROOT", "/missing"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ]);
    let output = command.output().expect("it runs");
    assert_ne!(
        output.status.code(),
        Some(2),
        "as ratelimit it reads its limits, which are missing: {output:?}"
    );
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .arg("--no-such-flag")
        .env_clear()
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2));
}
