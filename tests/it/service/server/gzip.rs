//! Messages that are compressed with gzip are answered like any other, within the same bounds.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tonic::Code;

use super::frames::{METHOD, call, connect, connect_to, framed, head};
use super::raw::MIB;
use super::{Options, Server};
use crate::support::{DEMO, Weir, descriptor, request};

const GZIP: &[(&str, &str)] = &[("grpc-encoding", "gzip")];
const MAX_BYTES: usize = 4 << 20;

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(content).expect("a vector takes all");
    encoder.finish().expect("a vector takes all")
}

/// A frame of gRPC whose flag says that the message is compressed.
fn compressed(message: &[u8]) -> Bytes {
    let mut frame = framed(message).to_vec();
    frame[0] = 1;
    frame.into()
}

#[tokio::test]
async fn compressed_messages_are_answered() {
    let server = Server::start(Options::default());
    let mut client = connect(&server, 65_535).await;
    let message = compressed(&gzip(b"long 9"));
    let whole: Vec<&[u8]> = vec![&message];
    for pieces in [whole, message.chunks(3).collect()] {
        let (headers, body, code) = call(&mut client, head(METHOD, GZIP), &pieces).await;
        assert_eq!(
            (&body[..], code),
            (&framed(&[7; 9])[..], Code::Ok),
            "the answer is not compressed"
        );
        assert!(headers.get("grpc-encoding").is_none());
    }
    let (_, body, code) = call(&mut client, head(METHOD, GZIP), &[&framed(b"long 9")]).await;
    assert_eq!(
        (body.len(), code),
        (5 + 9, Code::Ok),
        "a message need not be compressed"
    );
    for length in [0, 1, 16 << 10, 100_000, MAX_BYTES - 6] {
        let content = ["long 9".as_bytes(), &vec![b' '; length]].concat();
        let (_, body, code) = call(
            &mut client,
            head(METHOD, GZIP),
            &[&compressed(&gzip(&content))],
        )
        .await;
        assert_eq!((body.len(), code), (5 + 9, Code::Ok), "{length} spaces");
    }
}

#[tokio::test]
async fn what_is_too_long_or_no_gzip_is_refused() {
    let server = Server::start(Options::default());
    let mut client = connect(&server, 65_535).await;
    let good = gzip(b"long 9");
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= byte;
        bytes
    };
    let end = good.len();
    for (what, member, expected) in [
        (
            "a byte too much",
            gzip(&vec![b'x'; MAX_BYTES + 1]),
            Code::OutOfRange,
        ),
        ("nothing", Vec::new(), Code::Internal),
        (
            "another format",
            b"long 9 and some more bytes".to_vec(),
            Code::OutOfRange,
        ),
        (
            "another format, short",
            [&b"not gzip at all: "[..], &[9, 0, 0, 0]].concat(),
            Code::Internal,
        ),
        ("another head", with(0, 1), Code::Internal),
        ("another sum", with(end - 8, 1), Code::Internal),
        ("longer than it says", with(end - 4, 6 ^ 2), Code::Internal),
        ("shorter than it says", with(end - 4, 6 ^ 9), Code::Internal),
        (
            "cut",
            [&good[..end - 9], &good[end - 8..]].concat(),
            Code::Internal,
        ),
    ] {
        let (_, body, code) = call(&mut client, head(METHOD, GZIP), &[&compressed(&member)]).await;
        assert_eq!((body.len(), code), (0, expected), "{what}");
    }
    let (_, body, code) = call(&mut client, head(METHOD, GZIP), &[&compressed(&good)]).await;
    assert_eq!(
        (body.len(), code),
        (5 + 9, Code::Ok),
        "the connection goes on"
    );
}

/// 256 MiB of zeros in 256 KiB, whose end says that they are 100 bytes.
#[tokio::test(flavor = "multi_thread")]
async fn bombs_take_no_memory() {
    let weir = Weir::start(DEMO, &[]);
    let mut client = connect_to(weir.grpc_addr(), 65_535).await;
    let message =
        prost::Message::encode_to_vec(&request("demo", vec![descriptor(&[("other", "v")])]));
    assert_eq!(
        call(
            &mut client,
            head(METHOD, GZIP),
            &[&compressed(&gzip(&message))]
        )
        .await
        .2,
        Code::Ok
    );
    let mut bomb = gzip(&vec![0; 256 << 20]);
    let end = bomb.len();
    bomb[end - 4..].copy_from_slice(&100_u32.to_le_bytes());
    let (bomb, before) = (compressed(&bomb), weir.resident_kib());
    for _ in 0..20 {
        assert_eq!(
            call(&mut client, head(METHOD, GZIP), &[&bomb]).await.2,
            Code::Internal
        );
    }
    let grown = weir.resident_kib().saturating_sub(before);
    assert!(grown < 20 * MIB, "20 bombs take {} MiB", grown / MIB);
}
