//! Several replicas of a service, which a command asks at the same time.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::join_all;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::admin::{AdminFlags, Asked, Service};
use super::print;
use crate::limits::rules::compile::OneLine;

/// The time for an answer of one replica. The others are shown without it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Replicas that are asked at most.
const MAX_REPLICAS: usize = 1_000;

/// What one replica answered.
#[derive(Debug)]
pub(super) struct Answered<T> {
    /// `host:port`.
    pub(super) address: String,
    /// The answer, or why there is none.
    pub(super) answer: Result<T, String>,
}

/// Whether a replica answered, for programs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Replica {
    /// `host:port`.
    pub(super) address: String,
    /// Why there is no answer.
    pub(super) error: Option<String>,
}

impl<T> Answered<T> {
    pub(super) fn replica(&self) -> Replica {
        Replica {
            address: self.address.clone(),
            error: self.answer.as_ref().err().cloned(),
        }
    }
}

impl AdminFlags {
    /// Asks all replicas. Names are resolved anew, so that new replicas are found.
    ///
    /// # Errors
    /// An address cannot be used.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        call: &str,
        query: &[(&str, &str)],
    ) -> anyhow::Result<Vec<Answered<T>>> {
        let mut asked = Vec::new();
        for found in join_all(
            self.services()?
                .0
                .into_iter()
                .map(|named| self.resolved(named)),
        )
        .await
        {
            asked.extend(found?);
        }
        let mut seen = BTreeSet::new();
        asked.retain(|(address, _)| seen.insert(address.clone()));
        asked.truncate(MAX_REPLICAS);
        Ok(join_all(asked.into_iter().map(|(address, service)| async {
            let answer = match service {
                Ok(service) => one(&service, call, query).await,
                Err(error) => Err(error),
            };
            Answered { address, answer }
        }))
        .await)
    }

    /// The services behind a name, each with its own address. A name that cannot be resolved is one
    /// that does not answer.
    async fn resolved(
        &self,
        named: Service,
    ) -> anyhow::Result<Vec<(String, Result<Service, String>)>> {
        let host = named.address().to_owned();
        let resolved = match host
            .rsplit_once(':')
            .and_then(|(name, port)| Some((name, port.parse::<u16>().ok()?)))
        {
            Some((name, port)) if !is_literal(name) && !name.eq_ignore_ascii_case("localhost") => {
                tokio::time::timeout(TIMEOUT, tokio::net::lookup_host((name.to_owned(), port)))
                    .await
            }
            _ => return Ok(vec![(host, Ok(named))]),
        };
        let found = match resolved {
            Ok(Ok(found)) => of_one_family(found),
            Ok(Err(error)) => {
                return Ok(vec![(
                    host.clone(),
                    Err(format!("{host}: the name cannot be resolved: {error}")),
                )]);
            }
            Err(_) => {
                return Ok(vec![(
                    host.clone(),
                    Err(format!(
                        "{host}: the name is not resolved within {} s",
                        TIMEOUT.as_secs()
                    )),
                )]);
            }
        };
        let service = |address: SocketAddr| {
            let service = self
                .service(&address.to_string())
                .context("an address of the name");
            service.map(|service| (address.to_string(), Ok(service)))
        };
        found.into_iter().map(service).collect()
    }
}

async fn one<T: DeserializeOwned>(
    service: &Service,
    call: &str,
    query: &[(&str, &str)],
) -> Result<T, String> {
    match tokio::time::timeout(TIMEOUT, service.get(call, query)).await {
        Ok(answer) => answer.map_err(|error| OneLine(&format!("{error:#}")).to_string()),
        Err(_) => Err(format!(
            "no answer from {} within {} s",
            service.address(),
            TIMEOUT.as_secs()
        )),
    }
}

fn is_literal(host: &str) -> bool {
    host.trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>()
        .is_ok()
}

/// The addresses of IPv4 or those of IPv6, whichever are more: a pod with both is one replica.
fn of_one_family(found: impl Iterator<Item = SocketAddr>) -> BTreeSet<SocketAddr> {
    let (four, six): (BTreeSet<_>, BTreeSet<_>) = found.partition(SocketAddr::is_ipv4);
    if six.len() > four.len() { six } else { four }
}

/// What the answers of all replicas say together.
#[derive(Debug, Serialize)]
pub(super) struct Merged<T> {
    pub(super) replicas: Vec<Replica>,
    #[serde(flatten)]
    pub(super) answer: T,
}

impl<T: Serialize> Merged<T> {
    /// Prints it, for people with a line for each replica that did not answer.
    ///
    /// # Errors
    /// Those of stdout.
    pub(super) fn print(
        &self,
        asked: &Asked,
        text: impl FnOnce(&Self) -> String,
    ) -> anyhow::Result<ExitCode> {
        let code = asked.print(self, text)?;
        if asked.format == print::Format::Text {
            for line in failures(&self.replicas) {
                print::error(format_args!("weir: {line}"));
            }
        }
        Ok(code)
    }
}

/// One error of the command if no replica answered.
///
/// # Errors
/// What all replicas say.
pub(super) fn check_any<T>(answers: &[Answered<T>]) -> anyhow::Result<()> {
    if answers.iter().any(|answered| answered.answer.is_ok()) {
        return Ok(());
    }
    let errors: Vec<_> = answers
        .iter()
        .filter_map(|answered| answered.answer.as_ref().err().map(String::as_str))
        .collect();
    anyhow::bail!(errors.join("; "))
}

/// A line for each replica that did not answer.
pub(super) fn failures(replicas: &[Replica]) -> impl Iterator<Item = &str> {
    replicas
        .iter()
        .filter_map(|replica| replica.error.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_with_two_families_is_one_replica() {
        let found = |texts: &[&str]| {
            let addresses = texts.iter().map(|text| text.parse().expect("an address"));
            of_one_family(addresses)
                .into_iter()
                .map(|address: SocketAddr| address.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            found(&[
                "10.0.0.1:1",
                "[fd00::1]:1",
                "10.0.0.2:1",
                "10.0.0.1:1",
                "[fd00::2]:1"
            ]),
            ["10.0.0.1:1", "10.0.0.2:1"]
        );
        assert_eq!(
            found(&["10.0.0.1:1", "[fd00::1]:1", "[fd00::2]:1"]),
            ["[fd00::1]:1", "[fd00::2]:1"]
        );
        assert!(
            is_literal("127.0.0.1")
                && is_literal("[::1]")
                && !is_literal("weir")
                && !is_literal("localhost")
        );
    }
}
