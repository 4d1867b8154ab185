//! StatsD and DogStatsD: every interval, what the counters grew by, the gauges, and the response
//! times.
//!
//! One thread of lower priority reads the metrics and sends them; no request waits for it. A server
//! that cannot be reached costs that thread a time-out for each interval: what was not sent stays
//! in the counters, and goes with a later interval. So nothing is queued.
//!
//! Response times are sent by bucket with a sample rate, so that requests need no queue of timings
//! either.

mod growth;
pub mod mogrifiers;
mod wire;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cadence::ext::{MetricValue, ToTimerValue};
use cadence::prelude::*;
use cadence::{Metric, MetricBuilder, MetricResult, StatsdClient};

use self::growth::{Grown, Growth};
use self::mogrifiers::Mogrifiers;
use self::wire::Wire;
use super::reference_names::{self, HITS, Kind, RESPONSE_TIME};
use crate::net::background;
use crate::net::throttle::Throttle;
use crate::observe::metrics::Metrics;
use crate::observe::metrics::families::Observations;

/// How metrics travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// One connection, on which each metric is a line.
    Tcp,
    /// Packets of lines.
    Udp,
}

/// How tags are written.
#[derive(Clone, Debug)]
pub enum Flavour {
    /// Into the name: `name.__key=value`, as envoyproxy/ratelimit does.
    Statsd,
    /// As tags of DogStatsD, after the mogrifiers have made names and tags of names.
    DogStatsd(Mogrifiers),
}

/// Where metrics are sent, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server: a name or an address, which is looked up again for each interval or connection.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How metrics travel.
    pub protocol: Protocol,
    /// How tags are written.
    pub flavour: Flavour,
    /// Tags of all metrics, in the order of their names.
    pub tags: Vec<(String, String)>,
    /// The time between two flushes.
    pub interval: Duration,
}

/// A line longer than this is not sent: a server reads packets into a buffer, and a key may have a
/// megabyte.
const MAX_LINE_BYTES: usize = 8 << 10;

/// The shortest time between two log lines about a server that cannot be reached.
const WARNING_INTERVAL: Duration = Duration::from_secs(300);

/// The exporter's thread.
#[derive(Debug)]
pub struct Exporter {
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Exporter {
    /// Starts to send.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start(metrics: Arc<Metrics>, options: Options) -> io::Result<Self> {
        let (stop, stopping) = sync_channel(1);
        let run = move || {
            background::lower_priority();
            Sender::new(metrics, options).run(&stopping);
        };
        Ok(Self {
            stop,
            thread: std::thread::Builder::new()
                .name("weir-statsd".to_owned())
                .spawn(run)?,
        })
    }

    /// Sends what has been counted since the last flush, and ends. Blocks until it is sent, or the
    /// server does not take it.
    pub fn stop(self) {
        let Self { stop, thread } = self;
        drop(stop);
        // A panic is logged by its hook.
        let _ = thread.join();
    }
}

/// What the thread has.
struct Sender {
    metrics: Arc<Metrics>,
    options: Options,
    client: StatsdClient,
    wire: Wire,
    /// Of the last flush.
    growth: Growth,
    /// The lines about a failure, and how many flushes failed since it began.
    failing: Option<(Throttle, u64)>,
    warned_of_long_lines: bool,
}

/// A number of milliseconds with a fraction, which the client's own types of time cannot hold.
struct Milliseconds(f64);

impl ToTimerValue for Milliseconds {
    fn try_to_value(self) -> MetricResult<MetricValue> {
        Ok(MetricValue::Float(self.0))
    }
}

impl Sender {
    fn new(metrics: Arc<Metrics>, options: Options) -> Self {
        let wire = Wire::new(options.host.clone(), options.port, options.protocol);
        // Names have their prefix already.
        let client = StatsdClient::from_sink("", wire.clone());
        Self {
            metrics,
            options,
            client,
            wire,
            growth: Growth::default(),
            failing: None,
            warned_of_long_lines: false,
        }
    }

