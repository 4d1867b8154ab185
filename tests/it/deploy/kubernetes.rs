//! `deploy/kubernetes`: base, components and overlays match the published schemas, and the names by
//! which they refer to each other match. `overlays` has what is checked in each of them, `stores`
//! runs their Redis.

mod overlays;
mod stores;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{at, documents, documents_in, items, text};
use crate::support::{RedisServer, tools};

const FOLDER: &str = "deploy/kubernetes";
const OVERLAYS: [&str; 6] = [
    "memory",
    "redis",
    "redis-sentinel",
    "redis-cluster",
    "tls",
    "monitoring",
];

/// Folders with a kustomization that is part of overlays.
const PARTS: [&str; 4] = [
    "deploy/kubernetes/base",
    "deploy/kubernetes/components/tls",
    "deploy/kubernetes/components/support-desk",
    "deploy/monitoring",
];

/// Kinds of other projects, of which kubernetes-validate has no schema: their API version, and
/// fields that they must have.
const CUSTOM: [(&str, &str, &[&str]); 4] = [
    (
        "Certificate",
        "cert-manager.io/v1",
        &["/spec/secretName", "/spec/issuerRef/name"],
    ),
    ("Issuer", "cert-manager.io/v1", &["/spec"]),
    (
        "PodMonitor",
        "monitoring.coreos.com/v1",
        &[
            "/spec/selector/matchLabels",
            "/spec/podMetricsEndpoints/0/port",
        ],
    ),
    (
        "PrometheusRule",
        "monitoring.coreos.com/v1",
        &["/spec/groups/0/name", "/spec/groups/0/rules/0/expr"],
    ),
];

/// The files of a list of a kustomization, such as `/resources`.
fn listed(folder: &str, list: &str) -> Vec<String> {
    let kustomization = documents(&format!("{folder}/kustomization.yaml")).remove(0);
    let entries = kustomization
        .pointer(list)
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let name = |entry: &Value| {
        entry
            .as_str()
            .or_else(|| entry["path"].as_str())
            .map(str::to_owned)
    };
    entries
        .iter()
        .filter_map(name)
        .filter(|name| tools::repository().join(folder).join(name).is_file())
        .collect()
}

fn overlay_folder(overlay: &str) -> String {
    format!("{FOLDER}/overlays/{overlay}")
}

/// The manifests of `kubectl apply -k deploy/kubernetes`, without kustomize: files of the base and
/// of the overlay redis, whose only patch adds variables.
fn manifests() -> Vec<Value> {
    let redis = overlay_folder("redis");
    let files = [PARTS[0], &redis].map(|folder| {
        listed(folder, "/resources")
            .into_iter()
            .map(move |file| format!("{folder}/{file}"))
    });
    let mut manifests: Vec<_> = files
        .into_iter()
        .flatten()
        .flat_map(|file| documents(&file))
        .collect();
    for patch in listed(&redis, "/patches")
        .iter()
        .flat_map(|file| documents(&format!("{redis}/{file}")))
    {
        let is_patched = |manifest: &&mut Value| {
            manifest["kind"] == patch["kind"]
                && manifest["metadata"]["name"] == patch["metadata"]["name"]
        };
        let patched = manifests
            .iter_mut()
            .find(is_patched)
            .expect("what the patch names");
        let added = items(container(&patch), "/env").to_vec();
        patched
            .pointer_mut("/spec/template/spec/containers/0/env")
            .and_then(Value::as_array_mut)
            .expect("variables")
            .extend(added);
    }
    manifests
}

/// The manifest of this kind and name.
pub(super) fn manifest(kind: &str, name: &str) -> Value {
    find(&manifests(), kind, name).clone()
}

fn find<'a>(manifests: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = manifests
        .iter()
        .find(|manifest| manifest["kind"] == kind && manifest["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// The environment variables of a container that have values: names and values.
pub(super) fn environment(container: &Value) -> Vec<(&str, &str)> {
    let variables = container
        .pointer("/env")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let with_value = variables
        .iter()
        .filter(|variable| variable.get("value").is_some());
    with_value
        .map(|variable| (text(variable, "/name"), text(variable, "/value")))
        .collect()
}

fn container(workload: &Value) -> &Value {
    at(workload, "/spec/template/spec/containers/0")
}

/// Validates a file against the schemas. Returns whether it is valid, and what the validator
/// printed.
pub(super) fn validate(file: &Path) -> (bool, String) {
    let output = Command::new(tools::kubernetes_validate())
        .arg("--strict")
        .arg(file)
        .output()
        .expect("kubernetes-validate runs");
    let output_text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&output_text).into_owned(),
    )
}

