//! Finished spans on their way to the collector: a bounded queue, and the thread that empties it.
//!
//! A worker never waits: a span that finds the queue full is dropped and counted. The thread is not
//! woken for each span; it looks once a second, and when half of the queue is full.
//!
//! The batch processor of the SDK does not count what it drops where a metric can read it, and
//! wakes its thread for each batch from the worker that ends a span.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use crate::net::throttle::Throttle;

/// Finished spans that wait for the collector at most, and spans in one message; OpenTelemetry's
/// defaults. A span with its attributes and a full `tracestate` is about 2 KB, so that the queue
/// has at most 4 MB.
pub(crate) const MAX_QUEUED: usize = 2_048;
pub(super) const MAX_BATCH: usize = 512;

/// The longest time that a span waits for others.
const DELAY: Duration = Duration::from_secs(1);

/// What happened to finished spans.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) exported: AtomicU64,
    /// The queue was full.
    pub(super) dropped: AtomicU64,
    /// The collector did not take them.
    pub(super) failed: AtomicU64,
}

/// The end of the queue that takes spans.
#[derive(Debug)]
pub(super) struct Queue {
    spans: mpsc::Sender<SpanData>,
    half_full: Arc<Notify>,
    counts: Arc<Counts>,
}

/// The end of the queue that gives spans.
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
    /// Exports spans until `stop` is sent or dropped, and then what is queued. `export` returns how
    /// many spans of a batch the collector refused.
    pub(super) async fn export<E: std::fmt::Display>(
        mut self,
        mut stop: oneshot::Receiver<()>,
        export: impl AsyncFn(Vec<SpanData>) -> Result<u64, E>,
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
                            tracing::warn!(%error, spans, "spans are lost: the collector of traces \
                                does not take them; check OTEL_EXPORTER_OTLP_ENDPOINT");
                        }
                        spans
                    }
                };
                self.counts.failed.fetch_add(failed, Ordering::Relaxed);
                self.counts
                    .exported
                    .fetch_add(spans - failed, Ordering::Relaxed);
            }
        }
    }

    fn next_batch(&mut self) -> Option<Vec<SpanData>> {
        let batch: Vec<_> = std::iter::from_fn(|| self.spans.try_recv().ok())
            .take(MAX_BATCH)
            .collect();
        (!batch.is_empty()).then_some(batch)
    }
}
