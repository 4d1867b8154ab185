//! G10: Redis replies with errors.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use bb8_redis::redis::{Connection, cmd};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use super::*;
use crate::support::load::BlockingClient;
use crate::support::ports;
use crate::support::wait::eventually;

/// Time between two requests.
const PAUSE: Duration = Duration::from_millis(10);

/// One kind of error, and how to cause and to end it.
struct Case {
    name: &'static str,
    /// The label `error` that `weir_redis_errors_total` must have.
    error: &'static str,
    server: Vec<String>,
    environment: Vec<(String, String)>,
    /// Causes the error, on a connection that was opened before.
    begin: fn(&RedisServer, &mut Connection),
    end: fn(&RedisServer, &mut Connection),
    recovers_within: Duration,
}

fn run_command(connection: &mut Connection, words: &[&str]) {
    cmd(words[0])
        .arg(&words[1..])
        .query::<()>(connection)
        .unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

fn case(
    name: &'static str,
    begin: fn(&RedisServer, &mut Connection),
    end: fn(&RedisServer, &mut Connection),
) -> Case {
    let recovers_within = Duration::from_secs(1);
    Case {
        name,
        error: name,
        server: Vec::new(),
        environment: Vec::new(),
        begin,
        end,
        recovers_within,
    }
}

/// The path of the dump; a folder at this path makes dumps fail.
fn dump(connection: &mut Connection) -> PathBuf {
    let (_, folder): (String, String) = cmd("CONFIG")
        .arg(&["GET", "dir"])
        .query(connection)
        .expect("a folder");
    PathBuf::from(folder).join("dump.rdb")
}

fn save_in_background(connection: &mut Connection, ends: &str) {
    let saved = eventually(|| {
        // Redis refuses it while another one runs.
        let _ = cmd("BGSAVE").query::<String>(connection);
        std::thread::sleep(Duration::from_millis(20));
        let info: String = cmd("INFO")
            .arg("persistence")
            .query(connection)
            .expect("it answers");
        info.contains(&format!("rdb_last_bgsave_status:{ends}"))
            .then_some(())
    });
    assert!(saved.is_some(), "BGSAVE does not end with {ends}");
}

/// The arguments of a line.
fn words(text: &str) -> Vec<String> {
    text.split(' ').map(ToOwned::to_owned).collect()
}

fn wrong_password() -> Case {
    Case {
        server: words("--requirepass right"),
        environment: vec![("REDIS_AUTH".into(), "right".into())],
        recovers_within: Duration::from_secs(6),
        ..case(
            "auth",
            |_, redis| {
                run_command(redis, &["CONFIG", "SET", "requirepass", "other"]);
                run_command(redis, &["CLIENT", "KILL", "TYPE", "normal"]);
            },
            |_, redis| run_command(redis, &["CONFIG", "SET", "requirepass", "right"]),
        )
    }
}

fn wrong_certificate(certificates: &Certificates) -> Case {
    let tls = ports::free().port().to_string();
    Case {
        server: [
            words("--tls-auth-clients no --tls-port"),
            vec![tls.clone()],
            certificates.arguments(),
        ]
        .concat(),
        environment: vec![
            ("REDIS_URL".into(), format!("localhost:{tls}")),
            ("REDIS_TLS".into(), "true".into()),
            ("REDIS_TLS_CACERT".into(), certificates.path("right-ca.pem")),
        ],
        recovers_within: Duration::from_secs(6),
        ..case(
            "tls_certificate",
            |_, redis| certify(redis, "wrong"),
            |_, redis| certify(redis, "right"),
        )
    }
}

/// Loading takes a millisecond for each key.
fn loading() -> Case {
    let server = "--enable-debug-command yes --key-load-delay 1000 \
        --loading-process-events-interval-bytes 1024";
    Case {
        server: words(server),
        ..case(
            "loading",
            |server, redis| {
                run_command(
                    redis,
                    &[
                        "DEBUG",
                        "POPULATE",
                        &(fault().as_millis() + 500).to_string(),
                        "filler",
                        "100",
                    ],
                );
                let mut other = server.connection();
                std::thread::spawn(move || cmd("DEBUG").arg("RELOAD").query::<()>(&mut other));
            },
            |_, redis| {
                let loads = |info: String| info.contains("loading:1");
                let ended = eventually(|| {
                    (!loads(cmd("INFO").arg("persistence").query(redis).ok()?)).then_some(())
                });
                assert!(ended.is_some(), "loading does not end");
                let fillers: Vec<String> = cmd("KEYS").arg("filler:*").query(redis).expect("keys");
                run_command(redis, &["DEL", &fillers[0]]);
                cmd("DEL").arg(&fillers).query::<()>(redis).expect("gone");
            },
        )
    }
}

fn cases(certificates: &Certificates) -> Vec<Case> {
    vec![
        case(
            "oom",
            |_, redis| run_command(redis, &["CONFIG", "SET", "maxmemory", "1"]),
            |_, redis| run_command(redis, &["CONFIG", "SET", "maxmemory", "0"]),
        ),
        case(
            "misconf",
            |_, redis| {
                fs::create_dir(dump(redis)).expect("a folder");
                run_command(redis, &["CONFIG", "SET", "save", "900 100000"]);
                save_in_background(redis, "err");
            },
            |_, redis| {
                fs::remove_dir(dump(redis)).expect("the folder");
                save_in_background(redis, "ok");
            },
        ),
        case(
            "readonly",
            |_, redis| run_command(redis, &["REPLICAOF", "127.0.0.1", "1"]),
            |_, redis| run_command(redis, &["REPLICAOF", "NO", "ONE"]),
        ),
        case(
            "noreplicas",
            |_, redis| run_command(redis, &["CONFIG", "SET", "min-replicas-to-write", "1"]),
            |_, redis| run_command(redis, &["CONFIG", "SET", "min-replicas-to-write", "0"]),
        ),
        loading(),
        case(
            "busy",
            |server, redis| {
                run_command(redis, &["CONFIG", "SET", "busy-reply-threshold", "50"]);
                let mut other = server.connection();
                std::thread::spawn(move || {
                    cmd("EVAL")
                        .arg(&["while true do end", "0"])
                        .query::<()>(&mut other)
                });
            },
            |_, redis| run_command(redis, &["SCRIPT", "KILL"]),
        ),
        wrong_password(),
        wrong_certificate(certificates),
    ]
}

/// Two authorities, each with a certificate for this machine.
struct Certificates(TempDir);

impl Certificates {
    fn new() -> Self {
        let certificates = Self(TempDir::new().expect("a folder"));
        for name in ["right", "wrong"] {
            let mut authority = CertificateParams::new(Vec::new()).expect("no names");
            authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let authority =
                CertifiedIssuer::self_signed(authority, KeyPair::generate().expect("a key"))
                    .expect("an authority");
            let key = KeyPair::generate().expect("a key");
            let server = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
            let server = server.signed_by(&key, &authority).expect("a certificate");
            for (file, text) in [
                ("ca.pem", authority.pem()),
                ("cert.pem", server.pem()),
                ("key.pem", key.serialize_pem()),
            ] {
                fs::write(certificates.path(&format!("{name}-{file}")), text).expect("a file");
            }
        }
        certificates
    }

    fn path(&self, file: &str) -> String {
        self.0.path().join(file).to_string_lossy().into_owned()
    }

    fn arguments(&self) -> Vec<String> {
        let files = [
            ("--tls-cert-file", "right-cert.pem"),
            ("--tls-key-file", "right-key.pem"),
            ("--tls-ca-cert-file", "right-ca.pem"),
        ];
        files
            .into_iter()
            .flat_map(|(name, file)| [name.to_owned(), self.path(file)])
            .collect()
    }
}

/// Makes the server use the certificate of this name, from the folder of its present one, and
/// closes its connections.
fn certify(redis: &mut Connection, name: &str) {
    let (_, shown): (String, String) = cmd("CONFIG")
        .arg(&["GET", "tls-cert-file"])
        .query(redis)
        .expect("a file");
    let folder = PathBuf::from(shown)
        .parent()
        .expect("a folder")
        .to_string_lossy()
        .into_owned();
    let (certificate, key) = (
        format!("{folder}/{name}-cert.pem"),
        format!("{folder}/{name}-key.pem"),
    );
    run_command(
        redis,
        &[
            "CONFIG",
            "SET",
            "tls-cert-file",
            &certificate,
            "tls-key-file",
            &key,
        ],
    );
    run_command(redis, &["CLIENT", "KILL", "TYPE", "normal"]);
}

/// How long the error lasts.
fn fault() -> Duration {
    Pace::here().pick(Duration::from_secs(1), Duration::from_secs(5))
}

/// Runs a case. Returns how long the recovery took, or what was wrong.
fn run(case: &Case) -> Result<Duration, String> {
    let server =
        RedisServer::start_with(&case.server.iter().map(String::as_str).collect::<Vec<_>>());
    let mut beside = server.connection();
    let url = server.url();
    let given = case
        .environment
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let environment: Vec<_> = [
        ("REDIS_URL", url.as_str()),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "0"),
        ("STORE_TIMEOUT", "100ms"),
    ]
    .into_iter()
    .chain(given)
    .collect();
    let weir = [Weir::start(LIMITS, &environment)];
    let mut client = BlockingClient::new(&weir[0]);
    let requests = ["error", "script"].map(|label| load_request(label, "g10").request);
    for request in &requests {
        client.ask_until_ok(request);
    }
    (case.begin)(&server, &mut beside);
    let begun = Instant::now();
    let (mut asked, mut good) = (0, 0);
    while begun.elapsed() < fault() {
        for request in &requests {
            let outcome = client.call(request.clone()).outcome;
            asked += 1;
            match outcome {
                Outcome::Failed(tonic::Code::Unavailable) => {}
                // Requests that were sent before may still be answered.
                Outcome::Ok if begun.elapsed() < fault() / 4 => good += 1,
                other => {
                    return Err(format!(
                        "{other:?} after {:?}, {good} good of {asked}",
                        begun.elapsed()
                    ));
                }
            }
        }
        sleep(PAUSE);
    }
    let named = metric(
        &weir,
        "weir_redis_errors_total",
        &format!("error=\"{}\"", case.error),
    );
    if named == 0 {
        return Err(format!(
            "not counted as {}: {:?}",
            case.error,
            errors(&weir[0])
        ));
    }
    (case.end)(&server, &mut beside);
    let took = requests
        .iter()
        .map(|request| client.ask_until_ok(request))
        .sum();
    if took > Pace::here().bound(case.recovers_within) {
        return Err(format!("recovered after {took:?}"));
    }
    let (status, _) = weir[0].get("/healthcheck");
    if status == 200 {
        Ok(took)
    } else {
        Err(format!("/healthcheck says {status}"))
    }
}

/// All series of errors that are not zero.
fn errors(weir: &Weir) -> Vec<String> {
    let page = weir.get("/metrics").1;
    page.lines()
        .filter(|line| line.starts_with("weir_redis_errors_total") && !line.ends_with(" 0"))
        .map(ToOwned::to_owned)
        .collect()
}

/// For each kind of error: the failure policy answers, the metric names the error, and Weir
/// recovers by itself.
#[test]
fn g10_errors_of_redis_are_named_and_recovered_from() {
    let (_exclusive, mut goal, certificates) = (exclusive(), Goal::of("G10"), Certificates::new());
    let cases = cases(&certificates);
    let mut figures = Vec::new();
    std::thread::scope(|scope| {
        let running: Vec<_> = cases
            .iter()
            .map(|case| (case.name, scope.spawn(|| run(case))))
            .collect();
        for (name, running) in running {
            match running.join() {
                Ok(Ok(took)) => figures.push(format!("{name} {} ms", took.as_millis())),
                Ok(Err(wrong)) => goal.must(false, format!("{name}: {wrong}")),
                Err(_) => goal.must(false, format!("{name}: panicked")),
            }
        }
    });
    goal.end(format!("recovered from {}", figures.join(", ")));
}
