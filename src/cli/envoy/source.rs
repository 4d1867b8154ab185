//! Sources of values. An operator writes from which part of a request Envoy takes the value of a
//! key; each source has the action of Envoy that sends this value.
//!
//! Reference of the actions: Envoy's API, `config.route.v3.RateLimit.Action` of Envoy 1.40.
//!
//! The source `path` uses the expression `request.url_path`. The header `:path` also contains the
//! query: a client that changes the query would get another counter.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use super::yaml::{fill, list, scalar};
use crate::limits::rules::compile::nearest;

/// All sources: the name, its argument, and the value that Envoy sends.
pub(super) const SOURCES: &str = "\
Sources:
  header:NAME                      the value of a request header
  method                           the method of the request
  authority                        the host of the request
  scheme                           http or https
  path                             the path without its query
  path-and-query                   the path with its query
  query:NAME                       the value of a query parameter
  remote-address                   the address of the client, as Envoy trusts it
  masked-remote-address:V4[,V6]    its network, such as 10.1.2.0/24 with `:24,64`
  generic-key[:VALUE,...]          these values, or those of the file, in every request
  source-cluster                   Envoy's own cluster (--service-cluster)
  destination-cluster              the cluster that the request is routed to
  metadata:FILTER/KEY/...          a text in the dynamic metadata of a filter
  route-metadata:FILTER/KEY/...    a text in the metadata of the route
  cluster-metadata:FILTER/KEY/...  a text in the metadata of the cluster
  jwt:CLAIM                        a claim that the filter jwt_authn has verified \
                                   (payload_in_metadata: payload)
  header-match:NAME                a value of the file, if the header has it
  path-match                       a value of the file, if the path has it
  query-match:NAME                 a value of the file, if the query parameter has it
  address-match                    a block of addresses of the file, if the client is in it
  server-name                      TCP: the name that the client asks for with TLS (SNI)
  peer-subject                     TCP: the subject of the client certificate
  peer-uri                         TCP: the URI of the client certificate
  local-port                       TCP: the port that the client connects to
";

/// The name of each source, and its argument.
fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    SOURCES.lines().skip(1).map(|line| {
        let form = line.split_whitespace().next().unwrap_or_default();
        form.split_at(form.find([':', '[']).unwrap_or(form.len()))
    })
}

/// The header that is a path with its query.
pub(super) const PATH: &str = ":path";

/// The key of the address of the client.
const REMOTE_ADDRESS: &str = "remote_address";

/// Separates a source from its default, the value that is sent if the request has none.
const DEFAULT: &str = " or ";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeySource {
    pub(super) kind: SourceKind,
    /// Sent if a request has no value.
    pub(super) default: Option<String>,
    /// As the operator writes it.
    pub(super) text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SourceKind {
    /// A header in lower case, or a pseudo header.
    Header(String),
    Path,
    Query(String),
    /// An action without fields, and the key that Envoy sends with it.
    Own(&'static str),
    MaskedRemoteAddress {
        v4: u8,
        v6: u8,
    },
    /// Without values in the argument, the values of the file.
    GenericKey(Vec<String>),
    Metadata {
        of: &'static str,
        filter: String,
        path: Vec<String>,
    },
    /// A header in lower case, or the path.
    HeaderMatch(String),
    QueryMatch(String),
    AddressMatch,
    /// An operator of Envoy's access log.
    Connection(&'static str),
}

impl FromStr for KeySource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (source, default) = cut(text, DEFAULT);
        let (name, argument) = cut(source, ":");
        let kind = kind(name, argument)?;
        if default.is_some() && !kind.may_be_missing() {
            let why = "only header, query and metadata can be missing in a request";
            return Err(format!("`{source}` has no `or`: {why}"));
        }
        if default == Some("") {
            return Err("a value is missing after ` or`".to_owned());
        }
        Ok(Self {
            kind,
            default: default.map(str::to_owned),
            text: text.to_owned(),
        })
    }
}

/// The text before a separator and, with one, the text after it.
fn cut<'t>(text: &'t str, separator: &str) -> (&'t str, Option<&'t str>) {
    let parts = text.split_once(separator);
    parts.map_or((text, None), |(before, after)| (before, Some(after)))
}