    fn run(mut self, stopping: &Receiver<()>) {
        loop {
            match stopping.recv_timeout(self.options.interval) {
                Err(RecvTimeoutError::Timeout) => self.flush(),
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return self.flush(),
            }
        }
    }

    fn flush(&mut self) {
        let mut long_lines = 0;
        let sent = self.send(&mut long_lines);
        if long_lines > 0 && !self.warned_of_long_lines {
            self.warned_of_long_lines = true;
            tracing::warn!(
                count = long_lines,
                "StatsD: metrics whose name has more than {MAX_LINE_BYTES} bytes are not sent; use \
                 shorter keys and values"
            );
        }
        self.report(sent);
    }

    /// Sends everything that has changed. What fails to be sent is sent by a later call.
    fn send(&mut self, long_lines: &mut u64) -> io::Result<()> {
        self.wire.open()?;
        let Self {
            metrics,
            options,
            client,
            wire,
            growth,
            ..
        } = self;
        let mut flush = Flush {
            client,
            wire,
            growth,
            options,
            tagged: tags_in_name(options),
            long_lines,
            failed: None,
        };
        let samples = metrics.samples();
        for stat in reference_names::stats(&samples) {
            match stat.kind {
                Kind::Counter => flush.counter(&stat.name, stat.value),
                Kind::Gauge => flush.gauge(&stat.name, stat.value),
            }
        }
        if let Some(times) = reference_names::response_times(&samples) {
            flush.times(times);
        }
        metrics.read_limits(|limit| {
            if flush.failed.is_none() {
                let name = reference_names::limit(limit);
                for (stat, count) in HITS
                    .into_iter()
                    .zip(limit.hits)
                    .filter(|&(_, count)| count > 0)
                {
                    flush.counter(&format!("{name}.{stat}"), count);
                }
            }
        });
        let sent = flush.failed.take().map_or_else(|| wire.finish(), Err);
        match sent {
            Ok(()) => growth.all_sent(),
            Err(_) => {
                wire.close();
                growth.forget_unsent();
            }
        }
        sent
    }

    /// Logs that sending fails, at most every five minutes, and that it works again.
    fn report(&mut self, sent: io::Result<()>) {
        let Options { host, port, .. } = &self.options;
        match (sent, &mut self.failing) {
            (Ok(()), None) => {}
            (Ok(()), Some((_, failed))) => {
                tracing::info!(
                    host,
                    port,
                    flushes = *failed,
                    "StatsD: metrics are sent again; nothing was lost but gauges"
                );
                self.failing = None;
            }
            (Err(error), None) => {
                tracing::warn!(host, port, %error, "StatsD: metrics cannot be sent; check \
                    STATSD_HOST, STATSD_PORT and STATSD_PROTOCOL. Counters are sent when it works \
                    again");
                let mut lines = Throttle::new(WARNING_INTERVAL);
                lines.admit(Instant::now());
                self.failing = Some((lines, 1));
            }
            (Err(error), Some((lines, failed))) => {
                *failed += 1;
                if lines.admit(Instant::now()).is_some() {
                    tracing::warn!(host, port, %error, flushes = *failed, "StatsD: metrics still \
                        cannot be sent");
                }
            }
        }
    }
}

/// The end of every name, where tags are in names: sorted, as envoyproxy/ratelimit sends them.
fn tags_in_name(options: &Options) -> String {
    match options.flavour {
        Flavour::Statsd => options
            .tags
            .iter()
            .map(|(name, value)| format!(".__{name}={value}"))
            .collect(),
        Flavour::DogStatsd(_) => String::new(),
    }
}

/// One flush under way.
struct Flush<'a> {
    client: &'a StatsdClient,
    wire: &'a Wire,
    growth: &'a mut Growth,
    options: &'a Options,
    tagged: String,
    long_lines: &'a mut u64,
    /// Nothing is sent after an error.
    failed: Option<io::Error>,
}

