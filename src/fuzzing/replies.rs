//! Replies of Redis: any bytes in any pieces are replies or an error, the same as in one piece, in
//! bounded memory; what is a reply is the value that the redis crate reads. A batch makes answers
//! of any replies, and none without a reply of its own.

use std::time::Duration;

use bb8_redis::redis::{Value, parse_redis_value};
use tokio::time::Instant;

use super::Input;
use crate::core::algorithm::{Algorithm, AlgorithmKind, Options};
use crate::core::time::{Micros, Rate, Span, Unit};
use crate::limits::plan::{Check, Checks, Modes};
use crate::limits::rules::Commit;
use crate::store::Budget;
use crate::store::redis::error;
use crate::store::redis::wire::batch::{Batch, BatchOptions, KeyScope, Retry};
use crate::store::redis::wire::call::ClockReading;
use crate::store::redis::wire::hash_slot::{Redirect, SLOTS};
use crate::store::redis::wire::known_ttls::KnownTtls;
use crate::store::redis::wire::replies::{Parser, ReplyBuffer, Token};
use crate::store::redis::wire::request::{Reply, Request};

/// The most memory of the buffer of one connection.
const MAX_BUFFER_BYTES: usize = 1 << 20;

/// How deep arrays may be nested for the redis crate, which refuses deeper ones.
const MAX_DEPTH: usize = 90;

pub(super) fn check(input: &[u8]) {
    let mut input = Input(input);
    let (shape, piece_bytes, hits) = (input.byte(), usize::from(input.byte()) + 1, input.byte());
    // Long replies from short inputs.
    let repeat = if shape >= 0xfe {
        (2 << 20) / (input.0.len() + 1)
    } else {
        1
    };
    let bytes = input.0.repeat(repeat);

    let whole = receive(&bytes, bytes.len().max(1));
    let pieces = if repeat == 1 {
        piece_bytes
    } else {
        piece_bytes * 64
    };
    assert_eq!(
        whole,
        receive(&bytes, pieces),
        "in pieces of {pieces} bytes"
    );
    if repeat > 1 {
        return;
    }
    let mut begin = 0;
    for end in whole.0 {
        check_reply(&bytes[begin..end]);
        begin = end;
    }
    check_batch(shape, hits, &bytes[..begin]);
}

/// Receives bytes in pieces. Returns where each reply ends, and whether an error follows.
fn receive(bytes: &[u8], piece_bytes: usize) -> (Vec<usize>, Option<&'static str>) {
    let (mut received, mut ends) = (ReplyBuffer::default(), Vec::new());
    for mut piece in bytes.chunks(piece_bytes) {
        while !piece.is_empty() {
            let filled = received.bytes().len();
            let spare = match received.spare() {
                Ok(spare) => spare,
                Err(error) => return (ends, Some(error)),
            };
            assert!(
                !spare.is_empty() && filled + spare.len() <= MAX_BUFFER_BYTES,
                "{filled} bytes received, {} free",
                spare.len()
            );
            let count = spare.len().min(piece.len());
            spare[..count].copy_from_slice(&piece[..count]);
            received.fill(count);
            piece = &piece[count..];
            loop {
                match received.parse_reply() {
                    Ok(true) => ends.push(received.tokens().bytes().len()),
                    Ok(false) => break,
                    Err(error) => return (ends, Some(error)),
                }
            }
        }
    }
    assert_eq!(received.bytes(), bytes, "nothing is lost");
    (ends, None)
}

/// One complete reply against the redis crate.
fn check_reply(reply: &[u8]) {
    let mut tokens = Parser::of(reply);
    for line in Parser::of(reply).filter_map(|token| {
        if let Token::Error(line) = token {
            Some(line)
        } else {
            None
        }
    }) {
        assert!(!error::name(error::classify_line(line)).is_empty());
        assert!(Redirect::read(line).is_none_or(|redirect| usize::from(redirect.slot) < SLOTS));
    }
    let Some(ours) = value(&mut tokens, 0) else {
        return;
    };
    assert_eq!(tokens.bytes(), b"", "a reply is one value");
    match parse_redis_value(reply) {
        Ok(theirs) => assert_eq!(ours, theirs),
        // The redis crate takes lines for text.
        Err(error) => assert!(
            Parser::of(reply).any(|token| is_no_text(token)),
            "{error}: {}",
            reply.escape_ascii()
        ),
    }
}

fn is_no_text(token: Token<'_>) -> bool {
    matches!(
        token,
        Token::SimpleString(line) | Token::Error(line) if std::str::from_utf8(line).is_err()
    )
}

