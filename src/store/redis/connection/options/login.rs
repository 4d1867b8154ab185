//! The login to Redis: a user name, and a password from a setting or a file.
//!
//! Weir reads the password file again for every connection, so that a rotated password needs no
//! restart. A secret must not appear in logs, errors or `Debug` output. Source: redis.io, command
//! AUTH, and "ACL".

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The largest password file. A wrong path, such as a log or a device, must not fill the memory.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// A text that `Debug` shows as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Makes a secret of `text`.
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

/// A password, or the file that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Password {
    /// The password.
    Text(Secret),
    /// The path of a file that holds only the password. One newline at the end of the file is not
    /// part of it.
    File(PathBuf),
}

/// The credentials of a connection. The default has none: Weir sends no AUTH.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// The name of an ACL user; `None` is the user `default`.
    pub username: Option<String>,
    /// The user's password; `None` if Redis needs none.
    pub password: Option<Password>,
}

/// Why a password file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PasswordFileError {
    /// The file cannot be opened or read, or is not UTF-8.
    #[error("the password file {} cannot be read ({error})", .path.display())]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// The file is empty.
    #[error("the password file {} is empty", .0.display())]
    Empty(PathBuf),
    /// The file is larger than 64 KiB.
    #[error("the password file {} is too large for a password", .0.display())]
    TooLarge(PathBuf),
}

impl Login {
    /// A login with this password.
    pub fn new(username: Option<&str>, password: &str) -> Self {
        Self {
            username: username.map(str::to_owned),
            password: Some(Password::Text(Secret::new(password))),
        }
    }

    /// The current user name and password; `None` if there is no password. Reads a password file on
    /// Tokio's pool of blocking threads.
    ///
    /// # Errors
    /// The password file cannot be used.
    pub async fn read(&self) -> Result<Option<(Option<String>, Secret)>, PasswordFileError> {
        let secret = match &self.password {
            None => return Ok(None),
            Some(Password::Text(secret)) => secret.clone(),
            Some(Password::File(path)) => {
                let (path, failed_path) = (path.clone(), path.clone());
                let reading = tokio::task::spawn_blocking(move || read_file(&path)).await;
                reading.map_err(|error| PasswordFileError::Unreadable {
                    path: failed_path,
                    error: io::Error::other(error),
                })??
            }
        };
        Ok(Some((self.username.clone(), secret)))
    }
}

pub(super) fn read_file(path: &Path) -> Result<Secret, PasswordFileError> {
    let mut text = String::new();
    let read =
        File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
    let count = read.map_err(|error| PasswordFileError::Unreadable {
        path: path.to_owned(),
        error,
    })?;
    if count as u64 > MAX_FILE_BYTES {
        return Err(PasswordFileError::TooLarge(path.to_owned()));
    }
    let password = text
        .strip_suffix('\n')
        .map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
    if password.is_empty() {
        Err(PasswordFileError::Empty(path.to_owned()))
    } else {
        Ok(Secret::new(password))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_file_is_read_again_each_time_and_loses_one_newline() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("password");
        let login = Login {
            username: Some("weir".to_owned()),
            password: Some(Password::File(path.clone())),
        };
        assert!(
            login
                .read()
                .await
                .is_err_and(|error| error.to_string().contains("No such file"))
        );
        for (content, password) in [
            ("a", "a"),
            ("b\n", "b"),
            ("c\r\n", "c"),
            ("d\n\n", "d\n"),
            (" e:f ", " e:f "),
        ] {
            std::fs::write(&path, content).expect("written");
            assert_eq!(
                login.read().await.expect("readable"),
                Some((Some("weir".to_owned()), Secret::new(password))),
                "{content:?}"
            );
        }
        for content in ["", "\n", "\r\n"] {
            std::fs::write(&path, content).expect("written");
            assert!(
                matches!(login.read().await, Err(PasswordFileError::Empty(_))),
                "{content:?}"
            );
        }
        std::fs::write(&path, "x".repeat(70_000)).expect("written");
        assert!(matches!(
            read_file(&path),
            Err(PasswordFileError::TooLarge(_))
        ));
        std::fs::write(&path, b"\xff").expect("written");
        assert!(matches!(
            read_file(&path),
            Err(PasswordFileError::Unreadable { .. })
        ));
        assert_eq!(
            Login::default().read().await.expect("nothing to read"),
            None
        );
    }
}
