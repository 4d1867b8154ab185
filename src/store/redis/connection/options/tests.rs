//! Tables of valid settings with the options that they mean, and of invalid ones with their errors.

use super::*;

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp {
        host: host.to_owned(),
        port,
    }
}

fn parse(raw: RawOptions<'_>) -> Result<Options, OptionsError> {
    Options::parse(&raw, &TlsFiles::default())
}

/// The options of these settings.
fn read(kind: &str, url: &str, socket_type: &str, auth: &str, auth_file: &str) -> Options {
    let raw = RawOptions {
        kind,
        url,
        socket_type,
        auth,
        auth_file,
        ..RawOptions::default()
    };
    parse(raw).unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn password_text(login: &Login) -> Option<&str> {
    match &login.password {
        Some(Password::Text(secret)) => Some(secret.expose()),
        _ => None,
    }
}

#[test]
fn single_addresses_are_parsed_in_all_forms_of_envoyproxy_ratelimit() {
    let unix = |path: &str| Address::Unix(path.into());
    let table = [
        ("redis:6379", "", tcp("redis", 6379)),
        (" 10.0.0.1:7000 ", "TCP", tcp("10.0.0.1", 7000)),
        ("[::1]:6379", "", tcp("::1", 6379)),
        ("/run/redis.sock", "", unix("/run/redis.sock")),
        ("redis.sock", "unix", unix("redis.sock")),
        ("unix:///run/redis.sock", "", unix("/run/redis.sock")),
        // No host is this machine, as in Go.
        (":6379", "", tcp("localhost", 6379)),
        ("redis://:1", "", tcp("localhost", 1)),
        ("redis://redis", "", tcp("redis", 6379)),
        ("REDIS://redis:1", "unix", tcp("redis", 1)),
        ("redis://[::1]:7000", "", tcp("::1", 7000)),
    ];
    for (url, socket_type, expected) in table {
        for kind in ["", "single", "SINGLE"] {
            let options = read(kind, url, socket_type, "", "");
            let topology = Topology::Single(expected.clone());
            assert_eq!(options.topology, topology, "{url}");
            let is_open = options.login == Login::default() && options.tls.is_none();
            assert!(
                is_open && options.sentinel_login == Login::default(),
                "{url}"
            );
            assert_eq!(options.database, 0, "{url}");
        }
    }
}

#[test]
fn lists_of_servers_are_parsed() {
    let sentinel = |sentinels: &[Address]| Topology::Sentinel {
        master: "my-master.1".to_owned(),
        sentinels: sentinels.to_vec(),
    };
    let both = [tcp("a", 1), tcp("::1", 2)];
    let (all, first) = (sentinel(&both), sentinel(&both[..1]));
    let cluster = |count: usize| Topology::Cluster(both[..count].to_vec());
    for (kind, url, topology, database, is_tls) in [
        ("sentinel", "my-master.1,a:1,[::1]:2", &all, 0, false),
        ("Sentinel", " my-master.1 , a:1 ", &first, 0, false),
        (
            "sentinel",
            "my-master.1,redis://a:1/3,[::1]:2",
            &all,
            3,
            false,
        ),
        (
            "sentinel",
            "my-master.1,rediss://a:1,rediss://[::1]:2",
            &all,
            0,
            true,
        ),
        ("cluster", "a:1", &cluster(1), 0, false),
        ("CLUSTER", "a:1, [::1]:2", &cluster(2), 0, false),
        ("cluster", "rediss://a:1/0,[::1]:2", &cluster(2), 0, true),
    ] {
        // The socket type is used for a single server only. envoyproxy/ratelimit's default, `unix`,
        // must not matter here.
        let options = read(kind, url, "unix", "", "");
        let found = (&options.topology, options.database, options.tls.is_some());
        assert_eq!(found, (topology, database, is_tls), "{url}");
    }
}

#[test]
fn servers_of_a_list_share_a_login() {
    let url = "redis://u:p%2C1@a:1,b:2,redis://u:p%2C1@c:3";
    let login = read("cluster", url, "", "", "").login;
    let login = (login.username.as_deref(), password_text(&login));
    assert_eq!(login, (Some("u"), Some("p,1")));
}

#[test]
fn topologies_are_shown_without_secrets() {
    let display = |kind, url| read(kind, url, "", "", "").topology.to_string();
    assert_eq!(display("", "redis://u:s3cret@[::1]:1"), "[::1]:1");
    assert_eq!(display("sentinel", "m,a:1,b:2"), "m, known to a:1, b:2");
    assert_eq!(display("cluster", "redis://u:s3cret@a:1,b:2"), "a:1, b:2");
}

#[test]
fn logins_are_read_and_never_printed() {
    let table = [
        ("redis://u:p%40ss@h/3", "", (Some("u"), "p@ss", 3)),
        ("rediss://:s3cret@h:1/", "", (None, "s3cret", 0)),
        ("h:1", "s3cret", (None, "s3cret", 0)),
        ("h:1", "u:s3:cret", (Some("u"), "s3:cret", 0)),
        ("redis://u:old@h/2", "s3cret", (None, "s3cret", 2)),
        ("redis://u@h/2", "s3cret", (Some("u"), "s3cret", 2)),
        ("redis://u@h/2", "v:s3cret", (Some("v"), "s3cret", 2)),
    ];
    for (url, auth, (username, password, database)) in table {
        let options = read("", url, "", auth, "");
        assert_eq!(options.login.username.as_deref(), username, "{url}");
        assert_eq!(password_text(&options.login), Some(password), "{url}");
        assert_eq!(
            (options.database, options.tls.is_some()),
            (database, url.starts_with("rediss")),
            "{url}"
        );
        assert!(!format!("{options:?}").contains(password), "{options:?}");
    }
    let raw = RawOptions {
        kind: "sentinel",
        url: "m,a:1",
        auth: "s3cret",
        sentinel_auth: "u:0ther",
        ..RawOptions::default()
    };
    let options = parse(raw).expect("two logins");
    let passwords = [&options.login, &options.sentinel_login].map(password_text);
    assert_eq!(passwords, [Some("s3cret"), Some("0ther")]);
    assert_eq!(options.sentinel_login.username.as_deref(), Some("u"));
    assert!(
        !format!("{options:?}").contains("s3cret") && !format!("{options:?}").contains("0ther")
    );
}

#[test]
fn a_password_may_be_in_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("password");
    std::fs::write(&path, "s3cret\n").expect("written");
    let auth_file = path.to_str().expect("UTF-8");
    let file = Some(Password::File(path.clone()));
    for (url, auth, username) in [
        ("h:1", "", None),
        ("redis://u@h:1", "", Some("u")),
        ("h:1", "v:", Some("v")),
        ("redis://u@h:1", "v:", Some("v")),
    ] {
        let login = read("", url, "", auth, auth_file).login;
        let found = (login.username.as_deref(), &login.password);
        assert_eq!(found, (username, &file), "{url} {auth}");
    }
    let sentinel = RawOptions {
        kind: "sentinel",
        url: "m,a:1",
        sentinel_auth_file: auth_file,
        ..RawOptions::default()
    };
    assert_eq!(
        parse(sentinel).expect("a file").sentinel_login.password,
        file
    );
    for (url, auth) in [
        ("h:1", "s3cret"),
        ("h:1", "u:s3cret"),
        ("redis://:s3cret@h:1", ""),
    ] {
        let error = parse(RawOptions {
            url,
            auth,
            auth_file,
            ..RawOptions::default()
        })
        .expect_err("two passwords");
        assert_eq!(
            error,
            OptionsError::TwoPasswords("AUTH_FILE"),
            "{url} {auth}"
        );
    }
    let error = parse(RawOptions {
        url: "h:1",
        auth_file: "/no/such/file",
        ..RawOptions::default()
    })
    .expect_err("no file");
    assert_eq!(error.setting(), Some("AUTH_FILE"));
    assert!(
        error
            .to_string()
            .starts_with("the password file /no/such/file cannot be read (No such file"),
        "{error}"
    );
}

