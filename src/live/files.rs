//! Loads rules from a folder of files, and reloads them when the files change.
//!
//! The folder is polled. A poll costs microseconds, and unlike notifications it works the same for
//! a file that is rewritten, renamed over, or swapped behind two symbolic links, on every file
//! system. A thread of its own polls, reads, compiles and frees, so that neither a slow disk nor a
//! large configuration stalls a request or the control thread.
//!
//! Weir does not start with files that it cannot use, or with a folder without files: a rate
//! limiter without limits looks healthy and limits nothing.

mod debounce;
mod one;
pub(crate) mod scan;

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::Live;
use crate::limits::rules::compile::{self, Problem, SourceText, compile};
use crate::limits::rules::diff::Difference;
use crate::net::background;
use crate::observe::metrics::Metrics;
pub use debounce::Debounce;
pub use one::OneFile;
use scan::{Fingerprint, LimitFile, scan};

/// The most attempts to read files that change while they are read, and the pause between two of
/// them.
const READS: usize = 5;
const BETWEEN_READS: Duration = Duration::from_millis(50);

/// The pause between two polls is at least so many times as long as the last poll took, so that a
/// slow disk is polled less often.
const BUSY_SHARE: u32 = 10;

/// The most problems of one rejected configuration that are logged; `weir check` shows them all.
const MAX_LOGGED: usize = 50;

/// Limits in a line about those that a reload added, removed or changed; `weir check --diff` shows
/// them all.
const MAX_LOGGED_LIMITS: usize = 10;

/// Where the files are, and how they are read.
#[derive(Clone, Debug)]
pub struct Options {
    /// A folder, which is read with all its subfolders, or one file.
    pub path: PathBuf,
    /// Ignore files and folders whose name begins with a dot. Names that begin with two dots are
    /// always ignored.
    pub ignore_dot_files: bool,
    /// The time between two polls. A change is loaded when two polls found the same files: at 250
    /// ms, half a second after the last write.
    pub poll: Duration,
    /// How the files are compiled.
    pub compile: compile::Options,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            path: PathBuf::from("config"),
            ignore_dot_files: false,
            poll: Duration::from_millis(250),
            compile: compile::Options::default(),
        }
    }
}

/// The content of all files at one moment.
#[derive(Debug)]
pub struct Read {
    /// The texts, sorted by file name.
    pub texts: Vec<SourceText>,
    /// The names of files in the folder that were not read, because a README and backup files hold
    /// no limits.
    pub skipped: Vec<String>,
    fingerprint: Fingerprint,
}

/// The files that were loaded or rejected already, for [`watch`].
#[derive(Debug)]
pub struct Watched(Debounce<Fingerprint>);

/// Why files were not read.
struct ReadError {
    problems: Vec<Problem>,
    /// The files that were rejected; `None` if another attempt with the same files may succeed.
    rejected: Option<Fingerprint>,
}

/// Reads all files as they are at one moment: if one changes while they are read, all are read
/// again.
///
/// # Errors
/// A path that does not exist or holds no files; a file that cannot be read, is too large, or keeps
/// changing.
pub fn read(options: &Options) -> Result<Read, Vec<Problem>> {
    try_read(options).map_err(|error| error.problems)
}

