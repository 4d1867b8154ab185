//! The way to the collector: OTLP messages over HTTP or gRPC, with or without TLS.
//!
//! Spans of a failed export are not sent again: they are lost and counted. Source: OpenTelemetry
//! Protocol 1.x, "OTLP/gRPC" and "OTLP/HTTP".

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;
use prost::Message;
use tokio_rustls::rustls::ClientConfig;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};

/// The largest answer of a collector that is read, in bytes: an answer is a few numbers and a
/// sentence.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// How messages reach the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Protobuf in the body of a POST.
    Http,
    /// A unary call.
    Grpc,
}

/// Where messages go.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) protocol: Protocol,
    pub(super) endpoint: Uri,
    pub(super) headers: HeaderMap,
    pub(super) timeout: Duration,
}

/// Why a collector did not take spans.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    #[error("{0}")]
    Unreachable(String),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("HTTP status {0}")]
    Status(u16),
    #[error("gRPC status {:?}: {}", .0.code(), .0.message())]
    Grpc(#[from] Box<tonic::Status>),
}

/// The client of one collector.
pub(super) struct Exporter {
    transport: Transport,
    target: Target,
    resource: ResourceAttributesWithSchema,
}

enum Transport {
    Http(Client<HttpsConnector<HttpConnector>, Full<Bytes>>),
    Grpc(TraceServiceClient<Channel>),
}

impl Exporter {
    /// Connects with the first export. Must be made in the runtime that exports.
    pub(super) fn new(target: Target, tls: ClientConfig, resource: &Resource) -> Self {
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http();
        let transport = match target.protocol {
            Protocol::Http => Transport::Http(
                Client::builder(TokioExecutor::new()).build(connector.enable_http1().build()),
            ),
            Protocol::Grpc => {
                let endpoint =
                    Endpoint::from(target.endpoint.clone()).connect_timeout(target.timeout);
                let channel =
                    endpoint.connect_with_connector_lazy(connector.enable_http2().build());
                Transport::Grpc(
                    TraceServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES),
                )
            }
        };
        Self {
            transport,
            target,
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
        let timeout = self.target.timeout;
        let sent = async {
            match &self.transport {
                Transport::Http(client) => self.post(client, &request).await,
                Transport::Grpc(client) => self.call(client.clone(), request).await,
            }
        };
        let answer = tokio::time::timeout(timeout, sent)
            .await
            .map_err(|_| ExportError::Late(timeout))??;
        Ok(answer
            .partial_success
            .map_or(0, |partial| partial.rejected_spans.unsigned_abs()))
    }

    async fn post(
        &self,
        client: &Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
        message: &ExportTraceServiceRequest,
    ) -> Result<ExportTraceServiceResponse, ExportError> {
        let mut request = Request::new(Full::new(Bytes::from(message.encode_to_vec())));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.target.endpoint.clone();
        *request.headers_mut() = self.target.headers.clone();
        request.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-protobuf"),
        );
        let response = client
            .request(request)
            .await
            .map_err(|error| ExportError::Unreachable(causes(&error)))?;
        if !response.status().is_success() {
            return Err(ExportError::Status(response.status().as_u16()));
        }
        // A success whose body cannot be read is a success.
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES)
            .collect()
            .await;
        Ok(body
            .ok()
            .and_then(|body| ExportTraceServiceResponse::decode(body.to_bytes()).ok())
            .unwrap_or_default())
    }

    async fn call(
        &self,
        mut client: TraceServiceClient<Channel>,
        message: ExportTraceServiceRequest,
    ) -> Result<ExportTraceServiceResponse, ExportError> {
        let mut request = tonic::Request::new(message);
        *request.metadata_mut() = MetadataMap::from_headers(self.target.headers.clone());
        Ok(client.export(request).await.map_err(Box::new)?.into_inner())
    }
}

/// An error with what caused it: hyper's own text is only that it could not connect.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
