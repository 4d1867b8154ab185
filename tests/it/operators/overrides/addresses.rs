//! Overrides of networks, and addresses in several spellings.

use weir::core::proto::rate_limit_response::Code;

use super::{Desk, code};
use crate::support::{Client, RedisServer, Weir};

const LIMITS: &str = "
domain: shop
descriptors:
  - { key: ip, match: cidr, values: [2001:db8::/32, 10.0.0.0/8], rate_limit: { unit: year, \
      requests_per_unit: 3 } }
  - { key: ip, value: 2001:DB8:0::7, rate_limit: { unit: year, requests_per_unit: 1, name: seven } }
  - { key: ip, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: group, match: cidr, value: 2001:db8::/32, prefix: 64, rate_limit: { unit: year, \
      requests_per_unit: 3 } }
  - { key: plain, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: masked_remote_address, rate_limit: { unit: year, requests_per_unit: 3 } }
";

/// Runs a test with both stores.
async fn each(test: impl AsyncFn(&Desk, &Weir, &mut Client)) {
    let (desk, redis) = (Desk::new(), RedisServer::start());
    let url = redis.url();
    for environment in [&[][..], &[("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")]] {
        let weir = desk.start(LIMITS, environment);
        test(&desk, &weir, &mut weir.client().await).await;
    }
}

#[tokio::test]
async fn an_override_of_a_network_decides_its_addresses() {
    each(async |desk, weir, client| {
        desk.ok(weir, &["block", "-d", "shop", "ip=2001:db8::/32"]);
        desk.ok(weir, &["exempt", "-d", "shop", "ip=2001:db8:a::/48"]);
        desk.ok(weir, &["block", "-d", "shop", "ip=2001:db8:a::66"]);
        desk.ok(
            weir,
            &["raise", "-d", "shop", "ip=10.1.0.0/16", "--to", "5/year"],
        );
        desk.ok(
            weir,
            &["block", "-d", "shop", "masked_remote_address=10.0.0.0/8"],
        );
        for (key, value, expected) in [
            ("ip", "2001:DB8:1::1", Code::OverLimit),
            ("ip", "2001:db9::1", Code::Ok),
            ("ip", "2001:db8:a::1", Code::Ok),
            ("ip", "2001:db8:a::66", Code::OverLimit),
            ("masked_remote_address", "10.7.0.0/16", Code::OverLimit),
            ("masked_remote_address", "11.7.0.0/16", Code::Ok),
            ("masked_remote_address", "10.0.0.0/8", Code::OverLimit),
        ] {
            assert_eq!(code(client, key, value, 1).await, expected, "{key}={value}");
        }
        assert_eq!(code(client, "ip", "10.1.2.3", 5).await, Code::Ok, "raised");
        assert_eq!(
            code(client, "ip", "::ffff:10.1.2.3", 1).await,
            Code::OverLimit,
            "it has one counter"
        );
        assert_eq!(
            code(client, "ip", "10.2.2.3", 4).await,
            Code::OverLimit,
            "not raised"
        );
        let all = desk.weir(weir, &["block", "-d", "shop", "ip=::/0"]);
        assert!(
            String::from_utf8_lossy(&all.stderr).contains("--all"),
            "all addresses"
        );
        let explained = desk.ok(weir, &["explain", "-d", "shop", "ip=2001:DB8:1::1"]);
        assert!(
            explained.contains("REFUSED NOW: blocked by the override"),
            "{explained}"
        );
        let listed = desk.ok(weir, &["overrides"]);
        assert!(
            listed.contains("ip=2001:db8:a::/48") && listed.contains("ip=10.1.0.0/16"),
            "{listed}"
        );
        desk.ok(weir, &["unblock", "-d", "shop", "ip=2001:DB8::/32"]);
        assert_eq!(code(client, "ip", "2001:db8:1::1", 1).await, Code::Ok);
        // A network with bits behind its prefix is a text that no address is.
        desk.ok(weir, &["block", "-d", "shop", "ip=10.9.9.9/8"]);
        assert_eq!(code(client, "ip", "10.9.9.9", 1).await, Code::Ok);
        desk.ok(weir, &["unblock", "-d", "shop", "ip=10.9.9.9/8"]);
    })
    .await;
}
