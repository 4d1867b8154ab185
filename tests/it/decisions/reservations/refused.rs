//! Refused requests that reserve while Redis does not answer their second call, which takes back
//! what they have newly reserved: Weir repeats it for up to the `ttl`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bb8_redis::redis;

use super::rule::{all, file, one, until_left};
use crate::support::relay::{Command, Relay, refuse, script_keys};
use crate::support::wait::TIMEOUT;
use crate::support::{RedisServer, Weir};

const LIMITS: &str = "
  - { key: tenant, rate_limit: { unit: year, requests_per_unit: 20000, \
      reservations: { ttl: 60s, on_expiry: keep } } }
  - { key: short, rate_limit: { unit: year, requests_per_unit: 20000, \
      reservations: { ttl: 1s, on_expiry: keep } } }
  - { key: closed, rate_limit: { unit: year, requests_per_unit: 0 } }
";

/// Bytes of a row of `lua/reservations.lua`, and the place and number of the purpose in it.
const ROW: usize = 62;
const PURPOSE: usize = 4;
const TAKES_BACK: u8 = 3;

/// Whether a call takes back reservations.
fn takes_back(command: &Command) -> bool {
    let rows = script_keys(command).and_then(|keys| command.get(3 + keys + 9));
    let is_one = |row: &[u8]| row.get(PURPOSE) == Some(&TAKES_BACK);
    rows.is_some_and(|rows| rows.chunks(ROW).any(is_one))
}

/// Weir, and a Redis to which something happens at the first call that takes back reservations.
struct Outage {
    redis: Arc<RedisServer>,
    weir: Weir,
    /// Number of such calls.
    calls: Arc<AtomicUsize>,
}

impl Outage {
    fn start(first: impl Fn(&RedisServer, &mut Command) + Send + Sync + 'static) -> Self {
        let redis = Arc::new(RedisServer::start());
        let calls = Arc::<AtomicUsize>::default();
        // The threads of the relay outlive the test: they must not keep the server.
        let (own, counted) = (Arc::downgrade(&redis), Arc::clone(&calls));
        let relay = Relay::start(redis.port(), move |command| {
            if takes_back(command)
                && counted.fetch_add(1, Ordering::Relaxed) == 0
                && let Some(own) = own.upgrade()
            {
                first(&own, command);
            }
        });
        let url = format!("127.0.0.1:{}", relay.port());
        let environment = [("REDIS_URL", &*url), ("STORE_TIMEOUT", "1s")];
        let weir = Weir::start(&[("limits.yaml", &file(LIMITS))], &environment);
        Self { redis, weir, calls }
    }

    async fn until_called(&self, times: usize) {
        let began = Instant::now();
        while self.calls.load(Ordering::Relaxed) < times {
            assert!(began.elapsed() < TIMEOUT, "{times} calls");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Redis hangs from the second call on: it is repeated until Redis answers it. After the `ttl` it is
/// not, and what is kept stays charged.
#[tokio::test]
async fn what_a_refused_request_has_reserved_is_taken_back_after_an_outage() {
    for (key, pause, left) in [("tenant", 2_000, 20_000), ("short", 2_500, 19_600)] {
        let outage = Outage::start(|redis, _| redis.pause());
        let client = &mut outage.weir.client().await;
        let request = [format!("{key}=a reserve=1 400"), "closed=x 1".to_owned()];
        let refused = all(client, &request).await;
        assert_eq!((refused[0].0, refused[1]), (true, (false, 0)));
        tokio::time::sleep(Duration::from_millis(pause)).await;
        outage.redis.resume();
        let began = Instant::now();
        let message = super::rule::request_of(&[format!("{key}=b 0")]);
        while client.should_rate_limit(message.clone()).await.is_err() {
            assert!(began.elapsed() < TIMEOUT, "Redis is back");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let peek = format!("{key}=a 0");
        until_left(client, &[&peek], left).await;
        let refunded = "weir_reservations_refunded_total{domain=\"rule\",limit=\"tenant\"}";
        assert_eq!(
            outage.weir.metric(refunded),
            Some(f64::from(u8::from(key == "tenant")))
        );
        assert!(one(client, &format!("{key}=a settle=1 100")).await.0);
    }
}

/// The second call runs, and its reply is lost: it is repeated, and takes nothing of what the id
/// held before the refused request.
#[tokio::test]
async fn a_repeated_call_takes_back_nothing_more() {
    let outage = Outage::start(|redis, command| {
        let mut own = redis::Cmd::new();
        for word in &*command {
            own.arg(&word[..]);
        }
        let reply: redis::Value = own.query(&mut redis.connection()).expect("a reply");
        assert!(matches!(reply, redis::Value::Array(_)), "{reply:?}");
        refuse(command, "ERR the reply is lost");
    });
    let client = &mut outage.weir.client().await;
    assert_eq!(one(client, "tenant=a reserve=1 100").await, (true, 19_900));
    let refused = all(client, &["tenant=a reserve=1 150", "closed=x 1"]).await;
    assert_eq!((refused[0].0, refused[1]), (true, (false, 0)));
    outage.until_called(2).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(one(client, "tenant=a 0").await, (true, 19_900));
    assert_eq!(one(client, "tenant=a settle=1 70").await, (true, 19_930));
}
