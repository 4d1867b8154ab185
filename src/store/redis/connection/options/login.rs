//! The login to Redis: a user name, and a password from a setting or a file.
//!
//! Weir reads the password file again for every connection: a rotated password needs no restart. A
//! secret must not appear in logs, errors or `Debug` output. Source: redis.io, command AUTH, and
//! "ACL".

use std::fmt;
use std::path::{Path, PathBuf};

use crate::net::bounded;

/// The largest password file.
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
    /// The path of a file that holds the password, or `user:password` if the login has no user name.
    /// One newline at the end of the file is not part of it.
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
    /// The reason for which the password file cannot be used.
    pub async fn read(&self) -> Result<Option<(Option<String>, Secret)>, String> {
        let path = match &self.password {
            None => return Ok(None),
            Some(Password::Text(secret)) => {
                return Ok(Some((self.username.clone(), secret.clone())));
            }
            Some(Password::File(path)) => path.clone(),
        };
        let reading = tokio::task::spawn_blocking(move || read_file(&path)).await;
        let secret = reading.map_err(|error| error.to_string())??;
        Ok(Some(
            match (&self.username, secret.expose().split_once(':')) {
                (None, Some((user, password))) => (
                    Some(user.to_owned()).filter(|user| !user.is_empty()),
                    Secret::new(password),
                ),
                (username, _) => (username.clone(), secret),
            },
        ))
    }
}

/// # Errors
/// The reason for which the file cannot be used, with its path.
pub(super) fn read_file(path: &Path) -> Result<Secret, String> {
    let file = format!("the password file {}", path.display());
    let text = bounded::read_text(path, MAX_FILE_BYTES)
        .map_err(|error| format!("{file} cannot be read ({error})"))?
        .ok_or_else(|| format!("{file} is too large for a password"))?;
    let password = text
        .strip_suffix('\n')
        .map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
    if password.is_empty() {
        Err(format!("{file} is empty"))
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
                .is_err_and(|error| error.contains("No such file"))
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
            let error = login.read().await.expect_err("no password");
            assert!(
                error.ends_with("/password is empty"),
                "{content:?}: {error}"
            );
        }
        std::fs::write(&path, "x".repeat(70_000)).expect("written");
        let error = read_file(&path).expect_err("too large");
        assert!(
            error.ends_with("/password is too large for a password"),
            "{error}"
        );
        std::fs::write(&path, b"\xff").expect("written");
        let error = read_file(&path).expect_err("no UTF-8");
        assert!(
            error.contains("/password cannot be read (it is not valid UTF-8)"),
            "{error}"
        );
        assert_eq!(
            Login::default().read().await.expect("nothing to read"),
            None
        );
        let login = Login {
            username: None,
            ..login
        };
        for (content, username, password) in [
            ("ana:a:b\n", Some("ana"), "a:b"),
            (":a:b", None, "a:b"),
            ("ab", None, "ab"),
        ] {
            std::fs::write(&path, content).expect("written");
            let expected = (username.map(ToOwned::to_owned), Secret::new(password));
            assert_eq!(login.read().await, Ok(Some(expected)), "{content:?}");
        }
    }
}
