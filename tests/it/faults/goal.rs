//! One goal: what was missed, and the line that tells.

use std::fmt::Display;
use std::time::Duration;

use crate::support::RedisServer;
use crate::support::load::{Pace, Record, Report};

/// A goal while it is measured.
pub struct Goal {
    id: &'static str,
    misses: Vec<String>,
    is_reported: bool,
}

impl Goal {
    /// By its name in tests/README.md.
    pub fn of(id: &'static str) -> Self {
        Self { id, misses: Vec::new(), is_reported: false }
    }

    /// What the goal is: true, or it is missed.
    pub fn must(&mut self, holds: bool, what: impl Display) {
        if !holds {
            self.misses.push(what.to_string());
        }
    }

    /// A time that the goal bounds; in CI the bound is wider. The time, for the line.
    pub fn within(&mut self, took: Option<Duration>, goal: Duration, what: &str) -> String {
        let shown = took.map_or("never".to_owned(), |took| format!("{} ms", took.as_millis()));
        self.must(took.is_some_and(|took| took <= Pace::here().bound(goal)), format!("{what}: {shown}"));
        shown
    }

    /// How many clients waited no longer, for the line; none does in CI, where they have time. Envoy's 20 ms leave a service 3 ms beside what
    /// its store may take; where services, Redis and load share two cores, one in a thousand may be late by that much.
    pub fn few_gave_up(&mut self, report: &Report) -> String {
        let (gave_up, all) = (report.count(Record::gave_up), report.len());
        let shown = format!("{gave_up} of {all} gave up");
        self.must(gave_up <= Pace::here().pick(0, all / 1_000), &shown);
        shown
    }

    /// No key may stay for ever.
    pub fn must_expire(&mut self, redis: &RedisServer) {
        let keys = redis.keys();
        let stay: Vec<_> = keys.iter().filter(|key| redis.run::<i64>(&["PTTL", key]) == -1).collect();
        self.must(!keys.is_empty() && stay.is_empty(), format!("{} of {} keys never expire", stay.len(), keys.len()));
    }

    /// Prints the line, and fails the test when the goal is missed.
    pub fn end(mut self, figures: impl Display) {
        self.is_reported = true;
        if self.misses.is_empty() {
            println!("{} PASS {figures}", self.id);
        } else {
            println!("{} FAIL {figures} (missed: {})", self.id, self.misses.join("; "));
            panic!("{} is missed: {}", self.id, self.misses.join("; "));
        }
    }
}

impl Drop for Goal {
    fn drop(&mut self) {
        if !self.is_reported {
            println!("{} FAIL the scenario broke off", self.id);
        }
    }
}
