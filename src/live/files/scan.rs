//! Scans a folder: the names, paths and versions of its files, without reading them.
//!
//! Kubernetes mounts a ConfigMap as symbolic links: `limits.yaml` points to `..data/limits.yaml`,
//! and `..data` to a folder named for a time, which is swapped as a whole. So links are followed,
//! names that begin with two dots are ignored, and versions are the link targets' versions. A link
//! must not point out of the folder, because a person who may only write limits could read other
//! files through error messages.
//!
//! `RUNTIME_IGNOREDOTFILES` is true by default (false in envoyproxy/ratelimit), because the swap
//! file of an editor must not block a reload.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::core::message::Message;
use crate::limits::rules::compile::{Problem, is_table};
use crate::limits::rules::messages;

/// The most files and folders of a scan. More of them means a wrong path, or links that point to
/// each other.
const MAX_ENTRIES: usize = 10_000;

/// Maximum depth of nested folders.
const MAX_DEPTH: usize = 32;

/// The largest file of limits or values that is read.
pub(super) const MAX_FILE_BYTES: u64 = 16 << 20;

/// The most bytes of a table, and of all tables together: a million rows of 100 bytes fit.
pub(crate) const MAX_TABLE_BYTES: u64 = 128 << 20;

/// Names of files that hold no limits: pages describe the folder to people, and editors leave
/// backups. Names such as `README.yaml` are not among them. A file that the path itself names is
/// read, whatever its name.
const SKIPPED_NAME: &[u8] = b"README";
const SKIPPED_ENDINGS: [&[u8]; 4] = [b".md", b"~", b".bak", b".swp"];

/// The most bytes of all other files together.
pub(super) const MAX_TOTAL_BYTES: u64 = 64 << 20;

/// The result of a scan.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The files, and why they cannot be read, if so.
    pub found: Fingerprint,
    /// The files in the folder that hold no limits, by their names, and pipes and the like; sorted.
    pub skipped: Vec<PathBuf>,
    /// The process has no free descriptor for a folder. The scan is then no evidence about the
    /// files.
    pub is_short: bool,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitFile {
    /// Relative to the folder.
    pub name: PathBuf,
    /// Its path without symbolic links.
    pub real: PathBuf,
    version: FileVersion,
}

/// Two files, or two versions of one file, differ in at least one of these unless a person forges
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Identifies a set of files in one version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint {
    /// Sorted by name.
    pub files: Vec<LimitFile>,
    pub problems: Vec<Problem>,
}

impl Fingerprint {
    /// Whether there are files, and nothing is wrong with them.
    pub(super) const fn is_usable(&self) -> bool {
        self.problems.is_empty() && !self.files.is_empty()
    }

    /// The file of this name.
    pub(super) fn get(&self, name: &Path) -> Option<&LimitFile> {
        let at = self.files.binary_search_by(|file| (*file.name).cmp(name));
        at.ok().map(|at| &self.files[at])
    }
}

impl LimitFile {
    /// Whether it may be half-written: since `before` it has appeared, or changed in place. One
    /// that was renamed over another has another inode, and a file under a swapped link has another
    /// path: they are whole. So is a new one that was renamed, which has changed since it was
    /// modified, and one in a folder that a link was `swapped` to.
    pub(super) fn may_be_unfinished(&self, before: Option<&Self>, swapped: &[&Path]) -> bool {
        let version = self.version;
        match before {
            Some(old) => old.real == self.real && old.version.inode == version.inode,
            None => {
                let is_in = |folder: &&Path| self.real.starts_with(folder);
                version.modified == version.changed && !swapped.iter().any(is_in)
            }
        }
    }

    /// Whether it has the name of a table.
    pub(super) fn is_table(&self) -> bool {
        self.name.to_str().is_some_and(is_table)
    }

    /// The most bytes that are read of it.
    pub(super) fn max_bytes(&self) -> u64 {
        match self.is_table() {
            true => MAX_TABLE_BYTES,
            false => MAX_FILE_BYTES,
        }
    }

    /// The problem of a file with more.
    pub(super) fn too_long(&self) -> Problem {
        let mib = self.max_bytes() >> 20;
        let message = match self.is_table() {
            true => messages::table_above_maximum(mib),
            false => messages::file_above_maximum(mib),
        };
        problem(&self.name, message)
    }
}

