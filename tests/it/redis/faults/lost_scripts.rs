//! G6: Redis has lost its scripts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::support::load::{BlockingClient, Record};

/// Redis loses its scripts all the time, and once more by a restart: no request fails, and every
/// hit counts exactly once.
#[test]
fn g6_lost_scripts_are_sent_again() {
    let (_exclusive, mut goal, pace) = (exclusive(), Goal::of("G6"), Pace::here());
    let mut redis = RedisServer::start();
    let services = two_services(&redis.url(), &[("STORE_TIMEOUT", "5s")]);
    let load_of = |value: &'static str| {
        let options = Options::new(&services, move |number| {
            // One to three hits; the label is their number.
            let (label, hits) = [("one", 1), ("two", 2), ("three", 3)][number as usize % 3];
            let mut load_request = LoadRequest {
                label,
                ..load_request("script", value)
            };
            load_request.request.descriptors[0].hits_addend = Some(hits);
            load_request
        });
        Load::start(Options {
            timeout: Duration::from_secs(10),
            ..options
        })
    };
    let mut figures = Vec::new();
    for (value, restarts) in [("flushed", false), ("restarted", true)] {
        if restarts {
            redis.kill();
            redis.start_again();
            for service in &services {
                // This limit counts by transaction, so that Redis does not learn the script from
                // it.
                BlockingClient::new(service).ask_until_ok(&load_request("error", "warm").request);
            }
        }
        let load = load_of(value);
        let flushes = Arc::new(AtomicBool::new(true));
        std::thread::scope(|scope| {
            if !restarts {
                scope.spawn(|| {
                    while flushes.load(Ordering::Relaxed) {
                        redis.run::<()>(&["SCRIPT", "FLUSH"]);
                        sleep(Duration::from_millis(50));
                    }
                });
            }
            sleep(Duration::from_secs(if restarts {
                1
            } else {
                pace.pick(3, 10)
            }));
            flushes.store(false, Ordering::Relaxed);
        });
        let report = load.stop();
        let errors = report.count(|record| !record.is_ok());
        goal.must(errors == 0, format!("{value}: {:?}", report.outcomes()));
        let hits = ["one", "two", "three"]
            .iter()
            .zip(1..)
            .map(|(label, hits)| report.of(label).count(Record::is_ok) * hits)
            .sum::<usize>();
        let count = counted(&redis, value);
        goal.must(
            count == hits && hits > 0,
            format!("{value}: counted {count} of {hits}"),
        );
        figures.push(format!(
            "{value}: {errors} errors, counted {count} of {hits} hits"
        ));
    }
    goal.must_expire(&redis);
    goal.end(figures.join("; "));
}
