//! Export to the collector: OTLP messages over HTTP or gRPC, with or without TLS.
//!
//! A worker never waits: finished spans go to a bounded queue, and one that finds it full is
//! dropped and counted. The export thread checks the queue once a second, and when half of it is
//! full. Spans of a failed export are lost and counted. Neither the SDK's batch processor nor
//! opentelemetry-otlp 0.33 returns the number of lost spans, which is a metric here.
//!
//! Source: OpenTelemetry Protocol 1.x, "OTLP/gRPC" and "OTLP/HTTP".

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::uri::Scheme;
use http::{HeaderValue, Method, Request};
use opentelemetry::Context;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use prost::Message;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};

use super::Options;
use crate::net::dial::{Address, Connector, Dial, TcpOptions};
use crate::net::http::{CallError, HttpClient};
use crate::net::throttle::Throttle;
use crate::net::tls::{self, Peer, TlsError};

/// The largest answer of a collector that is read, in bytes: an answer is a few numbers and a
/// sentence.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// The collector in the messages of errors.
const PEER: Peer = Peer {
    name: "the collector",
    address: "OTEL_EXPORTER_OTLP_ENDPOINT",
    authorities: "OTEL_EXPORTER_OTLP_CERTIFICATE",
    other_name: None,
    identity: "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY",
    without_tls: "write http:// in OTEL_EXPORTER_OTLP_ENDPOINT",
};

/// How messages reach the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Protobuf in the body of a POST.
    Http,
    /// A unary call.
    Grpc,
}

/// Opens connections to the collector.
///
/// # Errors
/// A file of certificates cannot be used.
pub(super) fn connector(options: &Options) -> Result<Connector, TlsError> {
    let config = match options.protocol {
        Protocol::Http => tls::client_config(&options.tls).map(Arc::new),
        Protocol::Grpc => tls::http2_client_config(&options.tls),
    }?;
    let is_secure = options.endpoint.scheme() == Some(&Scheme::HTTPS);
    let port = if is_secure { 443 } else { 80 };
    Ok(Connector {
        dial: Dial {
            address: Address::of(&options.endpoint, port)
                .expect("the settings refuse an endpoint without a host"),
            tls: is_secure.then_some(config),
            tcp: TcpOptions::default(),
        },
        timeout: options.timeout,
        peer: &PEER,
    })
}

/// Reasons for which an export failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    #[error(transparent)]
    Http(#[from] CallError),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("HTTP status {0}")]
    Status(u16),
    #[error("gRPC status {:?}: {}", .0.code(), .0.message())]
    Grpc(#[from] Box<tonic::Status>),
}

impl ExportError {
    /// What happened, for the log. A status with a source is of the client, not of the collector.
    fn event(&self) -> &'static str {
        match self {
            Self::Http(CallError::Unreachable(_)) => "no connection to the trace collector",
            Self::Grpc(status) if std::error::Error::source(&**status).is_some() => {
                "no gRPC connection to the trace collector"
            }
            Self::Late(_) => "the trace collector does not answer in time",
            Self::Http(_) => "the trace collector gives no valid answer",
            Self::Status(_) | Self::Grpc(_) => "the trace collector rejects them",
        }
    }
}

/// The client of one collector.
pub(super) struct Exporter {
    transport: Transport,
    options: Options,
    resource: ResourceAttributesWithSchema,
}

enum Transport {
    Http(Box<HttpClient>),
    Grpc(TraceServiceClient<Channel>),
}

