//! Counts the addresses of a DNS name: A and AAAA records, by UDP, and by TCP if an answer does not
//! fit into a datagram or none arrives.
//!
//! A new resolver for each lookup keeps neither answers nor connections, and reads a changed
//! `/etc/resolv.conf`. Only the full name that was found by the search list is remembered.
//!
//! The crate `domain` provides messages and transport. hickory-resolver 0.26 also has search lists
//! and attempts (about 70 lines here), and brings twelve more crates for Linux.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU32;

use domain::base::iana::Rcode;
use domain::base::{Name, Rtype, ToName};
use domain::rdata::{A, Aaaa};
use domain::resolv::StubResolver;
use domain::resolv::stub::Answer;
use domain::resolv::stub::conf::{ResolvConf, SearchSuffix, ServerConf, Transport};
use tokio::time::Duration;

use super::DnsName;

/// The longest wait for one answer. `/etc/resolv.conf` may set less.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(1);

/// The transports of the attempts of a query: a lost datagram is repeated once; a network that
/// drops datagrams may let TCP through.
pub(crate) const ATTEMPTS: [Transport; 3] = [Transport::UdpTcp, Transport::UdpTcp, Transport::Tcp];

/// The error of a lookup that takes too long.
pub(super) const NO_ANSWER: &str = "no answer in time";

/// The error of a name that does not exist or has no addresses. It is an error and not a count of
/// 0, because this process is a replica itself.
const NO_ADDRESS: &str = "the name has no addresses; check that it is the name of a headless \
    Service (clusterIP: None) with ready pods";

/// An absolute name.
type FullName = Name<Vec<u8>>;

/// Resolver of one name. It keeps the full name that the last lookup found.
#[derive(Debug)]
pub(super) struct Resolver {
    name: DnsName,
    /// The name with the domain of the search list in which it was found. Later lookups try it
    /// first instead of the whole list.
    found: Option<FullName>,
}

impl Resolver {
    pub(super) const fn new(name: DnsName) -> Self {
        Self { name, found: None }
    }

    /// The number of different IPv4 addresses or of different IPv6 addresses, the larger of the
    /// two, because a replica may have one of each.
    pub(super) async fn addresses(&mut self) -> Result<NonZeroU32, String> {
        // Read for each lookup, because the files may change.
        let configuration = self.configuration()?;
        // The found name is kept only if it is found again. Otherwise, and if this future is
        // dropped, the next lookup starts with the whole search list.
        let names = match self.found.take() {
            Some(found) => vec![found],
            None => self.names(&configuration),
        };
        let (count, found) = count(&configuration, names).await?;
        self.found = Some(found);
        Ok(count)
    }

    fn configuration(&self) -> Result<ResolvConf, String> {
        let mut configuration = ResolvConf::new();
        match self.name.server {
            Some(server) => {
                let server = ServerConf::new(server, Transport::UdpTcp);
                configuration.servers.push(server);
            }
            None => configuration
                .parse_file("/etc/resolv.conf")
                .map_err(|error| format!("/etc/resolv.conf: {error}"))?,
        }
        configuration.finalize();
        Ok(configuration)
    }

    /// The names to look up, in order. A name with fewer dots than `ndots` is first looked up in
    /// the search list. Source: resolv.conf(5).
    fn names(&self, configuration: &ResolvConf) -> Vec<FullName> {
        let name = &self.name.name;
        let absolute = || name.clone().into_absolute().ok();
        if name.is_absolute() || self.name.server.is_some() {
            return absolute().into_iter().collect();
        }
        let options = &configuration.options;
        let within = |suffix: &SearchSuffix| name.clone().chain(suffix).ok()?.try_to_name().ok();
        let suffixes = options.search.as_slice().iter();
        let suffixes = suffixes.filter(|suffix| !suffix.is_root());
        let mut names: Vec<_> = suffixes.filter_map(within).collect();
        let dots = name.to_string().matches('.').count();
        let first = if dots >= options.ndots {
            0
        } else {
            names.len()
        };
        names.splice(first..first, absolute());
        names
    }
}

