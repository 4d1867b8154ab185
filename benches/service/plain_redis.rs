//! The costs of Redis alone: plain `INCR`s, sixteen to a round trip, with which decisions are
//! compared, and a sorted set with a member for each event, with which the log is compared.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bb8_redis::redis;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::machine::cpu_micros;
use super::servers::{CpuPlacement, run_this_process_as_a_server, run_this_process_on};
use crate::support::RedisServer;

/// Commands per round trip, connections and keys, as redis-benchmark was run for the budget.
const PIPELINE: usize = 16;
const CONNECTIONS: usize = 32;
const KEYS: usize = 100_000;

/// CPU time of redis-server per INCR, in microseconds, over a window, after a warm-up of half its
/// length. Redis runs on the second core and the client on the first one.
fn incr_micros(window: Duration) -> f64 {
    run_this_process_on(CpuPlacement::FirstCore);
    let server = RedisServer::start();
    run_this_process_as_a_server();
    let mut streams: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| {
            let stream = TcpStream::connect(server.url()).expect("it listens");
            stream.set_nodelay(true).expect("a TCP socket");
            stream.set_nonblocking(true).expect("a TCP socket");
            stream
        })
        .collect();
    let mut missing = vec![0; CONNECTIONS];
    let _ = incr(&mut streams, &mut missing, window / 2);
    let begin = cpu_micros(server.process_id());
    let answered = incr(&mut streams, &mut missing, window);
    (cpu_micros(server.process_id()) - begin) / answered as f64
}

/// Runs `measure`, and measures INCR right before and after it, because the other work of the
/// machine changes from second to second.
pub fn beside_incrs<T>(window: Duration, measure: impl FnOnce() -> T) -> (T, f64) {
    let before = incr_micros(window / 2);
    let measured = measure();
    (measured, f64::midpoint(before, incr_micros(window / 2)))
}

/// Sends the next commands on a connection when all its replies have arrived. Returns the number of
/// replies.
fn incr(streams: &mut [TcpStream], missing: &mut [usize], window: Duration) -> usize {
    let begin = Instant::now();
    let mut answered = 0;
    let mut replies = [0; 4_096];
    while begin.elapsed() < window {
        for (stream, missing) in streams
            .iter_mut()
            .zip(missing.iter_mut())
            .filter(|(_, missing)| **missing == 0)
        {
            let mut commands = Vec::with_capacity(1_024);
            for _ in 0..PIPELINE {
                write!(
                    commands,
                    "*2\r\n$4\r\nINCR\r\n$24\r\nw1{{bench|user=user-{:06}}}\r\n",
                    fastrand::usize(..KEYS)
                )
                .expect("memory");
            }
            stream
                .write_all(&commands)
                .expect("the socket buffer has space");
            *missing = PIPELINE;
        }
        let mut polled: Vec<PollFd<'_>> = streams
            .iter()
            .map(|stream| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN))
            .collect();
        let _ = poll(
            &mut polled,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 10_000_000,
            }),
        );
        for (stream, missing) in streams.iter_mut().zip(missing.iter_mut()) {
            match stream.read(&mut replies) {
                Ok(length) => {
                    let lines = replies[..length]
                        .iter()
                        .filter(|&&byte| byte == b'\n')
                        .count();
                    *missing -= lines;
                    answered += lines;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("redis-server closed the connection: {error}"),
            }
        }
    }
    answered
}

/// Bytes that Redis has allocated.
pub fn used_bytes(server: &RedisServer) -> f64 {
    info_number(server, "memory", "used_memory:")
}

/// Commands so far, without this one.
pub fn commands(server: &RedisServer) -> f64 {
    info_number(server, "stats", "total_commands_processed:")
}

/// How often Redis has read from a connection so far: once for each batch that arrived whole.
pub fn reads(server: &RedisServer) -> f64 {
    info_number(server, "stats", "total_reads_processed:")
}

fn info_number(server: &RedisServer, section: &str, name: &str) -> f64 {
    let info: String = server.run(&["INFO", section]);
    info.lines()
        .find_map(|line| line.strip_prefix(name))
        .expect("a number in INFO")
        .trim()
        .parse()
        .expect("a number")
}

/// Bytes per event of sorted sets that hold the instant of each event, in microseconds, as its
/// score and as its member.
pub fn sorted_set_bytes_per_event(keys: usize, events: usize) -> f64 {
    const BEGIN: u64 = 1_800_000_000_000_000;
    let server = RedisServer::start();
    let before = used_bytes(&server);
    let mut connection = server.connection();
    for event in 0..events {
        let mut pipe = redis::pipe();
        for key in 0..keys {
            let at = BEGIN + (event * keys + key) as u64 * 10;
            pipe.zadd(format!("w1{{bench|user=user-{key:06}}}"), at, at)
                .ignore();
        }
        pipe.query::<()>(&mut connection).expect("it takes them");
    }
    for key in 0..keys {
        let _: () = redis::cmd("EXPIRE")
            .arg(format!("w1{{bench|user=user-{key:06}}}"))
            .arg(3_600)
            .query(&mut connection)
            .expect("an expiry");
    }
    (used_bytes(&server) - before) / (keys * events) as f64
}
