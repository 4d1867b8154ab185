//! The content coding of a response, chosen by `Accept-Encoding`. Source: RFC 9110, sections 12.4.2
//! (weights) and 12.5.3.

use hyper::header::{ACCEPT_ENCODING, HeaderMap};

/// The codings that Weir can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
}

/// A weight in thousandths; 0 = not acceptable.
type Weight = u16;

const MAX_WEIGHT: Weight = 1_000;

/// The preferred coding, gzip of two equal ones. `None` if the client accepts neither.
pub(super) fn preferred(headers: &HeaderMap) -> Option<Encoding> {
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
        Some(identity) if identity > gzip => Some(Encoding::Identity),
        None if gzip == 0 => Some(Encoding::Identity),
        _ => (gzip > 0).then_some(Encoding::Gzip),
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
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn codings_are_chosen_by_their_weights() {
        use Encoding::{Gzip, Identity};
        let table: &[(&[&str], Option<Encoding>)] = &[
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
            // What has another form counts as not sent.
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
