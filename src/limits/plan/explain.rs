//! Why each descriptor of a request has its slot in the plan. Used for explanations, never on the
//! request path.

use super::{Disposition, Plan, Slot, is_replaced};
use crate::core::request::{DecodedRequest, Descriptor};
use crate::limits::rules::limit::LimitInForce;
use crate::limits::rules::trace::Trace;

/// Maximum number of limits that are listed as replacing another. A request may have thousands of
/// descriptors.
const MAX_REPLACING: usize = 20;

/// Why a descriptor has its slot.
#[derive(Debug)]
pub struct Explanation<'p> {
    /// The look-up of its limit; `None` if there was none: the domain does not exist, or the
    /// request contains its own limit.
    pub trace: Option<Trace<'p>>,
    /// The limits that switch its own off in this request, because they name it in `replaces`: at
    /// most the first 20.
    pub replaced_by: Vec<LimitInForce<'p>>,
}

impl Plan {
    /// Explains the plan of this request, one element for each descriptor.
    pub fn explain<'p>(&'p self, request: &DecodedRequest<'_>) -> Vec<Explanation<'p>> {
        let found = self.slots.iter().filter_map(|slot| self.limit(slot));
        let found: Vec<LimitInForce<'p>> = found.collect();
        let mut tracer = self.rules.tracer(request.domain);
        let mut explain = |((descriptor, entries), slot): ((&Descriptor, _), _)| {
            let tracer = tracer.as_mut().filter(|_| descriptor.limit.is_none());
            Explanation {
                trace: tracer.map(|tracer| tracer.trace(entries)),
                replaced_by: self.replacing(slot, &found),
            }
        };
        let all = request.descriptors().zip(&self.slots);
        all.map(&mut explain).collect()
    }

    fn replacing<'p>(&'p self, slot: &Slot, found: &[LimitInForce<'p>]) -> Vec<LimitInForce<'p>> {
        let (Disposition::Free, Some(limit)) = (&slot.disposition, self.limit(slot)) else {
            return Vec::new();
        };
        let names_it = |other: &LimitInForce<'_>| is_replaced(limit, &[Some(*other)]);
        let by = found.iter().copied().filter(names_it);
        by.take(MAX_REPLACING).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::core::request::Entry;
    use crate::limits::plan::Options;
    use crate::limits::rules::compile::rules_of;
    use crate::limits::rules::trace::End;

    const FILE: &str = "
domain: d
descriptors:
- key: a
  rate_limit: { name: first, unit: day, requests_per_unit: 1 }
  descriptors:
  - { key: b, value: x, rate_limit: { unlimited: true } }
  - { key: b, value: 'x*', rate_limit: { unit: day, requests_per_unit: 2 } }
- key: a
  value: y
- key: c
  rate_limit: { unit: day, requests_per_unit: 3, replaces: [{ name: first }] }
";

    fn plan(request: &DecodedRequest<'_>) -> Plan {
        Plan::new(&Arc::new(rules_of(FILE)), request, &Options::default())
    }

    fn request_of<'a>(
        domain: &'a str,
        descriptors: &[&[(&'a str, &'a str)]],
    ) -> DecodedRequest<'a> {
        let mut request = DecodedRequest::default();
        request.domain = domain.as_bytes();
        for entries in descriptors {
            entries.iter().for_each(|(key, value)| {
                request.push(Entry {
                    key: key.as_bytes(),
                    value: value.as_bytes(),
                });
            });
            request.close(Descriptor::default());
        }
        request
    }

