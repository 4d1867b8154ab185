//! Addresses in values: one text for all spellings of an address, and the networks that group them.
//!
//! Overrides look up addresses by that text for every key, because an order names a client and not
//! a spelling.

use core::net::IpAddr;
use std::fmt;
use std::io::Write as _;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use smallvec::SmallVec;

/// The longest spelling of an address: IPv6 with its last 32 bits as IPv4.
const LONGEST: usize = 45;

/// Bytes of the longest text of a network.
const LONGEST_NETWORK: usize = LONGEST + "/128".len();

/// The address that a value is. An IPv4-mapped IPv6 address is the IPv4 address. No port, no zone,
/// no brackets.
pub(crate) fn read(value: &[u8]) -> Option<IpAddr> {
    let is_begin = |&byte: &u8| byte == b':' || byte.is_ascii_hexdigit();
    if !value.first().is_some_and(is_begin) || value.len() > LONGEST {
        return None;
    }
    let address: IpAddr = str::from_utf8(value).ok()?.parse().ok()?;
    Some(address.to_canonical())
}

/// The canonical text of the address that a value is.
pub(crate) fn canonical(value: &[u8]) -> Option<AddressText> {
    read(value).map(text)
}

/// Reads a value as a network without bits after its prefix. An address is a network of one.
pub(crate) fn read_network(value: &[u8]) -> Option<IpNet> {
    parse_network(value).filter(|network| network.trunc() == *network)
}

/// Reads a value as a network, which may have bits after its prefix.
pub(crate) fn parse_network(value: &[u8]) -> Option<IpNet> {
    if let Some(address) = read(value) {
        return Some(address.into());
    }
    let text = str::from_utf8(value)
        .ok()
        .filter(|text| text.len() <= LONGEST_NETWORK && text.contains('/'))?;
    Some(without_mapping(text.parse().ok()?))
}

/// An IPv4-mapped network is the IPv4 network.
fn without_mapping(network: IpNet) -> IpNet {
    /// Bits before the IPv4 address.
    const MAPPED_BITS: u8 = 96;
    let mapped = || {
        let IpNet::V6(network) = network else {
            return None;
        };
        let bits = network.prefix_len().checked_sub(MAPPED_BITS)?;
        Ipv4Net::new(network.addr().to_ipv4_mapped()?, bits).ok()
    };
    mapped().map_or(network, IpNet::V4)
}

/// The network of `prefix` bits that groups an address; `None` for an IPv4 address, which is
/// counted alone.
pub(crate) fn group(address: IpAddr, prefix: u8) -> Option<Ipv6Net> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(Ipv6Net::new(address, prefix).ok()?.trunc()),
    }
}

/// The text of an address or of a network, which needs no allocation.
pub(crate) type AddressText = SmallVec<[u8; LONGEST_NETWORK]>;

/// The canonical text of an address or of a network.
pub(crate) fn text(shown: impl fmt::Display) -> AddressText {
    let mut bytes = [0; LONGEST_NETWORK];
    let mut rest = &mut bytes[..];
    // All texts of addresses and networks fit.
    let _ = write!(rest, "{shown}");
    let length = LONGEST_NETWORK - rest.len();
    AddressText::from_buf_and_len(bytes, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(value: &str) -> Option<String> {
        read(value.as_bytes()).map(|address| String::from_utf8_lossy(&text(address)).into_owned())
    }

    #[test]
    fn spellings_of_an_address_have_one_text() {
        for (value, expected) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("::FFFF:a00:1", Some("10.0.0.1")),
            ("0:0:0:0:0:ffff:10.0.0.1", Some("10.0.0.1")),
            ("2001:DB8:0:0:0::1", Some("2001:db8::1")),
            (
                "2001:0db8:0000:0000:0000:0000:0000:0001",
                Some("2001:db8::1"),
            ),
            (
                "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255",
                Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ),
            ("010.0.0.1", None),
            ("10.0.0.1:80", None),
            ("[::1]", None),
            ("fe80::1%eth0", None),
            ("10.0.0.0/8", None),
            ("", None),
            ("alice", None),
        ] {
            assert_eq!(canonical(value).as_deref(), expected, "{value}");
        }
        assert_eq!(read(&[b'1', 0xff]), None);
    }

    #[test]
    fn groups_are_networks_of_ipv6() {
        let group = |value: &str, prefix| {
            group(read(value.as_bytes()).expect("an address"), prefix).map(|net| net.to_string())
        };
        assert_eq!(
            group("2001:db8:1:2:3::4", 64).as_deref(),
            Some("2001:db8:1:2::/64")
        );
        assert_eq!(
            group("2001:db8:1:2:3::4", 50).as_deref(),
            Some("2001:db8:1::/50")
        );
        assert_eq!(group("::ffff:10.0.0.1", 64), None);
    }
}
