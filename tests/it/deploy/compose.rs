//! `deploy/compose.yaml` without containers. The workflow `tests` starts all of it, asks as the
//! pages do, and asks Prometheus and Grafana what they have.

use serde_json::Value;

use super::{at, documents, text};
use crate::support::tools;

const FILE: &str = "deploy/compose.yaml";

/// Texts of a list that a service may leave out.
fn list<'a>(service: &'a Value, name: &str) -> Vec<&'a str> {
    let items = service.get(name).and_then(Value::as_array);
    let texts = items.into_iter().flatten();
    texts.map(|item| item.as_str().expect("text")).collect()
}

/// Whether a tag is one version, such as `v3.13.3` or `7.4.11-bookworm`, and not the latest of
/// several.
fn is_exact(tag: &str) -> bool {
    let version = tag.trim_start_matches('v').split('-').next();
    let numbers: Vec<_> = version.unwrap_or_default().split('.').collect();
    numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok())
}

#[test]
fn every_service_is_pinned_confined_and_open_to_this_machine_only() {
    let tags = ["v1.40.0", "7.4.11-bookworm", "7", "latest", "12.4"];
    assert_eq!(tags.map(is_exact), [true, true, false, false, false]);
    let compose = documents(FILE).remove(0);
    let services = at(&compose, "/services").as_object().expect("services");
    assert_eq!(services.len(), 6);
    for (name, service) in services {
        let image = text(service, "/image");
        let (_, tag) = image.split_once(':').expect("a tag");
        assert!(is_exact(tag), "{name}: {image} is not one version");
        assert_eq!(list(service, "cap_drop"), ["ALL"], "{name}");
        let options = list(service, "security_opt");
        assert_eq!(options, ["no-new-privileges:true"], "{name}");
        for port in list(service, "ports") {
            let is_local = port.starts_with("127.0.0.1:") && port.split(':').count() == 3;
            assert!(is_local, "{name}: {port} is not 127.0.0.1:PORT:PORT");
        }
        for volume in list(service, "volumes") {
            let (source, _) = volume.split_once(':').expect("SOURCE:TARGET:ro");
            let exists = tools::repository().join("deploy").join(source).exists();
            assert!(exists && volume.ends_with(":ro"), "{name}: {volume}");
        }
    }
    assert_eq!(at(&compose, "/services/weir/read_only"), true);
}
