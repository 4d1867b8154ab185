//! One stream to the control plane: it passes responses to the thread that compiles, and answers to
//! the control plane.

use std::pin::Pin;
use std::time::Instant;

use futures_util::stream::{self, Stream as FutureStream, StreamExt};
use futures_util::{FutureExt, TryFutureExt};
use tokio::sync::mpsc;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::Channel;
use tonic::{Request as Call, Status as GrpcStatus};

use super::applier::Answer;
use super::backoff::Ended;
use super::inbox::{Inbox, Update};
use super::protocol::{Outcome, RefusalPace, Stream};
use super::resources::TYPE_URL;
use super::status::{Count, State, Status};
use super::{Options, SILENCE};
use crate::core::proto::xds::{
    AggregatedDiscoveryServiceClient, DiscoveryRequest, DiscoveryResponse,
};
use crate::net::dial::causes;

/// Requests that the connection has not taken yet. Beyond it the server does not read, although it
/// sends.
const MAX_OUTGOING: usize = 256;

/// A header of every stream.
pub type Header = (AsciiMetadataKey, AsciiMetadataValue);

type Responses = Pin<Box<dyn FutureStream<Item = Result<DiscoveryResponse, GrpcStatus>> + Send>>;

/// What a stream shares with the rest of the client.
pub(super) struct Context<'c> {
    pub(super) options: &'c Options,
    pub(super) status: &'c Status,
    pub(super) inbox: &'c Inbox,
    pub(super) answers: &'c mut mpsc::Receiver<Answer>,
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
        pace,
        ..
    } = context;
    let (outgoing, requests) = mpsc::channel(MAX_OUTGOING);
    let mut responses = open(channel, requests, options);
    let mut stream = Stream::new(options.node.clone());
    // The channel is new and has room.
    let _ = outgoing.try_send(stream.first());
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
        let request = tokio::select! {
            response = responses.next() => match response {
                Some(Ok(response)) => {
                    if take(response, context.inbox, status, context.number) {
                        ended = Ended::Delivered;
                    }
                    None
                }
                Some(Err(error)) => return End { ended, reason: explain(&error, options) },
                None => return End { ended, reason: "the control plane ended the stream".to_owned() },
            },
            Some(answer) = context.answers.recv() => {
                if answer.stream != context.number {
                    continue;
                }
                status.set(if answer.outcome == Outcome::Accepted { State::Synced } else { State::Nacked });
                stream.answer(answer.version, answer.nonce, answer.outcome, pace, Instant::now())
            }
            () = wait => stream.due(pace, Instant::now()),
            () = &mut silence => {
                if ended == Ended::Empty {
                    report_silence(options);
                }
                None
            }
        };
        if let Some(request) = request
            && outgoing.try_send(request).is_err()
        {
            let reason = "the control plane does not read what Weir sends".to_owned();
            return End { ended, reason };
        }
    }
}

/// Passes a response on. Returns whether it has the resources that were asked for.
fn take(response: DiscoveryResponse, inbox: &Inbox, status: &Status, stream: u64) -> bool {
    if response.type_url != TYPE_URL.as_bytes() {
        status.count(Count::OtherType);
        return false;
    }
    let update = Update {
        stream,
        version: response.version_info,
        nonce: response.nonce,
        resources: response.resources,
    };
    if inbox.put(update) {
        status.count(Count::Superseded);
    }
    true
}

fn report_silence(options: &Options) {
    let (node, server) = (&options.node.id, &options.server);
    tracing::warn!(
        %server, node,
        "the control plane has sent no limits for {} s; it may have none for this node: check \
         CONFIG_GRPC_XDS_NODE_ID",
        SILENCE.as_secs()
    );
}

/// Opens a stream. A Go server sends no headers before its first response, so that a call which has
/// no answer yet is not a failed one.
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
    Box::pin(
        opened
            .map_ok(tonic::Response::into_inner)
            .try_flatten_stream(),
    )
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
        tonic::Code::Unimplemented => format!(
            "it is no xDS server, or serves no state of the world (StreamAggregatedResources), \
             which Weir needs ({text})"
        ),
        _ => text,
    }
}
