//! StatsD and DogStatsD: the growth of counters, the gauges and the response times, sent every
//! interval in UDP packets or on one TCP connection.
//!
//! One thread of lower priority reads the metrics and sends them; no request waits for it. Nothing
//! is queued: a later interval sends the growth since the last successful one (`Growth`), and
//! response times are sent by bucket with a sample rate. Every wait has a bound, because the server
//! may hang. A name is resolved again for each flush, or each connection, because a server in
//! Kubernetes moves.

pub mod mogrifiers;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::hash::Hash;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::mogrifiers::Mogrifiers;
use super::reference_names::{self, HITS, RESPONSE_TIME};
use crate::core::fingerprint::Fingerprint;
use crate::net::background;
use crate::net::throttle::Throttle;
use crate::observe::metrics::Metrics;
use crate::observe::metrics::families::{MetricType, Observations};

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

/// Destination and format of metrics.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server: a name or an address. A name is resolved again for each interval or connection.
    pub host: String,
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

/// Minimum time between two log lines about a server that cannot be reached.
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
    /// The operating system cannot start a thread.
    pub fn start(metrics: Arc<Metrics>, options: Options) -> io::Result<Self> {
        let protocol = match (&options.flavour, options.protocol) {
            (Flavour::DogStatsd(_), _) => "DogStatsD by UDP",
            (Flavour::Statsd, Protocol::Udp) => "StatsD by UDP",
            (Flavour::Statsd, Protocol::Tcp) => "StatsD by TCP",
        };
        tracing::info!(
            host = options.host,
            port = options.port,
            protocol,
            interval_secs = options.interval.as_secs_f64(),
            "sending metrics to a StatsD server; USE_STATSD=false turns it off"
        );
        let (stop, stopping) = sync_channel(1);
        let run = move || Sender::new(metrics, options).run(&stopping);
        let thread = background::spawn("weir-statsd", run)?;
        Ok(Self { stop, thread })
    }

    /// Sends the growth since the last flush, and ends. Blocks until it is sent, or the server does
    /// not accept it.
    pub fn stop(self) {
        let Self { stop, thread } = self;
        drop(stop);
        // A panic is logged by its hook.
        let _ = thread.join();
    }
}

/// State of the thread.
struct Sender {
    metrics: Arc<Metrics>,
    options: Options,
    /// The end of every name, where tags are in names.
    tagged: String,
    wire: Wire,
    /// Of the last flush.
    growth: Growth,
    /// Counters that have grown, by name, until they are written.
    grown: BTreeMap<String, Vec<Grown>>,
    /// Of this flush, in which nothing is sent after it.
    error: Option<io::Error>,
    /// The lines about a failure, since it began.
    failing: Option<Throttle>,
    /// Lines of this flush that were too long.
    long_lines: u64,
    warned_of_long_lines: bool,
}

