//! Cost of tracing where nothing is recorded, and loss of spans that the collector does not accept
//! in time.

use std::sync::atomic::AtomicU64;

use allocation_counter::measure;
use opentelemetry_sdk::trace::SpanData;

use super::*;

/// A tracer whose finished spans stay in the queue.
fn tracer(rate: f64) -> (Tracer, otlp::Queued) {
    let (queue, queued) = otlp::queue();
    let ratio = Sampler::TraceIdRatioBased(rate);
    let sampler = Sampler::ParentBased(Box::new(ratio.clone()));
    let provider = SdkTracerProvider::builder()
        .with_sampler(sampler)
        .with_span_processor(queue)
        .build();
    (
        Tracer {
            sdk: provider.tracer("weir"),
            ratio,
            records_none: rate <= 0.0,
        },
        queued,
    )
}

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| {
            (
                http::HeaderName::from_static(name),
                http::HeaderValue::from_static(value),
            )
        })
        .collect()
}

const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

#[test]
fn a_call_that_is_not_recorded_allocates_nothing() {
    let (all, _queued) = tracer(1.0);
    let (none, _also_queued) = tracer(0.0);
    let unsampled = [
        headers(&[("traceparent", UNSAMPLED)]),
        headers(&[("x-b3-sampled", "0")]),
        headers(&[("b3", "0")]),
    ];
    let no_parent = HeaderMap::new();
    let calls = unsampled
        .iter()
        .map(|headers| (&all, headers))
        .chain([(&none, &no_parent)]);
    for (tracer, headers) in calls.collect::<Vec<_>>() {
        let call = || {
            let span = tracer.call("call", headers);
            span.set("key", 1);
            let child = span.child("child", SpanKind::Internal);
            child.fail("error");
            assert!(!span.is_recorded() && !child.is_recorded());
        };
        call();
        assert_eq!(measure(call).count_total, 0, "{headers:?}");
    }
}

#[test]
fn the_rate_decides_on_traces_without_a_decision() {
    let recorded = |rate, headers: &HeaderMap| {
        let (tracer, _queued) = tracer(rate);
        (0..1_000)
            .filter(|_| tracer.call("call", headers).is_recorded())
            .count()
    };
    let [none, ids] = [
        HeaderMap::new(),
        headers(&[("b3", "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331")]),
    ];
    assert_eq!([recorded(0.0, &none), recorded(1.0, &none)], [0, 1_000]);
    assert!((150..350).contains(&recorded(0.25, &none)), "a quarter");
    assert_eq!(
        [recorded(0.0, &ids), recorded(1.0, &ids)],
        [0, 1_000],
        "B3 without a sampling state"
    );
    assert_eq!(recorded(1.0, &headers(&[("traceparent", UNSAMPLED)])), 0);
}

/// The queue takes as many spans as it has room for, and a worker that finds it full does not wait.
#[tokio::test]
async fn spans_beyond_the_queue_are_dropped_and_counted() {
    let (tracer, queued) = tracer(1.0);
    let counts = Arc::clone(&queued.counts);
    for _ in 0..2_048 + 7 {
        drop(tracer.call("call", &HeaderMap::new()));
    }
    assert_eq!(counts.dropped.load(Ordering::Relaxed), 7);

    let (stop, stopped) = oneshot::channel();
    drop(stop);
    let (batches, spans) = (AtomicU64::new(0), AtomicU64::new(0));
    let export = async |batch: Vec<SpanData>| {
        assert!(batch.len() <= otlp::MAX_BATCH);
        spans.fetch_add(batch.len() as u64, Ordering::Relaxed);
        // The first batch is lost, one span of the second is refused.
        match batches.fetch_add(1, Ordering::Relaxed) {
            0 => Err(otlp::ExportError::Status(503)),
            1 => Ok(1),
            _ => Ok(0),
        }
    };
    queued.export(stopped, export).await;
    assert_eq!((batches.into_inner(), spans.into_inner()), (4, 2_048));
    assert_eq!(counts.failed.load(Ordering::Relaxed), 512 + 1);
    assert_eq!(counts.exported.load(Ordering::Relaxed), 3 * 512 - 1);
}