#[expect(
    clippy::disallowed_methods,
    reason = "runs on a thread of its own, or before the process serves"
)]
fn try_read(options: &Options) -> Result<Read, ReadError> {
    let poll = || scan(&options.path, options.ignore_dot_files);
    for attempt in 1..=READS {
        let found = poll();
        let fingerprint = found.fingerprint();
        if !found.problems.is_empty() {
            return Err(ReadError {
                problems: found.problems,
                rejected: Some(fingerprint),
            });
        }
        // An empty folder is most often an accident: a wrong path, or a volume that is not mounted.
        if found.files.is_empty() {
            let remedy =
                "add a configuration file; to limit nothing, one with a domain and no descriptors";
            let problems = vec![scan::problem(
                &options.path,
                "there are no files of limits".to_owned(),
                remedy,
            )];
            return Err(ReadError {
                problems,
                rejected: Some(fingerprint),
            });
        }
        let texts = read_all(&found.files);
        if poll().fingerprint() == fingerprint {
            let texts = texts.map_err(|problems| ReadError {
                problems,
                rejected: None,
            })?;
            let skipped = found
                .skipped
                .iter()
                .map(|name| name.to_string_lossy().into_owned())
                .collect();
            return Ok(Read {
                texts,
                skipped,
                fingerprint,
            });
        }
        if attempt < READS {
            std::thread::sleep(BETWEEN_READS);
        }
    }
    let what = "the files keep changing while weir reads them".to_owned();
    Err(ReadError {
        problems: vec![scan::problem(
            &options.path,
            what,
            "wait until they are written, and try again",
        )],
        rejected: None,
    })
}

fn read_all(files: &[LimitFile]) -> Result<Vec<SourceText>, Vec<Problem>> {
    let (mut texts, mut problems) = (Vec::with_capacity(files.len()), Vec::new());
    for file in files {
        match read_one(file) {
            Ok(text) if text.len() as u64 > file.max_bytes() => problems.push(file.too_long()),
            Ok(text) => texts.push(SourceText {
                name: file.name.to_string_lossy().into_owned(),
                text,
            }),
            Err(error) => problems.push(scan::unreadable(&file.name, &error)),
        }
    }
    if problems.is_empty() {
        Ok(texts)
    } else {
        Err(problems)
    }
}

/// Bounded, because the file may have grown since the scan.
fn read_one(file: &LimitFile) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(&file.real)?
        .take(file.max_bytes() + 1)
        .read_to_end(&mut text)?;
    Ok(text)
}

/// Loads the first rules.
///
/// # Errors
/// All problems of all files, which are counted and kept in `live`, but not logged; and what
/// [`watch`] needs to watch the folder all the same.
pub fn load_once(live: &Arc<Live>, options: &Options) -> Result<Watched, (Vec<Problem>, Watched)> {
    let (loaded, tried) = match try_read(options) {
        Ok(read) => (
            put_in_force(live, options, &read.texts, &read.skipped),
            Some(read.fingerprint),
        ),
        Err(error) => (Err(error.problems), error.rejected),
    };
    let watched = Watched(Debounce::new(tried));
    match loaded {
        Ok(()) => Ok(watched),
        Err(problems) => {
            live.reject(problems.clone());
            Err((problems, watched))
        }
    }
}

/// Watches the folder and loads changed files, until the future is dropped. Files with a mistake
/// change nothing: their problems are logged, counted and kept in `live`.
pub async fn watch(live: Arc<Live>, options: Options, watched: Watched, metrics: Arc<Metrics>) {
    // Dropping this future drops `_alive`, which ends the thread.
    let (_alive, ended) = mpsc::sync_channel::<()>(0);
    let run = move || {
        background::lower_priority();
        let mut debounce = watched.0;
        let mut pause = options.poll;
        while ended.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
            let started = Instant::now();
            let poll = AssertUnwindSafe(|| poll(&live, &options, &mut debounce));
            if catch_unwind(poll).is_err() {
                metrics.panicked();
                tracing::error!(
                    "weir panicked while it loaded limits; the limits in force stay; this is a bug \
                     in weir"
                );
                debounce.tried(Some(
                    scan(&options.path, options.ignore_dot_files).fingerprint(),
                ));
            }
            pause = options.poll.max(started.elapsed() * BUSY_SHARE);
        }
    };
    match std::thread::Builder::new()
        .name("weir-files".to_owned())
        .spawn(run)
    {
        Ok(_) => std::future::pending().await,
        Err(error) => {
            tracing::error!(%error, "cannot start the thread that watches the limits; changes need \
                a restart");
        }
    }
}

