//! Tests of batches: the commands that they encode, and what they read from replies that are
//! written here as text.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;

use super::*;
use crate::core::algorithm::LARGEST_COUNT;
use crate::core::answer::Answer;
use crate::core::fingerprint::Fingerprint;
use crate::core::time::{Micros, Period, Span};
use crate::core::verdict::Verdict;
use crate::limits::plan::{CheckIndex, Modes};
use crate::store::Budget;
use crate::store::redis::wire::replies::{Parser, ReplyBuffer};
use crate::store::redis::wire::script;

const NOW: Micros = Micros(1_800_000_000_000_000);

fn fixed(limit: u64, count_denied: bool) -> Algorithm {
    Algorithm::FixedWindow(FixedWindow {
        limit,
        window: Period::Even(Span::from_secs(60)),
        count_denied,
    })
}

/// A check of so many hits on a key, whose limit is `limit`.
fn on(key: &[u8], limit: u64, hits: i64) -> (&[u8], Check) {
    (key, Check::new(fixed(limit, true), hits, Modes::default()))
}

fn checks(hits: &[i64]) -> Checks {
    // Peeks have a key of their own: they need not keep their place among the hits.
    let check = |&hits| on(if hits == 0 { b"look" } else { b"k" }, 10, hits);
    Checks::of(hits.iter().map(check))
}

fn request(checks: Checks) -> Request {
    Request::unawaited(checks, Budget::until(Instant::now()))
}

/// A request with one hit on each of these keys.
fn hits_on<const N: usize>(keys: [&[u8]; N]) -> Request {
    request(Checks::of(keys.map(|key| on(key, 10, 1))))
}

/// The same request, after ASKING.
fn asking(request: &Request) -> Request {
    let mut asking = Request::unawaited((*request.checks).clone(), request.budget);
    asking.is_asking = true;
    asking
}

fn clock(time: Micros) -> ClockReading {
    let at = Instant::now();
    ClockReading { time, at }
}

const OPTIONS: BatchOptions = BatchOptions {
    scope: KeyScope::Any,
    follows_redirects: false,
    fixed_windows_by_script: false,
    expiry_jitter_secs: 0,
};

const BY_SLOT: BatchOptions = BatchOptions {
    scope: KeyScope::Slot,
    follows_redirects: true,
    ..OPTIONS
};

/// A batch that knows no TTLs.
fn batch(requests: &[Request], options: BatchOptions) -> Batch<'_> {
    Batch::new(requests, options, clock(NOW), &mut KnownTtls::default())
}

/// The replies of the requests of a batch, from these bytes of the server.
fn replies_of(batch: &Batch<'_>, received: &[u8]) -> Vec<Reply> {
    let mut replies = batch.unanswered().collect::<Vec<_>>();
    batch.read(Parser::of(received), &mut replies);
    replies
}

/// For each check the hits that count.
fn used(reply: &Reply) -> Vec<Result<u64, StoreError>> {
    let answers = reply.answers.iter();
    answers
        .map(|answer| answer.verdict.map(|it| it.used))
        .collect()
}

/// The reply to a call of the script: a row of three numbers for each check, of which the first is
/// the hits that count now.
fn script(rows: &[[f64; 3]]) -> Vec<u8> {
    script_with(rows, "")
}

/// The same, with one more element after the rows if there is one.
fn script_with(rows: &[[f64; 3]], behind: &str) -> Vec<u8> {
    let numbers = rows.iter().flatten();
    let packed: Vec<u8> = numbers.flat_map(|number| number.to_le_bytes()).collect();
    let (elements, length) = (3 + usize::from(!behind.is_empty()), packed.len());
    let head = format!("*{elements}\r\n$10\r\n1800000000\r\n$1\r\n0\r\n${length}\r\n");
    [head.as_bytes(), &packed, b"\r\n", behind.as_bytes()].concat()
}

/// Replies from text: `|` separates replies, a space separates the lines of one reply.
fn wire(replies: &str) -> Vec<u8> {
    let reply = |text: &str| {
        text.split(' ')
            .map(|line| format!("{line}\r\n"))
            .collect::<String>()
    };
    replies
        .split('|')
        .map(|text| {
            if text.starts_with('-') {
                format!("{text}\r\n")
            } else {
                reply(text)
            }
        })
        .collect::<String>()
        .into_bytes()
}

/// The answers to one request whose batch gets these replies: for each check the hits that count.
fn read(hits: &[i64], replies: &str) -> Vec<Result<u64, StoreError>> {
    read_bytes(hits, &wire(replies))
}

fn read_bytes(hits: &[i64], replies: &[u8]) -> Vec<Result<u64, StoreError>> {
    let work = [request(checks(hits))];
    used(&replies_of(&batch(&work, OPTIONS), replies)[0])
}

const TIME: &str = "*2 $10 1800000000 $1 0";

