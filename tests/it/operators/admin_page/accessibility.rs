//! What a screen reader says, and what eyes can read: names, captions, headings, contrast, and
//! narrow windows.

use serde_json::json;

use super::{Desk, HOSTILE};

const VIEWS: [&str; 6] = [
    "overview",
    "subjects",
    "limits",
    "explain",
    "usage",
    "overrides",
];

/// The contrast of normal text. Source: W3C, "Web Content Accessibility Guidelines 2.2", 1.4.3.
const CONTRAST: f64 = 4.5;

/// Texts with less contrast than `CONTRAST`, and how many texts there are. The formula is that of
/// the guidelines' "contrast ratio".
const LOW_CONTRAST: &str = "
    const channel = (value) =>
        value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4;
    const luminance = ([red, green, blue]) =>
        0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
    const parts = (color) => color.match(/[\\d.]+/g).map(Number);
    const ground = (element) => {
        for (let one = element; one !== null; one = one.parentElement) {
            const color = parts(getComputedStyle(one).backgroundColor);
            if (color.length === 3 || color[3] === 1) return color;
        }
        return [255, 255, 255];
    };
    const low = [];
    let texts = 0;
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (walker.currentNode.data.trim() === '' || !element.checkVisibility()) continue;
        if (element.closest(':disabled') !== null) continue;
        const style = getComputedStyle(element);
        const color = element instanceof SVGElement ? style.fill : style.color;
        const [one, other] = [luminance(parts(color)), luminance(ground(element))];
        const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        texts += 1;
        if (ratio < MINIMUM) low.push([walker.currentNode.data.trim().slice(0, 40), ratio]);
    }
    return [texts, low];";

/// What the order of headings, the tables and the landmarks lack.
const STRUCTURE: &str = "
    const wrong = [];
    const levels = [...document.querySelectorAll('h1, h2, h3, h4')]
        .filter((one) => one.checkVisibility())
        .map((one) => Number(one.localName[1]));
    levels.forEach((level, index) => {
        const before = levels[index - 1];
        if (index > 0 && level > before + 1) wrong.push(`h${level} follows h${before}`);
    });
    if (levels.filter((level) => level === 1).length !== 1) wrong.push('not one h1');
    for (const table of document.querySelectorAll('table')) {
        if (!table.caption?.textContent.trim()) wrong.push('a table without a caption');
        if ([...table.querySelectorAll('th')].some((cell) => !cell.scope)) {
            wrong.push('a header without a scope');
        }
    }
    for (const landmark of ['main', 'header', 'nav[aria-label]', 'footer', '[aria-live=polite]']) {
        if (document.querySelectorAll(landmark).length < 1) wrong.push(`no ${landmark}`);
    }
    const ids = [...document.querySelectorAll('[id]')].map((one) => one.id);
    if (new Set(ids).size !== ids.length) wrong.push('an id twice');
    const references = ['aria-labelledby', 'aria-describedby', 'for'];
    for (const name of references) {
        for (const one of document.querySelectorAll(`[${name}]`)) {
            const id = one.getAttribute(name);
            if (id && !document.getElementById(id)) wrong.push(`no element ${id}`);
        }
    }
    return wrong;";

/// Roles of what can be operated or stands for a picture, which have no meaning without a name.
const NAMED: [&str; 14] = [
    "button",
    "checkbox",
    "combobox",
    "DateTime",
    "dialog",
    "image",
    "link",
    "navigation",
    "radio",
    "search",
    "searchbox",
    "spinbutton",
    "table",
    "textbox",
];

/// The roles of nodes without a name, as the browser computes them for screen readers; and how many
/// have one.
fn unnamed(desk: &Desk) -> (Vec<String>, usize) {
    let tree = desk
        .browser
        .devtools("Accessibility.getFullAXTree", &json!({}));
    let (mut without, mut with) = (Vec::new(), 0);
    for node in tree["nodes"].as_array().expect("nodes") {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        if node["ignored"] == true || !NAMED.contains(&role) || role == "search" {
            continue;
        }
        match node["name"]["value"].as_str().map(str::trim) {
            None | Some("") => without.push(format!("{role} {}", node["properties"])),
            Some(_) => with += 1,
        }
    }
    (without, with)
}

fn check(desk: &Desk, what: &str) {
    assert_eq!(desk.browser.run(STRUCTURE), json!([]), "{what}");
    let (without, with) = unnamed(desk);
    assert!(
        without.is_empty() && with > 3,
        "{what}: {with} named, without a name: {without:?}"
    );
    let found = desk
        .browser
        .run(&LOW_CONTRAST.replace("MINIMUM", &CONTRAST.to_string()));
    assert!(
        found[0].as_u64() > Some(20) && found[1] == json!([]),
        "{what}: {found}"
    );
    let size = desk
        .browser
        .run("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]");
    assert!(
        size[0].as_u64() <= size[1].as_u64(),
        "{what}: {size} is wider than the window"
    );
}

#[tokio::test]
#[ignore = "weekly: tests/faults.sh --all"]
async fn every_view_can_be_read_in_both_schemes_and_in_narrow_windows() {
    let desk = Desk::start(&[]);
    for value in HOSTILE.iter().copied().chain(["42", &"long".repeat(3_000)]) {
        desk.hit("shop", &[("user", value)], 5).await;
        desk.hit("shop", &[("nothing", value)], 1).await;
    }
    for (scheme, width) in [("light", 1_440), ("dark", 360)] {
        desk.browser.prefer(scheme);
        desk.browser.resize(width, 900);
        desk.open("overview");
        desk.browser
            .wait_for("document.querySelectorAll('tbody tr').length > 3");
        for view in VIEWS {
            let title = format!("{}{}", view[..1].to_uppercase(), &view[1..]);
            desk.go(&title);
            if view == "explain" {
                desk.browser.type_into("(//main//input)[1]", "shop");
                desk.browser
                    .type_into("(//main//fieldset//input)[1]", "user");
                desk.browser.press_button("Explain");
                desk.browser.wait_for_text("Live state");
            }
            std::thread::sleep(std::time::Duration::from_millis(300));
            check(&desk, &format!("{view}, {scheme}, {width} px"));
        }
        desk.browser.press_button("Enter token");
        desk.browser
            .wait_for("document.querySelector('dialog')?.open");
        check(&desk, &format!("the dialog, {scheme}, {width} px"));
        desk.browser.type_into("dialog input", super::TOKEN);
        desk.browser.click("dialog button[type=submit]");
        desk.browser
            .wait_for("document.querySelector('main form').checkVisibility()");
        check(
            &desk,
            &format!("the form of overrides, {scheme}, {width} px"),
        );
    }
}
