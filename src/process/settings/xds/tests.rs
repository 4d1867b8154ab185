//! Tests of the settings of a control plane.

use prost_types::value::Kind;

use super::super::setting;
use super::*;

/// The options and the warnings of these arguments after `--config-type=GRPC_XDS_SOTW`.
fn read(arguments: &[&str]) -> Result<(Options, Vec<String>), String> {
    let has_type = arguments
        .iter()
        .any(|argument| argument.starts_with("--config-type"));
    let own: &[&str] = if has_type {
        &[]
    } else {
        &["--config-type=grpc_xds_sotw"]
    };
    let flags = setting::read::<XdsFlags>(&[own, arguments].concat());
    let (flags, mut warnings) = flags.map_err(|error| error.to_string())?;
    let options = flags
        .options(XdsOptions::default(), 1 << 30, &mut warnings)
        .map_err(|error| error.to_string())?;
    Ok((options.expect("a control plane"), warnings.all))
}

fn options(arguments: &[&str]) -> Options {
    read(arguments)
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
        .0
}

fn error(arguments: &[&str]) -> String {
    read(arguments).expect_err("a setting that cannot be used")
}

#[test]
fn addresses_are_those_of_grpc() {
    for (text, address) in [
        ("envoy-gateway:18001", "envoy-gateway:18001"),
        ("dns:///a.b.svc:1", "a.b.svc:1"),
        ("[::1]:5", "[::1]:5"),
        ("http://10.0.0.1:18000/", "10.0.0.1:18000"),
    ] {
        let server = options(&["--config-grpc-xds-server-url", text]).server;
        assert_eq!(server.address.to_string(), address, "{text}");
    }
    assert_eq!(options(&[]).server.address.to_string(), DEFAULT_SERVER);
    for text in ["", "host", "host:0", "a b:1", "[x]:5"] {
        assert!(
            error(&["--config-grpc-xds-server-url", text])
                .starts_with("CONFIG_GRPC_XDS_SERVER_URL"),
            "{text}"
        );
    }
}

#[test]
fn a_control_plane_is_asked_only_if_the_type_says_so() {
    for text in ["GRPC_XDS_SOTW", "grpc_xds_sotw"] {
        assert_eq!(
            options(&["--config-type", text]).server.address.to_string(),
            DEFAULT_SERVER
        );
    }
    let delta = error(&["--config-type=grpc_xds_delta"]);
    assert!(
        delta.starts_with("CONFIG_TYPE=GRPC_XDS_DELTA") && delta.contains("write GRPC_XDS_SOTW"),
        "{delta}"
    );
    assert!(error(&["--config-type=xds"]).contains("GRPC_XDS_SOTW"));
    let unused = [
        "--config-grpc-xds-node-id=a",
        "--config-grpc-xds-cache-file=b",
        "--config-grpc-xds-server-use-tls=0",
    ];
    let (flags, mut warnings) = setting::read::<XdsFlags>(&unused).expect("valid");
    let options = flags.options(XdsOptions::default(), 1 << 30, &mut warnings);
    assert!(options.expect("valid").is_none());
    let expected = "CONFIG_GRPC_XDS_NODE_ID, CONFIG_GRPC_XDS_CACHE_FILE have no effect: limits \
        come from files; set CONFIG_TYPE=GRPC_XDS_SOTW";
    assert_eq!(warnings.all, [expected]);
}

#[test]
fn node_and_headers_are_lists_of_pairs() {
    let found = options(&[
        "--config-grpc-xds-node-id=n",
        "--config-grpc-xds-node-metadata=a=1, b=x=y,,c=",
    ]);
    assert_eq!(found.node.id, "n");
    let fields = found.node.metadata.expect("metadata").fields;
    let text = |name: &str| match &fields[name].kind {
        Some(Kind::StringValue(text)) => text.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!([text("a"), text("b"), text("c")], ["1", "x=y", ""]);
    assert!(options(&[]).node.metadata.is_none());
    assert!(error(&["--config-grpc-xds-node-metadata=a"]).contains("name=value"));

    let headers =
        options(&["--config-grpc-xds-client-additional-headers=X-Tenant: a,x-time:12:30"]).headers;
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_str().expect("text")))
        .collect();
    assert_eq!(headers, [("x-tenant", "a"), ("x-time", "12:30")]);
    for text in ["hunter2", "x-bin:hunter2", "x-a:b,hunter2"] {
        let error = error(&["--config-grpc-xds-client-additional-headers", text]);
        assert!(
            error.contains("name:value") && !error.contains("hunter2"),
            "{error}"
        );
    }
}

