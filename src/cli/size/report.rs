//! A plan as its reader sees it: figures with the assumption behind each, and the resources that
//! are used up first with what to do then.

use std::fmt::Write;

use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::amount::{bytes, cores, grouped, short};
use super::inputs::{Demand, Fleet, REQUESTS_OF_AN_ENVOY_THREAD, RedisInput, RedisKind};
use super::measured::MACHINE;
use super::model::{self, Plan, RedisPlan, WeirPlan};
use super::remedies::{ShownBound, number, shown};
use crate::core::algorithm::AlgorithmKind;

/// Columns of the text, beside which assumptions stand.
const NAME_WIDTH: usize = 33;
const VALUE_WIDTH: usize = 13;

/// A figure and what it rests on.
pub(super) struct Figure {
    /// Its name in JSON, with the unit.
    key: &'static str,
    /// Its name for people.
    name: &'static str,
    value: f64,
    /// The value for people.
    shown: String,
    assumption: String,
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut figure = serializer.serialize_struct("Figure", 2)?;
        figure.serialize_field("value", &number(self.value))?;
        figure.serialize_field("assumption", &self.assumption)?;
        figure.end()
    }
}

/// Figures under a heading.
pub(super) struct Section {
    key: &'static str,
    name: &'static str,
    figures: Vec<Figure>,
}

impl Section {
    fn add(
        &mut self,
        key: &'static str,
        name: &'static str,
        (value, shown): (f64, String),
        assumption: impl Into<String>,
    ) {
        self.figures.push(Figure {
            key,
            name,
            value,
            shown,
            assumption: assumption.into(),
        });
    }
}

/// A plan, ready to be printed.
pub(super) struct Report {
    title: String,
    /// The resources that the load uses up with this deployment, before all others of `bounds`.
    exceeded: usize,
    sections: Vec<Section>,
    bounds: Vec<ShownBound>,
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Figures<'a>(&'a [Figure]);
        impl Serialize for Figures<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter().map(|figure| (figure.key, figure)))
            }
        }
        struct Sections<'a>(&'a [Section]);
        impl Serialize for Sections<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(
                    self.0
                        .iter()
                        .map(|section| (section.key, Figures(&section.figures))),
                )
            }
        }
        let mut report = serializer.serialize_struct("Report", 3)?;
        report.serialize_field("fits", &(self.exceeded == 0))?;
        report.serialize_field("figures", &Sections(&self.sections))?;
        report.serialize_field("bounds", &self.bounds)?;
        report.end()
    }
}

impl Report {
    pub(super) fn new(demand: &Demand, fleet: &Fleet, redis: &RedisInput, plan: &Plan) -> Self {
        let mut sections = vec![weir_section(demand, fleet, redis, &plan.weir)];
        sections.extend(
            plan.redis
                .iter()
                .map(|of_redis| redis_section(demand, fleet, redis, plan, of_redis)),
        );
        let bounds = plan
            .bounds
            .iter()
            .map(|bound| shown(bound, demand, redis))
            .collect();
        let exceeded = plan
            .bounds
            .iter()
            .filter(|bound| bound.reached_at < demand.rate)
            .count();
        Self {
            title: title(demand, redis),
            exceeded,
            sections,
            bounds,
        }
    }

    /// Lines for people.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n", self.title);
        // Writing to a string cannot fail.
        for section in &self.sections {
            let _ = writeln!(text, "\n{}", section.name);
            for Figure {
                name,
                shown,
                assumption,
                ..
            } in &section.figures
            {
                let _ = writeln!(
                    text,
                    "  {name:<NAME_WIDTH$}{shown:<VALUE_WIDTH$}{assumption}"
                );
            }
        }
        let _ = writeln!(text, "\nWhat a growing load uses up, and at which rate");
        for (
            index,
            ShownBound {
                resource,
                reached_at,
                remedy,
            },
        ) in self.bounds.iter().enumerate()
        {
            let at = reached_at
                .as_f64()
                .map_or_else(String::new, |rate| format!("{}/s", short(rate)));
            let mark = if index < self.exceeded {
                "TOO SMALL"
            } else {
                ""
            };
            let _ = writeln!(
                text,
                "  {resource:<NAME_WIDTH$}{at:<VALUE_WIDTH$}{mark}{}{remedy}",
                if mark.is_empty() { "" } else { ": " }
            );
        }
        text
    }
}