#[test]
fn a_complete_transaction_is_read() {
    let exec = format!("+OK|+QUEUED|+QUEUED|+QUEUED|*3 {TIME} :7 :1|{TIME}|$1 9");
    assert_eq!(
        read(&[1, 0], &exec),
        [Ok(7), Ok(9)],
        "a look needs no transaction"
    );
    let script = script(&[[7.0, 0.0, 0.0], [4.0, 0.0, 0.0], [4.0, 0.0, 0.0]]);
    assert_eq!(
        read_bytes(&[1, -3, 0], &script),
        [Ok(7), Ok(4), Ok(4)],
        "with a give-back all checks go by script, in their order"
    );
}

#[test]
fn an_incomplete_or_wrong_reply_is_unknown_and_never_allowed() {
    let unknown = [Err(StoreError::Unknown("protocol"))];
    for replies in [
        // The reply to another transaction; one value missing; no time; no transaction at all.
        format!("+OK|+QUEUED|+QUEUED|+QUEUED|*4 {TIME} :7 :1 :7"),
        format!("+OK|+QUEUED|+QUEUED|+QUEUED|*2 {TIME} :7"),
        "+OK|+QUEUED|+QUEUED|+QUEUED|*3 :1 :7 :1".to_owned(),
        "+OK|+QUEUED|+QUEUED|+QUEUED|$-1".to_owned(),
        "+OK|+QUEUED|+QUEUED|+QUEUED|+OK".to_owned(),
        format!("+QUEUED|+OK|+QUEUED|+QUEUED|*3 {TIME} :7 :1"),
        format!("+OK|+QUEUED|+QUEUED|:7|*3 {TIME} :7 :1"),
        "+OK|+QUEUED".to_owned(),
        "+OK".to_owned(),
    ] {
        assert_eq!(read(&[1], &replies), unknown, "{replies}");
    }
    for replies in [
        "*2 $1 1 $1 0",
        "*3 $1 x $1 0 $1 1",
        "*3 $1 1 $1 0 $1 1",
        "*3 $1 1 $1 0 :1",
        "$1 4",
        "*3 $1 1 $1 0 *0",
    ] {
        assert_eq!(read(&[-1], replies), unknown, "{replies}");
    }
    for row in [
        [-4.0, 0.0, 0.0],
        [4.5, 0.0, 0.0],
        [f64::NAN, 0.0, 0.0],
        [1e300, 0.0, 0.0],
        [4.0, -1.0, 0.0],
        [4.0, 0.0, 0.5],
        [-1.0, 0.0, 0.0],
    ] {
        assert_eq!(read_bytes(&[-1], &script(&[row])), unknown, "{row:?}");
    }
    assert_eq!(
        read_bytes(&[-1], &script(&[[4.0, 0.0, 0.0]; 2])),
        unknown,
        "a row too many"
    );
}

#[test]
fn a_refused_transaction_is_unknown_only_if_a_command_was_executed_outside_of_it() {
    let refused = "+OK|+QUEUED|-OOM|-OOM|-EXECABORT";
    assert_eq!(read(&[1], refused), [Err(StoreError::NotExecuted("oom"))]);
    assert_eq!(
        read(&[1], "-NOAUTH|-NOAUTH|-NOAUTH|-NOAUTH|-NOAUTH"),
        [Err(StoreError::NotExecuted("auth"))]
    );
    let outside = format!("-NOPERM|{TIME}|:7|:1|-ERR");
    assert_eq!(
        read(&[1], &outside),
        [Err(StoreError::Unknown("protocol"))],
        "INCRBY was executed without MULTI"
    );
}

#[test]
fn only_calls_without_their_script_are_sent_again() {
    let all = [
        request(checks(&[1, 0])),
        request(checks(&[-1])),
        request(checks(&[2])),
        request(checks(&[-1, 1])),
    ];
    let first = batch(&all, OPTIONS);
    assert_eq!(
        first
            .groups
            .iter()
            .map(|group| group.checks.len())
            .collect::<Vec<_>>(),
        [2, 1, 3],
        "one transaction, looks, and one call"
    );
    let mut replies = first.unanswered().collect::<Vec<_>>();
    first.fail(StoreError::NotExecuted(error::NO_SCRIPT), &mut replies);
    let again = first
        .retries(Retry::NoScript, &replies)
        .expect("a call was answered with NOSCRIPT");
    assert_eq!(
        (again.groups.len(), again.groups[0].way.encoding),
        (1, GroupEncoding::Script(ScriptRef::ByText))
    );
    assert!(
        again.retries(Retry::NoScript, &replies).is_none(),
        "a call with the text is not sent again"
    );
    replies[1].answers[0] = StoreError::NotExecuted("late").into();
    assert!(first.retries(Retry::NoScript, &replies).is_none());
    replies[1].answers[0] = StoreError::NotExecuted(error::NO_SCRIPT).into();
    assert!(first.retries(Retry::NoScript, &replies).is_some());
    replies[0].answers[0] = StoreError::Unknown(error::PROTOCOL).into();
    assert!(
        first.retries(Retry::NoScript, &replies).is_none(),
        "replies do not fit their commands"
    );
}

