//! The JSON Schema of limit files, for editors: the table of fields in another form.
//!
//! It accepts all files that `weir check` accepts, and rejects those that have a wrong form: unknown
//! keys, values of another type, unknown names. Rules between fields are the business of `check`.
//! Draft 7, which the YAML language server supports best.

use serde_json::{Map, Value, json};

use super::fields::AMOUNT;
use super::keys::{Author, Field, Form, Format, Section, fields};

/// The sections of a file.
const SECTIONS: [Section; 8] = [
    Section::Root,
    Section::Descriptor,
    Section::RateLimit,
    Section::Replaced,
    Section::Defaults,
    Section::Trial,
    Section::Reservations,
    Section::Plan,
];

/// The definition of values that have no meaning where they are.
const IGNORED: &str = "ignored";

/// The schema of a limit file.
pub fn json_schema() -> Value {
    let definition = |section: Section| (section.short_name().to_owned(), object(section));
    let mut definitions: Map<_, _> = SECTIONS.into_iter().map(definition).collect();
    definitions.insert(IGNORED.to_owned(), ignored());
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Limit file of Weir",
        "allOf": [reference(Section::Root)],
        "definitions": definitions,
    })
}

/// The maps of a section.
fn object(section: Section) -> Value {
    let required = match section {
        Section::Root => Some("domain"),
        Section::Descriptor => Some("key"),
        Section::Replaced => Some("name"),
        Section::Reservations => Some("ttl"),
        _ => None,
    };
    let mut properties = Map::new();
    for field in fields() {
        let is_own = field.sections.contains(&section);
        let value = if is_own && required == Some(field.key) {
            let mut value = value(field.form);
            value["minLength"] = json!(1);
            described(value, field.doc)
        } else if is_own {
            property(field)
        } else if is_ignored(section, field) {
            misplaced(field)
        } else {
            continue;
        };
        properties.insert(field.key.to_owned(), value);
    }
    let mut object = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    if let Some(required) = required {
        object["required"] = json!([required]);
    }
    match section {
        Section::RateLimit => object["anyOf"] = complete(),
        Section::Trial => object["minProperties"] = json!(1),
        _ => {}
    }
    object
}

/// A limit has an amount, or takes it from a plan.
fn complete() -> Value {
    let is = |key: &str, value: Value| {
        let value = json!({ key: { "const": value } });
        json!({ "required": [key], "properties": value })
    };
    let amount = ["requests_per_unit", "unit"];
    let mut concurrency = is("algorithm", json!("concurrency"));
    concurrency["required"] = json!(["algorithm", amount[0]]);
    let written = json!({ "not": { "type": "null" } });
    json!([
        { "required": amount, "properties": { "requests_per_unit": written, "unit": written } },
        { "required": ["plan"], "properties": { "plan": written } },
        is("unlimited", json!(true)),
        concurrency,
    ])
}

/// Whether the key has a meaning in another section only, and files with it are accepted, because
/// the Go service accepts them.
fn is_ignored(section: Section, field: &Field) -> bool {
    field.author == Author::Go
        && section.format() == Format::Files
        && home(field).is_some()
        && !matches!(section, Section::Defaults | Section::Trial)
        // An error of `check`: the descriptor has no limit.
        && !(section == Section::Descriptor && AMOUNT.contains(&field.key))
}

/// The value of a field, which may be empty unless that is a mistake.
fn property(field: &Field) -> Value {
    let value = match field.form {
        Form::Map(section @ Section::Trial) => reference(section),
        form => json!({ "anyOf": [value(form), { "type": "null" }] }),
    };
    described(value, field.doc)
}

