//! The text of `/metrics`, shared among its readers.
//!
//! With 10,000 limits a text has megabytes and takes tenths of a second of a thread, so that a text for each reader would let a few readers take
//! all memory. The rule:
//!
//! - While a text is being sent, further readers get the same one for a second. If none is being sent, a new one is made: so a scrape shows what
//!   happened before it, unless another scrape is less than a second ahead of it.
//! - At most two texts are in memory. While both are being sent, further readers get the newer one, however old. That is at most the time in which
//!   a connection must take an answer (`deadline`): the older one gets no further readers, and when its last one has ended, a new text is made.
//! - A text is compressed once, for the first reader that wants it compressed.
//! - One text is made or compressed at a time, on a thread of lower priority, because the control thread also accepts connections.

use std::io::Write;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::Mutex;
use tokio::task::JoinError;
use tokio::time::Instant;

use super::encoding::Encoding;
use crate::metrics::Metrics;

/// The age up to which a text that is being sent gets further readers.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Makes texts and shares them.
#[derive(Debug)]
pub(super) struct Scrapes {
    metrics: Arc<Metrics>,
    /// Locked while a text is made, also after its reader has left.
    texts: Arc<Mutex<Texts>>,
}

/// The texts that are being sent. Their readers own them.
#[derive(Debug, Default)]
struct Texts {
    newer: Weak<Text>,
    older: Weak<Text>,
}

#[derive(Debug)]
struct Text {
    made: Instant,
    plain: Box<str>,
    gzip: OnceLock<Vec<u8>>,
}

/// What one response holds until its last byte is sent.
struct Reader {
    text: Arc<Text>,
    encoding: Encoding,
}

impl Scrapes {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, texts: Arc::default() }
    }

    /// The body of one response. An error means that making the text panicked.
    pub(super) async fn body(&self, encoding: Encoding) -> Result<Bytes, JoinError> {
        let mut texts = Arc::clone(&self.texts).lock_owned().await;
        let text = match texts.shared(Instant::now()) {
            Some(text) if text.has(encoding) => text,
            shared => {
                let metrics = Arc::clone(&self.metrics);
                let make = move || {
                    let text = shared.unwrap_or_else(|| texts.add(Text::new(metrics.encode())));
                    text.encode(encoding);
                    text
                };
                tokio::task::spawn_blocking(make).await?
            }
        };
        Ok(Bytes::from_owner(Reader { text, encoding }))
    }
}

impl Text {
    fn new(text: String) -> Self {
        Self { made: Instant::now(), plain: text.into_boxed_str(), gzip: OnceLock::new() }
    }

    fn has(&self, encoding: Encoding) -> bool {
        encoding == Encoding::Identity || self.gzip.get().is_some()
    }

    fn encode(&self, encoding: Encoding) {
        if encoding == Encoding::Gzip {
            self.gzip.get_or_init(|| gzip(self.plain.as_bytes()));
        }
    }
}

/// Names and labels repeat so much that the fastest level leaves a twentieth.
fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let written = encoder.write_all(plain).and_then(|()| encoder.finish());
    written.expect("writing into a vector does not fail")
}

impl AsRef<[u8]> for Reader {
    fn as_ref(&self) -> &[u8] {
        match self.encoding {
            Encoding::Identity => self.text.plain.as_bytes(),
            Encoding::Gzip => self.text.gzip.get().map_or(&[], Vec::as_slice),
        }
    }
}

impl Texts {
    /// The text that a further reader gets; `None` if a new one is to be made.
    fn shared(&self, now: Instant) -> Option<Arc<Text>> {
        let newer = self.newer.upgrade()?;
        let both_are_read = self.older.strong_count() > 0;
        (both_are_read || now.saturating_duration_since(newer.made) <= MAX_AGE).then_some(newer)
    }

    fn add(&mut self, text: Text) -> Arc<Text> {
        let text = Arc::new(text);
        let before = std::mem::replace(&mut self.newer, Arc::downgrade(&text));
        if before.strong_count() > 0 {
            self.older = before;
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(made: Instant) -> Text {
        Text { made, ..Text::new(String::new()) }
    }

    #[test]
    fn a_text_is_shared_for_a_second_while_it_is_being_sent() {
        let (mut texts, now) = (Texts::default(), Instant::now());
        assert!(texts.shared(now).is_none());
        let first = texts.add(text(now));
        assert!(texts.shared(now + MAX_AGE).is_some_and(|shared| Arc::ptr_eq(&shared, &first)));
        assert!(texts.shared(now + MAX_AGE + Duration::from_millis(1)).is_none());
        drop(first);
        assert!(texts.shared(now).is_none(), "it has been sent");
    }

    #[test]
    fn there_are_two_texts_at_most() {
        let (mut texts, now) = (Texts::default(), Instant::now());
        let minute = Duration::from_secs(60);
        let first = texts.add(text(now));
        let second = texts.add(text(now + minute));
        let shared = texts.shared(now + 3 * minute).expect("one of both");
        assert!(Arc::ptr_eq(&shared, &second), "the newer one, however old");
        drop(shared);
        // The older one stays while it is read, also when the newer one has been sent.
        drop(second);
        let third = texts.add(text(now + 2 * minute));
        assert!(texts.shared(now + 4 * minute).is_some_and(|shared| Arc::ptr_eq(&shared, &third)));
        drop(first);
        assert!(texts.shared(now + 4 * minute).is_none(), "there is room for a new one");
    }

    #[tokio::test]
    async fn a_text_is_compressed_once() {
        let scrapes = Scrapes::new(Metrics::new(1, 0.8));
        let first = scrapes.body(Encoding::Gzip).await.unwrap();
        let second = scrapes.body(Encoding::Gzip).await.unwrap();
        let plain = scrapes.body(Encoding::Identity).await.unwrap();
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert!(first.len() * 3 < plain.len(), "{} of {} bytes", first.len(), plain.len());
        drop([first, second, plain]);
        assert!(scrapes.texts.lock().await.shared(Instant::now()).is_none());
    }
}
