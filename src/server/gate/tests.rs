//! The gate alone, on bytes; `tests/it/server/overload.rs` has it between real clients and HTTP/2.

use super::*;

/// `:method: POST` and `content-type`, by their places; a name and a value written out.
const QUIET: &[u8] = b"\x83\x0f\x10\x01a\x00\x02te\x08trailers";

/// The same, to be remembered.
const REMEMBERED: &[u8] = b"\x83\x40\x02te\x08trailers";

/// A domain, and a descriptor.
const MESSAGE: &[u8] = b"\0\0\0\0\x05\x0a\x01d\x12\x00";

fn usual(stream: u32) -> Vec<u8> {
    [frame(HEADERS, END_HEADERS, stream, QUIET), frame(DATA, END_STREAM, stream, MESSAGE)].concat()
}

/// What is left of `bytes` when they come in pieces of `size` and too late, and the streams that were refused.
fn through(gate: &mut Gate, bytes: &[u8], size: usize) -> (Vec<u8>, Vec<u32>) {
    pieces_through(gate, bytes, size, true)
}

fn pieces_through(gate: &mut Gate, bytes: &[u8], size: usize, are_late: bool) -> (Vec<u8>, Vec<u32>) {
    let (mut left, mut held) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(size) {
        let mut piece = [held, piece.to_vec()].concat();
        let (kept, from, _) = gate.refuse(&mut piece, are_late);
        left.extend_from_slice(&piece[..kept]);
        held = piece.split_off(from);
        assert!(held.len() < ABOUT_A_CALL);
    }
    left.extend(held);
    let (refused, _) = written(gate);
    (left, refused)
}

/// Reads what the gate wants to write: the streams that are refused, and the bytes that are given back to the connection.
fn written(gate: &mut Gate) -> (Vec<u32>, u32) {
    let (mut refused, mut given_back) = (Vec::new(), 0);
    let all = gate.unwritten().to_vec();
    let mut bytes = &all[..];
    while let Some((frame, held, rest)) = Frame::split(bytes) {
        match frame.kind {
            HEADERS => refused.push(frame.stream),
            WINDOW_UPDATE => given_back += u32::from_be_bytes(held.try_into().expect("four bytes")),
            kind => panic!("a frame of kind {kind}"),
        }
        bytes = rest;
    }
    assert!(bytes.is_empty(), "{bytes:?}");
    gate.wrote(all.len());
    (refused, given_back)
}

#[test]
fn usual_calls_are_refused_and_all_else_goes_on() {
    let mut gate = Gate::default();
    let ping = frame(6, 0, 0, &[7; 8]);
    let other = [
        frame(HEADERS, END_HEADERS, 5, REMEMBERED),
        frame(DATA, END_STREAM, 5, MESSAGE),
        // Health, reflection, and a call without a message.
        frame(HEADERS, END_HEADERS, 7, QUIET),
        frame(DATA, END_STREAM, 7, b"\0\0\0\0\x03\x0a\x01d"),
        frame(HEADERS, END_HEADERS, 9, QUIET),
        frame(DATA, END_STREAM, 9, b"\0\0\0\0\x02\x3a\x00"),
        frame(HEADERS, END_HEADERS | END_STREAM, 11, QUIET),
        // A message that is compressed, one that is shorter than it says, one that goes on, and headers that go on.
        frame(HEADERS, END_HEADERS, 13, QUIET),
        frame(DATA, END_STREAM, 13, b"\x01\0\0\0\x05\x0a\x01d\x12\x00"),
        frame(HEADERS, END_HEADERS, 15, QUIET),
        frame(DATA, END_STREAM, 15, b"\0\0\0\0\x06\x0a\x01d\x12\x00"),
        frame(HEADERS, END_HEADERS, 17, QUIET),
        frame(DATA, 0, 17, MESSAGE),
        frame(HEADERS, 0, 19, QUIET),
        frame(9, END_HEADERS, 19, QUIET),
    ]
    .concat();
    let bytes = [ping.clone(), usual(1), usual(3), other.clone(), usual(21)].concat();
    let mut given = bytes;
    let (kept, _, calls) = gate.refuse(&mut given, true);
    assert_eq!((given[..kept].to_vec(), calls), ([ping, other].concat(), 3));
    assert_eq!(written(&mut gate), (vec![1, 3, 21], 3 * MESSAGE.len() as u32));
}

/// A call that comes in pieces is not refused, and nothing is lost or changed wherever the pieces end.
#[test]
fn pieces_of_any_size_add_up() {
    let all: Vec<Vec<u8>> = (0..40).map(|index| usual(2 * index + 1)).collect();
    let bytes = all.concat();
    for size in 1..200 {
        let mut gate = Gate::default();
        let (left, refused) = through(&mut gate, &bytes, size);
        let expected: Vec<u8> =
            all.iter().zip(0..).filter(|(_, index)| !refused.contains(&(2 * index + 1))).flat_map(|(call, _)| call.clone()).collect();
        assert_eq!(left, expected, "pieces of {size}");
        let call = usual(1).len();
        assert!(
            (size + ABOUT_A_CALL > call || refused.is_empty()) && (size < 3 * call || refused.len() > 10),
            "pieces of {size}: {refused:?}"
        );
    }
}

