//! Values that are right, and most likely not what was meant: Weir compares text, in which only `*`
//! is special.

use super::problem::{Problems, quoted};
use crate::limits::rules::address;
use crate::limits::rules::source::Node;

/// The key under which Envoy sends blocks of addresses as text, so that they match as they are
/// written.
const SENDS_BLOCKS: &str = "masked_remote_address";

/// Warns of a value that looks like a block of addresses or like a regular expression, or is an
/// address as Envoy does not write it.
pub(super) fn warn(problems: &Problems, node: &Node, key: &str, value: &str) {
    if key != SENDS_BLOCKS && is_block(value) {
        let what = format!(
            "{} looks like a block of addresses, but is compared as text: no address in it matches",
            quoted(value)
        );
        let remedy = "write 'match: cidr' beside it, or let Envoy send the block with its action \
            masked_remote_address";
        problems.warning(node, what, remedy);
    } else if let Some(address) = address::read(value.as_bytes())
        .filter(|address| is_meant(value) && address.to_string() != value)
    {
        let what = format!(
            "{} is another spelling of an address than Envoy sends",
            quoted(value)
        );
        problems.warning(node, what, format!("write {address}"));
    } else if is_regular_expression(value) {
        let what = format!(
            "{} looks like a regular expression, but is compared as text in which only '*' is \
             special",
            quoted(value)
        );
        let remedy = "write 'match: regex' beside it, or the text that Envoy sends, with '*' for \
            any part of it";
        problems.warning(node, what, remedy);
    }
}

/// `10.0.0.0/8`
fn is_block(value: &str) -> bool {
    let Some((address, bits)) = value.split_once('/') else {
        return false;
    };
    let is_v4 = address.split('.').count() == 4
        && address.split('.').all(|byte| byte.parse::<u8>().is_ok());
    let is_v6 = address.matches(':').count() >= 2
        && address
            .bytes()
            .all(|byte| byte == b':' || byte == b'.' || byte.is_ascii_hexdigit());
    bits.parse::<u8>()
        .is_ok_and(|bits| (is_v4 && bits <= 32) || (is_v6 && bits <= 128))
}

/// Whether a text that can be read as an address is meant as one: `Face::Add` is a name.
fn is_meant(address: &str) -> bool {
    address.bytes().any(|byte| byte.is_ascii_digit())
}

/// Only what hardly occurs in other values: `10.*` and `/search?q=*` are patterns of Weir.
fn is_regular_expression(value: &str) -> bool {
    let anchored = value.starts_with('^') || (value.len() > 1 && value.ends_with('$'));
    let class = value.find('[').is_some_and(|open| {
        let behind = &value[open..];
        ["]+", "]*", "]{", "]?"]
            .iter()
            .any(|end| behind.contains(end))
    });
    let any =
        ["/.*", ").*", ".+"].iter().any(|part| value.contains(part)) || value.starts_with(".*");
    let escape = ["\\d", "\\w", "\\s", "\\.", "\\/", "(?"]
        .iter()
        .any(|part| value.contains(part));
    let choice = value
        .find('(')
        .is_some_and(|open| value[open..].contains('|') && value[open..].contains(')'));
    anchored || class || any || escape || choice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_hardly_be_meant_as_text_is_suspicious() {
        for block in ["10.0.0.0/8", "::1/128", "2001:db8::/32", "1.2.3.4/32"] {
            assert!(is_block(block), "{block}");
        }
        for text in [
            "10.0.0.1",
            "10.0.0.0/33",
            "/8",
            "a/8",
            "10.*",
            "10.0.0.0/8/x",
        ] {
            assert!(!is_block(text), "{text}");
        }
        for (text, meant) in [
            ("2001:DB8::1", true),
            ("0:0::1", true),
            ("Face::Add", false),
            ("A::B", false),
        ] {
            assert_eq!(
                (address::read(text.as_bytes()).is_some(), is_meant(text)),
                (true, meant),
                "{text}"
            );
        }
        for expression in [
            "^/api",
            "/api$",
            ".*",
            "/api/.*",
            "/v[0-9]+/x",
            "\\d+",
            "(get|put)",
            "(?i)get",
            "a.+b",
            "example\\.org",
        ] {
            assert!(is_regular_expression(expression), "{expression}");
        }
        for text in [
            "10.*",
            "*",
            "/api/*",
            "*.example.org",
            "/search?q=*",
            "a+b",
            "$",
            "[::1]",
            "a|b",
            "f(x)",
            "v1.2",
            "a.*b",
        ] {
            assert!(!is_regular_expression(text), "{text}");
        }
    }
}
