//! The last good configuration in a file, so that a process that starts while the control plane is
//! away has limits from its first request.
//!
//! The file is a line with a digest of the rest, and the rest is a protobuf message of our own. It
//! is replaced as a whole. A file that is not whole, or of another node, is ignored.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use bytes::Bytes;
use prost::Message;

use crate::core::digest::{hex, sha256};
use crate::live::replaced::replace;

/// The beginning of the file, with the version of its format. A process that does not know the
/// version ignores the file.
const MAGIC: &str = "weir limits 1 ";

/// The length of the digest in hexadecimal digits.
const DIGEST_BYTES: usize = 64;

/// What the file may have beyond the resources: names, and the format itself.
const EXTRA_BYTES: u64 = 16 << 20;

/// The file.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    pub(super) path: PathBuf,
    pub(super) node: String,
    /// The most bytes of resources.
    pub(super) max_bytes: usize,
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("it is larger than XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES allows")]
    TooLarge,
    #[error("it is no file of limits of this version of Weir")]
    Format,
    #[error("it is incomplete or was changed: its digest does not match")]
    Digest,
    #[error("it belongs to the node {0:?}, not to CONFIG_GRPC_XDS_NODE_ID")]
    OtherNode(String),
}

#[derive(Clone, PartialEq, Message)]
struct Saved {
    #[prost(string, tag = "1")]
    node: String,
    #[prost(message, repeated, tag = "2")]
    resources: Vec<SavedResource>,
}

#[derive(Clone, PartialEq, Message)]
struct SavedResource {
    #[prost(string, tag = "1")]
    name: String,
    // Tag 2 was a version.
    #[prost(bytes = "bytes", tag = "3")]
    config: Bytes,
}

impl Cache {
    /// The saved resources; `None` if there is no file.
    ///
    /// # Errors
    /// Why the file cannot be used.
    pub(super) fn load(&self) -> Result<Option<BTreeMap<String, Bytes>>, Unusable> {
        let max = self.max_bytes as u64 + EXTRA_BYTES;
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?.take(max + 1),
        };
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        if text.len() as u64 > max {
            return Err(Unusable::TooLarge);
        }
        let after_magic = text
            .strip_prefix(MAGIC.as_bytes())
            .and_then(|rest| rest.split_first_chunk::<DIGEST_BYTES>());
        let (digest, rest) = after_magic.ok_or(Unusable::Format)?;
        let body = rest.strip_prefix(b"\n").ok_or(Unusable::Format)?;
        if digest[..] != *digest_of(body).as_bytes() {
            return Err(Unusable::Digest);
        }
        let begin = text.len() - body.len();
        let saved =
            Saved::decode(Bytes::from(text).slice(begin..)).map_err(|_| Unusable::Format)?;
        if saved.node != self.node {
            return Err(Unusable::OtherNode(saved.node));
        }
        let named = |it: SavedResource| (it.name, it.config);
        Ok(Some(saved.resources.into_iter().map(named).collect()))
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// The operating system's error. The file is the one that it was.
    pub(super) fn save(&self, resources: &BTreeMap<String, Bytes>) -> io::Result<()> {
        let resource = |(name, config): (&String, &Bytes)| SavedResource {
            name: name.clone(),
            config: config.clone(),
        };
        let body = Saved {
            node: self.node.clone(),
            resources: resources.iter().map(resource).collect(),
        }
        .encode_to_vec();
        replace(
            &self.path,
            &[MAGIC.as_bytes(), digest_of(&body).as_bytes(), b"\n", &body],
        )
    }
}

fn digest_of(body: &[u8]) -> String {
    hex(&sha256(body))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn resources() -> BTreeMap<String, Bytes> {
        BTreeMap::from(["a", "b"].map(|name| (name.to_owned(), name.into())))
    }

    fn cache(folder: &Path) -> Cache {
        Cache {
            path: folder.join("limits"),
            node: "node".to_owned(),
            max_bytes: 1_000,
        }
    }

    #[test]
    fn what_was_saved_is_loaded_and_nothing_else_is_left_in_the_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = cache(folder.path());
        assert!(cache.load().expect("no file is no error").is_none());
        for resources in [resources(), BTreeMap::new(), resources()] {
            cache.save(&resources).expect("saved");
            assert_eq!(cache.load().expect("usable"), Some(resources));
        }
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn a_file_that_is_not_whole_is_not_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = cache(folder.path());
        cache.save(&resources()).expect("saved");
        let whole = fs::read(&cache.path).expect("readable");
        for end in 0..whole.len() {
            fs::write(&cache.path, &whole[..end]).expect("written");
            assert!(
                matches!(cache.load(), Err(Unusable::Format | Unusable::Digest)),
                "{end} of {}",
                whole.len()
            );
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&cache.path, changed).expect("written");
            assert!(
                matches!(cache.load(), Err(Unusable::Format | Unusable::Digest)),
                "byte {at}"
            );
        }
    }

    #[test]
    fn a_file_of_another_node_or_beyond_the_bound_is_not_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = cache(folder.path());
        own.save(&resources()).expect("saved");
        let other = Cache {
            node: "other".to_owned(),
            ..own.clone()
        };
        assert!(matches!(other.load(), Err(Unusable::OtherNode(node)) if node == "node"));
        File::options()
            .write(true)
            .open(&own.path)
            .and_then(|file| file.set_len(EXTRA_BYTES + 1_001))
            .expect("a hole");
        assert!(matches!(own.load(), Err(Unusable::TooLarge)));
    }

    #[test]
    fn a_folder_that_is_missing_is_an_error_and_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(
            cache(&folder.path().join("missing"))
                .save(&resources())
                .is_err()
        );
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}
