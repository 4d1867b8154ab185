//! Where the limits come from: files, or a control plane.

use std::sync::Arc;

use super::StartError;
use crate::live::files::{self, MAX_LOGGED};
use crate::live::{Live, xds};
use crate::observe::metrics::Metrics;
use crate::process::settings::Settings;

/// Where the limits come from, after the first attempt to load them.
pub(super) enum Source {
    Files(Box<files::Watched>),
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
        let (watched, loaded) = files::load_once(live, &settings.files);
        if let Err(problems) = loaded {
            if !settings.start_without_limits {
                return Err(StartError::Limits(problems));
            }
            for problem in problems.iter().take(MAX_LOGGED) {
                tracing::error!("{problem}");
            }
            tracing::error!(
                problems = problems.len(),
                "no limits are loaded: every request is answered with UNAVAILABLE until the files \
                 can be used"
            );
        }
        Ok(Self::Files(Box::new(watched)))
    }

    /// Follows changes until the future is dropped.
    pub(super) async fn follow(self, live: Arc<Live>, metrics: Arc<Metrics>) {
        match self {
            Self::Files(watched) => files::watch(live, *watched, metrics).await,
            Self::ControlPlane(client) => client.follow().await,
        }
    }
}