/// Scans a folder with its subfolders, or one file; and files `beside` it, if so.
pub(super) fn scan(path: &Path, beside: bool, ignore_dot_files: bool) -> Scan {
    let mut walk = Walk {
        ignore_dot_files,
        root: PathBuf::new(),
        entries: 0,
        scan: Scan::default(),
    };
    let own = Path::new(path.file_name().unwrap_or_default());
    let above = path.parent().filter(|_| beside);
    if let Some(above) = above {
        walk.beside(above, own);
    }
    let is_complete = !walk.scan.found.files.is_empty() && fs::symlink_metadata(path).is_err();
    match fs::canonicalize(path).and_then(|real| Ok((fs::metadata(&real)?, real))) {
        Ok((metadata, real)) if metadata.is_dir() => {
            walk.root.clone_from(&real);
            let name = above.map_or(Path::new(""), |_| own);
            walk.folder(&real, name, b"", &mut vec![real.clone()]);
        }
        Ok((metadata, real)) if metadata.is_file() => walk.file(own.into(), real, &metadata),
        Ok(_) => walk.problem(path, messages::not_a_folder_or_file()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_complete => {}
        Err(error) => walk.unreadable(path, &error),
    }
    walk.check_sizes();
    let Scan { found, skipped, .. } = &mut walk.scan;
    found.files.sort_by(|one, other| one.name.cmp(&other.name));
    let problems = &mut found.problems;
    problems.sort_by(|one, other| one.file.cmp(&other.file));
    skipped.sort();
    walk.scan
}

fn is_skipped(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name == SKIPPED_NAME || SKIPPED_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// A problem of a whole file.
pub(super) fn problem(file: &Path, message: Message) -> Problem {
    Problem::whole(file.to_string_lossy().into_owned(), message)
}

/// The problem of a file that the operating system cannot read.
pub(super) fn unreadable(file: &Path, error: &io::Error) -> Problem {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "create it, or set another path",
        io::ErrorKind::PermissionDenied => "make it readable for the user that weir runs as",
        io::ErrorKind::InvalidInput => "write the path of a regular file",
        _ => "repair the file system or the volume",
    };
    problem(file, messages::unreadable_file(error, remedy))
}

/// Whether the process, or the machine, has no descriptor left.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE))
}

struct Walk {
    ignore_dot_files: bool,
    root: PathBuf,
    entries: usize,
    scan: Scan,
}

impl Walk {
    fn problem(&mut self, file: &Path, message: Message) {
        self.scan.found.problems.push(problem(file, message));
    }

    fn unreadable(&mut self, file: &Path, error: &io::Error) {
        self.scan.is_short |= is_shortage(error);
        self.scan.found.problems.push(unreadable(file, error));
    }

    /// The files and folders in `above` whose names begin with the name of the folder `own` and a
    /// dot: envoyproxy/ratelimit reads each file whose path, joined by dots, begins so. A missing
    /// `above` is reported with the folder.
    fn beside(&mut self, above: &Path, own: &Path) {
        let here = Path::new(".");
        let above = Some(above).filter(|above| *above != Path::new(""));
        if let Ok(real) = fs::canonicalize(above.unwrap_or(here)) {
            self.root.clone_from(&real);
            let begin = [own.as_os_str().as_bytes(), b"."].concat();
            self.folder(&real, Path::new(""), &begin, &mut vec![real.clone()]);
        }
    }

    /// Names in the folder begin with `begin`. `above` are the real paths of this folder and of the
    /// folders above it.
    fn folder(&mut self, real: &Path, name: &Path, begin: &[u8], above: &mut Vec<PathBuf>) {
        let shown = match name.as_os_str().is_empty() {
            true => real,
            false => name,
        };
        let mut each = || -> io::Result<()> {
            for entry in fs::read_dir(real)? {
                let entry = entry?;
                let file = entry.file_name();
                if !file.as_bytes().starts_with(begin) || self.is_ignored(&file) {
                    continue;
                }
                if is_skipped(&file) {
                    // Bounded like the files, though these cost nothing else.
                    if self.scan.skipped.len() < MAX_ENTRIES {
                        self.scan.skipped.push(name.join(file));
                    }
                    continue;
                }
                self.entries += 1;
                if self.entries == MAX_ENTRIES + 1 {
                    self.problem(shown, messages::too_many_files(MAX_ENTRIES));
                }
                if self.entries > MAX_ENTRIES {
                    break;
                }
                self.entry(&entry.path(), &name.join(file), above);
            }
            Ok(())
        };
        if let Err(error) = each() {
            self.unreadable(shown, &error);
        }
    }