#[test]
fn only_late_checks_whose_callers_wait_are_sent_again() {
    let now = clock(NOW);
    let ends = |after: Duration| {
        let mut request = request(checks(&[-1]));
        request.budget.deadline = now.at + after;
        request
    };
    let all = [
        ends(Duration::ZERO),
        ends(Duration::from_millis(1)),
        ends(Duration::MAX / 4),
    ];
    let first = batch(&all, OPTIONS);
    let mut replies = first.unanswered().collect::<Vec<_>>();
    first.fail(StoreError::NotExecuted(error::LATE), &mut replies);
    let again = first
        .retries(Retry::Late(now), &replies)
        .map(|again| positions(&again));
    assert_eq!(again, Some(vec![vec![(1, 0), (2, 0)]]));
    first.fail(StoreError::NotExecuted(error::NO_SCRIPT), &mut replies);
    assert!(first.retries(Retry::Late(now), &replies).is_none());
}

#[test]
fn requests_share_a_batch_and_each_gets_its_own_answers() {
    let all = [
        request(checks(&[1, 0])),
        request(checks(&[-1])),
        request(Checks::of([on(b"other", 10, 2)])),
    ];
    let text = format!(
        "+OK|+QUEUED|+QUEUED|+QUEUED|+QUEUED|+QUEUED|*5 {TIME} :7 :1 -WRONGTYPE :0|{TIME}|$1 9"
    );
    let received = [wire(&text), script(&[[4.0, 0.0, 0.0]])].concat();
    let replies = replies_of(&batch(&all, OPTIONS), &received);
    // One bad key fails one check.
    let wrong = Err(StoreError::Data("wrongtype"));
    let expected = [vec![Ok(7), Ok(9)], vec![Ok(4)], vec![wrong]];
    assert_eq!(replies.iter().map(used).collect::<Vec<_>>(), expected);
}

#[test]
fn replies_behind_an_extra_reply_are_not_used() {
    let all = [request(checks(&[1])), request(checks(&[-1]))];
    // The error is EXEC's; the reply to the call is missing.
    let received = wire("+OK|+OK|+QUEUED|+QUEUED|+QUEUED|-EXECABORT x");
    for reply in &replies_of(&batch(&all, OPTIONS), &received) {
        assert_eq!(used(reply), [Err(StoreError::Unknown("protocol"))]);
    }
}

/// The second of three checks was redirected.
fn assert_second_moved(reply: &Reply, others: [u64; 2]) {
    let moved = Err(StoreError::NotExecuted("moved"));
    assert_eq!(used(reply), [Ok(others[0]), moved, Ok(others[1])]);
    let [(CheckIndex(1), redirect)] = &reply.redirects[..] else {
        panic!("one redirect: {:?}", reply.redirects)
    };
    assert_eq!((redirect.slot, redirect.is_ask), (3_300, false));
}

#[test]
fn a_cluster_gets_a_transaction_and_a_call_per_slot() {
    let all = [hits_on([b"{a}1", b"{b}1", b"{a}2"])];
    let batch = batch(&all, BY_SLOT);
    assert_eq!(positions(&batch), [vec![(0, 0), (0, 2)], vec![(0, 1)]]);
    let text = format!(
        "+OK|+QUEUED|+QUEUED|+QUEUED|+QUEUED|+QUEUED|*5 {TIME} :1 :1 :2 :1|+OK|+QUEUED|-MOVED 3300 \
         h:7|-MOVED 3300 h:7|-EXECABORT x"
    );
    assert_second_moved(&replies_of(&batch, &wire(&text))[0], [1, 2]);
}

/// A batch for a node that runs the script on keys of several slots.
fn across_slots(all: &[Request]) -> Batch<'_> {
    let options = BatchOptions {
        scope: KeyScope::Node,
        fixed_windows_by_script: true,
        ..BY_SLOT
    };
    batch(all, options)
}

fn windows(keys: &[&[u8]], commit: Commit) -> Request {
    let mut checks = Checks::of(keys.iter().map(|key| on(key, 10, 1)));
    checks.commit = commit;
    request(checks)
}

/// The requests and the checks of each group.
fn positions(batch: &Batch<'_>) -> Vec<Vec<(usize, usize)>> {
    let of_group = |group: &CommandGroup| {
        group
            .checks
            .iter()
            .map(|at| (at.request, at.pick))
            .collect()
    };
    batch.groups.iter().map(of_group).collect()
}

