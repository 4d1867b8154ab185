//! Traces: spans of calls, in OpenTelemetry's terms, and their export to a collector.
//!
//! Nothing here is used while tracing is off: a [`TraceSpan`] is then empty, and its functions do
//! nothing. If the caller does not record its call, the only cost is to read the headers. Spans do
//! not go through `tracing`, whose events are logs: a layer there would process every log event.
//!
//! Spans are passed as arguments instead: an empty one is a null pointer.

pub(crate) mod otlp;
pub(crate) mod parent;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use http::{HeaderMap, Uri};
use opentelemetry::trace::{
    Span as _, SpanBuilder, Status, TraceContextExt, Tracer as _, TracerProvider,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    Sampler, SamplingDecision, SdkTracer, SdkTracerProvider, ShouldSample,
};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::net::background;
use crate::net::tls::{ClientOptions, TlsError};
use crate::observe::metrics::{Sample, families};
pub use opentelemetry::trace::SpanKind;
pub use otlp::Protocol;
use otlp::{Counts, Exporter};
pub(crate) use parent::TRACE_HEADERS;
use parent::{Parent, parent};

/// Recording and export of traces.
#[derive(Clone, Debug)]
pub struct Options {
    /// `service.name` of the resource.
    pub service_name: String,
    /// The namespace of the service's name; empty for none.
    pub service_namespace: String,
    /// `service.instance.id` of the resource: distinguishes the processes of the service.
    pub service_instance_id: String,
    /// The part of the traces without a parent that is recorded, 0 to 1. A trace with a parent is
    /// recorded if its parent is.
    pub sampling_rate: f64,
    /// Protocol of the export.
    pub protocol: Protocol,
    /// The collector: for HTTP with the path, for gRPC without.
    pub endpoint: Uri,
    /// Headers of each export. They are marked as secrets.
    pub headers: HeaderMap,
    /// Timeout of an export.
    pub timeout: Duration,
    /// TLS options for an endpoint with `https`.
    pub tls: ClientOptions,
}

/// Errors of starting the export.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The operating system cannot create a thread or an event queue.
    #[error("the operating system gives no thread for the export of traces")]
    System(#[from] io::Error),
}

/// Maximum time to export the last spans when the process ends.
const FLUSH_WITHIN: Duration = Duration::from_secs(3);

/// The export of the process, a thread of its own: a stalled collector stalls no request. Dropping
/// this value exports the queued spans, within at most [`FLUSH_WITHIN`].
#[derive(Debug)]
pub struct Traces {
    /// Starts the spans of the workers.
    pub tracer: Tracer,
    counts: Arc<Counts>,
    stop: Option<oneshot::Sender<()>>,
    ended: Receiver<()>,
}

/// Starts the export.
///
/// # Errors
/// [`Error`]. An unreachable collector is not an error.
pub fn start(options: Options) -> Result<Traces, Error> {
    let text = |key, value: &String| KeyValue::new(key, value.clone());
    let mut attributes = vec![
        text("service.name", &options.service_name),
        text("service.instance.id", &options.service_instance_id),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
    ];
    if !options.service_namespace.is_empty() {
        attributes.push(text("service.namespace", &options.service_namespace));
    }
    let resource = Resource::builder().with_attributes(attributes).build();
    let records_none = options.sampling_rate <= 0.0;
    let (queue, queued) = otlp::queue();
    let counts = Arc::clone(&queued.counts);
    let ratio = Sampler::TraceIdRatioBased(options.sampling_rate);
    let provider = SdkTracerProvider::builder()
        .with_sampler(Sampler::ParentBased(Box::new(ratio.clone())))
        .with_resource(resource.clone())
        .with_span_processor(queue)
        .build();
    let scope = InstrumentationScope::builder("weir").with_version(env!("CARGO_PKG_VERSION"));
    let sdk = provider.tracer_with_scope(scope.build());

    let connector = otlp::connector(&options)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let ((stop, stopped), (end, ended)) = (oneshot::channel(), sync_channel::<()>(1));
    let run = move || {
        runtime.block_on(async {
            let exporter = Exporter::new(options, connector, &resource);
            let export = async |spans| exporter.export(spans).await;
            queued.export(stopped, export).await;
        });
        runtime.shutdown_background();
        drop(end);
    };
    background::spawn("weir-traces", run)?;
    Ok(Traces {
        tracer: Tracer {
            sdk,
            ratio,
            records_none,
        },
        counts,
        stop: Some(stop),
        ended,
    })
}

