//! Reloads under load, for every way in which editors and Kubernetes change files: no request
//! fails. `tests/vectors/decisions/reload.txt` has the counts that stay.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Client, Weir, config_map, descriptor, descriptor_with_hits, request};

/// Limits of the domain `d`; the amount for `user` shows which version of the file is in force.
fn limits(requests_per_unit: u32) -> String {
    format!(
        "domain: d\ndescriptors:\n- key: user\n  rate_limit: {{ unit: year, requests_per_unit: \
         {requests_per_unit} }}\n"
    )
}

/// The amount that `user` is limited to now; 0 without a limit. It is read by a look, which counts
/// nothing.
async fn limit_in_force(client: &mut Client) -> u32 {
    let peek = descriptor_with_hits(&[("user", "looker")], 0);
    let response = client
        .should_rate_limit(request("d", vec![peek]))
        .await
        .expect("an answer")
        .into_inner();
    response.statuses[0]
        .current_limit
        .as_ref()
        .map_or(0, |limit| limit.requests_per_unit)
}

async fn wait_until_in_force(client: &mut Client, expected: u32) {
    for _ in 0..200 {
        if limit_in_force(client).await == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the limit did not become {expected} within 10 s");
}

/// Sends requests without a pause until it is stopped. Panics on the first error.
struct BackgroundLoad {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl BackgroundLoad {
    fn start(mut client: Client) -> Self {
        let (stop, answers) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&answers));
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                client
                    .should_rate_limit(request("d", vec![descriptor(&[("user", "load")])]))
                    .await
                    .expect("no error during a reload");
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self {
            stop,
            answers,
            task,
        }
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("no error");
        assert!(
            self.answers.load(Ordering::Relaxed) > 100,
            "the load was too small"
        );
    }
}

#[tokio::test]
async fn a_swapped_config_map_is_reloaded() {
    let publish = |folder: &Path, version: &str, limit: u32| {
        config_map::publish(folder, version, "limits.yaml", &limits(limit));
    };
    let weir = Weir::start_in(
        |folder| publish(folder, "..2026_01", 10),
        &[("RUNTIME_IGNOREDOTFILES", "false")],
    );
    let client = &mut weir.client().await;
    let load = BackgroundLoad::start(weir.client().await);
    wait_until_in_force(client, 10).await;
    for (version, limit) in [("..2026_02", 20), ("..2026_03", 30)] {
        publish(weir.config_dir(), version, limit);
        wait_until_in_force(client, limit).await;
    }
    fs::remove_dir_all(weir.config_dir().join("..2026_01")).expect("removed");
    load.end().await;
}

/// A subdirectory of the root, and what writes limits of an amount below a folder.
type Layout = (&'static str, fn(&Path, u32));

/// Layouts that envoyproxy/ratelimit reads with `RUNTIME_WATCH_ROOT`, for the root `current`.
const BESIDE: [Layout; 4] = [
    // The root is a link to a version, which is swapped.
    ("ratelimit", |folder, amount| {
        let version = folder.join(format!("v{amount}"));
        fs::create_dir_all(version.join("ratelimit")).expect("a folder");
        fs::write(version.join("ratelimit/config.yml"), limits(amount)).expect("written");
        symlink(&version, folder.join("new")).expect("a link");
        fs::rename(folder.join("new"), folder.join("current")).expect("swapped");
    }),
    // No subdirectory, with which envoyproxy/ratelimit reads nothing.
    ("", |folder, amount| {
        write_aside(&folder.join("current"), "config.yaml", &limits(amount));
    }),
    ("ratelimit", |folder, amount| {
        let mounted = folder.join("current/ratelimit");
        fs::create_dir_all(&mounted).expect("a folder");
        let version = format!("..{amount}");
        config_map::publish(&mounted, &version, "config.yaml", &limits(amount));
    }),
    ("ratelimit", |folder, amount| {
        let other = limits(7).replace("domain: d", "domain: e");
        write_aside(&folder.join("current/ratelimit/config"), "e.yaml", &other);
        let file = &limits(amount);
        write_aside(&folder.join("current/ratelimit/config.d/x"), "d", file);
    }),
];

/// Writes a file whole: under another name, then renamed.
fn write_aside(folder: &Path, name: &str, text: &str) {
    fs::create_dir_all(folder).expect("a folder");
    fs::write(folder.join(".new"), text).expect("written");
    fs::rename(folder.join(".new"), folder.join(name)).expect("renamed");
}

#[tokio::test]
async fn limits_beside_the_folder_are_read_and_followed() {
    for (subdirectory, write) in BESIDE {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().to_owned();
        write(&root, 10);
        let mut command = Weir::serve();
        command
            .env("RUNTIME_ROOT", root.join("current"))
            .env("RUNTIME_SUBDIRECTORY", subdirectory);
        let weir = Weir::spawn(command, folder);
        let client = &mut weir.client().await;
        assert_eq!(limit_in_force(client).await, 10);
        write(&root, 20);
        wait_until_in_force(client, 20).await;
    }
    // They are those of the folder alone where the root is not watched, as there.
    let folder = tempfile::tempdir().expect("a folder");
    (BESIDE[1].1)(folder.path(), 10);
    let output = Weir::serve()
        .env("RUNTIME_ROOT", folder.path().join("current"))
        .env("RUNTIME_WATCH_ROOT", "false")
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
}

/// The first half of the file is limits too.
#[tokio::test]
async fn a_file_that_is_written_in_two_steps_is_loaded_once() {
    let weir = Weir::start(&[("a.yaml", &limits(10))], &[]);
    let client = &mut weir.client().await;
    let loads = || weir.metric("ratelimit_service_config_load_success");
    let before = loads().expect("a counter");
    let path = weir.config_dir().join("a.yaml");
    fs::write(&path, limits(11)).expect("written");
    tokio::time::sleep(Duration::from_millis(600)).await;
    let more = limits(12).replace("domain: d\ndescriptors:\n- key: user", "- key: other");
    fs::write(&path, limits(12) + &more).expect("written");
    wait_until_in_force(client, 12).await;
    assert_eq!(loads(), Some(before + 1.0));

    // SIGHUP loads what is there, changed or not.
    weir.signal("HUP");
    while loads() == Some(before + 1.0) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(limit_in_force(client).await, 12);
}

/// A process without a free descriptor cannot look at the folder, which is no reason to reject it.
#[tokio::test]
async fn a_lack_of_descriptors_rejects_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.yaml"), limits(10)).expect("written");
    let serve = Weir::serve();
    let mut command = Command::new("sh");
    let script = r#"ulimit -n 64; exec "$@" --config "$CONFIG""#;
    command
        .args(["-c", script, "sh"])
        .arg(serve.get_program())
        .args(serve.get_args())
        .env_clear()
        .env("CONFIG", folder.path());
    let weir = Weir::spawn(command, folder);
    let connect = || TcpStream::connect(weir.http_addr()).expect("connected");
    let connections: Vec<_> = (0..100).map(|_| connect()).collect();
    write_aside(weir.config_dir(), "a.yaml", &limits(11));
    weir.wait_for_log("no file descriptor left").await;
    drop(connections);
    let client = &mut weir.client().await;
    wait_until_in_force(client, 11).await;
    assert!(!weir.logs().concat().contains("limits rejected"));
}
