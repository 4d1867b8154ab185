//! The admin page in a real browser, with a real process behind it: it is clicked, typed into and
//! read as an operator does.

mod accessibility;
mod keyboard;
mod outages;
mod subjects;
mod views;

use std::net::SocketAddr;

use crate::support::browser::Browser;
use crate::support::{Turn, Weir, ask, descriptor, exclusive};

/// Keys and values as a hostile client of a client writes them. Each would change the title of the
/// page if any of it became markup.
const HOSTILE: [&str; 4] = [
    "<img src=x onerror=\"document.title='pwned'\">",
    "\"'><script>document.title='pwned'</script>",
    "{{constructor.constructor('document.title=`pwned`')()}}<svg/onload=document.title='pwned'>",
    "\u{202e}gnp.evil\u{2066}\u{0}\n\t\u{85}\u{200b}",
];

/// Limits of years, so that no window ends while a test runs. One has a hostile path.
const LIMITS: &[(&str, &str)] = &[
    (
        "tenants/shop.yaml",
        "domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 3, track_usage: true }
  - key: path
    value: /login
    descriptors:
      - key: remote_address
        rate_limit: { unit: year, requests_per_unit: 50, algorithm: token_bucket, burst: 10 }
  - key: path
    value: /log*
    rate_limit: { unit: hour, unit_multiplier: 2, requests_per_unit: 1000 }
    shadow_mode: true
  - key: \"<img src=x onerror=document.title='pwned'>\"
    value: \"\\\"'><script>document.title='pwned'</script>\"
    rate_limit: { unit: year, requests_per_unit: 7 }
",
    ),
    (
        "blog.yaml",
        "domain: blog\ndescriptors:\n  - { key: all, rate_limit: { unlimited: true } }\n",
    ),
];

/// The tokens of `ADMIN_TOKEN_FILE`, and one of them.
const TOKENS: &str = "# on call\nann:0123456789abcdef0123456789abcdef\n";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A process, a file of tokens, and a browser. Only one browser runs at a time: each takes two
/// processors for a while.
struct Desk {
    browser: Browser,
    weir: Weir,
    address: SocketAddr,
    _tokens: tempfile::NamedTempFile,
    _alone: Turn,
}

impl Desk {
    /// With these further variables, and a file of tokens.
    fn start(environment: &[(&str, &str)]) -> Self {
        let alone = exclusive();
        let tokens = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(tokens.path(), TOKENS).expect("written");
        let fill = |folder: &std::path::Path| {
            std::fs::create_dir(folder.join("tenants")).expect("a folder");
            for (name, text) in LIMITS {
                std::fs::write(folder.join(name), text).expect("a file of limits");
            }
        };
        let path = tokens.path().to_str().expect("UTF-8").to_owned();
        let weir = Weir::start_in(
            fill,
            &[&[("ADMIN_TOKEN_FILE", &*path)], environment].concat(),
        );
        let address = weir.listener("debug");
        Self {
            browser: Browser::start(),
            weir,
            address,
            _tokens: tokens,
            _alone: alone,
        }
    }

    /// Loads the page at one of its views.
    fn open(&self, view: &str) {
        self.browser.open("about:blank");
        self.browser
            .open(&format!("http://{}/admin#{view}", self.address));
        self.browser
            .wait_for("document.getElementById('health').textContent === 'Healthy'");
    }

    /// Clicks a link of the navigation.
    fn go(&self, view: &str) {
        self.browser.click(&format!("//nav//a[text()='{view}']"));
        self.browser.wait_for(&format!(
            "document.querySelector('main h2').textContent === '{view}'"
        ));
    }

    /// Sends requests of one descriptor each. Returns the overall codes.
    async fn hit(&self, domain: &str, entries: &[(&str, &str)], times: usize) -> Vec<i32> {
        let mut client = self.weir.client().await;
        let mut codes = Vec::new();
        for _ in 0..times {
            let answer = ask(&mut client, domain, vec![descriptor(entries)]).await;
            codes.push(answer.overall_code);
        }
        codes
    }

    /// Enters a token in the dialog of the header.
    fn enter_token(&self, token: &str) {
        self.browser.press_button("Enter token");
        self.browser.type_into("dialog input", token);
        self.browser.click("dialog button[type=submit]");
    }

    /// Nothing of what clients sent became markup or ran, nothing broke the policy, and no other
    /// host was asked.
    fn check_clean(&self) {
        assert_eq!(self.browser.console(), Vec::<String>::new());
        let made = self.browser.run(
            "return [document.title, document.querySelectorAll('img, svg[onload], \
             script:not([src]), iframe').length]",
        );
        assert!(
            !made[0].as_str().expect("a title").contains("pwned") && made[1] == 0,
            "{made}"
        );
        let (own, requests) = (format!("http://{}/", self.address), self.browser.requests());
        assert!(requests.len() > 5, "requests are recorded");
        for (_, url) in requests {
            assert!(url.starts_with(&own) || url == "about:blank", "{url}");
        }
    }
}
