//! Free ports of the loopback interface.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ephemeral range, from which the kernel takes ports for `bind` to port 0 and for
/// outgoing connections. A port that is found free here stays free until it is used, which may be a
/// second later and by another process.
const RANGE: std::ops::Range<u16> = 12_000..32_000;

/// A loopback address that nothing listens on; every call returns another one. Only for programs
/// that cannot bind port 0 themselves, or that return to the port that they had.
pub fn free() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(37);
    for _ in RANGE {
        let offset = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % RANGE.len() as u32;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, RANGE.start + offset as u16));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port in {RANGE:?}")
}
