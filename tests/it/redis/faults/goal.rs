//! One goal: which of its conditions were missed, and the line that reports it.

use std::fmt::Display;
use std::time::Duration;

use crate::support::RedisServer;
use crate::support::load::{Pace, Record, Report};

/// A goal that is being measured.
pub struct Goal {
    id: &'static str,
    misses: Vec<String>,
    is_reported: bool,
}

impl Goal {
    /// The goal with this name in tests/README.md.
    pub fn of(id: &'static str) -> Self {
        Self {
            id,
            misses: Vec::new(),
            is_reported: false,
        }
    }

    /// Records a miss unless the condition holds.
    pub fn must(&mut self, holds: bool, what: impl Display) {
        if !holds {
            self.misses.push(what.to_string());
        }
    }

    /// Records a miss unless it took at most `goal`; in CI the bound is wider. Returns the time as
    /// text for the line.
    pub fn within(&mut self, took: Option<Duration>, goal: Duration, what: &str) -> String {
        let shown = took.map_or("never".to_owned(), |took| {
            format!("{} ms", took.as_millis())
        });
        self.must(
            took.is_some_and(|took| took <= Pace::here().bound(goal)),
            format!("{what}: {shown}"),
        );
        shown
    }

    /// Records a miss when too many clients gave up: any in CI, where timeouts are long; otherwise
    /// more than one in a thousand. Envoy's timeout of 20 ms leaves a service 3 ms beyond its
    /// store's time; where services, Redis and load share two cores, a few answers come later.
    pub fn few_gave_up(&mut self, report: &Report) -> String {
        let (gave_up, all) = (report.count(Record::gave_up), report.len());
        let shown = format!("{gave_up} of {all} gave up");
        self.must(gave_up <= Pace::here().pick(0, all / 1_000), &shown);
        shown
    }

    /// Records a miss when a key has no TTL, or when there are no keys.
    pub fn must_expire(&mut self, redis: &RedisServer) {
        let keys = redis.keys();
        let stay: Vec<_> = keys
            .iter()
            .filter(|key| redis.run::<i64>(&["PTTL", key]) == -1)
            .collect();
        self.must(
            !keys.is_empty() && stay.is_empty(),
            format!("{} of {} keys never expire", stay.len(), keys.len()),
        );
    }

    /// Prints the line, and fails the test when the goal is missed.
    pub fn end(mut self, figures: impl Display) {
        self.is_reported = true;
        if self.misses.is_empty() {
            println!("{} PASS {figures}", self.id);
        } else {
            println!(
                "{} FAIL {figures} (missed: {})",
                self.id,
                self.misses.join("; ")
            );
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
