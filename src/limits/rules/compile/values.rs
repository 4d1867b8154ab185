//! `values` and `values_file`: the list of values or networks that a descriptor matches, and a name
//! for it.
//!
//! A file of values stands in the folder of limits, and another file names it. So the scan, its
//! bounds and its fingerprint hold for it without a second way to read.

use super::data::{Data, DataFile};
use super::fields::{self, Fields};
use super::problem::{Location, Problems, quoted};
use crate::core::digest::{hex, sha256};
use crate::limits::rules::source::Node;

/// Characters of the name of a list. A longer one is cut, and has a digest of the whole list.
const LONGEST_NAME: usize = 64;

/// The values of a descriptor with their places, and a name for all of them.
pub(super) fn list<'d>(
    problems: &mut Problems,
    data: &Data<'d>,
    fields: &Fields<'d>,
    what: &str,
) -> Option<(String, Vec<(&'d str, Location)>)> {
    match (fields.get("values"), fields.get("values_file")) {
        (Some(node), None) => {
            let values = inline(problems, node, what)?;
            Some((name_of(&values), values))
        }
        (None, Some(node)) => {
            let name = fields::text(problems, node, "values_file")?;
            let Some(DataFile { values, at }) = data.find(problems.name(), name) else {
                let what = format!(
                    "the folder of limits has no file {} beside this one",
                    quoted(name)
                );
                problems.error(
                    node,
                    what,
                    "create it with one value in each line, and set the path to the folder, not to \
                     one file",
                );
                return None;
            };
            if !problems.is_clean(*at) {
                return None;
            }
            if values.is_empty() {
                problems.warning(
                    node,
                    format!(
                        "the file {} has no values: nothing matches this descriptor",
                        quoted(name)
                    ),
                    "add values, or remove the descriptor",
                );
            }
            Some((
                name.to_owned(),
                values
                    .iter()
                    .map(|&(value, line)| (value, at.line(line)))
                    .collect(),
            ))
        }
        (Some(node), Some(_)) => {
            let what = "'values' stands beside 'values_file'";
            problems.error(node, what, "write one of them");
            None
        }
        (None, None) => {
            let what = format!("there are no {what}");
            let remedy = "write 'values: [...]', or 'values_file: ' and the name of a file";
            problems.error(fields.lack("values"), what, remedy);
            None
        }
    }
}

fn inline<'n>(
    problems: &mut Problems,
    node: &'n Node,
    what: &str,
) -> Option<Vec<(&'n str, Location)>> {
    let items = fields::items(problems, node, "values", "write 'values: [one, two]'")?;
    if items.is_empty() {
        let what = format!("there are no {what}");
        problems.error(node, what, "write one at least, or remove the descriptor");
    }
    let texts: Vec<_> = items
        .iter()
        .map(|item| {
            fields::text(problems, item, "values").map(|text| (text, problems.here(item.at)))
        })
        .collect();
    let texts: Option<Vec<_>> = texts.into_iter().collect();
    texts.filter(|texts| !texts.is_empty())
}

/// The values themselves if they are few, and otherwise the first of them and a digest of all.
fn name_of(values: &[(&str, Location)]) -> String {
    let all = values
        .iter()
        .map(|(value, _)| *value)
        .collect::<Vec<_>>()
        .join(",");
    if all.chars().nth(LONGEST_NAME).is_none() {
        return all;
    }
    let digest = hex(&sha256(&all)[..6]);
    let begin: String = all.chars().take(LONGEST_NAME / 2).collect();
    format!("{begin}...{digest}")
}
