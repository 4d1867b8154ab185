//! Guard of the listeners for operators against cross-site requests and DNS rebinding.
//!
//! A browser on an operator's machine or in its network shows pages of other sites, which can send
//! requests to this listener. The browser marks a cross-site request in `Origin` or
//! `Sec-Fetch-Site`. With DNS rebinding, the name of the page's own site points to this listener:
//! for the browser the two are one site, and `Host` has that name. An attacker owns names with a
//! dot, but no address, no `localhost`, and no short name of a Service.
//!
//! On loopback the guard accepts only addresses and `localhost`. On other addresses, programs use
//! names of any form and are no danger. There it refuses a name with a dot only to browsers, which
//! send `Accept-Language` with every request. A browser that sends `Sec-Fetch-Site` passes: it uses
//! HTTPS, and no rebound page has a certificate for this listener.
//!
//! The metrics have no guard: they contain nothing about clients, and are scraped under any name.

use std::net::{IpAddr, Ipv6Addr};

use hyper::header::{ACCEPT_LANGUAGE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::{Method, Request};

/// Whether a browser sends a request on behalf of another site, and for which kind of resource.
/// Source: W3C, "Fetch Metadata Request Headers".
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The guard of one listener.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    /// Whether only this machine reaches the listener.
    pub is_loopback: bool,
}

impl Guard {
    /// The guard of a listener that answers programs by any name.
    pub const ANY_NAME: Self = Self { is_loopback: false };

    /// The guard of a listener at this address.
    pub const fn new(listener: IpAddr) -> Self {
        Self {
            is_loopback: listener.is_loopback(),
        }
    }

    /// Lets a request pass, unless a page of another site made it.
    ///
    /// # Errors
    /// The reason of the refusal, and the fix.
    pub fn check<B>(self, request: &Request<B>) -> Result<(), &'static str> {
        let headers = request.headers();
        // A browser always sends `Host`.
        let host = headers
            .get(HOST)
            .map(|host| host.to_str().unwrap_or_default());
        let mut hosts = headers.get_all(HOST).iter();
        if hosts.any(|host| self.is_foreign(host, headers)) {
            let loopback = "this listener is on loopback: call it as 127.0.0.1, [::1] or localhost";
            return Err(if self.is_loopback {
                loopback
            } else {
                "browsers reach this listener by its address, by localhost, or by HTTPS"
            });
        }
        let is_own = |origin: &str| {
            origin
                .split_once("://")
                .is_some_and(|(_, from)| host.is_some_and(|host| from.eq_ignore_ascii_case(host)))
        };
        let mut origins = headers.get_all(ORIGIN).iter();
        let is_foreign_origin = origins.any(|origin| !origin.to_str().is_ok_and(is_own));
        let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
        let is_foreign_site = sites.any(|site| site != "same-origin" && site != "none");
        // A link to a page: the site with the link cannot read the page that it opens.
        let opens_page = headers
            .get(SEC_FETCH_DEST)
            .is_some_and(|what| what == "document");
        let is_link = request.method() == Method::GET && opens_page;
        if is_foreign_origin || (is_foreign_site && !is_link) {
            return Err("pages of other sites may not call this listener");
        }
        Ok(())
    }

    fn is_foreign(self, host: &HeaderValue, headers: &HeaderMap) -> bool {
        let name = host.to_str().ok().and_then(name_of);
        let is_own =
            |name: &str| name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok();
        if name.is_some_and(is_own) {
            return false;
        }
        let is_short = name.is_some_and(|name| !name.contains('.'));
        let is_browser_without_tls =
            || headers.contains_key(ACCEPT_LANGUAGE) && !headers.contains_key(SEC_FETCH_SITE);
        self.is_loopback || (!is_short && is_browser_without_tls())
    }
}

