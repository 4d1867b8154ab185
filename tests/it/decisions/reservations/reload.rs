//! A reload that removes `reservations`.

use std::time::{Duration, Instant};

use super::rule::{all, each, file, of_each_algorithm, one, until_left};
use crate::support::wait::TIMEOUT;
use crate::support::{Client, RedisServer, Weir};

/// Files with `reservations`, or of the same limits without it, which may then draw hits ahead.
fn with_and_without() -> [String; 3] {
    let limits = |option: &str, lease: &str, further: &str| {
        let amount = "unit: year, requests_per_unit: 100";
        let kept = option.replace("2s", "2s, on_expiry: keep");
        let further = format!("  - {{ key: {further}, rate_limit: {{ {amount} }} }}\n");
        file(
            &(of_each_algorithm("", &format!("{amount}{option}"))
                + &of_each_algorithm("kept_", &format!("{amount}{kept}"))
                + &format!("  - {{ key: drawn, rate_limit: {{ {amount}{option}{lease} }} }}\n")
                + "  - { key: end, rate_limit: { unit: year, requests_per_unit: 9, \
                    reservations: { ttl: 3s } } }\n"
                + &further),
        )
    };
    [
        limits(", reservations: { ttl: 2s }", "", "first"),
        limits("", ", lease: true", "second"),
        limits("", ", lease: true", "third"),
    ]
}

/// Puts another file in force. `further` is the key of a limit that it has.
async fn reload(client: &mut Client, weir: &Weir, text: &str, further: &str) {
    std::fs::write(weir.config_dir().join("limits.yaml"), text).expect("written");
    let began = Instant::now();
    while one(client, &format!("{further}=x 0")).await.1 == 0 {
        assert!(began.elapsed() < TIMEOUT, "reloaded");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Open holds of a limit that has no `reservations` any more end by themselves, also after further
/// reloads. What is kept stays charged. A replica that starts later sees what others have ended.
#[tokio::test]
async fn without_the_option_open_holds_end() {
    let [with, without, again] = with_and_without();
    let keys = ["fixed", "counter", "log", "buckets", "bucket", "drawn"];
    let kept = ["fixed", "counter", "log", "buckets", "bucket"].map(|key| format!("kept_{key}"));
    let redis = RedisServer::start();
    let url = redis.url();
    for environment in [&[][..], &[("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")]] {
        let weir = Weir::start(&[("limits.yaml", &with)], environment);
        let client = &mut weir.client().await;
        let mut all_keys = keys.to_vec();
        all_keys.extend(kept.iter().map(|key| &**key));
        let begin = ["=a reserve=1 40", "=b reserve=1 40", "=c reserve=1 40"];
        let begin = begin.map(|rest| each(&all_keys, rest)).concat();
        let answers = all(client, &begin).await;
        assert!(
            answers.iter().all(|left| *left == (true, 60)),
            "{answers:?}"
        );
        all(client, &["end=a reserve=1 1"]).await;
        reload(client, &weir, &without, "second").await;
        // The entry `reserve` is now one of no limit.
        assert_eq!(one(client, "fixed=b reserve=1 0").await, (true, 0));
        until_left(client, &["end=a 0"], 9).await;
        for key in keys {
            assert_eq!(
                one(client, &format!("{key}=a 0")).await,
                (true, 100),
                "{key}"
            );
            assert_eq!(
                one(client, &format!("{key}=a 90")).await,
                (true, 10),
                "{key}"
            );
            assert!(!one(client, &format!("{key}=a 11")).await.0, "{key}");
        }
        for key in &kept {
            assert_eq!(
                one(client, &format!("{key}=a 0")).await,
                (true, 60),
                "{key}"
            );
        }
        reload(client, &weir, &again, "third").await;
        for key in keys {
            assert_eq!(
                one(client, &format!("{key}=b 1")).await,
                (true, 99),
                "{key}"
            );
        }
        if !environment.is_empty() {
            let late = Weir::start(&[("limits.yaml", &again)], environment);
            let other = &mut late.client().await;
            let peeks = each(&["fixed", "counter", "log", "buckets", "bucket"], "=c 0");
            assert_eq!(all(other, &peeks).await, [(true, 60); 5]);
            assert_eq!(all(client, &peeks).await, [(true, 100); 5]);
            assert_eq!(all(other, &peeks).await, [(true, 100); 5]);
        }
    }
}
