//! The tables in `tests/vectors/algorithms/*.txt`, run through the script inside Redis at given times.

use weir::store::redis::ScriptRef;

use super::*;
use crate::algorithms::tables;
use crate::support::redis::RedisServer;

#[test]
fn the_script_matches_the_tables() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    for (number, sequence) in tables().into_iter().enumerate() {
        let is_back = sequence.asks.windows(2).any(|pair| pair[1].at.now < pair[0].at.now);
        if matches!(sequence.algorithm, Algorithm::FixedWindow(_)) && is_back {
            // In Redis each window has its own key, numbered by an estimate of Redis's clock that does not go back at once.
            continue;
        }
        for (index, ask) in sequence.asks.iter().enumerate() {
            let checks = checks_of(&[(&format!("{number}"), Check::new(sequence.algorithm, ask.hits, Modes::default()))]);
            let when = When { now: ask.at.now, deadline: Micros(u64::MAX), max_hold: ask.at.max_hold };
            let call = call([(&checks, when)]);
            let reply = call.command(ScriptRef::ByText).query(&mut connection).expect("Redis is well");
            let mut answers = [Err(StoreError::Unknown("unanswered"))];
            call.read(&reply, &mut answers).expect("a good reply");
            ask.expected.compare(&answers[0].expect("a verdict"), &format!("{}, check {}", sequence.name, index + 1));
        }
    }
    server.assert_every_key_expires();
}