impl Traces {
    /// Reads the counts of finished spans.
    pub fn counts(&self) -> impl Fn() -> [Sample; 3] + Send + Sync + 'static {
        let counts = Arc::clone(&self.counts);
        move || {
            let all = [
                ("exported", &counts.exported),
                ("dropped", &counts.dropped),
                ("failed", &counts.failed),
            ];
            let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
            all.map(|(outcome, cell)| families::SPANS.count(&[outcome], count(cell)))
        }
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Returns when the thread ends. If the collector does not answer, the process waits no
        // longer than this.
        let _ = self.ended.recv_timeout(FLUSH_WITHIN);
    }
}

/// Starts the spans of calls.
#[derive(Clone, Debug)]
pub struct Tracer {
    sdk: SdkTracer,
    ratio: Sampler,
    /// Whether traces without a parent are not recorded.
    records_none: bool,
}

impl Tracer {
    /// The span of a call with these headers, if it is recorded.
    pub fn call(&self, name: &'static str, headers: &HeaderMap) -> TraceSpan {
        let context = match parent(headers) {
            Parent::Unsampled => return TraceSpan::default(),
            Parent::None if self.records_none => return TraceSpan::default(),
            Parent::None => Context::new(),
            Parent::Undecided(parent) => {
                let (id, kind) = (parent.trace_id(), &SpanKind::Server);
                let result = self.ratio.should_sample(None, id, name, kind, &[], &[]);
                if result.decision == SamplingDecision::Drop {
                    return TraceSpan::default();
                }
                Context::new().with_remote_span_context(parent)
            }
            Parent::Sampled(parent) => Context::new().with_remote_span_context(parent),
        };
        TraceSpan::start(&self.sdk, (name, SpanKind::Server), &context)
    }
}

/// A span that is being recorded, or nothing. It ends when its last clone is dropped, also when its
/// call is cancelled.
#[derive(Clone, Debug, Default)]
pub struct TraceSpan(Option<Arc<Recording>>);

#[derive(Debug)]
struct Recording {
    sdk: SdkTracer,
    /// Holds the span.
    context: Context,
}

impl TraceSpan {
    fn start(sdk: &SdkTracer, (name, kind): (&'static str, SpanKind), parent: &Context) -> Self {
        let span = sdk.build_with_context(SpanBuilder::from_name(name).with_kind(kind), parent);
        let recording = |span| {
            Arc::new(Recording {
                sdk: sdk.clone(),
                context: Context::new().with_span(span),
            })
        };
        Self(span.is_recording().then(|| recording(span)))
    }

    /// Whether there is anything to record.
    #[inline]
    pub fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// A span below this one.
    #[inline]
    #[must_use]
    pub fn child(&self, name: &'static str, kind: SpanKind) -> Self {
        self.0.as_ref().map_or_else(Self::default, |parent| {
            Self::start(&parent.sdk, (name, kind), &parent.context)
        })
    }

    /// Adds an attribute.
    #[inline]
    pub fn set(&self, key: &'static str, value: impl Into<Value>) {
        if let Some(recording) = &self.0 {
            let span = recording.context.span();
            span.set_attribute(KeyValue::new(key, value));
        }
    }

    /// Marks the span as failed. `error` is a short name of the error (`error.type`).
    pub fn fail(&self, error: impl Into<Value>) {
        if let Some(recording) = &self.0 {
            let span = recording.context.span();
            span.set_attribute(KeyValue::new("error.type", error));
            span.set_status(Status::error(""));
        }
    }
}

#[cfg(test)]
mod tests;
