//! Requests of templates.

use super::part::Hits;
use super::template::{Filled, Template};
use crate::core::proto::rate_limit_descriptor::Entry;
use crate::core::proto::{RateLimitDescriptor, RateLimitRequest};

/// Makes requests of templates.
#[derive(Default)]
pub(crate) struct Requests {
    /// Of all requests, where a record names none.
    pub(crate) domain: Option<String>,
    /// One for each descriptor.
    pub(crate) templates: Vec<Template>,
    /// Of each descriptor; without them a request says nothing, which means one hit.
    pub(crate) hits: Option<Hits>,
    pub(crate) random: fastrand::Rng,
}

impl Requests {
    /// The next request of templates without fields.
    pub(in crate::cli) fn made_up(&mut self) -> RateLimitRequest {
        self.of_record(|_, _| None)
    }

    /// The next request of a record, without the descriptors of which it lacks a field. `field` is
    /// the value of a field of a template, both by their indices.
    pub(in crate::cli) fn of_record<'a>(
        &mut self,
        field: impl Fn(usize, usize) -> Option<&'a [u8]>,
    ) -> RateLimitRequest {
        let mut descriptors = Vec::with_capacity(self.templates.len());
        let mut filled = Filled::default();
        for (index, template) in self.templates.iter_mut().enumerate() {
            if !template.fill(&mut self.random, |own| field(index, own), &mut filled) {
                continue;
            }
            let entries = template.entries(&filled).map(|entry| Entry {
                key: entry.key.to_vec(),
                value: entry.value.to_vec(),
            });
            descriptors.push(RateLimitDescriptor {
                entries: entries.collect(),
                hits_addend: self.hits.as_ref().map(|hits| hits.draw(&mut self.random)),
                ..RateLimitDescriptor::default()
            });
        }
        RateLimitRequest {
            domain: self.domain.clone().unwrap_or_default(),
            descriptors,
            hits_addend: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::workload::Fields;

    #[test]
    fn a_descriptor_has_its_entries_and_hits_and_is_left_out_without_a_field() {
        let texts = ["a=x{sequence},b=", "c={who}{uniform:7..7}"];
        let template = |text| Template::parse(text, Fields::Allowed).expect("a template");
        let mut requests = Requests {
            domain: Some("demo".to_owned()),
            templates: texts.map(template).to_vec(),
            ..Requests::default()
        };
        for (hits, addend, who, expected) in [
            (None, None, Some("é"), &["a=x1 b=", "c=é7"][..]),
            (Some("0"), Some(0), None, &["a=x2 b="]),
            (Some("300"), Some(300), Some(""), &["a=x3 b=", "c=7"]),
        ] {
            requests.hits = hits.map(|text| Hits::parse(text).expect("hits"));
            let request = requests.of_record(|template, field| {
                assert_eq!((template, field), (1, 0));
                who.map(str::as_bytes)
            });
            assert_eq!((&*request.domain, request.hits_addend), ("demo", 0));
            let shown = |descriptor: &RateLimitDescriptor| {
                assert_eq!(descriptor.hits_addend, addend);
                let text = |entry: &Entry| {
                    let [key, value] = [&entry.key, &entry.value].map(|text| str::from_utf8(text));
                    format!("{}={}", key.expect("UTF-8"), value.expect("UTF-8"))
                };
                let entries: Vec<_> = descriptor.entries.iter().map(text).collect();
                entries.join(" ")
            };
            let all: Vec<_> = request.descriptors.iter().map(shown).collect();
            assert_eq!(all, expected);
        }
    }
}
