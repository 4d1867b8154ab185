//! Templates of descriptors: `key=text{generator} key2={field}`, also with commas between entries,
//! and with ` , ` between descriptors; of records also with conditions, as
//! in `key={field} if {other}=pattern`.
//!
//! A backslash takes the next character as it is: values can have commas and braces.

use std::fmt::Display;

use rand::rngs::SmallRng;

use super::part::ValuePart;
use crate::core::proto::rate_limit_descriptor::Entry;
use crate::core::request::MAX_ENTRIES;
use crate::limits::rules::tree::matches;

/// The longest template in bytes.
const MAX_BYTES: usize = 4_096;

/// Whether a template may name fields of records, as `{name}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fields {
    None,
    Allowed,
}

/// A descriptor whose values are made up.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    entries: Vec<(Vec<u8>, Vec<ValuePart>)>,
    fields: Vec<String>,
    /// Fields, by their indices, and the pattern that each has to match.
    conditions: Vec<(usize, String)>,
    /// As it is written.
    pub(in crate::cli) source: String,
    /// It has made a descriptor.
    pub(in crate::cli) is_used: bool,
}

/// The templates of an argument, one for each descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Templates(pub(crate) Vec<Template>);

impl Templates {
    /// Reads templates with ` , ` between them.
    ///
    /// # Errors
    /// As [`Template::parse`].
    pub(crate) fn parse(text: &str, fields: Fields) -> Result<Self, String> {
        let all = text.split(" , ").map(str::trim);
        let all = all.map(|text| Template::parse(text, fields));
        Ok(Self(all.collect::<Result<_, _>>()?))
    }
}

impl Template {
    /// Reads a template. A `{file:PATH}` is read as well.
    ///
    /// # Errors
    /// What is wrong, with its column.
    pub(crate) fn parse(source: &str, fields: Fields) -> Result<Self, String> {
        let (text, conditions) = match fields {
            Fields::Allowed => split_conditions(source),
            Fields::None => (source, Vec::new()),
        };
        let mut reader = TemplateReader {
            text,
            at: 0,
            fields,
            names: Vec::new(),
        };
        if text.len() > MAX_BYTES {
            return Err(reader.error(format!("the template has more than {MAX_BYTES} bytes")));
        }
        let mut entries = Vec::new();
        loop {
            if entries.len() == MAX_ENTRIES {
                return Err(reader.error(format!("a descriptor has at most {MAX_ENTRIES} entries")));
            }
            entries.push((reader.key()?, reader.value()?));
            if reader.at == text.len() {
                break;
            }
            let rest = &text[reader.at + 1..];
            reader.at = text.len() - rest.trim_start_matches(' ').len();
        }
        let condition = |(name, pattern): (&str, &str)| (reader.field(name), pattern.to_owned());
        Ok(Self {
            conditions: conditions.into_iter().map(condition).collect(),
            entries,
            fields: reader.names,
            source: source.to_owned(),
            is_used: false,
        })
    }

    /// The names of its fields, each once; [`Template::fill`] asks for them by their index.
    pub(in crate::cli) fn fields(&self) -> &[String] {
        &self.fields
    }

    /// The entries of the next descriptor. `None`: the record has not all fields, or does not match
    /// a condition.
    pub(super) fn fill<'a>(
        &mut self,
        random: &mut SmallRng,
        field: impl Fn(usize) -> Option<&'a [u8]>,
    ) -> Option<Vec<Entry>> {
        let is_met = |(index, pattern): &(usize, String)| {
            field(*index).is_some_and(|value| matches(pattern, value))
        };
        if !self.conditions.iter().all(is_met) {
            return None;
        }
        let entry = |(key, parts): &mut (Vec<u8>, Vec<ValuePart>)| {
            let (key, mut value) = (key.clone(), Vec::new());
            let mut parts = parts.iter_mut();
            let is_whole = parts.all(|part| part.fill(random, &field, &mut value));
            is_whole.then_some(Entry { key, value })
        };
        let entries: Option<Vec<_>> = self.entries.iter_mut().map(entry).collect();
        self.is_used |= entries.is_some();
        entries
    }
}

/// Whether this, which begins with a space, goes on with `key=`.
fn begins_entry(text: &str) -> bool {
    let next = text.trim_start_matches(' ').split_once('=');
    next.is_some_and(|(key, _)| !key.is_empty() && !key.contains([' ', ',', '{', '}', '\\']))
}

/// Takes the conditions ` if {field}=pattern` from the end of a text.
fn split_conditions(mut text: &str) -> (&str, Vec<(&str, &str)>) {
    let mut conditions = Vec::new();
    while let Some((before, condition)) = text.rsplit_once(" if {")
        && let Some((name, pattern)) = condition.split_once("}=")
    {
        conditions.push((name, pattern));
        text = before;
    }
    (text.trim_end(), conditions)
}