#[test]
fn a_node_of_a_cluster_gets_one_call_for_all_slots() {
    let mut all = [
        windows(&[b"{a}1", b"{b}1"], Commit::Each),
        windows(&[b"{c}1", b"{c}2"], Commit::AllOrNone),
        windows(&[b"{a}2"], Commit::Each),
    ];
    all[2] = asking(&all[2]);
    let batch = across_slots(&all);
    assert_eq!(
        positions(&batch),
        [vec![(0, 0), (0, 1), (1, 0), (1, 1)], vec![(2, 0)]],
        "ASKING is for one call"
    );
    let mut commands = CommandBuffer::default();
    batch.write(&mut commands);
    let text = String::from_utf8_lossy(commands.bytes());
    let call = format!(
        "EVALSHA\r\n$40\r\n{}\r\n$1\r\n0\r\n$1\r\n4\r\n",
        script::CROSS_SLOT_SCRIPT.hash
    );
    assert!(text.contains(&call), "{text}");
    let own = format!(
        "ASKING\r\n*9\r\n$7\r\nEVALSHA\r\n$40\r\n{}\r\n$1\r\n1\r\n",
        script::SCRIPT.hash
    );
    assert!(text.contains(&own), "{text}");
}

/// Of calls without their script the first has the text, unless the address has several shards.
fn assert_text_is_sent_once(batch: &Batch<'_>, replies: &[Reply]) {
    for (retry, others) in [
        (Retry::NoScript, ScriptRef::ByHash),
        (Retry::NoSharedScript, ScriptRef::ByText),
    ] {
        let texts = batch.retries(retry, replies).expect("no script");
        let script_refs: Vec<_> = texts
            .groups
            .iter()
            .map(|group| group.way.encoding)
            .collect();
        let mut expected = vec![GroupEncoding::Script(others); batch.groups.len()];
        expected[0] = GroupEncoding::Script(ScriptRef::ByText);
        assert_eq!(script_refs, expected);
    }
}

#[test]
fn only_checks_that_a_call_across_slots_did_not_run_get_calls_of_their_own() {
    let all = [
        windows(&[b"{a}1", b"{b}1", b"{d}1"], Commit::Each),
        windows(&[b"{c}1", b"{c}2"], Commit::AllOrNone),
    ];
    let batch = across_slots(&all);
    let used = Verdict {
        allowed: true,
        remaining: 0,
        used: 1,
        reset_after: Span::ZERO,
        retry_after: crate::core::verdict::Wait::Never,
        delay: Span::ZERO,
    };
    let again = |answers: [Result<Verdict, StoreError>; 5]| {
        let mut replies = batch.unanswered().collect::<Vec<_>>();
        let answers = answers.map(Answer::from);
        replies[0].answers.copy_from_slice(&answers[..3]);
        replies[1].answers.copy_from_slice(&answers[3..]);
        let again = batch.retries(Retry::Slots, &replies)?;
        assert!(
            again
                .groups
                .iter()
                .all(|group| group.way.scope == KeyScope::Slot)
        );
        // The node may not have the other text.
        again
            .groups
            .iter()
            .flat_map(|group| &group.checks)
            .for_each(|at| {
                replies[at.request].answers[at.pick].verdict =
                    Err(StoreError::NotExecuted(error::NO_SCRIPT));
            });
        assert_text_is_sent_once(&again, &replies);
        Some(positions(&again))
    };
    let (moved, oom) = (
        Err(StoreError::NotExecuted("non_local_key")),
        Err(StoreError::NotExecuted("oom")),
    );
    let (wrong, unknown) = (
        Err(StoreError::Data("wrongtype")),
        Err(StoreError::Unknown("moved")),
    );
    assert_eq!(again([Ok(used); 5]), None);
    assert_eq!(
        again([Ok(used), moved, Ok(used), Ok(used), Ok(used)]),
        Some(vec![vec![(0, 1)]])
    );
    assert_eq!(
        again([moved, wrong, Ok(used), moved, moved]),
        Some(vec![vec![(0, 0)], vec![(1, 0), (1, 1)]])
    );
    assert_eq!(
        again([wrong, unknown, Ok(used), wrong, moved]),
        None,
        "the whole request or nothing"
    );
    assert_eq!(again([unknown; 5]), None, "they may have run");
    assert_eq!(again([oom; 5]).map(|groups| groups.len()), Some(4));
    let protocol = Err(StoreError::Unknown(error::PROTOCOL));
    assert_eq!(again([moved, moved, moved, moved, protocol]), None);
}

