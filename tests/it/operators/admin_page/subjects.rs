//! Who is limited, how much they use, and what an operator does about it: from a row of a list, by
//! clicks.

use serde_json::json;

use super::{Desk, HOSTILE, TOKEN};
use crate::support::RedisServer;

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

/// Clicks a button of the row whose subject has this text, in the view that is shown.
fn press_in_row(desk: &Desk, subject: &str, button: &str) {
    // Marks the button for the click, because an XPath has no way to write every text. Views that
    // are not shown keep their old marks.
    let mark = format!(
        "[...document.querySelectorAll('main tbody tr')].filter((row) => \
         row.checkVisibility()).some((row) => {{ if (row.querySelector('.entries')?.textContent \
         !== {}) return false; const found = [...row.querySelectorAll('button')].find((one) => \
         one.textContent === {}); document.querySelectorAll('[data-test]').forEach((old) => \
         old.removeAttribute('data-test')); found?.setAttribute('data-test', 'this'); return found \
         !== undefined; }})",
        json!(subject),
        json!(button)
    );
    desk.browser.wait_for(&mark);
    desk.browser.click("[data-test]");
}

/// The text of a row's cell, by its subject.
fn cell(desk: &Desk, subject: &str, column: usize) -> String {
    let row = format!(
        "[...document.querySelectorAll('main tbody tr')].find((row) => \
         row.querySelector('.entries')?.textContent === {})",
        json!(subject)
    );
    desk.browser.wait_for(&row.replace(".find(", ".some("));
    desk.browser
        .run(&format!("return {row}.cells[{column}].textContent"))
        .as_str()
        .expect("a text")
        .to_owned()
}

/// Chooses a kind of change in the form.
fn choose(desk: &Desk, kind: &str) {
    desk.browser.click(&format!(
        "//label[starts-with(normalize-space(), '{kind}:')]"
    ));
}

/// Raises a limit from the row of a subject.
async fn raise_from_the_row(desk: &Desk) {
    press_in_row(desk, "user=42", "Override");
    desk.browser
        .wait_for_text("Changes need a token from the file that");
    desk.enter_token(TOKEN);
    desk.browser
        .wait_for("document.querySelector('main form').checkVisibility()");
    choose(desk, "Raise");
    desk.browser
        .wait_for_text("The limit shop.user allows 3 per year.");
    let mode = |mode: &str| {
        let select = "//label[text()='Amount']/following-sibling::select";
        desk.browser
            .click(&format!("{select}/option[@value='{mode}']"));
    };
    mode("add");
    desk.browser.type_into("input[type=number]", "50");
    desk.browser.wait_for_text(
        "Weir allows user=42 in the domain shop 50 per year in addition to the limit, until ",
    );
    desk.browser.press_button("Raise");
    desk.browser
        .wait_for_text("Raised by 50 per year, 53 in all: user=42 until ");
    mode("to");
    desk.browser.type_into("input[type=number]", "100");
    desk.browser
        .wait_for_text("Weir allows user=42 in the domain shop 100 per year, until ");
    desk.browser.type_into(
        "//label[text()='Reason']/following-sibling::input",
        "ticket 7 <b>",
    );
    desk.browser.press_button("Raise");
    desk.browser
        .wait_for_text("Raised to 100 per year: user=42 until ");
    desk.browser.wait_for_text("ticket 7 <b>");
    assert_eq!(desk.hit("shop", &[("user", "42")], 2).await, [OK, OK]);
}

/// The dialog can be left, and then accepted.
async fn remove_the_override(desk: &Desk) {
    press_in_row(desk, "user=42", "Remove");
    desk.browser.wait_for_text("Remove this override?");
    desk.browser.click("//dialog//button[text()='Cancel']");
    press_in_row(desk, "user=42", "Remove");
    desk.browser.click("//dialog//button[text()='Remove']");
    desk.browser.wait_for_text("No overrides are in force.");
    assert_eq!(desk.hit("shop", &[("user", "42")], 1).await, [OVER_LIMIT]);
}

