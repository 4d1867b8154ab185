//! Places whose answers do not reach their callers: HTTP/2 frame by frame, with both stores.
//!
//! A client that gives up resets its call, and sends no release.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use h2::client::SendRequest;
use prost::Message;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::frames::{METHOD, begin, connect_to, framed, head, read};
use super::raw::{
    DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, SETTINGS, connect, fields, frame,
    read_frame,
};
use crate::support::proxy::{Forwarding, Proxy};
use crate::support::wait::{TIMEOUT, eventually_async};
use crate::support::{
    Client, RedisServer, Weir, ask, descriptor, descriptor_with_hits, http_client, request,
};

const PLACES: u32 = 1_000;

const LIMITS: &[(&str, &str)] = &[
    (
        "limits.yaml",
        "
domain: shop
descriptors:
  - key: user
    descriptors:
      - key: request
        rate_limit: { algorithm: concurrency, requests_per_unit: 1000, max_duration: 1h, \
            track_usage: true }
  - key: team
    descriptors:
      - key: request
        rate_limit: { algorithm: concurrency, requests_per_unit: 1000, max_duration: 1h }
  - key: held
    rate_limit: { algorithm: leaky_bucket, unit: minute, requests_per_unit: 1, max_delay: 1h }
  - key: open
    descriptors:
      - key: request
        rate_limit: { algorithm: concurrency, requests_per_unit: 1000, max_duration: 1h, \
            on_store_failure: local }
",
    ),
    (
        "whole.yaml",
        "
domain: whole
commit: all_or_none
descriptors:
  - key: user
    descriptors:
      - key: request
        rate_limit: { algorithm: concurrency, requests_per_unit: 1000, max_duration: 1h }
  - key: team
    descriptors:
      - key: request
        rate_limit: { algorithm: concurrency, requests_per_unit: 1000, max_duration: 1h }
",
    ),
];

/// An acquire for a user and a team, as the bytes of its message.
fn acquire(domain: &str, id: &str) -> Bytes {
    let place = |key| descriptor_with_hits(&[(key, "ann"), ("request", id)], 1);
    let both = vec![place("user"), place("team")];
    framed(&request(domain, both).encode_to_vec())
}

/// The places that are taken of the user, and of the team.
async fn taken(client: &mut Client, domain: &str) -> [u32; 2] {
    let mut taken = [0; 2];
    for (key, taken) in ["user", "team"].into_iter().zip(&mut taken) {
        let peek = descriptor_with_hits(&[(key, "ann"), ("request", "unknown")], 0);
        let answer = ask(client, domain, vec![peek]).await;
        *taken = PLACES - answer.statuses[0].limit_remaining;
    }
    taken
}