/// Two keys of a slot that is being migrated: one has moved already, the other has not.
#[test]
fn only_the_moved_keys_of_a_transaction_are_redirected() {
    let all = [hits_on([b"{a}1", b"{a}2"])];
    let batch_of_all = batch(&all, BY_SLOT);
    let redirected = |text: &str| {
        let reply = &replies_of(&batch_of_all, &wire(text))[0];
        let redirects = reply.redirects.iter();
        let redirects: Vec<_> = redirects.map(|(at, to)| (at.0, to.is_ask)).collect();
        (used(reply), redirects)
    };
    let [ask, discarded] = ["ask", "execabort"].map(|name| Err(StoreError::NotExecuted(name)));
    let one_moved = "+OK|+QUEUED|-ASK 1 h:7|-ASK 1 h:7|+QUEUED|+QUEUED|-EXECABORT x";
    assert_eq!(
        redirected(one_moved),
        (vec![ask, discarded], vec![(0, true)])
    );
    let at_exec = "+OK|+QUEUED|+QUEUED|+QUEUED|+QUEUED|+QUEUED|-ASK 1 h:7";
    assert_eq!(
        redirected(at_exec),
        (vec![ask, ask], vec![(0, true), (1, true)]),
        "all checks, when only EXEC is redirected"
    );
    let asking = [asking(&all[0])];
    let groups = batch(&asking, BY_SLOT).groups.len();
    assert_eq!(groups, 2, "behind ASKING each key goes alone");
}

#[test]
fn the_ttl_is_the_window_the_grace_and_a_jitter_of_at_most_one_window() {
    let all = [request(checks(&[1]))];
    for (jitter, longest) in [(0, 65), (20, 85), (300, 125)] {
        let options = BatchOptions {
            expiry_jitter_secs: jitter,
            ..OPTIONS
        };
        let batch = batch(&all, options);
        let fixed = window_without_script(&all[0].checks, &all[0].checks[CheckIndex(0)])
            .expect("a transaction can decide it");
        let ttls: Vec<u64> = (0..2_000).map(|_| batch.ttl_secs(fixed)).collect();
        assert_eq!(
            (ttls.iter().min(), ttls.iter().max()),
            (Some(&65), Some(&longest)),
            "jitter {jitter}"
        );
    }
}

/// The number of commands of a batch, the answers from these replies, and the EXPIREs that follow
/// them.
fn exchanged(
    requests: &[Request],
    time: Micros,
    replies: &str,
    known_ttls: &mut KnownTtls,
) -> (usize, Vec<Result<u64, StoreError>>, usize, usize) {
    let batch = Batch::new(requests, OPTIONS, clock(time), known_ttls);
    let (mut out, mut after) = (CommandBuffer::default(), CommandBuffer::default());
    batch.write(&mut out);
    let answers = replies_of(&batch, &wire(replies));
    let without_ttl = batch.learn(&answers, known_ttls);
    batch.write_expiries(&without_ttl, &mut after);
    let answers = answers.iter().map(|reply| used(reply)[0]).collect();
    (out.commands(), answers, without_ttl.len(), after.commands())
}

#[test]
fn expire_is_sent_again_after_an_error() {
    let all = [request(checks(&[1])), request(checks(&[2]))];
    let mut known_ttls = KnownTtls::default();
    let mut exchange = |requests: &[Request], time: Micros, replies: &str| {
        exchanged(requests, time, replies, &mut known_ttls)
    };
    let whole = format!("+OK|+QUEUED|+QUEUED|+QUEUED|*3 {TIME} :1 :1");
    exchange(&all[..1], NOW, &whole);
    for (refused, name) in [
        (
            format!("{TIME}|-OOM no memory"),
            StoreError::NotExecuted("oom"),
        ),
        (
            "-NOPERM no right|:5".to_owned(),
            StoreError::Unknown("noperm"),
        ),
        (format!("{TIME}|+OK"), StoreError::Unknown("protocol")),
    ] {
        assert_eq!(
            exchange(&all[..1], NOW, &refused),
            (2, vec![Err(name)], 0, 0),
            "{refused}"
        );
        assert_eq!(
            exchange(&all[..1], NOW, &whole).0,
            5,
            "after an error EXPIRE is sent again"
        );
    }
}

#[test]
fn expire_is_sent_once_per_counter() {
    let all = [request(checks(&[1])), request(checks(&[2]))];
    let mut known_ttls = KnownTtls::default();
    let mut exchange = |requests: &[Request], time: Micros, replies: &str| {
        exchanged(requests, time, replies, &mut known_ttls)
    };
    let whole = format!("+OK|+QUEUED|+QUEUED|+QUEUED|*3 {TIME} :1 :1");
    let plain = |count: u32| format!("{TIME}|:{count}");
    assert_eq!(
        exchange(
            &all[..1],
            NOW,
            "-LOADING|-LOADING|-LOADING|-LOADING|-LOADING"
        )
        .0,
        5
    );
    assert_eq!(
        exchange(&all[..1], NOW, &whole),
        (5, vec![Ok(1)], 0, 0),
        "the refused transaction before gave it no TTL"
    );
    assert_eq!(
        exchange(&all[..1], NOW, &plain(2)),
        (2, vec![Ok(2)], 0, 0),
        "its TTL is known"
    );
    assert_eq!(
        exchange(&all[1..], NOW, &plain(4)),
        (2, vec![Ok(4)], 0, 0),
        "for any number of hits"
    );
    // A flushed server: the count is the hits of this check alone.
    assert_eq!(
        exchange(&all[1..], NOW, &plain(2)),
        (2, vec![Ok(2)], 1, 1),
        "EXPIRE follows"
    );
    assert_eq!(
        exchange(&all[..1], NOW, &whole).0,
        5,
        "and is sent again with the next hit"
    );
    assert_eq!(exchange(&all[..1], NOW, &plain(2)).0, 2);
    assert_eq!(
        exchange(&all[..1], NOW + Span::from_secs(60), &whole).0,
        5,
        "the next window is another counter"
    );
}

