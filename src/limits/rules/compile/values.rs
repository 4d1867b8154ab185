//! `values` and `values_file`: the list of values or networks that a descriptor matches, and a name
//! for it.
//!
//! A file of values stands in the folder of limits, and another file names it. So the scan, its
//! bounds and its fingerprint hold for it without a second way to read.

use super::data::Data;
use super::fields::{self, Fields};
use super::problem::{Problems, quoted};
use crate::core::digest::{hex, sha256};
use crate::limits::rules::place::Place;
use crate::limits::rules::source::Node;

/// Characters of the name of a list. A longer one is cut, and has a digest of the whole list.
const LONGEST_NAME: usize = 64;

/// The values of a descriptor with their places, and a name for all of them.
pub(super) fn list<'d>(
    problems: &Problems,
    data: &Data<'d>,
    fields: &Fields<'d>,
    what: &str,
) -> Option<(String, Vec<(&'d str, Place)>)> {
    match (fields.get("values"), fields.get("values_file")) {
        (Some(node), None) => {
            let values = inline(problems, node, what)?;
            Some((name_of(&values), values))
        }
        (None, Some(node)) => {
            let name = fields.text("values_file")?;
            let shown = quoted(name);
            let found = data.find(&node.at, name);
            let Some((at, values)) = found.and_then(|file| Some((&file.at, file.values.as_ref()?)))
            else {
                let what = format!("the folder of limits has no file {shown} beside this one");
                let remedy = "create it with one value in each line, and set the path to the \
                    folder, not to one file";
                return problems.fail(node, what, remedy);
            };
            if !problems.is_clean(at) {
                return None;
            }
            if values.is_empty() {
                let what =
                    format!("the file {shown} has no values: nothing matches this descriptor");
                problems.warning(node, what, "add values, or remove the descriptor");
            }
            let values = values
                .iter()
                .map(|&(value, line)| (value, at.at((line, 1))));
            Some((name.to_owned(), values.collect()))
        }
        (Some(node), Some(_)) => {
            let what = "'values' stands beside 'values_file'";
            problems.fail(node, what, "write one of them")
        }
        (None, None) => {
            let what = format!("there are no {what}");
            let remedy = "write 'values: [...]', or 'values_file: ' and the name of a file";
            problems.fail(fields.lack("values"), what, remedy)
        }
    }
}

fn inline<'n>(problems: &Problems, node: &'n Node, what: &str) -> Option<Vec<(&'n str, Place)>> {
    let items = fields::items(problems, node, "values", "write 'values: [one, two]'")?;
    if items.is_empty() {
        let what = format!("there are no {what}");
        problems.error(node, what, "write one at least, or remove the descriptor");
    }
    let texts = items.iter().filter_map(|item| {
        let text = fields::text(problems, item, "values")?;
        Some((text, item.at.clone()))
    });
    let texts: Vec<_> = texts.collect();
    Some(texts).filter(|texts| !texts.is_empty() && texts.len() == items.len())
}

/// The values themselves if they are few, and otherwise the first of them and a digest of all.
fn name_of(values: &[(&str, Place)]) -> String {
    let all: Vec<_> = values.iter().map(|(value, _)| *value).collect();
    let all = all.join(",");
    if all.chars().nth(LONGEST_NAME).is_none() {
        return all;
    }
    let digest = hex(&sha256(&all)[..6]);
    let begin: String = all.chars().take(LONGEST_NAME / 2).collect();
    format!("{begin}...{digest}")
}