fn title(demand: &Demand, redis: &RedisInput) -> String {
    let redis = match redis.kind {
        RedisKind::None => "counters in memory",
        RedisKind::Single => "one Redis server",
        RedisKind::Sentinel => "Redis behind Sentinels",
        RedisKind::Cluster => "Redis Cluster",
    };
    let usage = if demand.usage.is_some() {
        " with usage"
    } else {
        ""
    };
    format!(
        "{} decisions/s by {}{usage}, {} keys per window, {redis}",
        grouped(demand.rate),
        demand.algorithm.name(),
        grouped(demand.keys)
    )
}

fn percent(share: f64) -> String {
    format!("{} %", (share * 1_000.0).round() / 10.0)
}

fn count(value: f64) -> (f64, String) {
    (value, grouped(value))
}

fn size(value: f64) -> (f64, String) {
    (value.ceil(), bytes(value))
}

fn micros(value: f64) -> (f64, String) {
    (value, format!("{value:.1} µs"))
}

fn weir_section(demand: &Demand, fleet: &Fleet, redis: &RedisInput, weir: &WeirPlan) -> Section {
    let mut section = Section {
        key: "weir",
        name: "Weir",
        figures: Vec::new(),
    };
    let is_in_memory = redis.kind == RedisKind::None;
    let target = percent(fleet.target);
    let of_requests = if demand.descriptors == 1 {
        "one decision each".to_owned()
    } else {
        format!("{} decisions each", demand.descriptors)
    };
    section.add(
        "requests_per_second",
        "requests/s",
        count(weir.requests),
        format!("{of_requests} (--descriptors)"),
    );
    if is_in_memory {
        section.add(
            "replicas",
            "replicas",
            count(1.0),
            "counters in memory are those of one process: each further one would admit every limit \
             again",
        );
        section.add(
            "workers",
            "WORKERS",
            count(weir.threads),
            format!("threads, a core each, used to {target} at the peak (--target)"),
        );
    } else {
        let why = format!(
            "{} for the peak at {target} of their capacity (--target), {} may be missing (--spare)",
            grouped(weir.needed_replicas),
            fleet.spare
        );
        section.add("replicas", "replicas", count(weir.replicas), why);
        section.add(
            "workers",
            "WORKERS",
            count(weir.threads),
            "threads of a replica, a core each (--workers); request as many CPUs, and set no CPU \
             limit",
        );
    }
    let batched = weir.request_micros - weir.alone_micros;
    let calls = match fleet.envoy_threads {
        None => "calls come one by one (--envoys)".to_owned(),
        Some(_) => format!(
            "{:.0} connections to a thread",
            (weir.connections_of_a_replica / weir.threads).ceil()
        ),
    };
    let scaled = if (fleet.cpu_factor - 1.0).abs() < f64::EPSILON {
        String::new()
    } else {
        format!(", times {} (--cpu-factor)", fleet.cpu_factor)
    };
    section.add(
        "request_cpu_micros",
        "CPU of a request",
        micros(weir.request_micros),
        format!(
            "{batched:.1} with many calls to a packet, {:.1} because {calls}; {MACHINE}{scaled}",
            weir.alone_micros
        ),
    );
    let most = "at most, of all replicas; below the peak a request costs more CPU, so that CPU \
        does not show what is left";
    section.add(
        "cores",
        "CPU at the peak, cores",
        (weir.cores, cores(weir.cores)),
        most,
    );
    let envoys = match (fleet.envoy_threads, fleet.is_headless) {
        (None, _) => format!(
            "a thread of an Envoy sends {} requests/s (--envoys)",
            short(REQUESTS_OF_AN_ENVOY_THREAD)
        ),
        (Some(threads), false) => format!(
            "{} threads of Envoys, a connection each to one replica (not --headless)",
            grouped(threads)
        ),
        (Some(threads), true) => format!(
            "{} threads of Envoys, a connection each to every replica (--headless)",
            grouped(threads)
        ),
    };
    section.add(
        "envoy_connections_per_replica",
        "connections of Envoy, each",
        count(weir.connections_of_a_replica),
        envoys,
    );
    let counters = if weir.counter_bytes > 0.0 {
        format!(
            ", {} for {} keys",
            bytes(weir.counter_bytes),
            short(demand.keys)
        )
    } else {
        String::new()
    };
    let cache = if is_in_memory {
        ""
    } else {
        ", the denial cache"
    };
    let usage = weir
        .usage_bytes
        .map_or_else(String::new, |size| format!(", {} of usage", bytes(size)));
    section.add(
        "memory_bytes",
        "memory of a replica",
        size(weir.memory),
        format!(
            "the process, {} limits, connections{cache}{counters}{usage}",
            grouped(f64::from(demand.limits))
        ),
    );
    let limit = "with shares for what clients leave unfinished and what a control plane sends \
        (SECURITY.md)";
    section.add(
        "memory_limit_bytes",
        "memory limit of a replica",
        size(weir.memory_limit),
        limit,
    );
    if let Some(max_keys) = weir.max_keys {
        let (key, name, why) = if is_in_memory {
            (
                "memory_max_keys",
                "MEMORY_MAX_KEYS",
                "the keys and a quarter: a full store drops keys, and their counts",
            )
        } else {
            (
                "local_max_keys",
                "LOCAL_MAX_KEYS",
                "during an outage each replica may see every key (--local)",
            )
        };
        section.add(key, name, count(max_keys.ceil()), why);
    }
    if let (Some(most), Some(usage)) = (weir.max_usage_bytes, &demand.usage) {
        let why = format!(
            "{} records with {} buckets (--subjects, --usage-buckets) and a quarter: when it is \
             full, the record that was idle for longest is dropped",
            grouped(usage.subjects),
            usage.buckets
        );
        section.add(
            "memory_usage_bytes",
            "MEMORY_USAGE_BYTES",
            count(most.ceil()),
            why,
        );
    }
    if !is_in_memory {
        section.add(
            "replicas_setting",
            "REPLICAS",
            count(weir.replicas),
            "for on_store_failure: local, so that each replica admits its share; dns:NAME counts \
             them itself",
        );
    }
    section
}

