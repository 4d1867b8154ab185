//! TLS: which certificates are trusted, and the names of the errors.

use super::*;
use crate::redis::{check, decide_all};

const CERTIFICATE: Result<i64, StoreError> = Err(StoreError::NotExecuted("tls_certificate"));

#[tokio::test]
async fn a_connection_with_a_trusted_certificate_is_reused() {
    for versions in ["TLSv1.2", "TLSv1.3", "TLSv1.2 TLSv1.3"] {
        let secured = Secured::start(&["--tls-protocols", versions]);
        for host in ["localhost", "127.0.0.1"] {
            let redis = secured.redis(host, &secured.trusting());
            for _ in 0..5 {
                hit(&redis)
                    .await
                    .unwrap_or_else(|error| panic!("{versions}, {host}: {error}"));
                // TLS messages such as session tickets arrive meanwhile; the connection is kept all
                // the same.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(
                (
                    redis.deployment().connections().opened,
                    redis.deployment().error_counts()
                ),
                (1, Vec::new()),
                "{versions}, {host}"
            );
        }
        assert_eq!(
            hit(&secured.redis("localhost", &secured.trusting())).await,
            Ok(11)
        );
    }
}

/// More bytes than one TLS record holds, in both directions.
#[tokio::test]
async fn large_batches_arrive_whole() {
    let secured = Secured::start(&[]);
    let redis = secured.redis("localhost", &secured.trusting());
    let keys: Vec<_> = (0..1_000)
        .map(|number| format!("{number}{}", "x".repeat(200)))
        .collect();
    for round in 1..=3 {
        let answers = decide_all(
            &redis,
            &keys
                .iter()
                .map(|key| (key.as_str(), check(10, 1)))
                .collect::<Vec<_>>(),
        )
        .await;
        assert!(
            answers
                .verdicts()
                .iter()
                .all(|answer| answer.is_ok_and(|verdict| verdict.used == round)),
            "round {round}"
        );
    }
    assert_eq!(redis.deployment().connections().opened, 1);
}

#[tokio::test]
async fn an_untrusted_certificate_is_a_named_error() {
    let secured = Secured::start(&[]);
    let stranger = Authority::new("stranger");
    let files = &secured.files;
    let trusting_a_stranger = TlsFiles {
        ca_cert: Some(files.write("stranger.crt", &stranger.pem())),
        ..TlsFiles::default()
    };
    assert_eq!(
        hit(&secured.redis("localhost", &trusting_a_stranger)).await,
        CERTIFICATE,
        "another authority"
    );
    assert_eq!(
        hit(&secured.redis("localhost", &TlsFiles::default())).await,
        CERTIFICATE,
        "the system's authorities"
    );
    assert_eq!(
        hit(&secured.redis("localhost", &skipping(trusting_a_stranger))).await,
        CERTIFICATE,
        "only the name is not checked"
    );

    files.write_issued("elsewhere", &secured.authority.issue(&["elsewhere"]));
    secured.use_certificate("elsewhere");
    assert_eq!(
        hit(&secured.redis("localhost", &secured.trusting())).await,
        CERTIFICATE,
        "another name"
    );
    assert_eq!(
        hit(&secured.redis("127.0.0.1", &secured.trusting())).await,
        CERTIFICATE,
        "no address"
    );
    assert_eq!(
        hit(&secured.redis("127.0.0.1", &skipping(secured.trusting()))).await,
        Ok(1)
    );

    files.write_issued("expired", &secured.authority.issue_expired(&["localhost"]));
    secured.use_certificate("expired");
    assert_eq!(
        hit(&secured.redis("localhost", &secured.trusting())).await,
        CERTIFICATE,
        "expired"
    );
    assert_eq!(
        hit(&secured.redis("localhost", &skipping(secured.trusting()))).await,
        CERTIFICATE,
        "expired, for any name"
    );
    assert_eq!(secured.server.keys().len(), 1, "nothing else was counted");
}

#[tokio::test]
async fn redis_may_require_a_client_certificate() {
    for versions in ["TLSv1.2", "TLSv1.3"] {
        let secured = Secured::start(&["--tls-auth-clients", "yes", "--tls-protocols", versions]);
        let files = &secured.files;
        let showing = |name: &str, authority: &Authority| {
            files.write_issued(name, &authority.issue(&["weir"]));
            let (cert, key) = (
                files.path(&format!("{name}.crt")),
                files.path(&format!("{name}.key")),
            );
            TlsFiles {
                client_cert: Some(cert),
                client_key: Some(key),
                ..secured.trusting()
            }
        };
        let own = showing("weir", &secured.authority);
        assert_eq!(
            hit(&secured.redis("localhost", &own)).await,
            Ok(1),
            "{versions}"
        );
        for (wrong, what) in [
            (secured.trusting(), "none"),
            (
                showing("strange", &Authority::new("stranger")),
                "a stranger's",
            ),
        ] {
            let redis = secured.redis("localhost", &wrong);
            let answer = hit(&redis).await;
            let named = matches!(
                answer,
                Err(StoreError::NotExecuted("tls_certificate" | "tls"))
            );
            assert!(named, "{versions}, {what}: {answer:?}");
        }
        // Replaced by a certificate that Redis accepts, without a restart.
        let redis = secured.redis(
            "localhost",
            &showing("rotated", &Authority::new("stranger")),
        );
        assert!(hit(&redis).await.is_err(), "{versions}");
        files.write_issued("rotated", &secured.authority.issue(&["weir"]));
        recovery_time(&redis).await;
    }
}

#[tokio::test]
async fn a_new_authority_is_trusted_without_a_restart() {
    let secured = Secured::start(&[]);
    let redis = secured.redis("localhost", &secured.trusting());
    assert_eq!(hit(&redis).await, Ok(1));
    let next = Authority::new("next");
    secured
        .files
        .write_issued("next", &next.issue(&["localhost"]));
    secured.use_certificate("next");
    secured
        .server
        .run::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(
        hit(&redis).await,
        CERTIFICATE,
        "the new authority is not trusted yet"
    );
    // An empty file in the middle of a rotation must not replace the authorities in use.
    secured.files.write("ca.crt", "");
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert_eq!(hit(&redis).await, CERTIFICATE);
    secured
        .files
        .write("ca.crt", &(secured.authority.pem() + &next.pem()));
    recovery_time(&redis).await;
}

/// When only one side speaks TLS, the error comes by the end of `connect_timeout`. It is no
/// configuration error where it could also be a server that hangs.
#[tokio::test]
async fn plaintext_on_one_side_and_tls_on_the_other_is_an_error() {
    let secured = Secured::start(&[]);
    let short = |options: Options| Options {
        connect_timeout: Duration::from_millis(250),
        ..options
    };
    let began = Instant::now();
    let to_plaintext = options(
        &format!("rediss://localhost:{}", secured.server.port()),
        &secured.trusting(),
    );
    let answer = hit(&connect(short(to_plaintext))).await;
    assert!(
        matches!(
            answer,
            Err(StoreError::NotExecuted("connect_timeout" | "tls"))
        ),
        "{answer:?}"
    );
    let to_tls = options(
        &format!("redis://localhost:{}", secured.tls_port),
        &TlsFiles::default(),
    );
    let answer = hit(&connect(short(to_tls))).await;
    assert!(
        matches!(answer, Err(StoreError::NotExecuted("io" | "tls"))),
        "{answer:?}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
}
