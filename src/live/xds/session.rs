//! The connection to the control plane, one stream after the other: it passes responses to the
//! thread that compiles, and answers to the control plane.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::OptionFuture;
use futures_util::stream::{self, Stream as FutureStream, StreamExt};
use futures_util::{FutureExt, TryFutureExt};
use tokio::sync::mpsc;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::Channel;
use tonic::{Request as Call, Status as GrpcStatus};

use super::Options;
use super::applier::{Answer, Inbox, Update};
use super::connect::connect;
use super::protocol::{ApplyOutcome, RefusalPace, Stream};
use super::resources::TYPE_URL;
use super::status::{Count, State, Status};
use crate::core::proto::xds::{
    AggregatedDiscoveryServiceClient, DiscoveryRequest, DiscoveryResponse,
};
use crate::net::dial::causes;
use crate::net::throttle::Throttle;

/// Maximum number of requests that the connection has not taken yet. More of them mean that the
/// server sends responses but does not read.
const MAX_OUTGOING: usize = 256;

/// Time without a response on a new stream after which Weir logs a warning. It is no error: a
/// server sends nothing while it has no configuration for the node.
const SILENCE: Duration = Duration::from_secs(10);

/// Different failures that are logged in the time of a [`Throttle`].
const MAX_FAILURES: usize = 5;

/// A header of every stream.
pub type Header = (AsciiMetadataKey, AsciiMetadataValue);

type Responses = Pin<Box<dyn FutureStream<Item = Result<DiscoveryResponse, GrpcStatus>> + Send>>;

/// The connection to the control plane.
pub(super) struct Connection {
    pub(super) options: Options,
    pub(super) status: Status,
    pub(super) inbox: Arc<Inbox>,
    pub(super) answers: mpsc::Receiver<Answer>,
    pub(super) pace: RefusalPace,
}

impl Connection {
    /// Connects, follows the stream to its end, waits, and connects again. Never ends.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::new(self.options.backoff.clone());
        let (mut failures, mut is_reported) = (Failures::default(), false);
        for number in 0.. {
            self.status.set(State::Connecting);
            let (ended, reason) = match connect(&self.options).await {
                Ok(channel) => {
                    self.status.count(Count::Connected);
                    if !std::mem::replace(&mut is_reported, true) {
                        let (server, node) = (&self.options.server.address, &self.options.node.id);
                        tracing::info!(%server, node, "connected to the control plane");
                    }
                    self.follow(channel, number).await
                }
                Err(reason) => {
                    self.status.count(Count::ConnectFailed);
                    (AttemptEnd::NotConnected, reason)
                }
            };
            self.status.set(State::Connecting);
            if failures.is_new(&reason, Instant::now()) {
                is_reported = false;
                let server = &self.options.server.address;
                tracing::warn!(%server, "no connection to the control plane: {reason}; the limits \
                    in force stay, and Weir reconnects");
            }
            tokio::time::sleep(backoff.next(ended, fastrand::f64())).await;
        }
    }

    /// Follows the stream of this number to its end. Returns how it ended, and why.
    async fn follow(&mut self, channel: Channel, number: u64) -> (AttemptEnd, String) {
        let (outgoing, requests) = mpsc::channel(MAX_OUTGOING);
        let mut responses = open(channel, requests, &self.options);
        let mut stream = Stream::new(self.options.node.clone());
        // The channel is new and has room.
        let _ = outgoing.try_send(stream.first());
        self.status.set(State::Waiting);
        let mut ended = AttemptEnd::Empty;
        let mut silence = Box::pin(tokio::time::sleep(SILENCE)).fuse();
        loop {
            let due = stream.next_due().map(Into::into);
            let due = OptionFuture::from(due.map(tokio::time::sleep_until));
            let request = tokio::select! {
                response = responses.next() => match response {
                    Some(Ok(response)) => {
                        if self.take(response, number) {
                            ended = AttemptEnd::Delivered;
                        }
                        None
                    }
                    Some(Err(error)) => return (ended, explain(&error, &self.options)),
                    None => return (ended, "the control plane ended the stream".to_owned()),
                },
                Some(Answer { update, outcome }) = self.answers.recv() => {
                    if update.stream != number {
                        continue;
                    }
                    self.status.set(match outcome {
                        ApplyOutcome::Accepted => State::Synced,
                        ApplyOutcome::Refused { .. } => State::Nacked,
                    });
                    let (pace, now) = (&mut self.pace, Instant::now());
                    stream.answer(update.version, update.nonce, outcome, pace, now)
                }
                Some(()) = due => stream.due(&mut self.pace, Instant::now()),
                () = &mut silence => {
                    if ended == AttemptEnd::Empty {
                        self.report_silence();
                    }
                    None
                }
            };
            if let Some(request) = request
                && outgoing.try_send(request).is_err()
            {
                let reason = "the control plane does not read Weir's requests";
                return (ended, reason.to_owned());
            }
        }
    }

    /// Passes a response to the thread that compiles. Returns whether it has the requested
    /// resources.
    fn take(&self, response: DiscoveryResponse, stream: u64) -> bool {
        if response.type_url != TYPE_URL.as_bytes() {
            self.status.count(Count::OtherType);
            return false;
        }
        let update = Update {
            stream,
            version: response.version_info,
            nonce: response.nonce,
            resources: response.resources,
        };
        if self.inbox.put(update) {
            self.status.count(Count::Superseded);
        }
        true
    }

    fn report_silence(&self) {
        let (node, server) = (&self.options.node.id, &self.options.server.address);
        tracing::warn!(
            %server, node,
            "the control plane has sent no limits for {} s; it may have none for this node: check \
             CONFIG_GRPC_XDS_NODE_ID",
            SILENCE.as_secs()
        );
    }
}