/// Waits until so many places are taken of both.
async fn becomes(client: &mut Client, domain: &str, expected: u32) {
    let began = Instant::now();
    loop {
        let now = taken(client, domain).await;
        if now == [expected; 2] {
            return;
        }
        assert!(began.elapsed() < TIMEOUT, "{now:?} are taken of {domain}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Begins an acquire, and gives up after this time: resets it, unless its whole answer has arrived,
/// because HTTP/2 has no reset then. Returns whether it has.
async fn cancelled(
    connection: &mut SendRequest<Bytes>,
    message: Bytes,
    after: Duration,
) -> JoinHandle<bool> {
    let (answer, mut stream) = begin(connection, head(METHOD, &[]), false).await;
    stream.send_data(message, true).expect("an open stream");
    tokio::spawn(async move {
        match after {
            // The call leaves with the next turn of the connection.
            Duration::ZERO => tokio::task::yield_now().await,
            after => tokio::time::sleep(after).await,
        }
        let is_answered = read(answer).now_or_never().is_some();
        if !is_answered {
            stream.send_reset(h2::Reason::CANCEL);
        }
        is_answered
    })
}

/// Two hundred acquires that are reset at once, or within 20 ms. The client releases what was
/// answered before.
async fn resets_free_their_places(weir: &Weir, client: &mut Client) {
    for domain in ["shop", "whole"] {
        let mut connection = connect_to(weir.grpc_addr(), 65_535).await;
        let mut calls = Vec::new();
        for number in 0..200_u64 {
            let after = Duration::from_micros(if number < 100 { 0 } else { number * 100 });
            let id = format!("r{number}");
            let message = acquire(domain, &id);
            calls.push((id, cancelled(&mut connection, message, after).await));
            if number % 10 == 0 {
                tokio::task::yield_now().await;
            }
        }
        let mut resets = 0;
        for (id, call) in calls {
            if call.await.expect("no panic") {
                release(client, domain, &id).await;
            } else {
                resets += 1;
            }
        }
        assert!(resets >= 50, "{resets} calls were reset");
        becomes(client, domain, 0).await;
        // Read by the client before the reset, as Envoy reads what it does not reset.
        let (answer, mut stream) = begin(&mut connection, head(METHOD, &[]), false).await;
        stream
            .send_data(acquire(domain, "read"), true)
            .expect("an open stream");
        read(answer).await;
        drop((stream, connection));
        becomes(client, domain, 1).await;
        release(client, domain, "read").await;
        becomes(client, domain, 0).await;
    }
}

/// The frames of an acquire.
fn frames(stream: u32, message: &[u8]) -> Vec<u8> {
    [
        frame(HEADERS, END_HEADERS, stream, &fields("weir")),
        frame(DATA, END_STREAM, stream, message),
    ]
    .concat()
}

/// Waits until an answer has arrived, and does not read it.
async fn arrived(socket: &TcpStream, bytes: usize) {
    let mut buffer = vec![0; bytes];
    let has_arrived = || (socket.peek(&mut buffer).ok()? >= bytes).then_some(());
    assert!(eventually_async(has_arrived).await.is_some(), "no answer");
}

/// The bytes that Weir sends before its first answer on a connection, with that answer.
fn answer_bytes(weir: &Weir) -> usize {
    let mut socket = connect(weir.grpc_addr());
    socket
        .write_all(&frames(1, &acquire("shop", "first")))
        .expect("a server");
    let mut bytes = 0;
    loop {
        let (kind, flags, _, payload) = read_frame(&mut socket).expect("an open connection");
        bytes += 9 + payload.len();
        if kind == HEADERS && flags & END_STREAM > 0 {
            return bytes;
        }
    }
}

/// The reset crosses the answer, which the kernel of the client has.
async fn resets_that_cross_the_answer(weir: &Weir, client: &mut Client) {
    let bytes = answer_bytes(weir);
    becomes(client, "shop", 1).await;
    let mut sockets: Vec<_> = (0..20).map(|_| connect(weir.grpc_addr())).collect();
    for (number, socket) in sockets.iter_mut().enumerate() {
        let message = acquire("shop", &format!("c{number}"));
        socket.write_all(&frames(1, &message)).expect("a server");
    }
    for socket in &sockets {
        arrived(socket, bytes).await;
    }
    becomes(client, "shop", 21).await;
    for (number, socket) in sockets.iter_mut().enumerate() {
        let cancel = 8_u32.to_be_bytes();
        socket
            .write_all(&frame(RST_STREAM, 0, 1, &cancel))
            .expect("a server");
        if number % 2 == 0 {
            // The retry of the client has the place.
            let message = acquire("shop", &format!("c{number}"));
            socket.write_all(&frames(3, &message)).expect("a server");
        }
    }
    becomes(client, "shop", 11).await;
    // Half of them are read, and stay when the connection ends; others take their places along.
    for socket in sockets.iter_mut().step_by(4) {
        loop {
            let (kind, flags, stream, _) = read_frame(socket).expect("an open connection");
            if (kind, stream) == (HEADERS, 3) && flags & END_STREAM > 0 {
                break;
            }
        }
    }
    drop(sockets);
    becomes(client, "shop", 6).await;
    for number in (0..20).step_by(4).map(|number| format!("c{number}")) {
        release(client, "shop", &number).await;
    }
    release(client, "shop", "first").await;
    becomes(client, "shop", 0).await;
}

async fn release(client: &mut Client, domain: &str, id: &str) {
    let of = |key| descriptor_with_hits(&[(key, "ann"), ("request", id)], -1);
    let both = ["user", "team"].map(of).to_vec();
    ask(client, domain, both).await;
}

/// Connections that end at once, and clients whose windows have no room for an answer.
async fn answers_that_are_never_written(weir: &Weir, client: &mut Client) {
    for number in 0..50_u64 {
        let mut socket = connect(weir.grpc_addr());
        let message = acquire("shop", &format!("e{number}"));
        socket.write_all(&frames(1, &message)).expect("a server");
        tokio::time::sleep(Duration::from_micros(number * 40)).await;
    }
    becomes(client, "shop", 0).await;
    // SETTINGS_INITIAL_WINDOW_SIZE of 1.
    let small = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]);
    let mut socket = connect(weir.grpc_addr());
    socket.write_all(&small).expect("a server");
    let message = acquire("shop", "small");
    socket.write_all(&frames(1, &message)).expect("a server");
    socket.write_all(&frames(3, &message)).expect("a server");
    becomes(client, "shop", 1).await;
    let cancel = 8_u32.to_be_bytes();
    for stream in [1, 3] {
        socket
            .write_all(&frame(RST_STREAM, 0, stream, &cancel))
            .expect("a server");
    }
    becomes(client, "shop", 0).await;
    socket.write_all(&frames(5, &message)).expect("a server");
    becomes(client, "shop", 1).await;
    drop(socket);
    becomes(client, "shop", 0).await;
}

/// A request that a shaper holds has its place, until its client gives up.
async fn held_requests(weir: &Weir, client: &mut Client) {
    let held = |id: &str| {
        let all = vec![
            descriptor(&[("held", "x")]),
            descriptor_with_hits(&[("user", "ann"), ("request", id)], 1),
            descriptor_with_hits(&[("team", "ann"), ("request", id)], 1),
        ];
        request("shop", all)
    };
    client
        .should_rate_limit(held("now"))
        .await
        .expect("an answer");
    let mut connection = connect_to(weir.grpc_addr(), 65_535).await;
    let (answer, mut stream) = begin(&mut connection, head(METHOD, &[]), false).await;
    stream
        .send_data(framed(&held("later").encode_to_vec()), true)
        .expect("an open stream");
    becomes(client, "shop", 2).await;
    stream.send_reset(h2::Reason::CANCEL);
    drop(answer);
    becomes(client, "shop", 1).await;
    release(client, "shop", "now").await;
    becomes(client, "shop", 0).await;
}

async fn places_do_not_leak(weir: &Weir) {
    let client = &mut weir.client().await;
    resets_free_their_places(weir, client).await;
    resets_that_cross_the_answer(weir, client).await;
    answers_that_are_never_written(weir, client).await;
    held_requests(weir, client).await;
    let usage = http_client::get(
        weir.listener("debug"),
        "/api/v1/usage?domain=shop&entry=user%3Dann&entry=request%3D",
    );
    let usage: Value = serde_json::from_str(&usage.body).expect("JSON");
    assert!(usage["hits"].as_u64() > Some(150), "they acquired: {usage}");
    let gauge = || weir.metric("weir_concurrency_holders{domain=\"shop\",limit=\"user.request\"}");
    let is_zero = || (gauge() == Some(0.0)).then_some(());
    assert!(eventually_async(is_zero).await.is_some(), "{:?}", gauge());
}

#[tokio::test]
async fn places_do_not_leak_in_memory() {
    places_do_not_leak(&Weir::start(LIMITS, &[])).await;
}

#[tokio::test]
async fn places_do_not_leak_in_redis() {
    let redis = RedisServer::start();
    let environment = [("REDIS_URL", &*redis.url()), ("STORE_TIMEOUT", "5s")];
    places_do_not_leak(&Weir::start(LIMITS, &environment)).await;
    redis.assert_every_key_expires();
}

/// The call is answered before the rest of the reset arrives.
#[tokio::test]
async fn a_reset_that_arrives_in_two_pieces_frees_its_place() {
    let weir = Weir::start(LIMITS, &[]);
    let client = &mut weir.client().await;
    let bytes = answer_bytes(&weir);
    let reset = frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes());
    for cut in 1..reset.len() {
        becomes(client, "shop", 1).await;
        let mut socket = connect(weir.grpc_addr());
        let call = frames(1, &acquire("shop", &format!("p{cut}")));
        let sent = socket.write_all(&[&call, &reset[..cut]].concat());
        sent.expect("a server");
        arrived(&socket, bytes).await;
        socket.write_all(&reset[cut..]).expect("a server");
        becomes(client, "shop", 1).await;
    }
}