#[tokio::test]
async fn a_refused_customer_is_found_and_let_in_and_a_hostile_one_is_blocked() {
    let desk = Desk::start(&[]);
    assert_eq!(
        desk.hit("shop", &[("user", "42")], 5).await,
        [OK, OK, OK, OVER_LIMIT, OVER_LIMIT]
    );
    for value in HOSTILE {
        assert_eq!(desk.hit("shop", &[("user", value)], 1).await, [OK]);
    }
    desk.open("subjects");
    desk.browser.click("//select/option[@value='hits']");
    assert_eq!(
        [cell(&desk, "user=42", 1), cell(&desk, "user=42", 2)],
        ["5", "2"]
    );
    raise_from_the_row(&desk).await;
    remove_the_override(&desk).await;
    // Reset, after a question.
    desk.go("Subjects");
    press_in_row(&desk, "user=42", "Override");
    choose(&desk, "Reset");
    desk.browser.press_button("Reset");
    desk.browser.wait_for_text("Reset this counter?");
    desk.browser.click("//dialog//button[text()='Reset']");
    desk.browser.wait_for_text("1 of 1 counters restarted.");
    assert_eq!(desk.hit("shop", &[("user", "42")], 1).await, [OK]);
    // A value with control characters is blocked as it is, although a text field cannot hold it.
    for (value, shown) in [
        (HOSTILE[0], HOSTILE[0]),
        (
            HOSTILE[3],
            "\\u{202e}gnp.evil\\u{2066}\\0\\n\\t\\u{85}\\u{200b}",
        ),
    ] {
        desk.go("Subjects");
        press_in_row(&desk, &format!("user={shown}"), "Override");
        choose(&desk, "Block");
        desk.browser.press_button("Block");
        desk.browser
            .wait_for_text(&format!("Blocked: user={shown}"));
        assert_eq!(
            desk.hit("shop", &[("user", value)], 1).await,
            [OVER_LIMIT],
            "{shown}"
        );
    }
    // Who has an override is marked wherever it is listed.
    desk.go("Subjects");
    let tag = "[...document.querySelectorAll('main tbody tr')].filter((row) => \
        row.checkVisibility() && row.querySelector('.tag')?.textContent === 'blocked').length";
    desk.browser.wait_for(&format!("({tag}) === 2"));
    desk.go("Usage");
    desk.browser.wait_for(&format!("({tag}) === 2"));
    desk.check_clean();
    let logged = desk
        .weir
        .logs()
        .into_iter()
        .filter(|line| line.contains("\"ann\""))
        .count();
    assert!(logged >= 5, "each change is logged with its name");
}