#[test]
fn plain_commands_go_to_a_cluster_node_together_and_are_redirected_one_by_one() {
    let all = [hits_on([b"{a}1", b"{b}1", b"{c}1"])];
    let (mut known_ttls, now) = (KnownTtls::default(), clock(NOW));
    let first = Batch::new(&all, BY_SLOT, now, &mut known_ttls);
    assert_eq!(first.groups.len(), 3, "a transaction for each slot");
    let whole = vec![format!("+OK|+QUEUED|+QUEUED|+QUEUED|*3 {TIME} :1 :1"); 3].join("|");
    let replies = replies_of(&first, &wire(&whole));
    assert!(first.learn(&replies, &mut known_ttls).is_empty());
    let second = Batch::new(&all, BY_SLOT, now, &mut known_ttls);
    assert_eq!(second.groups.len(), 1);
    let text = format!("{TIME}|:2|-MOVED 3300 h:7|:2");
    assert_second_moved(&replies_of(&second, &wire(&text))[0], [2, 2]);
    let asking = [asking(&all[0])];
    let batch = Batch::new(&asking, BY_SLOT, now, &mut known_ttls);
    let by_transaction = |group: &CommandGroup| group.way.encoding == GroupEncoding::Transaction;
    assert!(
        batch.groups.iter().all(by_transaction),
        "behind ASKING no TTL is taken as known"
    );
}

/// A request with one hit on a key of its own.
fn hit(of: usize, algorithm: Algorithm) -> Request {
    let key = format!("w1{{shop|customer=c-{of}|path=/checkout}}fw60");
    request(Checks::of([(
        key.as_bytes(),
        Check::new(algorithm, 1, Modes::default()),
    )]))
}

/// The number of allocations of one batch from its requests to their answers: encoding it, and
/// reading these replies to it.
fn allocations(all: &[Request], replies: &[u8]) -> u64 {
    let (mut out, mut received) = (CommandBuffer::default(), ReplyBuffer::default());
    let mut exchange = || {
        let batch = batch(all, OPTIONS);
        let mut answers = batch.unanswered().collect::<Vec<_>>();
        out.clear();
        batch.write(&mut out);
        received.clear();
        for piece in replies.chunks(1_000) {
            received.spare().expect("a small reply")[..piece.len()].copy_from_slice(piece);
            received.fill(piece.len());
            while received.parse_reply().expect("good replies") {}
        }
        batch.read(received.tokens(), &mut answers);
        assert!(
            answers
                .iter()
                .all(|reply| reply.answers.iter().all(|answer| answer.verdict.is_ok())),
            "{answers:?}"
        );
    };
    exchange();
    allocation_counter::measure(exchange).count_total
}

#[test]
fn the_allocations_of_a_batch_do_not_depend_on_its_requests() {
    for (requests, expected) in [(64, 4), (96, 4)] {
        let all: Vec<Request> = (0..requests).map(|of| hit(of, fixed(99, true))).collect();
        let counted: String = (0..requests).map(|count| format!(" :{count} :1")).collect();
        let replies = wire(&format!(
            "+OK{}|*{} {TIME}{counted}",
            "|+QUEUED".repeat(2 * requests + 1),
            2 * requests + 1
        ));
        // The lists of requests, of checks, of commands and of replies. Keys, commands and replies
        // are encoded in the connection's buffers.
        assert_eq!(
            allocations(&all, &replies),
            expected,
            "a transaction of {requests}"
        );
    }
    for (requests, expected) in [(64, 9), (96, 9)] {
        let all: Vec<Request> = (0..requests).map(|of| hit(of, fixed(99, false))).collect();
        let replies = script(&vec![[4.0, 0.0, 0.0]; requests]);
        // The lists of requests, of checks and of replies, and the list of answers; the lists of keys and of their first
        // occurrences; the buffer for a key, which grows once; and the buffer for packed rows.
        assert_eq!(
            allocations(&all, &replies),
            expected,
            "a call for {requests}"
        );
    }
}

