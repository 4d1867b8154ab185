//! Limits and requests that are generated from numbers, so that there can be very many of them.
//!
//! Key k has route k modulo the number of limits that are used, and user k divided by it: the
//! number of limits can change with the same keys.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use weir::core::proto::rate_limit_descriptor::Entry;
use weir::core::proto::{RateLimitDescriptor, RateLimitRequest};

use crate::service::load::{EncodedRequest, RequestSource};

/// The text that a number replaces.
const MARK: &str = "########";
const DIGITS: usize = MARK.len();

/// Hits an hour, more than the load sends.
pub const PER_HOUR: u32 = 4_000_000_000;

/// Limits per file, so that no file exceeds the size limit.
const LIMITS_PER_FILE: u32 = 20_000;

/// How the limits match routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routes {
    Exact,
    /// With a wildcard at the end.
    Prefix,
}

/// Writes `config/*.yaml` into a folder, with `hits` an hour in each limit.
pub fn write(folder: &Path, limits: u32, routes: Routes, hits: u32) {
    let config = folder.join("config");
    fs::create_dir_all(&config).expect("a folder of our own");
    let wildcard = if routes == Routes::Prefix { "/*" } else { "" };
    for first in (0..limits).step_by(LIMITS_PER_FILE as usize) {
        let mut text = "domain: scale\ndescriptors:\n".to_owned();
        for route in first..limits.min(first + LIMITS_PER_FILE) {
            let rate = format!("rate_limit: {{unit: hour, requests_per_unit: {hits}}}");
            let _ = writeln!(
                text,
                "- {{key: route, value: /p/{route:08}{wildcard}, descriptors: [{{key: user, \
                 {rate}}}]}}"
            );
        }
        let name = config.join(format!("scale-{first:08}.yaml"));
        // Renamed, so that no server reads a half-written file.
        fs::write(config.join(".part"), text).expect("a folder of our own");
        fs::rename(config.join(".part"), name).expect("a folder of our own");
    }
}

/// The order of the keys.
#[derive(Clone, Copy, Debug)]
enum Order {
    InTurn,
    Drawn,
}

/// Requests for a number of keys that belong to a number of limits.
pub struct GeneratedRequests {
    request: EncodedRequest,
    offsets: Vec<usize>,
    limits: u32,
    keys: u32,
    order: Order,
    next: u32,
    random: fastrand::Rng,
}

impl GeneratedRequests {
    /// Requests for keys drawn uniformly, each with this number of descriptors.
    pub fn drawn(keys: u32, limits: u32, routes: Routes, descriptors: usize) -> Self {
        let request = EncodedRequest::new(&request(MARK, MARK, routes, descriptors));
        let offsets = request.offsets(MARK.as_bytes());
        assert_eq!(offsets.len(), 2 * descriptors);
        Self {
            request,
            offsets,
            limits,
            keys,
            order: Order::Drawn,
            next: 0,
            random: fastrand::Rng::with_seed(7),
        }
    }

    /// The same keys in turn.
    pub fn in_turn(keys: u32, limits: u32, routes: Routes, descriptors: usize) -> Self {
        Self {
            order: Order::InTurn,
            ..Self::drawn(keys, limits, routes, descriptors)
        }
    }
}

impl RequestSource for GeneratedRequests {
    fn next(&mut self) -> &EncodedRequest {
        for of_descriptor in self.offsets.chunks_exact(2) {
            let key = match self.order {
                Order::Drawn => self.random.u32(..self.keys),
                Order::InTurn => {
                    self.next = (self.next + 1) % self.keys;
                    self.next
                }
            };
            self.request
                .put_digits(of_descriptor[0], DIGITS, key % self.limits);
            self.request
                .put_digits(of_descriptor[1], DIGITS, key / self.limits);
        }
        &self.request
    }
}

/// A request for one user of one route, with this number of equal descriptors.
pub fn request(route: &str, user: &str, routes: Routes, descriptors: usize) -> RateLimitRequest {
    let below = if routes == Routes::Prefix { "/x" } else { "" };
    let entry = |key: &str, value: String| Entry {
        key: key.into(),
        value: value.into(),
    };
    let descriptor = RateLimitDescriptor {
        entries: vec![
            entry("route", format!("/p/{route}{below}")),
            entry("user", user.to_owned()),
        ],
        ..Default::default()
    };
    RateLimitRequest {
        domain: "scale".to_owned(),
        descriptors: vec![descriptor; descriptors],
        hits_addend: 0,
    }
}
