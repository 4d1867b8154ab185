//! A folder in the layout in which the kubelet mounts a ConfigMap.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Makes `text` the content of `file`, as the kubelet updates a ConfigMap: it writes a new hidden
/// folder, and renames a link to it over `..data`. The first call also creates the link `file`.
pub fn publish(folder: &Path, version: &str, file: &str, text: &str) {
    publish_all(folder, version, &[(file, text)]);
}

/// As [`publish`], for several files with their texts, which change together.
pub fn publish_all(folder: &Path, version: &str, files: &[(&str, &str)]) {
    fs::create_dir(folder.join(version)).expect("a folder");
    for (file, text) in files {
        fs::write(folder.join(version).join(file), text).expect("written");
    }
    symlink(version, folder.join("..data_tmp")).expect("a link");
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).expect("swapped");
    for (file, _) in files {
        if !folder.join(file).exists() {
            symlink(Path::new("..data").join(file), folder.join(file)).expect("a link");
        }
    }
}
