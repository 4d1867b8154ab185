//! The source of the limits: files, or a control plane.

use std::pin::Pin;
use std::sync::Arc;

use super::StartError;
use crate::live::files::{self, log_problems};
use crate::live::{Live, xds};
use crate::observe::metrics::Metrics;
use crate::process::settings::Settings;

/// Loads the limits for the first time, and returns a future that follows their changes until it is
/// dropped. Limits of a control plane arrive later, unless they were saved. Problems of files end
/// the start, unless the settings allow a start without limits.
///
/// # Errors
/// [`StartError::Limits`].
pub(super) fn load(
    settings: &Settings,
    live: &Arc<Live>,
    metrics: &Arc<Metrics>,
) -> Result<Pin<Box<dyn Future<Output = ()> + Send>>, StartError> {
    let (live, metrics) = (Arc::clone(live), Arc::clone(metrics));
    if let Some(options) = &settings.xds {
        let (client, problems) = xds::Client::new(live, options.clone(), metrics);
        if !problems.is_empty() && !settings.start_without_limits {
            return Err(StartError::Limits(problems));
        }
        if !problems.is_empty() {
            tracing::error!("ignoring CONFIG_GRPC_XDS_OVERLAY_FILE");
            log_problems(&problems, "");
        }
        return Ok(Box::pin(client.follow()));
    }
    let (watched, loaded) = files::load_once(&live, &settings.files);
    if let Err(problems) = loaded {
        if !settings.start_without_limits {
            return Err(StartError::Limits(problems));
        }
        log_problems(&problems, "");
        tracing::error!(
            problems = problems.len(),
            "no limits loaded: answering every request with UNAVAILABLE until the files can be used"
        );
    }
    Ok(Box::pin(files::watch(live, watched, metrics)))
}
