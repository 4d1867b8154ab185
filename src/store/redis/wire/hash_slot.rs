//! Slots of a Redis Cluster: which one a key belongs to, and what a node says about those that it does not have.

use crc::{CRC_16_XMODEM, Crc};

/// The number of a slot.
pub(crate) type Slot = u16;

/// How many there are. Source: Redis Cluster specification, "Key distribution model".
pub(crate) const SLOTS: usize = 16_384;

static CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The slot of a key: of what stands between its first `{` and the next `}`, if that is anything, else of all of it.
pub(crate) fn of(key: &[u8]) -> Slot {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    CRC.checksum(tag.unwrap_or(key)) % SLOTS as u16
}

/// Where a node sends us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: Slot,
    /// Empty: the host of the node that says so.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The slot is on its way there: only this once, and announced by ASKING.
    pub(crate) is_ask: bool,
}

impl Redirect {
    /// Reads `MOVED slot host:port` and `ASK slot host:port`; any other line of an error sends us nowhere.
    pub(crate) fn read(line: &[u8]) -> Option<Self> {
        let (code, rest) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        let is_ask = match code {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let (slot, place) = rest.split_once(' ')?;
        let slot = slot.parse().ok().filter(|&slot| usize::from(slot) < SLOTS)?;
        let (host, port) = place.trim().rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Self { slot, host, port: port.parse().ok()?, is_ask })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // CLUSTER KEYSLOT of redis-server 7.0.15 answers these.
        for (key, slot) in [("123456789", 12_739), ("foo", 12_182), ("{foo}bar", 12_182), ("x{foo}{bar}", 12_182), ("", 0)] {
            assert_eq!(of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(of(b"{}foo"), CRC.checksum(b"{}foo") % 16_384, "an empty tag is none");
        assert_eq!(of(b"foo{bar"), CRC.checksum(b"foo{bar") % 16_384, "nor is an open one");
    }

    #[test]
    fn redirects_are_read_and_nothing_else_is_one() {
        let read = |line: &str| Redirect::read(line.as_bytes());
        let to = |slot, host: &str, port, is_ask| Some(Redirect { slot, host: host.to_owned(), port, is_ask });
        assert_eq!(read("MOVED 3999 127.0.0.1:6381"), to(3_999, "127.0.0.1", 6_381, false));
        assert_eq!(read("ASK 1 [::1]:7000"), to(1, "::1", 7_000, true));
        assert_eq!(read("MOVED 7 :6381"), to(7, "", 6_381, false));
        for line in ["MOVED", "MOVED 3999", "MOVED x h:1", "MOVED 16384 h:1", "MOVED 1 h", "MOVED 1 h:99999", "ERR MOVED 1 h:1"] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