impl Exporter {
    /// Connects with the first export. Must be made in the runtime that exports.
    pub(super) fn new(options: Options, connector: Connector, resource: &Resource) -> Self {
        let transport = match options.protocol {
            Protocol::Http => {
                Transport::Http(Box::new(HttpClient::new(connector, MAX_ANSWER_BYTES)))
            }
            Protocol::Grpc => {
                let channel =
                    Endpoint::from(options.endpoint.clone()).connect_with_connector_lazy(connector);
                Transport::Grpc(
                    TraceServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES),
                )
            }
        };
        Self {
            transport,
            options,
            resource: resource.into(),
        }
    }

    /// Sends spans. Returns how many of them the collector refused.
    ///
    /// # Errors
    /// None of the spans has certainly reached it.
    pub(super) async fn export(&self, spans: Vec<SpanData>) -> Result<u64, ExportError> {
        let request = ExportTraceServiceRequest {
            resource_spans: group_spans_by_resource_and_scope(spans, &self.resource),
        };
        let timeout = self.options.timeout;
        let sent = async {
            match &self.transport {
                Transport::Http(client) => self.post(client, &request).await,
                Transport::Grpc(client) => self.call(client.clone(), request).await,
            }
        };
        let answer = tokio::time::timeout(timeout, sent).await;
        let partial = answer
            .map_err(|_| ExportError::Late(timeout))??
            .partial_success;
        Ok(partial.map_or(0, |partial| partial.rejected_spans.unsigned_abs()))
    }

    async fn post(
        &self,
        client: &HttpClient,
        message: &ExportTraceServiceRequest,
    ) -> Result<ExportTraceServiceResponse, ExportError> {
        let mut request = Request::new(Bytes::from(message.encode_to_vec()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.options.endpoint.clone();
        *request.headers_mut() = self.options.headers.clone();
        let protobuf = HeaderValue::from_static("application/x-protobuf");
        request.headers_mut().insert(CONTENT_TYPE, protobuf);
        let (status, body) = match client.call(request).await {
            // A success whose body cannot be read is a success.
            Err(CallError::Body { status, .. }) => (status, Bytes::new()),
            answered => answered?,
        };
        if !status.is_success() {
            return Err(ExportError::Status(status.as_u16()));
        }
        Ok(ExportTraceServiceResponse::decode(body).unwrap_or_default())
    }

    async fn call(
        &self,
        mut client: TraceServiceClient<Channel>,
        message: ExportTraceServiceRequest,
    ) -> Result<ExportTraceServiceResponse, ExportError> {
        let mut request = tonic::Request::new(message);
        *request.metadata_mut() = MetadataMap::from_headers(self.options.headers.clone());
        Ok(client.export(request).await.map_err(Box::new)?.into_inner())
    }
}

/// Maximum number of finished spans that wait for the collector, and of spans in one message;
/// OpenTelemetry's defaults. A span with its attributes and a full `tracestate` is about 2 KB: the
/// queue has at most 4 MB.
pub(crate) const MAX_QUEUED: usize = 2_048;
pub(super) const MAX_BATCH: usize = 512;

/// The longest time that a span waits for others.
const DELAY: Duration = Duration::from_secs(1);

/// Counts of finished spans, by result.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) exported: AtomicU64,
    /// The queue was full.
    pub(super) dropped: AtomicU64,
    /// The export failed.
    pub(super) failed: AtomicU64,
}

/// The sending end of the queue.
#[derive(Debug)]
pub(super) struct Queue {
    spans: mpsc::Sender<SpanData>,
    half_full: Arc<Notify>,
    counts: Arc<Counts>,
}

/// The receiving end of the queue.
#[derive(Debug)]
pub(super) struct Queued {
    spans: mpsc::Receiver<SpanData>,
    half_full: Arc<Notify>,
    pub(super) counts: Arc<Counts>,
}

pub(super) fn queue() -> (Queue, Queued) {
    let (sender, spans) = mpsc::channel(MAX_QUEUED);
    let queued = Queued {
        spans,
        half_full: Arc::default(),
        counts: Arc::default(),
    };
    let queue = Queue {
        spans: sender,
        half_full: Arc::clone(&queued.half_full),
        counts: Arc::clone(&queued.counts),
    };
    (queue, queued)
}

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        } else if self.spans.capacity() <= MAX_QUEUED / 2 {
            self.half_full.notify_one();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl Queued {
    /// Exports spans until `stop` is sent or dropped, and then the queued spans. `export` returns
    /// how many spans of a batch the collector refused.
    pub(super) async fn export(
        mut self,
        mut stop: oneshot::Receiver<()>,
        export: impl AsyncFn(Vec<SpanData>) -> Result<u64, ExportError>,
    ) {
        let mut warnings = Throttle::default();
        let mut stops = false;
        while !stops {
            stops = tokio::select! {
                _ = &mut stop => true,
                () = self.half_full.notified() => false,
                () = tokio::time::sleep(DELAY) => false,
            };
            while let Some(batch) = self.next_batch() {
                let spans = batch.len() as u64;
                let failed = match export(batch).await {
                    Ok(refused) => refused.min(spans),
                    Err(error) => {
                        if warnings.admit(Instant::now()).is_some() {
                            tracing::warn!(%error, spans, "dropping spans: {}; check \
                                OTEL_EXPORTER_OTLP_ENDPOINT and TRACING_EXPORTER_PROTOCOL",
                                error.event());
                        }
                        spans
                    }
                };
                self.counts.failed.fetch_add(failed, Ordering::Relaxed);
                let exported = spans - failed;
                self.counts.exported.fetch_add(exported, Ordering::Relaxed);
            }
        }
    }

    fn next_batch(&mut self) -> Option<Vec<SpanData>> {
        let spans = std::iter::from_fn(|| self.spans.try_recv().ok());
        let batch: Vec<_> = spans.take(MAX_BATCH).collect();
        (!batch.is_empty()).then_some(batch)
    }
}
