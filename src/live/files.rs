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

use std::collections::{BTreeMap, HashSet};
use std::os::unix::fs::FileTypeExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Live;
use crate::limits::rules::Rules;
use crate::limits::rules::compile::{self, Problem, SourceText, compile, too_much_memory};
use crate::limits::rules::diff::Difference;
use crate::limits::rules::messages;
use crate::net::throttle::Throttle;
use crate::net::{background, bounded};
use crate::observe::metrics::Metrics;
pub use debounce::Debounce;
use scan::{Fingerprint, LimitFile, Scan, scan};

/// The most attempts to read files that change while they are read, and the pause between two of
/// them.
const READS: usize = 5;
const BETWEEN_READS: Duration = Duration::from_millis(50);

/// Polls without a change after which a file that is written in place is loaded: a program may still
/// write it.
const POLLS_AT_REST: u32 = 3;
/// Polls after which it is loaded although it still changes.
const MAX_POLLS: u32 = 20;

/// Minimum pause between two polls, as a multiple of the time of the last poll: a slow disk is
/// polled less often. At most [`MAX_PAUSE`], because a load takes long on a busy machine.
const PAUSE_FACTOR: u32 = 10;
const MAX_PAUSE: Duration = Duration::from_secs(2);

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
    /// The time between two polls. At 250 ms a change is loaded within 0.5 s; a change of a file in
    /// place within 1.25 s, or 5.25 s if it never rests.
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
#[derive(Debug, Default)]
pub struct Read {
    /// The texts, sorted by file name.
    pub texts: Vec<SourceText>,
    /// The names of files in the folder that were not read, because a README and backup files hold
    /// no limits.
    pub skipped: Vec<String>,
}

impl Read {
    fn new(texts: Vec<SourceText>, skipped: &[PathBuf]) -> Self {
        let name = |name: &PathBuf| name.to_string_lossy().into_owned();
        let skipped = skipped.iter().map(name).collect();
        Self { texts, skipped }
    }

    /// The text of the only file at `path`.
    pub(super) fn only(&self, path: &Path) -> Result<SourceText, Vec<Problem>> {
        match &*self.texts {
            [only] => Ok(only.clone()),
            _ => Err(vec![scan::problem(path, messages::several_files())]),
        }
    }
}

/// Files that are watched: limit files, or one that belongs to another source of limits.
///
/// A file that is still written in place is loaded with its previous content, and all others as
/// they are: no file keeps others out, and no file is loaded by half. It is loaded when it rests,
/// or after [`MAX_POLLS`] as it is, if it has no mistake then.
#[derive(Debug)]
pub struct WatchedFolder {
    options: Options,
    /// The versions that are loaded together.
    debounce: Debounce<Fingerprint>,
    /// The contents that were loaded or rejected last.
    texts: Vec<SourceText>,
    /// The result of the last scan.
    found: Fingerprint,
    /// Files that may be half-written.
    unfinished: BTreeMap<PathBuf, ChangeTimes>,
    /// Throttles log lines about files that cannot be opened because no descriptor is free.
    no_descriptor: Throttle,
    /// Throttles log lines about files that change all the time, without and with a mistake.
    restless: [Throttle; 2],
}

/// The times of a file whose changes are not in force.
#[derive(Debug)]
struct ChangeTimes {
    first_change: Instant,
    last_change: Instant,
    last_attempt: Instant,
}

