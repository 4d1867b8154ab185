//! The description of the API for programs, in OpenAPI 3.1: the calls of `openapi.json`, and the
//! schemas of the types that are read and answered. Tests compare it with the routes, and real
//! answers with its schemas.

use std::sync::LazyLock;

use bytes::Bytes;
use hyper::StatusCode;
use schemars::Schema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::transform_subschemas;
use serde_json::{Map, Value};

use super::overrides::{Order, Ordered, Overrides, Removed, Reset, ResetOrder};
use super::reply::ErrorBody;
use super::{decisions, explain, limits, status, top, unmatched, usage};
use crate::net::http::{Page, response};
use crate::observe::history;

/// The calls, and the schema of a limit, which is no type.
const CALLS: &str = include_str!("openapi.json");

static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());

/// The document.
pub(super) fn page() -> Page {
    response(StatusCode::OK, "application/json", DOCUMENT.clone())
}

fn document() -> Value {
    let mut document: Value = serde_json::from_str(CALLS).expect("the file is JSON");
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        schemas.extend(schemas_of(SchemaSettings::for_serialize, answers));
        // Types in both have fewer required fields in an order, so the schemas of orders replace
        // the others.
        schemas.extend(schemas_of(SchemaSettings::for_deserialize, |of| {
            of.subschema_for::<Order>();
            of.subschema_for::<ResetOrder>();
        }));
    }
    document
}

/// The types of answers. Those inside them are found by the generator.
fn answers(of: &mut SchemaGenerator) {
    of.subschema_for::<ErrorBody>();
    of.subschema_for::<status::Status>();
    of.subschema_for::<limits::Limits>();
    of.subschema_for::<decisions::Decisions>();
    of.subschema_for::<history::Series>();
    of.subschema_for::<explain::Report>();
    of.subschema_for::<top::Top>();
    of.subschema_for::<unmatched::Unmatched>();
    of.subschema_for::<usage::Usage>();
    of.subschema_for::<usage::Top>();
    of.subschema_for::<usage::Count>();
    of.subschema_for::<Overrides>();
    of.subschema_for::<Ordered>();
    of.subschema_for::<Removed>();
    of.subschema_for::<Reset>();
}

fn schemas_of(
    contract: fn(SchemaSettings) -> SchemaSettings,
    add: impl FnOnce(&mut SchemaGenerator),
) -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .with_transform(closed);
    let mut generator = contract(settings).into_generator();
    add(&mut generator);
    generator.take_definitions(true)
}

/// An object with names has no others.
fn closed(schema: &mut Schema) {
    if schema.get("properties").is_some() && schema.get("additionalProperties").is_none() {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
    transform_subschemas(&mut closed, schema);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::admin::api::access::Right;
    use crate::admin::api::routes::{BASE, ROUTES};

    #[test]
    fn every_call_is_described_and_nothing_else() {
        let document = document();
        let mut described = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().expect("paths") {
            for (method, call) in methods.as_object().expect("methods") {
                let is_change = !call["security"].is_null();
                assert!(
                    call["summary"].is_string()
                        && call["responses"]["200"].is_object()
                            | call["responses"]["201"].is_object(),
                    "{path}"
                );
                described.insert((method.to_ascii_uppercase(), path.clone(), is_change));
            }
        }
        let routes = ROUTES.iter().map(|(method, path, need, _)| {
            (
                method.to_string(),
                format!("{BASE}{path}"),
                *need == Right::Change,
            )
        });
        assert_eq!(described, routes.collect());
    }
}
