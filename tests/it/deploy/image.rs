//! The image without a container: the binary in the files that `deploy/rootfs.sh` gathers, started
//! as both gateways start it. The workflow `tests` builds the image and runs it in a container.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::support::{Weir, tools};

/// The user of both gateways' manifests.
const USER: &str = "65534";

fn rootfs(binary: &Path, root: &Path) -> Output {
    Command::new(tools::repository().join("deploy/rootfs.sh"))
        .args([binary, root])
        .output()
        .expect("rootfs.sh runs")
}

/// A folder, and in it the files of the image without the examples.
pub(super) fn image() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    let binary = tools::image_binary().unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_weir")));
    let output = rootfs(&binary, &root);
    assert!(output.status.success(), "{output:?}");
    // Runtimes of containers mount these where the image has none. A static binary has its random
    // numbers from /dev/urandom.
    for mounted in ["proc", "dev"] {
        fs::create_dir(root.join(mounted)).expect("a folder");
    }
    (folder, root)
}

pub(super) fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("id runs");
    output.stdout.trim_ascii() == b"0"
}

/// Runs `/bin/ratelimit` in a read-only `root` with `/proc` and `/dev`, as the gateways' user, or
/// as the current user where that is not permitted.
pub(super) fn restricted(root: &Path, arguments: &[&str]) -> Command {
    // The mount is of a namespace of its own and ends with the process.
    let script = "mount --bind \"$0\" \"$0\" && mount --rbind /proc \"$0/proc\" && mount --rbind \
        /dev \"$0/dev\" && mount -o remount,bind,ro \"$0\" && exec chroot \"$@\"";
    let mut command = Command::new("unshare");
    let user = format!("--userspec={USER}:{USER}");
    let (map, user) = if is_root() {
        (None, Some(&user))
    } else {
        (Some("--map-root-user"), None)
    };
    command.args(map).args(["--mount", "sh", "-ec", script]);
    command.arg(root).args(user).arg(root);
    command.arg("/bin/ratelimit").args(arguments);
    // PATH is for `unshare` and `chroot`. Free ports replace those of the image.
    command.env_clear().envs([
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOST", "127.0.0.1"),
        ("PORT", "0"),
        ("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", "0"),
        ("DRAIN_DELAY", "0s"),
    ]);
    command
}

/// Where the process runs as the gateways' user, and has neither a file nor a folder open for
/// writing.
pub(super) fn assert_restricted(weir: &Weir, root: &Path) {
    let process = PathBuf::from(format!("/proc/{}", weir.id()));
    let status = fs::read_to_string(process.join("status")).expect("a process");
    assert!(
        !is_root() || status.contains(&format!("\nUid:\t{USER}\t")),
        "{status}"
    );
    for descriptor in fs::read_dir(process.join("fd")).expect("a process") {
        let target = fs::read_link(descriptor.expect("an entry").path()).unwrap_or_default();
        assert!(!target.starts_with(root), "{} is open", target.display());
    }
}

#[test]
fn it_serves_as_ratelimit_and_writes_nothing() {
    let (folder, root) = image();
    let start = |force: &str| {
        let unknown = ["--quotaRateLimitServiceAddr=a.b:8081", "--token", "hunter2"];
        let mut command = restricted(&root, &unknown);
        command.envs([
            ("RUNTIME_ROOT", "/data"),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("RUNTIME_WATCH_ROOT", "false"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", force),
            ("USE_STATSD", "false"),
        ]);
        command
    };
    let refused = start("false").output().expect("it runs");
    let is_refused = refused.status.code() == Some(1);
    assert!(is_refused, "there is no folder of limits: {refused:?}");

    let mut weir = Weir::spawn(start("true"), folder);
    assert_eq!(weir.get("/healthcheck"), (200, "OK".to_owned()));
    assert_restricted(&weir, &root);
    let log = weir.logs().join("\n");
    let ignored = "started as `ratelimit`, Weir ignores arguments that it does not know: \
        --quotaRateLimitServiceAddr, --token";
    assert!(log.contains(ignored) && !log.contains("hunter2"), "{log}");
    assert!(
        !root.join("data").exists() && !root.join("tmp").exists(),
        "there is no folder that could be written to"
    );
    assert!(weir.terminate().success());
}

#[test]
fn rootfs_sh_gathers_what_weir_reads_and_names_the_problem() {
    let (_folder, root) = image();
    let files = [
        "weir",
        "bin/ratelimit",
        "etc/passwd",
        "etc/group",
        "etc/nsswitch.conf",
    ];
    for file in files {
        assert!(root.join(file).symlink_metadata().is_ok(), "{file}");
    }
    assert!(!root.join("bin/sh").exists(), "no shell");

    let folder = tempfile::tempdir().expect("a folder");
    let binary = Path::new(env!("CARGO_BIN_EXE_weir"));
    let missing = rootfs(&folder.path().join("missing"), &folder.path().join("root"));
    fs::write(folder.path().join("something"), "").expect("written");
    let full = rootfs(binary, folder.path());
    for (refused, says) in [(missing, "build it first"), (full, "is not empty")] {
        let is_named = String::from_utf8_lossy(&refused.stderr).contains(says);
        assert!(!refused.status.success() && is_named, "{refused:?}");
    }
}
