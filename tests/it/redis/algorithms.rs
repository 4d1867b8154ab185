//! The tables in `tests/vectors/algorithms/*.txt`, `all_or_none.txt`, `changed_amounts.txt` and
//! `answers.txt`, run through the script inside Redis at given times.

use weir::store::redis::ScriptRef;

use super::*;
use crate::decisions::algorithms::tables;
use crate::support::redis::RedisServer;

#[test]
fn the_script_matches_the_tables() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    for (number, sequence) in tables().into_iter().enumerate() {
        let is_back = sequence
            .asks
            .windows(2)
            .any(|pair| pair[1].at.now < pair[0].at.now);
        if matches!(sequence.asks[0].algorithm, Algorithm::FixedWindow(_)) && is_back {
            // In Redis each window has its own key, numbered by an estimate of Redis's clock that
            // does not go back at once.
            continue;
        }
        for (index, ask) in sequence.asks.iter().enumerate() {
            let checks = sequence.checks(&number.to_string(), ask);
            let when = When {
                now: ask.at.now,
                deadline: Micros(u64::MAX),
                max_wait: ask.at.max_wait,
            };
            let call = call([(&checks, when)]);
            let reply = call
                .command(ScriptRef::ByText)
                .query(&mut connection)
                .expect("Redis is well");
            let mut answers = vec![Err(StoreError::Unknown("unanswered")); checks.len()];
            call.read(&reply, &mut answers).expect("a good reply");
            let verdicts: Vec<Verdict> = answers
                .into_iter()
                .map(|answer| answer.expect("a verdict"))
                .collect();
            sequence.compare(index, &verdicts);
        }
    }
    server.assert_every_key_expires();
}