    fn is_ignored(&self, name: &OsStr) -> bool {
        let name = name.as_bytes();
        name.starts_with(b"..") || (self.ignore_dot_files && name.starts_with(b"."))
    }

    fn entry(&mut self, path: &Path, name: &Path, above: &mut Vec<PathBuf>) {
        let (real, metadata) = match resolve(path) {
            Ok(resolved) => resolved,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Otherwise the file was removed after the folder was read.
                if fs::symlink_metadata(path).is_ok() {
                    self.problem(name, messages::link_without_target());
                }
                return;
            }
            Err(error) => return self.unreadable(name, &error),
        };
        if !real.starts_with(&self.root) {
            return self.problem(name, messages::link_out_of_folder(real.display()));
        }
        if metadata.is_file() {
            return self.file(name.into(), real, &metadata);
        }
        // Sockets, pipes and devices hold no limits.
        if !metadata.is_dir() {
            return self.scan.skipped.push(name.into());
        }
        if above.contains(&real) {
            return self.problem(name, messages::link_to_folder_above());
        }
        if above.len() > MAX_DEPTH {
            return self.problem(name, messages::folders_too_deep(MAX_DEPTH));
        }
        above.push(real.clone());
        self.folder(&real, name, b"", above);
        above.pop();
    }

    fn file(&mut self, name: PathBuf, real: PathBuf, metadata: &Metadata) {
        let version = FileVersion {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        };
        let file = LimitFile {
            name,
            real,
            version,
        };
        self.scan.found.files.push(file);
    }

    fn check_sizes(&mut self) {
        let Fingerprint { files, problems } = &mut self.scan.found;
        let is_too_long = |file: &&LimitFile| file.version.size > file.max_bytes();
        problems.extend(files.iter().filter(is_too_long).map(LimitFile::too_long));
        for (are_tables, max) in [(false, MAX_TOTAL_BYTES), (true, MAX_TABLE_BYTES)] {
            let files = files.iter().filter(|file| file.is_table() == are_tables);
            let bytes = files.fold(0_u64, |sum, file| sum.saturating_add(file.version.size));
            if bytes > max {
                let message = match are_tables {
                    false => messages::files_above_maximum(max >> 20),
                    true => messages::tables_above_maximum(max >> 20),
                };
                problems.push(problem(&self.root, message));
            }
        }
    }
}

