//! The page without a mouse.

use super::Desk;
use crate::support::browser::{ENTER, TAB};

/// What has the focus: its text or label; fails if nothing shows that it has.
fn focused(desk: &Desk) -> String {
    let script = "const one = document.activeElement; const style = getComputedStyle(one); const \
        name = one.labels?.[0]?.textContent ?? one.getAttribute('aria-label') ?? \
        one.textContent.trim(); return [name, one.matches('h2, main, body') || (style.outlineStyle \
        !== 'none' && parseFloat(style.outlineWidth) >= 2)]";
    let found = desk.browser.run(script);
    let name = found[0].as_str().expect("a name").to_owned();
    assert_eq!(found[1], true, "{name} has the focus and does not show it");
    name
}

/// Presses Tab until this has the focus.
fn tab_to(desk: &Desk, name: &str) {
    let mut passed = Vec::new();
    for _ in 0..40 {
        desk.browser.keys(&[TAB]);
        let now = focused(desk);
        if now == name {
            return;
        }
        passed.push(now);
    }
    panic!("no {name} among {passed:?}");
}

#[tokio::test]
#[ignore = "weekly: tests/faults.sh --all"]
async fn a_request_is_explained_without_a_mouse() {
    let desk = Desk::start(&[]);
    desk.open("overview");
    desk.browser.keys(&[TAB]);
    assert_eq!(focused(&desk), "Skip to content");
    tab_to(&desk, "Explain");
    desk.browser.keys(&[ENTER]);
    desk.browser.wait_for(
        "document.activeElement.matches('main h2') && document.activeElement.textContent === \
         'Explain'",
    );
    tab_to(&desk, "Domain");
    desk.browser.keys(&["shop"]);
    tab_to(&desk, "Key");
    desk.browser.keys(&["user"]);
    tab_to(&desk, "Value");
    desk.browser.keys(&["42"]);
    desk.browser.shift_tab();
    assert_eq!(focused(&desk), "Key");
    desk.browser.keys(&[ENTER]);
    desk.browser.wait_for_text("3 per year");
    // The focus stays while the page is live.
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    assert_eq!(focused(&desk), "Key");
    tab_to(&desk, "Override");
    desk.browser.keys(&[ENTER]);
    desk.browser.wait_for(
        "document.activeElement.matches('main h2') && document.activeElement.textContent === \
         'Overrides'",
    );
    // A dialog takes the focus, and gives it back.
    tab_to(&desk, "Enter token");
    desk.browser.keys(&[ENTER]);
    assert_eq!(focused(&desk), "Token");
    desk.browser.keys(&["\u{e00c}"]);
    desk.browser
        .wait_for("document.querySelector('dialog') === null");
    assert_eq!(focused(&desk), "Enter token");
    desk.browser.keys(&[ENTER, super::TOKEN, ENTER]);
    desk.browser.wait_for_text("Authorized as ann");
}
