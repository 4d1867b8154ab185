//! The parent of a call's span, from the headers in which tracing systems carry it: `b3`, `x-b3-*`
//! and `traceparent`.
//!
//! An unsampled call causes no allocation. Headers without a valid parent are ignored. B3 comes
//! first, as in envoyproxy/ratelimit. Sources: openzipkin/b3-propagation; W3C Trace Context, level
//! 1, sections 3.2 and 3.3.
//!
//! The reader is our own, because OpenTelemetry's crate for B3 is deprecated and takes `d` (debug)
//! for unsampled. A property test compares `traceparent` with OpenTelemetry's reader.

use std::str::FromStr;

use http::{HeaderMap, HeaderName};
use opentelemetry::trace::{SpanContext, TraceFlags, TraceId, TraceState};

/// The trace context in the headers of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Parent {
    /// There is no parent.
    None,
    /// The trace is not recorded.
    Unsampled,
    /// The trace is recorded: the call's span belongs to this one.
    Sampled(SpanContext),
    /// B3 without a sampling state: the receiver decides whether the trace is recorded. The parent
    /// is marked as sampled.
    Undecided(SpanContext),
}

/// The longest `tracestate` that is kept, in bytes: the minimum that W3C Trace Context, section
/// 3.3.1.5, demands. It is bounded because queued spans hold it, and a client of Envoy chooses it.
pub(crate) const MAX_TRACESTATE_BYTES: usize = 512;