/// The first of these names that has addresses, and their number.
async fn count(
    configuration: &ResolvConf,
    names: Vec<FullName>,
) -> Result<(NonZeroU32, FullName), String> {
    for name in names {
        let v4 = addresses(configuration, &name, Rtype::A).await;
        // A name that does not exist has no records of any type.
        let v6 = match v4 {
            Ok(None) => continue,
            _ => addresses(configuration, &name, Rtype::AAAA).await,
        };
        let count = match (v4, v6) {
            (Ok(v4), Ok(v6)) => v4.max(v6).unwrap_or(0),
            // If one type fails, a positive count of the other is right, because each replica has
            // an address of that type. A count of 0 proves nothing.
            (Ok(Some(count)), Err(_)) | (Err(_), Ok(Some(count))) if count > 0 => count,
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        if let Some(count) = NonZeroU32::new(count) {
            return Ok((count, name));
        }
    }
    Err(NO_ADDRESS.to_owned())
}

/// The number of different addresses of this type. `None` for a name that does not exist.
async fn addresses(
    configuration: &ResolvConf,
    name: &FullName,
    record_type: Rtype,
) -> Result<Option<u32>, String> {
    let answer = query(configuration, name, record_type).await?;
    match answer.header().rcode() {
        Rcode::NOERROR => {}
        Rcode::NXDOMAIN => return Ok(None),
        other => return Err(format!("the DNS server answers {other}")),
    }
    let records = answer.answer();
    let records = records.map_err(|_| "the DNS server sent an answer that cannot be read")?;
    let different: BTreeSet<IpAddr> = if record_type == Rtype::A {
        let found = records.limit_to::<A>().flatten();
        found.map(|record| record.data().addr().into()).collect()
    } else {
        let found = records.limit_to::<Aaaa>().flatten();
        found.map(|record| record.data().addr().into()).collect()
    };
    Ok(Some(u32::try_from(different.len()).unwrap_or(u32::MAX)))
}

/// Queries all servers at once, until one answers.
async fn query(
    configuration: &ResolvConf,
    name: &FullName,
    record_type: Rtype,
) -> Result<Answer, String> {
    let mut failed = NO_ANSWER.to_owned();
    for transport in ATTEMPTS {
        let mut configuration = configuration.clone();
        configuration.options.use_vc |= transport == Transport::Tcp;
        configuration.options.timeout = configuration.options.timeout.min(MAX_WAIT);
        // A new resolver each time keeps no answer and no connection.
        match StubResolver::from_conf(configuration)
            .query((name, record_type))
            .await
        {
            Ok(answer) => return Ok(answer),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {}
            Err(error) => failed = error.to_string(),
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use domain::base::iana::Rcode;
    use domain::base::{Message, MessageBuilder, Ttl};
    use tokio::net::UdpSocket;

    use super::super::Source;
    use super::*;

    /// A server that has two addresses of IPv4 for `weir.two`, and no other name; it notes all
    /// queries.
    async fn serve(socket: UdpSocket, asked: std::sync::mpsc::SyncSender<String>) {
        let mut buffer = [0; 1_500];
        loop {
            let (length, peer) = socket.recv_from(&mut buffer).await.expect("a query");
            let query = Message::from_octets(&buffer[..length]).expect("a message");
            let question = query.sole_question().expect("a question");
            let (name, record_type) = (question.qname().to_string(), question.qtype());
            asked.send(format!("{name} {record_type}")).expect("room");
            let rcode = if name == "weir.two" {
                Rcode::NOERROR
            } else {
                Rcode::NXDOMAIN
            };
            let mut answer = MessageBuilder::new_vec()
                .start_answer(&query, rcode)
                .expect("an answer");
            if rcode == Rcode::NOERROR && record_type == Rtype::A {
                for host in [1, 2, 2] {
                    let address = A::from_octets(10, 0, 0, host);
                    let record = (question.qname(), Ttl::ZERO, address);
                    answer.push(record).expect("room");
                }
            }
            let answer = answer.finish();
            socket.send_to(&answer, peer).await.expect("sent");
        }
    }

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "a server of the test")]
    async fn a_relative_name_is_sought_once_in_the_search_list() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let server = socket.local_addr().expect("an address");
        let (asked, queries) = std::sync::mpsc::sync_channel(100);
        tokio::spawn(serve(socket, asked));
        let mut configuration = ResolvConf::new();
        let server = ServerConf::new(server, Transport::UdpTcp);
        configuration.servers.push(server);
        for domain in ["one.", "two.", "three."] {
            let domain = domain.parse().expect("a name");
            configuration.options.search.push(domain);
        }
        let names = |text: &str| {
            let Ok(Source::Dns(name)) = Source::try_new(text) else {
                panic!("{text} is a name");
            };
            Resolver::new(name).names(&configuration)
        };
        let (replicas, found) = count(&configuration, names("dns:weir"))
            .await
            .expect("an answer");
        assert_eq!(
            (replicas.get(), found.to_string().as_str()),
            (2, "weir.two"),
            "an address that comes twice is one"
        );
        assert_eq!(
            queries.try_iter().collect::<Vec<_>>(),
            ["weir.one A", "weir.two A", "weir.two AAAA"]
        );
        assert!(count(&configuration, vec![found]).await.is_ok());
        assert_eq!(
            queries.try_iter().collect::<Vec<_>>(),
            ["weir.two A", "weir.two AAAA"]
        );
        let unknown = count(&configuration, names("dns:other")).await;
        assert_eq!(unknown.map(drop), Err(NO_ADDRESS.to_owned()));
        let sought = |text: &str| {
            let names = names(text);
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(sought("dns:a"), ["a.one", "a.two", "a.three", "a"]);
        assert_eq!(
            sought("dns:a.b"),
            ["a.b", "a.b.one", "a.b.two", "a.b.three"]
        );
        assert_eq!(sought("dns:a."), ["a"]);
        assert_eq!(sought("dns://127.0.0.1/a"), ["a"]);
    }
}
