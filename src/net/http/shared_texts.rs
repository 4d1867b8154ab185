//! Long texts, such as the exposition of `/metrics`, shared among their readers.
//!
//! With 10,000 limits a text has megabytes and takes tenths of a second of a thread. With a text
//! for each reader, a few readers could use up all memory. The rules:
//!
//! - While a text is being sent, further readers get the same one for a second. If none is being
//!   sent, a new one is made: therefore a scrape includes everything before it, unless another
//!   scrape began less than a second earlier.
//! - At most two texts are in memory. While both are being sent, further readers get the newer one,
//!   however old. That is at most the time in which a connection must take an answer (`deadline`):
//!   the older one gets no further readers, and when its last one has ended, a new text is made.
//! - A text is compressed once, for the first reader that wants it compressed.
//! - One text is made or compressed at a time, on a thread of lower priority, because the control
//!   thread also accepts connections.
//! - A page with variants (a format, a domain) has a key for each. While two others are being sent,
//!   a reader of a third variant is refused.

use std::io::Write;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Incoming;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap, RETRY_AFTER, VARY};
use hyper::{Method, Request, StatusCode};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{Page, failed, not_allowed, response, with_header};

/// The content type of metrics: Prometheus's text format.
pub const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The age up to which a text that is being sent gets further readers.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Makes the texts of one page and shares them. `K` distinguishes the variants of the page.
pub struct SharedTexts<K> {
    make: Arc<dyn Fn(&K) -> String + Send + Sync>,
    /// Locked while a text is made, also after its reader has left.
    texts: Arc<Mutex<Texts<K>>>,
}

/// The texts that are being sent. Their readers own them.
#[derive(Debug)]
struct Texts<K> {
    newer: Weak<SharedText<K>>,
    older: Weak<SharedText<K>>,
}

#[derive(Debug)]
struct SharedText<K> {
    key: K,
    made: Instant,
    plain: Box<str>,
    gzip: OnceLock<Vec<u8>>,
}

/// The part of a shared text that one response holds until its last byte is sent.
struct Reader<K> {
    text: Arc<SharedText<K>>,
    in_gzip: bool,
}

/// Two texts of other variants are being sent.
#[derive(Debug)]
struct Busy;

impl<K: Clone + Eq + Send + Sync + 'static> SharedTexts<K> {
    /// `make` runs on a thread of lower priority, once at a time.
    pub fn new(make: impl Fn(&K) -> String + Send + Sync + 'static) -> Self {
        Self {
            make: Arc::new(make),
            texts: Arc::new(Mutex::new(Texts {
                newer: Weak::new(),
                older: Weak::new(),
            })),
        }
    }

    /// The response to one request for the variant `key`, compressed if the client accepts it.
    pub async fn page(
        &self,
        request: &Request<Incoming>,
        key: K,
        content_type: &'static str,
    ) -> Page {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return not_allowed("GET, HEAD", "this page can only be read; use GET\n");
        }
        let in_gzip = accepts_gzip(request.headers());
        // The answer to HEAD has the length only if it is known (RFC 9110, 8.6). No text is made
        // for it.
        let mut body = Bytes::new();
        if request.method() != Method::HEAD {
            match self.body(key, in_gzip).await {
                Ok(text) => body = text,
                Err(failure) => return failure,
            }
        }
        let page = response(StatusCode::OK, content_type, body);
        let page = with_header(page, VARY, "accept-encoding");
        match in_gzip {
            true => with_header(page, CONTENT_ENCODING, "gzip"),
            false => page,
        }
    }

    /// The body, or an error page if there is no body.
    async fn body(&self, key: K, in_gzip: bool) -> Result<Bytes, Page> {
        let mut texts = Arc::clone(&self.texts).lock_owned().await;
        let shared = texts.shared(&key, Instant::now()).map_err(|Busy| {
            let busy = failed(
                StatusCode::SERVICE_UNAVAILABLE,
                "two other clients are still reading this page; try again",
            );
            with_header(busy, RETRY_AFTER, "1")
        })?;
        let text = match shared {
            Some(text) if !in_gzip || text.gzip.get().is_some() => text,
            shared => {
                let make = Arc::clone(&self.make);
                let make = move || {
                    let text = shared.unwrap_or_else(|| {
                        let text = make(&key);
                        texts.add(SharedText::new(key, text))
                    });
                    if in_gzip {
                        text.gzip.get_or_init(|| gzip(text.plain.as_bytes()));
                    }
                    text
                };
                tokio::task::spawn_blocking(make).await.map_err(|panic| {
                    let message = format!("the page cannot be shown: {panic}");
                    failed(StatusCode::INTERNAL_SERVER_ERROR, &message)
                })?
            }
        };
        Ok(Bytes::from_owner(Reader { text, in_gzip }))
    }
}