/// Waits until the worker of a connection has one to Redis.
async fn connects_to_redis(connection: &mut SendRequest<Bytes>) {
    let began = Instant::now();
    loop {
        let peek = descriptor_with_hits(&[("user", "ann"), ("request", "unknown")], 0);
        let message = framed(&request("shop", vec![peek]).encode_to_vec());
        let (answer, mut stream) = begin(connection, head(METHOD, &[]), false).await;
        stream.send_data(message, true).expect("an open stream");
        if read(answer).await.2 == tonic::Code::Ok {
            return;
        }
        assert!(began.elapsed() < TIMEOUT, "Redis is back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Redis executes acquires whose replies come when the callers are gone, or after the deadline, or
/// never.
#[tokio::test]
async fn answers_of_redis_that_are_late_or_lost_free_their_places() {
    let redis = RedisServer::start();
    let proxy = Proxy::before(redis.port());
    let environment = [("REDIS_URL", &*proxy.url()), ("STORE_TIMEOUT", "300ms")];
    let weir = Weir::start(LIMITS, &environment);
    let client = &mut weir.client().await;
    becomes(client, "shop", 0).await;
    let key = |key: &str| format!("w1{{shop|{key}=ann|request=}}cc");
    let holders_in_redis =
        || ["user", "team"].map(|of| redis.run::<u64>(&["ZCOUNT", &key(of), "0", "+inf"]));
    for round in 0..3 {
        let mut connection = connect_to(weir.grpc_addr(), 65_535).await;
        connects_to_redis(&mut connection).await;
        proxy.to_client(Forwarding::BlackHole);
        let (answer, mut stream) = begin(&mut connection, head(METHOD, &[]), false).await;
        let message = acquire("shop", &format!("late-{round}"));
        stream.send_data(message, true).expect("an open stream");
        let ran = || (holders_in_redis() == [1; 2]).then_some(());
        assert!(eventually_async(ran).await.is_some(), "it runs: {round}");
        match round {
            // The client is gone when the reply comes.
            0 => drop((answer, stream, connection)),
            // The deadline passes: the answer is an error.
            1 => assert_ne!(read(answer).await.2, tonic::Code::Ok),
            _ => {
                proxy.cut();
                assert_ne!(read(answer).await.2, tonic::Code::Ok);
            }
        }
        proxy.to_client(Forwarding::Pass);
        let is_free = || (holders_in_redis() == [0; 2]).then_some(());
        assert!(
            eventually_async(is_free).await.is_some(),
            "round {round}: {:?}",
            holders_in_redis()
        );
    }
    // Redis decides again, and one that is retried gets one.
    becomes(client, "shop", 0).await;
}
