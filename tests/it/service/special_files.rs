//! Pipes, sockets, devices and folders instead of files that Weir reads: no start and no change
//! waits for them. Commands read pipes.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::support::certificates::{Authority, Files};
use crate::support::wait::eventually_within;
use crate::support::{DEMO, Weir};

/// The end of a command that does not hang.
const END: std::time::Duration = std::time::Duration::from_secs(20);

/// Makes a named pipe that nothing writes to.
pub fn pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.is_ok_and(|status| status.success()), "no pipe");
}

/// A folder with one of each kind, and how messages name it.
fn special() -> (TempDir, Vec<(PathBuf, &'static str)>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    pipe(&path("pipe"));
    drop(UnixListener::bind(path("socket")).expect("a socket"));
    std::fs::create_dir(path("folder")).expect("a folder");
    let all = vec![
        (path("pipe"), "it is a pipe"),
        (path("socket"), "it is a socket"),
        (path("folder"), "it is a folder"),
        ("/dev/zero".into(), "it is a device"),
    ];
    (folder, all)
}

/// The output of a command that has to end.
fn ended(mut command: Command) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = child.stderr(Stdio::piped()).spawn().expect("it runs");
    let ended = eventually_within(END, || child.try_wait().expect("a child"));
    if ended.is_none() {
        child.kill().expect("killed");
    }
    let output = child.wait_with_output().expect("a child");
    assert!(ended.is_some(), "it hangs: {command:?}");
    output
}

/// Settings of files without which Weir does not start, and what they need.
const NEEDED: [(&str, &[(&str, &str)]); 8] = [
    (
        "GRPC_SERVER_TLS_CERT",
        &[
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_KEY", "tls.key"),
        ],
    ),
    (
        "GRPC_SERVER_TLS_KEY",
        &[
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", "tls.crt"),
        ],
    ),
    (
        "GRPC_CLIENT_TLS_CACERT",
        &[
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", "tls.crt"),
            ("GRPC_SERVER_TLS_KEY", "tls.key"),
        ],
    ),
    (
        "LOG_SUBJECTS_SECRET_FILE",
        &[("LOG_SUBJECTS", "hashed"), ("LOG_REFUSALS", "1")],
    ),
    ("ADMIN_TOKEN_FILE", &[]),
    (
        "REDIS_AUTH_FILE",
        &[("BACKEND_TYPE", "redis"), ("REDIS_URL", "127.0.0.1:1")],
    ),
    (
        "REDIS_TLS_CACERT",
        &[
            ("BACKEND_TYPE", "redis"),
            ("REDIS_URL", "127.0.0.1:1"),
            ("REDIS_TLS", "true"),
        ],
    ),
    (
        "CONFIG_GRPC_XDS_OVERLAY_FILE",
        &[
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", "127.0.0.1:1"),
        ],
    ),
];

#[test]
fn a_start_names_a_special_file_and_does_not_wait_for_it() {
    let (folder, special) = special();
    let files = Files::new();
    files.write_issued("tls", &Authority::new("first").issue(&["localhost"]));
    std::fs::write(folder.path().join("limits.yaml"), DEMO[0].1).expect("written");
    for (setting, more) in NEEDED {
        for (path, kind) in &special {
            let mut command = Weir::serve();
            command
                .arg("--config")
                .arg(folder.path().join("limits.yaml"));
            for (name, value) in more {
                let is_file = value.starts_with("tls.");
                command.env(
                    name,
                    if is_file {
                        files.text(value)
                    } else {
                        (*value).to_owned()
                    },
                );
            }
            let output = ended({
                command.env(setting, path);
                command
            });
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            let is_named = error.contains(path.to_str().expect("UTF-8"));
            // An overlay may be no folder, for a reason of its own.
            let says = error.contains(kind) || error.contains("folder");
            assert!(!output.status.success(), "{setting}: {error}");
            assert!(is_named && says, "{setting} {kind}: {error}");
        }
    }
}

/// Each line reads a pipe, and ends well.
const PIPED: [&str; 6] = [
    "weir check <(cat limits.yaml)",
    "cat limits.yaml | weir check /dev/stdin",
    "weir check limits.yaml --diff <(cat limits.yaml)",
    "echo '{\"domain\": \"demo\", \"descriptors\": [{\"entries\": [{\"key\": \"year\", \
     \"value\": \"x\"}]}]}' | weir explain --config limits.yaml --json /dev/stdin",
    "weir replay --config limits.yaml <(echo '{\"time\": 1, \"domain\": \"demo\", \"descriptors\": \
     [{\"entries\": [{\"key\": \"year\", \"value\": \"x\"}]}]}')",
    "weir hit --tls --cacert <(cat ca.pem) --address 127.0.0.1:1 -d demo a=b; test $? = 1",
];

#[test]
fn commands_read_pipes() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("written");
    };
    write("limits.yaml", DEMO[0].1);
    write("ca.pem", &Authority::new("first").pem());
    let binary = Path::new(env!("CARGO_BIN_EXE_weir"))
        .parent()
        .expect("a folder");
    let path = format!("{}:{}", binary.display(), env!("PATH"));
    for line in PIPED {
        let mut command = Command::new("bash");
        command.args(["-c", line]).env_clear().env("PATH", &path);
        command.current_dir(folder.path());
        let output = ended(command);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {error}");
        assert!(!error.contains("cannot be read"), "{line}: {error}");
    }
}

#[tokio::test]
async fn a_pipe_in_the_folder_is_no_file_of_limits() {
    let fill = |folder: &Path| {
        std::fs::write(folder.join("limits.yaml"), DEMO[0].1).expect("written");
        pipe(&folder.join("pipe.yaml"));
    };
    let weir = Weir::start_in(fill, &[]);
    assert!(
        weir.wait_for_log("skipping files")
            .await
            .contains("pipe.yaml")
    );
    // The last limits never become a pipe.
    std::fs::remove_file(weir.config_dir().join("pipe.yaml")).expect("removed");
    pipe(&weir.config_dir().join(".pipe"));
    let limits = weir.config_dir().join("limits.yaml");
    std::fs::rename(weir.config_dir().join(".pipe"), &limits).expect("renamed");
    weir.wait_for_log("there are no files of limits").await;
    assert_eq!(weir.metric("weir_config_limits"), Some(1.0));
}