fn kind(name: &str, argument: Option<&str>) -> Result<SourceKind, String> {
    let Some((_, hint)) = names().find(|(known, _)| *known == name) else {
        let remedy = match nearest(name, names().map(|(known, _)| known)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => {
                let all = names().map(|(known, hint)| [known, hint].concat());
                format!("write one of {}", all.collect::<Vec<_>>().join(", "))
            }
        };
        return Err(format!("`{name}` is no source; {remedy}"));
    };
    let needed = || {
        let argument = argument.filter(|text| !text.is_empty());
        argument.ok_or_else(|| format!("write {name}{hint}"))
    };
    if hint.is_empty() && argument.is_some() {
        return Err(format!("`{name}` takes no argument"));
    }
    Ok(match name {
        "header" => SourceKind::Header(header(needed()?)?),
        "header-match" => SourceKind::HeaderMatch(header(needed()?)?),
        "method" | "authority" | "scheme" => SourceKind::Header(format!(":{name}")),
        "path-and-query" => SourceKind::Header(PATH.to_owned()),
        "path" => SourceKind::Path,
        "query" => SourceKind::Query(needed()?.to_owned()),
        "remote-address" => SourceKind::Own(REMOTE_ADDRESS),
        "masked-remote-address" => masked(argument).ok_or(
            "write masked-remote-address:V4,V6 with the bits of the networks, such as \
             `masked-remote-address:24,64`",
        )?,
        "generic-key" => SourceKind::GenericKey(match argument {
            None => Vec::new(),
            Some(_) => needed()?.split(',').map(str::to_owned).collect(),
        }),
        "source-cluster" => SourceKind::Own("source_cluster"),
        "destination-cluster" => SourceKind::Own("destination_cluster"),
        "metadata" => metadata("DYNAMIC", needed()?)?,
        "route-metadata" => metadata("ROUTE_ENTRY", needed()?)?,
        "cluster-metadata" => metadata("CLUSTER_ENTRY", needed()?)?,
        // A claim is one key, whatever its name contains: OpenID Connect has claims named by URLs.
        "jwt" => SourceKind::Metadata {
            of: "DYNAMIC",
            filter: "envoy.filters.http.jwt_authn".to_owned(),
            path: vec!["payload".to_owned(), needed()?.to_owned()],
        },
        "path-match" => SourceKind::HeaderMatch(PATH.to_owned()),
        "query-match" => SourceKind::QueryMatch(needed()?.to_owned()),
        "address-match" => SourceKind::AddressMatch,
        "server-name" => SourceKind::Connection("%REQUESTED_SERVER_NAME%"),
        "peer-subject" => SourceKind::Connection("%DOWNSTREAM_PEER_SUBJECT%"),
        "peer-uri" => SourceKind::Connection("%DOWNSTREAM_PEER_URI_SAN%"),
        "local-port" => SourceKind::Connection("%DOWNSTREAM_LOCAL_PORT%"),
        _ => unreachable!("each name of the table is above"),
    })
}

fn header(name: &str) -> Result<String, String> {
    let name = name.to_ascii_lowercase();
    let own = match &*name {
        "host" => Some("authority"),
        ":path" | ":method" | ":authority" | ":scheme" => Some(&name[1..]),
        _ => None,
    };
    if let Some(source) = own {
        let instead = format!("in place of the header `{name}`");
        return Err(format!("write the source `{source}` {instead}"));
    }
    match http::HeaderName::from_bytes(name.as_bytes()) {
        Ok(_) => Ok(name),
        Err(_) => Err(format!("`{name}` is no name of a header")),
    }
}

fn masked(argument: Option<&str>) -> Option<SourceKind> {
    let (v4, v6) = cut(argument?, ",");
    let (v4, v6) = (v4.parse().ok()?, v6.unwrap_or("128").parse().ok()?);
    (v4 <= 32 && v6 <= 128).then_some(SourceKind::MaskedRemoteAddress { v4, v6 })
}

fn metadata(of: &'static str, text: &str) -> Result<SourceKind, String> {
    let mut parts = text.split('/').map(str::to_owned);
    let filter = parts.next().unwrap_or_default();
    let path: Vec<_> = parts.collect();
    if filter.is_empty() || path.is_empty() || path.iter().any(String::is_empty) {
        let what = "write the filter and the keys in its metadata";
        return Err(format!("{what}, such as `metadata:envoy.lb/tenant`"));
    }
    Ok(SourceKind::Metadata { of, filter, path })
}

