//! Limits and questions by number: as many as are wanted, written down only when they are asked.
//!
//! Key k is of route k modulo the limits that are asked, and of user k divided by them: so there can be more limits for the same keys.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use weir::proto::rate_limit_descriptor::Entry;
use weir::proto::{RateLimitDescriptor, RateLimitRequest};

use crate::service::http2_client::Question;
use crate::service::load::Supply;

/// Where a number goes.
const MARK: &str = "########";
const DIGITS: usize = MARK.len();

/// Hits an hour: nobody reaches it.
pub const PER_HOUR: u32 = 4_000_000_000;

/// Limits of one file, so that none is too long.
const LIMITS_PER_FILE: u32 = 20_000;

/// How limits are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routes {
    Exact,
    /// With a wildcard at the end.
    Prefix,
}

/// Writes `config/*.yaml` into a folder; with `hits` an hour, so that two configurations can differ.
pub fn write(folder: &Path, limits: u32, routes: Routes, hits: u32) {
    let config = folder.join("config");
    fs::create_dir_all(&config).expect("a folder of our own");
    let wildcard = if routes == Routes::Prefix { "/*" } else { "" };
    for first in (0..limits).step_by(LIMITS_PER_FILE as usize) {
        let mut text = "domain: scale\ndescriptors:\n".to_owned();
        for route in first..limits.min(first + LIMITS_PER_FILE) {
            let rate = format!("rate_limit: {{unit: hour, requests_per_unit: {hits}}}");
            let _ = writeln!(text, "- {{key: route, value: /p/{route:08}{wildcard}, descriptors: [{{key: user, {rate}}}]}}");
        }
        let name = config.join(format!("scale-{first:08}.yaml"));
        // Never a half-written one.
        fs::write(config.join(".part"), text).expect("a folder of our own");
        fs::rename(config.join(".part"), name).expect("a folder of our own");
    }
}

/// Which keys a request asks for.
#[derive(Clone, Copy, Debug)]
enum Order {
    InTurn,
    Drawn,
}

/// The questions for a number of keys of so many limits.
pub struct Numbered {
    question: Question,
    places: Vec<usize>,
    limits: u32,
    keys: u32,
    order: Order,
    next: u32,
    random: fastrand::Rng,
}

impl Numbered {
    /// Each question for so many keys, each of them as often as the others.
    pub fn drawn(keys: u32, limits: u32, routes: Routes, descriptors: usize) -> Self {
        let question = Question::new(&request(MARK, MARK, routes, descriptors));
        let places = question.places(MARK.as_bytes());
        assert_eq!(places.len(), 2 * descriptors);
        Self { question, places, limits, keys, order: Order::Drawn, next: 0, random: fastrand::Rng::with_seed(7) }
    }

    /// The same keys, one after the other.
    pub fn in_turn(keys: u32, limits: u32, routes: Routes, descriptors: usize) -> Self {
        Self { order: Order::InTurn, ..Self::drawn(keys, limits, routes, descriptors) }
    }
}

impl Supply for Numbered {
    fn next(&mut self) -> &Question {
        for of_descriptor in self.places.chunks_exact(2) {
            let key = match self.order {
                Order::Drawn => self.random.u32(..self.keys),
                Order::InTurn => {
                    self.next = (self.next + 1) % self.keys;
                    self.next
                }
            };
            self.question.put_digits(of_descriptor[0], DIGITS, key % self.limits);
            self.question.put_digits(of_descriptor[1], DIGITS, key / self.limits);
        }
        &self.question
    }
}

/// A request for one user of one route, as often as there are descriptors.
pub fn request(route: &str, user: &str, routes: Routes, descriptors: usize) -> RateLimitRequest {
    let below = if routes == Routes::Prefix { "/x" } else { "" };
    let entry = |key: &str, value: String| Entry { key: key.into(), value: value.into() };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry("route", format!("/p/{route}{below}")), entry("user", user.to_owned())],
        ..Default::default()
    };
    RateLimitRequest { domain: "scale".to_owned(), descriptors: vec![descriptor; descriptors], hits_addend: 0 }
}
