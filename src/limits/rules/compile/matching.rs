//! `match`: conditions of a descriptor other than text. Sets, networks and regular expressions,
//! with their bounds.

use std::sync::Arc;

use ipnet::IpNet;

use super::data::Data;
use super::fields::{self, Fields};
use super::keys::MatchKind;
use super::problem::{Problems, quoted};
use crate::core::digest::{hex, sha256};
use crate::core::message::Message;
use crate::limits::rules::address;
use crate::limits::rules::limit::Matching;
use crate::limits::rules::messages;
use crate::limits::rules::place::Place;
use crate::limits::rules::source::Node;
use crate::limits::rules::tree::trace::How;
use crate::limits::rules::tree::{Matched, check_regex, regex_matches};

/// Maximum number of values of all sets and networks in all files. They take about 100 MB as one
/// set.
pub(crate) const MOST_VALUES: usize = 1_000_000;

/// Maximum number of regular expressions in all files: each takes some milliseconds to compile.
pub(crate) const MOST_REGEXES: usize = 1_000;

/// Maximum bytes of the tables of all regular expressions.
pub(crate) const MOST_REGEX_BYTES: usize = 64 << 20;

/// Totals of everything read so far, for the bounds.
#[derive(Default)]
pub(super) struct Totals {
    values: usize,
    regexes: usize,
    /// Of the tables of regular expressions.
    pub(super) regex_bytes: usize,
}

/// A condition of a descriptor other than text.
#[derive(Clone, Debug)]
pub(super) struct Match {
    /// Its form in names of limits and in keys: `set:`, `cidr:` or `regex:`, followed by the values
    /// or the expression.
    pub(super) text: Arc<str>,
    pub(super) matching: Matching,
    pub(super) what: Matched,
    /// The place of each value or network, in the same order.
    at: Vec<Place>,
}

impl Match {
    /// The number of values or networks.
    pub(super) fn len(&self) -> usize {
        self.at.len()
    }

    /// The text of a regular expression.
    pub(super) fn regex(&self) -> Option<&str> {
        match &self.what {
            Matched::Regex(regex) => Some(regex),
            Matched::Set(_) | Matched::Networks(_) => None,
        }
    }

    /// Each value or network, and where it is written.
    pub(super) fn items(&self) -> impl Iterator<Item = (String, &Place)> {
        let texts: Vec<String> = match &self.what {
            Matched::Set(values) => values.iter().map(|value| quoted(value)).collect(),
            Matched::Networks(networks) => networks.iter().map(ToString::to_string).collect(),
            Matched::Regex(_) => Vec::new(),
        };
        texts.into_iter().zip(&self.at)
    }
}

/// Reads the condition of a descriptor: `Ok(None)` if it matches by text; any error is reported.
pub(super) fn read(
    problems: &Problems,
    totals: &mut Totals,
    data: &Data<'_>,
    fields: &Fields<'_>,
) -> Result<Option<Match>, ()> {
    let kind = match fields.get("match") {
        None => MatchKind::Exact,
        Some(_) => fields.read("match").ok_or(())?,
    };
    let mut is_wrong = false;
    for (key, node) in fields.present(["value", "values", "values_file", "prefix"]) {
        let message = match (kind, key) {
            (MatchKind::Cidr, _) | (MatchKind::Exact | MatchKind::Regex, "value") => continue,
            (MatchKind::Set, "values" | "values_file") => continue,
            (MatchKind::Exact, "prefix") => messages::prefix_without_match(),
            (MatchKind::Exact, _) => messages::values_without_match(),
            (_, "prefix") => messages::prefix_without_networks(),
            (MatchKind::Set, _) => messages::set_of_value(),
            (MatchKind::Regex, _) => messages::regex_of_many(),
        };
        problems.error(&node.at, message);
        is_wrong = true;
    }
    if is_wrong {
        return Err(());
    }
    let read = match kind {
        MatchKind::Exact => return Ok(None),
        MatchKind::Set => set(problems, data, fields),
        MatchKind::Cidr => cidr(problems, data, fields),
        MatchKind::Regex => regex(problems, fields),
    };
    let read = read.ok_or(())?;
    totals.count(problems, fields.node, &read)?;
    Ok(Some(read))
}

impl Totals {
    fn count(&mut self, problems: &Problems, node: &Node, read: &Match) -> Result<(), ()> {
        self.values = self.values.saturating_add(read.at.len());
        self.regexes += usize::from(read.regex().is_some());
        let message = if self.values > MOST_VALUES {
            messages::too_many_values(MOST_VALUES)
        } else if self.regexes > MOST_REGEXES {
            messages::too_many_regexes(MOST_REGEXES)
        } else {
            return Ok(());
        };
        problems.error(&node.at, message);
        Err(())
    }
}

fn regex(problems: &Problems, fields: &Fields<'_>) -> Option<Match> {
    let Some(node) = fields.get("value") else {
        return problems.fail(fields.lack("value"), messages::regex_is_missing());
    };
    let text = fields.text("value")?;
    problems.accept(&node.at, check_regex(text))?;
    Some(Match {
        text: format!("regex:{text}").into(),
        matching: Matching::Regex,
        what: Matched::Regex(text.into()),
        at: Vec::new(),
    })
}

