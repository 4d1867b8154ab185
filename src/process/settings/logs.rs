//! The settings of what the log says about refusals and about the values of descriptors.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use clap::{Args, ValueEnum};

use super::setting::{no_effect, written};
use super::{SettingError, parse};
use crate::service::rls::{LoggedValues, MIN_SECRET_BYTES, RefusalLog};

const SUBJECTS_SECRET: &str = "LOG_SUBJECTS_SECRET_FILE";

/// The longest secret that is read; HMAC-SHA256 takes no more than 64 bytes of strength from it.
const MAX_SECRET_BYTES: u64 = 4_096;

/// Logs of refusals, and values in logs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Process")]
pub(super) struct LogFlags {
    /// Log refusals: lines of each limit in a second at most, 0 to 1000; 0 is off
    ///
    /// A line has the descriptor, the limit, its place in the file, and how many refusals of the
    /// limit were left out since its last line.
    #[arg(long, env, default_value_t = 0, value_name = "COUNT")]
    #[arg(value_parser = parse::number(0..=1_000_u32))]
    log_refusals: u32,
    /// What the lines of LOG_REFUSALS and LOG_DECISIONS show of the values of descriptors
    ///
    /// plain: values, escaped and cut. hashed: the first 16 digits of HMAC-SHA256 with a secret.
    /// off: keys only.
    #[arg(long, env, default_value = "plain", value_name = "plain|hashed|off")]
    log_subjects: ValuesFlag,
    /// File with the secret for LOG_SUBJECTS=hashed, 16 bytes or more; line breaks at its end do
    /// not count
    ///
    /// Replicas with the same secret show the same digests, also after a restart. Without it, each
    /// process has a random one.
    #[arg(long, env, value_name = "PATH")]
    log_subjects_secret_file: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ValuesFlag {
    Plain,
    Hashed,
    Off,
}

impl LogFlags {
    /// How logs show values. Adds a warning where the secret has no effect.
    ///
    /// # Errors
    /// The secret cannot be used.
    pub(super) fn values(&self, warnings: &mut Vec<String>) -> Result<LoggedValues, SettingError> {
        let file = written(self.log_subjects_secret_file.as_ref());
        if self.log_subjects != ValuesFlag::Hashed {
            no_effect(
                &[(SUBJECTS_SECRET, &file.is_some())],
                "it needs LOG_SUBJECTS=hashed",
                warnings,
            );
        }
        match (self.log_subjects, file) {
            (ValuesFlag::Plain, _) => Ok(LoggedValues::Plain),
            (ValuesFlag::Off, _) => Ok(LoggedValues::Off),
            (ValuesFlag::Hashed, Some(file)) => {
                secret(Path::new(file)).map(|secret| LoggedValues::hashed_with(&secret))
            }
            (ValuesFlag::Hashed, None) => LoggedValues::hashed().ok_or_else(|| {
                SettingError(format!(
                    "LOG_SUBJECTS=hashed: the operating system gives no random numbers; set \
                     {SUBJECTS_SECRET}"
                ))
            }),
        }
    }

    /// The log of refusals, if it is on.
    pub(super) fn refusals(&self, values: &LoggedValues) -> Option<Arc<RefusalLog>> {
        (self.log_refusals > 0)
            .then(|| Arc::new(RefusalLog::new(self.log_refusals, values.clone())))
    }
}

fn secret(path: &Path) -> Result<Vec<u8>, SettingError> {
    let unusable =
        |reason: String| SettingError(format!("{SUBJECTS_SECRET}: {} {reason}", path.display()));
    let mut secret = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_SECRET_BYTES + 1).read_to_end(&mut secret))
        .map_err(|error| unusable(format!("cannot be read: {error}")))?;
    if secret.len() as u64 > MAX_SECRET_BYTES {
        return Err(unusable(format!("is longer than {MAX_SECRET_BYTES} bytes")));
    }
    while let Some(b'\n' | b'\r') = secret.last() {
        secret.pop();
    }
    if secret.len() < MIN_SECRET_BYTES {
        let remedy = "a short secret can be found by trying; `openssl rand -hex 32` makes one";
        let bytes = secret.len();
        return Err(unusable(format!(
            "has {bytes} bytes, fewer than {MIN_SECRET_BYTES}: {remedy}"
        )));
    }
    Ok(secret)
}
