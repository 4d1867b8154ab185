//! Counts the addresses behind a name: A and AAAA records, by UDP, and by TCP where an answer does
//! not fit into a datagram.
//!
//! A new resolver for each lookup keeps neither answers nor connections, and reads a changed
//! `/etc/resolv.conf`. Where the name was found in the search list is remembered.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RecordType};
use tokio::time::Duration;

use super::source::DnsName;

/// The longest wait for one datagram, and the most attempts: a lost one is repeated within the time
/// of a lookup. `/etc/resolv.conf` may ask for less.
const MAX_WAIT: Duration = Duration::from_secs(1);
const MAX_ATTEMPTS: usize = 2;

/// Why there is no number.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum ResolveError {
    /// The servers are not known, or no server gave an answer that can be used.
    #[error("{0}")]
    Failed(#[from] NetError),
    /// The name does not exist or has no addresses. This process is a replica, so that it does not
    /// mean that there are none.
    #[error(
        "the name has no addresses; check that it is the name of a headless Service (clusterIP: \
         None) with ready pods"
    )]
    NoAddress,
    /// It takes too long.
    #[error("no answer in time")]
    Timeout,
}

/// Resolves one name.
#[derive(Debug)]
pub(super) struct Resolver {
    name: DnsName,
    /// The name with the domain of the search list in which it was found, so that it is not sought
    /// in all of them each time.
    found: Option<Name>,
}

impl Resolver {
    pub(super) const fn new(name: DnsName) -> Self {
        Self { name, found: None }
    }

    /// The number of different addresses: of IPv4 or of IPv6, whichever are more, because a replica
    /// may have one of each.
    pub(super) async fn addresses(&mut self) -> Result<NonZeroU32, ResolveError> {
        // Kept only if it is found again: otherwise, and if this future is dropped, the next lookup
        // seeks the name anew.
        let name = self.found.take().unwrap_or_else(|| self.name.name.clone());
        let (count, found) = count(&self.resolver()?, name).await?;
        self.found = Some(found);
        Ok(count)
    }

    /// A new one for each lookup, so that it reads changed files, and keeps neither answers nor
    /// connections.
    fn resolver(&self) -> Result<TokioResolver, NetError> {
        let mut builder = match self.name.server {
            None => TokioResolver::builder_tokio()?,
            Some(server) => TokioResolver::builder_with_config(
                only(server, Vec::new()),
                TokioRuntimeProvider::default(),
            ),
        };
        limit(builder.options_mut());
        builder.build()
    }
}

/// The configuration for one server.
fn only(server: SocketAddr, search: Vec<Name>) -> ResolverConfig {
    let mut connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
    for connection in &mut connections {
        connection.port = server.port();
    }
    ResolverConfig::from_parts(
        None,
        search,
        vec![NameServerConfig::new(server.ip(), true, connections)],
    )
}

fn limit(options: &mut ResolverOpts) {
    options.timeout = options.timeout.min(MAX_WAIT);
    options.attempts = options.attempts.min(MAX_ATTEMPTS);
    options.try_tcp_on_error = true;
    options.cache_size = 0;
}

/// The number of addresses, and the name that has them.
async fn count(resolver: &TokioResolver, name: Name) -> Result<(NonZeroU32, Name), ResolveError> {
    let (name, v4) = addresses(resolver, name, RecordType::A).await;
    let (name, v6) = addresses(resolver, name, RecordType::AAAA).await;
    let count = match (v4, v6) {
        (Ok(v4), Ok(v6)) => v4.max(v6),
        // Where one type fails, a count of the other is right, because each replica has one; that
        // there is none says nothing.
        (Ok(count), Err(_)) | (Err(_), Ok(count)) if count > 0 => count,
        (Err(error), _) | (_, Err(error)) => return Err(error.into()),
    };
    NonZeroU32::new(count)
        .map(|count| (count, name))
        .ok_or(ResolveError::NoAddress)
}

/// The number of different addresses of this type, and the name that has them. A name without any
/// is no error: most have only one type.
async fn addresses(
    resolver: &TokioResolver,
    name: Name,
    record_type: RecordType,
) -> (Name, Result<u32, NetError>) {
    match resolver.lookup(name.clone(), record_type).await {
        Ok(lookup) => {
            let of_type = lookup
                .answers()
                .iter()
                .filter(|record| record.record_type() == record_type);
            let different: BTreeSet<IpAddr> =
                of_type.filter_map(|record| record.data.ip_addr()).collect();
            let found = if different.is_empty() {
                name
            } else {
                lookup.query().name().clone()
            };
            (
                found,
                Ok(u32::try_from(different.len()).unwrap_or(u32::MAX)),
            )
        }
        Err(error) if error.is_no_records_found() => (name, Ok(0)),
        Err(error) => (name, Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::op::{Message, ResponseCode};
    use hickory_resolver::proto::rr::{RData, Record};
    use tokio::net::UdpSocket;

    use super::*;

    /// A server that has two addresses of IPv4 for `weir.two.`, and no other name; it notes all
    /// queries.
    async fn serve(socket: UdpSocket, asked: std::sync::mpsc::SyncSender<String>) {
        let mut buffer = [0; 1_500];
        loop {
            let (length, peer) = socket.recv_from(&mut buffer).await.expect("a query");
            let query = Message::from_vec(&buffer[..length]).expect("a message");
            let question = query.queries[0].clone();
            asked
                .send(format!("{} {}", question.name(), question.query_type()))
                .expect("room");
            let mut answer = Message::response(query.id, query.op_code);
            answer.add_query(question.clone());
            if question.name().to_ascii() != "weir.two." {
                answer.metadata.response_code = ResponseCode::NXDomain;
            } else if question.query_type() == RecordType::A {
                for host in [1, 2, 2] {
                    let address = std::net::Ipv4Addr::new(10, 0, 0, host);
                    answer.add_answer(Record::from_rdata(
                        question.name().clone(),
                        0,
                        RData::A(address.into()),
                    ));
                }
            }
            socket
                .send_to(&answer.to_vec().expect("a message"), peer)
                .await
                .expect("sent");
        }
    }

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "a server of the test")]
    async fn a_relative_name_is_sought_once_in_the_search_list() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let server = socket.local_addr().expect("an address");
        let (asked, queries) = std::sync::mpsc::sync_channel(100);
        tokio::spawn(serve(socket, asked));
        let search = ["one.", "two.", "three."]
            .map(|domain| Name::from_ascii(domain).expect("a name"))
            .to_vec();
        let mut builder = TokioResolver::builder_with_config(
            only(server, search),
            TokioRuntimeProvider::default(),
        );
        limit(builder.options_mut());
        let resolver = builder.build().expect("a resolver");
        let (replicas, found) = count(&resolver, Name::from_ascii("weir").expect("a name"))
            .await
            .expect("an answer");
        assert_eq!(
            (replicas.get(), found.to_ascii().as_str()),
            (2, "weir.two."),
            "an address that comes twice is one"
        );
        assert_eq!(
            queries.try_iter().collect::<Vec<_>>(),
            ["weir.one. A", "weir.two. A", "weir.two. AAAA"]
        );
        assert!(count(&resolver, found).await.is_ok());
        assert_eq!(
            queries.try_iter().collect::<Vec<_>>(),
            ["weir.two. A", "weir.two. AAAA"]
        );
        let unknown = count(&resolver, Name::from_ascii("other").expect("a name")).await;
        assert!(
            matches!(unknown, Err(ResolveError::NoAddress)),
            "{unknown:?}"
        );
    }
}
