//! The exporter of StatsD in the process: from its start to the last flush.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::observe::exporters::statsd::{self, Flavour, Protocol};
use crate::observe::metrics::Metrics;

/// Time for the last flush to a StatsD server that may hang.
const LAST_FLUSH: Duration = Duration::from_secs(3);

/// Starts to send metrics to a StatsD server.
///
/// # Errors
/// The operating system gives no thread.
pub(super) fn start_statsd(
    options: statsd::Options,
    metrics: Arc<Metrics>,
) -> io::Result<statsd::Exporter> {
    let protocol = match (&options.flavour, options.protocol) {
        (Flavour::DogStatsd(_), _) => "DogStatsD by UDP",
        (Flavour::Statsd, Protocol::Udp) => "StatsD by UDP",
        (Flavour::Statsd, Protocol::Tcp) => "StatsD by TCP",
    };
    let interval_secs = options.interval.as_secs_f64();
    tracing::info!(
        host = options.host,
        port = options.port,
        protocol,
        interval_secs,
        "sending metrics to a StatsD server; USE_STATSD=false turns it off"
    );
    statsd::Exporter::start(metrics, options)
}

/// Sends the counts since the last flush, in bounded time.
pub(super) async fn stop_statsd(statsd: Option<statsd::Exporter>) {
    if let Some(statsd) = statsd {
        let _ =
            tokio::time::timeout(LAST_FLUSH, tokio::task::spawn_blocking(|| statsd.stop())).await;
    }
}
