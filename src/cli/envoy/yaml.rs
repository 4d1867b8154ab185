//! YAML as people write it: blocks in a given order, with comments. Text that could be read as
//! something else is in quotes, as in JSON.

use std::fmt::Write;

/// A value of a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Yaml {
    Text(String),
    Number(u64),
    Bool(bool),
    List(Vec<Yaml>),
    Map(Vec<(String, Yaml)>),
    /// An item of a list below lines of comments.
    Commented(Vec<String>, Box<Yaml>),
}

impl From<&str> for Yaml {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Yaml {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u32> for Yaml {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<bool> for Yaml {
    fn from(bool: bool) -> Self {
        Self::Bool(bool)
    }
}

impl From<Vec<Yaml>> for Yaml {
    fn from(items: Vec<Yaml>) -> Self {
        Self::List(items)
    }
}

/// A map of these keys and values, in their order.
pub(super) fn map<const N: usize>(entries: [(&str, Yaml); N]) -> Yaml {
    Yaml::Map(
        entries
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
    )
}

/// A map of one key and its value.
pub(super) fn one(key: &str, value: impl Into<Yaml>) -> Yaml {
    map([(key, value.into())])
}

impl Yaml {
    /// The same map with another key at its end.
    pub(super) fn with(self, key: &str, value: impl Into<Yaml>) -> Self {
        match self {
            Self::Map(mut entries) => {
                entries.push((key.to_owned(), value.into()));
                Self::Map(entries)
            }
            other => other,
        }
    }

    /// The document: a map or a list, in blocks.
    pub(super) fn document(&self) -> String {
        let mut text = String::new();
        self.block(0, &mut text);
        text
    }

    /// Whether it stands on the line of its key.
    fn is_short(&self) -> bool {
        match self {
            Self::Text(_) | Self::Number(_) | Self::Bool(_) => true,
            Self::List(items) => items.is_empty(),
            Self::Map(entries) => entries.is_empty(),
            Self::Commented(..) => false,
        }
    }

    fn short(&self) -> String {
        match self {
            Self::Text(text) => scalar(text),
            Self::Number(number) => number.to_string(),
            Self::Bool(bool) => bool.to_string(),
            Self::List(_) => "[]".to_owned(),
            Self::Map(_) | Self::Commented(..) => "{}".to_owned(),
        }
    }

    /// Writes lines, the first of which begins where the text ends; all others begin with the
    /// indent.
    fn block(&self, indent: usize, text: &mut String) {
        let pad = " ".repeat(indent);
        // Writing to a string does not fail.
        let begin = |text: &mut String, number: usize| {
            if number > 0 {
                text.push_str(&pad);
            }
        };
        match self {
            Self::Map(entries) if !entries.is_empty() => {
                for (number, (key, value)) in entries.iter().enumerate() {
                    begin(text, number);
                    let key = scalar(key);
                    if value.is_short() {
                        let _ = writeln!(text, "{key}: {}", value.short());
                    } else {
                        let _ = write!(text, "{key}:\n{pad}  ");
                        value.block(indent + 2, text);
                    }
                }
            }
            Self::List(items) if !items.is_empty() => {
                for (number, item) in items.iter().enumerate() {
                    begin(text, number);
                    let item = match item {
                        Self::Commented(lines, item) => {
                            for line in lines {
                                let _ = write!(text, "# {line}\n{pad}");
                            }
                            item
                        }
                        item => item,
                    };
                    text.push_str("- ");
                    item.block(indent + 2, text);
                }
            }
            short => {
                let _ = writeln!(text, "{}", short.short());
            }
        }
    }
}

/// Plain if no reader of YAML could take it for anything else than this text.
fn scalar(text: &str) -> String {
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
    // A text of JSON is one of YAML, except that YAML has fewer letters that may stand in it as
    // they are.
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            letter
                if letter.is_control()
                    || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}') =>
            {
                let mut units = [0; 2];
                for unit in letter.encode_utf16(&mut units) {
                    let _ = write!(quoted, "\\u{unit:04x}");
                }
            }
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_blocks_with_comments() {
        let item = map([(
            "actions",
            vec![
                one("remote_address", map([])),
                one("generic_key", map([("a", "b: c".into())])),
            ]
            .into(),
        )]);
        let document = map([
            ("name", "x".into()),
            ("empty", Yaml::List(Vec::new())),
            (
                "list",
                vec![
                    Yaml::Commented(vec!["one".to_owned(), "two".to_owned()], Box::new(item)),
                    5.into(),
                    true.into(),
                ]
                .into(),
            ),
        ]);
        let expected = "\
name: x
empty: []
list:
  # one
  # two
  - actions:
      - remote_address: {}
      - generic_key:
          a: \"b: c\"
  - 5
  - true
";
        assert_eq!(document.document(), expected);
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
            let document = one("key", text).document();
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
            one(":path", "outbound|8081||a.b").document(),
            "\":path\": outbound|8081||a.b\n"
        );
    }
}