#[test]
fn tls_has_names_and_files_that_belong_together() {
    let files = [
        "--config-grpc-xds-client-tls-cert=/c",
        "--config-grpc-xds-client-tls-key=/k",
        "--config-grpc-xds-server-tls-cacert=/a",
    ];
    let (plain, warnings) = read(&files).expect("valid");
    assert!(plain.server.tls.is_none());
    assert!(
        warnings[0].ends_with("have no effect: CONFIG_GRPC_XDS_SERVER_USE_TLS is not true"),
        "{warnings:?}"
    );
    let tls = |more: &[&str]| {
        options(&[&files[..], &["--config-grpc-xds-server-use-tls"], more].concat())
            .server
            .tls
            .expect("TLS")
    };
    let found = tls(&[]);
    assert_eq!(found.authorities.expect("set").path, PathBuf::from("/a"));
    assert_eq!(found.identity.expect("set").key.path, PathBuf::from("/k"));
    assert_eq!(found.name_check, NameCheck::Strict);
    assert!(matches!(
        tls(&["--config-grpc-xds-server-tls-san=a.b"]).name_check,
        NameCheck::Only(SubjectName::Host(_))
    ));
    assert!(matches!(
        tls(&["--config-grpc-xds-server-tls-san=spiffe://a/b"]).name_check,
        NameCheck::Only(SubjectName::Uri(_))
    ));
    assert!(
        error(&[
            "--config-grpc-xds-server-use-tls",
            "--config-grpc-xds-server-tls-san=a b"
        ])
        .starts_with("CONFIG_GRPC_XDS_SERVER_TLS_SAN")
    );
    assert!(
        error(&["--config-grpc-xds-server-use-tls", files[0]])
            .contains("CONFIG_GRPC_XDS_CLIENT_TLS_KEY")
    );
}

#[test]
fn defaults_are_those_of_a_file_on_one_line() {
    let set = options(&[
        "--config-grpc-xds-defaults=algorithm: token_bucket, burst: 20",
        "--config-grpc-xds-overlay-file=/o",
    ]);
    assert_ne!(set.rules.defaults, XdsDefaults::default());
    assert_eq!(set.overlay_file, Some(PathBuf::from("/o")));
    assert_eq!(options(&[]).rules.defaults, XdsDefaults::default());
    assert!(
        error(&["--config-grpc-xds-defaults=algorithm: none"])
            .starts_with("CONFIG_GRPC_XDS_DEFAULTS: ")
    );
}

#[test]
fn waits_and_sizes_have_bounds_and_defaults() {
    let default = options(&[]);
    assert_eq!(default.backoff, BackoffOptions::default());
    assert_eq!(
        (default.max_message_bytes, default.ping),
        (DEFAULT_MAX_MESSAGE_BYTES, Duration::from_secs(310))
    );
    let set = options(&[
        "--xds-client-backoff-initial-interval=10s",
        "--xds-client-backoff-max-interval=5s",
        "--xds-client-backoff-random-factor=0.5",
        "--config-grpc-xds-server-connect-retry-interval=3s",
        "--xds-client-max-msg-size-in-bytes=1000",
    ]);
    let secs = Duration::from_secs;
    let backoff = BackoffOptions {
        first: secs(10),
        longest: secs(10),
        random_share: 0.5,
        after_failed_connect: Some(secs(3)),
    };
    assert_eq!((set.backoff, set.max_message_bytes), (backoff, 1_000));
    assert_eq!(
        options(&["--xds-client-backoff-jitter=false"])
            .backoff
            .random_share
            .to_bits(),
        0
    );
    assert!(error(&["--xds-client-backoff-random-factor=1.5"]).contains("write 0 to 1"));
    for argument in [
        "--xds-client-backoff-initial-interval=0",
        "--xds-client-max-msg-size-in-bytes=9999999999",
        "--config-grpc-xds-ping-interval=1ms",
    ] {
        assert!(error(&[argument]).contains("write"), "{argument}");
    }
}