impl SourceKind {
    /// Whether Envoy sends a value of the request. Otherwise it sends a text of its own
    /// configuration.
    pub(super) const fn sends_value_of_request(&self) -> bool {
        !matches!(
            self,
            Self::GenericKey(_) | Self::HeaderMatch(_) | Self::QueryMatch(_) | Self::AddressMatch
        )
    }

    /// The key that Envoy sends in HTTP, if its configuration cannot choose another one.
    pub(super) const fn only_key(&self) -> Option<&'static str> {
        match self {
            Self::Own(key) => Some(*key),
            Self::MaskedRemoteAddress { .. } => Some("masked_remote_address"),
            _ => None,
        }
    }

    /// Whether it can be missing in a request; then Envoy sends no descriptor with it.
    pub(super) const fn may_be_missing(&self) -> bool {
        match self {
            Self::Header(name) => !matches!(name.as_bytes().first(), Some(b':')),
            Self::Query(_) | Self::Metadata { .. } => true,
            _ => false,
        }
    }

    /// Whether it is the address of the client, or derived from it.
    pub(super) fn is_address(&self) -> bool {
        match self {
            Self::Own(key) => *key == REMOTE_ADDRESS,
            _ => matches!(self, Self::MaskedRemoteAddress { .. } | Self::AddressMatch),
        }
    }

    /// Whether it is the path, with or without its query.
    pub(super) fn is_path(&self) -> bool {
        match self {
            Self::Header(name) | Self::HeaderMatch(name) => name == PATH,
            _ => *self == Self::Path,
        }
    }

    /// The action of a source that sends a value of the request.
    pub(super) fn action(&self, key: &str, default: Option<&str>) -> String {
        let key = scalar(key);
        match self {
            Self::Header(name) => {
                let name = scalar(name);
                format!("request_headers:\n  header_name: {name}\n  descriptor_key: {key}")
            }
            Self::Query(name) => {
                let name = format!("query_parameter_name: {}", scalar(name));
                format!("query_parameters:\n  {name}\n  descriptor_key: {key}")
            }
            Self::Path => fill(include_str!("templates/path_action.yaml"), &[("key", &key)]),
            Self::Own(key) => format!("{key}: {{}}"),
            Self::MaskedRemoteAddress { v4, v6 } => format!(
                "masked_remote_address:\n  v4_prefix_mask_len: {v4}\n  v6_prefix_mask_len: {v6}"
            ),
            Self::Metadata { of, filter, path } => {
                let path = path.iter().map(|key| format!("key: {}", scalar(key)));
                let path: Vec<_> = path.collect();
                let default = default.map(|text| format!("default_value: {}", scalar(text)));
                let blocks = [
                    ("key", &*key),
                    ("source", of),
                    ("filter", &scalar(filter)),
                    ("path", &list(&path, 0)),
                    ("default", &default.unwrap_or_default()),
                ];
                fill(include_str!("templates/metadata_action.yaml"), &blocks)
            }
            _ => unreachable!("it sends no value of a request"),
        }
    }

    /// The value in a descriptor of a TCP connection; `None` if there is none.
    pub(super) fn of_connection(&self) -> Option<&'static str> {
        match self {
            Self::Own(REMOTE_ADDRESS) => Some("%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"),
            Self::Connection(operator) => Some(operator),
            _ => None,
        }
    }

    /// The reason why Envoy never sends this value of a limit file; `None` if it may.
    pub(super) fn never_sends(&self, value: &str) -> Option<String> {
        let why = match self {
            Self::Path | Self::HeaderMatch(_) if self.is_path() && value.contains(['?', '#']) => {
                "the path is sent without `?` and what follows it; write the path alone, or use \
                 path-and-query"
            }
            _ if self.is_path() && !value.starts_with(['/', '*']) => "a path begins with `/`",
            Self::Header(name)
                if name == ":method" && value.contains(|c: char| c.is_ascii_lowercase()) =>
            {
                let method = value.to_ascii_uppercase();
                return Some(format!("methods are in capital letters; write {method}"));
            }
            Self::AddressMatch if network(value).is_none() => "write a network, such as 10.0.0.0/8",
            Self::Own(REMOTE_ADDRESS) if !value.contains('*') => match value.parse::<IpAddr>() {
                Ok(address) if address.to_string() == value => return None,
                Ok(address) => return Some(format!("Envoy writes this address as {address}")),
                _ => "it is no address; use masked-remote-address or address-match for a network",
            },
            Self::MaskedRemoteAddress { v4, v6 } if !value.contains('*') => match network(value) {
                Some(network) => {
                    let bits = if network.addr().is_ipv4() { *v4 } else { *v6 };
                    let sent = IpNet::new(network.addr(), bits).ok()?.trunc().to_string();
                    return (sent != value).then(|| format!("for this address Envoy sends {sent}"));
                }
                None => "it is no network such as 10.1.2.0/24",
            },
            _ => return None,
        };
        Some(why.to_owned())
    }
}

