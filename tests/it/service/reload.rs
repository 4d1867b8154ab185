//! Reloads under load, for every way in which editors and Kubernetes change files: no request
//! fails. `tests/vectors/decisions/reload.txt` has the counts that stay.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::wait::eventually_async;
use crate::support::{Client, Weir, ask, config_map, descriptor, descriptor_with_hits, request};

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
    let response = ask(client, "d", vec![peek]).await;
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

/// A file that a program writes in place all the time.
struct Busy {
    stop: Arc<AtomicBool>,
    writes: JoinHandle<usize>,
}

impl Busy {
    /// Writes the contents of `text`, for numbers from 0 on, with pauses that are shorter than the
    /// rest that a file needs.
    fn start(folder: &Path, name: &str, text: impl Fn(usize) -> String + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, path) = (Arc::clone(&stop), folder.join(name));
        fs::write(&path, text(0)).expect("written");
        let writes = std::thread::spawn(move || {
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                number += 1;
                fs::write(&path, text(number)).expect("written");
                std::thread::sleep(Duration::from_millis(200));
            }
            number
        });
        Self { stop, writes }
    }

    /// Returns the number of writes.
    fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.writes.join().expect("written")
    }
}

/// Limits of a domain of their own; the file grows and shrinks with the number.
fn busy(number: usize) -> String {
    limits(7).replace("domain: d", "domain: busy") + &"# x\n".repeat(1 + number % 3)
}

#[tokio::test]
async fn a_file_that_changes_all_the_time_keeps_no_other_out() {
    let weir = Weir::start(&[("a.yaml", &limits(10)), ("busy.yaml", &busy(0))], &[]);
    let (folder, client) = (weir.config_dir(), &mut weir.client().await);
    let load = BackgroundLoad::start(weir.client().await);
    let writes = Busy::start(folder, "busy.yaml", busy);
    let mut limit = 10;
    for _ in 0..3 {
        limit += 1;
        write_aside(folder, "a.yaml", &limits(limit));
        wait_until_in_force(client, limit).await;
    }
    // Removed, then in a folder, then under links that are swapped.
    fs::remove_file(folder.join("a.yaml")).expect("removed");
    wait_until_in_force(client, 0).await;
    fs::create_dir(folder.join("more")).expect("a folder");
    for limit in [20, 21] {
        write_aside(&folder.join("more"), "b.yaml", &limits(limit));
        wait_until_in_force(client, limit).await;
    }
    fs::remove_dir_all(folder.join("more")).expect("removed");
    for (version, limit) in [("..1", 30), ("..2", 31)] {
        config_map::publish(folder, version, "c.yaml", &limits(limit));
        wait_until_in_force(client, limit).await;
    }
    // The busy file is loaded after 25 writes, and no change waits for that. On a busy machine the 8
    // changes take longer, and then it may be loaded by half: one error each.
    let written = writes.end();
    assert!(written < 8 * 12, "{written} writes during 8 changes");
    load.end().await;
    let errors = weir.metric("ratelimit_service_config_load_error");
    let late = written / 25;
    assert!(
        errors.is_some_and(|errors| errors <= late as f64),
        "{errors:?}"
    );
}

/// Each of the two files is an error without the other one.
#[tokio::test]
async fn files_that_need_each_other_are_loaded_together() {
    let weir = Weir::start(&[("a.yaml", &limits(10))], &[]);
    let (folder, client) = (weir.config_dir(), &mut weir.client().await);
    let with_table = "domain: d\ndescriptors:\n- key: user\n  table: t.csv\n  rate_limit: { unit: \
        year, requests_per_unit: 11 }\n";
    fs::write(folder.join("a.yaml"), with_table).expect("written");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let rows = "value,requests_per_unit\nlooker,12\n";
    fs::write(folder.join("t.csv"), rows).expect("written");
    wait_until_in_force(client, 12).await;
    assert_eq!(
        weir.metric("ratelimit_service_config_load_error"),
        Some(0.0)
    );
    // Rows that are appended all the time.
    let writes = Busy::start(folder, "t.csv", move |number| {
        let more: String = (0..number).map(|row| format!("u{row},1\n")).collect();
        rows.replace("12", "13") + &more
    });
    write_aside(
        folder,
        "b.yaml",
        &limits(1).replace("domain: d", "domain: e"),
    );
    let loads = || weir.metric("weir_config_domains");
    assert!(
        eventually_async(|| (loads() == Some(2.0)).then_some(()))
            .await
            .is_some()
    );
    wait_until_in_force(client, 13).await;
    writes.end();
}
