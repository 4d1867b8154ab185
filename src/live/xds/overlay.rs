//! The overlay file: what the messages of a control plane have no field for. It is read at the
//! start and again when it changes.
//!
//! It is all-or-nothing, as the files of limits are: with a mistake in it, the overlay that was in
//! force stays.

use std::sync::Arc;

use crate::limits::rules::compile::{self, Problem, SourceText};
use crate::limits::rules::domains::{Overlay, ReadOverlay, XdsOptions};
use crate::live::files::OneFile;

/// Problems of the file that are logged.
const MAX_LOGGED: usize = 50;

/// The overlay file, if there is one, and the options with what it says.
#[derive(Debug)]
pub(super) struct OverlayFile {
    file: Option<OneFile>,
    options: XdsOptions,
}

impl OverlayFile {
    /// Reads the file for the first time. Its problems leave the options without an overlay.
    pub(super) fn open(
        path: Option<std::path::PathBuf>,
        options: XdsOptions,
    ) -> (Self, Vec<Problem>) {
        let Some(path) = path else {
            return (
                Self {
                    file: None,
                    options,
                },
                Vec::new(),
            );
        };
        let (file, text) = OneFile::open(path);
        let mut opened = Self {
            file: Some(file),
            options,
        };
        let problems = text
            .and_then(|text| opened.take(text))
            .err()
            .unwrap_or_default();
        (opened, problems)
    }

    /// The options with the overlay of now.
    pub(super) fn options(&self) -> &XdsOptions {
        &self.options
    }

    /// Polls the file. Returns the options if the file has changed, and can be used.
    pub(super) fn poll(&mut self) -> Option<&XdsOptions> {
        let text = self.file.as_mut()?.poll()?;
        match text.and_then(|text| self.take(text)) {
            Ok(()) => {
                tracing::info!(
                    entries = self
                        .options
                        .overlay
                        .as_ref()
                        .map(|overlay| overlay.entries()),
                    "overlay file loaded"
                );
                Some(&self.options)
            }
            Err(problems) => {
                tracing::error!(
                    problems = problems.len(),
                    "overlay file rejected; what it said before stays in force"
                );
                for problem in problems.iter().take(MAX_LOGGED) {
                    tracing::error!("{problem}");
                }
                None
            }
        }
    }

    fn take(&mut self, text: SourceText) -> Result<(), Vec<Problem>> {
        let ReadOverlay { overlay, warnings } = Overlay::read(text, &compile::Options::default())?;
        for warning in warnings.iter().take(MAX_LOGGED) {
            tracing::warn!("{warning}");
        }
        self.options.overlay = Some(Arc::new(overlay));
        Ok(())
    }
}
