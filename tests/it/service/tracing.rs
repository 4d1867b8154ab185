//! Traces of the real binary, as a collector receives them: over HTTP and over gRPC.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use tokio::net::TcpListener;
use weir::core::proto::rate_limit_response::Code;

use crate::deploy::examples::configuration;
use crate::support::envoy::{Envoy, validate, with};
use crate::support::http_client;
use crate::support::wait::{TIMEOUT, eventually_async};
use crate::support::{RedisServer, Weir, descriptor, ports, request, tools};

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: test
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 3 }
",
)];

const SPAN: &str = "b7ad6b7169203331";

/// What a collector has taken: the headers and the message of each export.
type Taken = Arc<Mutex<Vec<(HeaderMap, ExportTraceServiceRequest)>>>;

/// A collector of traces.
#[derive(Clone)]
struct Collector {
    address: SocketAddr,
    taken: Taken,
}

impl Collector {
    /// A collector that answers with `status` over HTTP.
    async fn http(status: StatusCode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (address, taken) = (listener.local_addr().expect("an address"), Taken::default());
        let kept = Arc::clone(&taken);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let kept = Arc::clone(&kept);
                let take = service_fn(move |request: http::Request<Incoming>| {
                    let kept = Arc::clone(&kept);
                    async move {
                        let (head, body) = request.into_parts();
                        assert_eq!(
                            (head.method.as_str(), head.uri.path()),
                            ("POST", "/v1/traces")
                        );
                        assert_eq!(head.headers["content-type"], "application/x-protobuf");
                        let body = body.collect().await.expect("a body").to_bytes();
                        let message = ExportTraceServiceRequest::decode(body).expect("a message");
                        kept.lock().expect("no panic").push((head.headers, message));
                        let mut response = Response::new(Full::new(Bytes::new()));
                        *response.status_mut() = status;
                        Ok::<_, Infallible>(response)
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), take));
            }
        });
        Self { address, taken }
    }

    /// A collector over gRPC.
    async fn grpc() -> Self {
        let collector = Self {
            address: ports::free(),
            taken: Taken::default(),
        };
        let server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(collector.clone()));
        tokio::spawn(server.serve(collector.address));
        while tokio::net::TcpStream::connect(collector.address)
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        collector
    }

    /// All spans so far.
    fn spans(&self) -> Vec<Span> {
        let taken = self.taken.lock().expect("no panic");
        let scopes = taken
            .iter()
            .flat_map(|(_, message)| &message.resource_spans)
            .flat_map(|spans| &spans.scope_spans);
        scopes.flat_map(|scope| &scope.spans).cloned().collect()
    }

    /// All spans, as soon as there are as many.
    async fn wait_for(&self, count: usize) -> Vec<Span> {
        let spans =
            eventually_async(|| Some(self.spans()).filter(|spans| spans.len() >= count)).await;
        spans.unwrap_or_else(|| panic!("{count} spans, not {:?}", self.spans()))
    }

    fn environment(&self) -> [(String, String); 2] {
        [
            ("TRACING_ENABLED".to_owned(), "true".to_owned()),
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(),
                format!("http://{}", self.address),
            ),
        ]
    }

    /// A Weir that exports to this collector.
    fn weir(&self, more: &[(&str, &str)]) -> Weir {
        let environment = self.environment();
        let environment: Vec<_> = environment
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .chain(more.iter().copied())
            .collect();
        Weir::start(LIMITS, &environment)
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let (headers, _, message) = request.into_parts();
        self.taken
            .lock()
            .expect("no panic")
            .push((headers.into_headers(), message));
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An attribute as text.
fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes
        .iter()
        .find(|attribute| attribute.key == key)?
        .value
        .clone()?
        .value?;
    match value {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{key} is {other:?}"),
    }
}

