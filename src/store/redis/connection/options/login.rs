//! Who logs in to Redis, and with what. A secret is never printed, and one that is in a file is read anew for every connection, so that a
//! rotated password needs no restart.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A password is shorter; this keeps a wrong path (a log, a device) from filling the memory.
const MOST_BYTES: u64 = 64 << 10;

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps `text` from being printed.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("***")
    }
}

/// Where a password is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Password {
    /// Here.
    Text(Secret),
    /// In a file that holds nothing else; one newline at its end does not belong to it.
    File(PathBuf),
}

/// Who logs in; by default nobody does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// The user of Redis's access lists; `None` is its default user.
    pub username: Option<String>,
    /// The user's password; `None` when Redis asks for none.
    pub password: Option<Password>,
}

/// Why a file gives no password.
#[derive(Debug, thiserror::Error)]
pub enum PasswordFileError {
    /// The operating system's reason.
    #[error("the password file {} cannot be read ({error})", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// There is nothing in it.
    #[error("the password file {} is empty", .0.display())]
    Empty(PathBuf),
    /// No password is so long.
    #[error("the password file {} is too large for a password", .0.display())]
    TooLarge(PathBuf),
}

impl Login {
    /// With a password that is known.
    #[must_use]
    pub fn new(username: Option<&str>, password: &str) -> Self {
        Self { username: username.map(str::to_owned), password: Some(Password::Text(Secret::new(password))) }
    }

    /// The user and the password as they are now, or `None` when nobody logs in. A file is read on a thread beside the runtime.
    ///
    /// # Errors
    /// The password is in a file and the file is of no use.
    pub async fn read(&self) -> Result<Option<(Option<String>, Secret)>, PasswordFileError> {
        let secret = match &self.password {
            None => return Ok(None),
            Some(Password::Text(secret)) => secret.clone(),
            Some(Password::File(path)) => {
                let (path, lost) = (path.clone(), path.clone());
                let reading = tokio::task::spawn_blocking(move || read_file(&path)).await;
                reading.map_err(|error| PasswordFileError::Unreadable { path: lost, error: io::Error::other(error) })??
            }
        };
        Ok(Some((self.username.clone(), secret)))
    }

    /// As [`Login::read`], for the start: waits, and gives nothing away.
    pub(super) fn check(&self) -> Result<(), PasswordFileError> {
        match &self.password {
            Some(Password::File(path)) => read_file(path).map(|_| ()),
            _ => Ok(()),
        }
    }
}

fn read_file(path: &Path) -> Result<Secret, PasswordFileError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_string(&mut text));
    let count = read.map_err(|error| PasswordFileError::Unreadable { path: path.to_owned(), error })?;
    if count as u64 > MOST_BYTES {
        return Err(PasswordFileError::TooLarge(path.to_owned()));
    }
    let password = text.strip_suffix('\n').map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
    if password.is_empty() { Err(PasswordFileError::Empty(path.to_owned())) } else { Ok(Secret::new(password)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_read_anew_and_loses_one_newline() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("password");
        let login = Login { username: Some("weir".to_owned()), password: Some(Password::File(path.clone())) };
        assert!(login.read().await.is_err_and(|error| error.to_string().contains("No such file")));
        for (content, password) in [("a", "a"), ("b\n", "b"), ("c\r\n", "c"), ("d\n\n", "d\n"), (" e:f ", " e:f ")] {
            std::fs::write(&path, content).expect("written");
            assert_eq!(login.read().await.expect("readable"), Some((Some("weir".to_owned()), Secret::new(password))), "{content:?}");
        }
        for content in ["", "\n", "\r\n"] {
            std::fs::write(&path, content).expect("written");
            assert!(matches!(login.read().await, Err(PasswordFileError::Empty(_))), "{content:?}");
        }
        std::fs::write(&path, "x".repeat(70_000)).expect("written");
        assert!(matches!(login.check(), Err(PasswordFileError::TooLarge(_))));
        std::fs::write(&path, b"\xff").expect("written");
        assert!(matches!(login.check(), Err(PasswordFileError::Unreadable { .. })));
        assert_eq!(Login::default().read().await.expect("nothing to read"), None);
    }
}