/// The headers that carry a parent.
pub(crate) static TRACE_HEADERS: [HeaderName; 7] = [
    HeaderName::from_static("b3"),
    HeaderName::from_static("x-b3-traceid"),
    HeaderName::from_static("x-b3-spanid"),
    HeaderName::from_static("x-b3-sampled"),
    HeaderName::from_static("x-b3-flags"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
];

pub(super) fn parent(headers: &HeaderMap) -> Parent {
    b3_single(headers)
        .or_else(|| b3_multiple(headers))
        .or_else(|| w3c(headers))
        .unwrap_or(Parent::None)
}

fn bytes<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h [u8]> {
    headers.get(name).map(http::HeaderValue::as_bytes)
}

/// `b3: {trace}-{span}[-{sampling state}[-{parent}]]`, or the sampling state alone.
fn b3_single(headers: &HeaderMap) -> Option<Parent> {
    let value = bytes(headers, "b3")?;
    if value == b"0" {
        return Some(Parent::Unsampled);
    }
    let mut parts = value.split(|&byte| byte == b'-');
    let ids = (parts.next()?, parts.next()?);
    let state = parts.next();
    let is_whole = parts
        .next()
        .is_none_or(|parent| hex(parent, &[16]).is_some())
        && parts.next().is_none();
    is_whole.then(|| b3(ids, state)).flatten()
}

/// `x-b3-traceid`, `x-b3-spanid`, `x-b3-sampled` and `x-b3-flags`.
fn b3_multiple(headers: &HeaderMap) -> Option<Parent> {
    let state = bytes(headers, "x-b3-sampled");
    let is_debug = bytes(headers, "x-b3-flags") == Some(b"1");
    let Some(trace) = bytes(headers, "x-b3-traceid") else {
        return matches!(state, Some(b"0" | b"false")).then_some(Parent::Unsampled);
    };
    let state = if is_debug { Some(&b"d"[..]) } else { state };
    b3((trace, bytes(headers, "x-b3-spanid")?), state)
}

fn b3((trace, span): (&[u8], &[u8]), state: Option<&[u8]>) -> Option<Parent> {
    let context = || context(hex(trace, &[16, 32])?, hex(span, &[16])?, TraceState::NONE);
    match state {
        Some(b"1" | b"d" | b"true") => Some(Parent::Sampled(context()?)),
        Some(b"0" | b"false") => Some(Parent::Unsampled),
        Some(_) => None,
        None => Some(Parent::Undecided(context()?)),
    }
}

/// `traceparent: {version}-{trace}-{parent}-{flags}` in lower case, and `tracestate`. A version
/// above 00 may have more after that.
fn w3c(headers: &HeaderMap) -> Option<Parent> {
    const LENGTH: usize = 55;
    let value = bytes(headers, "traceparent")?;
    let (known, more) = value.split_at_checked(LENGTH)?;
    let [version, trace, span, flags] = [&known[..2], &known[3..35], &known[36..52], &known[53..]];
    let has_dashes = [known[2], known[35], known[52]] == [b'-'; 3];
    let is_whole = more.is_empty() || (version != b"00" && more[0] == b'-');
    if !has_dashes
        || !is_whole
        || hex(version, &[2])? == 0xff
        || known.iter().any(u8::is_ascii_uppercase)
    {
        return None;
    }
    let (trace, span) = (hex(trace, &[32])?, hex(span, &[16])?);
    if hex(flags, &[2])? & u128::from(TraceFlags::SAMPLED.to_u8()) == 0 {
        return context(trace, span, TraceState::NONE).map(|_| Parent::Unsampled);
    }
    context(trace, span, tracestate(headers)).map(Parent::Sampled)
}

/// The `tracestate`; several headers are one list. If it is too long or malformed, it is dropped,
/// and the trace is kept.
fn tracestate(headers: &HeaderMap) -> TraceState {
    let all = headers.get_all("tracestate");
    let values = || all.iter().map(http::HeaderValue::as_bytes);
    if values().map(|value| value.len() + 1).sum::<usize>() > MAX_TRACESTATE_BYTES + 1 {
        return TraceState::NONE;
    }
    let text = values().collect::<Vec<_>>().join(&b',');
    let text = std::str::from_utf8(&text).unwrap_or_default();
    TraceState::from_str(text).unwrap_or_default()
}

/// `None` if an identifier is zero, which means that it is absent.
fn context(trace: u128, span: u128, state: TraceState) -> Option<SpanContext> {
    let (trace, span) = (TraceId::from(trace), u64::try_from(span).ok()?);
    let context = SpanContext::new(trace, span.into(), TraceFlags::SAMPLED, true, state);
    context.is_valid().then_some(context)
}

/// Reads a hexadecimal number whose number of digits is one of `lengths`, none above 32.
fn hex(digits: &[u8], lengths: &[usize]) -> Option<u128> {
    if !lengths.contains(&digits.len()) {
        return None;
    }
    digits.iter().try_fold(0, |number, &digit| {
        Some(number << 4 | u128::from(char::from(digit).to_digit(16)?))
    })
}

#[cfg(test)]
mod tests {
    use opentelemetry::Context;
    use opentelemetry::propagation::TextMapPropagator;
    use opentelemetry::trace::{SpanId, TraceContextExt};
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn of(headers: &[(&'static str, &str)]) -> Parent {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(
                *name,
                http::HeaderValue::from_bytes(value.as_bytes()).expect("a header"),
            );
        }
        parent(&map)
    }

    fn span_context(state: &str) -> SpanContext {
        let ids = (
            TraceId::from_hex(TRACE).expect("an id"),
            SpanId::from_hex(SPAN).expect("an id"),
        );
        SpanContext::new(
            ids.0,
            ids.1,
            TraceFlags::SAMPLED,
            true,
            TraceState::from_str(state).expect("a state"),
        )
    }

    #[test]
    fn traceparent_is_read() {
        let traceparent = |version: &str, flags: &str| format!("{version}-{TRACE}-{SPAN}-{flags}");
        for (value, parent) in [
            (traceparent("00", "01"), Parent::Sampled(span_context(""))),
            (traceparent("00", "ff"), Parent::Sampled(span_context(""))),
            (traceparent("00", "00"), Parent::Unsampled),
            (traceparent("00", "fe"), Parent::Unsampled),
            (
                traceparent("cc", "01-and-more"),
                Parent::Sampled(span_context("")),
            ),
            (traceparent("cc", "01.and-more"), Parent::None),
            (traceparent("00", "01-more"), Parent::None),
            (traceparent("ff", "01"), Parent::None),
            (traceparent("0", "001"), Parent::None),
            (traceparent("00", "0"), Parent::None),
            (traceparent("00", "0g"), Parent::None),
            (traceparent("00", "01").to_uppercase(), Parent::None),
            (
                traceparent("00", "01").replace(TRACE, &"0".repeat(32)),
                Parent::None,
            ),
            (
                traceparent("00", "00").replace(SPAN, &"0".repeat(16)),
                Parent::None,
            ),
            (traceparent("00", "01").replace("-b7", "+b7"), Parent::None),
            (traceparent("00", "01").replace("0af", "+af"), Parent::None),
            (String::new(), Parent::None),
        ] {
            assert_eq!(of(&[("traceparent", &value)]), parent, "{value}");
        }
    }

    #[test]
    fn tracestate_is_kept_up_to_its_bound() {
        let traceparent = format!("00-{TRACE}-{SPAN}-01");
        let of = |states: &[&str]| {
            let states = states.iter().map(|state| ("tracestate", *state));
            of(&[("traceparent", &*traceparent)]
                .into_iter()
                .chain(states)
                .collect::<Vec<_>>())
        };
        assert_eq!(of(&["a=1,b=2"]), Parent::Sampled(span_context("a=1,b=2")));
        assert_eq!(
            of(&["a=1", "b=2"]),
            Parent::Sampled(span_context("a=1,b=2")),
            "several headers are one list"
        );
        let long = |bytes: usize| format!("a={}", "x".repeat(bytes - 2));
        assert_eq!(of(&[&long(256)]), Parent::Sampled(span_context(&long(256))));
        assert_eq!(
            of(&[&long(513)]),
            Parent::Sampled(span_context("")),
            "too long"
        );
        assert_eq!(
            of(&["no list"]),
            Parent::Sampled(span_context("")),
            "malformed"
        );
    }

    #[test]
    fn b3_is_read_in_both_forms() {
        let single = |rest: &str| of(&[("b3", &format!("{TRACE}-{SPAN}{rest}"))]);
        let sampled = Parent::Sampled(span_context(""));
        for (rest, parent) in [
            ("-1", sampled.clone()),
            ("-d", sampled.clone()),
            ("-1-05e3ac9a4f6e3b90", sampled.clone()),
            ("-0", Parent::Unsampled),
            ("", Parent::Undecided(span_context(""))),
            ("-2", Parent::None),
            ("-1-05e3", Parent::None),
            ("-1-05e3ac9a4f6e3b90-1", Parent::None),
        ] {
            assert_eq!(single(rest), parent, "{rest}");
        }
        assert_eq!(of(&[("b3", "0")]), Parent::Unsampled);
        assert_eq!(of(&[("b3", "1")]), Parent::None, "Weir begins the trace");
        let Parent::Sampled(short) = of(&[("b3", &format!("{SPAN}-{SPAN}-1"))]) else {
            panic!("64 bits")
        };
        assert_eq!(short.trace_id().to_string(), format!("{SPAN:0>32}"));

        let ids = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN)];
        let multiple = |more: &[(&'static str, &str)]| of(&[&ids, more].concat());
        assert_eq!(multiple(&[("x-b3-sampled", "1")]), sampled);
        assert_eq!(multiple(&[("x-b3-sampled", "0")]), Parent::Unsampled);
        assert_eq!(
            multiple(&[("x-b3-flags", "1")]),
            sampled,
            "debug means sampled"
        );
        assert_eq!(multiple(&[]), Parent::Undecided(span_context("")));
        assert_eq!(of(&ids[..1]), Parent::None);
        assert_eq!(of(&[("x-b3-sampled", "0")]), Parent::Unsampled);
        let traceparent = format!("00-{SPAN}{SPAN}-{SPAN}-01");
        assert_eq!(
            multiple(&[("x-b3-sampled", "1"), ("traceparent", &traceparent)]),
            sampled,
            "B3 comes first"
        );
        assert!(matches!(
            of(&[("b3", "nonsense"), ("traceparent", &traceparent)]),
            Parent::Sampled(_)
        ));
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        /// OpenTelemetry's own reader of `traceparent` takes the same as valid; it also takes
        /// identifiers of other lengths.
        #[test]
        fn what_is_read_is_what_opentelemetry_reads(
            value in prop_oneof![
                "[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}",
                "00-[0-9a-f]{31,33}-[0-9a-f]{15,17}-0[01]",
                "[ -~]{0,60}",
            ],
        ) {
            let headers =
                std::collections::HashMap::from([("traceparent".to_owned(), value.clone())]);
            let theirs = TraceContextPropagator::new()
                .extract_with_context(&Context::new(), &headers)
                .span()
                .span_context()
                .clone();
            let lengths: Vec<_> = value.split('-').map(str::len).collect();
            match of(&[("traceparent", &value)]) {
                Parent::Sampled(ours) => prop_assert_eq!(ours, theirs),
                Parent::Unsampled => {
                    prop_assert!(theirs.is_valid() && !theirs.is_sampled(), "{}", value);
                }
                Parent::None | Parent::Undecided(_) => {
                    prop_assert!(!theirs.is_valid() || lengths != [2, 32, 16, 2], "{}", value);
                }
            }
        }

        /// Any headers of a client are read without a panic, and at most the bound is kept of them.
        #[test]
        fn any_headers_are_read(
            values in proptest::collection::vec(
                (
                    "b3|x-b3-traceid|x-b3-spanid|x-b3-sampled|x-b3-flags|traceparent|tracestate",
                    proptest::collection::vec(32..=255_u8, 0..700),
                ),
                0..8,
            ),
        ) {
            let mut map = HeaderMap::new();
            for (name, value) in values {
                if let Ok(value) = http::HeaderValue::from_bytes(&value) {
                    map.append(
                        http::HeaderName::from_bytes(name.as_bytes()).expect("a name"),
                        value,
                    );
                }
            }
            if let Parent::Sampled(context) = parent(&map) {
                prop_assert!(context.trace_state().header().len() <= MAX_TRACESTATE_BYTES);
            }
        }
    }
}
