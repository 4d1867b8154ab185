//! Authorities with a `|`: whatever header blocks arrive, in whatever frames and however they are
//! cut, HTTP/2 gets the calls that were sent, with `+` for `|` in their authorities and nothing
//! else changed. No byte is added or lost, and a call that HTTP/2 accepts as it was sent is
//! accepted unchanged.
//!
//! An encoder of its own (`sender`) writes the blocks in every form that HPACK has, and knows what
//! it has sent; h2 decodes them.

mod sender;

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::server::Builder;
use h2::{Reason, RecvStream};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Input;
use super::header_blocks::Chunks;
use crate::core::proto;
use crate::net::bounds::MemoryBudget;
use crate::observe::metrics::Metrics;
use crate::service::server::wire::{MAX_FRAME_BYTES, Wire};
use sender::{Call, Sender};

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const BUDGET_BYTES: usize = 64 << 20;

pub(super) fn check(input: &[u8]) {
    let mut input = Input(input);
    let (what, read_bytes) = (input.byte(), (usize::from(input.byte()) + 1) * 64);
    let cuts: Vec<_> = input
        .bytes(4)
        .iter()
        .map(|&cut| usize::from(cut) * 8 + 1)
        .collect();
    let damage = Damage::of(&mut input, what & 1 == 1);
    let (mut sent, calls) = Sender::default().send(&mut input);
    let is_damaged = damage.apply(&mut sent);

    let read = adapted(&sent, cuts, read_bytes);
    if is_damaged {
        assert!(read.len() <= sent.len());
        let (before, after) = (accepted(&sent[..read.len()]).0, accepted(&read).0);
        // h2 skips the block of such a stream without decoding it, and knows less of the table than
        // its client from then on.
        if !depends_on_itself(&sent) {
            for (stream, call) in before {
                assert_eq!(
                    after.get(&stream),
                    Some(&call),
                    "stream {stream} of {sent:x?}"
                );
            }
        }
        return;
    }
    assert_eq!(read.len(), sent.len());
    let (accepted, error) = accepted(&read);
    assert_eq!(error, None, "for {calls:#?}");
    assert_eq!(accepted.into_values().collect::<Vec<_>>(), expected(calls));
}

/// The calls as HTTP/2 has to get them: until the first `ShouldRateLimit`, and after it if there
/// was a `|` by then, each authority has `+` for `|`.
fn expected(calls: Vec<Call>) -> Vec<Call> {
    let (mut is_looked_at, mut has_bars) = (true, false);
    let mut expected = Vec::new();
    for mut call in calls {
        let has_bar = call.authority.contains('|');
        has_bars |= has_bar && is_looked_at;
        if is_looked_at || has_bars {
            call.authority = call.authority.replace('|', "+");
        } else if has_bar {
            // Reset.
            continue;
        }
        is_looked_at &= call.path != proto::METHOD_PATH || has_bars;
        expected.push(call);
    }
    expected
}

/// What is read of `sent`.
fn adapted(sent: &[u8], cuts: Vec<usize>, read_bytes: usize) -> Vec<u8> {
    let budget = MemoryBudget::new(BUDGET_BYTES);
    // The preface was read before, and is given again.
    let frames = Chunks::new(sent[PREFACE.len()..].to_vec(), cuts);
    let mut wire = Wire::new(frames, PREFACE, budget, Metrics::new(1, 0.8), None);
    let (mut read, mut bytes) = (Vec::new(), vec![0; read_bytes]);
    loop {
        let mut buffer = ReadBuf::new(&mut bytes);
        match Pin::new(&mut wire).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer) {
            Poll::Ready(Ok(())) => assert!(
                !buffer.filled().is_empty(),
                "an empty read would be the end of the connection"
            ),
            Poll::Ready(Err(error)) => panic!("{error}, although the budget is enough"),
            Poll::Pending => return read,
        }
        read.extend_from_slice(buffer.filled());
    }
}

/// The calls that h2 accepts, by their streams, and the error with which it closes the connection.
fn accepted(sent: &[u8]) -> (BTreeMap<u32, Call>, Option<Reason>) {
    let (mut calls, mut open) = (BTreeMap::new(), Vec::new());
    let mut context = Context::from_waker(Waker::noop());
    let mut builder = Builder::new();
    builder
        .max_frame_size(MAX_FRAME_BYTES)
        .max_header_list_size(256 << 10)
        .max_local_error_reset_streams(None);
    let mut handshake =
        Box::pin(builder.handshake::<_, Bytes>(Sink(Chunks::new(sent.to_vec(), Vec::new()))));
    let Poll::Ready(Ok(mut connection)) = handshake.as_mut().poll(&mut context) else {
        return (calls, None);
    };
    loop {
        match connection.poll_accept(&mut context) {
            Poll::Ready(Some(Ok((request, respond)))) => {
                calls.insert(respond.stream_id().into(), call(&request));
                open.push((request, respond));
            }
            Poll::Ready(Some(Err(error))) => return (calls, error.reason()),
            Poll::Ready(None) | Poll::Pending => return (calls, None),
        }
    }
}

fn call(request: &Request<RecvStream>) -> Call {
    let fields = request
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()));
    let authority = request
        .uri()
        .authority()
        .map_or("", |authority| authority.as_str())
        .to_owned();
    Call {
        path: request.uri().path().to_owned(),
        authority,
        fields: fields.collect(),
    }
}

/// Bytes that are flipped somewhere behind the preface.
struct Damage(Vec<(usize, u8)>);

impl Damage {
    fn of(input: &mut Input<'_>, is_damaged: bool) -> Self {
        let count = if is_damaged {
            1 + usize::from(input.byte() % 4)
        } else {
            0
        };
        Self(
            (0..count)
                .map(|_| {
                    (
                        usize::from(input.byte()) << 8 | usize::from(input.byte()),
                        input.byte(),
                    )
                })
                .collect(),
        )
    }

    fn apply(self, sent: &mut [u8]) -> bool {
        let Some(bytes) = sent
            .get_mut(PREFACE.len()..)
            .filter(|bytes| !bytes.is_empty())
        else {
            return false;
        };
        for &(at, flip) in &self.0 {
            let at = at % bytes.len();
            bytes[at] ^= flip;
        }
        !self.0.is_empty()
    }
}

/// Whether a HEADERS frame names its own stream as the one that it depends on.
fn depends_on_itself(sent: &[u8]) -> bool {
    sent.windows(15).any(|bytes| {
        let padding = usize::from(bytes[4] >> 3 & 1);
        bytes[3] == 1
            && bytes[4] & 0x20 != 0
            && bytes[9 + padding..][..4]
                .iter()
                .zip(&bytes[5..9])
                .skip(1)
                .all(|(a, b)| a == b)
    })
}

/// A socket that takes all that is written to it.
struct Sink(Chunks);

impl AsyncRead for Sink {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Sink {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
