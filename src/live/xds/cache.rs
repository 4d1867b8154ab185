//! The last good configuration in a file: a process that starts while the control plane is away has
//! limits from its first request.
//!
//! The file is a line with a digest of the rest, and the rest is a protobuf message of our own. It
//! is replaced as a whole. A file that is not whole, or of another node, is ignored.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use prost::Message;

use crate::core::digest::{hex, sha256};
use crate::live::replaced::replace;
use crate::net::bounded;

/// The beginning of the file, with the version of its format. A process that does not know the
/// version ignores the file.
const MAGIC: &str = "weir limits 1 ";

/// The length of the digest in hexadecimal digits.
const DIGEST_BYTES: usize = 64;

/// Maximum number of bytes of the file in addition to the resources: names, and the format itself.
const EXTRA_BYTES: u64 = 16 << 20;

/// The file.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    pub(super) path: PathBuf,
    pub(super) node: String,
    /// The most bytes of resources.
    pub(super) max_bytes: usize,
}

/// The file is of another program or version, or was cut in its first line.
const NO_FILE_OF_LIMITS: &str = "it is no file of limits of this version of Weir";

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
    pub(super) fn load(&self) -> Result<Option<BTreeMap<String, Bytes>>, String> {
        let text = match bounded::read(&self.path, self.max_bytes as u64 + EXTRA_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("it cannot be read: {error}")),
            Ok(text) => text.ok_or("it is larger than XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES allows")?,
        };
        let rest = text.strip_prefix(MAGIC.as_bytes());
        let split = rest.and_then(|rest| rest.split_first_chunk::<DIGEST_BYTES>());
        let (digest, rest) = split.ok_or(NO_FILE_OF_LIMITS)?;
        let body = rest.strip_prefix(b"\n").ok_or(NO_FILE_OF_LIMITS)?;
        if digest[..] != *digest_of(body).as_bytes() {
            return Err("it is incomplete or was changed: its digest does not match".to_owned());
        }
        let begin = text.len() - body.len();
        let saved = Saved::decode(Bytes::from(text).slice(begin..));
        let saved = saved.map_err(|_| NO_FILE_OF_LIMITS)?;
        if saved.node != self.node {
            let what = format!("it belongs to the node {:?}", saved.node);
            return Err(format!("{what}, not to CONFIG_GRPC_XDS_NODE_ID"));
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
        let digest = digest_of(&body);
        let parts = [MAGIC.as_bytes(), digest.as_bytes(), b"\n", &body];
        replace(&self.path, &parts)
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

    fn is_not_whole(error: &str) -> bool {
        error == NO_FILE_OF_LIMITS || error.ends_with("its digest does not match")
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
                cache.load().is_err_and(|error| is_not_whole(&error)),
                "{end} of {}",
                whole.len()
            );
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&cache.path, changed).expect("written");
            assert!(
                cache.load().is_err_and(|error| is_not_whole(&error)),
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
        assert_eq!(
            other.load().expect_err("of another node"),
            "it belongs to the node \"node\", not to CONFIG_GRPC_XDS_NODE_ID"
        );
        fs::File::options()
            .write(true)
            .open(&own.path)
            .and_then(|file| file.set_len(EXTRA_BYTES + 1_001))
            .expect("a hole");
        assert_eq!(
            own.load().expect_err("too large"),
            "it is larger than XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES allows"
        );
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
