//! Rules from a folder of files, and watching it.
//!
//! The folder is looked at by polling: it costs microseconds, and unlike notifications works the same for a file that is rewritten, renamed
//! over, or swapped behind two links, on every file system. Looking, reading, compiling and freeing are done by a thread of their own, so
//! that neither a slow disk nor a large configuration stalls a request or the control thread.

mod debounce;
mod scan;

use std::fs::File;
use std::io::{self, Read as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::Live;
use crate::background;
use crate::metrics::Metrics;
use crate::rules::compile::{self, Problem, SourceText, compile};
use debounce::Debounce;
use scan::{Fingerprint, Found, scan};

/// How often files that change while they are read are read again, and how long to wait before that.
const READS: usize = 5;
const BETWEEN_READS: Duration = Duration::from_millis(50);

/// A look may take this share of the time at most; with a slow disk there are fewer looks.
const BUSY_SHARE: u32 = 10;

/// Problems that are logged of one refused configuration; `weir check` shows them all.
const MOST_LOGGED: usize = 50;

/// Where the files are and how they are read.
#[derive(Clone, Debug)]
pub struct Options {
    /// A folder, of which every file below is read, or one file.
    pub path: PathBuf,
    /// Files and folders whose name begins with a dot are not read. Those that begin with two dots never are.
    pub ignore_dot_files: bool,
    /// How often the folder is looked at. A change is loaded when two looks have found the same; at 250 ms that is half a second after the
    /// last write.
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

/// The files of one moment.
#[derive(Debug)]
pub struct Read {
    /// What they hold, sorted by name.
    pub texts: Vec<SourceText>,
    fingerprint: Fingerprint,
}

/// What was loaded or refused already, for [`watch`].
#[derive(Debug)]
pub struct Watched(Debounce<Fingerprint>);

/// Why files were not read.
struct Unread {
    problems: Vec<Problem>,
    /// What was refused; `None`: trying the same again may help.
    refused: Option<Fingerprint>,
}

/// Reads all files of one moment: if one changes meanwhile, all are read again.
///
/// # Errors
/// What stands in the way: a path that does not exist or holds no files, a file that may not be read, is too long, or keeps changing.
pub fn read(options: &Options) -> Result<Read, Vec<Problem>> {
    try_read(options).map_err(|unread| unread.problems)
}

#[expect(clippy::disallowed_methods, reason = "it runs on a thread of its own, or before anything is served")]
fn try_read(options: &Options) -> Result<Read, Unread> {
    let look = || scan(&options.path, options.ignore_dot_files);
    for attempt in 1..=READS {
        let found = look();
        let fingerprint = found.fingerprint();
        if !found.problems.is_empty() {
            return Err(Unread { problems: found.problems, refused: Some(fingerprint) });
        }
        // No limits at all are far more often an accident than a wish: a wrong path, a volume that is not there.
        if found.files.is_empty() {
            let remedy = "put a file here; to limit nothing, one with a domain and no descriptors";
            let problems = vec![scan::problem(&options.path, "there are no files of limits".to_owned(), remedy)];
            return Err(Unread { problems, refused: Some(fingerprint) });
        }
        let texts = read_all(&found.files);
        if look().fingerprint() == fingerprint {
            let texts = texts.map_err(|problems| Unread { problems, refused: None })?;
            return Ok(Read { texts, fingerprint });
        }
        if attempt < READS {
            std::thread::sleep(BETWEEN_READS);
        }
    }
    let what = "its files keep changing while they are read".to_owned();
    Err(Unread { problems: vec![scan::problem(&options.path, what, "wait until they are written")], refused: None })
}

fn read_all(files: &[Found]) -> Result<Vec<SourceText>, Vec<Problem>> {
    let (mut texts, mut problems) = (Vec::with_capacity(files.len()), Vec::new());
    for file in files {
        match read_one(file) {
            Ok(text) if text.len() as u64 > scan::LONGEST_FILE_BYTES => problems.push(scan::too_long(&file.name)),
            Ok(text) => texts.push(SourceText { name: file.name.to_string_lossy().into_owned(), text }),
            Err(error) => problems.push(scan::unreadable(&file.name, &error)),
        }
    }
    if problems.is_empty() { Ok(texts) } else { Err(problems) }
}

/// It may have grown since it was looked at.
fn read_one(file: &Found) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(&file.real)?.take(scan::LONGEST_FILE_BYTES + 1).read_to_end(&mut text)?;
    Ok(text)
}

/// Loads the first rules.
///
/// # Errors
/// All problems of all files, counted and remembered, but not logged; with the other half the folder can be watched all the same.
pub fn load_once(live: &Arc<Live>, options: &Options) -> Result<Watched, (Vec<Problem>, Watched)> {
    let (loaded, tried) = match try_read(options) {
        Ok(read) => (put_in_force(live, options, &read.texts), Some(read.fingerprint)),
        Err(unread) => (Err(unread.problems), unread.refused),
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

/// Watches the folder and loads what changes, until the future is dropped. A set of files with a mistake changes nothing: its problems are
/// logged, counted and remembered in `live`.
pub async fn watch(live: Arc<Live>, options: Options, watched: Watched, metrics: Arc<Metrics>) {
    // Dropped with this future, which ends the thread.
    let (_alive, ended) = mpsc::sync_channel::<()>(0);
    let run = move || {
        background::lower_priority();
        let mut debounce = watched.0;
        let mut pause = options.poll;
        while ended.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
            let started = Instant::now();
            let look = AssertUnwindSafe(|| look(&live, &options, &mut debounce));
            if catch_unwind(look).is_err() {
                metrics.panicked();
                tracing::error!("loading limits made weir panic; the limits in force stay. This is a defect of weir");
                debounce.tried(Some(scan(&options.path, options.ignore_dot_files).fingerprint()));
            }
            pause = options.poll.max(started.elapsed() * BUSY_SHARE);
        }
    };
    match std::thread::Builder::new().name("weir-files".to_owned()).spawn(run) {
        Ok(_) => std::future::pending().await,
        Err(error) => tracing::error!(%error, "no thread to watch the limits: changes need a restart"),
    }
}

/// One look, and loading when it is time.
fn look(live: &Live, options: &Options, debounce: &mut Debounce<Fingerprint>) {
    live.free_old();
    if !debounce.look(scan(&options.path, options.ignore_dot_files).fingerprint()) {
        return;
    }
    let loaded = match try_read(options) {
        Ok(read) => {
            debounce.tried(Some(read.fingerprint));
            put_in_force(live, options, &read.texts)
        }
        Err(unread) => {
            debounce.tried(unread.refused);
            Err(unread.problems)
        }
    };
    if let Err(problems) = loaded {
        refuse(live, problems);
    }
}

fn put_in_force(live: &Live, options: &Options, texts: &[SourceText]) -> Result<(), Vec<Problem>> {
    let compiled = compile(texts, &options.compile)?;
    for warning in &compiled.warnings {
        tracing::warn!("{warning}");
    }
    let snapshot = live.replace(compiled.rules);
    let domains = snapshot.rules.domains().count();
    let (files, limits, generation) = (texts.len(), snapshot.rules.limits().len(), snapshot.generation);
    tracing::info!(files, domains, limits, generation, "limits loaded");
    Ok(())
}

fn refuse(live: &Live, problems: Vec<Problem>) {
    if !live.reject(problems) {
        return;
    }
    let Some(refusal) = live.rejected() else { return };
    let stays = if live.load().is_some() { "the limits in force stay" } else { "there are no limits yet" };
    tracing::error!(problems = refusal.problems.len(), "limits refused; {stays}");
    for problem in refusal.problems.iter().take(MOST_LOGGED) {
        tracing::error!("{problem}");
    }
    if let Some(more @ 1..) = refusal.problems.len().checked_sub(MOST_LOGGED) {
        tracing::error!("and {more} more; `weir check` shows them all");
    }
}

#[cfg(test)]
mod tests;
