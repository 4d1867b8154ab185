//! The Sentinels and the cluster of the overlays of `deploy/kubernetes`, run without containers:
//! the commands, scripts and files of the manifests, on addresses of the loopback interface that
//! have the names of the pods. A pod that restarts gets another address, as in Kubernetes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use ::weir::core::proto::rate_limit_response::Code;
use serde_json::Value;
use tempfile::TempDir;

use super::image::is_root;
use super::{at, documents, environment, items, printed, text};
use crate::support::wait::{eventually, eventually_async};
use crate::support::{Client, Weir, descriptor, request, tools, weir};

/// A limit per year, so that no window ends while a test runs.
const LIMITS: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 20 }
";

fn overlay_folder(overlay: &str) -> String {
    format!("deploy/kubernetes/overlays/{overlay}")
}

/// A command in a mount namespace of its own.
pub fn isolated() -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        command.arg("--map-root-user");
    }
    command.arg("--mount");
    command
}

/// The pods of a StatefulSet.
struct Pods {
    folder: TempDir,
    overlay: &'static str,
    set: Value,
    /// How often each pod got another address.
    moved: Vec<u64>,
    started: usize,
    /// By pod and container.
    containers: BTreeMap<(u64, String), Child>,
}

impl Pods {
    fn new(overlay: &'static str) -> Self {
        let set = documents(&format!("{}/redis.yaml", overlay_folder(overlay))).remove(0);
        assert_eq!(set["kind"], "StatefulSet");
        let folder = tempfile::tempdir().expect("a folder");
        let mut pods = Self {
            folder,
            overlay,
            set,
            moved: Vec::new(),
            started: 0,
            containers: BTreeMap::new(),
        };
        pods.moved = vec![0; pods.count() as usize];
        pods.name_addresses();
        pods
    }

    fn count(&self) -> u64 {
        at(&self.set, "/spec/replicas").as_u64().expect("a number")
    }

    /// An address of its own for each pod of each test of each run.
    fn address(&self, pod: u64) -> String {
        let test = u32::from(self.overlay == "redis-cluster");
        let run = (std::process::id() * 2 + test) % (60 * 250);
        format!(
            "127.{}.{}.{}",
            64 + run / 250,
            1 + run % 250,
            pod + 1 + self.moved[pod as usize] * 20
        )
    }

    fn hosts(&self) -> PathBuf {
        self.folder.path().join("hosts")
    }

    /// Gives each pod the name that the headless Service gives it.
    fn name_addresses(&self) {
        let service = text(&self.set, "/spec/serviceName");
        let name = |pod: u64| {
            format!(
                "{} {}-{pod}.{service}\n",
                self.address(pod),
                text(&self.set, "/metadata/name")
            )
        };
        std::fs::write(
            self.hosts(),
            (0..self.count()).map(name).collect::<String>(),
        )
        .expect("written");
    }