fn redis_section(
    demand: &Demand,
    fleet: &Fleet,
    input: &RedisInput,
    plan: &Plan,
    redis: &RedisPlan,
) -> Section {
    let (key, name) = if redis.is_per_second {
        ("redis_persecond", "Redis for limits per second")
    } else {
        ("redis", "Redis")
    };
    let mut section = Section {
        key,
        name,
        figures: Vec::new(),
    };
    let weir = &plan.weir;
    let cached = if demand.cached > 0.0 {
        format!(
            "{} are refused by the denial cache (--cached)",
            percent(demand.cached)
        )
    } else {
        "none is refused by the denial cache (--cached)".to_owned()
    };
    section.add(
        "decisions_per_second",
        "decisions/s",
        count(redis.rate),
        cached,
    );
    let needs = format!(
        "CPU needs {}, memory {}",
        grouped(redis.by_cpu),
        grouped(redis.by_memory)
    );
    let servers = match input.kind {
        RedisKind::Cluster => {
            format!("primaries: {needs}, a cluster has 3 at least; a replica for each comes on top")
        }
        RedisKind::Sentinel => {
            format!("a primary ({needs}); a replica and three Sentinels come on top")
        }
        RedisKind::Single | RedisKind::None => format!("{needs}; Redis runs commands on one core"),
    };
    section.add("servers", "servers", count(redis.servers), servers);
    let capacity = format!(
        "decisions/s when it is never idle: batches of {:.0}, so that {} connections get answers \
         within {:?} (--timeout)",
        redis.batch,
        grouped(redis.connections),
        input.timeout
    );
    section.add(
        "capacity_per_server",
        "capacity of a server",
        count(redis.capacity),
        capacity,
    );
    let mut usual = format!(
        "batches of {:.1}, which come in {:?} (--redis-rtt); when it is busy they grow, and cost \
         less each",
        redis.usual_batch, input.round_trip
    );
    if input.is_tls {
        usual += ", with TLS";
    }
    section.add(
        "cores_per_server",
        "CPU of a server, cores",
        (redis.cores, cores(redis.cores)),
        usual,
    );
    section.add(
        "keys",
        "keys",
        count(redis.keys),
        keys_assumption(demand, redis),
    );
    let structure = match demand.algorithm {
        AlgorithmKind::SlidingWindowLog => {
            format!("with {} entries (--entries), and ", demand.entries)
        }
        AlgorithmKind::SlidingWindowBuckets => {
            format!("with {} buckets in use (--entries), and ", demand.entries)
        }
        _ => String::new(),
    };
    section.add(
        "bytes_per_key",
        "bytes of a key",
        count(redis.key_bytes),
        format!(
            "{structure}a name of {} bytes (--key-bytes); Redis 7.0",
            demand.key_bytes
        ),
    );
    if let (Some(usage), Some(of_demand)) = (redis.usage, &demand.usage) {
        section.add(
            "usage_records",
            "usage records",
            count(usage.records),
            "of subjects (--subjects): each stays for an hour, and for as long as it was known, at \
             most for usage_expiry",
        );
        let of_record = format!(
            "with {} buckets, all with hits (--usage-buckets); about 300 after a single hit",
            of_demand.buckets
        );
        section.add(
            "bytes_per_usage_record",
            "bytes of a usage record",
            count(usage.record_bytes),
            of_record,
        );
        let lists = format!(
            "four for each of {} limits, of 10,000 subjects at most (usage_subjects)",
            grouped(f64::from(demand.limits))
        );
        section.add(
            "usage_list_bytes",
            "lists of subjects",
            size(usage.lists_bytes),
            lists,
        );
        let listed = format!(
            "of it for {} subjects/s, each with its latest numbers twice a second at most; the \
             lists of one limit have one server",
            grouped(usage.listed)
        );
        section.add(
            "usage_list_cores",
            "CPU of the lists, cores",
            (usage.list_cores, cores(usage.list_cores)),
            listed,
        );
    }
    section.add(
        "used_memory_bytes",
        "used memory of a server",
        size(redis.used_bytes),
        "counters need no disk: no snapshots, no append-only file",
    );
    section.add(
        "maxmemory_bytes",
        "maxmemory of a server",
        size(redis.maxmemory),
        format!("of which counters use {}", percent(model::MEMORY_IN_USE)),
    );
    let lanes = model::lanes_of_a_thread(input.round_trip);
    let usually = format!(
        "{} of each of {} threads in {} replicas",
        grouped(lanes),
        grouped(weir.threads),
        grouped(weir.replicas)
    );
    section.add(
        "connections_per_server",
        "connections of a server",
        count(redis.connections),
        usually,
    );
    let at_most = format!(
        "REDIS_POOL_SIZE of {} for each thread",
        grouped(model::POOL_SIZE)
    );
    section.add(
        "most_connections_per_server",
        "connections at most",
        count(redis.most_connections),
        at_most,
    );
    let one_key = format!(
        "decisions/s: a key has one server, whatever their number; used to {}",
        percent(fleet.target)
    );
    section.add(
        "most_decisions_of_a_key",
        "of one key at most",
        count(redis.capacity * fleet.target),
        one_key,
    );
    section
}

fn keys_assumption(demand: &Demand, redis: &RedisPlan) -> String {
    match demand.algorithm {
        AlgorithmKind::FixedWindow => {
            let window = if redis.is_per_second {
                "a second".to_owned()
            } else {
                format!("{:?}", demand.window)
            };
            format!(
                "past windows of {window} stay until they expire: after 5 s, up to 300 s of \
                 jitter, and a tenth later"
            )
        }
        _ => {
            "the same clients come again; one that does not stays for up to two windows".to_owned()
        }
    }
}