impl<K> SharedText<K> {
    fn new(key: K, text: String) -> Self {
        Self {
            key,
            made: Instant::now(),
            plain: text.into_boxed_str(),
            gzip: OnceLock::new(),
        }
    }
}

/// Names and labels are repetitive: the fastest level compresses them to a twentieth.
fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let written = encoder.write_all(plain).and_then(|()| encoder.finish());
    written.expect("writing into a vector does not fail")
}

impl<K> AsRef<[u8]> for Reader<K> {
    fn as_ref(&self) -> &[u8] {
        let gzip = self.text.gzip.get().filter(|_| self.in_gzip);
        gzip.map_or(self.text.plain.as_bytes(), Vec::as_slice)
    }
}

impl<K: Eq> Texts<K> {
    /// The text that a further reader gets; `None` if a new one is to be made.
    fn shared(&self, key: &K, now: Instant) -> Result<Option<Arc<SharedText<K>>>, Busy> {
        let alive = [self.newer.upgrade(), self.older.upgrade()];
        let both_are_read = alive.iter().all(Option::is_some);
        match alive.into_iter().flatten().find(|text| text.key == *key) {
            None if both_are_read => Err(Busy),
            Some(text) if both_are_read || now.saturating_duration_since(text.made) <= MAX_AGE => {
                Ok(Some(text))
            }
            _ => Ok(None),
        }
    }

    fn add(&mut self, text: SharedText<K>) -> Arc<SharedText<K>> {
        let text = Arc::new(text);
        let before = std::mem::replace(&mut self.newer, Arc::downgrade(&text));
        if before.strong_count() > 0 {
            self.older = before;
        }
        text
    }
}

