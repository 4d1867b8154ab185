//! Shares of regions through real processes: limits of a control plane, `weir check`, and errors of
//! the start. `tests/vectors/decisions/regions*.txt` have the decisions, and `bounds` the property:
//! random shares and numbers, in all regions together.

mod bounds;

use std::process::Command;

use weir::core::proto::RateLimitDescriptor;
use weir::core::proto::rate_limit_descriptor::RateLimitOverride;
use weir::core::proto::rate_limit_response::Code;
use weir::core::time::Unit;

use crate::service::xds;
use crate::support::certificates::Files;
use crate::support::control_plane::ControlPlane;
use crate::support::{Client, ask, descriptor};

/// Limits per year, so that no window ends while a test runs.
const LIMITS: &str = "
domain: d
defaults: { region_shares: { eu: 40%, us: 60% } }
plans:
  gold: { unit: year, requests_per_unit: 50, region_shares: { eu: 10%, us: 90% } }
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: tenant
    table: tenants.csv
";

/// How many of so many requests are let in.
async fn passed(
    client: &mut Client,
    domain: &str,
    one: &RateLimitDescriptor,
    requests: usize,
) -> usize {
    let mut passed = 0;
    for _ in 0..requests {
        let answer = ask(client, domain, vec![one.clone()]).await;
        passed += usize::from(answer.overall_code() == Code::Ok);
    }
    passed
}

/// A descriptor with a limit per year of its own.
fn bringing(key: &str, requests_per_unit: u32) -> RateLimitDescriptor {
    RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit,
            unit: Unit::Year as i32,
            ..Default::default()
        }),
        ..descriptor(&[(key, "own")])
    }
}

#[tokio::test]
async fn limits_of_a_control_plane_are_divided() {
    let files = Files::new();
    files.write(
        "overlay.yaml",
        "domains:\n- domain: a\n  defaults: { region_shares: { eu: 20%, us: 80% } }\n  \
         descriptors:\n  - { key: path, rate_limit: { region_shares: { eu: 50%, us: 50% } } }\n\
         - domain: lost\n  defaults: { region_shares: { us: 80% } }\n",
    );
    let path = files.text("overlay.yaml");
    let control = ControlPlane::start();
    let leaves = vec![
        xds::leaf("user", "", xds::yearly(10)),
        xds::leaf("path", "", xds::yearly(10)),
    ];
    control.set(
        "1",
        [
            xds::config("a", leaves),
            xds::users("b", 10),
            xds::users("lost", 10),
        ],
    );
    let environment = [
        ("REGION", "eu"),
        ("REGION_SHARE", "90%"),
        ("CONFIG_GRPC_XDS_OVERLAY_FILE", &*path),
        (
            "CONFIG_GRPC_XDS_DEFAULTS",
            "region_shares: { eu: 40%, us: 60% }",
        ),
    ];
    let weir = xds::start(&control.url(), &environment);
    let client = &mut weir.client().await;
    let one = |key: &str| descriptor(&[(key, "u")]);
    let nack = control.wait_for_nack().await;
    assert!(
        nack.contains("the region 'eu' has no share"),
        "a region is not left out: {nack}"
    );
    xds::wait_for_amount(client, "b", 4).await;
    for (domain, key, admitted) in [
        ("a", "user", 2),
        ("a", "path", 5),
        ("b", "user", 4),
        ("lost", "user", 20),
    ] {
        assert_eq!(
            passed(client, domain, &one(key), 20).await,
            admitted,
            "{domain} {key}"
        );
    }
    let brought = bringing("other", 10);
    assert_eq!(
        [
            passed(client, "a", &brought, 9).await,
            passed(client, "b", &brought, 9).await
        ],
        [2, 4]
    );
}

#[tokio::test]
async fn the_share_of_the_process_divides_limits_without_other_shares() {
    let control = ControlPlane::start();
    control.set("1", [xds::users("a", 10)]);
    let weir = xds::start(&control.url(), &[("REGION_SHARE", "90%")]);
    let client = &mut weir.client().await;
    xds::wait_for_amount(client, "a", 9).await;
    assert_eq!(passed(client, "a", &bringing("other", 10), 20).await, 9);
    let explained = weir.command(&["explain", "-d", "a", "user=u"]);
    assert!(
        explained.starts_with("user=u: 9 per year, share 90 % of 10\n"),
        "{explained}"
    );
}

