//! `weir envoy`: its errors and its arguments. `deploy/generated.rs` gives what it prints to a real
//! Envoy.

use super::{folder_with, stderr, stdout, weir};

const LIMITS: &str = "domain: d
descriptors:
- key: remote_address
  rate_limit: { unit: day, requests_per_unit: 1 }
- key: upstream
  value: legacy
  rate_limit: { unit: second, requests_per_unit: 1, algorithm: leaky_bucket, max_delay: 1500ms }
";

const FROM: [&str; 2] = [
    "--from=remote_address=remote-address",
    "--from=upstream=generic-key",
];

#[test]
fn every_key_without_a_source_is_named_with_its_position() {
    let limits = LIMITS.replace("key: remote_address", "key: user");
    let (_folder, path) = folder_with(&[("a.yaml", &limits)]);
    let output = weir(&["envoy", &path], &[]);
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(1), String::new())
    );
    let text = stderr(&output);
    let first = format!(
        "{path}/a.yaml:3:8: error: the key 'user' has no source; name its source, such as \
         --from user=header:NAME; "
    );
    let second = format!("{path}/a.yaml:5:8: error: the key 'upstream' has no source; ");
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines.len() == 3 && lines[0].starts_with(&first) && lines[1].starts_with(&second),
        "{text}"
    );
    assert_eq!(
        lines[2],
        "weir: nothing is printed, because Envoy would not send what the files limit"
    );
}

#[test]
fn files_with_mistakes_and_unknown_domains_are_refused() {
    let other = LIMITS.replace("domain: d", "domain: e");
    let (_folder, path) = folder_with(&[("a.yaml", LIMITS), ("b.yaml", &other)]);
    for (arguments, expected) in [
        (
            &["envoy", &path][..],
            "weir: name the domain: --domain d or --domain e\n",
        ),
        (
            &["envoy", "--domain", "x", &path],
            "weir: no file has the domain `x`; there are d, e\n",
        ),
        (
            &["envoy", "--from", "user=haeder:x", &path],
            "`haeder` is no source; did you mean `header`?",
        ),
        (
            &[
                "envoy",
                "-d",
                "d",
                FROM[0],
                FROM[1],
                "--timeout-ms",
                "1500",
                &path,
            ],
            "delays requests by up to 1500 ms; write --timeout-ms 1600",
        ),
    ] {
        let output = weir(arguments, &[]);
        assert_eq!(
            (output.status.code(), stdout(&output)),
            (Some(2), String::new()),
            "{arguments:?}"
        );
        assert!(
            stderr(&output).contains(expected),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn places_of_requests_in_flight_are_released() {
    let limits = "domain: d
descriptors:
  - key: user
    descriptors:
      - { key: request, rate_limit: { algorithm: concurrency, requests_per_unit: 5, \
          max_duration: 1m } }
";
    let (_folder, path) = folder_with(&[("a.yaml", limits)]);
    let print = |more: &[&str]| {
        let from = ["envoy", "--from=user=header:x-user", &path];
        weir(&[&from[..], more].concat(), &[])
    };
    // Another source of the id is the operator's, and has a warning.
    let own = stdout(&print(&["--from=request=header:x-own"]));
    assert!(own.contains("must not be one that clients choose"), "{own}");
    assert!(!own.contains("weir-stream-id"), "{own}");
    for attach in ["filter", "route"] {
        let text = stdout(&print(&["--attach", attach]));
        assert_eq!(
            text.matches("value: \"%STREAM_ID%\"\n").count(),
            1,
            "{text}"
        );
        assert!(
            !text.contains("must not be one that clients choose"),
            "{text}"
        );
        assert!(!text.contains("is not limited by request"), "{text}");
        let (acquire, release) = text
            .split_once("# the same when the request has ended\n")
            .unwrap_or_else(|| panic!("{text}"));
        for (part, is_release) in [(acquire, false), (release, true)] {
            assert!(part.contains("header_name: x-stream-id"), "{text}");
            assert_eq!(
                part.contains("is_negative_hits: true")
                    && part.contains("apply_on_stream_done: true"),
                is_release,
                "{text}"
            );
        }
    }
    let output = print(&["--attach", "virtual-host"]);
    assert!(
        !output.status.success() && stderr(&output).contains("--attach filter"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_output_says_what_it_is_for() {
    let (_folder, path) = folder_with(&[("a.yaml", LIMITS)]);
    let print = |more: &[&str]| {
        let output = weir(
            &[&["envoy"], &FROM[..], more, &[path.as_str()]].concat(),
            &[],
        );
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let text = print(&["--service", "ratelimit.example:8081"]);
    for expected in [
        "use_remote_address: true",
        &format!("# upstream=legacy ({path}/a.yaml:5)\n"),
        "domain: d\n",
        // Longer than max_delay.
        "timeout: \"1.600s\"\n",
        "type: STRICT_DNS\n",
        "address: ratelimit.example\n",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let text = print(&[]);
    for part in [
        "type: STATIC\n",
        "max_requests: 100000\n",
        "max_pending_requests: 100000\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = print(&[
        "--for",
        "istio",
        "--context",
        "sidecar",
        "--namespace",
        "shop",
        "--selector",
        "app=shop",
    ]);
    for expected in [
        "kind: EnvoyFilter\n",
        "namespace: shop\n",
        "app: shop\n",
        "context: SIDECAR_INBOUND\n",
        "outbound|8081||ratelimit.default.svc.cluster.local\n",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}
