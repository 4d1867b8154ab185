//! Several replicas of a service, which a command asks at the same time.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use futures_util::future::join_all;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::admin::{AdminFlags, Call, Service, Services, joined};
use super::print;
use crate::limiter::replicas::of_one_family;
use crate::limits::rules::compile::OneLine;

/// The time for an answer of one replica: the others are shown without it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of replicas that are queried.
const MAX_REPLICAS: usize = 1_000;

/// Whether a replica answered, for programs.
#[derive(Debug, Serialize)]
pub(super) struct Replica {
    /// `host:port`.
    address: String,
    /// Why there is no answer.
    pub(super) error: Option<String>,
}

/// The answers of all replicas, or the merged answer. One answer that is of all replicas has none.
#[derive(Debug, Default, Serialize)]
pub(super) struct Merged<T> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) replicas: Vec<Replica>,
    #[serde(flatten)]
    pub(super) answer: T,
}

impl AdminFlags {
    /// Queries all replicas by GET of a call, as [`AdminFlags::query_each`].
    ///
    /// # Errors
    /// As there.
    pub(super) async fn query_all<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> anyhow::Result<Merged<Vec<T>>> {
        let call = Call::get(path);
        let answers = self.query_each(async |service| service.call(&call).await);
        answers.await
    }

    /// Queries all replicas. Names are resolved each time to find new replicas.
    ///
    /// # Errors
    /// An address cannot be used.
    pub(super) async fn query_each<T>(
        &self,
        query: impl AsyncFn(&Service) -> anyhow::Result<T>,
    ) -> anyhow::Result<Merged<Vec<T>>> {
        let Services(named) = self.services()?;
        let mut services = Vec::new();
        for found in join_all(named.into_iter().map(|named| self.resolved(named))).await {
            services.extend(found?);
        }
        let mut seen = BTreeSet::new();
        services.retain(|(address, _)| seen.insert(address.clone()));
        services.truncate(MAX_REPLICAS);
        let answers = services.into_iter().map(|(address, service)| async {
            let answer = async {
                let service = service?;
                let answered = tokio::time::timeout(TIMEOUT, query(&service)).await;
                answered.map_err(|_| anyhow!("no answer within {} s", TIMEOUT.as_secs()))?
            };
            (address, answer.await)
        });
        let mut all = Merged::<Vec<T>>::default();
        for (address, answer) in join_all(answers).await {
            let error = answer.map(|answer| all.answer.push(answer)).err();
            let error = error.map(|error| OneLine(&format!("{error:#}")).to_string());
            all.replicas.push(Replica { address, error });
        }
        Ok(all)
    }

    /// The services at the addresses of a name. A name that cannot be resolved is one
    /// that does not answer.
    async fn resolved(
        &self,
        named: Service,
    ) -> anyhow::Result<Vec<(String, anyhow::Result<Service>)>> {
        let host = named.address().to_owned();
        let name = host.rsplit_once(':').map(|(name, _)| name);
        if name.is_none_or(is_literal) {
            return Ok(vec![(host, Ok(named))]);
        }
        let service = |address: SocketAddr| {
            let address = address.to_string();
            let service = self.service(&address).context("an address of the name")?;
            Ok((address, Ok(service)))
        };
        let found = tokio::time::timeout(TIMEOUT, tokio::net::lookup_host(host.clone())).await;
        let why = match found {
            Ok(Ok(found)) => return of_one_family(found).into_iter().map(service).collect(),
            Ok(Err(error)) => format!("cannot be resolved: {error}"),
            Err(_) => format!("is not resolved within {} s", TIMEOUT.as_secs()),
        };
        let error = anyhow!("{host}: the name {why}");
        Ok(vec![(host, Err(error))])
    }
}

/// Whether a host is an address or this machine, and therefore one replica.
fn is_literal(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}

impl<T> Merged<T> {
    /// The same with what is made of the answer.
    pub(super) fn map<M>(self, make: impl FnOnce(T) -> M) -> Merged<M> {
        Merged {
            replicas: self.replicas,
            answer: make(self.answer),
        }
    }

    /// One error of the command if no replica answered.
    ///
    /// # Errors
    /// The errors of all replicas.
    pub(super) fn check_any(&self) -> anyhow::Result<()> {
        let is_any = self.replicas.is_empty() || !self.answered().is_empty();
        anyhow::ensure!(is_any, self.failures().join("; "));
        Ok(())
    }

    /// The addresses of replicas that answered.
    pub(super) fn answered(&self) -> Vec<&str> {
        let replicas = self.replicas.iter();
        let answered = replicas.filter(|replica| replica.error.is_none());
        answered.map(|replica| &*replica.address).collect()
    }

    /// A line for each error of replicas that did not answer.
    pub(super) fn failures(&self) -> Vec<String> {
        let errors = self.replicas.iter();
        let errors = errors.filter_map(|one| Some((&*one.address, one.error.as_deref()?)));
        joined(&errors.collect::<Vec<_>>())
    }
}

impl<T: Serialize> Merged<T> {
    /// Prints it, for people with a line for each error of replicas that did not answer.
    ///
    /// # Errors
    /// stdout cannot be written.
    pub(super) fn print(
        &self,
        format: print::Format,
        text: impl FnOnce(&Self) -> String,
    ) -> anyhow::Result<ExitCode> {
        format.print(self, text)?;
        if format == print::Format::Text {
            for line in self.failures() {
                print::error(format_args!("weir: {line}"));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_this_machine_are_one_replica() {
        assert!(
            is_literal("127.0.0.1")
                && is_literal("[::1]")
                && is_literal("localhost")
                && !is_literal("weir")
        );
    }
}
