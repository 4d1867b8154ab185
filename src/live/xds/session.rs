//! One stream to the control plane: it passes responses to the thread that compiles, and answers to
//! the control plane.

use std::pin::Pin;
use std::time::Instant;

use futures_util::stream::{self, Stream as FutureStream, StreamExt, TryStreamExt};
use futures_util::{FutureExt, TryFutureExt};
use tokio::sync::mpsc;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::Channel;
use tonic::{Request as Call, Status as GrpcStatus};

use super::applier::Answer;
use super::backoff::Ended;
use super::change::{Response, Update};
use super::connect::causes;
use super::inbox::Inbox;
use super::protocol::{Outcome, RefusalPace, Request, Stream, Variant};
use super::resources::TYPE_URL;
use super::status::{Count, State, Status};
use super::{InForce, Options, SILENCE};
use crate::core::proto::xds::AggregatedDiscoveryServiceClient;

/// Requests that the connection has not taken yet. Beyond it the server does not read, although it
/// sends.
const MAX_OUTGOING: usize = 256;

/// A header of every stream.
pub type Header = (AsciiMetadataKey, AsciiMetadataValue);

type Responses = Pin<Box<dyn FutureStream<Item = Result<Response, GrpcStatus>> + Send>>;

/// What a stream shares with the rest of the client.
pub(super) struct Context<'c> {
    pub(super) options: &'c Options,
    pub(super) status: &'c Status,
    pub(super) inbox: &'c Inbox,
    pub(super) answers: &'c mut mpsc::Receiver<Answer>,
    pub(super) in_force: &'c InForce,
    pub(super) pace: &'c mut RefusalPace,
    /// The number of the stream.
    pub(super) number: u64,
}

/// How a stream ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) ended: Ended,
    pub(super) reason: String,
}

/// Follows a stream to its end.
pub(super) async fn follow(channel: Channel, context: Context<'_>) -> End {
    let Context {
        options,
        status,
        inbox,
        answers,
        in_force,
        pace,
        number,
    } = context;
    let (outgoing, requests) = mpsc::channel(MAX_OUTGOING);
    let mut responses = open(channel, requests, options);
    let mut stream = Stream::new(options.variant, options.node.clone());
    // The channel is new and has room.
    let _ = outgoing.try_send(stream.first(in_force.versions()));
    status.set(State::Waiting);
    let mut ended = Ended::Empty;
    let mut silence = Box::pin(tokio::time::sleep(SILENCE)).fuse();
    loop {
        let due = stream.next_due();
        let wait = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        let requests = tokio::select! {
            response = responses.next(), if !inbox.is_full(options.max_message_bytes) => match response {
                Some(Ok(response)) => {
                    if response.type_url != TYPE_URL.as_bytes() {
                        status.count(Count::OtherType);
                        continue;
                    }
                    ended = Ended::Delivered;
                    let Response { version, nonce, change, .. } = response;
                    if inbox.put(Update { stream: number, version, nonces: vec![nonce], change }) {
                        status.count(Count::Superseded);
                    }
                    continue;
                }
                Some(Err(error)) => return End { ended, reason: explain(&error, options) },
                None => return End { ended, reason: "the control plane ended the stream".to_owned() },
            },
            Some(answer) = answers.recv() => {
                if answer.stream != number {
                    continue;
                }
                status.set(if answer.outcome == Outcome::Accepted { State::Synced } else { State::Nacked });
                stream.answer(answer.version, answer.nonces, answer.outcome, pace, Instant::now())
            }
            () = wait => stream.due(pace, Instant::now()),
            () = &mut silence => {
                if ended == Ended::Empty {
                    let (node, server) = (&options.node.id, &options.server);
                    tracing::warn!(
                        %server, node,
                        "the control plane has sent no limits for {} s; it may have none for this \
                         node: check CONFIG_GRPC_XDS_NODE_ID",
                        SILENCE.as_secs()
                    );
                }
                continue;
            }
        };
        for request in requests {
            if outgoing.try_send(request).is_err() {
                return End {
                    ended,
                    reason: "the control plane does not read what Weir sends".to_owned(),
                };
            }
        }
    }
}

/// Opens a stream. A Go server sends no headers before its first response, so that a call which has
/// no answer yet is not a failed one.
fn open(channel: Channel, requests: mpsc::Receiver<Request>, options: &Options) -> Responses {
    let mut client = AggregatedDiscoveryServiceClient::new(channel)
        .max_decoding_message_size(options.max_message_bytes);
    let requests = stream::unfold(requests, async |mut requests| {
        requests.recv().await.map(|request| (request, requests))
    });
    let headers = options.headers.clone();
    match options.variant {
        Variant::StateOfTheWorld => {
            let requests = requests.filter_map(|request| {
                std::future::ready(if let Request::StateOfTheWorld(request) = request {
                    Some(request)
                } else {
                    None
                })
            });
            let call = with_headers(requests, headers);
            let opened = async move { client.stream_aggregated_resources(call).await };
            Box::pin(
                opened
                    .map_ok(|response| response.into_inner().map_ok(Response::from))
                    .try_flatten_stream(),
            )
        }
        Variant::Delta => {
            let requests = requests.filter_map(|request| {
                std::future::ready(if let Request::Delta(request) = request {
                    Some(request)
                } else {
                    None
                })
            });
            let call = with_headers(requests, headers);
            let opened = async move { client.delta_aggregated_resources(call).await };
            Box::pin(
                opened
                    .map_ok(|response| response.into_inner().map_ok(Response::from))
                    .try_flatten_stream(),
            )
        }
    }
}

fn with_headers<T>(message: T, headers: Vec<Header>) -> Call<T> {
    let mut call = Call::new(message);
    for (name, value) in headers {
        call.metadata_mut().append(name, value);
    }
    call
}

/// The reason for the end of a stream, with a remedy where there is one.
fn explain(error: &GrpcStatus, options: &Options) -> String {
    // The display of a status has the debug output of its source.
    let source = std::error::Error::source(error)
        .map(|source| format!(": {}", causes(source)))
        .unwrap_or_default();
    let text = format!("{}{source}", error.message());
    match error.code() {
        tonic::Code::OutOfRange => format!(
            "its configuration is larger than {} bytes, the value of \
             XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES or its default ({text})",
            options.max_message_bytes
        ),
        tonic::Code::Unimplemented => {
            let other = match options.variant {
                Variant::StateOfTheWorld => {
                    "it is no xDS server, or serves delta only: then set CONFIG_TYPE=GRPC_XDS_DELTA"
                }
                Variant::Delta => {
                    "it is no xDS server, or does not serve delta: then set \
                     CONFIG_TYPE=GRPC_XDS_SOTW"
                }
            };
            format!("{other} ({text})")
        }
        _ => text,
    }
}
