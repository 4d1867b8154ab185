//! Hash slots of a Redis Cluster: the slot of a key, and the redirects of a node for commands whose
//! slot it does not serve.
//!
//! Weir computes slots itself to send a command to the right node at once, and never sends keys of
//! two slots in one command. The owner of a slot is found in `topology`.
//!
//! Source: Redis Cluster specification, "Key distribution model", "Hash tags", "MOVED Redirection"
//! and "ASK redirection".

use crate::net::dial::Address;

/// The number of a hash slot, from 0 to 16,383.
pub(crate) type Slot = u16;

/// The number of hash slots of every cluster.
pub(crate) const SLOTS: usize = 16_384;

/// The polynomial of the specification's CRC16, which is also called XMODEM.
const POLYNOMIAL: u16 = 0x1021;

/// The CRC16 of each byte.
const CRCS: [u16; 256] = {
    let mut crcs = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc << 1) ^ ((crc >> 15) * POLYNOMIAL);
            bit += 1;
        }
        crcs[byte] = crc;
        byte += 1;
    }
    crcs
};

fn crc16(text: &[u8]) -> u16 {
    text.iter().fold(0, |crc, &byte| {
        (crc << 8) ^ CRCS[usize::from((crc >> 8) as u8 ^ byte)]
    })
}

/// The hash slot of a key: CRC16 modulo 16,384 of its hash tag. The tag is the text between the
/// first `{` and the first `}` after it. Without such a pair, or with nothing in between, the whole
/// key is hashed.
pub(crate) fn of(key: &[u8]) -> Slot {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS as u16
}

/// Redirect of a command by a cluster node. The node did not execute the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: Slot,
    /// A name or an IP address without brackets. Empty if the node does not have its own name: then
    /// it is the host that the command was sent to.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// ASK: the slot is being migrated to that node. Only this one command goes there, with ASKING
    /// before it. Otherwise MOVED: the node owns the slot from now on.
    pub(crate) is_ask: bool,
}

impl Redirect {
    /// The address of the server.
    pub(crate) fn address(&self) -> Address {
        Address::Tcp {
            host: self.host.clone(),
            port: self.port,
        }
    }

    /// Reads the error lines `MOVED slot host:port` and `ASK slot host:port`. `None` for any other
    /// error.
    pub(crate) fn read(line: &[u8]) -> Option<Self> {
        let (code, rest) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        let is_ask = match code {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let (slot, address) = rest.split_once(' ')?;
        let slot = slot
            .parse()
            .ok()
            .filter(|&slot| usize::from(slot) < SLOTS)?;
        let (host, port) = address.trim().rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some(Self {
            slot,
            host: host.to_owned(),
            port: port.parse().ok()?,
            is_ask,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // What CLUSTER KEYSLOT of redis-server 7.0.15 answers.
        for (key, slot) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("{foo}bar", 12_182),
            ("x{foo}{bar}", 12_182),
            ("", 0),
        ] {
            assert_eq!(of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(
            of(b"{}foo"),
            crc16(b"{}foo") % 16_384,
            "with an empty tag the whole key is hashed"
        );
        assert_eq!(
            of(b"foo{bar"),
            crc16(b"foo{bar") % 16_384,
            "a tag without its end is no tag"
        );
    }

    #[test]
    fn only_moved_and_ask_are_redirects() {
        let read = |line: &str| Redirect::read(line.as_bytes());
        let to = |slot, host: &str, port, is_ask| {
            Some(Redirect {
                slot,
                host: host.to_owned(),
                port,
                is_ask,
            })
        };
        assert_eq!(
            read("MOVED 3999 127.0.0.1:6381"),
            to(3_999, "127.0.0.1", 6_381, false)
        );
        assert_eq!(read("ASK 1 [::1]:7000"), to(1, "::1", 7_000, true));
        assert_eq!(read("MOVED 7 :6381"), to(7, "", 6_381, false));
        for line in [
            "MOVED",
            "MOVED 3999",
            "MOVED x h:1",
            "MOVED 16384 h:1",
            "MOVED 1 h",
            "MOVED 1 h:99999",
            "ERR MOVED 1 h:1",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
