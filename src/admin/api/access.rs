//! Access to the API: the tokens of `ADMIN_TOKEN_FILE`.
//!
//! On a loopback listener reading is free, because only programs on this machine can connect to it;
//! the guard of the listener (`http/guard.rs`) refuses pages of other sites. A change needs a
//! token, whose name is logged. The token is a header and never a cookie: no other page can make a
//! browser send it. On other addresses every call needs one.
//!
//! A NetworkPolicy alone is not enough: if it has a hole, every tenant of the cluster could block
//! customers. The file of tokens is read for each token that is presented: removing a line needs no
//! restart.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use super::reply::{Failure, blocking};
use crate::core::digest::sha256;
use crate::core::lock;
use crate::core::text::name_of;
use crate::net::bounded;
use crate::net::http::guard::Guard;
use crate::net::throttle::Throttle;

/// The largest file of tokens in bytes, and the most tokens in it.
const MAX_FILE_BYTES: u64 = 64 << 10;
const MAX_TOKENS: usize = 256;

/// The shortest token: 16 characters of `openssl rand -hex` are 64 bits.
const MIN_TOKEN_BYTES: usize = 16;

/// The longest name.
const MAX_NAME_BYTES: usize = 64;

/// The time between two lines of the log about wrong tokens.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// A right: what a call needs, and what a token has. Each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    Read,
    /// Overrides of descriptors with a value, and resets.
    Change,
    /// Overrides of every value of their keys, for which commands ask for `--all`.
    ChangeAll,
}

impl Right {
    /// The words after a token.
    const NAMED: [(&str, Self); 3] = [
        ("read", Self::Read),
        ("change", Self::Change),
        ("all", Self::ChangeAll),
    ];
}

/// A caller: the name of its token, if it has one, and its right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub name: Option<Box<str>>,
    right: Right,
}

impl Caller {
    /// Checks that the caller has this right.
    ///
    /// # Errors
    /// 403, with the remedy.
    pub fn check(&self, need: Right) -> Result<(), Failure> {
        if need <= self.right {
            return Ok(());
        }
        let word = |right| name_of(&Right::NAMED, &right).unwrap_or_default();
        let name = self.name.as_deref().unwrap_or_default();
        let [right, need] = [self.right, need].map(word);
        Err(Failure::forbidden(&format!(
            "the token {name} has the right `{right}`, and this needs `{need}`: the word behind \
             the token in ADMIN_TOKEN_FILE"
        )))
    }
}

/// The file of tokens: a line `name:token` each, or `name:token right`. It is read for each token
/// that is presented: a removed one is refused at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens(PathBuf);

/// A token as it is kept: its name, its right, and the digest of its text.
type StoredToken = (Box<str>, Right, [u8; 32]);

impl Tokens {
    /// The tokens in this file.
    ///
    /// # Errors
    /// The reason why the file cannot be used. It contains no token.
    pub fn try_new(path: PathBuf) -> Result<Self, String> {
        let tokens = Self(path);
        tokens.read().map(|_| tokens)
    }

    fn read(&self) -> Result<Vec<StoredToken>, String> {
        let text = bounded::read_text(&self.0, MAX_FILE_BYTES);
        let text = text.map_err(|error| format!("cannot be read: {error}"))?;
        let too_large = || format!("is larger than {} KiB", MAX_FILE_BYTES >> 10);
        parse(&text.ok_or_else(too_large)?)
    }
}

fn parse(text: &str) -> Result<Vec<StoredToken>, String> {
    let mut tokens: Vec<StoredToken> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what| format!("line {}: {what}", index + 1);
        let pair = line.split_once(':');
        let (name, token) = pair.ok_or_else(|| wrong("write name:token"))?;
        let is_part_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_part_of_name) {
            let what = "a name has 1 to 64 letters, digits, and characters of ._-@";
            return Err(wrong(what));
        }
        let (token, right) = match token.split_once([' ', '\t']) {
            None => (token, Right::ChangeAll),
            Some((token, word)) => {
                let named = Right::NAMED.iter().find(|(name, _)| *name == word.trim());
                let wrong = || wrong("write nothing, read, change or all behind a token");
                (token, named.ok_or_else(wrong)?.1)
            }
        };
        if token.len() < MIN_TOKEN_BYTES || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let what = "a token has 16 or more printable ASCII characters and no spaces, such as \
                `openssl rand -hex 32` prints";
            return Err(wrong(what));
        }
        if tokens.iter().any(|(known, ..)| **known == *name) {
            return Err(wrong("another line has this name"));
        }
        let digest = sha256(token);
        if tokens.iter().any(|(_, _, known)| *known == digest) {
            return Err(wrong("another line has this token"));
        }
        if tokens.len() == MAX_TOKENS {
            return Err(wrong("256 tokens at most"));
        }
        tokens.push((name.into(), right, digest));
    }
    if tokens.is_empty() {
        return Err("has no token; write a line name:token".to_owned());
    }
    Ok(tokens)
}