/// The waits between attempts to reach the control plane. envoyproxy/ratelimit's own default (10 s,
/// for ever) leaves a process without limits for long after a short outage.
#[derive(Clone, Debug, PartialEq)]
pub struct BackoffOptions {
    /// The wait after the first failure; each further one doubles it.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
    /// The part of each wait that is random, from 0 to 1: with 1, replicas that lost their control
    /// plane together return spread over the whole wait.
    pub random_share: f64,
    /// The wait after a connection that could not be opened, instead of the growing one.
    pub after_failed_connect: Option<Duration>,
}

impl Default for BackoffOptions {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(500),
            longest: Duration::from_secs(30),
            random_share: 1.0,
            after_failed_connect: None,
        }
    }
}

/// The end of the last attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptEnd {
    /// There was no connection.
    NotConnected,
    /// The stream ended before anything was received.
    Empty,
    /// The stream ended after it delivered something.
    Delivered,
}

/// The waits so far.
#[derive(Debug)]
struct Backoff {
    options: BackoffOptions,
    wait: Duration,
}

impl Backoff {
    fn new(options: BackoffOptions) -> Self {
        let wait = options.first;
        Self { options, wait }
    }

    /// The wait before the next attempt. `random` is from 0 to 1.
    fn next(&mut self, ended: AttemptEnd, random: f64) -> Duration {
        if ended == AttemptEnd::Delivered {
            self.wait = self.options.first;
        }
        let wait = self.wait;
        self.wait = (wait * 2).min(self.options.longest);
        let wait = match (ended, self.options.after_failed_connect) {
            (AttemptEnd::NotConnected, Some(fixed)) => fixed,
            _ => wait,
        };
        wait.mul_f64(1.0 - self.options.random_share * random)
    }
}

/// Failures that were logged lately, each with the throttle of its lines.
#[derive(Debug, Default)]
struct Failures(Vec<(String, Throttle)>);

impl Failures {
    /// Whether to log a failure: the same one once a minute, and at most [`MAX_FAILURES`] different
    /// ones in that time.
    fn is_new(&mut self, reason: &str, now: Instant) -> bool {
        self.0.retain(|(_, lines)| !lines.is_due(now));
        let is_new = self.0.len() < MAX_FAILURES && self.0.iter().all(|(known, _)| known != reason);
        if is_new {
            let mut lines = Throttle::default();
            lines.admit(now);
            self.0.push((reason.to_owned(), lines));
        }
        is_new
    }
}