impl WatchedFolder {
    /// Reads the files for the first time, and calls `load` with them. Files that cannot be read
    /// are watched all the same.
    pub(super) fn open<T>(
        options: Options,
        load: impl FnOnce(&Read) -> Result<T, Vec<Problem>>,
    ) -> (Self, Result<T, Vec<Problem>>) {
        let mut watched = Self {
            options,
            debounce: Debounce::default(),
            texts: Vec::new(),
            found: Fingerprint::default(),
            unfinished: BTreeMap::new(),
            no_descriptor: Throttle::default(),
            restless: <[Throttle; 2]>::default(),
        };
        let loaded = watched.load_all(load, &mut false);
        (watched, loaded)
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// The time of the oldest change that was neither loaded nor rejected, or now.
    pub(super) fn oldest(&self) -> Instant {
        let unfinished = self.unfinished.values().map(|times| times.first_change);
        let oldest = unfinished.chain(self.debounce.since()).min();
        oldest.unwrap_or_else(Instant::now)
    }

    /// Gives up the versions that were seen last, because loading them made the process panic.
    pub(super) fn skip_seen(&mut self) {
        let seen = self.debounce.seen().clone();
        self.debounce.tried(seen);
    }

    /// Polls the files, and calls `load` with them if they have changed; or with all of them as
    /// they are, if they are to be read `now`. If there is no file descriptor for them, they count
    /// as unchanged.
    ///
    /// A mistake may be the work of a file that is still written: while there is one, the others
    /// are tried again, before they are rejected.
    pub(super) fn poll<T>(
        &mut self,
        now: bool,
        load: impl FnOnce(&Read) -> Result<T, Vec<Problem>>,
    ) -> Option<Result<T, Vec<Problem>>> {
        let mut is_short = false;
        if now {
            let loaded = Some(self.load_all(load, &mut is_short));
            return loaded.filter(|_| !self.has_no_descriptor(is_short));
        }
        let (scan, at, poll) = (self.options.scan(), Instant::now(), self.options.poll);
        if self.has_no_descriptor(scan.is_short) {
            return None;
        }
        let is_forced = self.observe(scan.found, at);
        let is_old = |since| at - since >= poll * MAX_POLLS;
        let is_late = self.debounce.since().is_some_and(is_old);
        // Without previous contents, a half-written file has to rest first.
        let is_first = self.texts.is_empty();
        let must_rest = is_first && !self.unfinished.is_empty() && !is_late;
        let is_due = self.debounce.is_due(at, Duration::MAX, poll) && !must_rest;
        if !is_forced && !is_due {
            self.warn_unfinished(at, None);
            return None;
        }
        let selected = self.debounce.seen().clone();
        let previous = |file: &LimitFile| {
            if self.found.get(&file.name) == Some(file) {
                return None;
            }
            let is_it = |text: &&SourceText| *text.name == *file.name.to_string_lossy();
            self.texts.iter().find(is_it).map(|text| text.text.clone())
        };
        let texts = read_all(&self.options, &selected, previous, &mut is_short);
        let again = self.options.scan();
        if self.has_no_descriptor(is_short || again.is_short) {
            return None;
        }
        let is_half_read = |file: &LimitFile| {
            let before = selected.get(&file.name).filter(|before| *before != file);
            let is_known = self.unfinished.contains_key(&file.name);
            before.is_some() && !is_known && file.may_be_unfinished(before, &[])
        };
        let half_read = again.found.files.iter().filter(|file| is_half_read(file));
        let half_read: HashSet<_> = half_read.map(|file| file.name.to_string_lossy()).collect();
        let is_gone = texts.is_err() && again.found != self.found;
        if is_gone || is_first && !half_read.is_empty() {
            return None;
        }
        // Their previous content is loaded, or none of a new one. They differ in the next poll.
        let whole = |text: SourceText| match half_read.contains(&*text.name) {
            false => Some(text),
            true => self.texts.iter().find(|old| old.name == text.name).cloned(),
        };
        let texts = texts.map(|texts| texts.into_iter().filter_map(whole).collect::<Vec<_>>());
        let read = texts.map(|texts| Read::new(texts, &scan.skipped));
        let loaded = read.as_ref().map_err(Clone::clone).and_then(load);
        if let Err(problems) = &loaded
            && (is_forced || !(self.unfinished.is_empty() || is_late))
        {
            self.warn_unfinished(at, problems.first());
            return None;
        }
        if read.is_err() && selected.is_usable() {
            self.debounce.restart(at);
        } else {
            self.tried(selected, read);
            let all = self.unfinished.values_mut();
            let loaded = all.filter(|times| times.last_attempt == at);
            loaded.for_each(|times| times.first_change = at);
        }
        Some(loaded)
    }

    /// These versions were loaded or rejected.
    fn tried(&mut self, versions: Fingerprint, read: Result<Read, Vec<Problem>>) {
        self.debounce.tried(versions);
        self.texts = read.map_or_else(|_| Vec::new(), |read| read.texts);
    }

    /// Reads all files as they are, and calls `load` with them.
    fn load_all<T>(
        &mut self,
        load: impl FnOnce(&Read) -> Result<T, Vec<Problem>>,
        is_short: &mut bool,
    ) -> Result<T, Vec<Problem>> {
        let (read, tried) = try_read(&self.options, is_short);
        let loaded = read.as_ref().map_err(Clone::clone).and_then(load);
        if let Some(tried) = tried.filter(|_| !*is_short) {
            self.unfinished.clear();
            self.found = tried.clone();
            self.tried(tried, read);
        }
        loaded
    }

    /// A scan found these files. Selects the versions to load: of a file that is still written, the
    /// previous one. Returns whether a file is selected although it is still written.
    fn observe(&mut self, found: Fingerprint, now: Instant) -> bool {
        let before = |file: &LimitFile| self.found.get(&file.name);
        let is_changed = |file: &&LimitFile| before(file) != Some(file);
        let changed: Vec<_> = found.files.iter().filter(is_changed).collect();
        let is_swapped = |file: &&&LimitFile| before(file).is_some_and(|old| old.real != file.real);
        let swapped = changed.iter().filter(is_swapped);
        let mut swapped: Vec<_> = swapped.filter_map(|file| file.real.parent()).collect();
        swapped.dedup();
        for file in changed {
            if file.may_be_unfinished(before(file), &swapped) {
                let times = ChangeTimes {
                    first_change: now,
                    last_change: now,
                    last_attempt: now,
                };
                let times = self.unfinished.entry(file.name.clone()).or_insert(times);
                times.last_change = now;
            } else {
                self.unfinished.remove(&file.name);
            }
        }
        let (poll, mut forced) = (self.options.poll, Vec::new());
        self.unfinished.retain(|name, times| {
            if now - times.last_attempt >= poll * MAX_POLLS {
                times.last_attempt = now;
                forced.push(name.clone());
            }
            now - times.last_change < poll * POLLS_AT_REST && found.get(name).is_some()
        });
        let select = |file: &LimitFile| match self.unfinished.contains_key(&file.name)
            && !forced.contains(&file.name)
        {
            true => self.debounce.last().get(&file.name).cloned(),
            false => Some(file.clone()),
        };
        let selected = Fingerprint {
            files: found.files.iter().filter_map(select).collect(),
            problems: found.problems.clone(),
        };
        self.debounce.observe(selected, now);
        self.found = found;
        !forced.is_empty()
    }

    /// Names the files that change all the time, and a `problem` that there is with them as they are
    /// now.
    fn warn_unfinished(&mut self, now: Instant, problem: Option<&Problem>) {
        let usual = self.options.poll * (POLLS_AT_REST + 2);
        let unfinished = self.unfinished.iter();
        let restless = unfinished.filter(|(_, times)| now - times.first_change > usual);
        let restless: Vec<_> = restless.map(|(name, _)| name).collect();
        let throttle = &mut self.restless[usize::from(problem.is_some())];
        if !restless.is_empty() && throttle.admit(now).is_some() {
            let show = |name: &&PathBuf| name.to_string_lossy().escape_debug().to_string();
            let names = first(&restless, MAX_LOGGED_LIMITS, show);
            let mistake = problem.map_or_else(String::new, |problem| {
                format!("; as it is now it has a mistake: {problem}")
            });
            tracing::warn!(
                "a change is not in force yet: {names} is still being written{mistake}; Weir loads \
                 a file that has not changed for a second, or after 5 s as it is; write another \
                 file, then rename it"
            );
        }
    }

    /// Logs that no descriptor was free, if one `is_short`. Returns whether it is.
    fn has_no_descriptor(&mut self, is_short: bool) -> bool {
        if is_short && self.no_descriptor.admit(Instant::now()).is_some() {
            tracing::warn!(
                "cannot watch {}: no file descriptor left; Weir tries again; raise the limit \
                 (ulimit -n, LimitNOFILE)",
                self.options.path.display()
            );
        }
        is_short
    }
}

/// Reads all files as they are at one moment: if one changes while they are read, all are read
/// again. For commands, whose path may be a pipe too, such as `<(...)` of a shell.
///
/// # Errors
/// A path that does not exist or holds no files; a file that cannot be read, is too large, or keeps
/// changing.
pub fn read(options: &Options) -> Result<Read, Vec<Problem>> {
    let path = &*options.path;
    if !path.metadata().is_ok_and(|it| it.file_type().is_fifo()) {
        return try_read(options, &mut false).0;
    }
    let text = bounded::read_input(path, scan::MAX_FILE_BYTES)
        .map_err(|error| vec![scan::unreadable(path, &error)])?
        .ok_or_else(|| vec![scan::problem(path, messages::pipe_too_large())])?;
    let name = path.to_string_lossy().into_owned();
    Ok(Read::new(vec![SourceText { name, text }], &[]))
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
    for attempt in 1..=READS {
        let (scan, no_previous) = (options.scan(), |_: &LimitFile| None);
        *is_short |= scan.is_short;
        let texts = read_all(options, &scan.found, no_previous, is_short);
        let again = options.scan();
        *is_short |= again.is_short;
        if *is_short || again.found == scan.found {
            let is_tried = texts.is_ok() || !scan.found.is_usable();
            let read = texts.map(|texts| Read::new(texts, &scan.skipped));
            return (read, is_tried.then_some(scan.found));
        }
        if attempt < READS {
            std::thread::sleep(BETWEEN_READS);
        }
    }
    let problem = scan::problem(&options.path, messages::changing_files());
    (Err(vec![problem]), None)
}

/// Reads these files; those that have a `previous` content are loaded with it.
fn read_all(
    options: &Options,
    found: &Fingerprint,
    previous: impl Fn(&LimitFile) -> Option<Vec<u8>>,
    is_short: &mut bool,
) -> Result<Vec<SourceText>, Vec<Problem>> {
    let mut problems = found.problems.clone();
    // An empty folder is most often an accident: a wrong path, or a volume that is not mounted.
    if !found.is_usable() && problems.is_empty() {
        problems.push(scan::problem(&options.path, messages::no_files()));
    }
    let mut texts = Vec::with_capacity(found.files.len());
    let most = options.compile.max_memory.unwrap_or(u64::MAX);
    let mut left = most;
    for file in found.files.iter().filter(|_| found.is_usable()) {
        // The file may have grown since the scan.
        let read = || bounded::read(&file.real, file.max_bytes().min(left));
        match previous(file).map_or_else(read, |text| Ok(Some(text))) {
            Ok(None) if left < file.max_bytes() => {
                problems.push(scan::problem(&file.name, too_much_memory(most)));
                break;
            }
            Ok(None) => problems.push(file.too_long()),
            Ok(Some(text)) => {
                left = left.saturating_sub(text.len() as u64);
                let name = file.name.to_string_lossy().into_owned();
                texts.push(SourceText { name, text });
            }
            Err(error) => {
                *is_short |= scan::is_shortage(&error);
                problems.push(scan::unreadable(&file.name, &error));
            }
        }
    }
    match problems.is_empty() {
        true => Ok(texts),
        false => Err(problems),
    }
}

/// The rules of these files as they are, for a service with one worker and the default
/// `NEAR_LIMIT_RATIO`.
///
/// # Errors
/// All problems of all files.
pub fn load(options: &Options) -> Result<Arc<Live>, Vec<Problem>> {
    let live = Arc::new(Live::new(Metrics::new(1, 0.8)));
    load_once(&live, options).1.map(|()| live)
}

/// Loads the first rules. Returns the argument of [`watch`], also for files that cannot be used.
///
/// # Errors
/// All problems of all files, which are counted and kept in `live`, but not logged.
pub fn load_once(live: &Live, options: &Options) -> (WatchedFolder, Result<(), Vec<Problem>>) {
    let load = |read: &Read| put_in_force(live, options, read);
    let (watched, loaded) = WatchedFolder::open(options.clone(), load);
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
        if guarded(&metrics, || poll(&live, &mut watched)).is_none() {
            watched.skip_seen();
        }
        pause.max((started.elapsed() * PAUSE_FACTOR).min(MAX_PAUSE))
    };
    let error = background::repeat("weir-files", false, pause, step).await;
    tracing::error!(%error, "cannot start the thread that watches limits; changes need a restart");
}

