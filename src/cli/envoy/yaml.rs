//! YAML as people write it: blocks of lines, which are in the code as in the output. Text
//! that could be read as something else is in quotes, as in JSON.

use crate::observe::telemetry::json_text;

/// A block for a place with this indent: all lines but the first have it.
pub(super) fn indented(block: &str, indent: usize) -> String {
    block.replace('\n', &format!("\n{:indent$}", ""))
}

/// A template with a block instead of each `{name}`, at most one in a line: all its lines have the
/// indent of its place. Without a block, a line that has nothing else is left out.
pub(super) fn fill(template: &str, blocks: &[(&str, &str)]) -> String {
    let mut lines = Vec::new();
    for line in template.lines() {
        let found = blocks.iter().find_map(|(name, block)| {
            let place = format!("{{{name}}}");
            Some((line.find(&place)?, place, block))
        });
        match found {
            None => lines.push(line.to_owned()),
            Some((_, place, block)) if block.is_empty() && line.trim() == place => {}
            Some((indent, place, block)) => {
                lines.push(line.replacen(&place, &indented(block, indent), 1));
            }
        }
    }
    lines.join("\n")
}

/// A list of blocks for a place with this indent.
pub(super) fn list(items: &[String], indent: usize) -> String {
    let items = items.iter().map(|item| format!("- {}", indented(item, 2)));
    indented(&items.collect::<Vec<_>>().join("\n"), indent)
}

/// Plain if no reader of YAML could take it for anything else than this text.
pub(super) fn scalar(text: &str) -> String {
    let is_plain_letter = |letter: char| {
        letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.' | '/' | '|')
    };
    let begins_plain =
        text.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '/');
    let is_word = [
        "y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf",
    ];
    if begins_plain
        && text.chars().all(is_plain_letter)
        && !is_word.contains(&text.to_ascii_lowercase().as_str())
    {
        return text.to_owned();
    }
    // A text of JSON is one of YAML.
    json_text(&text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_indent_of_their_place() {
        let items = ["remote_address: {}".to_owned(), "a:\n  b: c".to_owned()];
        assert_eq!(
            format!("- actions:\n    {}", list(&items, 4)),
            "- actions:\n    - remote_address: {}\n    - a:\n        b: c"
        );
    }

    #[test]
    fn a_template_is_filled_once() {
        let template = "a: {a}\n  {none}\nmap: {}\n  - {b}\n";
        assert_eq!(
            fill(template, &[("a", "{b}"), ("none", ""), ("b", "c: 1\nd: 2")]),
            "a: {b}\nmap: {}\n  - c: 1\n    d: 2"
        );
    }

    #[test]
    fn a_text_stays_the_text() {
        for text in [
            "",
            "no",
            "Yes",
            "1e3",
            "0x10",
            "~",
            "- a",
            "a: b",
            "a #b",
            "@type",
            "*",
            "é\u{2028}\u{1b}\"\\",
            "a\nb",
            "2001-01-01",
            ".5",
        ] {
            let document = format!("key: {}\n", scalar(text));
            assert!(
                document.contains('"') && document.lines().count() == 1,
                "{document}"
            );
            let file = crate::limits::rules::compile::SourceText {
                name: "y".to_owned(),
                text: document.clone().into_bytes(),
            };
            let read = crate::limits::rules::compile::outline::read_pairs(&file)
                .unwrap_or_else(|problems| panic!("{document}: {problems:?}"));
            assert_eq!(&*read[0].text, text);
        }
        assert_eq!(
            [scalar(":path"), scalar("outbound|8081||a.b")],
            ["\":path\"", "outbound|8081||a.b"]
        );
    }
}
