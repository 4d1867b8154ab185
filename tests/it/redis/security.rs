//! Logins and TLS with a real redis-server: which servers are trusted, the names of the errors,
//! recovery without a restart, and no password in any output.

mod secrets;
mod tls;

use std::time::Duration;

use tokio::time::Instant;
use weir::store::redis::{NameCheck, Options, RawOptions, TlsFiles};
use weir::store::{Redis, StoreError};

use crate::redis::decide_one;
use crate::support::certificates::{Authority, Files};
use crate::support::redis::connect;
use crate::support::{RedisServer, ports};

/// A redis-server with a TLS port and a plaintext port.
struct Secured {
    server: RedisServer,
    tls_port: u16,
    files: Files,
    authority: Authority,
}

impl Secured {
    /// Starts a server with a certificate for localhost and 127.0.0.1, and with these arguments.
    fn start(arguments: &[&str]) -> Self {
        let (authority, files, tls_port) =
            (Authority::new("first"), Files::new(), ports::free().port());
        files.write("ca.crt", &authority.pem());
        files.write_issued("redis", &authority.issue(&["localhost", "127.0.0.1"]));
        let port = tls_port.to_string();
        let (certificate, key, ca) = (
            files.text("redis.crt"),
            files.text("redis.key"),
            files.text("ca.crt"),
        );
        let mut all = vec![
            "--tls-port",
            &port,
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &ca,
        ];
        if !arguments.contains(&"--tls-auth-clients") {
            all.extend(["--tls-auth-clients", "no"]);
        }
        all.extend(arguments);
        let server = RedisServer::start_with(&all);
        Self {
            server,
            tls_port,
            files,
            authority,
        }
    }

    /// Makes the server use `name.crt` and `name.key` from now on.
    fn use_certificate(&self, name: &str) {
        let (certificate, key) = (
            self.files.text(&format!("{name}.crt")),
            self.files.text(&format!("{name}.key")),
        );
        self.server.run::<()>(&[
            "CONFIG",
            "SET",
            "tls-cert-file",
            &certificate,
            "tls-key-file",
            &key,
        ]);
    }

    /// Options that trust the server's authority.
    fn trusting(&self) -> TlsFiles {
        TlsFiles {
            ca_cert: Some(self.files.path("ca.crt")),
            ..TlsFiles::default()
        }
    }

    fn options(&self, host: &str, files: &TlsFiles) -> Options {
        options(&format!("rediss://{host}:{}", self.tls_port), files)
    }

    fn redis(&self, host: &str, files: &TlsFiles) -> Redis {
        connect(self.options(host, files))
    }
}

/// Options with a long connect timeout, because a handshake may take long on a busy machine.
fn options(url: &str, files: &TlsFiles) -> Options {
    let options = Options::parse(
        &RawOptions {
            url,
            ..RawOptions::default()
        },
        files,
    )
    .expect("good settings");
    Options {
        connect_timeout: Duration::from_secs(2),
        ..options
    }
}

async fn hit(redis: &Redis) -> Result<i64, StoreError> {
    decide_one(redis, "key", 1_000_000, 1)
        .await
        .map(|verdict| i64::try_from(verdict.used).unwrap_or(i64::MAX))
}

/// Asks until an answer is no error. Returns how long that took.
async fn recovery_time(redis: &Redis) -> Duration {
    let began = Instant::now();
    while let Err(error) = hit(redis).await {
        // After a configuration error the next attempt comes after up to six seconds, and its
        // handshake may be slow on a busy machine.
        assert!(began.elapsed() < Duration::from_secs(40), "still {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    began.elapsed()
}

fn skipping(files: TlsFiles) -> TlsFiles {
    TlsFiles {
        name_check: NameCheck::Skipped,
        ..files
    }
}

#[tokio::test]
async fn a_rotated_password_in_a_file_is_used_without_a_restart() {
    let server = RedisServer::start();
    for user in ["old", "new"] {
        server.run::<()>(&[
            "ACL",
            "SETUSER",
            user,
            "on",
            &format!(">{user}s3cret"),
            "~*",
            "+@all",
        ]);
    }
    let files = Files::new();
    let path = files.write("password", "wr0ng\n");
    let url = format!("redis://old@{}", server.url());
    let written = RawOptions {
        url: &url,
        auth_file: path.to_str().expect("UTF-8"),
        ..RawOptions::default()
    };
    let redis = connect(Options::parse(&written, &TlsFiles::default()).expect("good settings"));
    assert_eq!(hit(&redis).await, Err(StoreError::NotExecuted("auth")));
    files.write("password", "olds3cret\n");
    recovery_time(&redis).await;
    // A new password; Redis closes the connections that used the old one.
    server.run::<()>(&["ACL", "SETUSER", "old", "resetpass", ">rotated"]);
    server.run::<()>(&["CLIENT", "KILL", "USER", "old"]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(hit(&redis).await, Err(StoreError::NotExecuted("auth")));
    std::fs::remove_file(&path).expect("there");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(
        hit(&redis).await,
        Err(StoreError::NotExecuted("auth")),
        "without the file there is no connection, and the service continues"
    );
    files.write("password", "rotated");
    recovery_time(&redis).await;
    assert!(!format!("{redis:?}").contains("s3cret"));
}