/// Polls once, and loads the files if it is time to.
fn poll(live: &Live, options: &Options, debounce: &mut Debounce<Fingerprint>) {
    live.free_old();
    if !debounce.observe(scan(&options.path, options.ignore_dot_files).fingerprint()) {
        return;
    }
    let loaded = match try_read(options) {
        Ok(read) => {
            debounce.tried(Some(read.fingerprint));
            put_in_force(live, options, &read.texts, &read.skipped)
        }
        Err(error) => {
            debounce.tried(error.rejected);
            Err(error.problems)
        }
    };
    if let Err(problems) = loaded {
        reject(live, problems);
    }
}

fn put_in_force(
    live: &Live,
    options: &Options,
    texts: &[SourceText],
    skipped: &[String],
) -> Result<(), Vec<Problem>> {
    let compiled = compile(texts, &options.compile)?;
    for warning in &compiled.warnings {
        tracing::warn!("{warning}");
    }
    // The first limits are all new.
    let difference = live
        .load()
        .map(|old| Difference::new(&old.rules, &compiled.rules));
    let snapshot = live.replace(compiled.rules);
    let domains = snapshot.rules.domains().count();
    let (files, limits, generation) = (
        texts.len(),
        snapshot.rules.limit_count(),
        snapshot.generation,
    );
    let count = |of: fn(&Difference) -> usize| difference.as_ref().map(of);
    let (added, removed) = (
        count(|found| found.added.len()),
        count(|found| found.removed.len()),
    );
    let changed = count(|found| found.changed.len());
    tracing::info!(
        files,
        domains,
        limits,
        generation,
        added,
        removed,
        changed,
        "limits loaded"
    );
    if let Some(difference) = &difference {
        log_difference(difference);
    }
    if !skipped.is_empty() {
        tracing::info!(
            "files without limits are skipped (pages, backup files): {}",
            listed(skipped)
        );
    }
    Ok(())
}

/// Logs what a reload did to limits.
pub(super) fn log_difference(
    Difference {
        added,
        removed,
        changed,
        rows,
    }: &Difference,
) {
    log_limits("added", added);
    log_limits("removed", removed);
    log_limits("changed", changed);
    log_limits("with changed tables", rows);
}

/// Logs the first of the limits that a reload added, removed or changed.
fn log_limits(how: &str, limits: &[impl fmt::Display]) {
    if limits.is_empty() {
        return;
    }
    let shown: Vec<_> = limits
        .iter()
        .take(MAX_LOGGED_LIMITS)
        .map(ToString::to_string)
        .collect();
    let more = limits.len().saturating_sub(MAX_LOGGED_LIMITS);
    let more = if more == 0 {
        String::new()
    } else {
        format!("; and {more} more")
    };
    tracing::info!("limits {how}: {}{more}", shown.join("; "));
}

/// The names for one line of the log.
fn listed(names: &[String]) -> String {
    let shown: Vec<_> = names
        .iter()
        .take(MAX_LOGGED)
        .map(|name| name.escape_debug().to_string())
        .collect();
    let more = names.len().saturating_sub(MAX_LOGGED);
    shown.join(", ")
        + &if more == 0 {
            String::new()
        } else {
            format!(" and {more} more")
        }
}

fn reject(live: &Live, problems: Vec<Problem>) {
    if !live.reject(problems) {
        return;
    }
    let Some(rejected) = live.rejected() else {
        return;
    };
    let stays = if live.load().is_some() {
        "the limits in force stay"
    } else {
        "there are no limits yet"
    };
    tracing::error!(
        problems = rejected.problems.len(),
        "limits rejected; {stays}"
    );
    for problem in rejected.problems.iter().take(MAX_LOGGED) {
        tracing::error!("{problem}");
    }
    if let Some(more @ 1..) = rejected.problems.len().checked_sub(MAX_LOGGED) {
        tracing::error!("and {more} more; `weir check` shows them all");
    }
}

#[cfg(test)]
mod tests;
