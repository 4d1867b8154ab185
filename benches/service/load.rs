//! The load: the client of `weir load`, with the requests of the benches and figures in
//! microseconds.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hdrhistogram::Histogram;
use prost::Message;
use weir::cli::load::client::{self, ArrivalKind, FailureKind, Load, Options};
use weir::core::proto::RateLimitRequest;
use weir::net::dial::{Dial, TcpOptions};

/// The prefix of a gRPC message: a flag for compression, and its length.
const PREFIX_BYTES: usize = 5;

/// Long, so that slow servers are measured and not cut off.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Connections, and the most calls in flight on each.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub connections: usize,
    pub streams: usize,
}

/// When the next call starts.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// When an earlier one is answered.
    Closed,
    /// At random instants, at this mean rate (a Poisson process).
    Open { per_second: f64 },
}

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Passed(Duration),
    /// After this number of calls, all answered.
    Answered(u64),
}

/// A request as the message that carries it.
pub struct EncodedRequest(Vec<u8>);

impl EncodedRequest {
    pub fn new(request: &RateLimitRequest) -> Self {
        let length = (request.encoded_len() as u32).to_be_bytes();
        let mut message = [&[0][..], &length].concat();
        assert_eq!(message.len(), PREFIX_BYTES);
        request.encode(&mut message).expect("a Vec grows");
        Self(message)
    }

    /// The offsets of a text in the message, for [`EncodedRequest::put_digits`].
    pub fn offsets(&self, text: &[u8]) -> Vec<usize> {
        self.0
            .windows(text.len())
            .enumerate()
            .filter(|(_, window)| *window == text)
            .map(|(offset, _)| offset)
            .collect()
    }

    /// Overwrites the digits at an offset with a number.
    pub fn put_digits(&mut self, offset: usize, digits: usize, mut number: u32) {
        for digit in self.0[offset..offset + digits].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }
}

/// The requests of a load, in order.
pub trait RequestSource {
    fn next(&mut self) -> &EncodedRequest;
}

struct Traffic<'a>(&'a mut dyn RequestSource);

impl Load for Traffic<'_> {
    fn next(&mut self) -> client::EncodedRequest {
        client::EncodedRequest {
            message: Bytes::copy_from_slice(&self.0.next().0),
            descriptors: Vec::new(),
        }
    }
}

/// Requests in an order that was drawn beforehand.
pub struct RequestSequence {
    all: Vec<EncodedRequest>,
    order: Vec<u32>,
    next: usize,
}

impl RequestSequence {
    /// `order` holds indices of `all`, and is repeated.
    pub fn new(all: Vec<EncodedRequest>, order: Vec<u32>) -> Self {
        Self {
            all,
            order,
            next: 0,
        }
    }
}

impl RequestSource for RequestSequence {
    fn next(&mut self) -> &EncodedRequest {
        let index = self.order[self.next];
        self.next = (self.next + 1) % self.order.len();
        &self.all[index as usize]
    }
}

/// The results of a run.
#[derive(Debug)]
pub struct Tally {
    pub ok: u64,
    pub over_limit: u64,
    pub failed: u64,
    /// Calls that the client gave up, in flight or before they were sent.
    pub given_up: u64,
    /// Connections that the server closed.
    pub connections_lost: u64,
    pub lasted: Duration,
    latency: Histogram<u64>,
    latency_of_failures: Histogram<u64>,
}

impl Tally {
    fn new(tally: client::Tally) -> Self {
        let timeouts = tally.failures.get(&FailureKind::Timeout);
        let timeouts = timeouts.map_or(0, |(count, _)| *count);
        Self {
            ok: tally.counts.ok,
            over_limit: tally.counts.over_limit,
            failed: tally.failed() - timeouts,
            given_up: timeouts + tally.counts.not_sent,
            connections_lost: tally.counts.reconnections,
            lasted: tally.elapsed,
            latency: tally.latency,
            latency_of_failures: tally.latency_of_failures,
        }
    }

    pub fn answered(&self) -> u64 {
        self.ok + self.over_limit + self.failed
    }

    /// Latencies, in microseconds, of these shares of all calls.
    pub fn quantiles<const N: usize>(&self, shares: [f64; N]) -> [f64; N] {
        quantiles(&self.latency, shares)
    }

    /// The same, of the calls that failed.
    pub fn failed_quantiles<const N: usize>(&self, shares: [f64; N]) -> [f64; N] {
        quantiles(&self.latency_of_failures, shares)
    }
}

fn quantiles<const N: usize>(latency: &Histogram<u64>, shares: [f64; N]) -> [f64; N] {
    shares.map(|share| match latency.len() {
        0 => f64::NAN,
        _ => latency.value_at_quantile(share) as f64,
    })
}

/// The connections to one server.
pub struct Client {
    runtime: tokio::runtime::Runtime,
    options: Options,
    connected: client::Client,
}

impl Client {
    pub fn connect(address: SocketAddr, shape: Shape) -> Self {
        Self::open(Options {
            dial: Dial {
                address: address.into(),
                tls: None,
                tcp: TcpOptions::default(),
            },
            connections: shape.connections,
            max_in_flight: shape.connections * shape.streams,
            timeout: TIMEOUT,
            headers: http::HeaderMap::new(),
            traces: false,
        })
    }

    fn open(options: Options) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let client = runtime
            .block_on(client::Client::connect(&options))
            .expect("the server listens");
        Self {
            runtime,
            options,
            connected: client,
        }
    }

    /// Gives up calls after `timeout`.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self::open(Options {
            timeout,
            ..self.options
        })
    }

    /// Sends a new `traceparent` with each call.
    pub fn with_traces(self) -> Self {
        Self::open(Options {
            traces: true,
            ..self.options
        })
    }

    /// Runs the load, until all calls are answered.
    pub fn run(&mut self, requests: &mut dyn RequestSource, pace: Pace, until: Until) -> Tally {
        let until = match until {
            Until::Passed(time) => client::Until {
                time: Some(time),
                iterations: None,
            },
            Until::Answered(calls) => client::Until {
                time: None,
                iterations: Some(calls),
            },
        };
        let pace = match pace {
            Pace::Closed => client::Pace::Closed,
            Pace::Open { per_second } => client::Pace::Rate {
                per_second,
                arrivals: ArrivalKind::Poisson,
                seed: fastrand::u64(..),
            },
        };
        let mut traffic = Traffic(requests);
        let (mut tally, never) = (client::Tally::default(), std::future::pending());
        let client = &self.connected;
        let run = client.run(&mut tally, &mut traffic, pace, until, never);
        self.runtime.block_on(run);
        Tally::new(tally)
    }
}