/// Types of Redis, invalid addresses and their errors.
const INVALID: [(&str, &str, OptionsError); 29] = {
    use OptionsError::*;
    [
        ("", "", Empty),
        ("", "redis", NoPort),
        ("", "[::1]", NoPort),
        ("", "redis:0", Port),
        ("", "redis:s3cret", Port),
        ("", "redis://:s3/cret@h:1", Escapes),
        ("", "redis://:s3%ffcret@h:1", Escapes),
        ("sentinel", "m,redis://:s3/cret@a:1", Escapes),
        ("cluster", "redis://:s3?cret@a:1", Escapes),
        ("", "::1:6379", Brackets),
        ("", "a:1,b:2", UnexpectedList),
        ("", "redis://u:s3cret@h:port", Port),
        ("", "rediss://u:s3cret@h/-1", Database),
        ("", "redis://u@h", NoPassword),
        ("", "redis://", Syntax),
        ("", "http://u:s3cret@h", Syntax),
        ("", "u:s3cret@h:1", Syntax),
        ("s3cret", "h:1", Type),
        ("sentinel", "", Empty),
        ("sentinel", "mymaster", Sentinels),
        ("sentinel", "a:1,b:2", Sentinels),
        ("sentinel", "redis://:s3cret@a:1,b:2", Sentinels),
        ("sentinel", "m,a", NoPort),
        ("sentinel", "m,a:1,/run/redis.sock", Syntax),
        ("sentinel", "m,redis://:s3cret@a:1", SentinelLogin),
        ("sentinel", "m,redis://a:1/1,redis://b:1/2", Inconsistent),
        ("cluster", "a:1,unix:///run/redis.sock", NoPort),
        ("cluster", "redis://a:1/1", ClusterDatabase),
        (
            "cluster",
            "redis://:s3cret@a:1,redis://:0ther@b:1",
            Inconsistent,
        ),
    ]
};

#[test]
fn invalid_settings_have_their_errors_without_their_values() {
    use OptionsError::*;
    for (kind, url, expected) in INVALID {
        let error = parse(RawOptions {
            kind,
            url,
            ..RawOptions::default()
        })
        .expect_err(url);
        assert_eq!(error, expected, "{url}");
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
    for (url, socket_type, tls, expected) in [
        ("redis:6379", "udp", false, SocketType),
        ("/run/redis.sock", "tcp", false, PathForTcp),
        ("/run/redis.sock", "", true, UnixTls),
    ] {
        let error = parse(RawOptions {
            url,
            socket_type,
            tls,
            ..RawOptions::default()
        })
        .expect_err(url);
        assert_eq!(error, expected, "{url}");
    }
    assert!(
        parse(RawOptions {
            url: "h:1",
            tls: true,
            ..RawOptions::default()
        })
        .is_ok_and(|options| options.tls.is_some())
    );
}
