use std::future::poll_fn;

use futures_util::FutureExt;

use super::*;

const DATA: u8 = 0;
const BUDGET_BYTES: usize = 64 << 20;

/// A frame of HTTP/2.
pub(in crate::service::server) fn frame(
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &[u8],
) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .expect("shorter than 16 MiB")
        .to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A socket whose reads return these chunks, and then nothing yet.
#[derive(Debug)]
struct Chunks(Vec<Vec<u8>>);

impl AsyncRead for Chunks {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(next) = self.0.first_mut() else {
            return Poll::Pending;
        };
        let count = next.len().min(buffer.remaining());
        buffer.put_slice(&next.drain(..count).collect::<Vec<_>>());
        if next.is_empty() {
            self.0.remove(0);
        }
        Poll::Ready(Ok(()))
    }
}

fn wire(chunks: Vec<Vec<u8>>, budget: &MemoryBudget) -> Wire<Chunks> {
    Wire::new(
        Chunks(chunks),
        b"",
        budget.clone(),
        Metrics::new(1, 0.8),
        None,
    )
    .with_any_authority()
}

/// All that can be read now, at most `at_a_time` bytes in one read.
fn read(wire: &mut Wire<Chunks>, at_a_time: usize) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let mut bytes = vec![0; at_a_time];
        let mut buffer = ReadBuf::new(&mut bytes);
        let Some(done) =
            poll_fn(|context| Pin::new(&mut *wire).poll_read(context, &mut buffer)).now_or_never()
        else {
            return Ok(all);
        };
        done?;
        assert!(
            !buffer.filled().is_empty(),
            "an empty read would be the end of the connection"
        );
        all.extend_from_slice(buffer.filled());
    }
}

/// A header block in frames of these lengths.
fn block(stream: u32, lengths: &[usize]) -> Vec<u8> {
    let frames = lengths.iter().enumerate().map(|(index, &length)| {
        let kind = if index == 0 { HEADERS } else { CONTINUATION };
        let flags = if index + 1 == lengths.len() {
            END_HEADERS
        } else {
            0
        };
        frame(kind, flags, stream, &vec![7; length])
    });
    frames.collect::<Vec<_>>().concat()
}

/// Cuts `bytes` into chunks of these lengths, which repeat.
fn cut(mut bytes: &[u8], lengths: &[usize]) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    for &length in lengths.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let (chunk, rest) = bytes.split_at(length.min(bytes.len()));
        chunks.push(chunk.to_vec());
        bytes = rest;
    }
    chunks
}

/// Violations of the protocol pass to h2, which closes the connection. Nothing may stay held, or h2
/// would wait for ever.
#[test]
fn violations_pass() {
    let open = frame(HEADERS, 0, 1, &[7; 10]);
    let too_many = (0..=MAX_CONTINUATIONS)
        .map(|_| frame(CONTINUATION, 0, 1, b"x"))
        .collect::<Vec<_>>()
        .concat();
    let too_long = frame(CONTINUATION, 0, 1, &vec![7; MAX_FRAME_BYTES as usize + 1]);
    for (what, second) in [
        ("another frame within a block", frame(DATA, 0, 1, b"x")),
        ("another block within a block", block(3, &[5])),
        ("too many frames", too_many),
        (
            "a frame that is too long",
            too_long[..FRAME_HEADER_BYTES].to_vec(),
        ),
    ] {
        let sent = [open.clone(), second].concat();
        let budget = MemoryBudget::new(BUDGET_BYTES);
        let mut wire = wire(vec![sent.clone()], &budget);
        assert_eq!(
            read(&mut wire, 1 << 20).expect("within the budget"),
            sent,
            "{what}"
        );
        assert_eq!(budget.unused_bytes(), BUDGET_BYTES, "{what}");
    }
}

#[test]
fn the_oldest_block_ends_when_the_budget_is_used_up() {
    let budget = MemoryBudget::new(5 * FIRST_BYTES);
    let start = frame(HEADERS, 0, 1, &vec![7; 2 * FIRST_BYTES]);
    let [mut first, mut second, mut third] = [(); 3].map(|()| wire(vec![start.clone()], &budget));
    assert_eq!(read(&mut first, 1 << 20).expect("within the budget"), b"");
    assert_eq!(read(&mut second, 1 << 20).expect("within the budget"), b"");
    assert_eq!(
        read(&mut first, 1 << 20).expect_err("too much").kind(),
        io::ErrorKind::OutOfMemory
    );
    drop(second);
    assert_eq!(
        read(&mut third, 1 << 20).expect("within the budget again"),
        b""
    );
    drop((first, third));
    assert_eq!(budget.unused_bytes(), 5 * FIRST_BYTES);
}

/// A read ends one block and begins the next, whose client sends nothing more.
#[test]
fn a_block_is_charged_for_the_memory_of_the_one_before() {
    let budget = MemoryBudget::new(BUDGET_BYTES);
    let sent = [
        block(1, &[FIRST_BYTES - 2 * FRAME_HEADER_BYTES, 1]),
        frame(HEADERS, 0, 3, b"a"),
        frame(CONTINUATION, 0, 3, b"b"),
    ]
    .concat();
    let first = sent.len() - 2 * (FRAME_HEADER_BYTES + 1);
    let mut wire = wire(cut(&sent, &[first - 2, 13, 9]), &budget);
    let read = read(&mut wire, 1 << 20).expect("within the budget");
    assert_eq!(read.len(), first);
    assert!(BUDGET_BYTES - budget.unused_bytes() >= FIRST_BYTES);
}

/// Each read ends within a block: bytes are held all the time, at most one block and one read.
#[test]
fn blocks_that_follow_each_other_take_the_memory_of_one() {
    let budget = MemoryBudget::new(6 * FIRST_BYTES);
    let sent = block(1, &[FIRST_BYTES, 100]).repeat(200);
    let mut wire = wire(cut(&sent, &[100, FIRST_BYTES]), &budget);
    assert_eq!(
        read(&mut wire, 1 << 20).expect("within the budget").len(),
        sent.len()
    );
    assert_eq!(budget.unused_bytes(), 6 * FIRST_BYTES);
}
