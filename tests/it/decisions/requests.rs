//! The Redis that counts a request of several limits.

use crate::support::{RedisServer, Weir, descriptor, request};

/// All limits of a request are counted in one step, which one Redis has to do.
#[tokio::test]
async fn with_stop_increment_the_main_redis_counts_limits_per_second() {
    let [main, second] = [RedisServer::start(), RedisServer::start()];
    let limits = "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: second, unit_multiplier: \
        100000, requests_per_unit: 1 } }]\n";
    let start = |stop: &str| {
        let (main, second) = (main.url(), second.url());
        let environment = [
            ("REDIS_URL", &*main),
            ("REDIS_PERSECOND", "1"),
            ("REDIS_PERSECOND_URL", &second),
            ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", stop),
        ];
        Weir::start(
            &[("a.yaml", limits)],
            &[&environment[..], &[("STORE_TIMEOUT", "5s")]].concat(),
        )
    };
    for (stop, counted_in, empty) in [("T", &main, &second), ("F", &second, &main)] {
        main.flush();
        second.flush();
        let weir = start(stop);
        let mut client = weir.client().await;
        let one = request("d", vec![descriptor(&[("a", "x")])]);
        client.should_rate_limit(one).await.expect("an answer");
        assert_eq!(
            (counted_in.keys().len(), empty.keys().len()),
            (1, 0),
            "{stop}"
        );
        let told = weir
            .logs()
            .iter()
            .any(|line| line.contains("not in that of REDIS_PERSECOND_URL"));
        assert_eq!(told, stop == "T", "the cost is in the log");
    }
}
