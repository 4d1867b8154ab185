//! What the reader sees of a plan: figures with the assumption behind each, and what a growing load
//! uses up first, with what to do then.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{RedisKind, Size};
use crate::core::time::people::grouped;

/// Columns of the text, beside which assumptions stand.
const NAME_WIDTH: usize = 31;
const VALUE_WIDTH: usize = 15;

/// A value of a figure, which is shown by its unit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Amount {
    Count(f64),
    Bytes(f64),
    Micros(f64),
    Cores(f64),
}

impl fmt::Display for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(&match *self {
            Self::Count(value) => grouped(value),
            Self::Bytes(value) => format!("{} MiB", grouped((value / 1_048_576.0).ceil())),
            Self::Micros(value) => format!("{value:.1} µs"),
            Self::Cores(value) => format!("{value:.1}"),
        })
    }
}

impl Amount {
    /// Rounded to three digits behind the point.
    pub(super) fn value(self) -> f64 {
        let (Self::Count(value) | Self::Bytes(value) | Self::Micros(value) | Self::Cores(value)) =
            self;
        (value * 1e3).round() / 1e3
    }
}

/// A figure and what it rests on.
#[derive(Debug)]
pub(super) struct Figure {
    section: &'static str,
    pub(super) key: &'static str,
    pub(super) amount: Amount,
    assumption: String,
}

/// A plan, ready to be printed.
#[derive(Debug)]
pub(super) struct SizeReport {
    load: Size,
    section: &'static str,
    pub(super) figures: Vec<Figure>,
    /// Resources that a growing load uses up, and the decisions per second that do: the one that is
    /// reached first comes first.
    pub(super) bounds: Vec<(&'static str, f64)>,
}

impl SizeReport {
    /// A report on this load without figures.
    pub(super) fn new(load: &Size) -> Self {
        Self {
            load: load.clone(),
            section: "weir",
            figures: Vec::new(),
            bounds: Vec::new(),
        }
    }

    /// What is added from here on is about Redis.
    pub(super) fn begin_redis(&mut self) {
        self.section = "redis";
    }

    pub(super) fn add(&mut self, key: &'static str, amount: Amount, assumption: impl Into<String>) {
        let (section, assumption) = (self.section, assumption.into());
        self.figures.push(Figure {
            section,
            key,
            amount,
            assumption,
        });
    }

    pub(super) fn bound(&mut self, resource: &'static str, reached_at: f64) {
        self.bounds.push((resource, reached_at.floor()));
    }

    fn remedy(&self, resource: &str) -> &'static str {
        let is_cluster = self.load.redis == RedisKind::Cluster;
        match resource {
            "threads of Weir" if self.load.redis == RedisKind::None => {
                "more cores, and a larger WORKERS"
            }
            "threads of Weir" => "more replicas: an autoscaler",
            "connections of Envoy" => "a headless Service: every Envoy connects to each replica",
            "CPU of Redis" if is_cluster => "more primaries; fixed_window; the denial cache",
            "CPU of Redis" => "Redis Cluster (--redis cluster); fixed_window; the denial cache",
            "memory of Redis" if is_cluster => "more primaries; shorter keys; fewer usage_buckets",
            "memory of Redis" => "servers above 16 GiB, or Redis Cluster; shorter keys",
            "connections of Redis" => "maxclients above 10,000, its default",
            _ => "counters in Redis (--redis), which replicas share",
        }
    }

    /// Lines for people.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n", title(&self.load));
        let mut section = "";
        for figure in &self.figures {
            if figure.section != section {
                section = figure.section;
                text += &format!("\n{section}\n");
            }
            let unit = ["_bytes", "_micros"];
            let name = unit
                .iter()
                .fold(figure.key, |name, unit| name.trim_end_matches(unit));
            let (name, amount) = (name.replace('_', " "), figure.amount);
            text += &format!(
                "  {name:<NAME_WIDTH$}{amount:<VALUE_WIDTH$}{}\n",
                figure.assumption
            );
        }
        text += "\nWhat a growing load uses up, and at which rate\n";
        for &(resource, reached_at) in &self.bounds {
            let at = format!("{}/s", grouped(reached_at));
            let mark = if reached_at < self.load.rate {
                "TOO SMALL: "
            } else {
                ""
            };
            let remedy = self.remedy(resource);
            text += &format!("  {resource:<NAME_WIDTH$}{at:<VALUE_WIDTH$}{mark}{remedy}\n");
        }
        text
    }
}

impl Serialize for SizeReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bound = |&(resource, reached_at): &(&'static str, f64)| json!({ "resource": resource, "reached_at": reached_at, "remedy": self.remedy(resource) });
        let bounds: Vec<Value> = self.bounds.iter().map(bound).collect();
        let mut report = json!({ "fits": self.bounds[0].1 >= self.load.rate, "bounds": bounds });
        for figure in &self.figures {
            let (value, assumption) = (figure.amount.value(), &figure.assumption);
            report["figures"][figure.section][figure.key] =
                json!({ "value": value, "assumption": assumption });
        }
        report.serialize(serializer)
    }
}

fn title(load: &Size) -> String {
    let redis = match load.redis {
        RedisKind::None => "counters in memory",
        RedisKind::Single => "one Redis server",
        RedisKind::Sentinel => "Redis behind Sentinels",
        RedisKind::Cluster => "Redis Cluster",
    };
    let (rate, keys) = (grouped(load.rate), grouped(load.keys));
    let usage = if load.usage { " with usage" } else { "" };
    format!(
        "{rate} decisions/s by {}{usage}, {keys} keys per window, {redis}",
        load.algorithm.name()
    )
}