impl Sender {
    fn new(metrics: Arc<Metrics>, options: Options) -> Self {
        Self {
            metrics,
            tagged: tags_in_name(&options),
            wire: Wire::default(),
            options,
            growth: Growth::default(),
            grown: BTreeMap::new(),
            error: None,
            failing: None,
            long_lines: 0,
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
        let sent = self.wire.open(&self.options).and_then(|()| self.send());
        let long_lines = std::mem::take(&mut self.long_lines);
        if long_lines > 0 && !self.warned_of_long_lines {
            self.warned_of_long_lines = true;
            tracing::warn!(
                count = long_lines,
                "StatsD: dropping metrics with names longer than {MAX_LINE_BYTES} bytes; use \
                 shorter keys and values"
            );
        }
        self.report(sent);
    }

    /// Sends all changes. A later call sends those that fail.
    fn send(&mut self) -> io::Result<()> {
        let metrics = Arc::clone(&self.metrics);
        let samples = metrics.samples();
        for stat in reference_names::stats(&samples) {
            match stat.kind {
                MetricType::Counter => self.counter(stat.name.clone(), &stat.name, stat.value),
                _ => self.line(&stat.name, format_args!("{}|g", stat.value), &[]),
            }
        }
        if let Some(times) = reference_names::response_times(&samples) {
            self.times(times);
        }
        metrics.read_limits(|limit| {
            let name = reference_names::limit(limit);
            let counted = HITS.into_iter().zip(limit.hits.iter().copied());
            for (stat, count) in counted.filter(|&(_, count)| count > 0) {
                let identity = (limit.labels, limit.part, stat);
                self.counter(format!("{name}.{stat}"), identity, count);
            }
        });
        for (name, grown) in std::mem::take(&mut self.grown) {
            let by: u64 = grown.iter().map(|grown| grown.by).sum();
            self.line(&name, format_args!("{by}|c"), &grown);
        }
        let sent = self.error.take().map_or_else(|| self.wire.finish(), Err);
        match sent {
            Ok(()) => self.growth.all_sent(),
            Err(_) => {
                self.wire = Wire::default();
                // A later flush sends it.
                self.growth.unsent.clear();
            }
        }
        sent
    }

    /// Adds the growth of a counter, if any, to the growth under this name.
    fn counter(&mut self, name: String, identity: impl Hash, value: u64) {
        if let Some(grown) = self.growth.of(identity, value) {
            self.grown.entry(name).or_default().push(grown);
        }
    }

    /// One line for each bucket that has new observations: the middle of the bucket, with the
    /// reciprocal of their number as the sample rate.
    fn times(&mut self, times: &Observations) {
        let bounds = &times.bounds;
        for (index, &count) in times.counts.iter().enumerate() {
            let Some(grown) = self.growth.of((RESPONSE_TIME, index), count) else {
                continue;
            };
            let below = index.checked_sub(1).map_or(0.0, |index| bounds[index]);
            let above = bounds.get(index).copied().unwrap_or(below);
            let middle = f64::midpoint(below, above);
            let milliseconds = (middle * 1e6).round() / 1e3;
            let rate = match grown.by {
                1 => String::new(),
                by => format!("|@{}", rate(by)),
            };
            self.line(
                RESPONSE_TIME,
                format_args!("{milliseconds}|ms{rate}"),
                &[grown],
            );
        }
    }

    /// Sends one line: the name, the value with its type, and the tags. Source: Datadog, "DogStatsD
    /// Datagram Format".
    fn line(&mut self, name: &str, value: fmt::Arguments<'_>, grown: &[Grown]) {
        if self.error.is_some() {
            return;
        }
        let line = match &self.options.flavour {
            Flavour::Statsd => format!("{name}{}:{value}", self.tagged),
            Flavour::DogStatsd(mogrifiers) => {
                let (name, own_tags) = mogrifiers.apply(name);
                let mut line = format!("{name}:{value}");
                let mut mark = "|#";
                for (tag, text) in self.options.tags.iter().chain(&own_tags) {
                    // Writing to a string does not fail.
                    let _ = write!(line, "{mark}{tag}:{}", tag_value(text));
                    mark = ",";
                }
                line
            }
        };
        if line.len() > MAX_LINE_BYTES {
            self.long_lines += 1;
            return;
        }
        match self.wire.add(&line) {
            Ok(was_sent) => {
                if was_sent {
                    self.growth.sent();
                }
                self.growth.unsent.extend_from_slice(grown);
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// Logs failures of sending, at most every five minutes, and the recovery.
    fn report(&mut self, sent: io::Result<()>) {
        let Options { host, port, .. } = &self.options;
        let Err(error) = sent else {
            if self.failing.take().is_some() {
                tracing::info!(
                    host,
                    port,
                    "StatsD: sending metrics again; only gauges were lost"
                );
            }
            return;
        };
        let new = || Throttle::new(WARNING_INTERVAL);
        let lines = self.failing.get_or_insert_with(new);
        if lines.admit(Instant::now()).is_some() {
            tracing::warn!(host, port, %error, "StatsD: cannot send metrics; check STATSD_HOST, \
                STATSD_PORT and STATSD_PROTOCOL. Counters are sent after recovery");
        }
    }
}

/// The end of every name, where tags are in names: sorted, as envoyproxy/ratelimit sends them.
fn tags_in_name(options: &Options) -> String {
    let tags = options.tags.iter();
    match options.flavour {
        Flavour::Statsd => tags
            .map(|(name, value)| format!(".__{name}={value}"))
            .collect(),
        Flavour::DogStatsd(_) => String::new(),
    }
}

/// The value of a tag. Characters that end a value, all tags or the line become `_`, as Datadog
/// stores them. Source: Datadog, "DogStatsD Datagram Format" and "Defining Tags".
fn tag_value(value: &str) -> String {
    let is_special = |char: char| matches!(char, ',' | '#' | '|') || char.is_control();
    value.replace(is_special, "_")
}

/// The sample rate of one line for `count` observations. It is rounded down, for servers that round
/// its reciprocal down.
fn rate(count: u64) -> f64 {
    const DIGITS: f64 = 1e12;
    (DIGITS / count as f64).floor() / DIGITS
}

/// The counters as they were sent.
///
/// A counter is identified by a fingerprint, which takes little memory for very many of them. A
/// removed counter is forgotten after the next whole flush. Counters with equal names in StatsD are
/// tracked separately, because one of them can be removed while the others remain.
#[derive(Debug, Default)]
struct Growth {
    sent: HashMap<Fingerprint, Sent>,
    /// In a buffer that has not been sent.
    unsent: Vec<Grown>,
    flush: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    value: u64,
    /// The flush that saw the counter last.
    flush: u64,
}

/// A counter that has grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grown {
    /// The increase.
    pub by: u64,
    key: Fingerprint,
    value: u64,
}

impl Growth {
    /// The growth of the counter `identity`, if any. A counter that is smaller than before was
    /// reset.
    fn of(&mut self, identity: impl Hash, value: u64) -> Option<Grown> {
        let key = Fingerprint::of_value(&identity);
        let before = self.sent.get_mut(&key).map_or(0, |sent| {
            sent.flush = self.flush;
            sent.value
        });
        let by = value.checked_sub(before).unwrap_or(value);
        if by == 0 && value < before {
            self.sent.remove(&key);
        }
        (by > 0).then_some(Grown { by, key, value })
    }

    /// Records that the buffer was sent.
    fn sent(&mut self) {
        let flush = self.flush;
        for Grown { key, value, .. } in self.unsent.drain(..) {
            self.sent.insert(key, Sent { value, flush });
        }
    }

    /// A whole flush has been sent: forgets counters that it did not contain.
    fn all_sent(&mut self) {
        self.sent();
        let flush = self.flush;
        self.sent.retain(|_, sent| sent.flush == flush);
        self.flush += 1;
    }
}

/// The largest packet that every network carries in one piece: an Ethernet frame, less the headers
/// of IPv6 and UDP and some for tunnels.
const PACKET_BYTES: usize = 1_432;

/// Bytes of one write to a connection.
const WRITE_BYTES: usize = 16 << 10;

/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for the server to accept one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// The socket, and the lines that wait for it.
#[derive(Debug, Default)]
struct Wire {
    socket: Option<Socket>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Wire {
    /// Opens the socket for a flush, unless a connection is open.
    fn open(&mut self, options: &Options) -> io::Result<()> {
        if let Some(Socket::Tcp(stream)) = &mut self.socket
            && is_open(stream)
        {
            return Ok(());
        }
        self.socket = None;
        let problem = "the name of the server has no address";
        let mut failed = io::Error::new(io::ErrorKind::NotFound, problem);
        for address in (options.host.as_str(), options.port).to_socket_addrs()? {
            match Socket::open(options.protocol, address) {
                Ok(socket) => {
                    self.socket = Some(socket);
                    return Ok(());
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Adds a line. Returns whether the buffer was sent before, to make room.
    fn add(&mut self, line: &str) -> io::Result<bool> {
        let capacity = match self.socket {
            Some(Socket::Udp(_)) => PACKET_BYTES,
            _ => WRITE_BYTES,
        };
        let is_full = !self.buffer.is_empty() && self.buffer.len() + line.len() + 1 > capacity;
        if is_full {
            self.finish()?;
        }
        self.buffer.extend_from_slice(line.as_bytes());
        self.buffer.push(b'\n');
        Ok(is_full)
    }

    /// Sends the buffer.
    fn finish(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        match &mut self.socket {
            Some(Socket::Tcp(stream)) => stream.write_all(&self.buffer)?,
            Some(Socket::Udp(socket)) => {
                socket.send(self.buffer.trim_ascii_end())?;
            }
            None => return Err(io::ErrorKind::NotConnected.into()),
        }
        self.buffer.clear();
        Ok(())
    }
}

impl Socket {
    fn open(protocol: Protocol, address: SocketAddr) -> io::Result<Self> {
        match protocol {
            Protocol::Tcp => {
                let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
                stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                Ok(Self::Tcp(stream))
            }
            Protocol::Udp => {
                let any = if address.is_ipv4() {
                    SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
                } else {
                    (Ipv6Addr::UNSPECIFIED, 0).into()
                };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
                Ok(Self::Udp(socket))
            }
        }
    }
}

/// Whether the server has not closed the connection. A write to a closed one would succeed once,
/// and be lost.
fn is_open(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 256];
    if stream.set_nonblocking(true).is_err() {
        return false;
    }
    let read = stream.read(&mut answer);
    let is_open = match read {
        // A StatsD server sends nothing; any bytes are dropped.
        Ok(bytes) => bytes > 0,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    };
    is_open && stream.set_nonblocking(false).is_ok()
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod growth_tests {
    use super::*;

    fn by(growth: &mut Growth, name: &str, value: u64) -> Option<u64> {
        growth.of(name, value).map(|grown| {
            growth.unsent.push(grown);
            grown.by
        })
    }

    #[test]
    fn only_what_was_sent_is_not_sent_again() {
        let mut growth = Growth::default();
        assert_eq!(
            (by(&mut growth, "a", 5), by(&mut growth, "b", 0)),
            (Some(5), None)
        );
        growth.all_sent();
        assert_eq!(
            (by(&mut growth, "a", 5), by(&mut growth, "a", 7)),
            (None, Some(2))
        );
        growth.unsent.clear();
        assert_eq!(by(&mut growth, "a", 8), Some(3), "the 2 were not sent");
        growth.sent();
        assert_eq!(by(&mut growth, "a", 8), None);
    }

    #[test]
    fn counters_begin_again_and_disappear() {
        let mut growth = Growth::default();
        let _ = (by(&mut growth, "a", 5), by(&mut growth, "b", 9));
        growth.all_sent();
        assert_eq!(
            by(&mut growth, "a", 3),
            Some(3),
            "a limit that was removed and added again"
        );
        growth.all_sent();
        assert_eq!(growth.sent.len(), 1, "b is gone");
        assert_eq!(by(&mut growth, "b", 9), Some(9));
    }
}
