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
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap, HeaderValue, RETRY_AFTER, VARY};
use hyper::{Method, Request, StatusCode};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{Page, failed, not_allowed, response};

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
    encoding: ContentEncoding,
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
        let Some(encoding) = preferred(request.headers()) else {
            return failed(
                StatusCode::NOT_ACCEPTABLE,
                "this page is sent as it is or in gzip, and Accept-Encoding refuses both",
            );
        };
        // The answer to HEAD has the length only if it is known (RFC 9110, 8.6). No text is made
        // for it.
        let mut body = Bytes::new();
        if request.method() != Method::HEAD {
            match self.body(key, encoding).await {
                Ok(text) => body = text,
                Err(failure) => return failure,
            }
        }
        let mut page = response(StatusCode::OK, content_type, body);
        page.headers_mut()
            .insert(VARY, HeaderValue::from_static("accept-encoding"));
        if encoding == ContentEncoding::Gzip {
            page.headers_mut()
                .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        page
    }

    /// The body, or an error page if there is no body.
    async fn body(&self, key: K, encoding: ContentEncoding) -> Result<Bytes, Page> {
        let mut texts = Arc::clone(&self.texts).lock_owned().await;
        let shared = texts.shared(&key, Instant::now()).map_err(|Busy| {
            let mut busy = failed(
                StatusCode::SERVICE_UNAVAILABLE,
                "two other clients are still reading this page; try again",
            );
            busy.headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from_static("1"));
            busy
        })?;
        let text = match shared {
            Some(text) if encoding == ContentEncoding::Identity || text.gzip.get().is_some() => {
                text
            }
            shared => {
                let make = Arc::clone(&self.make);
                let make = move || {
                    let text = shared.unwrap_or_else(|| {
                        let text = make(&key);
                        texts.add(SharedText::new(key, text))
                    });
                    if encoding == ContentEncoding::Gzip {
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
        Ok(Bytes::from_owner(Reader { text, encoding }))
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
        match self.encoding {
            ContentEncoding::Identity => self.text.plain.as_bytes(),
            ContentEncoding::Gzip => self.text.gzip.get().map_or(&[], Vec::as_slice),
        }
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

/// The codings that Weir can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentEncoding {
    Identity,
    Gzip,
}

/// A weight in thousandths; 0 = not acceptable.
type Weight = u16;

const MAX_WEIGHT: Weight = 1_000;

/// The preferred coding by `Accept-Encoding`, gzip of two equal ones. `None` if the client accepts
/// neither. Source: RFC 9110, sections 12.4.2 (weights) and 12.5.3.
fn preferred(headers: &HeaderMap) -> Option<ContentEncoding> {
    let (mut gzip, mut identity, mut any) = (None, None, None);
    let members = headers
        .get_all(ACCEPT_ENCODING)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    for (coding, weight) in members.filter_map(member) {
        let known = match coding.to_ascii_lowercase().as_slice() {
            b"gzip" | b"x-gzip" => &mut gzip,
            b"identity" => &mut identity,
            b"*" => &mut any,
            _ => continue,
        };
        *known = (*known).max(Some(weight));
    }
    let gzip = gzip.or(any).unwrap_or(0);
    // Identity is acceptable when the client does not mention it, but any coding that it does
    // mention is better.
    match identity.or(any) {
        Some(identity) if identity > gzip => Some(ContentEncoding::Identity),
        None if gzip == 0 => Some(ContentEncoding::Identity),
        _ => (gzip > 0).then_some(ContentEncoding::Gzip),
    }
}

/// One member of the list: a coding and its weight. `None` if it has another form, which counts as
/// not sent.
fn member(text: &[u8]) -> Option<(&[u8], Weight)> {
    let mut parts = text.splitn(2, |&byte| byte == b';').map(<[u8]>::trim_ascii);
    let coding = parts.next().filter(|coding| !coding.is_empty())?;
    let weight = parts.next().map_or(Some(MAX_WEIGHT), |parameter| {
        match parameter.split_first_chunk() {
            Some((b"q=" | b"Q=", value)) => weight(value),
            _ => None,
        }
    })?;
    Some((coding, weight))
}

/// A whole digit, 0 or 1, and up to three decimals.
fn weight(text: &[u8]) -> Option<Weight> {
    let (whole, decimals) = match text {
        [whole] => (whole, &[][..]),
        [whole, b'.', decimals @ ..] if decimals.len() <= 3 => (whole, decimals),
        _ => return None,
    };
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| Weight::from(byte - b'0'));
    let mut weight = digit(whole)?;
    for index in 0..3 {
        weight = weight * 10 + decimals.get(index).map_or(Some(0), digit)?;
    }
    (weight <= MAX_WEIGHT).then_some(weight)
}

#[cfg(test)]
mod tests {
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
        let first = scrapes.body((), ContentEncoding::Gzip).await.unwrap();
        let second = scrapes.body((), ContentEncoding::Gzip).await.unwrap();
        let plain = scrapes.body((), ContentEncoding::Identity).await.unwrap();
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
    fn codings_are_chosen_by_their_weights() {
        use ContentEncoding::{Gzip, Identity};
        let table: &[(&[&str], Option<ContentEncoding>)] = &[
            (&[], Some(Identity)),
            (&[""], Some(Identity)),
            (&["gzip"], Some(Gzip)),
            (&["GZip"], Some(Gzip)),
            (&["x-gzip"], Some(Gzip)),
            (&["deflate, gzip;q=1.0, *;q=0.5"], Some(Gzip)),
            (&["br", "zstd , gzip ; q=0.001"], Some(Gzip)),
            (&["br, zstd"], Some(Identity)),
            (&["gzip;q=0"], Some(Identity)),
            (&["gzip;Q=0.000, deflate"], Some(Identity)),
            (&["gzip;q=0.5, identity"], Some(Identity)),
            (&["gzip;q=0.5, identity;q=0.499"], Some(Gzip)),
            (&["gzip, identity"], Some(Gzip)),
            (&["*"], Some(Gzip)),
            (&["*;q=0, identity"], Some(Identity)),
            (&["gzip;q=0, *"], Some(Identity)),
            (&["identity;q=0, gzip;q=0.1"], Some(Gzip)),
            (&["identity;q=0"], None),
            (&["identity;q=0, gzip;q=0, *"], None),
            (&["*;q=0"], None),
            (&["br, *;q=0"], None),
            // Malformed weights count as not sent.
            (&["gzip;q=2"], Some(Identity)),
            (&["gzip;q=1.001"], Some(Identity)),
            (&["gzip;q=0.1234"], Some(Identity)),
            (&["gzip;q=."], Some(Identity)),
            (&["gzip;q="], Some(Identity)),
            (&["gzip;level=9"], Some(Identity)),
            (&[",;, gzip;;,\u{e9}"], Some(Identity)),
            (&["gzipped"], Some(Identity)),
        ];
        for (values, expected) in table {
            let mut headers = HeaderMap::new();
            for value in *values {
                headers.append(
                    ACCEPT_ENCODING,
                    HeaderValue::from_bytes(value.as_bytes()).unwrap(),
                );
            }
            assert_eq!(preferred(&headers), *expected, "{values:?}");
        }
    }
}
