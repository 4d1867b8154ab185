//! What each view shows of a real process, and what it does with what a hostile client sent.

use serde_json::json;

use super::Desk;
use crate::support::tools;

/// The files of the page in the repository, by their addresses.
const FILES: [(&str, &str); 3] = [
    ("/admin", "page.html"),
    ("/admin/main.js", "main.js"),
    ("/admin/page.css", "page.css"),
];

/// The number in a row of a table: the first row whose header begins with `header`, and the column
/// from 1 on.
fn figure(desk: &Desk, header: &str, column: usize) -> String {
    let script = format!(
        "const row = [...document.querySelectorAll('tbody tr')].find((row) => \
         row.cells[0].innerText.startsWith({})); return row === undefined ? '' : \
         row.cells[{column}].textContent",
        json!(header)
    );
    desk.browser
        .run(&script)
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[tokio::test]
async fn the_overview_shows_decisions_and_limits_and_follows_them() {
    let desk = Desk::start(&[]);
    assert_eq!(
        desk.hit("shop", &[("user", "42")], 5).await,
        [1, 1, 1, 2, 2]
    );
    desk.hit("blog", &[("all", "x")], 2).await;
    desk.open("overview");
    desk.browser
        .wait_for_text("No Redis: counters are in this process's memory.");
    for (header, total) in [
        ("Allowed", "3"),
        ("Refused", "2"),
        ("Unlimited", "2"),
        ("shop.user", "5"),
        ("blog.all", "2"),
    ] {
        desk.browser.wait_for_text(header);
        assert_eq!(figure(&desk, header, 3), total, "{header}");
    }
    let status = desk
        .browser
        .run("return document.getElementById('process').textContent");
    let status = status.as_str().expect("a text");
    assert!(
        status.contains("store memory · up ")
            && status.contains("5 limits in 2 domains · configuration 1"),
        "{status}"
    );
    // Without a reload: the totals, the rates and the picture follow.
    assert_eq!(desk.hit("shop", &[("user", "43")], 40).await.len(), 40);
    desk.browser.wait_for(
        "[...document.querySelectorAll('tbody tr')].some((row) => row.cells[0].innerText === \
         'Refused' && row.cells[3].textContent === '39' && Number(row.cells[1].textContent) > 0)",
    );
    let picture = desk.browser.wait_for(
        "(document.querySelector('svg.plot').getAttribute('aria-label') ?? '')\
         .match(/.*Now: A.*/)?.[0]",
    );
    let label = picture.as_str().expect("a text");
    assert!(
        label.contains("Decisions per second in the last 15 minutes. Now: Allowed ")
            && label.contains("Refused "),
        "{label}"
    );
    // A page that is opened after the traffic has what it missed.
    desk.open("overview");
    desk.browser.wait_for(
        "document.querySelector('svg.plot path.over_limit')?.getAttribute('d') && \
         document.querySelector('svg.plot').getAttribute('aria-label').endsWith('Now: none.')",
    );
    desk.check_clean();
}

#[tokio::test]
#[ignore = "weekly: tests/faults.sh --all"]
async fn limits_are_a_tree_with_search_and_the_place_in_the_file() {
    let desk = Desk::start(&[]);
    desk.open("limits");
    desk.browser.wait_for_text("5 limits");
    let tree = "document.querySelector('.tree').innerText.replaceAll(/\\s+/g, ' ')";
    let shown = desk.browser.wait_for(tree);
    let shown = shown.as_str().expect("a text");
    for line in [
        "user 3 per year track usage tenants/shop.yaml:3",
        "remote_address 50 per year algorithm token_bucket, burst 10 tenants/shop.yaml:8",
        "path=/log* 1,000 per 2 hours shadow tenants/shop.yaml:10",
        "<img src=x onerror=document.title='pwned'>=\"'><script>document.title='pwned'</script> 7 \
         per year",
        "all unlimited blog.yaml:3",
    ] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    desk.browser.type_into("input[type=search]", "LOG");
    desk.browser.wait_for_text("3 limits match");
    desk.browser.type_into("input[type=search]", "shop.path");
    desk.browser.wait_for_text("2 limits match");
    assert_eq!(
        desk.browser
            .wait_for("document.querySelectorAll('.leaf').length"),
        2
    );
    // A reload shows by itself.
    std::fs::write(
        desk.weir.config_dir().join("blog.yaml"),
        "domain: shop.pathology\ndescriptors:\n  - { key: k, rate_limit: { unit: day, \
         requests_per_unit: 1 } }\n",
    )
    .expect("written");
    desk.browser.wait_for_text("3 limits match");
    // A limit that needs a value leads to a form that waits for it.
    desk.browser
        .press_button("Explain: shop.path_/login.remote_address");
    let filled = desk.browser.wait_for(
        "[...document.querySelectorAll('main input:not([type=checkbox])')].map((field) => \
         field.value)",
    );
    assert_eq!(
        filled,
        json!(["shop", "path", "/login", "remote_address", ""])
    );
    desk.check_clean();
}

#[tokio::test]
async fn changes_need_a_token_which_is_kept_in_memory() {
    let desk = Desk::start(&[]);
    desk.open("overrides");
    desk.browser
        .wait_for_text("Changes need a token from the file that");
    assert_eq!(
        desk.browser
            .run("return document.querySelector('main form').checkVisibility()"),
        false
    );
    desk.enter_token("0123456789abcdef0123456789abcdeF");
    desk.browser
        .wait_for_text("ADMIN_TOKEN_FILE has no such token");
    assert!(
        desk.browser
            .console()
            .iter()
            .all(|line| line.contains("401")),
        "a refusal is in the console"
    );
    desk.browser
        .type_into("dialog input", &format!("ann:{}", super::TOKEN));
    desk.browser.click("dialog button[type=submit]");
    desk.browser.wait_for_text("Authorized as ann");
    desk.browser.wait_for(
        "document.querySelector('main form').checkVisibility() && document.querySelector('dialog') \
         === null",
    );
    let kept = desk
        .browser
        .run("return [document.cookie, localStorage.length, sessionStorage.length]");
    assert_eq!(kept, json!(["", 0, 0]));
    let seen = desk
        .browser
        .run("return location.href + document.documentElement.outerHTML");
    assert!(!seen.as_str().expect("a text").contains("0123456789abcdef"));
    for (_, url) in desk.browser.requests() {
        assert!(!url.contains("0123456789"), "{url}");
    }
    desk.browser.press_button("Forget token");
    desk.browser
        .wait_for("!document.querySelector('main form').checkVisibility()");
    // A page that is loaded again has none.
    desk.enter_token(super::TOKEN);
    desk.browser.wait_for_text("Authorized as ann");
    desk.open("overrides");
    desk.browser.wait_for_text("Read only");
}

#[tokio::test]
#[ignore = "weekly: tests/faults.sh --all"]
async fn the_files_are_those_of_the_repository_with_a_strict_policy() {
    let weir = crate::support::Weir::start(super::LIMITS.get(1..).expect("limits"), &[]);
    let address = weir.listener("debug");
    for (path, file) in FILES {
        let page = crate::support::http_client::get(address, path);
        assert_eq!(
            (page.status, page.body),
            (200, tools::file(&format!("src/admin/api/page/{file}"))),
            "{path}"
        );
        let page = crate::support::http_client::get(address, path);
        let policy = page.header("content-security-policy").expect("a policy");
        for directive in [
            "default-src 'none'",
            "script-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.split("; ").any(|one| one == directive), "{policy}");
        }
        assert!(
            !policy.contains("unsafe") && !policy.contains('*'),
            "{policy}"
        );
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(page.header("cache-control"), Some("no-store"));
    }
}