    /// A command with the files and names that a container has; `data` names the folder that is its
    /// /data.
    fn command(&mut self, data: &str, container: &Value) -> Command {
        self.started += 1;
        let root = self.folder.path().join(format!("root-{}", self.started));
        let data = self.folder.path().join(data);
        for folder in [&root, &data] {
            std::fs::create_dir_all(folder).expect("a folder");
        }
        let script = tools::repository().join("tests/it/deploy/stores/pod.sh");
        let config = tools::repository()
            .join(overlay_folder(self.overlay))
            .join("config");
        let mut command = isolated();
        command
            .arg("sh")
            .arg(script)
            .arg(root)
            .arg(self.hosts())
            .arg(config)
            .arg(data);
        command.args(
            items(container, "/command")
                .iter()
                .map(|word| word.as_str().expect("text")),
        );
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Starts all containers of a pod, and waits until their ports are open.
    fn start(&mut self, pod: u64) {
        for container in items(&self.set, "/spec/template/spec/containers").to_vec() {
            let name = text(&container, "/name").to_owned();
            let data = items(&container, "/volumeMounts")
                .iter()
                .find(|mount| mount["mountPath"] == "/data")
                .expect("/data");
            let mut command = self.command(&format!("{pod}-{}", text(data, "/name")), &container);
            for variable in items(&container, "/env") {
                let value = match text(variable, "/valueFrom/fieldRef/fieldPath") {
                    "metadata.name" => format!("{}-{pod}", text(&self.set, "/metadata/name")),
                    "status.podIP" => self.address(pod),
                    other => panic!("{other} is not known here"),
                };
                command.env(text(variable, "/name"), value);
            }
            self.containers
                .insert((pod, name.clone()), command.spawn().expect("unshare runs"));
            let port = at(&container, "/ports/0/containerPort").to_string();
            let answers =
                eventually(|| (self.run(pod, &port, "PING").trim() == "PONG").then_some(()));
            assert!(answers.is_some(), "{name} of pod {pod} does not answer");
        }
    }

    /// The output of redis-cli.
    fn run(&self, pod: u64, port: &str, command: &str) -> String {
        let mut cli = Command::new("redis-cli");
        let output = cli
            .args(["-h", &self.address(pod), "-p", port])
            .args(command.split(' '))
            .output()
            .expect("redis-cli runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The number of counters in the Redis of a pod.
    fn counters(&self, pod: u64) -> usize {
        self.run(pod, "6379", "KEYS *user=*")
            .lines()
            .filter(|line| !line.trim().is_empty())
            .count()
    }

    /// Kills the containers of a pod.
    fn kill(&mut self, pod: u64) {
        self.containers.retain(|(number, _), child| {
            if *number == pod {
                let _ = child.kill();
                let _ = child.wait();
            }
            *number != pod
        });
    }

    /// Forgets what a pod has in volumes that end with it.
    fn forget(&self, pod: u64) {
        for volume in items(&self.set, "/spec/template/spec/volumes")
            .iter()
            .filter(|volume| volume.get("emptyDir").is_some())
        {
            let _ = std::fs::remove_dir_all(
                self.folder
                    .path()
                    .join(format!("{pod}-{}", text(volume, "/name"))),
            );
        }
    }

    /// Gives a pod that does not run another address.
    fn move_pod(&mut self, pod: u64) {
        self.moved[pod as usize] += 1;
        self.name_addresses();
    }

    /// A Weir with the store's variables of the overlay, which finds the pods by their names.
    fn weir(&self) -> Weir {
        let limits = tempfile::tempdir().expect("a folder");
        std::fs::write(limits.path().join("limits.yaml"), LIMITS).expect("written");
        let mut command = isolated();
        command
            .args(["sh", "-ec", "mount --bind \"$0\" /etc/hosts; exec \"$@\""])
            .arg(self.hosts())
            .arg(env!("CARGO_BIN_EXE_weir"));
        command.args(weir::ARGUMENTS).arg("--config");
        command
            .arg(limits.path())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("STORE_TIMEOUT", "2s");
        let patch = documents(&format!("{}/store.yaml", overlay_folder(self.overlay))).remove(0);
        command.envs(environment(at(&patch, "/spec/template/spec/containers/0")));
        Weir::spawn(command, limits)
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        for pod in 0..self.count() {
            self.kill(pod);
        }
    }
}

/// Asks for one hit. Returns what remains; `None` without an answer of Redis.
async fn call(client: &mut Client, user: &str) -> Option<u32> {
    let answer = client
        .should_rate_limit(request("shop", vec![descriptor(&[("user", user)])]))
        .await
        .ok()?
        .into_inner();
    assert_eq!(answer.overall_code(), Code::Ok);
    Some(answer.statuses[0].limit_remaining)
}

/// Asks until there is an answer.
async fn ask_until_answered(client: &mut Client, user: &str) -> u32 {
    let began = std::time::Instant::now();
    loop {
        match call(client, user).await {
            Some(remaining) => return remaining,
            None => assert!(
                began.elapsed().as_secs() < 40,
                "no answer about {user} after {:?}",
                began.elapsed()
            ),
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

/// Waits until a condition holds.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let holds = eventually_async(|| condition().then_some(())).await;
    assert!(holds.is_some(), "not in time: {what}");
}

/// A Sentinel is asked; the others agree in the end.
async fn wait_for_primary(pods: &Pods, asked: u64, is_right: impl Fn(&str) -> bool) -> String {
    let primary = || {
        let reply = pods.run(asked, "26379", "SENTINEL GET-MASTER-ADDR-BY-NAME ratelimit");
        let name = reply.lines().next().map(str::to_owned);
        name.filter(|name| is_right(name))
    };
    eventually_async(primary).await.expect("a primary")
}

#[tokio::test]
async fn sentinels_replace_a_primary_and_it_comes_back_as_a_replica() {
    let mut pods = Pods::new("redis-sentinel");
    for pod in 0..pods.count() {
        pods.start(pod);
    }
    let first = "ratelimit-redis-0.ratelimit-redis";
    assert_eq!(wait_for_primary(&pods, 2, |_| true).await, first);
    let replicas = || pods.run(0, "6379", "INFO replication");
    until("two replicas", || {
        replicas().matches("state=online").count() == 2
    })
    .await;
    // They look every ten seconds; a failover before that would not know the second replica.
    let knows_all = |pod| {
        let known = pods.run(pod, "26379", "SENTINEL MASTER ratelimit");
        known.contains("num-other-sentinels\n2\n") && known.contains("num-slaves\n2\n")
    };
    until("three Sentinels that know two replicas", || {
        (0..3).all(knows_all)
    })
    .await;
    let weir = pods.weir();
    let client = &mut weir.client().await;
    assert_eq!(ask_until_answered(client, "a").await, 19);
    assert_eq!(call(client, "a").await, Some(18));
    until("replicated", || pods.counters(1) == 1).await;

    pods.kill(0);
    let second = wait_for_primary(&pods, 2, |name| name != first).await;
    let is_name = second.ends_with(".ratelimit-redis");
    assert!(
        is_name,
        "{second}: an address would not be that of the pod after a restart"
    );
    // Requests whose answers were lost may have counted.
    let remaining = ask_until_answered(client, "a").await;
    assert!(
        (10..18).contains(&remaining),
        "the counts were replicated: {remaining}"
    );

    // It comes back empty, and with another address.
    pods.forget(0);
    pods.move_pod(0);
    pods.start(0);
    let expected = format!("slave\n{second}\n6379\nconnected");
    until("a replica of the second", || {
        pods.run(0, "6379", "ROLE").starts_with(&expected)
    })
    .await;
    assert_eq!(wait_for_primary(&pods, 0, |_| true).await, second);
    assert_eq!(call(client, "a").await, Some(remaining - 1));
}

#[tokio::test]
async fn a_cluster_is_created_once_survives_a_primary_and_a_restart_with_other_addresses() {
    const USERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let mut pods = Pods::new("redis-cluster");
    for pod in 0..pods.count() {
        pods.start(pod);
    }
    let job = documents(&format!("{}/create.yaml", overlay_folder("redis-cluster"))).remove(0);
    for expected in ["All 16384 slots covered", "the cluster exists"] {
        let mut create = pods.command("create", at(&job, "/spec/template/spec/containers/0"));
        let output = create.stdout(Stdio::piped()).output().expect("it runs");
        let is_created = output.status.success() && printed(&output).contains(expected);
        assert!(is_created, "{}", printed(&output));
    }
    wait_for_cluster(&pods).await;
    let nodes = || pods.run(5, "6379", "CLUSTER NODES").replace("myself,", "");
    until("three replicas", || nodes().matches(" slave ").count() == 3).await;
    let weir = pods.weir();
    let client = &mut weir.client().await;
    for user in USERS {
        assert_eq!(ask_until_answered(client, user).await, 19);
    }
    let counters = |of: std::ops::Range<u64>| of.map(|pod| pods.counters(pod)).collect::<Vec<_>>();
    assert!(!counters(0..3).contains(&0), "each primary has counters");
    until("replicated", || {
        counters(3..6).iter().sum::<usize>() == USERS.len()
    })
    .await;

    pods.kill(0);
    for user in USERS {
        let remaining = ask_until_answered(client, user).await;
        assert!(
            remaining < 19,
            "the count of {user} was replicated: {remaining}"
        );
    }

    // All at once, with other addresses: each node knows only where the others were.
    for pod in 0..pods.count() {
        pods.kill(pod);
        pods.move_pod(pod);
    }
    for pod in 0..pods.count() {
        pods.start(pod);
    }
    wait_for_cluster(&pods).await;
    for user in USERS {
        ask_until_answered(client, user).await;
    }
}

/// Waits until each node is connected to all others at their addresses, and is ready by the probe
/// of the manifest.
async fn wait_for_cluster(pods: &Pods) {
    let probe = "/spec/template/spec/containers/0/readinessProbe/exec/command";
    let probe: Vec<_> = items(&pods.set, probe)
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let is_ready = |pod: u64| {
        let nodes = pods.run(pod, "6379", "CLUSTER NODES");
        let sees = |other: u64| {
            let address = format!("{}:6379@", pods.address(other));
            nodes
                .lines()
                .any(|line| line.contains(&address) && line.contains(" connected"))
        };
        let mut command = Command::new(probe[0]);
        command.args(&probe[1..]).env("POD_IP", pods.address(pod));
        (0..pods.count()).all(sees) && command.status().is_ok_and(|status| status.success())
    };
    until("a cluster", || (0..pods.count()).all(is_ready)).await;
}