/// Reads a network, such as `10.0.0.0/8`.
pub(super) fn network(text: &str) -> Option<IpNet> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<SourceKind, String> {
        text.parse::<KeySource>().map(|source| source.kind)
    }

    #[test]
    fn each_name_of_the_table_is_a_source() {
        for (name, hint) in names() {
            let text = match hint {
                "" | "[:VALUE,...]" => name.to_owned(),
                ":V4[,V6]" => format!("{name}:24,64"),
                ":FILTER/KEY/..." => format!("{name}:f/k"),
                _ => format!("{name}:x"),
            };
            let kind = parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            if kind.sends_value_of_request() && !matches!(kind, SourceKind::Connection(_)) {
                kind.action("key", None);
            }
            if !hint.is_empty() && !hint.starts_with('[') {
                assert!(parse(name).is_err(), "{name} needs {hint}");
            } else if hint.is_empty() {
                assert!(parse(&format!("{name}:x")).is_err(), "{name} takes nothing");
            }
        }
    }

    #[test]
    fn mistakes_say_what_to_write() {
        for (text, expected) in [
            ("haeder:x", "did you mean `header`?"),
            ("zzz", "write one of header:NAME, method, "),
            ("header", "write header:NAME"),
            ("header:", "write header:NAME"),
            ("header:a b", "no name of a header"),
            ("header:Host", "write the source `authority`"),
            ("header::path", "write the source `path`"),
            ("masked-remote-address", "write masked-remote-address:V4,V6"),
            (
                "masked-remote-address:33",
                "write masked-remote-address:V4,V6",
            ),
            ("metadata:envoy.lb", "write the filter and the keys"),
            ("path or x", "has no `or`"),
            ("header:x or ", "a value is missing"),
        ] {
            let error = text.parse::<KeySource>().expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
        let source: KeySource = "header:X-User or some one".parse().expect("a source");
        assert_eq!(
            (source.kind, source.default.as_deref()),
            (SourceKind::Header("x-user".to_owned()), Some("some one"))
        );
        assert_eq!(
            parse("jwt:https://example.com/tenant")
                .map(|kind| matches!(kind, SourceKind::Metadata { path, .. } if path.len() == 2)),
            Ok(true)
        );
    }

    #[test]
    fn values_that_envoy_never_sends_are_found() {
        for (source, value, is_sent) in [
            ("path", "/login", true),
            ("path", "*.css", true),
            ("path", "login", false),
            ("path", "/a?b=1", false),
            ("path-and-query", "/a?b=1", true),
            ("method", "GET", true),
            ("method", "get", false),
            ("header:x", "get", true),
            ("remote-address", "10.0.0.1", true),
            ("remote-address", "10.0.*", true),
            ("remote-address", "10.0.0.0/8", false),
            ("remote-address", "2001:DB8::1", false),
            ("masked-remote-address:24,64", "10.1.2.0/24", true),
            ("masked-remote-address:24,64", "10.1.2.0/16", false),
            ("masked-remote-address:24,64", "10.1.2.3/24", false),
            ("masked-remote-address:0", "0.0.0.0/0", true),
            ("masked-remote-address:24,64", "2001:db8::/64", true),
            ("masked-remote-address:24,64", "2001:db8::/32", false),
            ("address-match", "10.0.0.0/8", true),
            ("address-match", "10.0.0.1", false),
        ] {
            let kind = parse(source).expect(source);
            assert_eq!(
                kind.never_sends(value).is_none(),
                is_sent,
                "{source} {value}: {:?}",
                kind.never_sends(value)
            );
        }
    }
}
