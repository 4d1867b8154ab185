//! Why each descriptor of a request has its slot in the plan. For people who ask; the request path
//! does not use it.

use super::{CheckIndex, Plan, Slot, is_replaced};
use crate::core::ask::{Ask, Descriptor, Entry};
use crate::limits::rules::limit::{LimitInForce, Scale};
use crate::limits::rules::trace::Trace;

/// The limits that are named as replacing another, at most. A request may have thousands of
/// descriptors.
const MAX_REPLACING: usize = 20;

/// What happens to one descriptor, and why.
#[derive(Debug)]
pub struct Explanation<'p> {
    /// The look-up of its limit; `None` if there was none: the domain is unknown, or the request
    /// brings a limit along.
    pub trace: Option<Trace>,
    /// The result.
    pub outcome: Outcome<'p>,
}

/// What happens to one descriptor.
#[derive(Debug)]
pub enum Outcome<'p> {
    /// No file defines the domain, so that nothing of the request is limited.
    UnknownDomain,
    /// No limit applies; the trace says why.
    NoLimit,
    /// The limit is switched off in this request by limits that other descriptors have found.
    Replaced {
        /// The limit that would apply.
        limit: LimitInForce<'p>,
        /// Those that name it in `replaces`; at least one, and the first 20 at most.
        by: Vec<LimitInForce<'p>>,
    },
    /// The limit is `unlimited`.
    Unlimited(LimitInForce<'p>),
    /// An override exempts the descriptor from this limit, if there is one.
    Exempt(Option<LimitInForce<'p>>),
    /// An override blocks the descriptor, whatever this limit has left, if there is one.
    Blocked(Option<LimitInForce<'p>>),
    /// A store decides.
    Checked {
        /// The configured limit; `None` if the descriptor has a limit of its own.
        limit: Option<LimitInForce<'p>>,
        /// The check, in [`Plan::checks`].
        check: CheckIndex,
        /// The hits of a unit of its amount.
        scale: Scale,
    },
}

impl Plan {
    /// Explains the plan of this request, one element for each descriptor.
    #[must_use]
    pub fn explain<'p>(&'p self, ask: &Ask<'_>) -> Vec<Explanation<'p>> {
        let find = |(descriptor, entries): (&Descriptor, &[Entry<'_>])| {
            super::find(&self.rules, ask.domain, descriptor, entries)
        };
        let found: Vec<Option<LimitInForce<'p>>> = ask.descriptors().map(find).collect();
        let mut tracer = self.rules.tracer(ask.domain);
        let mut all = Vec::with_capacity(ask.len());
        for ((descriptor, entries), (slot, limit)) in
            ask.descriptors().zip(self.slots.iter().zip(&found))
        {
            let outcome = match (slot, *limit) {
                (
                    Slot::Checked {
                        check,
                        limit,
                        row,
                        scale,
                        ..
                    },
                    _,
                ) => Outcome::Checked {
                    limit: limit.map(|id| self.rules.in_force(id, *row)),
                    check: *check,
                    scale: *scale,
                },
                (Slot::Unlimited(id), limit) => {
                    Outcome::Unlimited(limit.unwrap_or(self.rules.in_force(*id, None)))
                }
                (Slot::Exempt { .. }, limit) => Outcome::Exempt(limit),
                (Slot::Blocked { .. }, limit) => Outcome::Blocked(limit),
                (Slot::Free, Some(limit)) => {
                    let names_it = |other: &LimitInForce<'_>| is_replaced(limit, &[Some(*other)]);
                    Outcome::Replaced {
                        limit,
                        by: found
                            .iter()
                            .flatten()
                            .copied()
                            .filter(names_it)
                            .take(MAX_REPLACING)
                            .collect(),
                    }
                }
                (Slot::Free, None) if self.unknown_domain => Outcome::UnknownDomain,
                (Slot::Free, None) => Outcome::NoLimit,
            };
            let trace = if descriptor.limit.is_some() {
                None
            } else {
                tracer.as_mut().map(|tracer| tracer.trace(entries))
            };
            all.push(Explanation { trace, outcome });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::limits::plan::Options;
    use crate::limits::rules::compile::{self, SourceText, compile};
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

    fn plan(ask: &Ask<'_>) -> Plan {
        let file = SourceText {
            name: "a.yaml".to_owned(),
            text: FILE.into(),
        };
        let rules = compile(&[file], &compile::Options::default())
            .unwrap_or_else(|problems| panic!("{problems:?}"))
            .rules;
        Plan::new(&Arc::new(rules), ask, &Options::default())
    }

    fn ask<'a>(domain: &'a str, descriptors: &[&[(&'a str, &'a str)]]) -> Ask<'a> {
        let mut ask = Ask::default();
        ask.domain = domain.as_bytes();
        for entries in descriptors {
            entries.iter().for_each(|(key, value)| {
                ask.push(Entry {
                    key: key.as_bytes(),
                    value: value.as_bytes(),
                });
            });
            ask.close(Descriptor::default());
        }
        ask
    }

    #[test]
    fn each_outcome_has_its_reason() {
        let ask = ask(
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
        let plan = plan(&ask);
        let all = plan.explain(&ask);
        assert!(
            matches!(&all[0].outcome, Outcome::Replaced { limit, by } if limit.limit.path() == "d.a" && by[0].limit.path() == "d.c" && by.len() == 1)
        );
        assert!(
            matches!(all[1].outcome, Outcome::Unlimited(limit) if limit.limit.path() == "d.a.b_x")
        );
        assert!(
            matches!(all[2].outcome, Outcome::Checked { limit: Some(limit), .. } if limit.limit.path() == "d.a.b_x*")
        );
        assert!(
            matches!((&all[3].outcome, &all[3].trace), (Outcome::NoLimit, Some(trace)) if matches!(trace.end, End::NoLimit(_)))
        );
        assert!(
            matches!(all[4].outcome, Outcome::Checked { limit: Some(limit), .. } if limit.limit.path() == "d.c")
        );
        assert!(
            matches!((&all[5].outcome, &all[5].trace), (Outcome::NoLimit, Some(trace)) if matches!(trace.end, End::NoBranch(_)))
        );
        let other = self::ask("e", &[&[("a", "1")]]);
        let plan = self::plan(&other);
        assert!(matches!(
            plan.explain(&other)[..],
            [Explanation {
                trace: None,
                outcome: Outcome::UnknownDomain
            }]
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
        let file = SourceText {
            name: "a.yaml".to_owned(),
            text: text.into(),
        };
        let rules = compile(&[file], &compile::Options::default())
            .unwrap_or_else(|problems| panic!("{problems:?}"))
            .rules;
        let ask = ask("d", &[&[("user", "x")] as &[_]; 256]);
        let plan = Plan::new(&Arc::new(rules), &ask, &Options::default());
        let mut all = Vec::new();
        let work = allocation_counter::measure(|| all = plan.explain(&ask));
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
        /// What is said of a descriptor is what the plan has for it.
        #[test]
        fn it_says_what_the_plan_does(descriptors in prop::collection::vec(prop::collection::vec(("[abc]", "[xy]{0,2}"), 1..3), 1..5)) {
            let descriptors: Vec<Vec<_>> = descriptors.iter().map(|all| all.iter().map(|(key, value)| (&**key, &**value)).collect()).collect();
            let ask = ask("d", &descriptors.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let plan = plan(&ask);
            for (slot, Explanation { trace, outcome }) in plan.slots.iter().zip(plan.explain(&ask)) {
                let named = match &trace.as_ref().expect("a trace").end {
                    End::Limit(id) => Some(plan.rules.limit(*id).path()),
                    End::NoBranch(_) | End::NoLimit(_) => None,
                };
                let (applies, would) = match outcome {
                    Outcome::Checked { limit, .. } => (true, limit),
                    Outcome::Unlimited(limit) => (false, Some(limit)),
                    Outcome::Exempt(limit) | Outcome::Blocked(limit) => (false, limit),
                    Outcome::Replaced { limit, by } => {
                        prop_assert!(!by.is_empty());
                        (false, Some(limit))
                    }
                    Outcome::NoLimit | Outcome::UnknownDomain => (false, None),
                };
                prop_assert_eq!(applies, matches!(slot, Slot::Checked { .. }));
                prop_assert_eq!(would.map(|would| would.limit.path()), named, "what the look-up \
                    ends with is the limit that is named");
            }
        }
    }
}