fn value(form: Form) -> Value {
    match form {
        Form::Text => json!({ "type": ["string", "integer", "boolean"] }),
        Form::Texts => json!({ "type": "array", "items": value(Form::Text) }),
        Form::Bool => json!({ "type": "boolean" }),
        Form::Whole(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Form::OneOf(names) => json!({ "enum": names() }),
        // The names first, which editors propose.
        Form::OneOfAnyCase(names) => {
            let pattern = in_any_case(&names());
            json!({ "anyOf": [{ "enum": names() }, { "type": "string", "pattern": pattern }] })
        }
        Form::Pattern(title, pattern) => text_of(title, pattern),
        Form::Patterns(title, pattern) => {
            let one = pattern.trim_matches(['^', '$']);
            let list = format!(r"^[\[\]]*\s*({one}(\s*,\s*{one})*\s*,?\s*)?[\[\]]*$");
            json!({
                "anyOf": [
                    { "type": "array", "items": text_of(title, pattern) },
                    text_of(title, &list),
                ]
            })
        }
        Form::PatternByName(title, pattern) => by_name(&text_of(title, pattern)),
        Form::Map(section) => reference(section),
        Form::MapByName(section) => by_name(&reference(section)),
        Form::List(section) => json!({ "type": "array", "items": reference(section) }),
        Form::Any => json!({ "type": "object" }),
    }
}

fn by_name(value: &Value) -> Value {
    json!({ "type": "object", "additionalProperties": value })
}

/// The first section of limit files that has a field.
fn home(field: &Field) -> Option<&Section> {
    let mut sections = field.sections.iter();
    sections.find(|section| section.format() == Format::Files)
}

fn text_of(title: &str, pattern: &str) -> Value {
    json!({ "title": title, "type": "string", "pattern": pattern })
}

/// A key that is ignored where it is.
fn misplaced(field: &Field) -> Value {
    let home = home(field).map_or("elsewhere", |section| section.name());
    let doc = format!("Has no meaning here and is ignored: it belongs {home}.");
    let value = match field.form {
        Form::Any => json!({}),
        _ => json!({ "allOf": [definition(IGNORED)] }),
    };
    let mut value = described(value, &doc);
    value["deprecated"] = json!(true);
    value
}

/// A value without a meaning: the Go service reads it all the same, and rejects unknown keys in it
/// and numbers with a fraction.
fn ignored() -> Value {
    let own = definition(IGNORED);
    let of_files = fields().iter().filter(|field| home(field).is_some());
    let property = |field: &Field| match field.form {
        Form::Any => (field.key.to_owned(), json!({})),
        _ => (field.key.to_owned(), own.clone()),
    };
    let properties: Map<_, _> = of_files.map(property).collect();
    json!({
        "anyOf": [
            { "type": ["string", "integer", "boolean", "null"] },
            { "type": "array", "items": { "allOf": [{ "type": "object" }, own] } },
            { "type": "object", "properties": properties, "additionalProperties": false },
        ]
    })
}

/// A regular expression for names in any letter case.
fn in_any_case(names: &[&str]) -> String {
    let any_case = |letter: char| format!("[{letter}{}]", letter.to_ascii_uppercase());
    let name = |name: &&str| name.chars().map(any_case).collect();
    let names: Vec<String> = names.iter().map(name).collect();
    format!("^({})$", names.join("|"))
}

fn described(mut value: Value, doc: &str) -> Value {
    value["description"] = json!(doc);
    value
}

fn reference(section: Section) -> Value {
    definition(section.short_name())
}

fn definition(name: &str) -> Value {
    json!({ "$ref": format!("#/definitions/{name}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_written;

    #[test]
    fn the_schema_in_the_repository_is_the_one_of_the_table() {
        let schema = format!("{:#}\n", json_schema());
        assert_written(
            "deploy/limits.schema.json",
            None,
            &schema,
            "--lib schema::tests",
        );
    }

    #[test]
    fn the_page_of_fields_is_the_one_of_the_table() {
        let rows = fields().iter().map(|field| {
            let sections = SECTIONS.iter().chain(&[Section::Row]);
            let places = sections.filter(|section| field.sections.contains(section));
            let places: Vec<_> = places.map(|section| section.short_name()).collect();
            let (key, doc, shape) = (field.key, field.doc, shape(field.form));
            format!("| `{key}` | {} | {shape} | {doc} |\n", places.join(", "))
        });
        // Keys of overlays only are none of files.
        let page: String = rows.filter(|row| !row.contains("|  |")).collect();
        assert_written(
            "config/fields.md",
            Some("fields"),
            &page,
            "--lib schema::tests",
        );
    }

    /// The form of a value, in words.
    fn shape(form: Form) -> String {
        let list = |names: Vec<&str>| {
            let names = names.into_iter().map(|name| format!("`{name}`"));
            names.collect::<Vec<_>>().join(", ")
        };
        match form {
            Form::Text => "text".to_owned(),
            Form::Texts => "list of texts".to_owned(),
            Form::Bool => "`true` or `false`".to_owned(),
            Form::Whole(least, most) if most == u64::from(u32::MAX) => format!("{least} to 2^32-1"),
            Form::Whole(least, most) if most > 1 << 32 => format!("{least} to 2^53-1"),
            Form::Whole(least, most) => format!("{least} to {most}"),
            Form::OneOf(names) | Form::OneOfAnyCase(names) => list(names()),
            Form::Pattern(title, _) => title.to_owned(),
            Form::Patterns(title, _) => format!("list: {title}"),
            Form::PatternByName(title, _) => format!("map: {title} by name"),
            Form::Map(_) | Form::Any => "map".to_owned(),
            Form::MapByName(_) => "map: maps by name".to_owned(),
            Form::List(_) => "list of maps".to_owned(),
        }
    }
}
