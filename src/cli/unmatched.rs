//! `weir unmatched`: the last descriptors that no limit of a running service matched.
//!
//! It is a command of its own, because a flag of `weir explain`, which answers for one descriptor,
//! would have made two commands of that.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::process::ExitCode;

use clap::Args;

use super::admin::{AdminQuery, with_query};
use super::print;
use crate::admin::api::unmatched::{Unmatched, UnmatchedDomain};
use crate::core::time::people;
use crate::limits::rules::compile::OneLine;

#[derive(Args, Debug)]
#[command(after_help = "Example: weir unmatched --domain shop\n\n\
    Shows samples: some descriptors of each second, by domain and keys. `weir explain` shows why \
    a descriptor matches no limit.")]
pub(super) struct UnmatchedArgs {
    /// List only this domain
    #[arg(long, short, value_name = "TEXT")]
    domain: Option<String>,
    #[command(flatten)]
    admin: AdminQuery,
}

pub(super) fn run(unmatched: &UnmatchedArgs) -> anyhow::Result<ExitCode> {
    let admin = &unmatched.admin;
    let call = with_query("unmatched", &[("domain", unmatched.domain.as_deref())]);
    let answers = print::block_on(admin.service.query_all(&call))?;
    answers.check_any()?;
    let merged = answers.map(|answers| merge(answers.into_iter()));
    merged.print(admin.format, |merged| text(&merged.answer))
}

/// Equal descriptors are one, with the latest time.
fn merge(answers: impl Iterator<Item = Unmatched>) -> Unmatched {
    let mut domains: Vec<UnmatchedDomain> = Vec::new();
    for domain in answers.flat_map(|answer| answer.domains) {
        let is_it = |known: &&mut UnmatchedDomain| known.domain == domain.domain;
        let Some(known) = domains.iter_mut().find(is_it) else {
            domains.push(domain);
            continue;
        };
        known.is_known |= domain.is_known;
        let all = &mut known.descriptors;
        all.extend(domain.descriptors);
        all.sort_by_key(|one| Reverse(one.seen_at));
        let mut seen = HashSet::new();
        all.retain(|one| seen.insert((one.entries.clone(), one.subject.clone())));
    }
    let latest = |domain: &UnmatchedDomain| Some(domain.descriptors.first()?.seen_at);
    domains.sort_by_key(|domain| Reverse(latest(domain)));
    Unmatched { domains }
}

fn text(unmatched: &Unmatched) -> String {
    if unmatched.domains.is_empty() {
        return "every descriptor found a limit so far\n".to_owned();
    }
    let mut text = String::new();
    for domain in &unmatched.domains {
        let unknown = ": no file defines this domain";
        let unknown = if domain.is_known { "" } else { unknown };
        text += &format!("{}{unknown}\n", OneLine(&domain.domain));
        for one in &domain.descriptors {
            let row = print::row(&one.entries, one.subject.as_deref());
            text += &format!("  {}  {row}\n", people::instant(one.seen_at));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::admin::api::unmatched::UnmatchedDescriptor;
    use crate::limits::plan::key::EntryText;

    fn domain(name: &str, is_known: bool, descriptors: &[(&str, i64)]) -> UnmatchedDomain {
        let descriptor = |&(value, seen): &(&str, i64)| UnmatchedDescriptor {
            entries: vec![EntryText {
                key: "user".to_owned(),
                value: value.to_owned(),
            }],
            subject: None,
            seen_at: Timestamp::from_second(1_800_000_000 + seen).expect("an instant"),
        };
        UnmatchedDomain {
            domain: name.to_owned(),
            is_known,
            descriptors: descriptors.iter().map(descriptor).collect(),
        }
    }

    #[test]
    fn replicas_are_merged_and_the_last_comes_first() {
        let one = Unmatched {
            domains: vec![domain("shop", true, &[("ann", 5), ("bob", 1)])],
        };
        let other = Unmatched {
            domains: vec![
                domain("typo", false, &[("x\u{1b}[2J", 9)]),
                domain("shop", true, &[("bob", 7)]),
            ],
        };
        let merged = merge([one, other].into_iter());
        assert_eq!(
            text(&merged),
            "typo: no file defines this domain\n  2027-01-15 08:00:09 UTC  \
             'user=x\\u{1b}[2J'\nshop\n  2027-01-15 08:00:07 UTC  user=bob\n  2027-01-15 08:00:05 \
             UTC  user=ann\n"
        );
        assert_eq!(
            text(&Unmatched {
                domains: Vec::new()
            }),
            "every descriptor found a limit so far\n"
        );
    }
}