/// The caller with this token. The time depends neither on its line nor on its wrong characters: a
/// caller cannot guess a token by the time of answers.
fn caller_of(tokens: &[StoredToken], presented: &[u8]) -> Option<Caller> {
    let digest = sha256(presented);
    let mut caller = None;
    for (name, right, token) in tokens {
        if bool::from(token.ct_eq(digest.as_slice())) {
            caller = Some((name, *right));
        }
    }
    let (name, right) = caller?;
    let name = Some(name.clone());
    Some(Caller { name, right })
}

/// The access rules of one listener.
#[derive(Debug)]
pub struct Access {
    guard: Guard,
    tokens: Option<Tokens>,
    warnings: Mutex<Throttle>,
}

impl Access {
    /// The rules of a listener at this address.
    pub fn new(listener: IpAddr, tokens: Option<Tokens>) -> Self {
        Self {
            guard: Guard::new(listener),
            tokens,
            warnings: Mutex::new(Throttle::new(LOG_INTERVAL)),
        }
    }

    /// The guard, which rejects requests of pages of other sites.
    pub const fn guard(&self) -> Guard {
        self.guard
    }

    /// Whether any change is accepted.
    pub const fn accepts_changes(&self) -> bool {
        self.tokens.is_some()
    }

    /// The caller, if the call may be answered.
    ///
    /// # Errors
    /// 401, 403, or 503 if the file of tokens cannot be read; with the remedy.
    pub async fn caller(&self, headers: &HeaderMap, need: Right) -> Result<Caller, Failure> {
        let is_loopback = self.guard.is_loopback;
        let Some(presented) = headers.get(AUTHORIZATION) else {
            return Err(match (&self.tokens, need) {
                (_, right @ Right::Read) if is_loopback => return Ok(Caller { name: None, right }),
                (None, Right::Change | Right::ChangeAll) => {
                    Failure::forbidden("this process accepts no changes; set ADMIN_TOKEN_FILE")
                }
                (None, Right::Read) => Failure::forbidden(
                    "the debug listener is not on loopback, and needs a token: set \
                     ADMIN_TOKEN_FILE, or DEBUG_HOST to 127.0.0.1",
                ),
                (Some(_), _) => Failure::unauthorized(
                    "a token of ADMIN_TOKEN_FILE is needed; send it as Authorization: Bearer TOKEN",
                ),
            });
        };
        let Some(tokens) = self.tokens.clone() else {
            return Err(Failure::forbidden(match is_loopback {
                true => {
                    "this process has no tokens: to read, send none (without --admin-token-file \
                     and WEIR_ADMIN_TOKEN_FILE); for changes, set its ADMIN_TOKEN_FILE"
                }
                false => "this process has no tokens; set its ADMIN_TOKEN_FILE",
            }));
        };
        let presented = presented.as_bytes().split_at_checked(7);
        let presented = presented.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        let Some((_, token)) = presented else {
            return Err(Failure::unauthorized("write Authorization: Bearer TOKEN"));
        };
        let token = token.to_vec();
        let caller = blocking(move || match tokens.read() {
            Ok(known) => Ok(caller_of(&known, &token)),
            Err(error) => Err(Failure::unavailable(&format!("ADMIN_TOKEN_FILE {error}"))),
        });
        if let Some(caller) = caller.await? {
            return caller.check(need).map(|()| caller);
        }
        if lock(&self.warnings).admit(Instant::now()).is_some() {
            tracing::warn!("admin API call rejected: its token is not in ADMIN_TOKEN_FILE");
        }
        Err(Failure::unauthorized("ADMIN_TOKEN_FILE has no such token"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use hyper::StatusCode;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        file
    }

    const GOOD: &str =
        "# people\nann:0123456789abcdef\n\nbob@shop.example:fedcba9876543210fedcba\n";

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(*name, value.parse().expect("a header"));
        }
        headers
    }

