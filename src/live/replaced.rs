//! A file that Weir replaces as a whole: its reader sees the text of before or all of the new one,
//! also after a power cut.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::net::{bounded, random};

/// Writes to a file in the same folder, then renames it. The file keeps its permissions, and its
/// owner and group where the system allows that; through a link, the file that the link names is
/// replaced.
///
/// # Errors
/// The operating system's error, or there is a folder, a pipe or a device. It is the one that it
/// was.
pub(super) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let path = &target(path)?;
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is no path of a file"))?;
    // Replicas may share the folder.
    let (name, random) = (name.to_string_lossy(), random::bits());
    let beside = path.with_file_name(format!(".{name}.{random:032x}"));
    let before = fs::metadata(path).ok();
    before.as_ref().map_or(Ok(()), bounded::regular)?;
    let written = write(&beside, before.as_ref(), parts).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // It may not even exist; only the first error is reported.
        let _ = fs::remove_file(&beside);
        return written;
    }
    // The folder holds the name. Where it cannot be synchronized, the file is the new one all the
    // same.
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// The target of a link, which need not exist yet.
fn target(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::read_link(path) {
            Ok(named) => target(&path.parent().unwrap_or(Path::new("")).join(named)),
            Err(_) => Ok(path.to_owned()),
        },
        found => found,
    }
}

fn write(path: &Path, before: Option<&fs::Metadata>, parts: &[&[u8]]) -> io::Result<()> {
    // Until it has the permissions of the file before, it is for its owner only.
    let mode = if before.is_some() { 0o600 } else { 0o666 };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    if let Some(before) = before {
        // Another owner is for root only; a group, for its members.
        if fchown(&file, Some(before.uid()), Some(before.gid())).is_err() {
            let _ = fchown(&file, None, Some(before.gid()));
        }
        file.set_permissions(before.permissions())?;
    }
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_replaced_file_keeps_its_permissions_and_its_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("real")).expect("a folder");
        symlink("real/file", path("link")).expect("a link");
        symlink(path("link"), path("second")).expect("a link");
        replace(&path("second"), &[b"a", b"b"]).expect("a link to a file that is not there yet");
        assert_eq!(fs::read(path("real/file")).expect("a file"), b"ab");
        for permissions in [0o600, 0o640, 0o644, 0o400] {
            fs::set_permissions(path("real/file"), fs::Permissions::from_mode(permissions))
                .expect("permissions");
            let before = fs::metadata(path("real/file")).expect("a file");
            replace(&path("second"), &[b"c"]).expect("replaced");
            let after = fs::metadata(path("real/file")).expect("a file");
            assert_eq!(
                (after.mode(), after.uid(), after.gid()),
                (before.mode(), before.uid(), before.gid())
            );
            assert_ne!(before.ino(), after.ino(), "as a whole");
            assert!(["link", "second"].iter().all(|link| {
                fs::symlink_metadata(path(link))
                    .expect("a link")
                    .is_symlink()
            }));
        }
        assert_eq!(
            fs::read_dir(path("real")).expect("a folder").count(),
            1,
            "nothing else is left"
        );
        symlink("round", path("round")).expect("a link");
        assert!(
            replace(&path("round"), &[b"x"]).is_err(),
            "a link to itself"
        );
        assert!(replace(&path("missing/file"), &[b"x"]).is_err());
    }
}
