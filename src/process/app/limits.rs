//! Where the limits come from: files, or a control plane.

use std::sync::Arc;

use super::StartError;
use crate::live::{Live, files, xds};
use crate::observe::metrics::Metrics;
use crate::process::settings::Settings;

/// Problems that are logged at most when the process starts without limits.
const MAX_LOGGED: usize = 50;

/// Where the limits come from, after the first attempt to load them.
pub(super) enum Source {
    Files(files::Options, files::Watched),
    ControlPlane(Box<xds::Client>),
}

impl Source {
    /// Loads the limits for the first time. Those of a control plane arrive later, unless they were
    /// saved. Problems of files end the start, unless the settings allow a start without limits.
    ///
    /// # Errors
    /// [`StartError::Limits`].
    pub(super) fn load(
        settings: &Settings,
        live: &Arc<Live>,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, StartError> {
        if let Some(options) = &settings.xds {
            let (client, problems) =
                xds::Client::new(Arc::clone(live), options.clone(), Arc::clone(metrics));
            if !problems.is_empty() && !settings.start_without_limits {
                return Err(StartError::Limits(problems));
            }
            for problem in problems.iter().take(MAX_LOGGED) {
                tracing::error!("CONFIG_GRPC_XDS_OVERLAY_FILE is not used: {problem}");
            }
            return Ok(Self::ControlPlane(Box::new(client)));
        }
        let watched = match files::load_once(live, &settings.files) {
            Ok(watched) => watched,
            Err((problems, watched)) if settings.start_without_limits => {
                for problem in problems.iter().take(MAX_LOGGED) {
                    tracing::error!("{problem}");
                }
                tracing::error!(
                    problems = problems.len(),
                    "no limits are loaded: every request is answered with UNAVAILABLE until the \
                     files can be used"
                );
                watched
            }
            Err((problems, _)) => return Err(StartError::Limits(problems)),
        };
        Ok(Self::Files(settings.files.clone(), watched))
    }

    /// Follows changes until the future is dropped.
    pub(super) async fn follow(self, live: Arc<Live>, metrics: Arc<Metrics>) {
        match self {
            Self::Files(options, watched) => files::watch(live, options, watched, metrics).await,
            Self::ControlPlane(client) => client.follow().await,
        }
    }
}