    async fn result(
        access: &Access,
        need: Right,
        all: &[(&'static str, &str)],
    ) -> Result<Option<Box<str>>, StatusCode> {
        access
            .caller(&headers(all), need)
            .await
            .map(|caller| caller.name)
            .map_err(|failure| failure.status)
    }

    #[test]
    fn a_wrong_file_names_its_line_and_no_token() {
        for (text, what) in [
            ("", "has no token"),
            ("# only\n", "has no token"),
            ("ann 0123456789abcdef", "line 1: write name:token"),
            ("\n:0123456789abcdef", "line 2: a name"),
            ("a b:0123456789abcdef", "line 1: a name"),
            ("ann:short", "line 1: a token"),
            ("ann:0123456789abcd ef", "line 1: write nothing, read,"),
            (
                "ann:0123456789abcdef all read",
                "line 1: write nothing, read,",
            ),
            ("ann:0123456789abcdef Read", "line 1: write nothing, read,"),
            ("ann: read", "line 1: a token"),
            (
                "ann:0123456789abcdef\nann:0123456789abcdeX",
                "line 2: another line has this name",
            ),
            (
                "ann:0123456789abcdef\nbob:0123456789abcdef read",
                "line 2: another line has this token",
            ),
        ] {
            let error = parse(text).expect_err(text);
            assert!(
                error.contains(what) && !error.contains("0123456789"),
                "{text}: {error}"
            );
        }
        let many: String = (0..300)
            .map(|number| format!("n{number}:0123456789abcd{number:03}\n"))
            .collect();
        assert!(parse(&many).expect_err("too many").contains("line 257"));
        let large = file(&"#".repeat(70_000));
        assert_eq!(
            Tokens::try_new(large.path().to_owned()),
            Err("is larger than 64 KiB".to_owned())
        );
        let missing = Tokens::try_new("/nowhere".into());
        assert!(missing.is_err_and(|error| error.starts_with("cannot be read: ")));
    }

    #[tokio::test]
    async fn on_loopback_reading_is_free_and_changes_need_a_token() {
        let file = file(GOOD);
        let access = Access::new(
            [127, 0, 0, 1].into(),
            Some(Tokens::try_new(file.path().to_owned()).expect("tokens")),
        );
        let host = ("host", "localhost:6070");
        assert_eq!(result(&access, Right::Read, &[host]).await, Ok(None));
        assert_eq!(
            result(&access, Right::Change, &[host]).await,
            Err(StatusCode::UNAUTHORIZED)
        );
        let with = |text: &'static str| [host, ("authorization", text)];
        assert_eq!(
            result(&access, Right::Change, &with("Bearer 0123456789abcdef")).await,
            Ok(Some("ann".into()))
        );
        assert_eq!(
            result(&access, Right::Read, &with("bearer fedcba9876543210fedcba")).await,
            Ok(Some("bob@shop.example".into()))
        );
        for wrong in [
            "Bearer 0123456789abcdeF",
            "Bearer ",
            "Bearer ann:0123456789abcdef",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
        ] {
            assert_eq!(
                result(&access, Right::Change, &with(wrong)).await,
                Err(StatusCode::UNAUTHORIZED),
                "{wrong}"
            );
        }
        // Removed tokens count no more, and a file that cannot be read refuses all.
        std::fs::write(file.path(), "carl:0123456789abcdef").expect("written");
        assert_eq!(
            result(&access, Right::Change, &with("Bearer 0123456789abcdef")).await,
            Ok(Some("carl".into()))
        );
        std::fs::write(file.path(), "nothing").expect("written");
        assert_eq!(
            result(&access, Right::Change, &with("Bearer 0123456789abcdef")).await,
            Err(StatusCode::SERVICE_UNAVAILABLE)
        );
        let none = Access::new([127, 0, 0, 1].into(), None);
        assert_eq!(
            result(&none, Right::Change, &[host]).await,
            Err(StatusCode::FORBIDDEN)
        );
    }
}