/// The address or the name in `Host`, without brackets and port. `None` if it does not have the
/// form that browsers send: such a name cannot be trusted. Sources: RFC 9110, section 7.2; RFC
/// 3986, section 3.2.
fn name_of(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_valid = if host.starts_with('[') {
        name.parse::<Ipv6Addr>().is_ok()
    } else {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        name.bytes().all(is_part) && (host.is_empty() || !name.is_empty())
    };
    let is_port = port.strip_prefix(':').map_or(port.is_empty(), |digits| {
        digits.len() <= 5 && digits.bytes().all(|byte| byte.is_ascii_digit())
    });
    (is_valid && is_port).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON_LOOPBACK: Guard = Guard { is_loopback: true };

    fn passes(guard: Guard, method: &str, headers: &[(&str, &str)]) -> bool {
        let request = headers.iter().fold(
            Request::builder().method(method),
            |request, (name, value)| request.header(*name, *value),
        );
        guard.check(&request.body(()).expect("a request")).is_ok()
    }

    #[test]
    fn addresses_and_localhost_pass() {
        let browser = ("accept-language", "en");
        for host in [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:6070",
            "127.9.9.9",
            "[::1]:6070",
            "[::1]",
            "[::1]:",
            "10.0.0.1:6070",
            "[fd00::1]",
        ] {
            for guard in [ON_LOOPBACK, Guard::ANY_NAME] {
                assert!(
                    passes(guard, "GET", &[("host", host)])
                        && passes(guard, "GET", &[("host", host), browser]),
                    "{host}"
                );
            }
        }
    }

    #[test]
    fn a_rebound_name_is_refused_and_names_of_services_pass() {
        let browser = ("accept-language", "en");
        for host in [
            "evil.example:6070",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[::1]:6070.evil.example",
            "[::1",
            "::1",
            "localhost:6070.evil.example",
            "localhost@evil.example",
            "localhost/evil.example",
            "evil%2eexample",
            "evil.example.",
            "ev\u{ef}l",
            "weir.limits.svc.cluster.local:6070",
        ] {
            assert!(!passes(ON_LOOPBACK, "GET", &[("host", host)]), "{host}");
            assert!(
                !passes(Guard::ANY_NAME, "GET", &[("host", host), browser]),
                "{host}"
            );
            assert!(
                passes(Guard::ANY_NAME, "GET", &[("host", host)]),
                "{host}: a program"
            );
            assert!(
                passes(
                    Guard::ANY_NAME,
                    "GET",
                    &[("host", host), browser, ("sec-fetch-site", "none")]
                ),
                "{host}: by HTTPS"
            );
        }
        for host in ["", "weir:6070"] {
            assert!(
                !passes(ON_LOOPBACK, "GET", &[("host", host)])
                    && passes(Guard::ANY_NAME, "GET", &[("host", host), browser]),
                "{host}"
            );
        }
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert!(!passes(ON_LOOPBACK, "GET", &two), "a second name");
        assert!(passes(ON_LOOPBACK, "GET", &[]), "an old client");
    }

    #[test]
    fn pages_of_other_sites_are_refused_and_links_pass() {
        let host = ("host", "127.0.0.1:6070");
        let (document, cross) = (
            ("sec-fetch-dest", "document"),
            ("sec-fetch-site", "cross-site"),
        );
        for guard in [ON_LOOPBACK, Guard::ANY_NAME] {
            for method in ["GET", "POST"] {
                assert!(passes(
                    guard,
                    method,
                    &[
                        host,
                        ("origin", "http://127.0.0.1:6070"),
                        ("sec-fetch-site", "same-origin")
                    ]
                ));
                assert!(passes(guard, method, &[host, ("sec-fetch-site", "none")]));
                for foreign in [
                    ("origin", "http://evil.example"),
                    ("origin", "http://127.0.0.1:6071"),
                    ("origin", "null"),
                    ("sec-fetch-site", "same-site"),
                    cross,
                ] {
                    assert!(!passes(guard, method, &[host, foreign]), "{foreign:?}");
                }
            }
            assert!(passes(guard, "GET", &[host, cross, document]));
            assert!(!passes(guard, "POST", &[host, cross, document]), "a form");
            assert!(!passes(
                guard,
                "GET",
                &[host, cross, ("sec-fetch-dest", "iframe")]
            ));
            assert!(
                !passes(guard, "GET", &[("origin", "http://evil.example")]),
                "without a host"
            );
        }
    }
}