#[test]
fn hits_on_one_counter_are_one_command_and_each_has_its_own_position() {
    let all = [
        request(Checks::of([on(b"a", 10, 2), on(b"b", 10, 1)])),
        request(Checks::of([on(b"a", 5, 3)])),
        // The same counter twice, and with the larger amount of an override.
        request(Checks::of([on(b"a", 10, 4), on(b"a", 1_000, 5)])),
    ];
    let batch = batch(&all, OPTIONS);
    let mut out = CommandBuffer::default();
    batch.write(&mut out);
    assert_eq!(out.commands(), 3 + 2 * 2, "MULTI, TIME, two counters, EXEC");
    let exec = format!("+OK{}|*5 {TIME} :16 :1 :1 :1", "|+QUEUED".repeat(5));
    let replies = replies_of(&batch, &wire(&exec));
    let verdict = |answer: &Answer| answer.verdict.map(|one| (one.allowed, one.used));
    let answers = replies.iter().flat_map(|reply| &reply.answers);
    let expected = [(true, 4), (true, 1), (false, 7), (false, 11), (true, 16)].map(Ok);
    assert_eq!(
        answers.map(verdict).collect::<Vec<_>>(),
        expected,
        "2 hits were there before"
    );
    let mut known_ttls = KnownTtls::default();
    assert!(batch.learn(&replies, &mut known_ttls).is_empty());
    // Now plain, and Redis has lost `a`: it has the hits of this batch alone.
    let plain = Batch::new(&all, OPTIONS, clock(NOW), &mut known_ttls);
    out.clear();
    plain.write(&mut out);
    assert_eq!(out.commands(), 3, "TIME and two counters");
    let replies = replies_of(&plain, &wire(&format!("{TIME}|:14|:9")));
    assert_eq!(used(&replies[0])[0], Ok(2));
    let lost = plain.learn(&replies, &mut known_ttls);
    assert_eq!(lost.len(), 1, "one EXPIRE for the counter");
}

#[test]
fn an_error_of_a_merged_command_is_the_error_of_all_its_hits() {
    let hits = [1, 2, 4];
    let all = hits.map(|hits| request(Checks::of([on(b"a", 10, hits)])));
    let mut known_ttls = KnownTtls::default();
    exchanged(
        &all[..1],
        NOW,
        &format!("+OK|+QUEUED|+QUEUED|+QUEUED|*3 {TIME} :1 :1"),
        &mut known_ttls,
    );
    let data = |name| Err(StoreError::Data(name));
    for (reply, expected) in [
        ("-WRONGTYPE no", [data("wrongtype"); 3]),
        ("-OOM no", [Err(StoreError::NotExecuted("oom")); 3]),
        ("$-1", [data("not_an_integer"); 3]),
        // A counter that was below zero: each position by itself.
        (":4", [data("range"), Ok(0), Ok(4)]),
        (":-9223372036854775808", [data("range"); 3]),
        // At the end of 64 bits nothing was counted, and all are over their limits.
        (
            "-ERR increment or decrement would overflow",
            [Ok(LARGEST_COUNT); 3],
        ),
    ] {
        let mut known = KnownTtls::default();
        std::mem::swap(&mut known, &mut known_ttls);
        let (commands, answers, ..) = exchanged(&all, NOW, &format!("{TIME}|{reply}"), &mut known);
        assert_eq!((commands, &answers[..]), (2, &expected[..]), "{reply}");
        // Errors forget the counter.
        let whole = format!("+OK|+QUEUED|+QUEUED|+QUEUED|*3 {TIME} :1 :1");
        exchanged(&all[..1], NOW, &whole, &mut known);
        known_ttls = known;
    }
}

#[test]
fn a_redirect_of_a_merged_command_is_that_of_all_its_hits() {
    let all = [1, 2].map(|hits| request(Checks::of([on(b"a", 10, hits), on(b"b", 10, 1)])));
    let plain = format!("{TIME}|-MOVED 15495 h:7|:2");
    let transactions = format!(
        "+OK|+QUEUED|-MOVED 15495 h:7|-MOVED 15495 h:7|-EXECABORT x|+OK|+QUEUED|+QUEUED|+QUEUED|*3 \
         {TIME} :2 :1"
    );
    for (known, text) in [(&["a", "b"][..], plain), (&[], transactions)] {
        let batch = Batch::new(&all, BY_SLOT, clock(NOW), &mut known_ttls(known));
        for (reply, of_b) in replies_of(&batch, &wire(&text)).iter().zip([1, 2]) {
            let moved = Err(StoreError::NotExecuted("moved"));
            assert_eq!(used(reply), [moved, Ok(of_b)], "{text}");
            let moved: Vec<_> = reply.redirects.iter().map(|(index, _)| *index).collect();
            assert_eq!(moved, [CheckIndex(0)], "{text}");
        }
    }
}

/// A set with these counters.
fn known_ttls(keys: &[&str]) -> KnownTtls {
    let mut known = KnownTtls::default();
    for key in keys.iter().map(|key| key.as_bytes()) {
        known.learn(CounterKey {
            key: Fingerprint::of(key),
            window: NOW.0 / 60_000_000,
        });
    }
    known
}

