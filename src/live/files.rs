//! Loads rules from a folder of files, and reloads them when the files change.
//!
//! The folder is polled. A poll costs microseconds, and unlike notifications it works the same for
//! a file that is rewritten, renamed over, or swapped under two symbolic links, on every file
//! system. A thread of its own polls, reads, compiles and frees: neither a slow disk nor a large
//! configuration stalls a request or the control thread.
//!
//! Weir does not start with files that it cannot use, or with a folder without files: a rate
//! limiter without limits looks healthy and limits nothing.

mod debounce;
pub(crate) mod scan;

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Live;
use crate::limits::rules::Rules;
use crate::limits::rules::compile::{self, Problem, SourceText, compile};
use crate::limits::rules::diff::Difference;
use crate::net::throttle::Throttle;
use crate::net::{background, bounded};
use crate::observe::metrics::Metrics;
pub use debounce::Debounce;
use scan::{Fingerprint, LimitFile, Scan, scan};

/// The most attempts to read files that change while they are read, and the pause between two of
/// them.
const READS: usize = 5;
const BETWEEN_READS: Duration = Duration::from_millis(50);

/// Number of polls that have to find the same change again before it is loaded. `POLLS_IN_PLACE` is
/// for a file that a program may still be writing: it has not changed for a second.
const POLLS: u32 = 1;
const POLLS_IN_PLACE: u32 = 4;

/// Minimum pause between two polls, as a multiple of the time of the last poll: a slow disk is
/// polled less often.
const BUSY_SHARE: u32 = 10;

/// The most problems of one rejected configuration that are logged.
pub(crate) const MAX_LOGGED: usize = 50;

/// Maximum number of limits in a log line about the limits that a reload added, removed or changed;
/// `weir check --diff` shows them all.
const MAX_LOGGED_LIMITS: usize = 10;

/// The path of the files, and how they are read.
#[derive(Clone, Debug)]
pub struct Options {
    /// A folder, which is read with all its subfolders, or one file.
    pub path: PathBuf,
    /// Also read files and folders next to the folder whose names begin with the folder's name and
    /// a dot: `config.yaml` next to `config`. Names of files then include the folder.
    pub beside: bool,
    /// Ignore files and folders whose name begins with a dot. Names that begin with two dots are
    /// always ignored.
    pub ignore_dot_files: bool,
    /// The time between two polls. A change is loaded when two polls found the same files; a change
    /// of a file in place, when five did. At 250 ms this is within 0.5 s and 1.25 s.
    pub poll: Duration,
    /// How the files are compiled.
    pub compile: compile::Options,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            path: PathBuf::from("config"),
            beside: false,
            ignore_dot_files: false,
            poll: Duration::from_millis(250),
            compile: compile::Options::default(),
        }
    }
}

impl Options {
    fn scan(&self) -> Scan {
        scan(&self.path, self.beside, self.ignore_dot_files)
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
}

impl Read {
    /// The text of the only file at `path`.
    pub(super) fn only(mut self, path: &Path) -> Result<SourceText, Vec<Problem>> {
        let only = self.texts.pop().filter(|_| self.texts.is_empty());
        let what = "it is a folder with several files";
        let remedy = "write the path of one file";
        only.ok_or_else(|| vec![scan::problem(path, what.to_owned(), remedy)])
    }
}

/// Files that are watched: limit files, or one that belongs to another source of limits.
#[derive(Debug)]
pub struct WatchedFolder {
    options: Options,
    debounce: Debounce<Fingerprint>,
    /// Throttles log lines about files that cannot be opened because no descriptor is free.
    shortage: Throttle,
}

impl WatchedFolder {
    /// Reads the files for the first time. Files that cannot be read are watched all the same.
    pub(super) fn open(options: Options) -> (Self, Result<Read, Vec<Problem>>) {
        let (read, tried) = try_read(&options, &mut false);
        let watched = Self {
            options,
            debounce: Debounce::new(tried),
            shortage: Throttle::default(),
        };
        (watched, read)
    }

    /// The path of the files.
    pub(super) fn path(&self) -> &Path {
        &self.options.path
    }

    /// Polls the files, and reads them if they have changed, or if they are to be read `now`. If
    /// there is no file descriptor for them, they count as unchanged.
    pub(super) fn poll(&mut self, now: bool) -> Option<Result<Read, Vec<Problem>>> {
        let scan = self.options.scan();
        if scan.is_short {
            return self.postpone();
        }
        let last = self.debounce.last();
        let is_in_place = last.is_none_or(|last| scan.found.may_be_unfinished(last));
        let polls = if is_in_place { POLLS_IN_PLACE } else { POLLS };
        if !self.debounce.observe(scan.found, polls) && !now {
            return None;
        }
        let mut is_short = false;
        let (read, tried) = try_read(&self.options, &mut is_short);
        if is_short {
            return self.postpone();
        }
        self.debounce.tried(tried);
        Some(read)
    }

