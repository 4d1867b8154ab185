//! Redis's clock jumps ahead, farther than any caller's deadline: the scripts of requests that
//! still have time run all the same, once.
//!
//! A proxy makes Redis's clock: it sets back the times in replies, while scripts read Redis's own
//! clock. When it stops, the clock has jumped.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use weir::core::algorithm::{AlgorithmKind, Options};
use weir::core::time::{Rate, Unit};
use weir::limits::rules::Commit;
use weir::store::redis::Address;

use super::*;
use crate::support::redis::{RedisServer, connect};

/// The seconds by which the proxy sets times back.
const JUMP_SECS: u64 = 3_600;

/// Forwards all bytes, with every bulk string of ten digits, which is the first number of TIME,
/// less by `back` seconds.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, back: Arc<AtomicU64>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let bytes = &mut buffer[..count];
        for at in 0..bytes.len().saturating_sub(15) {
            if bytes[at..].starts_with(b"$10\r\n")
                && let Some(secs) = std::str::from_utf8(&bytes[at + 5..at + 15])
                    .ok()
                    .and_then(|digits| digits.parse::<u64>().ok())
            {
                bytes[at + 5..at + 15]
                    .copy_from_slice((secs - back.load(Ordering::Relaxed)).to_string().as_bytes());
            }
        }
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
}

/// Starts the proxy before a server. Returns its port, and the seconds by which it sets times back.
async fn proxy(server: &RedisServer) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind(("127.0.0.1", 0))
        .await
        .expect("a free port");
    let (port, to, back) = (
        listener.local_addr().expect("an address").port(),
        server.port(),
        Arc::new(AtomicU64::new(JUMP_SECS)),
    );
    let shared = Arc::clone(&back);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", to))
                .await
                .expect("Redis runs");
            let ((from_client, to_client), (from_server, to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(forward(from_client, to_server, Arc::new(AtomicU64::new(0))));
            tokio::spawn(forward(from_server, to_client, Arc::clone(&shared)));
        }
    });
    (port, back)
}

#[tokio::test]
async fn scripts_run_once_within_the_deadline_after_a_jump_of_the_clock() {
    let made = |kind, unit| {
        let rate = Rate {
            requests_per_unit: 10,
            unit,
            unit_multiplier: 1,
        };
        Algorithm::try_new(
            &rate,
            &Options {
                kind,
                count_denied: Some(false),
                ..Options::default()
            },
        )
        .expect("an algorithm")
    };
    for commit in [Commit::Each, Commit::AllOrNone] {
        let server = RedisServer::start();
        let (port, back) = proxy(&server).await;
        let options = weir::store::redis::Options::new(Address::Tcp {
            host: "127.0.0.1".to_owned(),
            port,
        });
        let redis = connect(options);
        // Opens the connection and shows the clock; the second time with the script.
        decide_one(&redis, "before", 10, 1)
            .await
            .expect("Redis is well");
        back.store(0, Ordering::Relaxed);
        let all = AlgorithmKind::OVER_TIME.map(|(name, kind)| {
            let unit = if kind == AlgorithmKind::FixedWindow {
                Unit::Minute
            } else {
                Unit::Year
            };
            (name, Check::new(made(kind, unit), 1, Modes::default()))
        });
        let mut checks = checks_of(&all);
        checks.commit = commit;
        let answers = decide_within(
            &redis,
            checks,
            Budget {
                max_wait: Span::MAX,
                ..Budget::until(Instant::now() + TIMEOUT)
            },
        )
        .await;
        for ((name, _), answer) in all.iter().zip(&answers.verdicts()) {
            assert_eq!(
                answer.map(|verdict| (verdict.allowed, verdict.used)),
                Ok((true, 1)),
                "{name}, {commit:?}"
            );
        }
        // The window is the one of the new clock.
        let (minute, keys) = (answers.now.0 / 60_000_000, server.keys());
        assert!(keys.contains(&format!("fixed_window:{minute}")), "{keys:?}");
        assert_eq!(redis.deployment().error_counts(), []);
    }
}
