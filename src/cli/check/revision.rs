//! Limit files at a revision of git, for `weir check --diff`. Git writes them into a temporary
//! folder, where they are read as all limit files are; the repository does not change.

use std::path::{Component, Path};
use std::process::Command;
use std::{env, fs};

use crate::limits::rules::compile::{OneLine, Problem};
use crate::limits::rules::messages;
use crate::live::files;
use crate::net::random;

/// Writes the file $3 of the folder $1, or all of its files, at the revision $2 to the folder $4.
/// Hooks of git have variables with paths from another folder.
const EXTRACT: &str = r#"unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE; mkdir "$4" &&
    git -C "$1" archive -o "$4.tar" "$2^{tree}" -- ${3:+"$3"} &&
    tar -xf "$4.tar" -C "$4""#;

/// Whether a path can be a revision: it does not begin with `/`, `./` or `../`.
pub(super) fn may_be(path: &Path) -> bool {
    let first = path.components().next();
    matches!(first, Some(Component::Normal(_)))
}

/// Reads the limit files of the path of `options` at a revision. Their names begin with it.
///
/// # Errors
/// The message of git, or the problems of files that cannot be read.
pub(super) fn read(options: &files::Options, revision: &str) -> Result<files::Read, Vec<Problem>> {
    let (path, mut old) = (&*options.path, options.clone());
    let (mut folder, mut name) = (path, Path::new(""));
    if !path.is_dir() {
        name = path.file_name().unwrap_or_default().as_ref();
        let parent = path.parent().filter(|parent| *parent != "");
        folder = parent.unwrap_or_else(|| Path::new("."));
    }
    let into = env::temp_dir().join(format!("weir-check-{:x}", random::bits()));
    old.path = into.join(name);
    let shown = format!("{revision}:{}", folder.display());
    let show = |name: &mut String| *name = name.replacen(&*into.to_string_lossy(), &shown, 1);
    let mut read = match extract(folder, revision, name, &into) {
        Ok(()) => super::read(&old),
        Err(error) => {
            let message = messages::unreadable_revision(error);
            Err(vec![Problem::whole(revision.to_owned(), message)])
        }
    };
    // The system removes temporary files that are left.
    let _ = fs::remove_dir_all(&into);
    let _ = fs::remove_file(into.with_extension("tar"));
    match &mut read {
        Ok(read) => read.texts.iter_mut().for_each(|text| show(&mut text.name)),
        Err(problems) => problems.iter_mut().for_each(|one| show(&mut one.file)),
    }
    read
}

fn extract(folder: &Path, revision: &str, name: &Path, into: &Path) -> Result<(), String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", EXTRACT, "sh"]).arg(folder).arg(revision);
    let output = shell.arg(name).arg(into).output();
    let output = output.map_err(|error| error.to_string())?;
    let message = String::from_utf8_lossy(&output.stderr);
    let message = OneLine(message.trim()).to_string();
    output.status.success().then_some(()).ok_or(message)
}