impl Flush<'_> {
    /// Sends what a counter grew by, if it did.
    fn counter(&mut self, name: &str, value: u64) {
        if let Some(grown) = self.growth.of(name, value) {
            self.line(name, Some(grown), |client, name| {
                client.count_with_tags(name, grown.by)
            });
        }
    }

    fn gauge(&mut self, name: &str, value: u64) {
        self.line(name, None, |client, name| {
            client.gauge_with_tags(name, value)
        });
    }

    /// One line for each bucket that has new observations: the middle of the bucket, and as the
    /// sample rate the share that one is of them.
    fn times(&mut self, times: &Observations) {
        for (index, &count) in times.counts.iter().enumerate() {
            let Some(grown) = self.growth.of(&format!("{RESPONSE_TIME} {index}"), count) else {
                continue;
            };
            let below = index
                .checked_sub(1)
                .map_or(0.0, |index| times.bounds[index]);
            let middle = times
                .bounds
                .get(index)
                .map_or(below, |above| f64::midpoint(below, *above));
            let milliseconds = (middle * 1e6).round() / 1e3;
            self.line(RESPONSE_TIME, Some(grown), |client, name| {
                let timer = client.time_with_tags(name, Milliseconds(milliseconds));
                if grown.by > 1 {
                    timer.with_sampling_rate(rate(grown.by))
                } else {
                    timer
                }
            });
        }
    }

    /// Sends one line, with its tags.
    fn line<T, M>(&mut self, name: &str, grown: Option<Grown>, metric: M)
    where
        T: Metric + From<String>,
        M: for<'a> FnOnce(&'a StatsdClient, &'a str) -> MetricBuilder<'a, 'a, T>,
    {
        if self.failed.is_some() {
            return;
        }
        let (name, own_tags) = match &self.options.flavour {
            Flavour::Statsd => (format!("{name}{}", self.tagged), Vec::new()),
            Flavour::DogStatsd(mogrifiers) => mogrifiers.apply(name),
        };
        let tags: &[(String, String)] = match self.options.flavour {
            Flavour::Statsd => &[],
            Flavour::DogStatsd(_) => &self.options.tags,
        };
        let tags: Vec<_> = tags
            .iter()
            .chain(&own_tags)
            .map(|(tag, value)| (tag, tag_value(value)))
            .collect();
        let length = name.len()
            + tags
                .iter()
                .map(|(tag, value)| tag.len() + value.len() + 2)
                .sum::<usize>();
        if length > MAX_LINE_BYTES {
            *self.long_lines += 1;
            return;
        }
        let mut metric = metric(self.client, &name);
        for (tag, value) in &tags {
            metric = metric.with_tag(tag, value);
        }
        let before = self.wire.writes();
        if let Err(error) = metric.try_send() {
            self.failed = Some(self.wire.error().unwrap_or_else(|| io::Error::other(error)));
            return;
        }
        // What the buffer held before this line has been sent.
        if self.wire.writes() != before {
            self.growth.sent();
        }
        if let Some(grown) = grown {
            self.growth.written(grown);
        }
    }
}

/// The value of a tag without what ends a value, all tags or the line; Datadog stores `_` for such
/// characters too. Source: Datadog, "DogStatsD Datagram Format" and "Defining Tags".
fn tag_value(value: &str) -> String {
    value.replace(
        |char: char| matches!(char, ',' | '#' | '|') || char.is_control(),
        "_",
    )
}

/// The sample rate that stands for `count` observations; rounded down, so that a server that rounds
/// its reciprocal down gets all of them.
fn rate(count: u64) -> f64 {
    const DIGITS: f64 = 1e12;
    (DIGITS / count as f64).floor() / DIGITS
}

#[cfg(test)]
mod tests;