    /// Leaves everything to the next poll.
    fn postpone<T>(&mut self) -> Option<T> {
        if self.shortage.admit(Instant::now()).is_some() {
            tracing::warn!(
                "cannot watch {}: no file descriptor left; Weir tries again; raise the limit \
                 (ulimit -n, LimitNOFILE)",
                self.options.path.display()
            );
        }
        None
    }
}

/// Reads all files as they are at one moment: if one changes while they are read, all are read
/// again.
///
/// # Errors
/// A path that does not exist or holds no files; a file that cannot be read, is too large, or keeps
/// changing.
pub fn read(options: &Options) -> Result<Read, Vec<Problem>> {
    try_read(options, &mut false).0
}

/// As [`read`], with the files that were read or rejected; `None` if another attempt with the same
/// files may succeed. If `is_short` is set, file descriptors were missing, and the result is no
/// evidence about the files.
#[expect(
    clippy::disallowed_methods,
    reason = "runs on a thread of its own, or before the process serves"
)]
fn try_read(
    options: &Options,
    is_short: &mut bool,
) -> (Result<Read, Vec<Problem>>, Option<Fingerprint>) {
    let whole = |what: &str, remedy| vec![scan::problem(&options.path, what.to_owned(), remedy)];
    for attempt in 1..=READS {
        let scan = options.scan();
        let found = scan.found;
        *is_short |= scan.is_short;
        if !found.problems.is_empty() {
            return (Err(found.problems.clone()), Some(found));
        }
        // An empty folder is most often an accident: a wrong path, or a volume that is not mounted.
        if found.files.is_empty() {
            let remedy =
                "add a configuration file; to limit nothing, one with a domain and no descriptors";
            let problems = whole("there are no files of limits", remedy);
            return (Err(problems), Some(found));
        }
        let texts = read_all(&found.files, is_short);
        let again = options.scan();
        *is_short |= again.is_short;
        if *is_short || again.found == found {
            let skipped = scan.skipped.iter().map(|name| name.to_string_lossy());
            let skipped = skipped.map(Cow::into_owned).collect();
            return match texts {
                Ok(texts) => (Ok(Read { texts, skipped }), Some(found)),
                Err(problems) => (Err(problems), None),
            };
        }
        if attempt < READS {
            std::thread::sleep(BETWEEN_READS);
        }
    }
    let what = "the files keep changing while weir reads them";
    let problems = whole(what, "wait until they are written, and try again");
    (Err(problems), None)
}

fn read_all(files: &[LimitFile], is_short: &mut bool) -> Result<Vec<SourceText>, Vec<Problem>> {
    let (mut texts, mut problems) = (Vec::with_capacity(files.len()), Vec::new());
    for file in files {
        // The file may have grown since the scan.
        match bounded::read(&file.real, file.max_bytes()) {
            Ok(None) => problems.push(file.too_long()),
            Ok(Some(text)) => texts.push(SourceText {
                name: file.name.to_string_lossy().into_owned(),
                text,
            }),
            Err(error) => {
                *is_short |= scan::is_shortage(&error);
                problems.push(scan::unreadable(&file.name, &error));
            }
        }
    }
    if problems.is_empty() {
        Ok(texts)
    } else {
        Err(problems)
    }
}

/// Loads the first rules. Returns the argument of [`watch`], also for files that cannot be used.
///
/// # Errors
/// All problems of all files, which are counted and kept in `live`, but not logged.
pub fn load_once(live: &Live, options: &Options) -> (WatchedFolder, Result<(), Vec<Problem>>) {
    let (watched, read) = WatchedFolder::open(options.clone());
    let loaded = read.and_then(|read| put_in_force(live, options, &read));
    if let Err(problems) = &loaded {
        live.reject(problems.clone());
    }
    (watched, loaded)
}