/// As [`validate`], for documents; those of other projects are checked for their fields.
fn validate_all(documents: &[Value]) {
    let (custom, known): (Vec<_>, Vec<_>) = documents
        .iter()
        .partition(|document| CUSTOM.iter().any(|(kind, ..)| document["kind"] == *kind));
    for document in custom {
        let (_, version, fields) = CUSTOM
            .iter()
            .find(|(kind, ..)| document["kind"] == *kind)
            .expect("a known kind");
        assert_eq!(document["apiVersion"], *version, "{document}");
        for field in *fields {
            at(document, field);
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("all.yaml");
    // JSON is YAML in which no text can be taken for something else.
    let texts: Vec<_> = known.iter().map(ToString::to_string).collect();
    std::fs::write(&file, texts.join("\n---\n")).expect("written");
    let (is_valid, output_text) = validate(&file);
    assert!(is_valid, "{output_text}");
}

/// What kustomize builds of a folder.
fn build(kustomize: &Path, folder: &Path) -> Vec<Value> {
    let output = Command::new(kustomize)
        .arg("build")
        .arg(folder)
        .output()
        .expect("kustomize runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    documents_in(&String::from_utf8_lossy(&output.stdout))
}

/// What kustomize builds of an overlay; `None` where there is no kustomize.
fn built(overlay: &str) -> Option<Vec<Value>> {
    tools::kustomize().map(|kustomize| {
        build(
            &kustomize,
            &tools::repository().join(overlay_folder(overlay)),
        )
    })
}

#[test]
fn every_file_matches_its_schema() {
    let folders = PARTS
        .map(str::to_owned)
        .into_iter()
        .chain(OVERLAYS.map(overlay_folder));
    let files: Vec<_> = folders
        .flat_map(|folder| {
            listed(&folder, "/resources")
                .into_iter()
                .map(move |file| format!("{folder}/{file}"))
        })
        .collect();
    assert!(files.len() > 10, "{files:?}");
    validate_all(
        &files
            .iter()
            .flat_map(|file| documents(file))
            .collect::<Vec<_>>(),
    );
    let folder = tempfile::tempdir().expect("a folder");
    let wrong = folder.path().join("wrong.yaml");
    let service = tools::file("deploy/kubernetes/base/service.yaml")
        .replace("targetPort: grpc", "targetprot: grpc");
    std::fs::write(&wrong, service).expect("written");
    assert!(!validate(&wrong).0, "the schemas find a misspelled name");
}

/// Every file below a folder, relative to it.
fn files_below(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
    {
        let name = entry
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if entry.is_dir() {
            found.extend(
                files_below(&entry)
                    .into_iter()
                    .map(|file| format!("{name}/{file}")),
            );
        } else {
            found.push(name);
        }
    }
    found
}

#[test]
fn kustomizations_leave_nothing_out() {
    let overlays =
        std::fs::read_dir(tools::repository().join(FOLDER).join("overlays")).expect("the folder");
    let overlays: BTreeSet<_> = overlays
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    assert_eq!(overlays, OVERLAYS.map(str::to_owned).into());
    for folder in PARTS[..3]
        .iter()
        .map(|&part| part.to_owned())
        .chain(OVERLAYS.map(overlay_folder))
    {
        let used = ["/resources", "/patches", "/configMapGenerator/0/files"]
            .iter()
            .flat_map(|list| listed(&folder, list));
        let used: BTreeSet<_> = used.chain(["kustomization.yaml".to_owned()]).collect();
        assert_eq!(
            used,
            files_below(&tools::repository().join(&folder))
                .into_iter()
                .collect(),
            "{folder}"
        );
    }
    let kustomization = documents(&format!("{FOLDER}/kustomization.yaml")).remove(0);
    assert_eq!(kustomization["resources"], json!(["overlays/redis"]));
    // Each dashboard has a ConfigMap.
    let kustomization = documents("deploy/monitoring/kustomization.yaml").remove(0);
    let maps = items(&kustomization, "/configMapGenerator")
        .iter()
        .map(|map| text(map, "/files/0").to_owned());
    let dashboards = files_below(&tools::repository().join("deploy/monitoring/dashboards"));
    assert_eq!(
        maps.collect::<BTreeSet<_>>(),
        dashboards
            .into_iter()
            .map(|file| format!("dashboards/{file}"))
            .collect()
    );
}

#[test]
fn what_kustomize_builds_matches_the_schemas() {
    let Some(kustomize) = tools::kustomize() else {
        return;
    };
    let all: Vec<_> = OVERLAYS
        .iter()
        .filter_map(|overlay| built(overlay))
        .collect();
    validate_all(&all.concat());
    let redis = build(&kustomize, &tools::repository().join(FOLDER));
    assert_eq!(
        redis, all[1],
        "`kubectl apply -k deploy/kubernetes` is the overlay redis"
    );
    assert_eq!(redis.len(), manifests().len() + 1, "and the ConfigMap");
    for manifest in manifests() {
        let found = find(
            &redis,
            text(&manifest, "/kind"),
            text(&manifest, "/metadata/name"),
        );
        if manifest["metadata"]["name"] == "ratelimit" && manifest["kind"] == "Deployment" {
            let sorted = |manifest| {
                environment(container(manifest))
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
            };
            assert_eq!(
                sorted(found).collect::<BTreeSet<_>>(),
                sorted(&manifest).collect(),
                "the tests without kustomize see the same"
            );
        } else {
            assert_eq!(found, &manifest);
        }
    }
    let config = find(&redis, "ConfigMap", "ratelimit-config");
    assert_eq!(
        config["metadata"]["name"],
        mounted_config()["configMap"]["name"],
        "without a suffix, so that it changes in place"
    );
    assert_eq!(
        config["data"]["ratelimit.yaml"],
        tools::file("deploy/kubernetes/base/limits/ratelimit.yaml")
    );
}

/// The overlays that a page shows, each built beside a copy of `kubernetes` and `monitoring`.
fn overlays_of(page: &str, kustomize: &Path) -> Vec<Vec<Value>> {
    let page = tools::file(page);
    let folder = tempfile::tempdir().expect("a folder");
    let write = |file: &str, text: &str| {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("written");
    };
    for part in ["kubernetes", "monitoring"] {
        for file in files_below(&tools::repository().join("deploy").join(part)) {
            write(
                &format!("{part}/{file}"),
                &tools::file(&format!("deploy/{part}/{file}")),
            );
        }
    }
    let blocks = page
        .split("```yaml\n")
        .filter(|block| block.starts_with("resources:"));
    let texts = blocks.map(|block| block.split_once("```").expect("its end").0);
    let builds = texts.enumerate().map(|(number, overlay)| {
        write(&format!("overlay{number}/kustomization.yaml"), overlay);
        build(kustomize, &folder.path().join(format!("overlay{number}")))
    });
    builds.collect()
}

#[test]
fn the_overlays_of_the_readme_do_what_it_says() {
    let Some(kustomize) = tools::kustomize() else {
        return;
    };
    let [own_redis, combined] = &overlays_of("deploy/README.md", &kustomize)[..] else {
        panic!("two overlays")
    };
    validate_all(&[own_redis.clone(), combined.clone()].concat());

    assert!(
        own_redis
            .iter()
            .all(|manifest| manifest["metadata"]["name"] != "ratelimit-redis"),
        "its own Redis is left out"
    );
    let weir = find(own_redis, "Deployment", "ratelimit");
    assert_eq!(weir["metadata"]["namespace"], "edge");
    assert_eq!(at(container(weir), "/image"), "registry.example/weir:0.1.0");
    let url = environment(container(weir))
        .into_iter()
        .find(|(name, _)| *name == "REDIS_URL")
        .expect("a Redis")
        .1;
    assert_eq!(url, "redis.example:6379");
    assert_eq!(
        at(
            find(own_redis, "HorizontalPodAutoscaler", "ratelimit"),
            "/spec/minReplicas"
        ),
        3
    );

    for (kind, name) in [
        ("StatefulSet", "ratelimit-redis"),
        ("Job", "ratelimit-redis-create"),
        ("PrometheusRule", "ratelimit"),
        ("Certificate", "ratelimit"),
    ] {
        find(combined, kind, name);
    }
    let policy = find(combined, "NetworkPolicy", "ratelimit");
    let gateway = at(policy, "/spec/ingress/0/from/0");
    assert_eq!(
        (
            at(policy, "/spec/ingress/0/ports/0/port"),
            gateway["podSelector"]["matchLabels"]["istio"].as_str()
        ),
        (&json!("grpc"), Some("ingressgateway"))
    );
    assert_eq!(at(policy, "/spec/ingress/1/ports/0/port"), "http");
    let istio = documents("deploy/istio/envoyfilter.yaml").remove(0);
    assert_eq!(
        at(&istio, "/spec/workloadSelector/labels"),
        at(gateway, "/podSelector/matchLabels"),
        "the gateway of deploy/istio"
    );
    assert_eq!(
        at(&istio, "/metadata/namespace"),
        at(
            gateway,
            "/namespaceSelector/matchLabels/kubernetes.io~1metadata.name"
        )
    );
}

#[test]
fn the_support_desk_gets_its_tokens() {
    let Some(kustomize) = tools::kustomize() else {
        return;
    };
    let [desk] = &overlays_of("deploy/support-desk.md", &kustomize)[..] else {
        panic!("one overlay")
    };
    validate_all(desk);
    let weir = find(desk, "Deployment", "ratelimit");
    let path = environment(container(weir))
        .into_iter()
        .find(|(name, _)| *name == "ADMIN_TOKEN_FILE")
        .expect("the setting")
        .1;
    assert!(is_known_setting()("ADMIN_TOKEN_FILE"));
    let mount = items(container(weir), "/volumeMounts")
        .iter()
        .find(|mount| mount["name"] == "admin")
        .expect("a mount");
    let volume = items(weir, "/spec/template/spec/volumes")
        .iter()
        .find(|volume| volume["name"] == "admin")
        .expect("a volume");
    let (folder, file) = path.rsplit_once('/').expect("a folder");
    assert_eq!(text(mount, "/mountPath"), folder);
    let made = format!(
        "kubectl create secret generic {} --from-file={file}\n",
        text(volume, "/secret/secretName")
    );
    assert!(
        tools::file("deploy/support-desk.md").contains(&made),
        "the page does not say {made}"
    );
    // The group that may read the Secret is that of the process.
    let context = at(weir, "/spec/template/spec/securityContext");
    assert_eq!(
        (&context["fsGroup"], at(volume, "/secret/defaultMode")),
        (&context["runAsGroup"], &json!(0o440))
    );
}

/// The volume of limits.
fn mounted_config() -> Value {
    at(
        &manifest("Deployment", "ratelimit"),
        "/spec/template/spec/volumes/0",
    )
    .clone()
}

#[test]
fn limits_are_mounted_where_weir_reads_them_and_can_change() {
    let weir = manifest("Deployment", "ratelimit");
    let mount = at(container(&weir), "/volumeMounts/0");
    let settings = environment(container(&weir));
    let value = |name| {
        settings
            .iter()
            .find(|setting| setting.0 == name)
            .unwrap_or_else(|| panic!("{name} is not set"))
            .1
    };
    let read = [
        "RUNTIME_ROOT",
        "RUNTIME_SUBDIRECTORY",
        "RUNTIME_APPDIRECTORY",
    ]
    .map(value)
    .join("/");
    assert_eq!(text(mount, "/mountPath"), read);
    assert_eq!(mount["name"], mounted_config()["name"]);
    assert!(mount.get("subPath").is_none(), "a subPath never changes");
    for variable in [
        "HOST",
        "PORT",
        "GRPC_HOST",
        "GRPC_PORT",
        "DEBUG_HOST",
        "DEBUG_PORT",
    ] {
        assert!(
            !settings.iter().any(|setting| setting.0 == variable),
            "{variable} would have to agree with ports and probes"
        );
    }
    let mut check = Command::new(env!("CARGO_BIN_EXE_weir"));
    let limits = tools::repository().join(PARTS[0]).join("limits");
    let output = check
        .args(["check", "--strict"])
        .arg(limits)
        .output()
        .expect("the binary runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn redis_accepts_its_arguments() {
    let deployment = manifest("Deployment", "ratelimit-redis");
    let arguments: Vec<_> = items(container(&deployment), "/args")
        .iter()
        .map(|argument| argument.as_str().expect("text"))
        .collect();
    let redis = RedisServer::start_with(&arguments);
    for (setting, expected) in [
        ("save", ""),
        ("appendonly", "no"),
        ("maxmemory", "209715200"),
        ("maxmemory-policy", "volatile-ttl"),
    ] {
        assert_eq!(
            redis.run::<Vec<String>>(&["CONFIG", "GET", setting]),
            [setting, expected]
        );
    }
    let compose = documents("deploy/compose.yaml").remove(0);
    let in_compose: Vec<_> = items(&compose, "/services/redis/command")
        .iter()
        .filter_map(Value::as_str)
        .skip(1)
        .collect();
    assert_eq!(in_compose, arguments);
}

/// The variables in the help text of `weir serve`.
fn is_known_setting() -> impl Fn(&str) -> bool {
    let help = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["serve", "--help"])
        .env_clear()
        .output()
        .expect("the binary runs");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    move |name| {
        ["=", "]"]
            .iter()
            .any(|end| help.contains(&format!("[env: {name}{end}")))
    }
}

#[test]
fn every_setting_of_compose_is_one_that_weir_knows() {
    let is_known = is_known_setting();
    for file in ["deploy/compose.yaml", "deploy/compose/support-desk.yaml"] {
        let compose = documents(file).remove(0);
        let names = at(&compose, "/services/weir/environment").as_object();
        for name in names.expect("names and values").keys() {
            assert!(
                is_known(name),
                "{file}: {name} is not in `weir serve --help`"
            );
        }
    }
}
