//! `deploy/kubernetes`: the manifests match the published schemas, and the names by which they refer to each other match.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{at, documents, documents_in, items, text};
use crate::support::{RedisServer, tools};

const FOLDER: &str = "deploy/kubernetes";

/// The manifests that `kustomization.yaml` lists, in that order.
fn manifests() -> Vec<Value> {
    let kustomization = documents("deploy/kubernetes/kustomization.yaml").remove(0);
    let files = items(&kustomization, "/resources").iter();
    files.flat_map(|file| documents(&format!("{FOLDER}/{}", file.as_str().expect("a file's name")))).collect()
}

/// The manifest of this kind and name.
pub(super) fn manifest(kind: &str, name: &str) -> Value {
    let found = manifests().into_iter().find(|manifest| manifest["kind"] == kind && manifest["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// The environment variables of a container: names and values.
pub(super) fn environment(container: &Value) -> Vec<(&str, &str)> {
    items(container, "/env").iter().map(|variable| (text(variable, "/name"), text(variable, "/value"))).collect()
}

fn container(deployment: &Value) -> &Value {
    at(deployment, "/spec/template/spec/containers/0")
}

/// Validates a file against the schemas. Returns whether it is valid, and what the validator printed.
pub(super) fn validate(file: &Path) -> (bool, String) {
    let output = Command::new(tools::kubernetes_validate()).arg("--strict").arg(file).output().expect("kubernetes-validate runs");
    let output_text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&output_text).into_owned())
}

#[test]
fn every_manifest_matches_its_schema() {
    for file in items(&documents("deploy/kubernetes/kustomization.yaml")[0], "/resources") {
        let path = tools::repository().join(FOLDER).join(file.as_str().expect("a file's name"));
        let (is_valid, output_text) = validate(&path);
        assert!(is_valid, "{output_text}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let wrong = folder.path().join("wrong.yaml");
    let service = tools::file("deploy/kubernetes/service.yaml").replace("targetPort: grpc", "targetprot: grpc");
    std::fs::write(&wrong, service).expect("written");
    assert!(!validate(&wrong).0, "the schemas find a misspelled name");
}

#[test]
fn the_kustomization_builds_and_leaves_nothing_out() {
    let kustomization = documents("deploy/kubernetes/kustomization.yaml").remove(0);
    let listed: BTreeSet<_> = items(&kustomization, "/resources").iter().map(|file| file.as_str().expect("a name").to_owned()).collect();
    let files = std::fs::read_dir(tools::repository().join(FOLDER)).expect("the folder").map(|entry| entry.expect("an entry"));
    let names = files.filter(|entry| entry.path().is_file()).map(|entry| entry.file_name().to_string_lossy().into_owned());
    assert_eq!(listed, names.filter(|name| name != "kustomization.yaml").collect::<BTreeSet<_>>());

    let Some(kustomize) = tools::kustomize() else { return };
    let output = Command::new(kustomize).arg("build").arg(tools::repository().join(FOLDER)).output().expect("kustomize runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let folder = tempfile::tempdir().expect("a folder");
    let built = folder.path().join("built.yaml");
    std::fs::write(&built, &output.stdout).expect("written");
    let (is_valid, output_text) = validate(&built);
    assert!(is_valid, "{output_text}");
    let built = documents_in(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(built.len(), manifests().len() + 1, "and the ConfigMap");
    let config = built.iter().find(|manifest| manifest["kind"] == "ConfigMap").expect("a ConfigMap");
    assert_eq!(config["metadata"]["name"], mounted_config()["configMap"]["name"], "without a suffix, so that it changes in place");
    assert_eq!(config["data"]["ratelimit.yaml"], tools::file("deploy/kubernetes/limits/ratelimit.yaml"));
}

#[test]
fn the_overlay_of_the_readme_replaces_image_and_redis() {
    let Some(kustomize) = tools::kustomize() else { return };
    let readme = tools::file("deploy/README.md");
    let overlay = readme.split("```yaml\n").find(|block| block.starts_with("resources: ")).expect("an overlay");
    let (overlay, _) = overlay.split_once("```").expect("its end");
    let folder = tempfile::tempdir().expect("a folder");
    let write = |file: &str, text: &str| {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("written");
    };
    write("overlay/kustomization.yaml", overlay);
    let base = documents("deploy/kubernetes/kustomization.yaml").remove(0);
    let resources = items(&base, "/resources").iter().map(|file| file.as_str().expect("a name"));
    for file in resources.chain(["kustomization.yaml", "limits/ratelimit.yaml"]) {
        write(&format!("kubernetes/{file}"), &tools::file(&format!("deploy/kubernetes/{file}")));
    }
    let output = Command::new(kustomize).arg("build").arg(folder.path().join("overlay")).output().expect("kustomize runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let built = documents_in(&String::from_utf8_lossy(&output.stdout));
    assert!(built.iter().all(|manifest| manifest["metadata"]["name"] != "ratelimit-redis"), "its own Redis is left out");
    let weir = built.iter().find(|manifest| manifest["kind"] == "Deployment").expect("Weir");
    assert_eq!((&weir["metadata"]["namespace"], &weir["spec"]["replicas"]), (&json!("edge"), &json!(3)));
    assert_eq!(at(container(weir), "/image"), "registry.example/weir:0.1.0");
    let url = environment(container(weir)).into_iter().find(|(name, _)| *name == "REDIS_URL").expect("a Redis").1;
    assert_eq!(url, "redis.example:6379");
}

/// The volume of limits.
fn mounted_config() -> Value {
    at(&manifest("Deployment", "ratelimit"), "/spec/template/spec/volumes/0").clone()
}

#[test]
fn selectors_and_ports_refer_to_existing_names() {
    let [weir, redis] = ["ratelimit", "ratelimit-redis"].map(|name| (manifest("Deployment", name), manifest("Service", name)));
    for (deployment, service) in [&weir, &redis] {
        let labels = at(deployment, "/spec/template/metadata/labels");
        assert_eq!(at(deployment, "/spec/selector/matchLabels"), labels);
        assert_eq!(at(service, "/spec/selector"), labels);
        let named: Vec<_> = items(container(deployment), "/ports").iter().map(|port| (&port["name"], &port["containerPort"])).collect();
        for port in items(service, "/spec/ports") {
            assert!(named.contains(&(&port["targetPort"], &port["port"])), "{port} is none of {named:?}");
        }
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"].iter().filter_map(|probe| container(deployment).get(probe)) {
            let asks = ["httpGet", "grpc", "tcpSocket"].iter().find_map(|kind| probe.get(kind)).expect("a kind of probe");
            assert!(named.iter().any(|(name, number)| [*name, *number].contains(&&asks["port"])), "{probe} uses none of {named:?}");
        }
    }
    let (weir, redis) = (weir.0, redis.0);
    assert_eq!(at(&manifest("PodDisruptionBudget", "ratelimit"), "/spec/selector/matchLabels"), at(&weir, "/spec/selector/matchLabels"));
    let spread = at(&weir, "/spec/template/spec/topologySpreadConstraints/0/labelSelector/matchLabels");
    assert_eq!(spread, at(&weir, "/spec/selector/matchLabels"));

    let policy = manifest("NetworkPolicy", "ratelimit-redis");
    assert_eq!(at(&policy, "/spec/podSelector/matchLabels"), at(&redis, "/spec/selector/matchLabels"));
    assert_eq!(at(&policy, "/spec/ingress/0/from/0/podSelector/matchLabels"), at(&weir, "/spec/selector/matchLabels"));
    assert_eq!(at(&policy, "/spec/ingress/0/ports/0/port"), at(container(&redis), "/ports/0/name"));

    let url = environment(container(&weir)).into_iter().find(|(name, _)| *name == "REDIS_URL").expect("a Redis").1;
    assert_eq!(url, "ratelimit-redis:6379", "the Service of Redis");
    assert_eq!(at(container(&weir), "/image"), &json!(concat!("weir:", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn limits_are_mounted_where_weir_reads_them_and_can_change() {
    let weir = manifest("Deployment", "ratelimit");
    let mount = at(container(&weir), "/volumeMounts/0");
    let settings = environment(container(&weir));
    let value = |name| settings.iter().find(|setting| setting.0 == name).unwrap_or_else(|| panic!("{name} is not set")).1;
    let read = ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"].map(value).join("/");
    assert_eq!(text(mount, "/mountPath"), read);
    assert_eq!(mount["name"], mounted_config()["name"]);
    assert!(mount.get("subPath").is_none(), "a subPath never changes");
    for variable in ["HOST", "PORT", "GRPC_HOST", "GRPC_PORT"] {
        assert!(!settings.iter().any(|setting| setting.0 == variable), "{variable} would have to agree with ports and probes");
    }
    let mut check = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = check.args(["check", "--strict"]).arg(tools::repository().join(FOLDER).join("limits")).output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn every_setting_is_one_that_weir_knows() {
    let help = Command::new(env!("CARGO_BIN_EXE_weir")).args(["serve", "--help"]).env_clear().output().expect("the binary runs");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let weir = manifest("Deployment", "ratelimit");
    let compose = documents("deploy/compose.yaml").remove(0);
    let in_compose = at(&compose, "/services/weir/environment").as_object().expect("names and values").keys();
    for name in environment(container(&weir)).iter().map(|setting| setting.0).chain(in_compose.map(String::as_str)) {
        assert!(["=", "]"].iter().any(|end| help.contains(&format!("[env: {name}{end}"))), "{name} is not in `weir serve --help`");
    }
}

#[test]
fn pods_have_the_strictest_security_context() {
    for name in ["ratelimit", "ratelimit-redis"] {
        let deployment = manifest("Deployment", name);
        let pod = at(&deployment, "/spec/template/spec");
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let limits = at(container(&deployment), "/resources/limits");
        assert!(limits.get("memory").is_some() && limits.get("cpu").is_none(), "{limits}");
        let expected = json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}});
        assert_eq!(at(container(&deployment), "/securityContext"), &expected);
    }
}

#[test]
fn redis_accepts_its_arguments() {
    let deployment = manifest("Deployment", "ratelimit-redis");
    let arguments: Vec<_> = items(container(&deployment), "/args").iter().map(|argument| argument.as_str().expect("text")).collect();
    let redis = RedisServer::start_with(&arguments);
    for (setting, expected) in [("save", ""), ("appendonly", "no"), ("maxmemory", "209715200"), ("maxmemory-policy", "volatile-ttl")] {
        assert_eq!(redis.run::<Vec<String>>(&["CONFIG", "GET", setting]), [setting, expected]);
    }
    let compose = documents("deploy/compose.yaml").remove(0);
    let in_compose: Vec<_> = items(&compose, "/services/redis/command").iter().filter_map(Value::as_str).skip(1).collect();
    assert_eq!(in_compose, arguments);
}