/// The span of this name in a trace.
fn find<'a>(spans: &'a [Span], trace: &str, name: &str) -> &'a Span {
    let mut found = spans
        .iter()
        .filter(|span| hex(&span.trace_id) == trace && span.name == name);
    let span = found
        .next()
        .unwrap_or_else(|| panic!("no {name} of {trace} in {spans:?}"));
    assert!(found.next().is_none(), "one {name} of {trace}");
    span
}

/// Asks for one hit of a user, with these headers.
async fn send(weir: &Weir, user: &str, headers: &[(&'static str, &str)]) -> Code {
    let mut call = tonic::Request::new(request("test", vec![descriptor(&[("user", user)])]));
    for (name, value) in headers {
        call.metadata_mut()
            .insert(*name, value.parse().expect("a header"));
    }
    weir.client()
        .await
        .should_rate_limit(call)
        .await
        .expect("an answer")
        .into_inner()
        .overall_code()
}

/// A trace that no other call has.
fn trace(number: u8) -> String {
    format!("{number:02x}{}", "0af7651916cd43dd8448eb211c8031")
}

const RPC: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The resource is the service, and values of clients are no part of spans.
fn assert_names_its_service(message: &ExportTraceServiceRequest) {
    let resource = message.resource_spans[0]
        .resource
        .as_ref()
        .expect("a resource");
    for (key, value) in [
        ("service.name", "RateLimit"),
        ("service.namespace", "shop"),
        ("service.instance.id", "pod-7"),
    ] {
        assert_eq!(attribute(&resource.attributes, key).as_deref(), Some(value));
    }
    let bytes = message.encode_to_vec();
    assert!(
        !bytes.windows(12).any(|window| window == b"secret-value"),
        "values of clients are no part of spans"
    );
}

/// The call, its decision and the trip to Redis of a trace: parents, times and attributes.
fn assert_spans(spans: &[Span], number: u8) {
    let trace = trace(number);
    let [call, decide, redis] = [RPC, "decide", "redis"].map(|name| find(spans, &trace, name));
    assert_eq!(
        [call, decide, redis].map(|span| hex(&span.parent_span_id)),
        [SPAN.to_owned(), hex(&call.span_id), hex(&decide.span_id)]
    );
    assert_eq!(
        [call, decide, redis].map(Span::kind),
        [SpanKind::Server, SpanKind::Internal, SpanKind::Client]
    );
    assert!(
        call.start_time_unix_nano <= decide.start_time_unix_nano
            && decide.start_time_unix_nano <= redis.start_time_unix_nano
    );
    assert!(
        call.end_time_unix_nano >= decide.end_time_unix_nano
            && decide.end_time_unix_nano >= redis.end_time_unix_nano
    );
    assert!(redis.end_time_unix_nano > redis.start_time_unix_nano);
    let expected = [
        ("weir.domain", "test"),
        ("weir.descriptors", "1"),
        ("weir.code", if number == 2 { "OVER_LIMIT" } else { "OK" }),
        ("rpc.grpc.status_code", "0"),
        ("rpc.method", "ShouldRateLimit"),
    ];
    for (key, value) in expected {
        assert_eq!(
            attribute(&call.attributes, key).as_deref(),
            Some(value),
            "{key} of {number}"
        );
    }
    assert_eq!(
        attribute(&decide.attributes, "weir.checks").as_deref(),
        Some("1")
    );
    assert_eq!(
        attribute(&redis.attributes, "db.system.name").as_deref(),
        Some("redis")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_spans_of_a_call_belong_to_the_trace_of_its_headers() {
    let (collector, redis) = (Collector::http(StatusCode::OK).await, RedisServer::start());
    let weir = collector.weir(&[
        ("REDIS_URL", &redis.url()),
        ("TRACING_SERVICE_NAMESPACE", "shop"),
        ("TRACING_SERVICE_INSTANCE_ID", "pod-7"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token"),
        // Only what the headers name is recorded.
        ("TRACING_SAMPLING_RATE", "0"),
    ]);
    let w3c = |flags: &str| format!("00-{}-{SPAN}-{flags}", trace(1));
    let b3 = format!("{}-{SPAN}-1", trace(2));
    let ids = trace(3);
    let unusual = format!("00-{}-{SPAN}-01", trace(4));
    send(&weir, "secret-value", &[]).await;
    send(&weir, "secret-value", &[("traceparent", &w3c("00"))]).await;
    send(
        &weir,
        "secret-value",
        &[("traceparent", &w3c("01")), ("tracestate", "vendor=1")],
    )
    .await;
    assert_eq!(
        send(&weir, "secret-value", &[("b3", &b3)]).await,
        Code::OverLimit
    );
    send(
        &weir,
        "other",
        &[
            ("x-b3-traceid", &ids),
            ("x-b3-spanid", SPAN),
            ("x-b3-sampled", "1"),
        ],
    )
    .await;
    // The generated service answers this one.
    send(
        &weir,
        "other",
        &[("traceparent", &unusual), ("grpc-encoding", "identity")],
    )
    .await;

    let spans = collector.wait_for(12).await;
    assert_eq!(spans.len(), 12, "three of each trace: {spans:?}");
    for number in 1..=4 {
        assert_spans(&spans, number);
    }
    assert_eq!(find(&spans, &trace(1), RPC).trace_state, "vendor=1");
    let taken = collector.taken.lock().expect("no panic").clone();
    for (headers, message) in &taken {
        assert_eq!(headers["authorization"], "Bearer token");
        assert_names_its_service(message);
    }
    assert_eq!(
        weir.metric("weir_spans_total{outcome=\"exported\"}"),
        Some(12.0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_a_trace_begin_one() {
    let collector = Collector::grpc().await;
    let environment = [
        ("TRACING_EXPORTER_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-key=secret"),
    ];
    let mut weir = collector.weir(&environment);
    for _ in 0..3 {
        send(&weir, "ana", &[]).await;
    }
    assert!(
        weir.client()
            .await
            .should_rate_limit(request("", vec![]))
            .await
            .is_err()
    );
    // What is queued is exported before the process ends.
    assert!(weir.terminate().success());
    let spans = collector.spans();
    assert_eq!(
        spans.len(),
        7,
        "a call and its decision each, and a call that is refused before: {spans:?}"
    );
    let calls: Vec<_> = spans.iter().filter(|span| span.name == RPC).collect();
    let traces: std::collections::HashSet<_> = calls.iter().map(|span| &span.trace_id).collect();
    assert_eq!(
        (calls.len(), traces.len()),
        (4, 4),
        "each has a trace of its own"
    );
    assert!(calls.iter().all(|span| span.parent_span_id.is_empty()));
    let invalid = calls
        .iter()
        .find(|span| attribute(&span.attributes, "rpc.grpc.status_code").as_deref() == Some("3"));
    assert_eq!(
        invalid
            .expect("INVALID_ARGUMENT")
            .status
            .as_ref()
            .map_or(0, |status| status.code),
        0,
        "the caller's fault"
    );
    assert_eq!(
        collector.taken.lock().expect("no panic")[0].0["x-key"],
        "secret"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_fails_is_an_error_of_the_trip_and_of_the_call() {
    let collector = Collector::http(StatusCode::OK).await;
    let redis = RedisServer::absent();
    let weir = collector.weir(&[("REDIS_URL", &redis.url())]);
    let refused = weir
        .client()
        .await
        .should_rate_limit(request("test", vec![descriptor(&[("user", "ana")])]))
        .await;
    assert_eq!(
        refused.expect_err("no Redis").code(),
        tonic::Code::Unavailable
    );
    let spans = collector.wait_for(3).await;
    for (name, error) in [
        ("redis", "not_executed"),
        (RPC, tonic::Code::Unavailable.description()),
    ] {
        let span = spans.iter().find(|span| span.name == name).expect(name);
        assert_eq!(
            span.status.as_ref().map(|status| status.code),
            Some(2),
            "{span:?}"
        );
        assert_eq!(
            attribute(&span.attributes, "error.type").as_deref(),
            Some(error),
            "{span:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_does_not_work_changes_no_answer() {
    // One refuses connections, one never answers, one answers with an error.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let failing = Collector::http(StatusCode::SERVICE_UNAVAILABLE).await;
    let silent = silent.local_addr().expect("an address");
    for (address, protocol, event) in [
        (
            ports::free(),
            "http",
            "no connection to the trace collector",
        ),
        (
            ports::free(),
            "grpc",
            "no gRPC connection to the trace collector",
        ),
        (silent, "http", "does not answer in time"),
        (silent, "grpc", "does not answer in time"),
        (failing.address, "http", "rejects them"),
    ] {
        let collector = Collector {
            address,
            taken: Taken::default(),
        };
        let mut weir = collector.weir(&[
            ("TRACING_EXPORTER_PROTOCOL", protocol),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
            ("DRAIN_DELAY", "0s"),
        ]);
        let mut client = weir.client().await;
        let began = Instant::now();
        for number in 0..2_000 {
            let call = request("test", vec![descriptor(&[("user", &number.to_string())])]);
            assert_eq!(
                client
                    .should_rate_limit(call)
                    .await
                    .expect("an answer")
                    .into_inner()
                    .overall_code(),
                Code::Ok
            );
        }
        assert!(
            began.elapsed() < TIMEOUT,
            "{address} {protocol}: {:?}",
            began.elapsed()
        );
        let failed = || {
            weir.metric("weir_spans_total{outcome=\"failed\"}")
                .filter(|&failed| failed > 0.0)
        };
        assert!(
            eventually_async(failed).await.is_some(),
            "{address} {protocol}: {}",
            weir.get("/metrics").1
        );
        let log = weir.wait_for_log("dropping spans").await;
        assert!(log.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{log}");
        assert!(log.contains(event), "{address} {protocol}: {log}");
        drop(client);
        let ended = Instant::now();
        assert!(weir.terminate().success());
        assert!(
            // Bounded by 5 s; without it, the endpoint would keep the process for ever.
            ended.elapsed() < Duration::from_secs(40),
            "{address} {protocol}: the last export is bounded, {:?}",
            ended.elapsed()
        );
    }
}

/// `deploy/envoy/tracing.yaml`: Envoy traces its client's request, and Weir's span belongs to the
/// span of Envoy's call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_of_weir_belong_to_those_of_envoy() {
    let (of_weir, of_envoy) = (
        Collector::http(StatusCode::OK).await,
        Collector::grpc().await,
    );
    let example = tools::file("config/basic.yaml");
    let environment = of_weir.environment();
    let environment: Vec<_> = environment
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .chain([("TRACING_SAMPLING_RATE", "0")])
        .collect();
    let weir = Weir::start(&[("basic.yaml", &example)], &environment);
    let configuration = configuration("tracing", weir.grpc_addr());
    let configuration = with(
        &configuration,
        "port_value: 4317",
        &format!("port_value: {}", of_envoy.address.port()),
    );
    let envoy = tokio::task::spawn_blocking(move || {
        validate(&configuration);
        let envoy = Envoy::start(&configuration);
        let response = http_client::get(envoy.listener("front"), "/");
        assert!(
            response.status == 200
                && response
                    .header("x-ratelimit-limit")
                    .is_some_and(|limit| limit.contains("per-client")),
            "{response:?}"
        );
        envoy
    });
    let _envoy = envoy.await.expect("an Envoy");
    let spans = of_weir.wait_for(2).await;
    let call = spans
        .iter()
        .find(|span| span.name == RPC)
        .expect("the call");
    let parent = || {
        of_envoy
            .spans()
            .into_iter()
            .find(|span| span.span_id == call.parent_span_id)
    };
    let parent = eventually_async(parent)
        .await
        .unwrap_or_else(|| panic!("no parent of {call:?} in {:?}", of_envoy.spans()));
    assert_eq!(parent.trace_id, call.trace_id);
}