/// Opens a stream. The future that waits for the headers is part of the stream, because a Go server
/// sends no headers before its first response.
fn open(
    channel: Channel,
    requests: mpsc::Receiver<DiscoveryRequest>,
    options: &Options,
) -> Responses {
    let mut client = AggregatedDiscoveryServiceClient::new(channel)
        .max_decoding_message_size(options.max_message_bytes);
    let requests = stream::unfold(requests, async |mut requests| {
        requests.recv().await.map(|request| (request, requests))
    });
    let mut call = Call::new(requests);
    for (name, value) in options.headers.clone() {
        call.metadata_mut().append(name, value);
    }
    let opened = async move { client.stream_aggregated_resources(call).await };
    let responses = opened.map_ok(tonic::Response::into_inner);
    Box::pin(responses.try_flatten_stream())
}

/// The reason for the end of a stream, with a remedy where there is one.
fn explain(error: &GrpcStatus, options: &Options) -> String {
    // Not by the `Display` of a status, which has the debug output of its source.
    let source = std::error::Error::source(error).map(|source| format!(": {}", causes(source)));
    let text = format!("{}{}", error.message(), source.unwrap_or_default());
    match error.code() {
        tonic::Code::OutOfRange => format!(
            "its configuration is larger than {} bytes, the value of \
             XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES or its default ({text})",
            options.max_message_bytes
        ),
        tonic::Code::Unimplemented => format!(
            "it is not an xDS server, or does not serve the state of the world \
             (StreamAggregatedResources), which Weir needs ({text})"
        ),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_logged_once_a_minute_and_few_different_ones_are() {
        const MINUTE: Duration = Duration::from_secs(60);
        let (begin, mut failures) = (Instant::now(), Failures::default());
        assert!(failures.is_new("refused", begin));
        assert!(!failures.is_new("refused", begin + MINUTE / 2));
        assert!(failures.is_new("timeout", begin + MINUTE / 2));
        assert!(failures.is_new("refused", begin + MINUTE));
        let later = begin + MINUTE * 10;
        let logged = (0..1_000)
            .filter(|number| failures.is_new(&number.to_string(), later))
            .count();
        assert_eq!(logged, MAX_FAILURES);
    }

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn waits_double_up_to_the_longest_and_begin_anew_after_a_stream_that_delivered() {
        let mut backoff = Backoff::new(BackoffOptions::default());
        let waits: Vec<_> = (0..9)
            .map(|_| backoff.next(AttemptEnd::NotConnected, 0.0).as_millis())
            .collect();
        assert_eq!(
            waits,
            [
                500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000
            ]
        );
        assert_eq!(
            backoff.next(AttemptEnd::Empty, 0.0),
            millis(30_000),
            "a stream that delivers nothing is no success"
        );
        assert_eq!(backoff.next(AttemptEnd::Delivered, 0.0), millis(500));
        assert_eq!(backoff.next(AttemptEnd::NotConnected, 0.0), millis(1_000));
    }

    #[test]
    fn the_random_part_is_the_whole_wait_or_what_the_settings_say() {
        let mut full = Backoff::new(BackoffOptions::default());
        assert_eq!(full.next(AttemptEnd::Delivered, 1.0), Duration::ZERO);
        let mut half = Backoff::new(BackoffOptions {
            random_share: 0.5,
            ..BackoffOptions::default()
        });
        assert_eq!(half.next(AttemptEnd::Delivered, 1.0), millis(250));
        assert_eq!(half.next(AttemptEnd::Delivered, 0.0), millis(500));
    }

    #[test]
    fn a_connection_that_cannot_be_opened_may_have_a_wait_of_its_own() {
        let options = BackoffOptions {
            after_failed_connect: Some(millis(3_000)),
            random_share: 0.0,
            ..BackoffOptions::default()
        };
        let mut backoff = Backoff::new(options);
        for _ in 0..5 {
            assert_eq!(backoff.next(AttemptEnd::NotConnected, 0.7), millis(3_000));
        }
        assert_eq!(backoff.next(AttemptEnd::Delivered, 0.7), millis(500));
    }
}