/// Replies of a server with these counters to commands. `None` is a key that holds no counter.
fn executed(commands: &CommandBuffer, counters: &mut BTreeMap<String, Option<i64>>) -> Vec<u8> {
    let text = String::from_utf8(commands.bytes().to_vec()).expect("keys of ASCII");
    let mut words = text
        .split("\r\n")
        .filter(|word| !word.starts_with(['*', '$']));
    let (mut replies, mut queued) = (Vec::new(), None::<Vec<Vec<u8>>>);
    while let Some(name) = words.next().filter(|name| !name.is_empty()) {
        let mut argument = || words.next().expect("an argument").to_owned();
        let reply = match name {
            "MULTI" => {
                queued = Some(Vec::new());
                replies.extend(wire("+OK"));
                continue;
            }
            "EXEC" => {
                let all = queued.take().expect("MULTI");
                [wire(&format!("*{}", all.len())), all.concat()].concat()
            }
            "TIME" => wire(TIME),
            "EXPIRE" => {
                let _key_and_seconds = (argument(), argument());
                wire(":1")
            }
            "GET" => match counters.get(&argument()) {
                None => wire("$-1"),
                Some(None) => wire("-WRONGTYPE no counter"),
                Some(Some(value)) => wire(&format!("${} {value}", value.to_string().len())),
            },
            _ => {
                let (key, hits) = (argument(), argument().parse().expect("hits"));
                let counter = counters.entry(key).or_insert(Some(0));
                let after = counter.map(|value: i64| value.checked_add(hits));
                match after {
                    None => wire("-WRONGTYPE no counter"),
                    Some(None) => wire("-ERR increment or decrement would overflow"),
                    Some(Some(after)) => {
                        *counter = Some(after);
                        wire(&format!(":{after}"))
                    }
                }
            }
        };
        match &mut queued {
            Some(queued) => {
                queued.push(reply);
                replies.extend(wire("+QUEUED"));
            }
            None => replies.extend(reply),
        }
    }
    replies
}

/// Sends these requests in one batch to a server with these counters.
fn answered(
    requests: &[Request],
    known_ttls: &mut KnownTtls,
    counters: &mut BTreeMap<String, Option<i64>>,
) -> Vec<Result<(bool, u64), StoreError>> {
    let batch = Batch::new(requests, OPTIONS, clock(NOW), known_ttls);
    let mut out = CommandBuffer::default();
    batch.write(&mut out);
    let replies = replies_of(&batch, &executed(&out, counters));
    let answers = replies.iter().flat_map(|reply| &reply.answers);
    let summary = |verdict: Verdict| (verdict.allowed, verdict.remaining);
    answers.map(|answer| answer.verdict.map(summary)).collect()
}

proptest! {
    #![proptest_config(crate::testing::property(2_000))]

    /// In one batch, checks are answered as one by one.
    #[test]
    fn merged_hits_are_answered_as_a_row_of_single_ones(
        asked in prop::collection::vec(prop::collection::vec((0..4_usize, 0..6_i64, 1..30_u64), 1..4), 1..12),
        counted in prop::collection::vec(prop_oneof![
            4 => (0..30_i64).prop_map(Some),
            1 => Just(None),
            1 => (-9..0_i64).prop_map(Some),
            1 => Just(Some(i64::MAX - 7)),
            1 => Just(Some(i64::MIN)),
        ], 4),
        are_known in any::<bool>(),
    ) {
        let window = NOW.0 / 60_000_000;
        let names = ["a", "b", "c", "d"];
        let mut known_ttls = known_ttls(if are_known { &names } else { &[] });
        // A peek at a counter that is not in the set goes apart from the hits of other requests.
        let least = i64::from(!are_known);
        let check = |&(key, hits, limit): &(usize, i64, u64)| on(names[key].as_bytes(), limit, hits.max(least));
        let requests: Vec<_> = asked.iter().map(|checks| request(Checks::of(checks.iter().map(check)))).collect();
        let mut together: BTreeMap<_, _> = names.iter().zip(counted).map(|(name, value)| (format!("{name}:{window}"), value)).collect();
        let mut apart = together.clone();
        let answers = answered(&requests, &mut known_ttls, &mut together);
        let mut one_by_one = Vec::new();
        for one in asked.iter().flatten() {
            one_by_one.extend(answered(&[request(Checks::of([check(one)]))], &mut known_ttls, &mut apart));
        }
        prop_assert_eq!(answers, one_by_one);
        // Where a sum does not fit into 64 bits, none of it is counted.
        together.retain(|_, value| value.is_none_or(|value| value < i64::MAX - 7));
        apart.retain(|_, value| value.is_none_or(|value| value < i64::MAX - 7));
        prop_assert_eq!(together, apart);
    }
}
