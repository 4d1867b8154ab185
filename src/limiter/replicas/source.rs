//! The setting `REPLICAS` as written: a number, or a DNS name in gRPC's notation (`dns:NAME`,
//! `dns://SERVER/NAME`).
//!
//! Source: gRPC Name Resolution, "Name Syntax": `dns:[//authority/]host`, where the authority is
//! the DNS server to ask.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use domain::base::name::UncertainName;

/// The port of DNS servers. Source: RFC 1035, section 4.2.
const DNS_PORT: u16 = 53;

/// Where the number of replicas comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// It is this number.
    Fixed(NonZeroU32),
    /// It is the number of addresses of this name.
    Dns(DnsName),
}

/// A name, and the server that knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsName {
    /// The name. Unless it ends in a dot, it may be relative to the search list of
    /// `/etc/resolv.conf`.
    pub(super) name: UncertainName<Vec<u8>>,
    /// The server to ask instead of those of `/etc/resolv.conf`. Names asked there are never
    /// relative.
    pub(super) server: Option<SocketAddr>,
}

impl fmt::Display for DnsName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.server {
            None => write!(out, "dns:{}", self.name),
            Some(server) => write!(out, "dns://{server}/{}", self.name),
        }
    }
}

impl Source {
    /// Reads a number, or a name.
    ///
    /// # Errors
    /// What to write instead.
    pub fn try_new(text: &str) -> Result<Self, String> {
        let Some(name) = text.strip_prefix("dns:") else {
            let number = text.parse().map_err(|_| {
                "write a number from 1 on, or dns: and a name with an address for each replica, as \
                 dns:ratelimit-headless"
                    .to_owned()
            });
            return number.map(Self::Fixed);
        };
        let (server, name) = match name.strip_prefix("//") {
            None => (None, name),
            Some(rest) => match rest.split_once('/') {
                Some(("", name)) => (None, name),
                Some((server, name)) => (Some(address(server)?), name),
                None => {
                    return Err("after // the server and the name follow, as in \
                        dns://10.96.0.10:53/ratelimit-headless.default.svc"
                        .to_owned());
                }
            },
        };
        Ok(Self::Dns(DnsName {
            name: checked(name)?,
            server,
        }))
    }
}

/// An IP address, with or without a port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let with_port = || text.parse::<SocketAddr>().ok();
    let ip = || {
        text.trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>()
            .ok()
    };
    with_port()
        .or_else(|| ip().map(|ip| SocketAddr::new(ip, DNS_PORT)))
        .ok_or_else(|| {
            format!(
                "{text} is no address of a DNS server; write an IP address, with or without a \
                 port, as 10.96.0.10 or [fd00::a]:53"
            )
        })
}

/// A name of a host.
fn checked(text: &str) -> Result<UncertainName<Vec<u8>>, String> {
    if let Some((name, port)) = text.rsplit_once(':')
        && port.parse::<u16>().is_ok()
    {
        return Err(format!("a port has no meaning here; write dns:{name}"));
    }
    if text.parse::<IpAddr>().is_ok() {
        return Err(format!(
            "{text} is an address; write a name that has the address of each replica"
        ));
    }
    let is_name = text.bytes().all(|byte| byte == b'.' || is_letter(byte)) && text != ".";
    let name = text.parse().ok().filter(|_| is_name && !text.is_empty());
    name.ok_or_else(|| {
        format!(
            "{text:?} is no DNS name; write labels of letters, digits, - and _ with dots between \
             them, 253 characters at most"
        )
    })
}

/// Host names, and `_`, which names in clusters of other systems have. Source: RFC 1123, section
/// 2.1.
fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Result<String, String> {
        Source::try_new(text).map(|source| match source {
            Source::Fixed(number) => number.to_string(),
            Source::Dns(name) => name.to_string(),
        })
    }

    #[test]
    fn a_number_or_a_name_in_the_notation_of_grpc() {
        for (text, expected) in [
            ("1", "1"),
            ("4294967295", "4294967295"),
            ("dns:ratelimit-headless", "dns:ratelimit-headless"),
            ("dns:///ratelimit-headless", "dns:ratelimit-headless"),
            (
                "dns:ratelimit-headless.edge.svc.cluster.local.",
                "dns:ratelimit-headless.edge.svc.cluster.local.",
            ),
            ("dns:tasks.weir_2", "dns:tasks.weir_2"),
            ("dns://10.96.0.10/a.b", "dns://10.96.0.10:53/a.b"),
            ("dns://127.0.0.1:5353/a", "dns://127.0.0.1:5353/a"),
            ("dns://[::1]:5353/a", "dns://[::1]:5353/a"),
            ("dns://[fd00::a]/a", "dns://[fd00::a]:53/a"),
            ("dns://fd00::a/a", "dns://[fd00::a]:53/a"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_to_write() {
        let long = format!("dns:{}", "a.".repeat(200));
        for (text, remedy) in [
            ("0", "a number from 1 on"),
            ("-1", "a number from 1 on"),
            ("4294967296", "a number from 1 on"),
            ("", "a number from 1 on"),
            ("ratelimit-headless", "or dns: and a name"),
            ("dns:", "is no DNS name"),
            ("dns:.", "is no DNS name"),
            ("dns:a..b", "is no DNS name"),
            ("dns:a b", "is no DNS name"),
            ("dns:a/b", "is no DNS name"),
            ("dns:ü", "is no DNS name"),
            (long.as_str(), "253 characters"),
            (
                "dns:ratelimit-headless:8081",
                "write dns:ratelimit-headless",
            ),
            ("dns:10.0.0.1", "is an address"),
            ("dns:::1", "write dns:"),
            ("dns://10.96.0.10", "the server and the name"),
            ("dns://kube-dns/a", "no address of a DNS server"),
            ("dns://10.96.0.10:99999/a", "no address of a DNS server"),
        ] {
            let error = Source::try_new(text).expect_err(text);
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }
}