/// The path of a directory entry without symbolic links. The folder's own path has none: only a
/// link has to be resolved.
fn resolve(path: &Path) -> io::Result<(PathBuf, Metadata)> {
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_symlink() {
        return Ok((path.to_owned(), metadata));
    }
    let real = fs::canonicalize(path)?;
    let metadata = fs::metadata(&real)?;
    Ok((real, metadata))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    fn names(scan: &Scan) -> Vec<&str> {
        assert_eq!(
            scan.found
                .problems
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            Vec::<String>::new()
        );
        scan.found
            .files
            .iter()
            .map(|file| file.name.to_str().unwrap())
            .collect()
    }

    fn problems(path: &Path) -> Vec<(String, String)> {
        scan(path, false, false)
            .found
            .problems
            .into_iter()
            .map(|problem| (problem.file, problem.message.what))
            .collect()
    }

    fn may_be_unfinished(now: &Fingerprint, before: &Fingerprint) -> bool {
        let old = |file: &LimitFile| before.get(&file.name);
        let is_swapped = |file: &LimitFile| old(file).is_some_and(|old| old.real != file.real);
        let swapped = now.files.iter().filter(|file| is_swapped(file));
        let swapped: Vec<_> = swapped.filter_map(|file| file.real.parent()).collect();
        let changed = now.files.iter().filter(|file| old(file) != Some(*file));
        let mut may_be = changed.map(|file| file.may_be_unfinished(old(file), &swapped));
        may_be.any(|may_be| may_be)
    }

    fn folder(files: &[&str]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        folder
    }

    #[test]
    fn every_file_below_is_found_in_the_order_of_names() {
        let folder = folder(&[
            "b.yaml",
            "a/z",
            "a.yaml",
            "a/b/c.yml",
            ".hidden",
            ".git/config",
            "..data/x",
            "..2026/y",
        ]);
        assert_eq!(
            names(&scan(folder.path(), false, true)),
            ["a/b/c.yml", "a/z", "a.yaml", "b.yaml"]
        );
        assert_eq!(
            names(&scan(folder.path(), false, false)),
            [
                ".git/config",
                ".hidden",
                "a/b/c.yml",
                "a/z",
                "a.yaml",
                "b.yaml"
            ]
        );
        assert_eq!(names(&scan(&folder.path().join("a/z"), false, true)), ["z"]);
    }

    #[test]
    fn the_folder_itself_may_be_a_link_and_its_swap_is_detected() {
        let folder = folder(&["one/a.yaml", "two/a.yaml", "two/b.yaml"]);
        let link = folder.path().join("current");
        symlink("one", &link).unwrap();
        let before = scan(&link, false, true);
        assert_eq!(names(&before), ["a.yaml"]);
        fs::remove_file(&link).unwrap();
        symlink("two", &link).unwrap();
        let after = scan(&link, false, true).found;
        assert_ne!(after, before.found);
        assert!(!may_be_unfinished(&after, &before.found));
    }

    #[test]
    fn every_change_is_detected() {
        type Change<'c> = (&'static str, Option<bool>, &'c dyn Fn());
        let folder = folder(&["a.yaml"]);
        let path = folder.path();
        let mut last = scan(path, false, true).found;
        assert_eq!(scan(path, false, true).found, last);
        // A new name is whole if its clock shows that it was renamed later than it was written.
        let changes: [Change<'_>; 5] = [
            ("rewritten in place", Some(true), &|| {
                fs::write(path.join("a.yaml"), "yy").unwrap();
            }),
            ("renamed over", Some(false), &|| {
                fs::write(path.join("..new"), "zz").unwrap();
                fs::rename(path.join("..new"), path.join("a.yaml")).unwrap();
            }),
            ("added", Some(true), &|| {
                fs::write(path.join("b.yaml"), "").unwrap();
            }),
            ("renamed", None, &|| {
                fs::rename(path.join("b.yaml"), path.join("c.yaml")).unwrap();
            }),
            ("removed", Some(false), &|| {
                fs::remove_file(path.join("c.yaml")).unwrap();
            }),
        ];
        for (what, is_unfinished, change) in changes {
            change();
            let now = scan(path, false, true).found;
            assert_ne!(now, last, "{what}");
            let may_be = may_be_unfinished(&now, &last);
            assert_eq!(may_be, is_unfinished.unwrap_or(may_be), "{what}");
            last = now;
        }
    }

    #[test]
    fn links_that_point_nowhere_back_or_out_are_reported() {
        let outside = folder(&["secret"]);
        let folder = folder(&["a/b.yaml"]);
        let path = folder.path();
        symlink("gone", path.join("l1")).unwrap();
        symlink("..", path.join("a/l2")).unwrap();
        symlink(outside.path().join("secret"), path.join("l3")).unwrap();
        symlink("l4", path.join("l4")).unwrap();
        let problems = problems(path);
        let has = |file: &str, what: &str| {
            problems
                .iter()
                .any(|(name, text)| name == file && text.contains(what))
        };
        assert!(
            has("l1", "points to a file that does not exist"),
            "{problems:?}"
        );
        assert!(has("a/l2", "points back"), "{problems:?}");
        assert!(has("l3", "out of the folder"), "{problems:?}");
        assert!(has("l4", "cannot be read"), "{problems:?}");
        assert_eq!(problems.len(), 4);
    }

    #[test]
    fn links_that_multiply_are_bounded() {
        let folder = folder(&["00/x"]);
        for depth in 1..20 {
            let path = folder.path().join(format!("{depth:02}"));
            fs::create_dir(&path).unwrap();
            for link in ["a", "b"] {
                symlink(format!("../{:02}", depth - 1), path.join(link)).unwrap();
            }
        }
        let problems = problems(folder.path());
        assert_eq!(problems.len(), 1);
        assert!(problems[0].1.contains("10000 files"), "{problems:?}");
    }

    #[test]
    fn large_files_and_missing_folders_are_reported() {
        let folder = folder(&["a"]);
        for file in ["b", "c", "d", "e", "f"] {
            fs::File::create(folder.path().join(file))
                .unwrap()
                .set_len(MAX_FILE_BYTES)
                .unwrap();
        }
        fs::File::create(folder.path().join("g"))
            .unwrap()
            .set_len(MAX_FILE_BYTES + 1)
            .unwrap();
        let problems_now = problems(folder.path());
        assert_eq!(
            problems_now[1],
            ("g".to_owned(), "larger than 16 MiB".to_owned())
        );
        assert!(
            problems_now[0].1.contains("64 MiB in total"),
            "{problems_now:?}"
        );
        let missing = folder.path().join("missing");
        assert_eq!(problems(&missing)[0].0, missing.to_str().unwrap());
    }
}
