//! The overlay file: what the messages of a control plane have no field for. It is read at the
//! start and again when it changes.
//!
//! It is all-or-nothing, as the files of limits are: with a mistake in it, the overlay that was in
//! force stays.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::limits::rules::compile::{self, Problem};
use crate::limits::rules::domains::{Overlay, ReadOverlay, XdsOptions};
use crate::live::files::{self, MAX_LOGGED, Read, Watched};

/// The overlay file, if there is one, and the options with what it says.
#[derive(Debug)]
pub(super) struct OverlayFile {
    file: Option<Watched>,
    /// With the overlay of now.
    pub(super) options: XdsOptions,
}

impl OverlayFile {
    /// Reads the file for the first time. Its problems leave the options without an overlay.
    pub(super) fn open(path: Option<PathBuf>, options: XdsOptions) -> (Self, Vec<Problem>) {
        let file = None;
        let mut opened = Self { file, options };
        let Some(path) = path else {
            return (opened, Vec::new());
        };
        let (file, read) = Watched::open(files::Options {
            path,
            ..files::Options::default()
        });
        opened.file = Some(file);
        let problems = read.and_then(|read| opened.take(read)).err();
        (opened, problems.unwrap_or_default())
    }

    /// Polls the file, which is to be read `now` if so. Returns the options if the file was read, and
    /// can be used.
    pub(super) fn poll(&mut self, now: bool) -> Option<&XdsOptions> {
        let read = self.file.as_mut()?.poll(now)?;
        match read.and_then(|read| self.take(read)) {
            Ok(()) => {
                let overlay = self.options.overlay.as_ref();
                let entries = overlay.map(|overlay| overlay.entries());
                tracing::info!(entries, "overlay file loaded");
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

    fn take(&mut self, read: Read) -> Result<(), Vec<Problem>> {
        let path = self.file.as_ref().map_or(Path::new(""), Watched::path);
        let text = read.only(path)?;
        let ReadOverlay { overlay, warnings } = Overlay::read(text, &compile::Options::default())?;
        for warning in warnings.iter().take(MAX_LOGGED) {
            tracing::warn!("{warning}");
        }
        self.options.overlay = Some(Arc::new(overlay));
        Ok(())
    }
}