/// Whether `Accept-Encoding` names gzip with a weight above 0. Every other client gets the plain
/// text. Source: RFC 9110, section 12.5.3.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter();
    let mut members = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    members.any(|member| {
        let (coding, parameter) = member.split_once(';').unwrap_or((member, "q=1"));
        let weight = parameter.trim().strip_prefix("q=");
        let is_gzip = coding.trim().eq_ignore_ascii_case("gzip");
        is_gzip && weight.is_some_and(|weight| weight.parse().is_ok_and(|weight: f32| weight > 0.0))
    })
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn text<K>(key: K, made: Instant) -> SharedText<K> {
        SharedText {
            made,
            ..SharedText::new(key, String::new())
        }
    }

    fn no_texts<K>() -> Texts<K> {
        let (newer, older) = (Weak::new(), Weak::new());
        Texts { newer, older }
    }

    fn shared<K: Eq>(texts: &Texts<K>, key: &K, now: Instant) -> Option<Arc<SharedText<K>>> {
        texts.shared(key, now).expect("not busy")
    }

    #[test]
    fn a_text_is_shared_for_a_second_while_it_is_being_sent() {
        let (mut texts, now) = (no_texts(), Instant::now());
        assert!(shared(&texts, &(), now).is_none());
        let first = texts.add(text((), now));
        assert!(
            shared(&texts, &(), now + MAX_AGE).is_some_and(|shared| Arc::ptr_eq(&shared, &first))
        );
        assert!(shared(&texts, &(), now + MAX_AGE + Duration::from_millis(1)).is_none());
        drop(first);
        assert!(shared(&texts, &(), now).is_none(), "it has been sent");
    }

    #[test]
    fn there_are_two_texts_at_most() {
        let (mut texts, now) = (no_texts(), Instant::now());
        let minute = Duration::from_secs(60);
        let first = texts.add(text((), now));
        let second = texts.add(text((), now + minute));
        let both = shared(&texts, &(), now + 3 * minute).expect("one of both");
        assert!(Arc::ptr_eq(&both, &second), "the newer one, however old");
        drop(both);
        // The older one stays while it is read, also when the newer one has been sent.
        drop(second);
        let third = texts.add(text((), now + 2 * minute));
        assert!(
            shared(&texts, &(), now + 4 * minute)
                .is_some_and(|shared| Arc::ptr_eq(&shared, &third))
        );
        drop(first);
        assert!(
            shared(&texts, &(), now + 4 * minute).is_none(),
            "there is room for a new one"
        );
    }

    #[test]
    fn a_third_variant_waits_until_one_of_two_is_sent() {
        let (mut texts, now) = (no_texts(), Instant::now());
        let one = texts.add(text("one", now));
        assert!(
            shared(&texts, &"two", now).is_none(),
            "another variant is another text"
        );
        let two = texts.add(text("two", now));
        for (key, expected) in [("one", &one), ("two", &two)] {
            assert!(
                shared(&texts, &key, now + 2 * MAX_AGE)
                    .is_some_and(|shared| Arc::ptr_eq(&shared, expected))
            );
        }
        assert!(matches!(texts.shared(&"three", now), Err(Busy)));
        drop(one);
        assert!(shared(&texts, &"three", now).is_none());
    }

    #[tokio::test]
    async fn a_text_is_compressed_once() {
        let lines = || (0..200).map(|number| format!("weir_total{{number=\"{number}\"}} 1\n"));
        let scrapes = SharedTexts::new(move |()| lines().collect());
        let first = scrapes.body((), true).await.unwrap();
        let second = scrapes.body((), true).await.unwrap();
        let plain = scrapes.body((), false).await.unwrap();
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert!(
            first.len() * 3 < plain.len(),
            "{} of {} bytes",
            first.len(),
            plain.len()
        );
        drop([first, second, plain]);
        assert!(shared(&*scrapes.texts.lock().await, &(), Instant::now()).is_none());
    }

    #[test]
    fn clients_that_name_gzip_get_it() {
        for accepted in [
            &["gzip"][..],
            &["GZip"],
            &["deflate, gzip;q=1.0, *;q=0.5"],
            &["br", "zstd , gzip ; q=0.001"],
            &["gzip, identity"],
            &["identity;q=0, gzip;q=0.1"],
        ] {
            assert!(accepts_gzip(&accepting(accepted)), "{accepted:?}");
        }
        for other in [
            &[][..],
            &[""],
            &["br, zstd"],
            &["*"],
            &["gzip;q=0"],
            &["gzip;Q=0.000, deflate"],
            &["gzip;q=0, *"],
            &["identity;q=0"],
            &["gzip;q=."],
            &["gzip;q="],
            &["gzip;level"],
            &[",;, gzip;;,\u{e9}"],
            &["gzipped"],
        ] {
            assert!(!accepts_gzip(&accepting(other)), "{other:?}");
        }
    }

    fn accepting(values: &[&str]) -> HeaderMap {
        let value = |text: &&str| HeaderValue::from_bytes(text.as_bytes()).expect("a value");
        let all = values.iter().map(|text| (ACCEPT_ENCODING, value(text)));
        all.fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(name, value);
            headers
        })
    }
}