fn set(problems: &Problems, data: &Data<'_>, fields: &Fields<'_>) -> Option<Match> {
    let (name, values) = list(problems, data, fields, "values of a set")?;
    let is_address = |(value, _): &(&str, _)| address::read(value.as_bytes()).is_some();
    let has_addresses = values.iter().any(is_address);
    let values = values.into_iter();
    let (values, at) = values.map(|(value, at)| (Box::from(value), at)).unzip();
    Some(Match {
        text: format!("set:{name}").into(),
        matching: Matching::Set { has_addresses },
        what: Matched::Set(values),
        at,
    })
}

fn cidr(problems: &Problems, data: &Data<'_>, fields: &Fields<'_>) -> Option<Match> {
    let is_list = fields.present(["values", "values_file"]).next().is_some();
    let (name, written) = match fields.get("value") {
        Some(node) if is_list => {
            return problems.fail(&node.at, messages::value_next_to_networks());
        }
        Some(node) => {
            let text = fields.text("value")?;
            (String::new(), vec![(text, node.at.clone())])
        }
        None => list(problems, data, fields, "networks")?,
    };
    let read = |(text, at): &(&str, Place)| problems.accept(at, network(text));
    let networks: Vec<_> = written.iter().filter_map(read).collect();
    if networks.len() < written.len() {
        return None;
    }
    let prefix = match fields.get("prefix") {
        Some(node) => Some(prefix(problems, node, &networks)?),
        None => None,
    };
    let name = match networks[..] {
        [network] if name.is_empty() => network.to_string(),
        _ => name,
    };
    let at = written.into_iter().map(|(_, at)| at).collect();
    Some(Match {
        text: format!("cidr:{name}").into(),
        matching: Matching::Cidr { prefix },
        what: Matched::Networks(networks),
        at,
    })
}

/// Reads `prefix`: the bits of the networks that group IPv6 addresses.
fn prefix(problems: &Problems, node: &Node, networks: &[IpNet]) -> Option<u8> {
    let bits = fields::number(problems, node, "prefix")?;
    let v6 = networks.iter().filter(|it| matches!(it, IpNet::V6(_)));
    let longest = v6.map(IpNet::prefix_len).max();
    let bits = u8::try_from(bits).unwrap_or(u8::MAX);
    let bits = match longest {
        _ if !(1..=128).contains(&bits) => Err(messages::prefix_out_of_range()),
        None => Err(messages::prefix_without_ipv6()),
        Some(longest) if bits < longest => Err(messages::prefix_too_short(bits, longest)),
        Some(_) => Ok(bits),
    };
    problems.accept(&node.at, bits)
}

/// Reads a network, or an address as a network of one. An IPv4-mapped network becomes an IPv4
/// network.
pub(super) fn network(text: &str) -> Result<IpNet, Message> {
    let network = address::parse_network(text.as_bytes())
        .ok_or_else(|| messages::no_network(quoted(text)))?;
    let (whole, address) = (network.trunc(), network.addr());
    match whole == network {
        true => Ok(network),
        false => Err(messages::bits_after_prefix(quoted(text), whole, address)),
    }
}

/// Maximum characters of the name of a list. A longer name is cut, and gets a digest of the whole
/// list.
const LONGEST_NAME: usize = 64;

/// The values or networks of a descriptor with their places, and a name for all of them. A file of
/// values is in the folder of limits, where the scan, its bounds and its fingerprint include it
/// without a second way to read.
fn list<'d>(
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
            let list = found.and_then(|file| Some((&file.at, file.values.as_ref()?)));
            let Some((at, values)) = list else {
                return problems.fail(&node.at, messages::no_values_file(shown));
            };
            // The problems of the file are reported with the file.
            if !problems.is_clean(at) {
                return None;
            }
            if values.is_empty() {
                problems.warning(&node.at, messages::values_file_is_empty(shown));
            }
            let value = |&(value, line)| (value, at.at((line, 1)));
            Some((name.to_owned(), values.iter().map(value).collect()))
        }
        (Some(node), Some(_)) => problems.fail(&node.at, messages::values_next_to_file()),
        (None, None) => problems.fail(fields.lack("values"), messages::no_values(what)),
    }
}

fn inline<'n>(problems: &Problems, node: &'n Node, what: &str) -> Option<Vec<(&'n str, Place)>> {
    let items = fields::items(problems, node, messages::values_no_list)?;
    if items.is_empty() {
        problems.error(&node.at, messages::values_are_empty(what));
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

/// For outlines.
impl Match {
    /// Whether a value matches; slow.
    pub(super) fn matches(&self, value: &str) -> bool {
        let address = address::read(value.as_bytes());
        let is_it = |own: &str| address.is_some() && address::read(own.as_bytes()) == address;
        match &self.what {
            Matched::Set(values) => values.iter().any(|own| **own == *value || is_it(own)),
            Matched::Networks(networks) => prefixes(networks, value).next().is_some(),
            Matched::Regex(regex) => regex_matches(regex, value.as_bytes()),
        }
    }

    /// The place in the order of precedence; see `DescriptorTree::rank`.
    pub(super) fn rank(&self, value: &str) -> (How, u8) {
        match &self.what {
            Matched::Set(_) => (How::Set, 0),
            Matched::Networks(networks) => {
                let longest = prefixes(networks, value).max();
                (How::Network, u8::MAX - longest.unwrap_or_default())
            }
            Matched::Regex(_) => (How::Pattern, 0),
        }
    }
}

/// The prefix lengths of the networks that have a value.
fn prefixes(networks: &[IpNet], value: &str) -> impl Iterator<Item = u8> {
    let address = address::read(value.as_bytes());
    let has = move |network: &&IpNet| address.is_some_and(|address| network.contains(&address));
    networks.iter().filter(has).map(IpNet::prefix_len)
}