/// The value of the next tokens; `None` if it is nested too deep for the redis crate.
fn value(tokens: &mut Parser<'_>, depth: usize) -> Option<Value> {
    Some(match tokens.next().expect("a complete reply") {
        _ if depth > MAX_DEPTH => return None,
        Token::SimpleString(b"OK") => Value::Okay,
        Token::SimpleString(line) => {
            Value::SimpleString(String::from_utf8_lossy(line).into_owned())
        }
        // Its type is made by the redis crate alone.
        Token::Error(line) => {
            parse_redis_value(&[b"-", line, b"\r\n"].concat()).unwrap_or(Value::Nil)
        }
        Token::Integer(number) => Value::Int(number),
        Token::BulkString(text) => Value::BulkString(text.to_vec()),
        Token::Null => Value::Nil,
        Token::Array(count) => Value::Array(
            (0..count)
                .map(|_| value(tokens, depth + 1))
                .collect::<Option<_>>()?,
        ),
    })
}

/// The number of checks that a reply decides; each verdict is one that its limit can have.
fn count_decided(request: &Request, reply: &Reply) -> usize {
    let mut decided = 0;
    for (check, verdict) in request
        .checks
        .iter()
        .zip(&reply.answers)
        .filter_map(|(check, answer)| Some((check, answer.verdict.ok()?)))
    {
        decided += 1;
        assert!(
            verdict.remaining <= check.algorithm.capacity(),
            "{verdict:?} of {check:?}"
        );
        let longest = if check.algorithm.may_delay() {
            request.budget.max_wait
        } else {
            Span::ZERO
        };
        assert!(verdict.delay <= longest, "{verdict:?} of {check:?}");
    }
    decided
}

/// Reads replies as those to a batch of two requests.
fn check_batch(shape: u8, hits: u8, replies: &[u8]) {
    let is_set = |bit: u8| shape & bit != 0;
    let commit = if is_set(1) {
        Commit::AllOrNone
    } else {
        Commit::Each
    };
    let budget = Budget {
        max_wait: Span::from_secs(3_600),
        ..Budget::until(Instant::now() + Duration::from_secs(1))
    };
    let kind = AlgorithmKind::OVER_TIME[usize::from(shape >> 4) % AlgorithmKind::OVER_TIME.len()].1;
    let request = |keys: [&[u8]; 2], kinds: [AlgorithmKind; 2], hits: u8| {
        let hits = [1, 0, -1, i64::MAX, 3, -3, -i64::MAX, 100][usize::from(hits % 8)];
        let check = |kind| Check::new(algorithm(kind), hits, Modes::default());
        let mut checks = Checks::of(keys.into_iter().zip(kinds.map(check)));
        checks.commit = commit;
        let mut request = Request::unawaited(checks, budget);
        request.is_asking = is_set(2);
        request
    };
    let all = [
        request([b"{a}1", b"{b}1"], [AlgorithmKind::FixedWindow, kind], hits),
        request(
            [b"{a}2", b"{a}1"],
            [kind, AlgorithmKind::FixedWindow],
            hits >> 3,
        ),
    ];
    let options = BatchOptions {
        scope: if is_set(4) {
            KeyScope::Slot
        } else {
            KeyScope::Any
        },
        follows_redirects: is_set(4),
        fixed_windows_by_script: is_set(8),
        expiry_jitter_secs: 0,
    };
    let now = ClockReading {
        time: Micros(1_800_000_000_000_000),
        at: Instant::now(),
    };
    let mut known_ttls = KnownTtls::default();
    let batch = Batch::new(&all, options, now, &mut known_ttls);
    let mut answers = batch.unanswered().collect::<Vec<_>>();
    batch.read(Parser::of(replies), &mut answers);

    let mut decided = 0;
    for (request, reply) in all.iter().zip(&answers) {
        assert_eq!(reply.answers.len(), request.checks.len());
        decided += count_decided(request, reply);
        for (index, redirect) in &reply.redirects {
            assert!(
                reply.answers[index.0].verdict.is_err() && usize::from(redirect.slot) < SLOTS,
                "{reply:?}"
            );
        }
    }
    // The shortest reply with a count is `:1`.
    assert!(
        decided * b":1\r\n".len() <= replies.len(),
        "{decided} answers from {} bytes",
        replies.len()
    );
    let _ = batch.learn(&answers, &mut known_ttls);
    let reasons = [Retry::NoScript, Retry::Slots, Retry::Late(now)];
    let _ = reasons.map(|reason| batch.retries(reason, &answers));
}

fn algorithm(kind: AlgorithmKind) -> Algorithm {
    let rate = Rate {
        requests_per_unit: 10,
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    Algorithm::try_new(
        &rate,
        &Options {
            kind,
            ..Options::default()
        },
    )
    .expect("good options")
}