    #[test]
    fn each_outcome_has_its_reason() {
        let request = request_of(
            "d",
            &[
                &[("a", "1")],
                &[("a", "1"), ("b", "x")],
                &[("a", "1"), ("b", "xy")],
                &[("a", "y")],
                &[("c", "")],
                &[("z", "")],
            ],
        );
        let plan = plan(&request);
        let all = plan.explain(&request);
        let limit = |index: usize| {
            plan.limit(&plan.slots[index])
                .map(|found| found.limit.path())
        };
        let end = |index: usize| all[index].trace.as_ref().map(|trace| &trace.end);
        assert!(
            matches!(plan.slots[0].disposition, Disposition::Free)
                && limit(0).as_deref() == Some("d.a")
        );
        assert!(
            matches!(&all[0].replaced_by[..], [by] if by.limit.path() == "d.c"),
            "{:?}",
            all[0]
        );
        assert!(all[1..].iter().all(|other| other.replaced_by.is_empty()));
        assert!(matches!(plan.slots[1].disposition, Disposition::Unlimited));
        assert_eq!(limit(1).as_deref(), Some("d.a.b_x"));
        assert!(matches!(plan.slots[2].disposition, Disposition::Checked(_)));
        assert_eq!(limit(2).as_deref(), Some("d.a.b_x*"));
        assert!(matches!(plan.slots[3].disposition, Disposition::Free) && limit(3).is_none());
        assert!(matches!(end(3), Some(End::NoLimit(_))));
        assert!(matches!(plan.slots[4].disposition, Disposition::Checked(_)));
        assert_eq!(limit(4).as_deref(), Some("d.c"));
        assert!(matches!(plan.slots[5].disposition, Disposition::Free) && limit(5).is_none());
        assert!(matches!(end(5), Some(End::NoBranch(_))));
        let other = request_of("e", &[&[("a", "1")]]);
        let plan = self::plan(&other);
        assert!(plan.unknown_domain && matches!(plan.slots[0].disposition, Disposition::Free));
        assert!(matches!(
            plan.explain(&other)[..],
            [Explanation { trace: None, .. }]
        ));
    }

    /// The work of one request, counted in allocations: each text is one.
    #[test]
    fn many_descriptors_on_a_level_of_many_values_name_a_few() {
        let values: String = (0..30_000)
            .map(|number| format!("- {{ key: user, value: u{number} }}\n"))
            .collect();
        let text = format!(
            "domain: d\ndescriptors:\n{values}- {{ key: user, rate_limit: {{ unit: day, \
             requests_per_unit: 1 }} }}\n"
        );
        let rules = rules_of(&text);
        let request = request_of("d", &[&[("user", "x")] as &[_]; 256]);
        let plan = Plan::new(&Arc::new(rules), &request, &Options::default());
        let mut all = Vec::new();
        let work = allocation_counter::measure(|| all = plan.explain(&request));
        // Four for each of 4,000 names, and not two for each of 256 times 30,000 branches.
        assert!(
            work.count_total < 100 * 256,
            "{} allocations",
            work.count_total
        );
        let passed = |index: usize| {
            all[index].trace.as_ref().map(|trace| {
                (
                    trace.levels[0].passed.first.len(),
                    trace.levels[0].passed.more,
                )
            })
        };
        assert_eq!(
            (passed(0), passed(255)),
            (Some((20, 29_980)), Some((0, 30_000))),
            "all of them have names for 200 descriptors"
        );
        assert!(matches!(
            all[255]
                .trace
                .as_ref()
                .map(|trace| &trace.levels[0].matched),
            Some(Some(_))
        ));
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        /// The explanation of a descriptor agrees with the plan.
        #[test]
        fn it_says_what_the_plan_does(
            descriptors in
                prop::collection::vec(prop::collection::vec(("[abc]", "[xy]{0,2}"), 1..3), 1..5),
        ) {
            let descriptors: Vec<Vec<_>> = descriptors
                .iter()
                .map(|all| all.iter().map(|(key, value)| (&**key, &**value)).collect())
                .collect();
            let request = request_of(
                "d",
                &descriptors.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            );
            let plan = plan(&request);
            for (
                slot,
                Explanation {
                    trace, replaced_by, ..
                },
            ) in plan.slots.iter().zip(plan.explain(&request))
            {
                let named = match &trace.as_ref().expect("a trace").end {
                    End::Limit(id) => Some(*id),
                    End::NoBranch(_) | End::NoLimit(_) => None,
                };
                prop_assert_eq!(
                    slot.limit,
                    named,
                    "what the look-up ends with is the limit that \
                    is named"
                );
                let is_replaced = matches!(slot.disposition, Disposition::Free) && named.is_some();
                prop_assert_eq!(!replaced_by.is_empty(), is_replaced);
            }
        }
    }
}