/// As tonic sends them: the end by itself, and the frames of several calls mixed.
#[test]
fn calls_may_be_mixed() {
    let mut gate = Gate::default();
    let message = |stream| frame(DATA, 0, stream, MESSAGE);
    let end = |stream| frame(DATA, END_STREAM, stream, &[]);
    let headers = |stream| frame(HEADERS, END_HEADERS, stream, QUIET);
    let mut bytes = [headers(1), headers(3), headers(5), message(1), message(5), end(5), message(3), end(1), message(5)].concat();
    let (kept, _, calls) = gate.refuse(&mut bytes, true);
    // The third goes on after its end, which is for HTTP/2 to judge, and of the second the end has not come.
    let expected = [headers(3), headers(5), message(5), end(5), message(3), message(5)].concat();
    assert_eq!((&bytes[..kept], calls), (&expected[..], 1));
    assert_eq!(written(&mut gate), (vec![1], MESSAGE.len() as u32));
}

/// HTTP/2 takes it ill when something is said of a stream that it has not heard of.
#[test]
fn what_is_said_of_a_refused_call_is_kept_from_http2() {
    let mut gate = Gate::default();
    let about = |stream| [frame(RST_STREAM, 0, stream, &[0; 4]), frame(WINDOW_UPDATE, 0, stream, &[0, 0, 0, 1])].concat();
    let (left, refused) = through(&mut gate, &[usual(1), about(1), about(0)].concat(), usize::MAX);
    assert_eq!((left, refused), (about(0), vec![1]));

    // It knows those that came before one that it heard of.
    let known = [frame(HEADERS, END_HEADERS, 3, REMEMBERED), about(1), about(3)].concat();
    let (left, refused) = through(&mut gate, &known, usize::MAX);
    assert_eq!((left, refused), (known, vec![]));

    // Nor is it told in better times, before it has heard of a later one, and wherever the pieces end.
    for size in 1..40 {
        let mut gate = Gate::default();
        let _ = through(&mut gate, &usual(1), usize::MAX);
        assert!(gate.is_ahead());
        let known = [usual(3), about(3)].concat();
        assert_eq!(pieces_through(&mut gate, &[about(1), known.clone()].concat(), size, false), (known, vec![]), "pieces of {size}");
        assert!(!gate.is_ahead());
    }

    // Also what it heard of in good times.
    let mut gate = Gate::default();
    gate.pass(&usual(5));
    assert_eq!(through(&mut gate, &about(5), usize::MAX), (about(5), vec![]));
}

/// Whatever passed, the next frame is found.
#[test]
fn what_passes_is_followed_frame_by_frame() {
    let bytes = [frame(4, 0, 0, &[]), frame(HEADERS, END_HEADERS, 1, QUIET), frame(DATA, END_STREAM, 1, &[0; 300])].concat();
    for cut in 0..bytes.len() {
        let mut gate = Gate::default();
        gate.pass(&bytes[..cut]);
        let (left, refused) = through(&mut gate, &[&bytes[cut..], &usual(3)].concat(), usize::MAX);
        assert_eq!((left, refused), (bytes[cut..].to_vec(), vec![3]), "cut at {cut}");
    }
}

#[test]
fn who_does_not_read_refusals_is_served() {
    let mut gate = Gate::default();
    let many: Vec<u8> = (0..10_000).flat_map(|index| usual(2 * index + 1)).collect();
    let mut bytes = many.clone();
    let (kept, _, calls) = gate.refuse(&mut bytes, true);
    assert!(gate.unwritten().len() < MOST_UNWRITTEN + 200, "{} bytes wait", gate.unwritten().len());
    assert_eq!(kept, many.len() - calls as usize * usual(1).len());

    gate.wrote(10);
    assert!(gate.is_writing(), "nothing else may be written now");
    let (left, refused) = through(&mut Gate { refusals: Vec::new(), written: 0, calls: Vec::new(), ..gate }, &usual(30_001), usize::MAX);
    assert_eq!((left, refused), (vec![], vec![30_001]), "as soon as they are read it goes on");
}

#[test]
fn headers_are_skipped_without_being_read() {
    for quiet in [&b""[..], b"\x82\xff\x00\xff\xff\x7f", b"\x00\x01a\x01b", b"\x1f\x0a\x00", b"\x0f\x80\x01\x81a"] {
        assert!(leaves_the_table(quiet), "{quiet:x?}");
    }
    let (long, longer) = ([&b"\x04\x7f\x80\x02"[..], &[b'x'; 383]].concat(), [&b"\x04\x7f\x80\x02"[..], &[b'x'; 382]].concat());
    assert!(leaves_the_table(&long) && !leaves_the_table(&longer));
    // Remembered by its name's place or with its name; a table's new size; cut off; a number that never ends.
    for other in
        [&b"\x41\x01a"[..], b"\x40\x01a\x01b", b"\x20", b"\x3f\xe1\x1f", b"\x00\x01a", b"\x00\x02a", b"\xff", b"\xff\xff\xff\xff\xff\xff"]
    {
        assert!(!leaves_the_table(other), "{other:x?}");
    }
}

/// As a client of HTTP/2 reads it.
#[test]
fn a_refusal_is_what_grpc_says_it_is() {
    let (frame, block, rest) = Frame::split(&REFUSAL).expect("a frame");
    assert_eq!((frame.kind, frame.flags, rest.len()), (HEADERS, END_HEADERS | END_STREAM, 0));
    assert!(leaves_the_table(block), "it changes no table");
    assert_eq!(block, b"\x88\x0f\x10\x10application/grpc\x00\x0bgrpc-status\x018\x00\x0cgrpc-message\x0aoverloaded");
}