fn check(arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command
        .arg("check")
        .args(arguments)
        .env_clear()
        .output()
        .expect("it runs");
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

#[test]
fn check_takes_the_region_and_says_in_which_order_shares_move() {
    let files = Files::new();
    for (name, shares) in [
        ("old.yaml", "eu: 40%, us: 60%"),
        ("new.yaml", "eu: 50%, us: 50%"),
        ("raised.yaml", "eu: 40%, us: 60%"),
    ] {
        let amount = if name == "raised.yaml" { 2000 } else { 1000 };
        files.write(
            name,
            &format!(
                "domain: d\ndefaults: {{ region_shares: {{ {shares} }} }}\ndescriptors:\n\
                 - {{ key: user, rate_limit: {{ unit: hour, requests_per_unit: {amount} }} }}\n"
            ),
        );
    }
    let [old, new, raised] = ["old.yaml", "new.yaml", "raised.yaml"].map(|name| files.text(name));
    let (ok, text) = check(&[&old]);
    assert!(
        !ok && text.contains(
            "old.yaml:2:28: error: the limit is divided by 'region_shares', and REGION is not set"
        ),
        "{text}"
    );
    let (ok, text) = check(&["--region", "ap", &old]);
    assert!(
        !ok && text.contains("the region 'ap' has no share"),
        "{text}"
    );
    let (ok, text) = check(&["--region", "eu", "--diff", &old, &new]);
    let line = "changed: d.user: rate 400 per hour -> 500 per hour, share 40 % of 1,000 (eu) -> \
        50 % of 1,000 (eu)\n";
    assert!(
        ok && text.contains(line)
            && text.contains("shares: lower a region first, and raise another only after"),
        "{text}"
    );
    let (ok, text) = check(&["--region", "eu", "--diff", &old, &raised]);
    assert!(
        ok && text.contains("rate 400 per hour -> 800 per hour") && !text.contains("shares: "),
        "{text}"
    );
    let (ok, text) = check(&["--region", "eu", "--diff", &old, &old]);
    assert!(ok && !text.contains("shares: "), "{text}");
    let limit = "{ unit: hour, requests_per_unit: 9 }";
    let file = format!("domain: d\ndescriptors: [{{ key: user, rate_limit: {limit} }}]\n");
    files.write("limited.yaml", &file);
    files.write("open.yaml", &file.replace(limit, "{ unlimited: true }"));
    let [limited, open] = ["limited.yaml", "open.yaml"].map(|name| files.text(name));
    let (ok, text) = check(&["--diff", &limited, &open]);
    assert!(
        ok && text.contains("changed: d.user: ") && !text.contains("shares: "),
        "no amount has no share: {text}"
    );
    // Only the shares of a plan.
    for (folder, gold) in [("a", "eu: 10%, us: 90%"), ("b", "eu: 20%, us: 80%")] {
        std::fs::create_dir(files.text(folder)).expect("a folder");
        let limits = LIMITS.replace("eu: 10%, us: 90%", gold);
        files.write(&format!("{folder}/limits.yaml"), &limits);
        let rows = "value,plan,requests_per_unit,unit\naa,,10,year\nacme,gold,,\nzz,,10,year\n";
        files.write(&format!("{folder}/tenants.csv"), rows);
    }
    let [old, new] = ["a", "b"].map(|name| files.text(name));
    let (ok, text) = check(&["--region", "eu", "--diff", &old, &new]);
    assert!(
        ok && text.contains("shares: lower a region first"),
        "{text}"
    );
}

#[tokio::test]
async fn a_service_without_its_region_does_not_start_and_a_wrong_share_is_named() {
    let files = Files::new();
    files.write("limits.yaml", LIMITS);
    files.write("tenants.csv", "value,plan\nacme,gold\n");
    let folder = files.text("");
    for (environment, expected) in [
        (vec![], "REGION is not set"),
        (vec![("REGION", "ap")], "the region 'ap' has no share"),
        (
            vec![("REGION_SHARE", "100.0001%")],
            "write a percentage above 0% and at most 100%",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .args(["serve", "--config", &folder])
            .env_clear()
            .envs(environment.iter().copied());
        let output = command.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains(expected),
            "{environment:?}: {text}"
        );
    }
}