#[tokio::test]
#[ignore = "weekly: tests/faults.sh --all"]
async fn an_override_of_any_value_asks_first_and_one_can_be_set_in_redis() {
    let redis = RedisServer::start();
    let desk = Desk::start(&[("REDIS_URL", &redis.url())]);
    assert_eq!(desk.hit("shop", &[("user", "42")], 1).await, [OK]);
    desk.open("overrides");
    desk.enter_token(TOKEN);
    desk.browser
        .wait_for("document.querySelector('main form').checkVisibility()");
    desk.browser
        .type_into("//label[text()='Domain']/following-sibling::input", "shop");
    desk.browser
        .type_into("//label[text()='Key']/following-sibling::input", "user");
    desk.browser
        .click("//label[contains(@class, 'check')]/input");
    choose(&desk, "Block");
    desk.browser
        .wait_for_text("Weir refuses every request with user=any value in the domain shop, until ");
    desk.browser.press_button("Block");
    desk.browser
        .wait_for_text("This change applies to more than one value. Continue?");
    desk.browser.click("//dialog//button[text()='Cancel']");
    assert_eq!(desk.hit("shop", &[("user", "42")], 1).await, [OK]);
    desk.browser.press_button("Block");
    desk.browser.click("//dialog//button[text()='Block']");
    desk.browser.wait_for_text("Blocked: user=any value until ");
    let mut codes = Vec::new();
    for _ in 0..40 {
        codes = desk.hit("shop", &[("user", "43")], 1).await;
        if codes == [OVER_LIMIT] {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(codes, [OVER_LIMIT]);
    desk.browser.press_button("Undo");
    desk.browser.click("//dialog//button[text()='Remove']");
    desk.browser.wait_for_text("No overrides are in force.");
    // What is wrong is said beside the form, and the form keeps what was entered.
    choose(&desk, "Raise");
    desk.browser.type_into("input[type=number]", "5");
    desk.browser
        .click("//label[text()='per']/following-sibling::select/option[@value='minute']");
    desk.browser.press_button("Raise");
    desk.browser.click("//dialog//button[text()='Raise']");
    desk.browser
        .wait_for_text("can be raised in its own unit only");
    assert_eq!(
        desk.browser
            .run("return document.querySelector('input[type=number]').value"),
        "5"
    );
}

/// Sorting and range are in the address, which the button Back and a link restore; and the page
/// shows which process it is of.
#[tokio::test]
async fn an_address_has_sorting_and_range() {
    let desk = Desk::start(&[]);
    assert_eq!(desk.hit("shop", &[("user", "42")], 1).await, [OK]);
    desk.open("subjects");
    desk.browser.click("//select/option[@value='hits']");
    desk.browser.click("//select/option[@value='hour']");
    let address = "subjects?sort=hits&range=hour";
    let is_at = format!("location.hash === '#{address}'");
    let chosen = "[...document.querySelectorAll('main select')].map(one => one.value).join()";
    let is_chosen = format!("{chosen} === 'hour,hits'");
    desk.browser.wait_for(&is_at);
    desk.browser
        .wait_for_text("Subjects with the most hits, last hour, this process only");
    desk.go("Overview");
    desk.browser.wait_for_text("this process only");
    desk.browser.run("history.back()");
    desk.browser.wait_for(&is_at);
    desk.browser.wait_for(&is_chosen);
    desk.open("overview");
    desk.open(address);
    desk.browser.wait_for(&is_chosen);
    desk.open("usage?sort=share&range=1h");
    desk.browser
        .wait_for(&format!("{chosen} === '1h,shop.user,share'"));
    // An address with something else has the first options.
    desk.open("subjects?sort=nothing");
    desk.browser
        .wait_for(&format!("{chosen} === 'minute,refused'"));
    let header = "document.getElementById('process').textContent";
    desk.browser
        .wait_for(&format!("{header}.includes(' at {}')", desk.address));
    desk.browser
        .wait_for(&format!("/digest [0-9a-f]{{16}}$/.test({header})"));
    desk.check_clean();
}

/// A client that sends a star, or an escape of one, is not everyone.
#[tokio::test]
#[ignore = "weekly: tests/faults.sh --all"]
async fn a_client_called_star_is_blocked_alone() {
    let desk = Desk::start(&[]);
    let values = ["*", "\\*", "42"];
    for value in values {
        assert_eq!(desk.hit("shop", &[("user", value)], 1).await, [OK]);
    }
    desk.open("subjects");
    desk.enter_token(TOKEN);
    desk.browser.click("//select/option[@value='hits']");
    for (value, written) in [("*", "\\*"), ("\\*", "\\\\\\*")] {
        desk.go("Subjects");
        press_in_row(&desk, &format!("user={value}"), "Override");
        choose(&desk, "Block");
        desk.browser.wait_for_text(&format!(
            "Weir refuses every request with user={written} in the domain shop, until "
        ));
        // There is no question, because it is one client.
        desk.browser.press_button("Block");
        desk.browser
            .wait_for_text(&format!("Blocked: user={written} until "));
    }
    for (value, expected) in [
        ("*", OVER_LIMIT),
        ("\\*", OVER_LIMIT),
        ("42", OK),
        ("", OK),
        ("x*", OK),
    ] {
        assert_eq!(
            desk.hit("shop", &[("user", value)], 1).await,
            [expected],
            "{value}"
        );
    }
    // Reset is read the same way.
    desk.browser.press_button("Undo");
    desk.browser.click("//dialog//button[text()='Remove']");
    desk.go("Subjects");
    press_in_row(&desk, "user=\\*", "Override");
    choose(&desk, "Reset");
    desk.browser.press_button("Reset");
    desk.browser.click("//dialog//button[text()='Reset']");
    desk.browser
        .wait_for_text("Reset: user=\\\\\\*. 1 of 1 counters restarted.");
    // A star that the operator writes stands for any text, and is asked about first.
    desk.go("Subjects");
    press_in_row(&desk, "user=42", "Override");
    desk.browser
        .type_into("//label[text()='Value']/following-sibling::input", "4*");
    choose(&desk, "Block");
    desk.browser.press_button("Block");
    desk.browser
        .wait_for_text("This change applies to more than one value. Continue?");
    desk.check_clean();
}

#[tokio::test]
#[ignore = "weekly: tests/faults.sh --all"]
async fn usage_is_shown_with_its_series_and_by_subject() {
    let desk = Desk::start(&[]);
    desk.hit("shop", &[("user", "42")], 5).await;
    desk.hit("shop", &[("user", HOSTILE[1])], 2).await;
    desk.open("usage");
    let hits_and_refused = |subject: &str| [1, 2].map(|column| cell(&desk, subject, column));
    assert_eq!(hits_and_refused("user=42"), ["5", "2"]);
    assert_eq!(
        hits_and_refused(&format!("user={}", HOSTILE[1])),
        ["2", "0"]
    );
    press_in_row(&desk, "user=42", "Usage");
    let facts = "[...document.querySelectorAll('.facts div')].map((one) => \
        one.children[0].textContent + ' ' + one.children[1].textContent)";
    let facts = desk
        .browser
        .wait_for(&format!("({facts}).length > 4 && {facts}"));
    let facts: Vec<_> = facts
        .as_array()
        .expect("facts")
        .iter()
        .filter_map(|one| one.as_str())
        .filter(|fact| !fact.starts_with("Resets in ") && !fact.starts_with("Last period 0 of 3"))
        .collect();
    assert!(
        facts.starts_with(&[
            "Limit shop.user",
            "Used now 5 of 3 (166.6 %)",
            "Left 0",
            "Hits since first seen 5",
            "Hits over the limit 2"
        ]),
        "{facts:?}"
    );
    let label = desk.browser.wait_for(
        "document.querySelector('svg.plot path.over_limit')?.getAttribute('d') && \
         document.querySelector('svg.plot').getAttribute('aria-label')",
    );
    assert!(
        label
            .as_str()
            .is_some_and(|label| label.contains("Hits of user=42 in intervals of ")
                && label.contains(": 5 hits, 2 over the limit.")),
        "{label}"
    );
    // What counts against the limit, by its periods.
    desk.browser.wait_for_text("5 of 3");
    desk.browser.wait_for_text("166 %");
    // The picture as a table, by the keyboard's key for it.
    desk.browser.click("//summary[text()='Figures']");
    let sums = "[1, 2].map((column) => [...document.querySelectorAll('details tbody \
        tr')].reduce((sum, row) => sum + Number(row.cells[column].textContent), 0))";
    assert_eq!(
        desk.browser.wait_for(&format!("{sums}[0] > 0 && {sums}")),
        json!([5, 2])
    );
    // It follows.
    desk.hit("shop", &[("user", "42")], 1).await;
    desk.browser.wait_for_text("Hits since first seen\n6");
    // The list by share has columns of its own.
    desk.browser.run(
        "const by = [...document.querySelectorAll('select')].find((one) => \
         one.querySelector('[value=share]')); by.value = 'share'; \
         by.dispatchEvent(new Event('change'))",
    );
    desk.browser.wait_for_text("6 of 3");
    desk.browser.wait_for_text("200 %");
    desk.check_clean();
}

#[tokio::test]
#[ignore = "weekly: tests/faults.sh --all"]
async fn what_no_limit_matches_is_shown_and_explained() {
    let desk = Desk::start(&[]);
    desk.hit("shop", &[("nothing", HOSTILE[0])], 1).await;
    desk.hit("shopp", &[("user", "1")], 1).await;
    desk.open("subjects");
    desk.browser
        .wait_for_text("shopp: no file defines this domain");
    press_in_row(&desk, &format!("nothing={}", HOSTILE[0]), "Explain");
    desk.browser
        .wait_for_text("not limited: no branch matches the entry nothing=");
    desk.check_clean();
}
