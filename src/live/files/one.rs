//! One file that belongs to another source of limits: read once, and watched as the files of limits
//! are.

use std::path::PathBuf;

use super::debounce::Debounce;
use super::scan::{self, Fingerprint, scan};
use super::{Options, ReadError, try_read};
use crate::limits::rules::compile::{Problem, SourceText};

/// A file that is watched.
#[derive(Debug)]
pub struct OneFile {
    options: Options,
    debounce: Debounce<Fingerprint>,
}

impl OneFile {
    /// Reads the file for the first time. A file that cannot be read is watched all the same.
    pub fn open(path: PathBuf) -> (Self, Result<SourceText, Vec<Problem>>) {
        let options = Options {
            path,
            ..Options::default()
        };
        let (text, tried) = read(&options);
        (
            Self {
                options,
                debounce: Debounce::new(tried),
            },
            text,
        )
    }

    /// Polls the file, and reads it if it has changed.
    pub fn poll(&mut self) -> Option<Result<SourceText, Vec<Problem>>> {
        if !self
            .debounce
            .observe(scan(&self.options.path, false).fingerprint())
        {
            return None;
        }
        let (text, tried) = read(&self.options);
        self.debounce.tried(tried);
        Some(text)
    }
}

fn read(options: &Options) -> (Result<SourceText, Vec<Problem>>, Option<Fingerprint>) {
    match try_read(options) {
        Err(ReadError { problems, rejected }) => (Err(problems), rejected),
        Ok(mut read) => {
            let text = read.texts.pop().filter(|_| read.texts.is_empty());
            let remedy = "write the path of one file";
            (
                text.ok_or_else(|| {
                    vec![scan::problem(
                        &options.path,
                        "it is a folder with several files".to_owned(),
                        remedy,
                    )]
                }),
                Some(read.fingerprint),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_changed_file_is_read_once_and_a_folder_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("overlay.yaml");
        let (mut file, missing) = OneFile::open(path.clone());
        assert!(missing.is_err() && file.poll().is_none());
        for text in ["first", "second"] {
            fs::write(&path, text).expect("written");
            let read = (0..5)
                .find_map(|_| file.poll())
                .expect("it has changed")
                .expect("readable");
            assert_eq!(read.text, text.as_bytes());
            assert!((0..5).all(|_| file.poll().is_none()), "once");
        }
        fs::write(folder.path().join("other.yaml"), "x").expect("written");
        assert!(OneFile::open(folder.path().to_owned()).1.is_err());
    }
}