/// Loads limits. A panic, of which there should be none, costs only what was to be loaded.
pub(super) fn guarded<T>(metrics: &Metrics, work: impl FnOnce() -> T) -> Option<T> {
    let loaded = catch_unwind(AssertUnwindSafe(work)).ok();
    if loaded.is_none() {
        metrics.panicked();
        let stays = "the limits in force stay";
        tracing::error!("panic while loading limits; {stays}; this is a bug in Weir");
    }
    loaded
}

/// Polls once, and loads the files if it is time to.
fn poll(live: &Live, watched: &mut WatchedFolder) {
    let (asked, options) = (live.take_reload(), watched.options.clone());
    let load = |read: &Read| put_in_force(live, &options, read);
    match watched.poll(asked, load) {
        Some(Ok(())) => {}
        Some(Err(problems)) => reject(live, &problems, asked),
        // No descriptor is free.
        None if asked => live.ask_for_reload(),
        None => {}
    }
    if live.rejected().is_none() {
        live.metrics.config_in_force(watched.oldest());
    }
    live.free_old();
}

fn put_in_force(live: &Live, options: &Options, read: &Read) -> Result<(), Vec<Problem>> {
    let (work, old) = (|| compile(&read.texts, &options.compile), live.load());
    // No request waits while the process starts.
    let compiled = match &old {
        Some(_) => background::run("weir-load", work),
        None => work(),
    }?;
    for warning in compiled.warnings.iter().take(MAX_LOGGED) {
        tracing::warn!("{warning}");
    }
    // There is no difference for the first limits, which are all new.
    let difference = old.map(|old| Difference::new(&old.rules, &compiled.rules));
    let snapshot = live.replace(compiled.rules);
    let (rules, generation, files) = (&snapshot.rules, snapshot.generation, read.texts.len());
    log_loaded(
        rules,
        generation,
        difference.as_ref(),
        Some(files),
        None,
        None,
        options.compile.max_memory,
    );
    if !read.skipped.is_empty() {
        let escaped = |name: &String| name.escape_debug().to_string();
        let shown = first(&read.skipped, MAX_LOGGED, escaped);
        tracing::info!("skipping files without limits (pages, backup files): {shown}");
    }
    Ok(())
}

/// Logs that limits are in force, and their differences from the previous ones. `files` is the
/// number of files, or `version` is the version of the control plane. `loads` is the number of
/// loads if the line is about several, and `share` the memory that limits may take.
pub(super) fn log_loaded(
    rules: &Rules,
    generation: u64,
    difference: Option<&Difference>,
    files: Option<usize>,
    version: Option<&str>,
    loads: Option<u32>,
    share: Option<u64>,
) {
    let count = |of: fn(&Difference) -> usize| difference.map(of);
    tracing::info!(
        version,
        loads,
        files,
        domains = rules.domains().count(),
        limits = rules.limit_count(),
        memory_kib = rules.memory() >> 10,
        share_mib = share.map(|share| share >> 20),
        generation,
        added = count(|found| found.added.len()),
        removed = count(|found| found.removed.len()),
        changed = count(|found| found.changed.len()),
        digest = rules.digest(),
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
    let stays = match live.load() {
        Some(_) => "the limits in force stay",
        None => "there are no limits yet",
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