/// Reads a template from left to right.
struct TemplateReader<'a> {
    text: &'a str,
    /// The byte that is read next.
    at: usize,
    fields: Fields,
    names: Vec<String>,
}

impl TemplateReader<'_> {
    /// An error at the character that is read next; columns are counted from 1.
    fn error(&self, what: impl Display) -> String {
        let column = self.text[..self.at].chars().count() + 1;
        format!("column {column}: {what}")
    }

    /// Appends text up to one of these characters, or to the end. Returns the character.
    fn text_until(&mut self, ends: &[char], out: &mut Vec<u8>) -> Result<Option<char>, String> {
        while let Some(next) = self.text[self.at..].chars().next() {
            let begins = || next != ' ' || begins_entry(&self.text[self.at..]);
            if ends.contains(&next) && begins() {
                return Ok(Some(next));
            }
            if next == '}' {
                return Err(self.error("a `}` without its `{`; write \\} for a brace"));
            }
            self.at += usize::from(next == '\\');
            let Some(taken) = self.text[self.at..].chars().next() else {
                let what = "a backslash takes the next character as it is, and none follows";
                return Err(self.error(what));
            };
            out.extend_from_slice(taken.encode_utf8(&mut [0; 4]).as_bytes());
            self.at += taken.len_utf8();
        }
        Ok(None)
    }

    /// The index of a field.
    fn field(&mut self, name: &str) -> usize {
        let known = self.names.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        })
    }

    fn key(&mut self) -> Result<Vec<u8>, String> {
        let mut key = Vec::new();
        match self.text_until(&['=', ',', '{'], &mut key)? {
            Some('=') if !key.is_empty() => {
                self.at += 1;
                Ok(key)
            }
            Some('{') => Err(self.error("a key is text, without generators; write key=value")),
            _ => Err(self.error("an entry is key=value, and entries are separated by commas")),
        }
    }

    fn value(&mut self) -> Result<Vec<ValuePart>, String> {
        let mut parts = Vec::new();
        loop {
            let mut text = Vec::new();
            let end = self.text_until(&[',', ' ', '{'], &mut text)?;
            if !text.is_empty() {
                parts.push(ValuePart::Text(text));
            }
            if end != Some('{') {
                return Ok(parts);
            }
            let Some(length) = self.text[self.at..].find('}') else {
                return Err(self.error("a `{` without its `}`; write \\{ for a brace"));
            };
            let between = &self.text[self.at + 1..self.at + length];
            let may = self.fields == Fields::Allowed;
            let field = |name: &str| (may && !name.is_empty()).then(|| self.field(name));
            let part = ValuePart::parse(between, field);
            parts.push(part.map_err(|what| self.error(what))?);
            self.at += length + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// The next entries, as text.
    fn next(
        template: &mut Template,
        random: &mut SmallRng,
        record: &[Option<&str>],
    ) -> Option<String> {
        let field = |index: usize| record.get(index).copied().flatten().map(str::as_bytes);
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let entries = template.fill(random, field)?;
        let entries: Vec<_> = entries
            .iter()
            .map(|entry| format!("{}={}", text(&entry.key), text(&entry.value)))
            .collect();
        Some(entries.join(" "))
    }

    #[test]
    fn values_are_made_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("users.txt");
        std::fs::write(&file, "ann\r\n\nbob\n").expect("a folder of our own");
        let text = format!(
            "a=x\\,\\{{y,b=10.0.{{uniform:0..1}}.{{sequence}},c={{file:{}}},d=",
            file.display()
        );
        let mut template = Template::parse(&text, Fields::None).expect("a template");
        let mut random = SmallRng::seed_from_u64(1);
        let all: Vec<_> = (0..100)
            .map(|_| next(&mut template, &mut random, &[]).expect("no fields"))
            .collect();
        for (number, text) in (1..).zip(&all) {
            let (low, high) = (format!("b=10.0.0.{number} "), format!("b=10.0.1.{number} "));
            assert!(
                text.starts_with("a=x,{y ") && text.ends_with(" d="),
                "{text}"
            );
            assert!(text.contains(&low) || text.contains(&high), "{text}");
        }
        for part in ["b=10.0.0.", "b=10.0.1.", " c=ann d", " c=bob d"] {
            assert!(
                all.iter().any(|text| text.contains(part)),
                "{part}: {all:?}"
            );
        }
        let mut again = Template::parse(&text, Fields::None).expect("a template");
        random = SmallRng::seed_from_u64(1);
        let repeated: Vec<_> = (0..100)
            .map(|_| next(&mut again, &mut random, &[]).expect("no fields"))
            .collect();
        assert_eq!(all, repeated, "a seed repeats all values");
    }

    #[test]
    fn fields_are_looked_up_and_a_missing_one_leaves_the_descriptor_out() {
        let mut template =
            Template::parse("who={who},path=/{path}{who}", Fields::Allowed).expect("a template");
        assert_eq!(template.fields(), ["who", "path"]);
        let mut random = SmallRng::seed_from_u64(1);
        let text = next(&mut template, &mut random, &[Some("a"), Some("b")]);
        assert_eq!(text.as_deref(), Some("who=a path=/ba"));
        assert_eq!(next(&mut template, &mut random, &[Some("a"), None]), None);
    }

    #[test]
    fn spaces_and_commas_separate_entries() {
        for (written, expected) in [
            ("a=1,b=2", &["a=1 b=2"][..]),
            ("a=1 b=2", &["a=1 b=2"]),
            ("a=1, b=2", &["a=1 b=2"]),
            ("a=1  b=2 , c=3", &["a=1 b=2", "c=3"]),
            ("a=x y b=2", &["a=x y b=2"]),
            (r"a=x\ b=2", &["a=x b=2"]),
            (r"a=x\,b=2", &["a=x,b=2"]),
        ] {
            let mut random = SmallRng::seed_from_u64(1);
            let Templates(mut all) = Templates::parse(written, Fields::None).expect(written);
            let texts: Vec<_> = all
                .iter_mut()
                .filter_map(|one| next(one, &mut random, &[]))
                .collect();
            assert_eq!(texts, expected, "{written}");
            let entries: usize = all.iter().map(|one| one.entries.len()).sum();
            assert_eq!(
                entries,
                written.matches('=').count() - written.matches('\\').count()
            );
        }
    }

    #[test]
    fn a_condition_chooses_records() {
        let text = r"path=/login,who={who} if {method}=POST if {path}=/log*n";
        let mut template = Template::parse(text, Fields::Allowed).expect("a template");
        assert_eq!(template.fields(), ["who", "path", "method"]);
        let mut random = SmallRng::seed_from_u64(1);
        for (path, method, is_in) in [
            (Some("/login"), Some("POST"), true),
            (Some("/login"), Some("GET"), false),
            (Some("/logout"), Some("POST"), false),
            (None, Some("POST"), false),
        ] {
            let text = next(&mut template, &mut random, &[Some("a"), path, method]);
            assert_eq!(text.as_deref(), is_in.then_some("path=/login who=a"));
        }
        let plain = Template::parse("note=only if {who}", Fields::Allowed).expect("a template");
        assert!(plain.conditions.is_empty());
    }

    #[test]
    fn errors_name_the_column() {
        for (text, column, part) in [
            ("", 1, "key=value"),
            ("a", 2, "key=value"),
            ("=b", 1, "key=value"),
            ("a=b,", 5, "key=value"),
            ("a=b,c", 6, "key=value"),
            ("{uuid}=a", 1, "a key is text"),
            ("é=x{uuid", 4, "without its `}`"),
            ("a=b}", 4, "without its `{`"),
            ("a=b\\", 5, "none follows"),
            ("a={unifrm:1..2}", 3, "{unifrm:1..2}` is no generator"),
            ("a={who}", 3, "{who}` is no generator"),
            ("a=1,b={uniform:9..1}", 7, "smaller one first"),
            ("a={uniform:1..x}", 3, "no range"),
            ("a={uniform:1..18446744073709551616}", 3, "no range"),
            ("a={zipf:1..9}", 3, "exponent is missing"),
            ("a={zipf:1..9:0}", 3, "from 0.01 to 8"),
            ("a={zipf:1..9:NaN}", 3, "from 0.01 to 8"),
            ("a={zipf:0..18446744073709551615:1}", 3, "smaller range"),
            ("a={file:/none/here}", 3, "/none/here: it cannot be read"),
            ("a={file:/dev/null}", 3, "has no lines"),
            ("a={}", 3, "no generator"),
        ] {
            let error = Template::parse(text, Fields::None).expect_err(text);
            assert!(
                error.starts_with(&format!("column {column}: ")) && error.contains(part),
                "{text}: {error}"
            );
        }
        let error = Template::parse(&"a=b,".repeat(64), Fields::None).expect_err("many");
        assert!(error.contains("at most 64"), "{error}");
        let error =
            Template::parse(&format!("a={}", "b".repeat(4_096)), Fields::None).expect_err("long");
        assert!(error.contains("4096 bytes"), "{error}");
    }
}