/// Watches the folder and loads changed files, until the future is dropped. Files with a mistake
/// change nothing: their problems are logged, counted and kept in `live`.
pub async fn watch(live: Arc<Live>, mut watched: WatchedFolder, metrics: Arc<Metrics>) {
    let pause = watched.options.poll;
    let step = move || {
        let started = Instant::now();
        if catch_unwind(AssertUnwindSafe(|| poll(&live, &mut watched))).is_err() {
            metrics.panicked();
            tracing::error!(
                "panic while loading limits; the limits in force stay; this is a bug in Weir"
            );
            let tried = watched.options.scan().found;
            watched.debounce.tried(Some(tried));
        }
        pause.max(started.elapsed() * BUSY_SHARE)
    };
    let error = background::repeat("weir-files", pause, step).await;
    tracing::error!(%error, "cannot start the thread that watches limits; changes need a restart");
}

/// Polls once, and loads the files if it is time to.
fn poll(live: &Live, watched: &mut WatchedFolder) {
    live.free_old();
    let asked = live.take_reload();
    let Some(read) = watched.poll(asked) else {
        return;
    };
    if let Err(problems) = read.and_then(|read| put_in_force(live, &watched.options, &read)) {
        reject(live, &problems, asked);
    }
}

fn put_in_force(live: &Live, options: &Options, read: &Read) -> Result<(), Vec<Problem>> {
    let compiled = compile(&read.texts, &options.compile)?;
    for warning in &compiled.warnings {
        tracing::warn!("{warning}");
    }
    // There is no difference for the first limits, which are all new.
    let difference = live
        .load()
        .map(|old| Difference::new(&old.rules, &compiled.rules));
    let snapshot = live.replace(compiled.rules);
    let (rules, generation, files) = (&snapshot.rules, snapshot.generation, read.texts.len());
    log_loaded(
        rules,
        generation,
        difference.as_ref(),
        Some(files),
        None,
        None,
    );
    if !read.skipped.is_empty() {
        let shown = first(&read.skipped, MAX_LOGGED, |name| {
            name.escape_debug().to_string()
        });
        tracing::info!("skipping files without limits (pages, backup files): {shown}");
    }
    Ok(())
}

/// Logs that limits are in force, and their differences from the previous ones. `files` is the
/// number of files, or `version` is the version of the control plane. `loads` is the number of
/// loads if the line is about several.
pub(super) fn log_loaded(
    rules: &Rules,
    generation: u64,
    difference: Option<&Difference>,
    files: Option<usize>,
    version: Option<&str>,
    loads: Option<u32>,
) {
    let count = |of: fn(&Difference) -> usize| difference.map(of);
    tracing::info!(
        version,
        loads,
        files,
        domains = rules.domains().count(),
        limits = rules.limit_count(),
        generation,
        added = count(|found| found.added.len()),
        removed = count(|found| found.removed.len()),
        changed = count(|found| found.changed.len()),
        "limits loaded{}",
        version.map_or("", |_| " from the control plane")
    );
    if let Some(difference) = difference {
        log_limits("added", &difference.added);
        log_limits("removed", &difference.removed);
        log_limits("changed", &difference.changed);
        log_limits("with changed tables", &difference.rows);
    }
}

/// Logs the first of the limits that a reload added, removed or changed.
fn log_limits<T: ToString>(how: &str, limits: &[T]) {
    if !limits.is_empty() {
        let shown = first(limits, MAX_LOGGED_LIMITS, T::to_string);
        tracing::info!("limits {how}: {shown}");
    }
}

/// The first `count` of `all`, and how many more there are, for one line of the log.
fn first<T>(all: &[T], count: usize, show: impl Fn(&T) -> String) -> String {
    let mut shown: Vec<_> = all.iter().take(count).map(show).collect();
    if let Some(more @ 1..) = all.len().checked_sub(count) {
        shown.push(format!("and {more} more"));
    }
    shown.join("; ")
}

/// Logs problems that are new, or for which an operator `asked`.
fn reject(live: &Live, problems: &[Problem], asked: bool) {
    if !live.reject(problems.to_vec()) && !asked {
        return;
    }
    let stays = if live.load().is_some() {
        "the limits in force stay"
    } else {
        "there are no limits yet"
    };
    tracing::error!(problems = problems.len(), "limits rejected; {stays}");
    log_problems(problems, "; `weir check` shows them all");
}

/// Logs the first problems of a configuration; `remedy` follows the number of the others.
pub(crate) fn log_problems(problems: &[Problem], remedy: &str) {
    for problem in problems.iter().take(MAX_LOGGED) {
        tracing::error!("{problem}");
    }
    if let Some(more @ 1..) = problems.len().checked_sub(MAX_LOGGED) {
        tracing::error!("and {more} more{remedy}");
    }
}

#[cfg(test)]
mod tests;
